//! Child processes that are never waited for without a bound.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How often a child is looked at while it is waited for.
const POLL: Duration = Duration::from_millis(20);

/// How long the small programs asked for a version or an id may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Waits for a child, at most so long; `None` if it still runs.
pub(super) fn wait(child: &mut Child, within: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + within;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Runs a command to its end; one that takes longer is killed and is `None`.
pub(super) fn run(command: &mut Command, within: Duration) -> io::Result<Option<ExitStatus>> {
    let mut child = command.stdin(Stdio::null()).spawn()?;
    let status = wait(&mut child, within)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok(status)
}

/// What a small program prints, if it ends well and in time.
pub(super) fn answer(command: &mut Command) -> Option<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let status = wait(&mut child, ANSWER_WITHIN).ok().flatten();
    let Some(status) = status else {
        child.kill().ok()?;
        child.wait().ok()?;
        return None;
    };
    // Bounded: the answers asked for are a line long.
    let mut text = String::new();
    let mut output = child.stdout.take()?.take(4096);
    output.read_to_string(&mut text).ok()?;
    status.success().then(|| text.trim().to_owned())
}

/// Sends a signal; a process that is gone already is no error.
pub(super) fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(());
    };
    match kill_process(pid, signal) {
        Err(rustix::io::Errno::SRCH) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The first of the directories of a `PATH` that holds the program.
pub(super) fn on_path(path: &OsStr, program: &str) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(program))
        .find(|file| is_program(file))
}

/// Whether a file is there that someone may execute.
pub(super) fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
