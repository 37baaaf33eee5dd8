//! The fields of every verb on a reservation: what is not as it should be is
//! refused by its name, and changes nothing.

use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::and;
use crate::support::{Client, Northstar};

fn long(length: usize) -> String {
    "n".repeat(length)
}

/// What is no amount.
fn no_amounts() -> Vec<Value> {
    vec![
        json!("-1"),
        json!(-1),
        json!("-0.000000000001"),
        json!("NaN"),
        json!("nan"),
        json!("Infinity"),
        json!("1.0000000000001"),
        json!(1e-13),
        json!("10000000000000000"),
        json!(1e16),
        json!(""),
        json!(" 1"),
        json!("1,5"),
        json!("0x10"),
        json!(true),
        json!([1]),
        json!({"units": 1}),
    ]
}

/// What is no text of 1 to 255 characters without control characters.
fn no_texts() -> Vec<Value> {
    vec![json!(""), json!(long(256)), json!("a\u{0}"), json!("a\nb"), json!("\u{1b}[31m"), json!(5), json!(["a"])]
}

/// What is no length of a lease.
fn no_leases() -> Vec<Value> {
    vec![json!(4), json!(3601), json!(0), json!(-60), json!(1.5), json!("60"), json!(60.0), json!(9_999_999_999_i64)]
}

/// What is no number of an attempt.
fn no_numbers() -> Vec<Value> {
    vec![json!(null), json!(0), json!(-1), json!(1.5), json!("1"), json!(true), json!(2_147_483_648_i64)]
}

/// What is no evidence, and the place to blame.
fn no_evidence() -> Vec<(Value, &'static str)> {
    let mut cases = vec![
        // An array is not an object whose field names can be left out.
        (json!(["process_stopped", null]), "evidence"),
        (json!(["process_stopped"]), "evidence"),
        (json!("process_stopped"), "evidence"),
        (json!([]), "evidence"),
        (json!(true), "evidence"),
        (json!({}), "evidence.kind"),
        (json!({"detail": "exited"}), "evidence.kind"),
        (json!({"kind": null}), "evidence.kind"),
        (json!({"kind": "stopped"}), "evidence.kind"),
        (json!({"kind": "Process_stopped"}), "evidence.kind"),
        (json!({"kind": {"process_stopped": null}}), "evidence.kind"),
        (json!({"kind": "process_stopped", "who": "me"}), "evidence.who"),
    ];
    let kind = |detail: Value| json!({"kind": "process_stopped", "detail": detail});
    cases.extend(no_texts().into_iter().map(|detail| (kind(detail), "evidence.detail")));
    cases
}

/// A job whose calls the ledger admits, with a call `a`, and one whose worker calls
/// the provider directly.
struct Jobs {
    day: Northstar,
    calls: String,
    stream: String,
    token: String,
}

impl Jobs {
    async fn open() -> Self {
        let day = Northstar::open().await;
        let (calls, stream) = (day.calls("calls", "30").await, day.stream("stream", "30").await);
        day.worker.call(&calls, "a", "5").await.expect(201);
        let path = |id: String| format!("/v1/reservations/{id}");
        Self { calls: path(calls.id()), stream: path(stream.id()), token: calls.token(), day }
    }

    /// That each of these is refused for the field that is named.
    async fn refuse(&self, client: &Client, path: &str, cases: Vec<(Value, &str)>) {
        let unchanged = Unchanged::from_now(&self.day.service).await;
        for (body, field) in cases {
            unchanged.refuses_body(client, path, body.to_string(), Some(field)).await;
        }
    }
}

/// The body with this field at each of these values, all to be blamed on it.
fn each<'a>(body: &Value, field: &'a str, values: Vec<Value>) -> Vec<(Value, &'a str)> {
    values.into_iter().map(|value| (and(body.clone(), json!({field: value})), field)).collect()
}

/// The same with no such field at all.
fn without<'a>(body: &Value, field: &'a str) -> Vec<(Value, &'a str)> {
    let mut body = body.clone();
    body.as_object_mut().unwrap().remove(field);
    vec![(body, field)]
}

/// A field that is not the verb's.
fn foreign<'a>(body: &Value, fields: &[&'a str]) -> Vec<(Value, &'a str)> {
    fields.iter().flat_map(|field| each(body, field, vec![json!("1")])).collect()
}

#[tokio::test]
async fn of_a_renewal() {
    let jobs = Jobs::open().await;
    let good = json!({"attempt": jobs.token});
    let cases = [
        without(&good, "attempt"),
        each(&good, "attempt", [vec![json!(null)], no_texts()].concat()),
        each(&good, "lease_seconds", no_leases()),
        foreign(&good, &["units", "holder", "previous", "Attempt"]),
    ];
    jobs.refuse(&jobs.day.worker, &format!("{}/renew", jobs.calls), cases.concat()).await;
}

#[tokio::test]
async fn of_a_takeover() {
    let jobs = Jobs::open().await;
    let good = json!({"previous": 1, "holder": "w-2", "evidence": {"kind": "process_stopped"}});
    let cases = [
        without(&good, "previous"),
        each(&good, "previous", no_numbers()),
        each(&good, "holder", vec![json!(""), json!(long(129)), json!("a\u{0}"), json!("a\tb"), json!(5)]),
        each(&good, "lease_seconds", no_leases()),
        each(&good, "outstanding", no_amounts()),
        each(&good, "force", vec![json!("true"), json!(1), json!("")]),
        no_evidence()
            .into_iter()
            .map(|(evidence, field)| (and(good.clone(), json!({"evidence": evidence})), field))
            .collect(),
        foreign(&good, &["attempt", "attempt_number", "units", "reason"]),
    ];
    jobs.refuse(&jobs.day.operator, &format!("{}/attempts", jobs.stream), cases.concat()).await;
}

#[tokio::test]
async fn of_a_fence() {
    let jobs = Jobs::open().await;
    let good = json!({"attempt_number": 1, "evidence": {"kind": "process_stopped"}});
    let cases = [
        without(&good, "attempt_number"),
        each(&good, "attempt_number", no_numbers()),
        each(&good, "outstanding", no_amounts()),
        no_evidence()
            .into_iter()
            .map(|(evidence, field)| (and(good.clone(), json!({"evidence": evidence})), field))
            .collect(),
        foreign(&good, &["attempt", "previous", "force", "holder", "reason"]),
    ];
    jobs.refuse(&jobs.day.operator, &format!("{}/fence", jobs.stream), cases.concat()).await;
}

#[tokio::test]
async fn of_a_cancel() {
    let jobs = Jobs::open().await;
    let cases = [each(&json!({}), "reason", no_texts()), foreign(&json!({}), &["attempt", "attempt_number", "why"])];
    jobs.refuse(&jobs.day.worker, &format!("{}/cancel", jobs.calls), cases.concat()).await;
    // Left out, or null, there is none.
    jobs.day.worker.post(&format!("{}/cancel", jobs.calls), json!({"reason": null})).await.expect(200);
    jobs.day.worker.post(&format!("{}/cancel", jobs.stream), json!({"reason": "é".repeat(255)})).await.expect(200);
    jobs.day.books().await;
}

#[tokio::test]
async fn of_a_call() {
    let jobs = Jobs::open().await;
    let good = json!({"attempt": jobs.token, "call": "b", "units": "1"});
    let no_keys =
        ["", " ", "a b", "é", "a\n", "a\u{0}", "\u{7f}", ".", "..", &long(256)].map(|key| json!(key)).to_vec();
    let both = json!({"quantities": {"weight": 1}});
    let named = and(json!({"attempt": jobs.token, "call": "b"}), both.clone());
    let cases = [
        without(&good, "attempt"),
        each(&good, "attempt", [vec![json!(null)], no_texts()].concat()),
        without(&good, "call"),
        each(&good, "call", [vec![json!(null), json!(1), json!(["a"])], no_keys].concat()),
        without(&good, "units"),
        each(&good, "units", [vec![json!(null)], no_amounts()].concat()),
        vec![(and(good.clone(), both), "units")],
        each(&named, "quantities", vec![json!([]), json!("1"), json!(1)]),
        vec![
            (and(named.clone(), json!({"quantities": {"weight": -1}})), "quantities.weight"),
            (and(named.clone(), json!({"quantities": {"weight": "1.0000000000001"}})), "quantities.weight"),
            (and(named.clone(), json!({"quantities": {"weight": null}})), "quantities.weight"),
        ],
        each(&good, "extend", vec![json!("true"), json!(1), json!({})]),
        foreign(&good, &["ceiling", "outcome", "key", "provider_request_id", "reason"]),
    ];
    jobs.refuse(&jobs.day.worker, &format!("{}/calls", jobs.calls), cases.concat()).await;
}

#[tokio::test]
async fn of_the_end_of_a_call() {
    let jobs = Jobs::open().await;
    let path = format!("{}/calls/a/settle", jobs.calls);
    let good = json!({"attempt": jobs.token, "units": "1"});
    let attempt = json!({"attempt": jobs.token});
    let no_outcomes = vec![
        json!("settled"),
        json!("in_flight"),
        json!("Unknown"),
        json!(""),
        json!(1),
        json!(["unknown"]),
        json!({"unknown": null}),
    ];
    let of_worker = [
        vec![(json!({}), "attempt"), (attempt.clone(), "units"), (json!({"outcome": "not_sent"}), "attempt")],
        without(&good, "attempt"),
        each(&good, "attempt", [vec![json!(null)], no_texts()].concat()),
        each(&json!({"outcome": "unknown"}), "attempt", no_texts()),
        each(&attempt, "units", [vec![json!(null)], no_amounts()].concat()),
        each(&attempt, "outcome", no_outcomes.clone()),
        vec![
            (and(good.clone(), json!({"outcome": "unknown"})), "outcome"),
            (and(good.clone(), json!({"outcome": "not_sent"})), "outcome"),
            (and(attempt.clone(), json!({"outcome": "unknown", "quantities": {"weight": 1}})), "outcome"),
            (and(good.clone(), json!({"quantities": {"weight": 1}})), "units"),
            (and(attempt.clone(), json!({"quantities": {"weight": "-1"}})), "quantities.weight"),
        ],
        each(&good, "provider_request_id", no_texts()),
        each(&json!({"outcome": "unknown"}), "provider_request_id", no_texts()),
        foreign(&good, &["reason", "call", "final", "extend"]),
    ];
    jobs.refuse(&jobs.day.worker, &path, of_worker.concat()).await;

    // An operator can only say that nobody knows.
    let unknown = json!({"outcome": "unknown"});
    let of_operator = [
        vec![
            (json!({}), "outcome"),
            (json!({"outcome": null}), "outcome"),
            (json!({"outcome": "not_sent"}), "outcome"),
        ],
        each(&unknown, "outcome", no_outcomes),
        each(&unknown, "attempt", no_texts()),
        foreign(&unknown, &["units", "reason", "call"]),
        vec![(and(unknown, json!({"quantities": {"weight": 1}})), "quantities")],
    ];
    jobs.refuse(&jobs.day.operator, &path, of_operator.concat()).await;

    let closing = json!({"units": "1", "reason": "because"});
    let of_finance = [
        vec![(json!({}), "units")],
        without(&closing, "units"),
        without(&closing, "reason"),
        each(&closing, "units", [vec![json!(null)], no_amounts()].concat()),
        each(&closing, "reason", [vec![json!(null)], no_texts()].concat()),
        each(&closing, "attempt", vec![json!(jobs.token)]),
        each(&closing, "outcome", vec![json!("unknown"), json!("not_sent")]),
        vec![(and(closing.clone(), json!({"quantities": {"weight": 1}})), "quantities")],
        foreign(&closing, &["final", "call", "note"]),
    ];
    jobs.refuse(&jobs.day.finance, &path, of_finance.concat()).await;
}

#[tokio::test]
async fn of_a_settlement_by_finance() {
    let jobs = Jobs::open().await;
    let closing = json!({"units": "10", "reason": "because"});
    let cases = [
        vec![(json!({}), "units")],
        without(&closing, "units"),
        without(&closing, "reason"),
        each(&closing, "units", [vec![json!(null)], no_amounts()].concat()),
        each(&closing, "reason", [vec![json!(null)], no_texts()].concat()),
        each(&closing, "attempt", vec![json!(jobs.token)]),
        each(&closing, "final", vec![json!(true), json!(false)]),
        each(&closing, "provider_request_id", vec![json!("req-1")]),
        vec![(and(closing.clone(), json!({"quantities": {"weight": 1}})), "quantities")],
        foreign(&closing, &["outcome", "call", "reference"]),
    ];
    for path in [&jobs.calls, &jobs.stream] {
        jobs.refuse(&jobs.day.finance, &format!("{path}/settle"), cases.concat()).await;
    }
    // And finance's own are for nobody else.
    let by_worker = json!({"attempt": jobs.token, "units": "5", "reason": "because"});
    jobs.refuse(&jobs.day.worker, &format!("{}/settle", jobs.calls), vec![(by_worker, "reason")]).await;
}
