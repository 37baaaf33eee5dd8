//! A Postgres whose clock is ahead: its programs in a directory of their own,
//! which put libfaketime before the real ones.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where distributions put the library; `*` is an architecture.
const USUAL: [&str; 4] = ["/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"];

/// The library. Where it is missing the test is skipped, and says so; in continuous
/// integration, which has to have it, it fails.
pub fn library() -> Option<PathBuf> {
    let directories = USUAL.iter().flat_map(|usual| match usual.split_once('*') {
        None => vec![PathBuf::from(usual)],
        Some((before, after)) => std::fs::read_dir(before)
            .into_iter()
            .flat_map(|entries| entries.flatten())
            .map(|entry| entry.path().join(after.trim_start_matches('/')))
            .collect(),
    });
    let found = directories.map(|directory| directory.join("libfaketime.so.1")).find(|library| library.exists());
    if found.is_none() {
        let missing = "libfaketime is missing: scripts/install-faketime installs it (apt-get install faketime)";
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "{missing}");
        eprintln!("skipped: {missing}");
    }
    found
}

/// The programs of a Postgres that is ahead of time by so many years.
pub struct Programs(tempfile::TempDir);

impl Programs {
    /// In the place of those in the directory `real`.
    pub fn ahead(library: &Path, real: &Path, years: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let may_run = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        may_run(directory.path());
        for program in ["initdb", "postgres"] {
            let script = format!(
                "#!/bin/sh\n\
                 export LD_PRELOAD='{}' FAKETIME=+{years}y\n\
                 export FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1\n\
                 exec '{}' \"$@\"\n",
                library.display(),
                real.join(program).display()
            );
            std::fs::write(directory.path().join(program), script).unwrap();
            may_run(&directory.path().join(program));
        }
        Self(directory)
    }

    pub fn directory(&self) -> &Path {
        self.0.path()
    }
}
