//! Finding `initdb` and `postgres`.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::account::Account;
use super::error::PrivatePostgresError;
use super::process;

/// The environment variable that names the directory of the programs.
const OVERRIDE: &str = "SPEND_LEDGER_POSTGRES_BIN";

/// The oldest major version that will do.
const OLDEST: u32 = 14;

/// Where distributions put the programs; `*` is a version. `dir_of` reads them.
const USUAL: [&str; 7] = [
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/opt/homebrew/opt/postgresql/bin",
    "/usr/local/opt/postgresql/bin",
];

/// A version of Postgres: major and minor, ordered as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    /// The version that decides whether a cluster can be read.
    pub(super) major: u32,
    minor: u32,
}

impl Version {
    /// Reads what `postgres --version` prints: `postgres (PostgreSQL) 15.18 …`.
    fn parse(text: &str) -> Option<Self> {
        let number = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        let mut parts = number.split(|c: char| !c.is_ascii_digit());
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        Some(Self { major, minor })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Programs of one version, in one directory.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    dir: PathBuf,
    /// What `postgres --version` says.
    pub(super) version: Version,
}

impl Programs {
    /// Finds the programs on this machine that the account can run: those of
    /// the cluster's major version if there is a cluster, else the first of at
    /// least [`OLDEST`].
    pub(super) fn find(account: &Account, cluster: Option<u32>) -> Result<Self, PrivatePostgresError> {
        Search::of_this_machine().find(account, cluster)
    }

    /// The program that makes a cluster.
    pub(super) fn initdb(&self) -> PathBuf {
        self.dir.join("initdb")
    }

    /// The server.
    pub(super) fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }

    /// The programs in a directory, if both are there and the account can run them.
    fn in_dir(account: &Account, dir: &Path) -> Option<Self> {
        let both = ["initdb", "postgres"].iter().all(|name| process::is_program(&dir.join(name)));
        if !both {
            return None;
        }
        let text = process::answer(account.command(&dir.join("postgres")).arg("--version"))?;
        Some(Self { dir: dir.to_owned(), version: Version::parse(&text)? })
    }
}

/// Where to look, in this order; a value of its own so that tests need not
/// change the environment of the process.
#[derive(Debug, Default)]
struct Search {
    override_dir: Option<PathBuf>,
    path: OsString,
    usual: Vec<String>,
}

impl Search {
    fn of_this_machine() -> Self {
        Self {
            override_dir: std::env::var_os(OVERRIDE).filter(|dir| !dir.is_empty()).map(PathBuf::from),
            path: std::env::var_os("PATH").unwrap_or_default(),
            usual: USUAL.map(str::to_owned).to_vec(),
        }
    }

    fn find(&self, account: &Account, cluster: Option<u32>) -> Result<Programs, PrivatePostgresError> {
        if let Some(dir) = &self.override_dir {
            return overridden(account, dir, cluster);
        }
        let mut found: Vec<Programs> = Vec::new();
        for dirs in [self.on_path(), self.by_pg_config(), self.in_usual_places()] {
            let mut here: Vec<Programs> = dirs
                .iter()
                .filter(|dir| found.iter().all(|programs| programs.dir != **dir))
                .filter_map(|dir| Programs::in_dir(account, dir))
                .collect();
            here.sort_by_key(|programs| std::cmp::Reverse(programs.version));
            if let Some(programs) = here.iter().find(|programs| suits(programs.version, cluster)) {
                return Ok(programs.clone());
            }
            found.append(&mut here);
        }
        if found.is_empty() && cluster.is_none() {
            return Err(PrivatePostgresError::ProgramsMissing);
        }
        Err(PrivatePostgresError::ProgramsUnsuitable { needed: needed(cluster), found: list(&found) })
    }

    /// The first `postgres` of `PATH` decides; what it links to holds both
    /// programs where the link's own directory may hold just the one.
    fn on_path(&self) -> Vec<PathBuf> {
        let Some(postgres) = process::on_path(&self.path, "postgres") else {
            return Vec::new();
        };
        let resolved = postgres.canonicalize().ok();
        let dirs = [resolved.as_deref(), Some(postgres.as_path())].into_iter().flatten();
        let complete = dirs
            .filter_map(|file| Some(file.parent()?.to_owned()))
            .find(|dir| process::is_program(&dir.join("initdb")));
        complete.into_iter().collect()
    }

    fn by_pg_config(&self) -> Vec<PathBuf> {
        process::on_path(&self.path, "pg_config")
            .and_then(|pg_config| process::answer(Command::new(pg_config).arg("--bindir")))
            .and_then(|dir| PathBuf::from(dir).canonicalize().ok())
            .into_iter()
            .collect()
    }

    fn in_usual_places(&self) -> Vec<PathBuf> {
        self.usual.iter().flat_map(|pattern| expand(pattern)).collect()
    }
}

/// The directories that a pattern with at most one `*` names.
fn expand(pattern: &str) -> Vec<PathBuf> {
    let Some((before, after)) = pattern.split_once('*') else {
        return vec![PathBuf::from(pattern)];
    };
    let (parent, prefix) = before.rsplit_once('/').unwrap_or(("", before));
    let Ok(entries) = std::fs::read_dir(format!("{parent}/")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .map(|name| PathBuf::from(format!("{parent}/{name}{after}")))
        .collect()
}

fn overridden(account: &Account, dir: &Path, cluster: Option<u32>) -> Result<Programs, PrivatePostgresError> {
    let refuse = |why| Err(PrivatePostgresError::ProgramsOverride { dir: dir.to_owned(), why });
    let Some(programs) = dir.canonicalize().ok().and_then(|dir| Programs::in_dir(account, &dir)) else {
        return refuse(format!("no initdb and postgres that user {} can run are there", account.name));
    };
    if !suits(programs.version, cluster) {
        return refuse(format!("holds Postgres {}, but this needs {}", programs.version, needed(cluster)));
    }
    Ok(programs)
}

fn suits(version: Version, cluster: Option<u32>) -> bool {
    match cluster {
        Some(major) => version.major == major,
        None => version.major >= OLDEST,
    }
}

fn needed(cluster: Option<u32>) -> String {
    match cluster {
        Some(major) => format!("Postgres {major}, which made the cluster in the data directory"),
        None => format!("Postgres {OLDEST} or newer"),
    }
}

fn list(found: &[Programs]) -> String {
    if found.is_empty() {
        return "none".to_owned();
    }
    let one = |programs: &Programs| format!("{} in {}", programs.version, programs.dir.display());
    found.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn account() -> Account {
        Account::choose(None, Path::new("/")).unwrap()
    }

    /// A directory that anyone may enter, for programs that are not Postgres.
    fn open_dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        dir
    }

    fn fake(dir: &Path, version: &str) {
        std::fs::create_dir_all(dir).unwrap();
        for name in ["initdb", "postgres"] {
            let file = dir.join(name);
            std::fs::write(&file, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    fn usual(root: &Path) -> Search {
        Search { usual: vec![format!("{}/*/bin", root.display())], ..Search::default() }
    }

    #[test]
    fn reads_versions_of_every_kind() {
        let read = |text| Version::parse(text).map(|version| (version.major, version.minor));
        assert_eq!(read("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"), Some((15, 18)));
        assert_eq!(read("postgres (PostgreSQL) 19beta2"), Some((19, 0)));
        assert_eq!(read("postgres (PostgreSQL) 18devel"), Some((18, 0)));
        assert_eq!(read("postgres"), None);
    }

    #[test]
    fn takes_the_newest_by_number_and_the_clusters_own() {
        let root = open_dir();
        for version in ["9.6", "14.2", "100.1"] {
            fake(&root.path().join(version).join("bin"), version);
        }
        let search = usual(root.path());
        assert_eq!(search.find(&account(), None).unwrap().version.major, 100);
        assert_eq!(search.find(&account(), Some(14)).unwrap().version.major, 14);
        let error = search.find(&account(), Some(16)).unwrap_err().to_string();
        assert!(error.contains("needs Postgres 16"), "{error}");
        assert!(error.contains("100.1 in "), "{error}");
    }

    #[test]
    fn names_what_is_needed() {
        let root = open_dir();
        let error = usual(root.path()).find(&account(), None).unwrap_err().to_string();
        assert!(error.contains("apt-get install postgresql"), "{error}");
        fake(&root.path().join("13/bin"), "13.9");
        let error = usual(root.path()).find(&account(), None).unwrap_err().to_string();
        assert!(error.contains("needs Postgres 14 or newer, found only 13.9"), "{error}");
    }

    #[test]
    fn follows_a_link_on_the_path_to_both_programs() {
        let root = open_dir();
        let (real, linked) = (root.path().join("real"), root.path().join("linked"));
        fake(&real, "16.1");
        std::fs::create_dir(&linked).unwrap();
        symlink(real.join("postgres"), linked.join("postgres")).unwrap();
        let search = Search { path: linked.into_os_string(), ..Search::default() };
        let programs = search.find(&account(), None).unwrap();
        assert_eq!(programs.initdb(), real.canonicalize().unwrap().join("initdb"));
    }

    #[test]
    fn an_override_is_used_or_refused() {
        let root = open_dir();
        let search = Search { override_dir: Some(root.path().to_owned()), ..Search::default() };
        let error = search.find(&account(), None).unwrap_err().to_string();
        assert!(error.starts_with("SPEND_LEDGER_POSTGRES_BIN="), "{error}");
        fake(root.path(), "17.0");
        assert_eq!(search.find(&account(), None).unwrap().version.major, 17);
        let error = search.find(&account(), Some(15)).unwrap_err().to_string();
        assert!(error.contains("holds Postgres 17.0, but this needs Postgres 15"), "{error}");
    }
}
