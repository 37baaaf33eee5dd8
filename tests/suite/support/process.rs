//! The program as a process of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// The program, built for this run.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_spend-ledger");

/// A service that runs as a process.
pub struct ServiceProcess {
    pub child: Child,
    pub address: SocketAddr,
}

/// The program with these arguments and nothing of this process's environment
/// that it would read.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env_remove("DATABASE_URL").env_remove("RUST_LOG").stdin(Stdio::null()).kill_on_drop(true);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SPEND_LEDGER_")) {
        command.env_remove(name);
    }
    command
}

/// Sends a signal to a process. (There may be no `kill` on the machine.)
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

impl ServiceProcess {
    /// Starts `serve` with these arguments on a free port, and waits until it
    /// says that it is ready.
    pub async fn start(arguments: &[&str]) -> Self {
        Self::start_on("127.0.0.1:0", arguments).await
    }

    /// The same on a given address.
    pub async fn start_on(listen: &str, arguments: &[&str]) -> Self {
        let mut command = program(&["serve", "--listen", listen]);
        command.args(arguments);
        Self::run(command).await
    }

    /// The same on a private Postgres of these programs.
    pub async fn start_on_programs(programs: &Path, arguments: &[&str]) -> Self {
        let mut command = program(&["serve", "--listen", "127.0.0.1:0"]);
        command.args(arguments).env("SPEND_LEDGER_POSTGRES_BIN", programs);
        Self::run(command).await
    }

    async fn run(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let ready = async {
            let mut said = Vec::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, address)) = line.split_once("listening on http://") {
                    return address.trim().parse::<SocketAddr>().unwrap();
                }
                said.push(line);
            }
            panic!("the service ended before it was ready:\n{}", said.join("\n"));
        };
        let address = tokio::time::timeout(Duration::from_secs(60), ready).await.expect("ready within a minute");
        // What it says later is read and let go of, so that it never blocks.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, address }
    }

    /// kill -9.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// SIGTERM, and waits for the end. Answers whether it ended with success.
    pub async fn terminate(mut self) -> bool {
        signal(self.child.id().unwrap(), Signal::TERM);
        tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await.expect("stops").unwrap().success()
    }
}
