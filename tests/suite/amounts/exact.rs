//! Every amount comes back exactly as it was sent, and what is no amount is
//! refused by the name of its field.

use serde_json::json;

use super::{MOST, RESERVATIONS, WIDE, stated, wide};
use crate::support::unchanged::Unchanged;
use crate::support::{Answer, Client, Service};

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
