//! What can go wrong, said so that the reader knows what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a private Postgres did not start, or did not stop.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivatePostgresError {
    /// There are no Postgres programs on this machine.
    #[error(
        "no Postgres programs (initdb and postgres in one directory) found; install them \
         (Debian, Ubuntu: apt-get install postgresql; Fedora, Red Hat: dnf install \
         postgresql-server; macOS: brew install postgresql), name their directory in \
         SPEND_LEDGER_POSTGRES_BIN, or use a running server with --database-url"
    )]
    ProgramsMissing,

    /// There are Postgres programs, but of no version that will do.
    #[error(
        "needs {needed}, found only {found}; install it, or name its directory in \
             SPEND_LEDGER_POSTGRES_BIN"
    )]
    ProgramsUnsuitable {
        /// What would do.
        needed: String,
        /// The versions found, with their directories.
        found: String,
    },

    /// `SPEND_LEDGER_POSTGRES_BIN` names a directory without usable programs.
    #[error("SPEND_LEDGER_POSTGRES_BIN={}: {why}; correct it, or leave it unset to search the usual places", dir.display())]
    ProgramsOverride {
        /// The directory named.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// Something in the data directory cannot be read or written.
    #[error("cannot {doing} {}: {source}; choose a data directory this process may write to with --data-dir", path.display())]
    DataDir {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The data directory is a file.
    #[error("{} is not a directory; choose another with --data-dir", path.display())]
    NotADirectory {
        /// The path given.
        path: PathBuf,
    },

    /// Another process owns the data directory and lives.
    #[error("{} is already in use by process {}; {}, or choose another --data-dir",
            data_dir.display(), pid_text(*pid), join_text(url.as_deref()))]
    InUse {
        /// The directory both want.
        data_dir: PathBuf,
        /// The other process, where it has said so.
        pid: Option<u32>,
        /// Where its database is, once it has said so.
        url: Option<String>,
    },

    /// Something that is no Postgres cluster is where the cluster belongs.
    #[error("{} is there but is no Postgres cluster; move it away, or choose another --data-dir", path.display())]
    NotACluster {
        /// The path of the supposed cluster.
        path: PathBuf,
    },

    /// The data directory points to a cluster that is gone.
    #[error("{} points to {}, which is gone; bring it back, or remove the pointer to begin with an empty ledger",
            pointer.display(), target.display())]
    ClusterGone {
        /// The symbolic link.
        pointer: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },

    /// The cluster belongs to another user of this machine.
    #[error("the cluster {} belongs to user id {owner}; run as that user or as root, or choose another --data-dir", path.display())]
    ForeignCluster {
        /// The cluster.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },

    /// Started as root, and there is no user to run Postgres as.
    #[error(
        "Postgres does not run as root, and there is no user postgres or nobody to run it as; \
             create one (useradd --system postgres), or start as another user"
    )]
    NoAccount,

    /// The user that Postgres runs as cannot use the directory.
    #[error("user {account} cannot use {}; let it pass through the directories above, or choose another --data-dir", path.display())]
    Unreachable {
        /// The user.
        account: String,
        /// The directory.
        path: PathBuf,
    },

    /// No private directory for the socket could be made.
    #[error("cannot make a private directory for the socket: {} belongs to someone else or is open to others; \
             remove it, or choose a --data-dir with a shorter path", path.display())]
    SocketDir {
        /// The last directory tried.
        path: PathBuf,
    },

    /// A program could not be run at all.
    #[error("cannot run {}: {source}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// `initdb` failed.
    #[error("initdb could not make a cluster ({outcome}); its last words, from {}:\n{tail}", log.display())]
    Initdb {
        /// Exit status, or that it took too long.
        outcome: String,
        /// The log file.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },

    /// The server ended before it was ready.
    #[error("Postgres did not start ({outcome}); its last words, from {}:\n{tail}", log.display())]
    Start {
        /// Exit status.
        outcome: String,
        /// The log file.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },

    /// The server was not ready in time.
    #[error("Postgres was not ready within {} seconds and was stopped; if it was recovering, start again; \
             its last words, from {}:\n{tail}", within.as_secs(), log.display())]
    NotReady {
        /// How long it was given.
        within: Duration,
        /// The log file.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },

    /// A server did not end when told to.
    #[error(
        "the Postgres server with process id {pid} does not stop; look at what it waits for, \
             and end it with kill -9 {pid} if nothing else helps"
    )]
    StaysUp {
        /// The postmaster.
        pid: u32,
    },

    /// The system gave no thread to own the server.
    #[error("cannot start the thread that owns Postgres: {0}")]
    Thread(io::Error),

    /// The start was given up by the one who asked for it.
    #[error("the start of Postgres was given up")]
    Interrupted,
}

impl PrivatePostgresError {
    /// The error of doing something with a file of the data directory.
    pub(super) fn data_dir(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::DataDir { doing, path, source }
    }
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string())
}

fn join_text(url: Option<&str>) -> String {
    match url {
        Some(url) => format!("to join it use --database-url '{url}'"),
        None => "it is still starting: wait for it".to_owned(),
    }
}
