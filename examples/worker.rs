//! A whole worker: reserves what a job may cost, pays a provider page by page as
//! the ledger admits it, and settles what it used.
//!
//! ```text
//! make run                               # prints a worker key for the account northstar
//! cargo run --example fake_provider      # a provider to pay, on another terminal
//! SPEND_LEDGER_KEY=sl_… cargo run --example worker -- job-1
//! ```
//!
//! The same job again does nothing: it is settled. To see a job stop, give it time
//! (`SECONDS_PER_PAGE=20`) and cancel it with the curl line that it prints. To see
//! one taken over, kill it, wait until its lease has run out (a minute), and run
//! it again. `SPEND_LEDGER_URL` and `PROVIDER_URL` say where the two are.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use spend_ledger_client::{Amount, CallError, Client, Error, Failure, Job, Paid, Request, TakeOver};

type Trouble = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(trouble) => {
            eprintln!("{trouble}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Trouble> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "job-1".to_owned());
    let url = variable("SPEND_LEDGER_URL", "http://127.0.0.1:8080");
    let key = std::env::var("SPEND_LEDGER_KEY")
        .map_err(|_| "SPEND_LEDGER_KEY is not set: `make run` prints a worker's key")?;
    let client = Client::new(&url, key)?;
    let Some(job) = start(&client, &name).await? else { return Ok(()) };
    eprintln!("{name} is reservation {}, attempt {}. To cancel it:", job.id(), job.attempt());
    eprintln!(
        "  curl -X POST {url}/v1/reservations/{}/cancel -H \"Authorization: Bearer $SPEND_LEDGER_KEY\" \\",
        job.id()
    );
    eprintln!("    -H 'Content-Type: application/json' -d '{{}}'");
    work(&job).await;
    let settled = job.settle_calls().await?;
    eprintln!("{:?} at {} of {} {}s", settled.state, settled.settled, settled.estimate, settled.unit);
    Ok(())
}

/// Reserves for the job: three pages at 12 units each, at most. None if it is done.
async fn start(client: &Client, name: &str) -> Result<Option<Job>, Trouble> {
    let request = Request::new("export", Amount::quantities([("formats", 3), ("weight", 12)])).reference(name);
    match client.reserve(name, request).await {
        Ok(job) => Ok(Some(job)),
        Err(Error::Ended(reservation)) => {
            eprintln!("{name} is done: {:?} at {}", reservation.state, reservation.settled);
            Ok(None)
        }
        // Another process had it. If it has vanished, go on in its place.
        Err(Error::Held(reservation)) => {
            let previous = reservation.attempt.map_or(0, |attempt| attempt.number);
            Ok(Some(client.take_over(&reservation.id, previous, TakeOver::default()).await?))
        }
        Err(error) => Err(error.into()),
    }
}

async fn work(job: &Job) {
    for page in 1..=3 {
        // A call's key is its identity within the job: another attempt's is not paid again.
        let call = job.call(format!("page-{page}"), 12).extend();
        match call.run(|| transform(page)).await {
            Ok(done) => println!("{}", done.value),
            Err(CallError::Stopped(state)) => {
                eprintln!("stopping before page {page}: {state:?}");
                break;
            }
            Err(CallError::NotAdmitted(error)) if error.code() == Some("call_key_taken") => {
                eprintln!("page {page} was asked for by an earlier attempt, which may have paid for it");
            }
            Err(error) => eprintln!("page {page}: {error}"),
        }
    }
}

/// The paid request. An error means that nobody knows whether it was charged for;
/// a connection that never came about was not.
async fn transform(page: u64) -> Result<Paid<String>, Failure<reqwest::Error>> {
    let seconds = variable("SECONDS_PER_PAGE", "0").parse().unwrap_or(0);
    let url = format!("{}/transform", variable("PROVIDER_URL", "http://127.0.0.1:9090"));
    let request = reqwest::Client::new().post(url).json(&json!({ "page": page }));
    let answer = request.send().await.map_err(|error| match error.is_connect() {
        true => Failure::NotSent(error),
        false => Failure::Unknown(error),
    })?;
    let answer: Value = answer.error_for_status()?.json().await?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let charged = answer["charged"].as_u64().unwrap_or(12);
    let text = answer["text"].as_str().unwrap_or_default().to_owned();
    Ok(Paid::new(charged, text).provider_request_id(answer["id"].as_str().unwrap_or_default()))
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
