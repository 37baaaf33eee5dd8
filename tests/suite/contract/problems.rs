//! A refusal says which budgets refused and when to come back, and what
//! surrounds every answer is the same for all.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{NOBODY, RESERVATIONS, Scene};
use crate::support::unchanged::Unchanged;
use crate::support::{Answer, Client, Service};

/// Budgets of several kinds over the same work: of the account, and of all.
const KINDS: &str = "
providers: { p: { unit: row, enforcement: worker } }
operations:
  work: { provider: p, explicit: true, max_units: 1000 }
  rare: { provider: p, explicit: true, max_units: 1000 }
plans:
  s:
    budgets:
      day: { unit: row, limit: 100, period: day, timezone: America/New_York }
      month: { unit: row, limit: 150, period: month, timezone: UTC }
      life: { unit: row, limit: 500, period: total, operation: rare }
accounts:
  a: { plan: s }
  frozen: { plan: s, limits: { month: 0 } }
pools:
  week: { unit: row, limit: 120, period: week, timezone: Asia/Kolkata }
";

/// The worker of `a` and a key of the fleet, and a first reservation of 90.
///
/// It is a Tuesday. The day ends at 05:00Z, the week on Sunday at 18:30Z, the
/// month at the end of the 31st.
async fn a_tuesday() -> (Service, Client, Client, Answer) {
    let service = Service::with_policy(KINDS).await;
    let (worker, fleet) = (service.worker(&["a"]).await, service.fleet().await);
    service.database.stop_clock("2026-03-03T12:00:00.25Z").await;
    let first = worker.reserve("first", work(90)).await.expect(201);
    (service, worker, fleet, first)
}

fn work(units: u32) -> Value {
    json!({"operation": "work", "units": units, "holder": "w-1"})
}

fn rare(units: u32) -> Value {
    json!({"operation": "rare", "units": units, "holder": "w-1"})
}

#[tokio::test]
async fn a_refusal_names_every_budget_and_the_second_when_the_last_of_them_resets() {
    let (service, worker, fleet, _first) = a_tuesday().await;
    let unchanged = Unchanged::from_now(&service).await;

    // Only the day: 16 h 59 min 59.75 s, rounded up.
    let refused =
        unchanged.refuses(&worker, worker.reserve_request("k", work(20)), 429, "budget_exhausted", None).await;
    let refused = refused.problem(429, "budget_exhausted");
    assert_eq!(refused.headers["retry-after"], "61200");
    assert_eq!(
        (refused.text("retry"), &refused.body["breaches"]),
        (
            "after_release",
            &json!([{"budget": "day", "requested": "20", "available": "10", "resets_at": "2026-03-04T05:00:00Z"}])
        )
    );

    // The day and the pool: the week ends last. The account sees only its name.
    let refused =
        unchanged.refuses(&worker, worker.reserve_request("k", work(40)), 429, "budget_exhausted", None).await;
    let seconds = (5 * 24 + 6) * 3600 + 30 * 60;
    assert_eq!(refused.body["retry_after_seconds"], seconds);
    assert_eq!(
        refused.body["breaches"],
        json!([
            {"budget": "day", "requested": "40", "available": "10", "resets_at": "2026-03-04T05:00:00Z"},
            {"budget": "week"},
        ])
    );
    let mut asked = work(40);
    asked["account"] = json!("a");
    let refused = unchanged.refuses(&fleet, fleet.reserve_request("k", asked), 429, "budget_exhausted", None).await;
    assert_eq!(refused.body["retry_after_seconds"], seconds);
    assert_eq!(
        refused.body["breaches"][1],
        json!({"budget": "week", "requested": "40", "available": "30", "resets_at": "2026-03-08T18:30:00Z"})
    );

    // The month too, and what it had.
    let refused =
        unchanged.refuses(&worker, worker.reserve_request("k", work(61)), 429, "budget_exhausted", None).await;
    assert_eq!(refused.body["retry_after_seconds"], ((31 - 3) * 24 + 12) * 3600);
    let named: Vec<_> = refused.body["breaches"].as_array().unwrap().iter().map(|b| b["budget"].clone()).collect();
    assert_eq!(json!(named), json!(["day", "month", "week"]));
    assert_eq!(refused.body["breaches"][1]["available"], "60");
}

#[tokio::test]
async fn who_waits_for_live_work_or_for_the_end_of_a_period_is_told_so() {
    let (service, worker, _, first) = a_tuesday().await;
    let unchanged = Unchanged::from_now(&service).await;
    // An extension belongs to its own periods: no time, whatever their end.
    let request = worker.request(Method::POST, &format!("{RESERVATIONS}/{}/extend", first.id()));
    let request = request.json(&json!({"attempt": first.token(), "ceiling": "101"}));
    unchanged.refuses(&worker, request, 400, "too_expensive", None).await;
    let second = worker.reserve("second", work(10)).await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    let request = worker.request(Method::POST, &format!("{RESERVATIONS}/{}/extend", second.id()));
    let request = request.json(&json!({"attempt": second.token(), "ceiling": "11"}));
    let refused = unchanged.refuses(&worker, request, 429, "budget_exhausted", None).await;
    let refused = refused.problem(429, "budget_exhausted");
    assert_eq!((refused.headers.get("retry-after"), refused.text("retry")), (None, "after_release"));
    assert_eq!(refused.body["breaches"][0]["requested"], "1");
    worker.settle(&first, "90").await.expect(200);
    worker.settle(&second, "10").await.expect(200);

    // Nothing lives that could give anything back.
    let unchanged = Unchanged::from_now(&service).await;
    let refused = unchanged.refuses(&worker, worker.reserve_request("k", work(1)), 429, "budget_exhausted", None).await;
    assert_eq!((refused.text("retry"), &refused.body["retry_after_seconds"]), ("after_reset", &json!(61200)));
}

#[tokio::test]
async fn where_no_time_helps_none_is_told() {
    let service = Service::with_policy(KINDS).await;
    let (worker, fleet) = (service.worker(&["a"]).await, service.fleet().await);
    // A new month, and a budget for life that has been used up.
    for (day, key) in
        [("2026-04-06", "l1"), ("2026-05-04", "l2"), ("2026-06-01", "l3"), ("2026-07-06", "l4"), ("2026-08-03", "l5")]
    {
        service.database.stop_clock(&format!("{day}T12:00:00Z")).await;
        let life = worker.reserve(key, rare(100)).await.expect(201);
        worker.settle(&life, "100").await.expect(200);
    }
    service.database.stop_clock("2026-09-07T12:00:00Z").await;
    let unchanged = Unchanged::from_now(&service).await;
    let refused = worker.reserve("k", rare(1)).await.problem(429, "budget_exhausted");
    assert_eq!((refused.headers.get("retry-after"), refused.text("retry")), (None, "never"));
    let breach = json!([{"budget": "life", "requested": "1", "available": "0", "resets_at": null}]);
    assert_eq!(refused.body["breaches"], breach);
    drop(unchanged);

    // A frozen account is told no time; its other budgets do not matter.
    let mut asked = work(1);
    asked["account"] = json!("frozen");
    let books = service.books().await;
    let refused = fleet.reserve("k", asked).await.problem(429, "budget_exhausted");
    assert_eq!((refused.headers.get("retry-after"), refused.text("retry")), (None, "never"));
    assert_eq!(refused.body["breaches"][0]["budget"], "month");
    let after = service.books().await;
    // Periods were opened; nothing was taken and nothing was made.
    assert_eq!(after.reservations, books.reservations);
    assert_eq!(after.entries_of("reserve").len(), books.entries_of("reserve").len());
}

#[tokio::test]
async fn every_answer_has_a_request_id() {
    let Scene { service, worker, .. } = Scene::new().await;
    let ask = |path: &str, id: &[u8]| {
        let value = reqwest::header::HeaderValue::from_bytes(id).unwrap();
        worker.send(worker.request(Method::GET, path).header("x-request-id", value))
    };
    let longest = "r".repeat(128);
    for path in ["/healthz", RESERVATIONS, "/v1/nothing", "/v1/reservations/x"] {
        for sane in ["a", "0190-abc_DEF.1:2@3/4+5=", &longest] {
            let answer = ask(path, sane.as_bytes()).await;
            assert_eq!(answer.headers["x-request-id"], sane);
            if answer.status.as_u16() >= 400 {
                assert_eq!(answer.text("request_id"), sane);
            }
        }
        let mut seen = BTreeSet::new();
        let too_long = "r".repeat(129);
        for insane in [&b""[..], b"a b", b"<script>", b"a\"b", "é".as_bytes(), b"\xff", b"{}", too_long.as_bytes()] {
            let answer = ask(path, insane).await;
            let id = answer.headers["x-request-id"].to_str().unwrap().to_owned();
            assert!(uuid::Uuid::parse_str(&id).is_ok(), "{id}");
            assert!(seen.insert(id), "an id came twice");
            assert_eq!(answer.headers.get_all("x-request-id").iter().count(), 1);
        }
        assert!(worker.get(path).await.headers.contains_key("x-request-id"));
    }
    assert_eq!(service.books().await.reservations.len(), 1);
}

#[tokio::test]
async fn what_needs_no_key() {
    let Scene { service, worker, .. } = Scene::new().await;
    worker.reserve_bulk("exhausted", "100").await.problem(429, "budget_exhausted");
    worker.reserve("unknown", json!({"operation": "nothing"})).await.problem(422, "unknown_operation");
    let get = |path: &str| reqwest::get(format!("http://{}{path}", service.address));
    let health = get("/healthz").await.unwrap();
    assert_eq!(health.json::<Value>().await.unwrap(), json!({"status": "ok"}));
    let ready = get("/readyz").await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(ready["status"], "ok");
    assert_eq!(ready["schema_version"], spend_ledger::ledger::schema::newest_version());
    let document = get("/openapi.yaml").await.unwrap();
    assert_eq!(document.headers()["content-type"], "application/yaml");
    assert_eq!(document.text().await.unwrap(), spend_ledger::http::document());
    let metrics = get("/metrics").await.unwrap();
    assert!(metrics.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let metrics = metrics.text().await.unwrap();
    for line in [
        r#"spend_ledger_admissions_total{operation="bulk"} 1"#,
        r#"spend_ledger_refusals_total{code="budget_exhausted",observed="false"} 1"#,
        r#"spend_ledger_refusals_total{code="unknown_operation",observed="false"} 1"#,
        r#"spend_ledger_http_requests_total{method="POST",route="/v1/reservations",status="429"} 1"#,
        "# EOF",
    ] {
        assert!(metrics.lines().any(|other| other == line), "no {line} in\n{metrics}");
    }
    // Labels are bounded: what was asked for is not in them.
    assert!(!metrics.contains("nothing"), "{metrics}");
    assert_eq!(service.books().await.reservations.len(), 1);
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let Scene { service, worker, job, .. } = Scene::new().await;
    let unchanged = service.books().await;
    let one = format!("{RESERVATIONS}/{}", job.id());
    let missing = format!("{RESERVATIONS}/{NOBODY}");
    for path in ["/healthz", "/readyz", "/openapi.yaml", RESERVATIONS, &one, &missing, "/v1/nothing"] {
        let get = worker.get(path).await;
        let head = worker.send(worker.request(Method::HEAD, path)).await;
        assert_eq!((head.status, &head.body), (get.status, &json!("")), "{path}");
        assert_eq!(head.headers.get("content-type"), get.headers.get("content-type"), "{path}");
        assert_eq!(head.headers.get("content-length"), get.headers.get("content-length"), "{path}");
    }
    let head = worker.send(worker.request(Method::HEAD, &format!("{one}/extend"))).await;
    assert_eq!((head.status.as_u16(), head.headers["allow"].to_str().unwrap(), head.body), (405, "POST", json!("")));
    // Without a key it is as secret as GET.
    let answer = reqwest::Client::new().head(format!("http://{}{one}", service.address)).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 401);
    assert_eq!(service.books().await, unchanged);
}
