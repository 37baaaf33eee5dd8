//! The user that Postgres runs as: oneself, or an unprivileged user when
//! started as root, which Postgres refuses.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::error::PrivatePostgresError;
use super::process;

/// Users to run as when started as root, the first that exists.
const UNPRIVILEGED: [&str; 2] = ["postgres", "nobody"];

/// What a child sees of this process's environment: no credentials, and none
/// of the `PG…` variables that would change what the server does.
const ENVIRONMENT: [&str; 4] = ["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR"];

/// A user of the system, and how children are started as it.
#[derive(Debug)]
pub(super) struct Account {
    /// For messages.
    pub(super) name: String,
    /// User and group to change to; `None` is this process's own.
    switch_to: Option<(u32, u32)>,
    /// `setpriv` of util-linux, where it works.
    setpriv: Option<PathBuf>,
}

impl Account {
    /// The account for a cluster: its owner, or for a new one the user at hand.
    pub(super) fn choose(owner: Option<(u32, u32)>, cluster: &Path) -> Result<Self, PrivatePostgresError> {
        let me = rustix::process::geteuid().as_raw();
        let (name, switch_to) = match (me, owner) {
            (0, Some((uid, gid))) if uid != 0 => (uid.to_string(), Some((uid, gid))),
            (0, _) => unprivileged().ok_or(PrivatePostgresError::NoAccount)?,
            (me, Some((uid, _))) if uid != me => {
                let path = cluster.to_owned();
                return Err(PrivatePostgresError::ForeignCluster { path, owner: uid });
            }
            (me, _) => (me.to_string(), None),
        };
        let mut account = Self { name, switch_to, setpriv: None };
        account.setpriv = account.working_setpriv();
        if account.setpriv.is_none() {
            tracing::debug!("no setpriv with --pdeathsig: a killed service leaves Postgres to its next start");
        }
        Ok(account)
    }

    /// Whether children run as another user than this process.
    pub(super) fn is_other(&self) -> bool {
        self.switch_to.is_some()
    }

    /// The user id that the files of Postgres belong to.
    pub(super) fn uid(&self) -> u32 {
        self.switch_to.map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid)
    }

    /// A command that runs as this account, and ends (by `SIGINT`, a fast
    /// shutdown to Postgres) when the thread that spawned it ends.
    ///
    /// It leads a process group of its own: Ctrl-C at a terminal is for the
    /// service, which stops its database last.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = match &self.setpriv {
            Some(setpriv) => self.through(setpriv, program),
            None => {
                let mut command = Command::new(program);
                if let Some((uid, gid)) = self.switch_to {
                    // Also drops the supplementary groups of root.
                    command.uid(uid).gid(gid);
                }
                command
            }
        };
        command.env_clear().env("LC_ALL", "C").process_group(0).current_dir("/");
        command.envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command
    }

    /// Hands a file over to this account.
    pub(super) fn own(&self, path: &Path) -> io::Result<()> {
        match self.switch_to {
            Some((uid, gid)) => lchown(path, Some(uid), Some(gid)),
            None => Ok(()),
        }
    }

    /// Whether the account can write in a directory; found out by trying, since
    /// it depends on every directory above and on how they are mounted.
    pub(super) fn can_use(&self, dir: &Path) -> bool {
        let mut shell = self.command(Path::new("/bin/sh"));
        shell.args(["-c", "test -w \"$1\" && cd \"$1\"", "sh"]).arg(dir);
        succeeds(&mut shell)
    }

    fn through(&self, setpriv: &Path, program: &Path) -> Command {
        let mut command = Command::new(setpriv);
        command.args(["--pdeathsig", "INT"]);
        if let Some((uid, gid)) = self.switch_to {
            let (uid, gid) = (uid.to_string(), gid.to_string());
            command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// Other programs of this name lack the options; so it is tried.
    fn working_setpriv(&self) -> Option<PathBuf> {
        let path: OsString = std::env::var_os("PATH")?;
        let setpriv = process::on_path(&path, "setpriv")?;
        let mut command = self.through(&setpriv, Path::new("/bin/sh"));
        succeeds(command.args(["-c", ":"])).then_some(setpriv)
    }
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null());
    process::run(command, Duration::from_secs(10)).ok().flatten().is_some_and(|status| status.success())
}

/// The first unprivileged user there is; `id` asks whatever the system asks.
fn unprivileged() -> Option<(String, Option<(u32, u32)>)> {
    UNPRIVILEGED.iter().find_map(|name| {
        let (uid, gid) = (id("-u", name)?, id("-g", name)?);
        (uid != 0).then(|| ((*name).to_owned(), Some((uid, gid))))
    })
}

fn id(which: &str, name: &str) -> Option<u32> {
    process::answer(Command::new("id").args([which, name]))?.parse().ok()
}
