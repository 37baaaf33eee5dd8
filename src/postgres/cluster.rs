//! The cluster: made whole or not at all, and freed of what earlier owners
//! left running.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::error::PrivatePostgresError;
use super::place::Place;
use super::private::OWNER;
use super::process;
use super::programs::Programs;
use super::server;

/// What the directories are called in which clusters are made.
const UNFINISHED: &str = "cluster.init-";

/// How long making a cluster may take; it takes seconds.
const INIT_WITHIN: Duration = Duration::from_secs(120);

/// How long a server without owner may take to stop, asked politely, and then
/// not so.
const STOP_WITHIN: [(Signal, Duration); 2] =
    [(Signal::INT, Duration::from_secs(30)), (Signal::QUIT, Duration::from_secs(10))];

/// The major version of the cluster, `None` if there is none yet. An empty
/// directory is none: it is replaced.
pub(super) fn major_version(cluster: &Path) -> Result<Option<u32>, PrivatePostgresError> {
    let foreign = || PrivatePostgresError::NotACluster { path: cluster.to_owned() };
    match fs::read_to_string(cluster.join("PG_VERSION")) {
        Ok(text) => first_number(&text).map(Some).ok_or_else(foreign),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::read_dir(cluster).map(Iterator::count) {
            Ok(1..) => Err(foreign()),
            _ => Ok(None),
        },
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(foreign()),
        Err(error) => Err(PrivatePostgresError::data_dir("read", cluster)(error)),
    }
}

/// `15` of `15`, and `9` of the older kind, `9.6`.
fn first_number(text: &str) -> Option<u32> {
    text.trim().split('.').next()?.parse().ok()
}

/// Makes the cluster beside its place and renames it into it, so that whoever
/// is killed meanwhile leaves none rather than half of one.
pub(super) fn create(place: &Place, programs: &Programs) -> Result<(), PrivatePostgresError> {
    let unfinished = place.home.join(format!("{UNFINISHED}{}", std::process::id()));
    let ours = PrivatePostgresError::data_dir("make", &unfinished);
    DirBuilder::new().mode(0o700).create(&unfinished).and_then(|()| place.account.own(&unfinished)).map_err(ours)?;
    initdb(place, programs, &unfinished)?;
    let cluster = &place.cluster;
    fs::rename(&unfinished, cluster)
        .and_then(|()| File::open(&place.home)?.sync_all())
        .map_err(PrivatePostgresError::data_dir("make", cluster))?;
    tracing::info!(cluster = %cluster.display(), version = %programs.version, "made a new cluster");
    Ok(())
}

fn initdb(place: &Place, programs: &Programs, dir: &Path) -> Result<(), PrivatePostgresError> {
    let log = server::Log::open(place)?;
    let program = programs.initdb();
    let mut command = place.account.command(&program);
    command.arg("--pgdata").arg(dir).args(["--username", OWNER]).args([
        "--encoding=UTF8",
        "--locale=C",
        "--data-checksums",
        "--auth-local=trust",
        "--auth-host=reject",
        "--no-instructions",
    ]);
    log.receive(&mut command)?;
    let status =
        process::run(&mut command, INIT_WITHIN).map_err(|source| PrivatePostgresError::Run { program, source })?;
    let outcome = match status {
        Some(status) if status.success() => return Ok(()),
        Some(status) => status.to_string(),
        None => format!("not done within {} seconds", INIT_WITHIN.as_secs()),
    };
    Err(PrivatePostgresError::Initdb { outcome, log: place.log(), tail: log.tail() })
}

/// Removes what killed starts have left unfinished.
pub(super) fn remove_unfinished(home: &Path) {
    let Ok(entries) = fs::read_dir(home) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            continue;
        }
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "cannot remove an unfinished cluster");
        }
    }
}

/// Ends a server that has outlived its owner, and clears away a pid file that
/// names some other process by now. Nothing that this finds has an owner: the
/// caller holds the lock.
pub(super) fn settle_previous(place: &Place) -> Result<(), PrivatePostgresError> {
    let cluster = &place.cluster;
    let Some(pid) = PidFile::read(cluster).map(|file| file.pid) else {
        return Ok(());
    };
    if is_server_of(pid, cluster) {
        return stop_orphan(pid, cluster);
    }
    // Pids come round again (soon, in a container), and Postgres takes a
    // living process of its user for a server. As long as one backend is left
    // the file must stay: it leads to the shared memory they hold.
    if process_exists(pid) && servers_of(cluster).is_some_and(|left| left.is_empty()) {
        let socket = place.socket_dir.join(format!(".s.PGSQL.{}.lock", super::place::PORT));
        for path in [cluster.join("postmaster.pid"), socket] {
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!(%error, path = %path.display(), "cannot remove a stale file");
            }
        }
    }
    Ok(())
}

fn stop_orphan(pid: u32, cluster: &Path) -> Result<(), PrivatePostgresError> {
    tracing::warn!(pid, "stopping a Postgres server of this data directory whose owner is gone");
    for (signal, within) in STOP_WITHIN {
        process::signal(pid, signal).map_err(PrivatePostgresError::data_dir("stop the server of", cluster))?;
        let until = Instant::now() + within;
        while Instant::now() < until {
            if !is_server_of(pid, cluster) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Err(PrivatePostgresError::StaysUp { pid })
}

/// Ends backends whose postmaster was killed and that are too busy to notice.
pub(super) fn end_lingering(cluster: &Path) {
    for pid in servers_of(cluster).unwrap_or_default() {
        tracing::warn!(pid, "ending a Postgres backend whose server is gone");
        if let Err(error) = process::signal(pid, Signal::QUIT) {
            tracing::warn!(%error, pid, "cannot end it");
        }
    }
}

/// What the server writes in `postmaster.pid`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PidFile {
    /// The postmaster.
    pub(super) pid: u32,
    /// When it started, in seconds since 1970.
    pub(super) started: u64,
    /// Whether it accepts connections.
    pub(super) ready: bool,
}

impl PidFile {
    /// Reads the file; `None` if there is none or it is not all written.
    pub(super) fn read(cluster: &Path) -> Option<Self> {
        Self::parse(&fs::read_to_string(cluster.join("postmaster.pid")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let pid = lines.next()?.trim().parse().ok()?;
        let started = lines.nth(1).and_then(|line| line.trim().parse().ok()).unwrap_or(0);
        // The eighth line; the last one, should a path hold a line break.
        let ready = text.lines().last().is_some_and(|line| line.trim() == "ready");
        Some(Self { pid, started, ready })
    }
}

/// Whether a process is a Postgres of this cluster. A zombie is not: it has no
/// directory.
fn is_server_of(pid: u32, cluster: &Path) -> bool {
    if Path::new("/proc/self/cwd").exists() {
        let process = PathBuf::from(format!("/proc/{pid}"));
        // The server and its backends work in the cluster's directory.
        let here = fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == cluster);
        return here && fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim() == "postgres");
    }
    let arguments = process::answer(Command::new("ps").args(["-p", &pid.to_string(), "-o", "args="]));
    let cluster = cluster.to_string_lossy();
    arguments.is_some_and(|text| text.contains("postgres") && text.contains(&*cluster))
}

/// Every process of this cluster, where the system has a list (`/proc`).
fn servers_of(cluster: &Path) -> Option<Vec<u32>> {
    if !Path::new("/proc/self/cwd").exists() {
        return None;
    }
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Some(pids.filter(|pid| is_server_of(*pid, cluster)).collect())
}

fn process_exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_pid_file_at_every_stage() {
        let read = |text| PidFile::parse(text).map(|file| (file.pid, file.started, file.ready));
        assert_eq!(read(""), None);
        assert_eq!(read("17\n/data\n1700000000\n5432\n/s\n\n 123  4\nstarting\n"), Some((17, 1_700_000_000, false)));
        assert_eq!(read("17\n/data\n1700000000\n5432\n/s\n\n 123  4\nready   \n"), Some((17, 1_700_000_000, true)));
    }

    #[test]
    fn tells_a_cluster_from_other_things() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = dir.path().join("cluster");
        assert_eq!(major_version(&cluster).unwrap(), None);
        fs::create_dir(&cluster).unwrap();
        assert_eq!(major_version(&cluster).unwrap(), None);
        fs::write(cluster.join("notes.txt"), "mine").unwrap();
        assert!(matches!(major_version(&cluster), Err(PrivatePostgresError::NotACluster { .. })));
        fs::write(cluster.join("PG_VERSION"), "15\n").unwrap();
        assert_eq!(major_version(&cluster).unwrap(), Some(15));
        assert!(matches!(
            major_version(&dir.path().join("cluster/notes.txt")),
            Err(PrivatePostgresError::NotACluster { .. })
        ));
    }

    #[test]
    fn removes_unfinished_clusters_only() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cluster.init-1", "cluster", "other"] {
            fs::create_dir_all(dir.path().join(name).join("base")).unwrap();
        }
        remove_unfinished(dir.path());
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["cluster", "other"]);
    }
}
