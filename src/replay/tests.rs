//! Whole runs against a small service, with everything going wrong that a run has
//! to survive.

use std::io::Write as _;

use clap::Parser;

use super::fake::{Fake, Memory};
use super::*;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/trace-sample.csv");

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReplayArgs,
}

fn args(fake: &Fake, more: &str) -> ReplayArgs {
    args_for(SAMPLE, fake, more)
}

fn args_for(file: &str, fake: &Fake, more: &str) -> ReplayArgs {
    let url = format!("http://{}", fake.address);
    let line = ["replay", file, "--operation", "token", "--account", "northstar", "--url", &url];
    let line = line.into_iter().chain(["--key", "sl_test"]).chain(more.split_whitespace());
    Line::parse_from(line).args
}

async fn go(args: ReplayArgs) -> Result<Summary, ReplayError> {
    let (_sender, interrupts) = mpsc::channel(1);
    replay(args, interrupts).await
}

fn roomy() -> Memory {
    Memory { limit: 1_000_000_000, price: 1, ..Memory::default() }
}

fn sample() -> Vec<Row> {
    Trace::open(std::path::Path::new(SAMPLE)).unwrap().collect::<Result<_, _>>().unwrap()
}

fn tokens_of_sample() -> u64 {
    sample().iter().map(Row::actual).sum()
}

#[tokio::test]
async fn every_row_is_settled_at_what_it_used() {
    let fake = Fake::start(roomy());
    let summary = go(args(&fake, "--max-output 1000 --extend-share 0.3")).await.unwrap();
    let tokens = tokens_of_sample();
    assert!(summary.is_success(), "{summary}");
    assert_eq!((summary.rows, summary.admitted, summary.settled), (60, 60, 60));
    assert_eq!(summary.tokens.settled.to_string(), tokens.to_string());
    assert_eq!(summary.tokens.in_trace, summary.tokens.settled);
    assert_eq!(fake.memory().settled(), tokens);
    assert!(summary.tokens.overrun.is_zero());
    assert_eq!(summary.requests, 120 + summary.extended);
    assert_eq!(summary.latency.extend.unwrap().count, summary.extended);
    let long = sample().iter().filter(|row| row.generated > 1000).count();
    assert!(summary.extended > u64::try_from(long).unwrap(), "{summary}");
    assert_eq!(summary.books[0].settled, summary.tokens.settled);
    assert!(summary.books[0].reserved.is_zero());
}

#[tokio::test]
async fn lost_answers_take_nothing_twice() {
    let fake = Fake::start(roomy());
    let options = "--lost-share 1 --extend-share 0.5 --concurrency 40";
    let summary = go(args(&fake, options)).await.unwrap();
    assert!(summary.is_success(), "{summary}");
    assert_eq!(summary.answers_lost * 2, summary.requests);
    assert_eq!(summary.tokens.settled.to_string(), tokens_of_sample().to_string());
    assert_eq!(fake.memory().settled(), tokens_of_sample());
    assert_eq!(fake.memory().jobs.len(), 60);
    assert!(summary.replayed > 0, "{summary}");
}

#[tokio::test]
async fn the_same_run_again_takes_nothing_more() {
    let fake = Fake::start(roomy());
    let options = "--run monday --extend-share 0.5 --limit 40";
    let first = go(args(&fake, options)).await.unwrap();
    assert_eq!((first.rows, first.replayed, first.settled_before), (40, 0, 0));
    let again = go(args(&fake, options)).await.unwrap();
    assert_eq!((again.rows, again.replayed, again.settled_before), (40, 40, 40));
    assert_eq!(again.tokens.settled, first.tokens.settled);
    assert_eq!(again.books[0].settled, first.books[0].settled);
    let other = go(args(&fake, "--run monday --max-output 7 --limit 1")).await.unwrap();
    assert!(!other.is_success());
    assert!(other.first_error.unwrap().contains("row 1: reserve: answered 422 (idempotency_key_reused)"));
}

#[tokio::test]
async fn a_service_that_dies_for_a_while_is_waited_for() {
    let mut fake = Fake::start(Memory { stumbles: 3, ..roomy() });
    let options = "--lost-share 0.2 --extend-share 0.3 --concurrency 4";
    let run = tokio::spawn(go(args(&fake, options)));
    for _ in 0..2 {
        let before = fake.memory().requests;
        while fake.memory().requests < before + 30 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        fake.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        fake.revive();
    }
    let summary = run.await.unwrap().unwrap();
    assert!(summary.is_success(), "{summary}");
    assert_eq!(summary.settled, 60);
    assert!(summary.repeated > 3, "{summary}");
    assert_eq!(fake.memory().settled(), tokens_of_sample());
    assert_eq!(fake.memory().jobs.len(), 60);
}

#[tokio::test]
async fn refusals_are_counted_and_not_repeated() {
    let fake = Fake::start(Memory { limit: 30_000, ..roomy() });
    let summary = go(args(&fake, "--concurrency 1")).await.unwrap();
    let refused = summary.refused["budget_exhausted"];
    assert!(summary.is_success(), "{summary}");
    assert_eq!(summary.admitted + refused, 60);
    assert_eq!((summary.repeated, summary.settled), (0, summary.admitted));
    assert!(refused > 0 && summary.admitted > 0, "{summary}");
    assert_eq!(summary.tokens.settled.to_string(), fake.memory().settled().to_string());
}

#[tokio::test]
async fn a_refused_extension_ends_in_overrun() {
    let fake = Fake::start(Memory { refuses_extensions: true, ..roomy() });
    let summary = go(args(&fake, "--max-output 2000")).await.unwrap();
    let long: Vec<u64> = sample().iter().filter_map(|row| row.generated.checked_sub(2001)).map(|o| o + 1).collect();
    assert!(summary.is_success(), "{summary}");
    assert_eq!(summary.extended, 0);
    assert_eq!(summary.extensions_refused["budget_exhausted"], long.len() as u64);
    assert_eq!(summary.tokens.overrun.to_string(), long.iter().sum::<u64>().to_string());
    assert_eq!(fake.memory().settled(), tokens_of_sample());
}

#[tokio::test]
async fn explicit_operations_are_asked_in_units() {
    let fake = Fake::start(roomy());
    let summary = go(args(&fake, "--units --max-output 0")).await.unwrap();
    assert!(summary.is_success(), "{summary}");
    assert_eq!(fake.memory().settled(), tokens_of_sample());
    assert!(fake.memory().jobs.values().all(|job| job.ceiling > 0));
}

#[tokio::test]
async fn an_operation_that_counts_no_tokens_is_left_alone() {
    let fake = Fake::start(Memory { price: 3, ..roomy() });
    let error = go(args(&fake, "--concurrency 2")).await.unwrap_err();
    assert!(error.to_string().starts_with("operation token does not count one unit per token"));
    assert!(fake.memory().jobs.len() < 10);
    assert!(fake.memory().jobs.values().all(|job| job.settled == Some(0)));
}

#[tokio::test]
async fn a_run_ends_when_nothing_works() {
    let mut fake = Fake::start(Memory { says: Some((403, "forbidden")), ..roomy() });
    let summary = go(args(&fake, "--concurrency 1")).await.unwrap();
    assert_eq!((summary.failed, summary.stopped), (8, Some(Stopped::TooManyFailures)));
    let first = summary.first_error.as_deref();
    assert_eq!(first, Some("row 1: reserve: answered 403 (forbidden): as the test asked"));
    assert!(!summary.is_success());
    fake.kill();
    let error = go(args(&fake, "--retry-for 1s")).await.unwrap_err();
    assert!(matches!(error, ReplayError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn ctrl_c_finishes_what_is_in_flight() {
    let fake = Fake::start(roomy());
    let (sender, interrupts) = mpsc::channel(1);
    let slowly = args(&fake, "--speed-up 1");
    let run = tokio::spawn(replay(slowly, interrupts));
    while fake.memory().jobs.len() < 3 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sender.send(()).await.unwrap();
    let summary = run.await.unwrap().unwrap();
    assert_eq!(summary.stopped, Some(Stopped::Interrupted));
    assert!(summary.is_success() && summary.rows < 60, "{summary}");
    assert_eq!(summary.settled, summary.rows);
    assert_eq!(summary.books[0].settled, summary.tokens.settled);
}

#[tokio::test]
async fn a_bad_line_is_found_before_anything_is_spent() {
    let fake = Fake::start(roomy());
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let text = std::fs::read_to_string(SAMPLE).unwrap();
    write!(file, "{text}2024-03-05 09:59:59.0000000,12,many\r\n").unwrap();
    let error = go(args_for(file.path().to_str().unwrap(), &fake, "")).await.unwrap_err();
    assert!(error.to_string().starts_with("line 62, GeneratedTokens: \"many\""), "{error}");
    assert_eq!(fake.memory().requests, 0);
}

#[tokio::test]
async fn the_summary_is_json_too() {
    let fake = Fake::start(roomy());
    let summary = go(args(&fake, "--run monday --limit 2")).await.unwrap();
    let mut json = Vec::new();
    summary.print(true, &mut json).unwrap();
    let read: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!((&read["run"], &read["rows"]), (&"monday".into(), &2.into()));
    assert_eq!(read["tokens"]["settled"], summary.tokens.settled.to_string());
    assert_eq!(read["books"][0]["budget"], "tokens");
}
