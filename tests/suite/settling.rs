//! Extending and settling, step by step: what the answer says, what the budgets
//! hold, and which entries explain it.

use serde_json::{Value, json};

use crate::support::{Answer, Books, Client, NORTHSTAR, Service};

/// What a reservation's answer says of where it stands.
fn stand(answer: &Answer) -> Value {
    let fields = ["state", "ceiling", "settled", "charged", "overrun", "version"];
    Value::Array(fields.map(|field| answer.body[field].clone()).to_vec())
}

/// settled, reserved, liability, available of northstar's day.
async fn daily(client: &Client) -> [String; 4] {
    client.balance("northstar", "daily", None).await
}

async fn northstar() -> (Service, Client) {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    (service, worker)
}

/// Reserves for the operation whose workers call the provider directly.
async fn stream(worker: &Client, key: &str, units: &str) -> Answer {
    worker.reserve(key, json!({"operation": "stream", "units": units, "holder": "w-1"})).await.expect(201)
}

/// The journal without the opening of the period.
fn moves(books: &Books) -> Vec<&str> {
    let moves = books.journal.iter().filter_map(|line| line.strip_prefix("daily "));
    moves.filter_map(|line| line.split_once(' ')).map(|(_, line)| line).skip(1).collect()
}

#[tokio::test]
async fn usage_reported_as_it_grows() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    assert_eq!(stand(&job), json!(["active", "30", "0", "30", "0", 1]));
    assert_eq!((&job.body["closed_at"], &job.body["created_at"]), (&Value::Null, &json!("2026-03-04T12:00:00Z")));

    service.database.stop_clock("2026-03-04T12:01:00Z").await;
    let ten = worker.progress(&job, "10").await.expect(200);
    assert_eq!(stand(&ten), json!(["active", "30", "10", "30", "0", 2]));
    assert_eq!((&ten.body["closed_at"], &ten.body["updated_at"]), (&Value::Null, &json!("2026-03-04T12:01:00Z")));
    assert_eq!(ten.token(), job.token());
    assert_eq!(daily(&worker).await, ["10", "20", "0", "70"]);

    // A repeat is harmless, also in another spelling; less is a conflict.
    service.database.stop_clock("2026-03-04T12:02:00Z").await;
    assert_eq!(worker.progress(&job, "10.0").await.expect(200).body, ten.body);
    let less = worker.progress(&job, "9.999999999999").await.problem(409, "usage_decreases");
    assert_eq!((&less.body["reservation"]["settled"], &less.body["reservation"]["version"]), (&json!("10"), &json!(2)));
    worker.settle(&job, "9").await.problem(409, "usage_decreases");
    assert_eq!(daily(&worker).await, ["10", "20", "0", "70"]);

    let more = worker.progress(&job, "12.5").await.expect(200);
    assert_eq!(stand(&more), json!(["active", "30", "12.5", "30", "0", 3]));
    assert_eq!(daily(&worker).await, ["12.5", "17.5", "0", "70"]);

    service.database.stop_clock("2026-03-04T12:03:00Z").await;
    let done = worker.settle(&job, "14").await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "30", "14", "14", "0", 4]));
    assert_eq!(done.body["closed_at"], "2026-03-04T12:03:00Z");
    assert_eq!(daily(&worker).await, ["14", "0", "0", "86"]);

    service.database.stop_clock("2026-03-04T12:04:00Z").await;
    assert_eq!(worker.settle(&job, "14").await.expect(200).body, done.body);
    let other = worker.settle(&job, "15").await.problem(409, "already_settled");
    assert_eq!((other.text("settled"), &other.body["reservation"]["state"]), ("14", &json!("settled")));
    worker.progress(&job, "13").await.problem(409, "already_settled");

    let books = service.books().await;
    assert_eq!(
        moves(&books),
        [
            "reserve available>reserved 30",
            "progressive_settlement reserved>settled 10",
            "progressive_settlement reserved>settled 2.5",
            "final_settlement reserved>settled 1.5",
            "final_settlement reserved>available 16",
        ]
    );
    assert_eq!(books.reservations, ["job settled 4 30 14 0 0"]);
    let history = worker.get(&format!("/v1/reservations/{}?events=true", job.id())).await.expect(200);
    let events = history.body["events"].as_array().unwrap();
    let told: Vec<Value> = events.iter().map(|event| json!([event["version"], event["event"], event["at"]])).collect();
    assert_eq!(
        told,
        [
            json!([1, "reserve", "2026-03-04T12:00:00Z"]),
            json!([2, "progressive_settlement", "2026-03-04T12:01:00Z"]),
            json!([3, "progressive_settlement", "2026-03-04T12:02:00Z"]),
            json!([4, "final_settlement", "2026-03-04T12:03:00Z"]),
        ]
    );
}

#[tokio::test]
async fn a_final_settlement_may_confirm_the_last_progress() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    worker.progress(&job, "20").await.expect(200);
    let done = worker.settle(&job, "20").await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "30", "20", "20", "0", 3]));
    // Without anything left to release it is still a change of the reservation.
    let whole = stream(&worker, "whole", "30").await;
    worker.progress(&whole, "30").await.expect(200);
    let done = worker.settle(&whole, "30").await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "30", "30", "30", "0", 3]));
    assert_eq!(daily(&worker).await, ["50", "0", "0", "50"]);
    let books = service.books().await;
    assert_eq!(books.entries_of("final_settlement"), ["daily 4 final_settlement reserved>available 10"]);
}

#[tokio::test]
async fn usage_that_is_reported_by_calls_is_not_reported_progressively() {
    let (service, worker) = northstar().await;
    let job = worker.reserve_bulk("job", "30").await.expect(201);
    let refused = worker.progress(&job, "10").await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "final");
    assert_eq!(daily(&worker).await, ["0", "30", "0", "70"]);
    let unchanged = worker.get(&format!("/v1/reservations/{}", job.id())).await.expect(200);
    assert_eq!(stand(&unchanged), json!(["active", "30", "0", "30", "0", 1]));
    worker.settle(&job, "10").await.expect(200);
    assert_eq!(service.books().await.reservations, ["job settled 2 30 10 0 0"]);
}

#[tokio::test]
async fn an_overrun_is_recorded_and_never_refused() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    worker.reserve_bulk("other", "65").await.expect(201);
    assert_eq!(daily(&worker).await, ["0", "95", "0", "5"]);

    // Above the ceiling already in progress: 30 from the room, 3 from available.
    let over = worker.progress(&job, "33").await.expect(200);
    assert_eq!(stand(&over), json!(["active", "30", "33", "33", "3", 2]));
    assert_eq!(daily(&worker).await, ["33", "65", "0", "2"]);
    // Raising the ceiling to what is spent, or below it, takes nothing more.
    let raised = worker.extend(&job, "32").await.expect(200);
    assert_eq!(stand(&raised), json!(["active", "32", "33", "33", "1", 3]));
    assert_eq!(stand(&worker.extend(&job, "33").await.expect(200)), json!(["active", "33", "33", "33", "0", 4]));
    assert_eq!(daily(&worker).await, ["33", "65", "0", "2"]);
    worker.extend(&job, "36").await.problem(429, "budget_exhausted");
    // Spending asks for nothing: available becomes negative.
    let done = worker.settle(&job, "140.000000000001").await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "33", "140.000000000001", "140.000000000001", "107.000000000001", 5]));
    assert_eq!(daily(&worker).await, ["140.000000000001", "65", "0", "-105.000000000001"]);
    worker.reserve_bulk("more", "0.000000000001").await.problem(429, "budget_exhausted");

    let books = service.books().await;
    assert_eq!(
        moves(&books)[2..],
        [
            "progressive_settlement reserved>settled 30",
            "progressive_settlement available>settled 3",
            "final_settlement available>settled 107.000000000001",
        ]
    );
    assert_eq!(books.periods, ["northstar daily : 100 -105.000000000001 65 0 140.000000000001"]);
}

/// What needs no room is refused by none, also where an overrun has left less than
/// none.
#[tokio::test]
async fn a_ceiling_within_what_is_spent_takes_nothing_from_nothing() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    worker.reserve_bulk("other", "70").await.expect(201);
    worker.progress(&job, "33").await.expect(200);
    assert_eq!(daily(&worker).await, ["33", "70", "0", "-3"]);
    let raised = worker.extend(&job, "32").await.expect(200);
    assert_eq!(stand(&raised), json!(["active", "32", "33", "33", "1", 3]));
    worker.extend(&job, "33.000000000001").await.problem(429, "budget_exhausted");
    assert_eq!(daily(&worker).await, ["33", "70", "0", "-3"]);
    service.books().await;
}

#[tokio::test]
async fn one_settlement_above_the_ceiling_takes_the_room_first() {
    let (service, worker) = northstar().await;
    let job = worker.reserve_bulk("job", "30").await.expect(201);
    let done = worker.settle(&job, "45").await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "30", "45", "45", "15", 2]));
    assert_eq!(
        moves(&service.books().await),
        [
            "reserve available>reserved 30",
            "final_settlement reserved>settled 30",
            "final_settlement available>settled 15"
        ]
    );
}

#[tokio::test]
async fn zero_is_a_valid_actual() {
    let (service, worker) = northstar().await;
    let job = worker.reserve_bulk("job", "30").await.expect(201);
    let done = worker.settle(&job, "0").await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "30", "0", "0", "0", 2]));
    assert_eq!(worker.settle(&job, "0.00").await.expect(200).body, done.body);
    worker.settle(&job, "1").await.problem(409, "already_settled");
    // Progress of nothing is a repeat of the beginning.
    let quiet = stream(&worker, "quiet", "30").await;
    assert_eq!(stand(&worker.progress(&quiet, "0").await.expect(200)), json!(["active", "30", "0", "30", "0", 1]));
    worker.settle(&quiet, "0").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "0", "0", "100"]);
    let books = service.books().await;
    assert_eq!(books.entries_of("progressive_settlement").len(), 0);
    assert_eq!(
        books.entries_of("final_settlement"),
        ["daily 3 final_settlement reserved>available 30", "daily 5 final_settlement reserved>available 30"]
    );
}

#[tokio::test]
async fn usage_that_is_no_amount_changes_nothing() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    let path = format!("/v1/reservations/{}/settle", job.id());
    for (units, field) in [
        (json!("-1"), "units"),
        (json!(-1), "units"),
        (json!("NaN"), "units"),
        (json!("Infinity"), "units"),
        (json!("1.0000000000001"), "units"),
        (json!("10000000000000000"), "units"),
        (json!(""), "units"),
        (json!(null), "units"),
        (json!([1]), "units"),
    ] {
        for last in [true, false] {
            let body = json!({"attempt": job.token(), "units": units, "final": last});
            let refused = worker.post(&path, body).await.problem(400, "invalid_request");
            assert_eq!(refused.body["errors"][0]["field"], field, "{units}");
        }
    }
    // The largest that a column holds fits the column, not the balance of a
    // period beside what is settled there already.
    worker.progress(&job, "1").await.expect(200);
    let other = worker.reserve_bulk("other", "1").await.expect(201);
    let most = "9999999999999999.999999999999";
    let refused = worker.settle(&other, most).await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "units");
    // Its workers have to say what they used: a forgotten field settles nothing.
    for last in [json!({"attempt": job.token()}), json!({"attempt": job.token(), "final": false})] {
        let missing = worker.post(&path, last).await.problem(400, "invalid_request");
        assert_eq!(missing.body["errors"][0]["field"], "units");
        assert_eq!(missing.body["reservation"]["id"], job.id());
    }
    assert_eq!(daily(&worker).await, ["1", "30", "0", "69"]);
    assert_eq!(service.books().await.reservations, ["job active 2 30 1 29 0", "other active 1 1 0 1 0"]);
}

#[tokio::test]
async fn settling_after_the_ceiling_was_raised() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    worker.progress(&job, "28").await.expect(200);
    let raised = worker.extend(&job, "50").await.expect(200);
    assert_eq!(stand(&raised), json!(["active", "50", "28", "50", "0", 3]));
    assert_eq!(daily(&worker).await, ["28", "22", "0", "50"]);
    let done = worker.settle(&job, "42").await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "50", "42", "42", "0", 4]));
    assert_eq!(done.text("estimate"), "30");
    assert_eq!(daily(&worker).await, ["42", "0", "0", "58"]);
    assert_eq!(
        moves(&service.books().await),
        [
            "reserve available>reserved 30",
            "progressive_settlement reserved>settled 28",
            "extend available>reserved 20",
            "final_settlement reserved>settled 14",
            "final_settlement reserved>available 8",
        ]
    );
}

#[tokio::test]
async fn a_ceiling_is_an_absolute_number() {
    let (service, worker) = northstar().await;
    let job = worker.reserve_bulk("job", "30").await.expect(201);
    let raised = worker.extend(&job, "40").await.expect(200);
    assert_eq!(stand(&raised), json!(["active", "40", "0", "40", "0", 2]));
    for same in ["40", "40.000", "39", "30", "1", "0"] {
        assert_eq!(worker.extend(&job, same).await.expect(200).body, raised.body, "{same}");
    }
    // The operation's bound is inclusive; what passes it can never be.
    let refused = worker.extend(&job, "100.000000000001").await.problem(400, "too_expensive");
    assert_eq!((refused.text("units"), refused.text("max_units")), ("100.000000000001", "100"));
    assert_eq!(stand(&worker.extend(&job, "100").await.expect(200)), json!(["active", "100", "0", "100", "0", 3]));
    for bad in [json!("-1"), json!("NaN"), json!("1e40"), json!({}), json!("41.0000000000001")] {
        let path = format!("/v1/reservations/{}/extend", job.id());
        let refused = worker.post(&path, json!({"attempt": job.token(), "ceiling": bad})).await;
        assert_eq!(refused.problem(400, "invalid_request").body["errors"][0]["field"], "ceiling", "{bad}");
    }
    assert_eq!(daily(&worker).await, ["0", "100", "0", "0"]);
    assert_eq!(
        moves(&service.books().await),
        ["reserve available>reserved 30", "extend available>reserved 10", "extend available>reserved 60"]
    );
}

#[tokio::test]
async fn nothing_is_extended_after_the_settlement() {
    let (service, worker) = northstar().await;
    let job = worker.reserve_bulk("job", "30").await.expect(201);
    let done = worker.settle(&job, "20").await.expect(200);
    for ceiling in ["40", "30", "10"] {
        let refused = worker.extend(&job, ceiling).await.problem(409, "not_active");
        assert_eq!(refused.body["reservation"]["state"], "settled");
        assert_eq!(refused.body["reservation"]["version"], done.body["version"]);
    }
    assert_eq!(daily(&worker).await, ["20", "0", "0", "80"]);
    service.books().await;
}

#[tokio::test]
async fn only_the_token_of_the_attempt_is_listened_to() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    let other = stream(&worker, "other", "30").await;
    let number_only = "1.AAAAAAAAAAAAAAAAAAAAAA".to_owned();
    let next = job.token().replacen("1.", "2.", 1);
    let padded = format!("{} ", job.token());
    for token in [other.token(), number_only, next, padded, "garbage".to_owned(), "1".to_owned(), "'; --".to_owned()] {
        for (verb, field) in [("settle", "units"), ("extend", "ceiling")] {
            let path = format!("/v1/reservations/{}/{verb}", job.id());
            let refused = worker.post(&path, json!({"attempt": token, field: "40"})).await;
            let refused = refused.problem(409, "stale_attempt");
            let shown = &refused.body["reservation"];
            assert_eq!((&shown["id"], &shown["version"]), (&job.body["id"], &json!(1)));
            assert_eq!(shown["attempt"]["holder"], "w-1");
            assert!(shown["attempt"].get("token").is_none(), "{token}: {shown:#}");
            assert!(!refused.body.to_string().contains(&job.token()));
        }
    }
    for nothing in [json!(""), json!(null), json!(1)] {
        let path = format!("/v1/reservations/{}/settle", job.id());
        let refused = worker.post(&path, json!({"attempt": nothing, "units": "1"})).await;
        assert_eq!(refused.problem(400, "invalid_request").body["errors"][0]["field"], "attempt");
    }
    // Also when it has been settled: who is not its holder learns nothing by it.
    worker.settle(&job, "20").await.expect(200);
    let path = format!("/v1/reservations/{}/settle", job.id());
    worker.post(&path, json!({"attempt": other.token(), "units": "20"})).await.problem(409, "stale_attempt");
    assert_eq!(daily(&worker).await, ["20", "30", "0", "50"]);
    assert_eq!(service.books().await.reservations, ["job settled 2 30 20 0 0", "other active 1 30 0 30 0"]);
}

#[tokio::test]
async fn a_lease_that_has_run_out_stops_nobody() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    service.database.stop_clock("2026-03-04T15:00:00Z").await;
    let late = worker.get(&format!("/v1/reservations/{}", job.id())).await.expect(200);
    assert_eq!((&late.body["attempt"]["overdue"], &late.body["state"]), (&json!(true), &json!("active")));
    worker.progress(&job, "10").await.expect(200);
    worker.extend(&job, "35").await.expect(200);
    worker.settle(&job, "34").await.expect(200);
    assert_eq!(daily(&worker).await, ["34", "0", "0", "66"]);
    service.books().await;
}

#[tokio::test]
async fn quantities_are_priced_as_they_were_when_it_was_estimated() {
    let (service, worker) = northstar().await;
    let body = json!({"operation": "export", "quantities": {"formats": 3, "weight": 12}, "holder": "w-1"});
    let first = worker.reserve("first", body.clone()).await.expect(201);
    let second = worker.reserve("second", body.clone()).await.expect(201);
    service.apply(&NORTHSTAR.replace("rate: 1, times: [formats, weight]", "rate: 1, times: [weight]")).await;
    let third = worker.reserve("third", body).await.expect(201);
    assert_eq!((first.text("estimate"), third.text("estimate")), ("36", "12"));

    let settle = async |reservation: &Answer, quantities: Value| {
        let path = format!("/v1/reservations/{}/settle", reservation.id());
        worker.post(&path, json!({"attempt": reservation.token(), "quantities": quantities})).await
    };
    // Bounds are for estimates: what has happened has happened.
    let done = settle(&first, json!({"formats": 2, "weight": "31"})).await.expect(200);
    assert_eq!(stand(&done), json!(["settled", "36", "62", "62", "26", 2]));
    // The same in units is the same settlement.
    assert_eq!(worker.settle(&first, "62").await.expect(200).body, done.body);
    assert_eq!(settle(&second, json!({"formats": "1.5", "weight": 5})).await.expect(200).text("settled"), "7.5");
    assert_eq!(settle(&third, json!({"weight": 7, "formats": 1})).await.expect(200).text("settled"), "7");
    for (quantities, field) in [
        (json!({"colour": 1, "weight": 7, "formats": 1}), "quantities.colour"),
        (json!({"weight": "-1"}), "quantities.weight"),
    ] {
        let refused = settle(&third, quantities).await.problem(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["field"], field);
    }
    let bulk = worker.reserve_bulk("bulk", "1").await.expect(201);
    let refused = settle(&bulk, json!({"weight": 1})).await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "quantities");
    let path = format!("/v1/reservations/{}/settle", bulk.id());
    let both = json!({"attempt": bulk.token(), "units": 1, "quantities": {}});
    worker.post(&path, both).await.problem(400, "invalid_request");
    assert_eq!(daily(&worker).await, ["76.5", "1", "0", "22.5"]);
    service.books().await;
}

#[tokio::test]
async fn the_providers_own_name_for_the_work_is_kept() {
    let (service, worker) = northstar().await;
    let job = stream(&worker, "job", "30").await;
    let path = format!("/v1/reservations/{}/settle", job.id());
    let report = async |units: u32, last: bool, request: Option<&str>| {
        let mut body = json!({"attempt": job.token(), "units": units, "final": last});
        if let Some(request) = request {
            body["provider_request_id"] = json!(request);
        }
        worker.post(&path, body).await
    };
    report(1, false, Some("req-1")).await.expect(200);
    report(2, false, None).await.expect(200);
    let query = "select coalesce(provider_request_id, '-') from reservation";
    assert_eq!(service.database.lines(query).await, ["req-1"]);
    report(3, true, Some("req-2")).await.expect(200);
    // A repeat changes nothing, not even this.
    report(3, true, Some("req-3")).await.expect(200);
    report(3, true, Some("")).await.problem(400, "invalid_request");
    assert_eq!(service.database.lines(query).await, ["req-2"]);
    let history = "select coalesce(detail ->> 'provider_request_id', '-') from reservation_event order by version";
    assert_eq!(service.database.lines(history).await, ["-", "req-1", "-", "req-2"]);
    service.books().await;
}

#[tokio::test]
async fn every_budget_of_a_reservation_sees_the_same() {
    let pools = "pools: { month: { provider: direct, unit: transformation, limit: 40, period: month } }";
    let service = Service::with_policy(&format!("{NORTHSTAR}{pools}")).await;
    let worker = service.worker(&["northstar"]).await;
    let job = stream(&worker, "job", "30").await;
    worker.progress(&job, "10").await.expect(200);
    // The pool's limit bounds the extension too, and then nothing is charged anywhere.
    worker.extend(&job, "41").await.problem(400, "too_expensive");
    worker.extend(&job, "38").await.expect(200);
    assert_eq!(daily(&worker).await, ["10", "28", "0", "62"]);
    worker.settle(&job, "50").await.expect(200);
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 50 0 0 50", " month : 40 -10 0 0 50"]);
    let of = |budget: &str| -> Vec<String> {
        books.journal.iter().filter_map(|line| line.strip_prefix(budget)).skip(1).map(str::to_owned).collect()
    };
    assert_eq!(of("daily "), of("month "));
}
