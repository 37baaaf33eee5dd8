//! The command line, nothing else.

use std::process::ExitCode;

use clap::Parser as _;

#[tokio::main]
async fn main() -> ExitCode {
    spend_ledger::cli::run(spend_ledger::cli::Cli::parse()).await
}
