//! One run of the server: started, ready, stopped.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use super::cluster::{self, PidFile};
use super::error::PrivatePostgresError;
use super::place::{PORT, Place};
use super::private::Control;
use super::process;
use super::programs::Programs;

/// How long the server may take to accept connections. Usually a second; after
/// a crash it first replays what it had not yet written out.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long a start is repeated while backends of a killed server go away, and
/// after which part of that they are told to.
const LINGER_WITHIN: Duration = Duration::from_secs(30);
const LINGER_POLITELY: Duration = Duration::from_secs(2);

/// How long each way to stop the server may take: a fast shutdown, which ends
/// sessions and writes everything out, then an immediate one, which loses
/// nothing either but must recover at the next start.
const STOP_WITHIN: [(Signal, Duration); 2] =
    [(Signal::INT, Duration::from_secs(30)), (Signal::QUIT, Duration::from_secs(10))];

/// At this size the log begins anew at a start; one old log is kept.
const LOG_MAX: u64 = 10 * 1024 * 1024;

/// How much of the log an error quotes.
const TAIL: u64 = 2048;

/// Settings that a ledger depends on, said on the command line where no
/// configuration file and no `ALTER SYSTEM` can change them.
const SETTINGS: [&str; 9] = [
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "fsync=on",
    "full_page_writes=on",
    "synchronous_commit=on",
    "max_connections=200",
    "logging_collector=off",
    "log_destination=stderr",
    "timezone=UTC",
];

/// Starts the server and waits until it accepts connections.
pub(super) fn launch(place: &Place, programs: &Programs, control: &mut Control) -> Result<Child, PrivatePostgresError> {
    let began = Instant::now();
    loop {
        cluster::settle_previous(place)?;
        let log = Log::open(place)?;
        let mut child = spawn(place, programs, &log)?;
        let status = match await_ready(&mut child, place, control)? {
            Outcome::Ready => return Ok(child),
            Outcome::Ended(status) => status,
            Outcome::Late | Outcome::Interrupted if control.ended() => {
                stop(&mut child)?;
                return Err(PrivatePostgresError::Interrupted);
            }
            Outcome::Late | Outcome::Interrupted => {
                stop(&mut child)?;
                let (log, tail) = (place.log(), log.tail());
                return Err(PrivatePostgresError::NotReady { within: READY_WITHIN, log, tail });
            }
        };
        let tail = log.tail();
        if !lingering(&tail) || began.elapsed() > LINGER_WITHIN {
            let outcome = status.to_string();
            return Err(PrivatePostgresError::Start { outcome, log: place.log(), tail });
        }
        if began.elapsed() > LINGER_POLITELY {
            cluster::end_lingering(&place.cluster);
        }
        if !control.pause(Duration::from_millis(500)) {
            return Err(PrivatePostgresError::Interrupted);
        }
    }
}

/// Stops the server: bounded, and by ever less polite means.
pub(super) fn stop(child: &mut Child) -> Result<(), PrivatePostgresError> {
    let pid = child.id();
    let failed = |source| PrivatePostgresError::Run { program: PathBuf::from("postgres"), source };
    for (signal, within) in STOP_WITHIN {
        // Asked first: the pid is only known to be ours until it is reaped.
        if child.try_wait().map_err(failed)?.is_some() {
            return Ok(());
        }
        process::signal(pid, signal).map_err(failed)?;
        if let Some(status) = process::wait(child, within).map_err(failed)? {
            tracing::debug!(%status, "Postgres stopped");
            return Ok(());
        }
        tracing::warn!(pid, ?signal, "Postgres does not stop");
    }
    Err(PrivatePostgresError::StaysUp { pid })
}

fn spawn(place: &Place, programs: &Programs, log: &Log) -> Result<Child, PrivatePostgresError> {
    let program = programs.postgres();
    let mut command = place.account.command(&program);
    command.arg("-D").arg(&place.cluster);
    command.args(SETTINGS.iter().flat_map(|setting| ["-c", setting]));
    command.args(["-c", &format!("port={PORT}")]);
    command.args(["-c", &format!("unix_socket_directories={}", place.socket_dir.display())]);
    log.receive(&mut command)?;
    command.stdin(Stdio::null()).spawn().map_err(|source| PrivatePostgresError::Run { program, source })
}

/// What became of a server that was started.
enum Outcome {
    Ready,
    Ended(ExitStatus),
    Late,
    Interrupted,
}

/// Waits for the status line of `postmaster.pid` to say ready, as `pg_ctl`
/// does: the server itself writes it when it accepts connections, and reading
/// it takes no client and no database to connect to.
fn await_ready(child: &mut Child, place: &Place, control: &mut Control) -> Result<Outcome, PrivatePostgresError> {
    let program = || PathBuf::from("postgres");
    let until = Instant::now() + READY_WITHIN;
    // Two seconds for the clocks of file and process: an old file may name the
    // same pid, but not so young a start.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let earliest = since_epoch.as_secs().saturating_sub(2);
    while Instant::now() < until {
        let status = child.try_wait().map_err(|source| PrivatePostgresError::Run { program: program(), source })?;
        if let Some(status) = status {
            return Ok(Outcome::Ended(status));
        }
        let file = PidFile::read(&place.cluster);
        if file.is_some_and(|file| file.ready && file.pid == child.id() && file.started >= earliest) {
            return Ok(Outcome::Ready);
        }
        if !control.pause(Duration::from_millis(20)) {
            return Ok(Outcome::Interrupted);
        }
    }
    Ok(Outcome::Late)
}

/// Whether a start failed for what is left of the server before, which passes.
fn lingering(tail: &str) -> bool {
    tail.contains("pre-existing shared memory block") || (tail.contains("lock file") && tail.contains("already exists"))
}

/// The log from here on.
pub(super) struct Log {
    path: PathBuf,
    from: u64,
    file: File,
}

impl Log {
    /// Opens the log for what comes next, anew if it has grown large.
    pub(super) fn open(place: &Place) -> Result<Self, PrivatePostgresError> {
        let path = place.log();
        let opened = (|| {
            if fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_MAX) {
                fs::rename(&path, path.with_extension("log.old"))?;
            }
            let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
            Ok((file.metadata()?.len(), file))
        })();
        let (from, file) = opened.map_err(PrivatePostgresError::data_dir("write", &path))?;
        Ok(Self { path, from, file })
    }

    /// Lets the log receive what a command prints.
    pub(super) fn receive(&self, command: &mut Command) -> Result<(), PrivatePostgresError> {
        let copy = || self.file.try_clone().map_err(PrivatePostgresError::data_dir("write", &self.path));
        command.stdout(copy()?).stderr(copy()?);
        Ok(())
    }

    /// The end of what has been logged since.
    pub(super) fn tail(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.path)?;
            let end = file.metadata()?.len();
            file.seek(SeekFrom::Start(self.from.max(end.saturating_sub(TAIL))))?;
            let mut bytes = Vec::new();
            file.take(TAIL).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned()).unwrap_or_default()
    }
}
