//! `spend-ledger bench`: it measures all that it is to measure and leaves nothing
//! behind, and what was measured on books that do not hold is no result. How fast
//! anything is, is nobody's business here.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::support::Service;
use crate::support::process::program;
use crate::support::server::TestDatabase;

/// All that a run is judged by.
const JUDGED: [&str; 10] = [
    "hot_grouping",
    "hot_against_floor",
    "alone_p50",
    "zipf_grouping",
    "refusals_against_admissions",
    "wal_per_refusal",
    "history",
    "storm_p99",
    "memory_peak",
    "memory_resident",
];

/// What one round tells.
const FIGURES: [&str; 14] = [
    "seconds",
    "requests_per_second",
    "cycles_per_second",
    "refused_per_second",
    "failed",
    "latency_us",
    "statements_per_operation",
    "decisions_per_statement",
    "transactions_per_operation",
    "wal_bytes_per_operation",
    "service_cores",
    "service_resident_kib",
    "service_peak_kib",
    "generator_cores",
];

fn bench(arguments: &[&str]) -> Command {
    let mut command = program(&["bench", "--duration", "0.2", "--accounts", "16"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn read(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

fn names<'a>(list: &'a Value, name: &str) -> Vec<&'a str> {
    list.as_array().unwrap().iter().map(|item| item[name].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_quick_run_measures_all_of_it_and_leaves_nothing_behind() {
    let database = TestDatabase::new().await;
    let directory = tempfile::tempdir().unwrap();
    let (json, svg) = (directory.path().join("run.json"), directory.path().join("run.svg"));
    let child = bench(&["--quick", "--clients", "1,2", "--prefill", "100", "--database-url", &database.owner_url])
        .args([Path::new("--json"), &json, Path::new("--svg"), &svg])
        .spawn()
        .unwrap();
    let made =
        format!("select datname from pg_database where datname like 'spend_ledger_bench_{}_%'", child.id().unwrap());
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(database.lines(&made).await, Vec::<String>::new());

    let found = read(&json);
    let ratios = names(&found["ratios"], "name");
    assert!(JUDGED.iter().all(|name| ratios.contains(name)), "{ratios:?}");
    let judged = found["ratios"].as_array().unwrap().iter().filter(|ratio| !ratio["target"].is_null());
    assert_eq!(judged.count(), JUDGED.len());
    let series = names(&found["series"], "name");
    for name in ["hot/settle/1/on", "hot/call/2/off", "zipf/settle/2/on", "refusals/reserve/1/off"] {
        assert!(series.contains(&name), "{name} is not in {series:?}");
    }
    for series in found["series"].as_array().unwrap() {
        let round = &series["rounds"][0];
        assert!(FIGURES.iter().all(|figure| round.get(figure).is_some()), "{series:#}");
        assert!(["p50", "p95", "p99", "p999"].iter().all(|p| round["latency_us"][p].is_u64()), "{series:#}");
    }
    let history = found["books"].as_array().unwrap().iter().find(|books| books["database"] == "history").unwrap();
    assert!(history["reservations"].as_u64() >= Some(100), "{history:#}");
    assert_eq!(found["facts"]["postgres"]["settings"][0][0], "fsync");
    assert!(found["generator"]["requests"].is_u64());
    assert!(std::fs::read_to_string(&svg).unwrap().starts_with("<svg"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Ratios: ") && text.contains("The books of"), "{text}");
}

#[tokio::test]
async fn what_was_measured_on_books_that_do_not_hold_is_no_result() {
    let policy = bench(&["--print-policy"]).output().await.unwrap();
    let service = Service::with_policy(&String::from_utf8(policy.stdout).unwrap()).await;
    let (fleet, url) = (service.fleet().await, format!("http://{}", service.address));
    let directory = tempfile::tempdir().unwrap();
    let run = async |json: &Path| {
        let mut command = bench(&["--url", &url, "--key", &fleet.key, "--database-url", &service.database.owner_url]);
        command.args(["--workload", "hot,refusals", "--cycle", "settle", "--clients", "2", "--rounds", "1", "--json"]);
        command.arg(json).output().await.unwrap()
    };
    let held = directory.path().join("held.json");
    let output = run(&held).await;
    assert!(output.status.success(), "{output:?}");
    let found = read(&held);
    assert_eq!(names(&found["series"], "name"), ["hot/settle/2/given", "refusals/reserve/2/given"]);
    assert!(found["books"][0]["reservations"].as_u64() >= Some(1), "{found:#}");

    let slip = "update budget_period set available = available - 1, settled = settled + 1 where account = 'bench-hot'";
    service.database.execute(slip).await;
    let slipped = directory.path().join("slipped.json");
    let output = run(&slipped).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the books do not hold") && said.contains("bench-hot"), "{said}");
    assert!(!slipped.exists());
}
