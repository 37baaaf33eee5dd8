//! Abandoned work: time only shows it; an operator fences it in bulk where the
//! ledger is the enforcement point; and the metrics tell of what is open.

use serde_json::{Value, json};

use crate::support::process::program;
use crate::support::{Answer, Client, NORTHSTAR, Service};

/// `spend-ledger fence` on the service's database: its lines, and what it says at
/// the end.
async fn fence(service: &Service, arguments: &[&str]) -> (Vec<String>, String) {
    let url = ["--database-url", service.database.service_url.as_str()];
    let output = program(&[&["fence"], arguments, &url].concat()).output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let mut lines: Vec<String> = text(output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    (lines, text(output.stderr).trim().to_owned())
}

/// A job of this operation for 10, with a call of 4 in flight if the ledger admits
/// its calls.
async fn job(worker: &Client, key: &str, operation: &str) -> Answer {
    let job = worker.reserve(key, json!({"operation": operation, "units": 10, "holder": key})).await.expect(201);
    if operation != "stream" {
        let call = json!({"attempt": job.token(), "call": "c", "units": 4});
        worker.post(&format!("/v1/reservations/{}/calls", job.id()), call).await.expect(201);
    }
    job
}

async fn renew(worker: &Client, job: &Answer) {
    let path = format!("/v1/reservations/{}/renew", job.id());
    worker.post(&path, json!({"attempt": job.token()})).await.expect(200);
}

const OTHER: &str = "
  other: { unit: transformation, enforcement: calls }
operations:
  elsewhere: { provider: other, explicit: true, max_units: 100 }";

#[tokio::test]
async fn what_has_been_overdue_is_fenced_in_bulk_where_the_ledger_enforces() {
    let service = Service::with_policy(&NORTHSTAR.replace("\noperations:", OTHER)).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-03T10:00:00Z").await;
    let abandoned = job(&worker, "abandoned", "bulk").await;
    let renewed = job(&worker, "renewed", "bulk").await;
    job(&worker, "cannot-be-stopped", "stream").await;
    let elsewhere = job(&worker, "elsewhere", "elsewhere").await;
    let cancelled = job(&worker, "cancelled", "bulk").await;
    worker.post(&format!("/v1/reservations/{}/cancel", cancelled.id()), json!({})).await.expect(200);
    service.database.set_clock("2026-03-03T11:00:59Z").await;
    renew(&worker, &renewed).await;

    // One second is missing to the hour after the lease of a minute.
    assert_eq!(fence(&service, &["--overdue", "1h"]).await, (Vec::new(), "0 fenced".to_owned()));
    service.database.set_clock("2026-03-03T11:01:02Z").await;
    let unchanged = service.books().await;
    let (lines, said) = fence(&service, &["--overdue", "1h", "--dry-run"]).await;
    assert_eq!((lines.len(), said.as_str()), (2, "dry run: 2 would be fenced"));
    assert!(lines.iter().all(|line| line.ends_with("released 6 transformation")), "{lines:#?}");
    assert_eq!(service.books().await, unchanged);

    let (lines, said) = fence(&service, &["--overdue", "1h", "--provider", "transformer"]).await;
    assert_eq!((lines.len(), said.as_str()), (1, "1 fenced"));
    assert!(lines[0].starts_with(&abandoned.id()) && lines[0].ends_with("released 6 transformation"), "{lines:#?}");
    let (lines, _) = fence(&service, &["--overdue", "1h"]).await;
    assert!(lines.len() == 1 && lines[0].starts_with(&elsewhere.id()), "{lines:#?}");
    assert_eq!(fence(&service, &["--overdue", "1h"]).await.1, "0 fenced");

    // What was in flight stays charged; so does all of what nobody may fence.
    let books = service.books().await;
    assert_eq!(
        books.reservations,
        [
            "abandoned fenced 3 4 0 0 4",
            "cancelled cancelling 3 10 0 0 10",
            "cannot-be-stopped active 1 10 0 10 0",
            "elsewhere fenced 3 4 0 0 4",
            "renewed active 2 10 0 10 0",
        ]
    );
    // Each is written down, with who did it.
    let audit = service.operator().await.get("/v1/audit").await.expect(200);
    let fenced: Vec<&Value> = audit.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["action"] == "reservation_fenced")
        .collect();
    let subjects: Vec<&str> = fenced.iter().map(|entry| entry["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, [elsewhere.id(), abandoned.id()]);
    for entry in fenced {
        assert_eq!((&entry["actor"], &entry["detail"]["still_outstanding"]), (&json!("cli"), &json!("4")));
        assert_eq!(entry["detail"]["overdue_for"], "01:00:00");
    }
}

#[tokio::test]
async fn a_span_that_is_none_is_bad_usage() {
    for arguments in [
        &["fence"][..],
        &["fence", "--overdue", "soon"],
        &["fence", "--overdue", "1h", "--provider", "a b"],
        &["fence", "--overdue", "999999d"],
    ] {
        let output = program(arguments).output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
}

/// The lines of one metric, without its name.
async fn metric(client: &Client, name: &str) -> Vec<String> {
    let text = client.get("/metrics").await.expect(200);
    let text = text.body.as_str().unwrap();
    let mut lines: Vec<String> =
        text.lines().filter_map(|line| line.strip_prefix(name)).map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn the_metrics_have_the_totals_of_the_liabilities() {
    let policy = NORTHSTAR.to_owned() + "pools: { shared: { unit: transformation, limit: 1000, period: month } }\n";
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-03T10:00:00Z").await;
    job(&worker, "overdue", "bulk").await;
    let cancelled = job(&worker, "cancelled", "bulk").await;
    worker.post(&format!("/v1/reservations/{}/cancel", cancelled.id()), json!({})).await.expect(200);
    let unknown = job(&worker, "unknown", "bulk").await;
    let path = format!("/v1/reservations/{}", unknown.id());
    worker.post(&format!("{path}/calls/c/settle"), json!({"outcome": "unknown"})).await.expect(200);
    worker.post(&format!("{path}/fence"), json!({"attempt_number": 1})).await.expect(200);
    let finance = service.finance().await;
    let close = json!({"units": "9", "reason": "the provider's export says so"});
    finance.post(&format!("/v1/reservations/{}/settle", cancelled.id()), close).await.expect(200);
    worker.settle(&cancelled, "8").await.problem(409, "already_settled");
    let again = job(&worker, "again", "bulk").await;
    worker.post(&format!("/v1/reservations/{}/cancel", again.id()), json!({})).await.expect(200);
    service.database.set_clock("2026-03-03T10:02:00Z").await;

    let open = |account: &str, budget: &str, why: &str, units: &str| {
        format!("{{account=\"{account}\",budget=\"{budget}\",unit=\"transformation\",why=\"{why}\"}} {units}")
    };
    let expected = [("", "shared"), ("northstar", "daily")].map(|(account, budget)| {
        [("cancelled", "10.0"), ("overdue", "10.0"), ("unknown_calls", "4.0")]
            .map(|(why, units)| open(account, budget, why, units))
    });
    assert_eq!(metric(&worker, "spend_ledger_open_units").await, expected.concat());
    assert_eq!(metric(&worker, "spend_ledger_late_usage_reports").await, ["1"]);
    let liabilities = finance.get("/v1/liabilities").await.expect(200);
    for total in liabilities.body["totals"].as_array().unwrap() {
        let parts = ["cancelled", "overdue", "unknown_calls", "earlier_attempts", "fenced", "liability"];
        assert_eq!(parts.map(|part| total[part].as_str().unwrap()), ["10", "10", "4", "0", "0", "14"]);
    }
    assert_eq!(liabilities.body["late_usage"], 1);
    service.books().await;
}

/// What is open over many periods can be more than any one amount.
#[tokio::test]
async fn totals_can_be_larger_than_any_amount() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    for day in ["2026-03-03", "2026-03-04"] {
        service.database.set_clock(&format!("{day}T10:00:00Z")).await;
        let job = job(&worker, day, "stream").await;
        service.database.set_clock(&format!("{day}T10:05:00Z")).await;
        let evidence = json!({"kind": "process_stopped"});
        let take_over = json!({"previous": 1, "evidence": evidence, "outstanding": "9999999999999000"});
        worker.post(&format!("/v1/reservations/{}/attempts", job.id()), take_over).await.expect(201);
    }
    let liabilities = service.finance().await.get("/v1/liabilities").await.expect(200);
    let total = &liabilities.body["totals"][0];
    assert_eq!(
        (&total["earlier_attempts"], &total["liability"]),
        (&json!("19999999999998000"), &json!("19999999999998000"))
    );
    let metric = metric(&worker, "spend_ledger_open_units").await;
    assert!(metric.iter().any(|line| line.ends_with("why=\"earlier_attempts\"} 19999999999998000.0")), "{metric:#?}");
    service.books().await;
}
