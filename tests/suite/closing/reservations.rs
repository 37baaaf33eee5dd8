//! Finance settles any open reservation, whatever is outstanding, with a reason.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::{stand, stopped};
use crate::support::{Answer, Northstar};

/// A reservation of 40 in each state in which it is open, with what it holds, by
/// name: settled, reserved and liability of it follow.
async fn open_one(day: &Northstar, how: &str) -> (Answer, [&'static str; 3]) {
    let worker = &day.worker;
    if how.starts_with("worker") {
        let job = day.stream("job", "40").await;
        worker.progress(&job, "10").await.expect(200);
        return match how {
            "worker, active" => (job, ["10", "30", "0"]),
            "worker, taken over" => {
                let more = stopped(json!({"force": true, "outstanding": "18"}));
                (day.operator.take_over(&job, 1, "w-2", more).await.expect(201), ["10", "22", "8"])
            }
            "worker, overrun" => {
                let more = stopped(json!({"force": true, "outstanding": "45"}));
                (day.operator.take_over(&job, 1, "w-2", more).await.expect(201), ["10", "0", "35"])
            }
            "worker, fenced" => {
                day.operator.fence(&job, 1, stopped(json!({"outstanding": "7"}))).await.expect(200);
                (job, ["10", "0", "7"])
            }
            other => panic!("{other}"),
        };
    }
    let job = day.calls("job", "40").await;
    for (call, units) in [("a", "12"), ("b", "10"), ("c", "5")] {
        worker.call(&job, call, units).await.expect(201);
    }
    worker.settle_call(&job, "a", "10").await.expect(200);
    worker.unknown(&job, "c").await.expect(200);
    match how {
        "calls, active" => (job, ["10", "25", "5"]),
        "calls, cancelling" => {
            worker.cancel(&job).await.expect(200);
            (job, ["10", "0", "30"])
        }
        "calls, fenced" => {
            worker.fence(&job, 1, json!({})).await.expect(200);
            (job, ["10", "0", "15"])
        }
        "calls, settled for good" => {
            worker.not_sent(&job, "b").await.expect(200);
            worker.finish(&job).await.expect(200);
            (job, ["10", "0", "5"])
        }
        other => panic!("{other}"),
    }
}

const OPEN: [&str; 8] = [
    "worker, active",
    "worker, taken over",
    "worker, overrun",
    "worker, fenced",
    "calls, active",
    "calls, cancelling",
    "calls, fenced",
    "calls, settled for good",
];

#[tokio::test]
async fn every_open_state_is_closed_at_any_amount_from_what_is_settled_up() {
    let amounts = [("10", "90"), ("14.5", "85.5"), ("44", "56")];
    for (how, (units, available)) in OPEN.into_iter().zip(amounts.into_iter().cycle()) {
        let day = Northstar::open().await;
        let (job, [settled, reserved, liability]) = open_one(&day, how).await;
        let before = day.daily().await;
        assert_eq!(before[..3], [settled, reserved, liability], "{how}");
        let version = day.worker.now(&job).await.body["version"].as_i64().unwrap();
        day.clock("12:10:00").await;
        let closed = day.finance.close(&job, units, "line 4711").await.expect(200);
        let ceiling = closed.text("ceiling");
        assert_eq!(stand(&closed), format!("settled: {ceiling} {units} 0 0 0, {units}, {}", version + 1), "{how}");
        assert_eq!(
            (&closed.body["closed_at"], closed.body["attempt"].get("token")),
            (&json!("2026-03-04T12:10:00Z"), None)
        );
        assert_eq!(day.daily().await, [units, "0", "0", available], "{how}");
        // The same again changes nothing, whatever it gives as its reason.
        let unchanged = Unchanged::from_now(&day.service).await;
        assert_eq!(day.finance.close(&job, units, "again").await.expect(200).body, closed.body);
        unchanged.check(how).await;
        let path = format!("/v1/reservations/{}/settle", job.id());
        let request = day.finance.request(Method::POST, &path).json(&json!({"units": "11", "reason": "other"}));
        let refused = unchanged.refuses(&day.finance, request, 409, "already_settled", None).await;
        assert_eq!(refused.text("settled"), units);
        assert_eq!(refused.body["reservation"]["attempt"].get("token"), None);
    }
}

#[tokio::test]
async fn never_below_what_is_settled_already() {
    for how in OPEN {
        let day = Northstar::open().await;
        let (job, _) = open_one(&day, how).await;
        let unchanged = Unchanged::from_now(&day.service).await;
        for units in ["9.999999999999", "0"] {
            let path = format!("/v1/reservations/{}/settle", job.id());
            let request = day.finance.request(Method::POST, &path).json(&json!({"units": units, "reason": "lower"}));
            let refused = unchanged.refuses(&day.finance, request, 409, "usage_decreases", None).await;
            assert_eq!(refused.body["reservation"]["settled"], "10", "{how}");
        }
    }
}

#[tokio::test]
async fn the_reason_is_in_the_journal_the_history_and_the_audit_log() {
    let day = Northstar::open().await;
    let (job, _) = open_one(&day, "calls, active").await;
    let reason = "invoice 2026-03, line 4711: “é”";
    day.finance.close(&job, "23", reason).await.expect(200);
    let journal = "select event || ': ' || reason from journal_entry where reason is not null order by entry_no";
    let line = format!("finance_settlement: {reason}");
    // One entry for each transfer: 13 to settled, 17 to available.
    assert_eq!(
        day.books().await.moves()[3..],
        [
            "finance_settlement reserved>settled 13",
            "finance_settlement reserved>available 12",
            "finance_settlement liability>available 5",
        ]
    );
    assert_eq!(day.service.database.lines(journal).await, [&*line, &line, &line]);
    let history = day.worker.get(&format!("/v1/reservations/{}?events=true", job.id())).await.expect(200);
    let event = history.body["events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&event["event"], &event["detail"]), (&json!("finance_settlement"), &json!({"reason": reason})));
    let audit = day.operator.get("/v1/audit").await.expect(200);
    let entry =
        audit.body["items"].as_array().unwrap().iter().find(|entry| entry["subject"] == job.id()).unwrap().clone();
    assert_eq!((&entry["action"], &entry["actor"]), (&json!("reservation_closed"), &event["actor"]));
    assert_eq!(
        entry["detail"],
        json!({"account": "northstar", "reason": reason, "units": "23",
               "before": {"state": "active", "settled": "10", "outstanding": "15", "charged": "40"}})
    );
    // One entry: repeats and refusals leave none.
    day.finance.close(&job, "23", "again").await.expect(200);
    day.finance.close(&job, "24", "other").await.problem(409, "already_settled");
    let entries = "select count(*)::text from audit_entry where action = 'reservation_closed'";
    assert_eq!(day.service.database.lines(entries).await, ["1"]);
}

#[tokio::test]
async fn what_its_worker_settled_is_closed_already() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    let settled = day.worker.settle(&job, "12").await.expect(200);
    let mut same = day.finance.close(&job, "12.00", "checked").await.expect(200).body;
    same["attempt"]["token"] = json!(job.token());
    assert_eq!(same, settled.body);
    let refused = day.finance.close(&job, "13", "checked").await.problem(409, "already_settled");
    assert_eq!((refused.text("settled"), refused.text("retry")), ("12", "never"));
    // What finance says is no late usage: it adjusts.
    assert_eq!(day.finance.late_usage("").await, Vec::<String>::new());
    assert_eq!(day.daily().await, ["12", "0", "0", "88"]);
    assert_eq!(day.books().await.entries_of("finance_settlement"), Vec::<&str>::new());
}

#[tokio::test]
async fn usage_that_arrives_afterwards_is_kept_once_and_changes_no_balance() {
    let day = Northstar::open().await;
    let first = day.stream("job", "40").await;
    day.worker.progress(&first, "10").await.expect(200);
    let more = stopped(json!({"force": true, "outstanding": "18"}));
    let second = day.operator.take_over(&first, 1, "w-2", more).await.expect(201);
    day.worker.progress(&second, "4").await.expect(200);
    let closed = day.finance.close(&first, "21", "export").await.expect(200);
    assert_eq!(day.daily().await, ["21", "0", "0", "79"]);
    let books = day.books().await;

    // What the attempt had reported is what it says: nothing is late.
    for last in [true, false] {
        let body = json!({"attempt": second.token(), "units": "4", "final": last});
        assert_eq!(stand(&day.worker.verb(&second, "settle", body).await.expect(200)), stand(&closed));
    }
    for _ in 0..2 {
        for (who, units, code) in
            [(&second, "6", "already_settled"), (&second, "21", "already_settled"), (&first, "11", "stale_attempt")]
        {
            let refused = day.worker.settle(who, units).await.problem(409, code);
            assert_eq!(refused.body.get("settled"), (code == "already_settled").then_some(&json!("21")));
            day.worker.progress(who, units).await.problem(409, code);
        }
        day.worker.settle(&second, "3").await.problem(409, "already_settled");
    }
    assert_eq!(
        day.finance.late_usage("").await,
        ["2 - 3 already_settled", "1 - 11 stale_attempt", "2 - 21 already_settled", "2 - 6 already_settled"]
    );
    day.worker.extend(&second, "50").await.problem(409, "not_active");
    assert_eq!(day.worker.renew(&second, 60).await.expect(200).text("state"), "settled");
    assert_eq!(day.worker.cancel(&second).await.expect(200).text("state"), "settled");
    assert_eq!(day.worker.fence(&second, 2, json!({})).await.expect(200).text("released"), "0");
    assert_eq!(day.books().await, books);
    let shown = day.worker.now(&first).await;
    assert_eq!((&shown.body["version"], &shown.body["attempt"]["number"]), (&json!(5), &json!(2)));
    let open = day.finance.get("/v1/liabilities").await.expect(200);
    assert_eq!((&open.body["items"], &open.body["late_usage"]), (&json!([]), &json!(4)));
    assert_eq!(shown.body.get("late_usage"), None::<&Value>);
}
