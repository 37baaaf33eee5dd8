//! What a private Postgres promises, tried on real ones.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sqlx::{Connection, PgConnection};

use super::account::Account;
use super::cluster::PidFile;
use super::programs::Programs;
use super::{OWNER, PrivatePostgres, PrivatePostgresError, process};

/// A directory that the user of Postgres can reach into.
fn dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mode = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
    dir
}

async fn ask(server: &PrivatePostgres, sql: &'static str) -> sqlx::Result<String> {
    let mut connection = PgConnection::connect(&server.url("postgres", OWNER)).await?;
    let answer = sqlx::query_scalar(sql).fetch_one(&mut connection).await;
    connection.close().await?;
    answer
}

async fn execute(server: &PrivatePostgres, sql: &'static str) {
    let mut connection = PgConnection::connect(&server.url("postgres", OWNER)).await.unwrap();
    sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
}

fn postmaster(server: &PrivatePostgres) -> u32 {
    let cluster = server.data_dir().join("cluster").canonicalize().unwrap();
    PidFile::read(&cluster).unwrap().pid
}

#[tokio::test]
async fn a_second_start_finds_the_data_and_a_second_owner_is_refused() {
    let dir = dir();
    let data_dir = dir.path().join("data");
    let server = PrivatePostgres::start(&data_dir).await.unwrap();
    execute(&server, "create table kept (n int); insert into kept values (7)").await;

    let error = PrivatePostgres::start(&data_dir).await.unwrap_err();
    assert!(matches!(error, PrivatePostgresError::InUse { pid: Some(pid), .. } if pid == std::process::id()));
    let url = server.url(super::DATABASE, super::LOGIN);
    assert!(error.to_string().contains(&format!("--database-url '{url}'")), "{error}");

    let pid = postmaster(&server);
    server.stop().await.unwrap();
    server.stop().await.unwrap();
    assert!(!Path::new(&format!("/proc/{pid}/cwd")).exists());

    let server = PrivatePostgres::start(&data_dir).await.unwrap();
    assert_eq!(ask(&server, "select n::text from kept").await.unwrap(), "7");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn it_is_private_and_durable() {
    let dir = dir();
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    let settings = "select string_agg(name || '=' || setting, ' ' order by name) from pg_settings where name in \
        ('listen_addresses', 'fsync', 'full_page_writes', 'synchronous_commit', 'data_checksums', \
         'server_encoding', 'lc_collate', 'max_connections')";
    let said = ask(&server, settings).await.unwrap();
    for setting in [
        "data_checksums=on",
        "fsync=on",
        "full_page_writes=on",
        "listen_addresses= ",
        "max_connections=200",
        "server_encoding=UTF8",
        "synchronous_commit=on",
    ] {
        assert!(said.contains(setting), "{said}");
    }
    for private in [server.socket_dir().to_owned(), dir.path().join("cluster")] {
        assert_eq!(fs::metadata(&private).unwrap().mode() & 0o777, 0o700, "{}", private.display());
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_killed_server_comes_back_with_its_data() {
    let dir = dir();
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    execute(&server, "create table kept (n int); insert into kept values (7)").await;
    // A session that is busy when the server dies.
    let mut busy = PgConnection::connect(&server.url("postgres", OWNER)).await.unwrap();
    let busy = tokio::spawn(async move { sqlx::raw_sql("select pg_sleep(60)").execute(&mut busy).await.is_err() });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let pid = postmaster(&server);
    process::signal(pid, Signal::KILL).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let kept = loop {
        match ask(&server, "select n::text from kept").await {
            Ok(kept) => break kept,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(kept, "7");
    assert_ne!(postmaster(&server), pid);
    assert!(busy.await.unwrap());
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_without_owner_is_replaced() {
    let dir = dir();
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    server.stop().await.unwrap();
    let cluster = dir.path().canonicalize().unwrap().join("cluster");
    let meta = fs::metadata(&cluster).unwrap();
    let account = Account::choose(Some((meta.uid(), meta.gid())), &cluster).unwrap();
    let programs = Programs::find(&account, None).unwrap();
    let sockets = format!("unix_socket_directories={}", server.socket_dir().display());
    let mut orphan = account.command(&programs.postgres());
    orphan.arg("-D").arg(&cluster).args(["-c", "listen_addresses=", "-c", &sockets]);
    let mut orphan = orphan.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while !PidFile::read(&cluster).is_some_and(|file| file.ready) {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    assert!(orphan.try_wait().unwrap().is_some());
    assert_eq!(ask(&server, "select 'here'").await.unwrap(), "here");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_pid_file_that_names_another_process_is_no_obstacle() {
    let dir = dir();
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    let cluster = dir.path().join("cluster");
    let running = fs::read_to_string(cluster.join("postmaster.pid")).unwrap();
    server.stop().await.unwrap();
    let meta = fs::metadata(&cluster).unwrap();
    let account = Account::choose(Some((meta.uid(), meta.gid())), &cluster).unwrap();
    let mut other = account.command(Path::new("/bin/sleep")).arg("60").spawn().unwrap();
    let stale = running.lines().skip(1).fold(other.id().to_string(), |text, line| text + "\n" + line);
    fs::write(cluster.join("postmaster.pid"), stale + "\n").unwrap();
    account.own(&cluster.join("postmaster.pid")).unwrap();
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    assert!(other.try_wait().unwrap().is_none(), "the other process was left alone");
    other.kill().unwrap();
    other.wait().unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_long_path_and_two_at_once() {
    let dir = dir();
    let long = dir.path().join("a long name, ".repeat(9));
    let short = dir.path().join("short");
    let (first, second) = tokio::join!(PrivatePostgres::start(&long), PrivatePostgres::start(&short));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert!(first.socket_dir().starts_with("/tmp"), "{}", first.socket_dir().display());
    assert_eq!(fs::metadata(first.socket_dir()).unwrap().mode() & 0o777, 0o700);
    assert!(second.socket_dir().starts_with(second.data_dir()));
    for server in [&first, &second] {
        assert_eq!(ask(server, "select 'here'").await.unwrap(), "here");
        server.stop().await.unwrap();
    }
    fs::remove_dir_all(first.socket_dir()).unwrap();
}

#[tokio::test]
async fn a_directory_that_only_root_can_enter_gets_a_pointer() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let data_dir = dir.path().join("data");
    let server = PrivatePostgres::start(&data_dir).await.unwrap();
    execute(&server, "create table kept (n int); insert into kept values (7)").await;
    let target = fs::read_link(data_dir.join("cluster")).unwrap();
    assert!(target.starts_with("/var/lib/spend-ledger"), "{}", target.display());
    server.stop().await.unwrap();

    // Moved, it still finds its cluster.
    let moved = dir.path().join("moved");
    fs::rename(&data_dir, &moved).unwrap();
    let server = PrivatePostgres::start(&moved).await.unwrap();
    assert_eq!(ask(&server, "select n::text from kept").await.unwrap(), "7");
    server.stop().await.unwrap();

    fs::remove_dir_all(target.parent().unwrap()).unwrap();
    let error = PrivatePostgres::start(&moved).await.unwrap_err();
    assert!(matches!(error, PrivatePostgresError::ClusterGone { .. }), "{error}");
}

#[tokio::test]
async fn dropping_it_ends_the_server() {
    let dir = dir();
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    let socket = server.socket_dir().join(".s.PGSQL.5432");
    assert!(socket.exists());
    drop(server);
    let until = Instant::now() + Duration::from_secs(30);
    while socket.exists() {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The next owner waits for the lock no longer than it takes.
    let server = PrivatePostgres::start(dir.path()).await.unwrap();
    server.stop().await.unwrap();
}

#[tokio::test]
async fn hostile_directories_are_refused_with_reasons() {
    let dir = dir();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = PrivatePostgres::start(&file).await.unwrap_err();
    assert!(matches!(error, PrivatePostgresError::NotADirectory { .. }), "{error}");
    let error = PrivatePostgres::start(&file.join("below")).await.unwrap_err();
    assert!(matches!(error, PrivatePostgresError::DataDir { .. }), "{error}");

    let other = dir.path().join("other");
    fs::create_dir_all(other.join("cluster")).unwrap();
    fs::write(other.join("cluster/PG_VERSION"), "99\n").unwrap();
    let error = PrivatePostgres::start(&other).await.unwrap_err();
    // Said one way or another, as SPEND_LEDGER_POSTGRES_BIN may be set.
    assert!(error.to_string().contains("needs Postgres 99"), "{error}");
}
