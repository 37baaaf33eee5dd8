//! Where a private Postgres lives on disk, and that only one process owns it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::account::Account;
use super::error::PrivatePostgresError;
use super::private::{DATABASE, LOGIN};

/// Where the cluster is in a data directory, or what points to it.
pub(super) const CLUSTER: &str = "cluster";

/// Where clusters go whose data directory the user of Postgres cannot reach.
const SYSTEM_HOME: &str = "/var/lib/spend-ledger";

/// The port: the server listens on no network, but the socket is named by it.
pub(super) const PORT: u16 = 5432;

/// The longest path of a socket that every system takes (macOS 103, Linux 107).
const SOCKET_PATH_MAX: usize = 103;

/// Entered by its owner only.
const PRIVATE: u32 = 0o700;

/// Passed through by others, so that the user of Postgres reaches its own.
const PASSABLE: u32 = 0o711;

/// The directories of one private Postgres. While the value lives, no other
/// process has one of the same.
#[derive(Debug)]
pub(super) struct Place {
    /// As the caller named it, made absolute.
    pub(super) data_dir: PathBuf,
    /// Holds cluster and socket: the data directory, or one under [`SYSTEM_HOME`].
    pub(super) home: PathBuf,
    /// The cluster: what Postgres calls its data directory.
    pub(super) cluster: PathBuf,
    /// The user Postgres runs as.
    pub(super) account: Account,
    /// Where the server listens.
    pub(super) socket_dir: PathBuf,
    locks: Vec<Lock>,
}

impl Place {
    /// Makes what is missing and takes ownership.
    pub(super) fn take(data_dir: &Path) -> Result<Self, PrivatePostgresError> {
        let data_dir = make_data_dir(data_dir)?;
        let mut locks = vec![Lock::take(&data_dir)?];
        let pointer = data_dir.join(CLUSTER);
        let owner = fs::metadata(&pointer).ok().map(|meta| (meta.uid(), meta.gid()));
        let account = Account::choose(owner, &pointer)?;
        let cluster = find_cluster(&data_dir, &account)?;
        let home = cluster.parent().unwrap_or(&data_dir).to_owned();
        if home != data_dir {
            locks.push(Lock::take(&home)?);
            tracing::info!(data_dir = %data_dir.display(), cluster = %home.display(), user = account.name,
                "the user Postgres runs as cannot use the data directory: the cluster is elsewhere");
        }
        let socket_dir = make_socket_dir(&home, &account)?;
        Ok(Self { data_dir, home, cluster, account, socket_dir, locks })
    }

    /// What the server has to say.
    pub(super) fn log(&self) -> PathBuf {
        self.data_dir.join("postgres.log")
    }

    /// Leaves a pointer in the data directory to a cluster that is elsewhere.
    pub(super) fn leave_pointer(&self) -> Result<(), PrivatePostgresError> {
        let pointer = self.data_dir.join(CLUSTER);
        if self.home == self.data_dir || pointer.is_symlink() {
            return Ok(());
        }
        symlink(&self.cluster, &pointer).map_err(PrivatePostgresError::data_dir("make", &pointer))
    }

    /// Tells who finds the place taken where the server is.
    pub(super) fn publish(&mut self) -> Result<(), PrivatePostgresError> {
        let socket_dir = self.socket_dir.to_string_lossy().into_owned();
        self.locks.iter_mut().try_for_each(|lock| lock.publish(&socket_dir))
    }
}

/// How a client reaches a database of the server, in the form that sqlx, libpq
/// and psql read. Port and TLS are said because they would otherwise be taken
/// from the environment (`PGPORT`, `PGSSLMODE`).
pub(super) fn url(socket_dir: &Path, database: &str, user: &str) -> String {
    let (database, user) = (percent(database, false), percent(user, false));
    let socket_dir = percent(&socket_dir.to_string_lossy(), true);
    format!("postgres://{user}@localhost:{PORT}/{database}?host={socket_dir}&sslmode=disable")
}

fn percent(text: &str, slash: bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || (slash && byte == b'/');
    let encode = |byte| {
        if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    text.bytes().map(encode).collect()
}

/// The exclusive lock on `lock` in a directory. The system gives it back when
/// the process ends, however it ends.
#[derive(Debug)]
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    fn take(dir: &Path) -> Result<Self, PrivatePostgresError> {
        let path = dir.join("lock");
        let error = |source| PrivatePostgresError::DataDir { doing: "lock", path: path.clone(), source };
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(error)?;
        // A process that has just ended may have been starting another, which
        // holds a copy of the lock until it is its own program.
        for _ in 0..20 {
            match file.try_lock() {
                Ok(()) => {
                    let mut lock = Self { file, path };
                    lock.write(&std::process::id().to_string())?;
                    return Ok(lock);
                }
                Err(fs::TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(50)),
                Err(fs::TryLockError::Error(source)) => return Err(error(source)),
            }
        }
        Err(in_use(dir, &mut file))
    }

    fn publish(&mut self, socket_dir: &str) -> Result<(), PrivatePostgresError> {
        self.write(&format!("{}\n{socket_dir}", std::process::id()))
    }

    fn write(&mut self, text: &str) -> Result<(), PrivatePostgresError> {
        let written = (|| {
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            writeln!(self.file, "{text}")
        })();
        written.map_err(PrivatePostgresError::data_dir("write", &self.path))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file would do, but for a child between fork and exec.
        if let Err(error) = self.file.unlock() {
            tracing::debug!(%error, "cannot unlock");
        }
    }
}

/// The error for a lock that another process holds, with what it wrote there.
fn in_use(dir: &Path, file: &mut File) -> PrivatePostgresError {
    let mut text = String::new();
    if let Err(error) = file.read_to_string(&mut text) {
        tracing::debug!(%error, "cannot read who holds the lock");
    }
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.parse().ok());
    let url = lines.next().map(|socket_dir| url(Path::new(socket_dir), DATABASE, LOGIN));
    PrivatePostgresError::InUse { data_dir: dir.to_owned(), pid, url }
}

fn make_data_dir(dir: &Path) -> Result<PathBuf, PrivatePostgresError> {
    let created = !dir.exists();
    if !created && !dir.is_dir() {
        return Err(PrivatePostgresError::NotADirectory { path: dir.to_owned() });
    }
    fs::create_dir_all(dir).map_err(PrivatePostgresError::data_dir("make", dir))?;
    if created {
        let root = rustix::process::geteuid().is_root();
        let mode = if root { PASSABLE } else { PRIVATE };
        fs::set_permissions(dir, Permissions::from_mode(mode))
            .map_err(PrivatePostgresError::data_dir("protect", dir))?;
    }
    dir.canonicalize().map_err(PrivatePostgresError::data_dir("find", dir))
}

/// The path of the cluster. A pointer decides; else it is in the data directory
/// if the account can use that, and under [`SYSTEM_HOME`] if not.
fn find_cluster(data_dir: &Path, account: &Account) -> Result<PathBuf, PrivatePostgresError> {
    let cluster = data_dir.join(CLUSTER);
    if let Ok(target) = fs::read_link(&cluster) {
        let target = data_dir.join(target);
        return target.canonicalize().map_err(|_| PrivatePostgresError::ClusterGone { pointer: cluster, target });
    }
    if !account.is_other() || usable(data_dir, account) {
        return Ok(cluster);
    }
    let unreachable =
        |path: &Path| PrivatePostgresError::Unreachable { account: account.name.clone(), path: path.to_owned() };
    if cluster.join("PG_VERSION").exists() {
        return Err(unreachable(data_dir));
    }
    let home = Path::new(SYSTEM_HOME).join(short_hash(data_dir));
    for dir in [Path::new(SYSTEM_HOME), &home] {
        fs::create_dir_all(dir)
            .and_then(|()| fs::set_permissions(dir, Permissions::from_mode(PASSABLE)))
            .map_err(PrivatePostgresError::data_dir("make", dir))?;
    }
    let home = home.canonicalize().map_err(PrivatePostgresError::data_dir("find", &home))?;
    if usable(&home, account) { Ok(home.join("cluster")) } else { Err(unreachable(&home)) }
}

/// Whether the account can use a directory of its own in this directory.
fn usable(dir: &Path, account: &Account) -> bool {
    let own = dir.join("socket");
    match make_private(&own, account) {
        Ok(()) if account.can_use(&own) => true,
        _ => {
            // Whatever is not an empty directory stays.
            let _ = fs::remove_dir(&own);
            false
        }
    }
}

fn make_private(dir: &Path, account: &Account) -> io::Result<()> {
    match DirBuilder::new().mode(PRIVATE).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !fs::symlink_metadata(dir)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    account.own(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(PRIVATE))
}

/// The directory of the socket: beside the cluster, or under `/tmp` where that
/// path cannot be a socket's.
fn make_socket_dir(home: &Path, account: &Account) -> Result<PathBuf, PrivatePostgresError> {
    let beside = home.join("socket");
    if suits_a_socket(&beside) {
        make_private(&beside, account).map_err(PrivatePostgresError::data_dir("make", &beside))?;
        return Ok(beside);
    }
    // Anyone may make a directory of that name first. Then it is not private
    // to the account, and another name is tried.
    let name = format!("spend-ledger-{}", short_hash(home));
    let mut dir = Path::new("/tmp").join(&name);
    for attempt in 1..=8 {
        if make_private_in_tmp(&dir, account).is_ok() {
            return Ok(dir);
        }
        dir = Path::new("/tmp").join(format!("{name}-{attempt}"));
    }
    Err(PrivatePostgresError::SocketDir { path: dir })
}

/// Makes the directory, or finds it as an earlier start left it.
fn make_private_in_tmp(dir: &Path, account: &Account) -> io::Result<()> {
    if DirBuilder::new().mode(PRIVATE).create(dir).is_ok() {
        return account.own(dir);
    }
    let meta = fs::symlink_metadata(dir)?;
    let ours = meta.is_dir() && meta.uid() == account.uid() && meta.mode() & 0o077 == 0;
    if ours { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Short enough, and of characters that Postgres's list of directories, its
/// pid file and a URL all carry.
fn suits_a_socket(dir: &Path) -> bool {
    let file = dir.join(format!(".s.PGSQL.{PORT}"));
    file.as_os_str().len() <= SOCKET_PATH_MAX
        && file.to_str().is_some_and(|path| !path.contains([',', '"', '\n', '\r']))
}

/// A name for a path, the same at every start.
fn short_hash(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_carries_any_path() {
        assert_eq!(
            url(Path::new("/a b/c+d/ü"), "led/ger", "me@x"),
            "postgres://me%40x@localhost:5432/led%2Fger?host=/a%20b/c%2Bd/%C3%BC&sslmode=disable"
        );
    }

    #[test]
    fn a_socket_path_is_short_and_plain() {
        assert!(suits_a_socket(Path::new("/data/my ledger/socket")));
        assert!(!suits_a_socket(Path::new("/data/a,b/socket")));
        assert!(!suits_a_socket(&Path::new("/").join("x".repeat(90))));
    }

    #[test]
    fn a_directory_in_tmp_that_others_can_enter_is_refused() {
        let account = Account::choose(None, Path::new("/")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        assert!(make_private_in_tmp(&open, &account).is_err());
        let link = dir.path().join("link");
        symlink(&open, &link).unwrap();
        assert!(make_private_in_tmp(&link, &account).is_err());
        let fresh = dir.path().join("fresh");
        make_private_in_tmp(&fresh, &account).unwrap();
        make_private_in_tmp(&fresh, &account).unwrap();
    }
}
