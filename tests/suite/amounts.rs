//! Amounts, exact from the wire to the database and back, and refused where
//! they are none.

use serde_json::{Value, json};

use crate::support::unchanged::{Unchanged, post};
use crate::support::{Answer, Client, Service};

const RESERVATIONS: &str = "/v1/reservations";
/// The largest amount.
const MOST: &str = "9999999999999999.999999999999";

/// Limits as wide as amounts.
const WIDE: &str = "
providers: { p: { unit: row, enforcement: worker } }
operations:
  stated: { provider: p, explicit: true, max_units: 9999999999999999.999999999999 }
  counted:
    provider: p
    quantities: { rows: { min: 0, max: 9999999999999999.999999999999 } }
    cost: [ { rate: 1, times: [rows] } ]
    max_units: 9999999999999999.999999999999
plans: { wide: { budgets: { all: { unit: row, limit: 9999999999999999.999999999999, period: total } } } }
accounts: { a: { plan: wide } }
";

/// The same, in budgets that refuse nothing.
fn observed() -> String {
    WIDE.replace("wide: { budgets", "wide: { unbounded: [row], budgets").replace("total }", "total, mode: observe }")
}

/// Texts of amounts in JSON, and what they are.
const AMOUNTS: [(&str, &str); 22] = [
    ("0.000000000001", "0.000000000001"),
    ("\"0.000000000001\"", "0.000000000001"),
    ("1.5e-07", "0.00000015"),
    ("\"1.5e-07\"", "0.00000015"),
    ("1.5E-7", "0.00000015"),
    ("9999999999999999.999999999999", MOST),
    ("\"9999999999999999.999999999999\"", MOST),
    ("9999999999999999", "9999999999999999"),
    ("1e15", "1000000000000000"),
    ("1E+3", "1000"),
    ("0.1", "0.1"),
    ("\"0.1\"", "0.1"),
    ("0.30000000000e0", "0.3"),
    ("5", "5"),
    ("5.0", "5"),
    ("\"5.000000000000000000000\"", "5"),
    ("\"007\"", "7"),
    ("9007199254740993", "9007199254740993"),
    ("\"9007199254740993.1\"", "9007199254740993.1"),
    ("123456789012.123456789012", "123456789012.123456789012"),
    ("100e-2", "1"),
    ("0.5e1", "5"),
];

/// What is no amount, as JSON.
fn no_amounts() -> Vec<String> {
    let mut bad: Vec<String> = [
        // Not JSON.
        "NaN",
        "Infinity",
        "-Infinity",
        "+5",
        "0x10",
        ".5",
        "5.",
        "05",
        "1e",
        "--1",
        "1_000",
        "nan",
        // Not a number.
        "true",
        "false",
        "{}",
        "[]",
        "[5]",
        "{\"units\": 5}",
        "{\"$serde_json::private::Number\": \"5\"}",
        "{\"$serde_json::private::RawValue\": \"5\"}",
        // Numbers that are no amounts.
        "-1",
        "-0.000000000001",
        "1e-13",
        "0.0000000000001",
        "1.0000000000001",
        "10000000000000000",
        "1e16",
        "1e400",
        "1e-400",
        "-1e400",
        "99999999999999999999999999999999",
        "1e2147483648",
        "1e99999999999999999999",
        "0.30000000000000004",
    ]
    .map(str::to_owned)
    .into();
    let texts = [
        "",
        " ",
        " 5",
        "5 ",
        "5\\n",
        "\\u00005",
        "+5",
        "-5",
        "-0.1",
        "0x10",
        "0b1",
        "1_000",
        "1,000",
        "1.000,5",
        "five",
        "NaN",
        "nan",
        "sNaN",
        "Infinity",
        "-Infinity",
        "inf",
        "infinity",
        "1e400",
        "1e-400",
        "1e",
        "e5",
        "--5",
        "5e1.5",
        "1e+-3",
        "0.0000000000001",
        "1.0000000000001",
        "10000000000000000",
        "5%",
        "$5",
        "true",
        "null",
        "1/2",
        "\\u0665",
        "\\uff15",
        "5\\u00a0",
        "'5'",
        "1e99999999999999999999",
        "1.2.3",
        "∞",
    ];
    bad.extend(texts.map(|text| format!("\"{text}\"")));
    bad.push(format!("\"{}\"", "0".repeat(10_000)));
    bad.push(format!("0.{}1", "0".repeat(5_000)));
    bad.push("9".repeat(5_000));
    bad
}

async fn wide() -> (Service, Client) {
    let service = Service::with_policy(WIDE).await;
    let worker = service.worker(&["a"]).await;
    (service, worker)
}

async fn stated(worker: &Client, key: &str, units: &str) -> Answer {
    worker.reserve(key, json!({"operation": "stated", "units": units, "holder": "w-1"})).await
}

/// Sends a JSON body as text, so that nothing on this side reads its numbers.
async fn send(worker: &Client, key: &str, path: &str, body: String) -> Answer {
    let request = worker.request(reqwest::Method::POST, path).header("content-type", "application/json");
    worker.send(request.header("idempotency-key", key).body(body)).await
}

/// An account of its own for each amount: the largest takes all there is.
#[tokio::test]
async fn every_amount_comes_back_as_it_was_sent() {
    let accounts: String = (0..AMOUNTS.len()).map(|n| format!("  a{n}: {{ plan: wide }}\n")).collect();
    let service =
        Service::with_policy(&WIDE.replace("accounts: { a: { plan: wide } }", &format!("accounts:\n{accounts}"))).await;
    for (n, (wire, exact)) in AMOUNTS.into_iter().enumerate() {
        let account = format!("a{n}");
        let worker = service.worker(&[&account]).await;
        let key = |what: &str| format!("{what}-{n}");
        let path = |job: &Answer, verb: &str| format!("{RESERVATIONS}/{}/{verb}", job.id());
        // As a ceiling, above the smallest amount or at it.
        let job = stated(&worker, &key("ceiling"), "0.000000000001").await.expect(201);
        let body = format!("{{\"attempt\": \"{}\", \"ceiling\": {wire}}}", job.token());
        let raised = send(&worker, "-", &path(&job, "extend"), body).await.expect(200);
        assert_eq!((raised.text("ceiling"), raised.text("charged")), (exact, exact), "{wire}");
        let version = raised.body["version"].as_i64().unwrap();
        let stored = format!("ceiling-{n} active {version} {exact} 0 {exact} 0");
        assert!(service.books().await.reservations.contains(&stored), "{wire}");
        worker.settle(&job, "0").await.expect(200);

        // As a quantity, and as an actual quantity below it.
        let body = format!("{{\"operation\": \"counted\", \"quantities\": {{\"rows\": {wire}}}, \"holder\": \"w\"}}");
        let job = send(&worker, &key("quantity"), RESERVATIONS, body).await.expect(201);
        assert_eq!(job.text("estimate"), exact, "{wire}");
        let body = format!("{{\"attempt\": \"{}\", \"quantities\": {{\"rows\": 0}}}}", job.token());
        let settled = send(&worker, "-", &path(&job, "settle"), body).await.expect(200);
        assert_eq!((settled.text("settled"), settled.text("charged")), ("0", "0"), "{wire}");

        // As units.
        let body = format!("{{\"operation\": \"stated\", \"units\": {wire}, \"holder\": \"w-1\"}}");
        let job = send(&worker, &key("units"), RESERVATIONS, body).await.expect(201);
        for field in ["estimate", "ceiling", "charged"] {
            assert_eq!(job.text(field), exact, "{field} of {wire}");
        }
        let stored = format!("units-{n} active 1 {exact} 0 {exact} 0");
        assert!(service.books().await.reservations.contains(&stored), "{wire}");
        // The key is that of this amount, however it is written.
        let again = stated(&worker, &key("units"), exact).await.expect(200);
        assert_eq!(again.body, job.body);

        // As usage, which is all of it, and again in another notation.
        let body = format!("{{\"attempt\": \"{}\", \"units\": {wire}}}", job.token());
        let settled = send(&worker, "-", &path(&job, "settle"), body).await.expect(200);
        assert_eq!((settled.text("settled"), settled.text("overrun")), (exact, "0"), "{wire}");
        assert_eq!(worker.settle(&job, exact).await.expect(200).body, settled.body);
        let books = service.books().await;
        assert!(books.reservations.contains(&format!("units-{n} settled 2 {exact} {exact} 0 0")), "{wire}");
        assert!(books.journal.iter().any(|line| line.ends_with(&format!("reserved>settled {exact}"))), "{wire}");
        assert_eq!(worker.balance(&account, "all", None).await[0], exact);
    }
}

#[tokio::test]
async fn what_is_no_amount_is_refused_with_the_field_named() {
    let (service, worker) = wide().await;
    let job = stated(&worker, "job", "10").await.expect(201);
    let counted = json!({"operation": "counted", "quantities": {"rows": 10}, "holder": "w-1"});
    let counted = worker.reserve("counted", counted).await.expect(201);
    let (extend, settle) =
        (format!("{RESERVATIONS}/{}/extend", job.id()), format!("{RESERVATIONS}/{}/settle", job.id()));
    let settle_counted = format!("{RESERVATIONS}/{}/settle", counted.id());
    let unchanged = Unchanged::from_now(&service).await;
    for bad in no_amounts().into_iter().chain(["null".to_owned()]) {
        let (token, counted_token) = (job.token(), counted.token());
        let last = |field: &str| format!("\"{field}\": {bad}}}");
        for (path, body, field) in [
            (RESERVATIONS, format!("{{\"operation\": \"stated\", {}", last("units")), "units"),
            (&*extend, format!("{{\"attempt\": \"{token}\", {}", last("ceiling")), "ceiling"),
            (&settle, format!("{{\"attempt\": \"{token}\", {}", last("units")), "units"),
            (
                RESERVATIONS,
                format!("{{\"operation\": \"counted\", \"quantities\": {{{}}}", last("rows")),
                "quantities.rows",
            ),
            (
                &settle_counted,
                format!("{{\"attempt\": \"{counted_token}\", \"quantities\": {{{}}}", last("rows")),
                "quantities.rows",
            ),
        ] {
            // Where a number ends and something else follows, the JSON ends too.
            let field = (!["0x10", "05", "1_000"].contains(&bad.as_str())).then_some(field);
            unchanged.refuses_body(&worker, path, body, field).await;
        }
    }
}

#[tokio::test]
async fn explicit_units_are_above_zero() {
    let (service, worker) = wide().await;
    stated(&worker, "job", "1").await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    for zero in ["0", "\"0\"", "0.0", "0e5", "-0", "\"-0.0\"", "0e99", "\"0.000000000000000000\""] {
        let body = format!("{{\"operation\": \"stated\", \"units\": {zero}}}");
        unchanged.refuses_body(&worker, RESERVATIONS, body, Some("units")).await;
    }
}

/// A request that is refused with 400 because a sum would leave the range.
async fn out_of_range(unchanged: &Unchanged<'_>, worker: &Client, path: &str, body: Value, field: &str) {
    unchanged.refuses(worker, post(worker, path, body.to_string()), 400, "invalid_request", Some(field)).await;
}

#[tokio::test]
async fn the_largest_amount_fits_a_budget_of_its_size() {
    for policy in [WIDE.to_owned(), observed()] {
        let service = Service::with_policy(&policy).await;
        let worker = service.worker(&["a"]).await;
        let job = stated(&worker, "job", MOST).await.expect(201);
        assert_eq!(service.books().await.periods, [format!("a all : {MOST} 0 {MOST} 0 0")], "{policy}");
        worker.settle(&job, MOST).await.expect(200);
        assert_eq!(service.books().await.periods, [format!("a all : {MOST} 0 0 0 {MOST}")], "{policy}");
    }
}

#[tokio::test]
async fn usage_beyond_the_range_of_a_budget_is_refused() {
    for policy in [WIDE.to_owned(), observed()] {
        let service = Service::with_policy(&policy).await;
        let worker = service.worker(&["a"]).await;
        let (first, second) =
            (stated(&worker, "1", "1").await.expect(201), stated(&worker, "2", "1").await.expect(201));
        // An overrun is recorded, whatever its size.
        let settled = worker.settle(&first, MOST).await.expect(200);
        assert_eq!((settled.text("settled"), settled.text("overrun")), (MOST, "9999999999999998.999999999999"));
        // The second one of that size has no place in the books.
        let unchanged = Unchanged::from_now(&service).await;
        let path = format!("{RESERVATIONS}/{}/settle", second.id());
        for (units, last) in [(MOST, true), (MOST, false), ("0.000000000001", true), ("1", true)] {
            let body = json!({"attempt": second.token(), "units": units, "final": last});
            out_of_range(&unchanged, &worker, &path, body, "units").await;
        }
        // It can still end with what fits.
        worker.settle(&second, "0").await.expect(200);
        assert_eq!(service.books().await.periods, [format!("a all : {MOST} 0 0 0 {MOST}")]);
    }
}

#[tokio::test]
async fn sums_beyond_the_range_of_an_observing_budget_are_refused() {
    let service = Service::with_policy(&observed()).await;
    let worker = service.worker(&["a"]).await;
    let first = stated(&worker, "1", "9999999999999998").await.expect(201);
    let second = stated(&worker, "2", "0.5").await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    // reserved would be more than the column holds.
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": "5000000000"}), "units")
        .await;
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": MOST}), "units").await;
    let path = format!("{RESERVATIONS}/{}/extend", second.id());
    out_of_range(&unchanged, &worker, &path, json!({"attempt": second.token(), "ceiling": MOST}), "ceiling").await;
    // available would be less than the column holds.
    worker.settle(&first, MOST).await.expect(200);
    let third = stated(&worker, "3", "9999999999999998").await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": "100"}), "units").await;
    worker.settle(&third, "0").await.expect(200);
    service.books().await;
}

/// A limit that is lowered takes from available, which may be as low as it goes.
#[tokio::test]
async fn a_limit_that_would_take_a_balance_beyond_its_range_is_refused() {
    let service = Service::with_policy(&observed()).await;
    let worker = service.worker(&["a"]).await;
    let first = stated(&worker, "1", "1").await.expect(201);
    worker.settle(&first, MOST).await.expect(200);
    stated(&worker, "2", "9999999999999990").await.expect(201);
    let operator = service.operator().await;
    let unchanged = Unchanged::from_now(&service).await;
    let lowered = observed().replace(&format!("limit: {MOST}"), "limit: 5");
    let request = operator.request(reqwest::Method::POST, "/v1/policy").header("content-type", "application/yaml");
    unchanged.refuses(&operator, request.body(lowered), 400, "invalid_request", None).await;
}

/// What several days hold can be more than a balance can say.
#[tokio::test]
async fn what_is_carried_beyond_the_range_is_refused() {
    let policy = observed().replace("period: total", "period: day, rollover: carry_forward");
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["a"]).await;
    for (day, key) in [("2026-03-03", "1"), ("2026-03-04", "2")] {
        service.database.set_clock(&format!("{day}T12:00:00Z")).await;
        stated(&worker, key, "9999999999999990").await.expect(201);
    }
    service.database.set_clock("2026-03-05T12:00:00Z").await;
    let unchanged = Unchanged::from_now(&service).await;
    out_of_range(&unchanged, &worker, RESERVATIONS, json!({"operation": "stated", "units": "1"}), "units").await;
    let budgets = worker.get("/v1/accounts/a/budgets").await;
    assert!(budgets.status.as_u16() < 500, "{:#}", budgets.body);
}

const PRICED: &str = "
providers: { p: { unit: usd, enforcement: worker } }
operations:
  chat:
    provider: p
    quantities: { input: { min: 0, max: 1000000 }, output: { min: 0, max: 1000000, default: 0 } }
    cost: [ { rate: 0.0000000000005, times: [input] }, { rate: 0.0000000000004, times: [output] } ]
    max_units: 1000
plans: { p: { budgets: { daily: { unit: usd, limit: 0.00000001, period: total } } } }
accounts: { a: { plan: p } }
";

fn chat(input: Value, output: Value) -> Value {
    json!({"operation": "chat", "quantities": {"input": input, "output": output}, "holder": "w-1"})
}

async fn settle_chat(worker: &Client, job: &Answer, quantities: Value) -> Answer {
    let body = json!({"attempt": job.token(), "quantities": quantities});
    worker.post(&format!("{RESERVATIONS}/{}/settle", job.id()), body).await
}

#[tokio::test]
async fn an_estimate_is_rounded_up_once_and_an_actual_half_to_even() {
    let service = Service::with_policy(PRICED).await;
    let worker = service.worker(&["a"]).await;
    // In steps of 10^-12: input, output, what that is, the estimate, the actual.
    for (n, (input, output, estimate, actual)) in [
        ("0", "0", "0", "0"),
        ("1", "0", "0.000000000001", "0"),
        ("2", "0", "0.000000000001", "0.000000000001"),
        ("3", "0", "0.000000000002", "0.000000000002"),
        ("5", "0", "0.000000000003", "0.000000000002"),
        ("7", "0", "0.000000000004", "0.000000000004"),
        // 0.8: each term alone would be rounded up to a step of its own.
        ("0", "2", "0.000000000001", "0.000000000001"),
        // 0.5 + 0.4 = 0.9, 1 + 0.4 = 1.4, 0.5 + 2 = 2.5, 1.5 + 4 = 5.5
        ("1", "1", "0.000000000001", "0.000000000001"),
        ("2", "1", "0.000000000002", "0.000000000001"),
        ("1", "5", "0.000000000003", "0.000000000002"),
        ("3", "10", "0.000000000006", "0.000000000006"),
        // Half to even is for exact halves only: 0.500…05 is above.
        ("1.000000000001", "0", "0.000000000001", "0.000000000001"),
        ("0.999999999999", "0", "0.000000000001", "0"),
        ("0.000000000001", "0", "0.000000000001", "0"),
    ]
    .into_iter()
    .enumerate()
    {
        let context = format!("{input} in, {output} out");
        let job = worker.reserve(&format!("k{n}"), chat(json!(input), json!(output))).await.expect(201);
        assert_eq!((job.text("estimate"), job.text("ceiling")), (estimate, estimate), "{context}");
        let quantities = json!({"input": input, "output": output});
        let settled = settle_chat(&worker, &job, quantities.clone()).await.expect(200);
        assert_eq!(settled.text("settled"), actual, "{context}");
        assert_eq!(settle_chat(&worker, &job, quantities).await.expect(200).body, settled.body);
    }
    // 0 0 1 2 2 4 1 1 1 2 6 1 0 0
    assert_eq!(worker.balance("a", "daily", None).await, ["0.000000000021", "0", "0", "0.000000009979"]);
    assert_eq!(service.books().await.reservations.len(), 14);
}

#[tokio::test]
async fn an_actual_is_priced_by_the_cost_map_of_the_estimate() {
    let service = Service::with_policy(PRICED).await;
    let worker = service.worker(&["a"]).await;
    let before = worker.reserve("before", chat(json!(1000), json!(1000))).await.expect(201);
    assert_eq!(before.text("estimate"), "0.0000000009");
    // Another rate, another name for a quantity, another default.
    let policy = PRICED
        .replace("rate: 0.0000000000005", "rate: 0.000000000001")
        .replace("output: { min: 0, max: 1000000, default: 0 }", "answer: { min: 0, max: 1000000, default: 100 }")
        .replace("times: [output]", "times: [answer]");
    service.apply(&policy).await;
    let after = json!({"operation": "chat", "quantities": {"input": 1000}, "holder": "w-1"});
    let after = worker.reserve("after", after).await.expect(201);
    assert_eq!(after.text("estimate"), "0.00000000104");

    // The old job's quantities mean what they meant; the new ones are not its.
    let unchanged = Unchanged::from_now(&service).await;
    let path = format!("{RESERVATIONS}/{}/settle", before.id());
    let body = json!({"attempt": before.token(), "quantities": {"input": 1, "answer": 1}});
    out_of_range(&unchanged, &worker, &path, body, "quantities.answer").await;
    let settled = settle_chat(&worker, &before, json!({"input": 1000})).await.expect(200);
    assert_eq!(settled.text("settled"), "0.0000000005");
    let settled = settle_chat(&worker, &after, json!({"input": 1000})).await.expect(200);
    assert_eq!(settled.text("settled"), "0.00000000104");
    // Its repeat too, after everything has been retired.
    service.apply("{}").await;
    let again = settle_chat(&worker, &before, json!({"input": 1000, "output": 0})).await.expect(200);
    assert_eq!(again.text("settled"), "0.0000000005");
    service.books().await;
}

/// The bounds of an estimate do not bound what has happened.
#[tokio::test]
async fn an_actual_may_be_beyond_the_bounds_of_an_estimate() {
    let service = Service::with_policy(PRICED).await;
    let worker = service.worker(&["a"]).await;
    let job = worker.reserve("job", chat(json!(2), json!(0))).await.expect(201);
    let settled = settle_chat(&worker, &job, json!({"input": 2_000_000})).await.expect(200);
    assert_eq!((settled.text("settled"), settled.text("overrun")), ("0.000001", "0.000000999999"));
    assert_eq!(service.books().await.periods, ["a daily : 0.00000001 -0.00000099 0 0 0.000001"]);
}

#[tokio::test]
async fn what_costs_nothing_takes_nothing() {
    let service = Service::with_policy(PRICED).await;
    let worker = service.worker(&["a"]).await;
    let all = worker.reserve("all", chat(json!(20000), json!(0))).await.expect(201);
    assert_eq!(worker.balance("a", "daily", None).await[3], "0");
    worker.reserve("more", chat(json!(1), json!(0))).await.problem(429, "budget_exhausted");
    let before = service.books().await;
    // There is no room left, and none is needed.
    let free = worker.reserve("free", chat(json!(0), json!("0.000"))).await.expect(201);
    assert_eq!((free.text("state"), free.text("estimate"), free.text("charged")), ("active", "0", "0"));
    assert_eq!(free.body["budgets"].as_array().unwrap().len(), 1);
    let during = service.books().await;
    assert_eq!((&during.periods, &during.journal), (&before.periods, &before.journal));
    assert_eq!(during.reservations, ["all active 1 0.00000001 0 0.00000001 0", "free active 1 0 0 0 0"]);
    // It settles at nothing, once.
    let settled = settle_chat(&worker, &free, json!({"input": 0})).await.expect(200);
    assert_eq!((settled.text("settled"), settled.text("state")), ("0", "settled"));
    assert_eq!(settle_chat(&worker, &free, json!({"input": 0})).await.expect(200).body, settled.body);
    settle_chat(&worker, &free, json!({"input": 2})).await.problem(409, "already_settled");
    let after = service.books().await;
    assert_eq!((&after.periods, &after.journal), (&before.periods, &before.journal));
    // Also where available is below zero.
    settle_chat(&worker, &all, json!({"input": 40000})).await.expect(200);
    worker.reserve("free-2", chat(json!(0), json!(0))).await.expect(201);
    service.books().await;
}

/// A cost beyond the range is refused, not cut and not a failure.
#[tokio::test]
async fn a_cost_beyond_the_range_is_refused() {
    let policy =
        WIDE.replace("rate: 1, times: [rows]", "rate: 1e20, times: [rows, rows, rows, rows, rows, rows, rows, rows]");
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["a"]).await;
    let job = json!({"operation": "counted", "quantities": {"rows": "0.001"}, "holder": "w-1"});
    let job = worker.reserve("job", job).await.expect(201);
    assert_eq!(job.text("estimate"), "0.0001");
    let unchanged = Unchanged::from_now(&service).await;
    for rows in ["1", MOST] {
        let body = json!({"operation": "counted", "quantities": {"rows": rows}});
        out_of_range(&unchanged, &worker, RESERVATIONS, body, "quantities").await;
        let path = format!("{RESERVATIONS}/{}/settle", job.id());
        let body = json!({"attempt": job.token(), "quantities": {"rows": rows}});
        out_of_range(&unchanged, &worker, &path, body, "quantities").await;
    }
}
