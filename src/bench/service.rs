//! The service that is measured: this program, as a process of its own, so that its
//! memory and processor time are its own too.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use super::BenchError;
use super::process::{self, Usage};

/// How long it may take to be ready, and to stop.
const READY_WITHIN: Duration = Duration::from_secs(60);
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
/// How much of what it said last is kept.
const SAID: usize = 20;

/// Whether requests that arrive while a statement is in flight form the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Grouping {
    On,
    Off,
}

impl Grouping {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A child process of this program that listens.
#[derive(Debug)]
pub(super) struct Service {
    child: Child,
    pid: u32,
    pub(super) address: SocketAddr,
}

/// What a child has said last.
type Said = Arc<Mutex<VecDeque<String>>>;

impl Service {
    /// The service on a database.
    pub(super) async fn start(database_url: &str, grouping: Grouping) -> Result<Self, BenchError> {
        let mut command = program()?;
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command.env("DATABASE_URL", database_url).env("SPEND_LEDGER_GROUPING", grouping.as_str());
        Self::spawn(command).await
    }

    /// A handler that does nothing, to know what the generator can drive.
    pub(super) async fn start_empty() -> Result<Self, BenchError> {
        let mut command = program()?;
        command.arg("bench-empty");
        Self::spawn(command).await
    }

    async fn spawn(mut command: Command) -> Result<Self, BenchError> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(BenchError::Program)?;
        let (Some(pid), Some(stderr)) = (child.id(), child.stderr.take()) else {
            return Err(BenchError::Service("it ended at once".to_owned()));
        };
        let said = Said::default();
        let mut lines = BufReader::new(stderr).lines();
        let address = tokio::time::timeout(READY_WITHIN, ready(&mut lines, &said)).await.ok().flatten();
        let Some(address) = address else {
            return Err(BenchError::Service(told(&said)));
        };
        // Read on, so that it never has to wait for somebody to listen.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                keep(&said, line);
            }
        });
        Ok(Self { child, pid, address })
    }

    /// What it has taken so far.
    pub(super) fn usage(&self) -> Option<Usage> {
        process::usage(self.pid)
    }

    /// Stops it as an operator would: what it has promised to write is written.
    pub(super) async fn stop(mut self) -> Result<(), BenchError> {
        if let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) {
            // An error means that it is gone.
            let _ = kill_process(pid, Signal::TERM);
        }
        match tokio::time::timeout(STOPPED_WITHIN, self.child.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(BenchError::Program(error)),
            Err(_) => {
                self.child.kill().await.map_err(BenchError::Program)?;
                Err(BenchError::Service("it did not stop".to_owned()))
            }
        }
    }
}

/// Whether this program's `serve` knows groups: measured otherwise, on and off are
/// the same.
pub(super) async fn knows_grouping() -> Result<bool, BenchError> {
    let help = program()?.args(["serve", "--help"]).output().await.map_err(BenchError::Program)?;
    Ok(String::from_utf8_lossy(&help.stdout).contains("--grouping"))
}

/// This program, without the options that this process was given by its environment.
fn program() -> Result<Command, BenchError> {
    let mut command = Command::new(std::env::current_exe().map_err(BenchError::Program)?);
    command.env_remove("DATABASE_URL").env_remove("RUST_LOG");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SPEND_LEDGER_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

async fn ready(lines: &mut Lines<BufReader<ChildStderr>>, said: &Said) -> Option<SocketAddr> {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some((_, address)) = line.split_once("listening on http://") {
            return address.trim().parse().ok();
        }
        keep(said, line);
    }
    None
}

fn keep(said: &Said, line: String) {
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    if said.len() >= SAID {
        said.pop_front();
    }
    said.push_back(line);
}

fn told(said: &Said) -> String {
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    said.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
}
