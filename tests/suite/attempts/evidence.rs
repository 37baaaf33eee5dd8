//! Where the ledger cannot stop an attempt, only evidence can, and what it may have
//! spent stays charged until finance settles it.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::{and, stand, stopped};
use crate::support::{NORTHSTAR, Northstar};

#[tokio::test]
async fn a_takeover_needs_evidence_and_force_is_none() {
    let day = Northstar::open().await;
    let job = day.stream("job", "30").await;
    let unchanged = Unchanged::from_now(&day.service).await;
    let ask = |body: Value| {
        let request = day.operator.request(Method::POST, &format!("/v1/reservations/{}/attempts", job.id()));
        request.json(&and(json!({"previous": 1, "holder": "w-2"}), body))
    };
    // The lease comes first.
    for body in [json!({}), stopped(json!({}))] {
        unchanged.refuses(&day.operator, ask(body), 409, "lease_current", None).await;
    }
    for body in [json!({"force": true}), json!({"force": true, "outstanding": "5"})] {
        let refused = unchanged.refuses(&day.operator, ask(body), 409, "evidence_required", None).await;
        assert_eq!((refused.text("retry"), refused.body["reservation"]["attempt"].get("token")), ("never", None));
    }
    day.clock("12:01:00").await;
    for body in [json!({}), json!({"outstanding": "5"}), json!({"evidence": null})] {
        unchanged.refuses(&day.operator, ask(body), 409, "evidence_required", None).await;
    }
    drop(unchanged);
    // Both kinds are evidence; who gave it, when, and what was said is kept.
    let elsewhere = json!({"evidence": {"kind": "fenced_elsewhere", "detail": "key revoked"}, "outstanding": "12.50"});
    let taken = day.worker.take_over(&job, 1, "w-2", elsewhere).await.expect(201);
    assert_eq!(stand(&taken), "active: 30 0 0 0 12.5, 30, 2");
    let answer = day.worker.get(&format!("/v1/reservations/{}?events=true", job.id())).await.expect(200);
    let event = &answer.body["events"][1];
    assert_eq!((&event["event"], &event["at"]), (&json!("takeover"), &json!("2026-03-04T12:01:00Z")));
    assert!(event["actor"].as_str().unwrap().starts_with("key:"));
    assert_eq!(
        event["detail"],
        json!({"previous": 1, "previous_holder": "w-1", "holder": "w-2", "may_have_spent": "12.5",
               "outstanding": "12.5", "evidence": {"kind": "fenced_elsewhere", "detail": "key revoked"}})
    );
    assert_eq!(day.daily().await, ["0", "17.5", "12.5", "70"]);
    day.books().await;
}

#[tokio::test]
async fn what_may_have_been_spent_is_in_total_and_what_was_reported_is_in_it() {
    let day = Northstar::open().await;
    // (progress before, outstanding stated, what follows)
    let cases = [
        // Nothing stated means everything.
        (None, None, "active: 10 0 0 0 10, 10, 2"),
        (Some("4"), None, "active: 10 4 0 0 6, 10, 3"),
        (Some("10"), None, "active: 10 10 0 0 0, 10, 3"),
        (Some("13"), None, "active: 10 13 0 0 0, 13, 3"),
        (None, Some("0"), "active: 10 0 0 0 0, 10, 2"),
        (None, Some("3"), "active: 10 0 0 0 3, 10, 2"),
        (None, Some("10"), "active: 10 0 0 0 10, 10, 2"),
        (Some("4"), Some("7"), "active: 10 4 0 0 3, 10, 3"),
        (Some("4"), Some("4"), "active: 10 4 0 0 0, 10, 3"),
        // Below what was reported there is nothing more.
        (Some("4"), Some("1"), "active: 10 4 0 0 0, 10, 3"),
        (Some("4"), Some("10"), "active: 10 4 0 0 6, 10, 3"),
        // Above the room: the rest is overrun, never refused.
        (Some("4"), Some("12"), "active: 10 4 0 0 8, 12, 3"),
        (Some("13"), Some("15"), "active: 10 13 0 0 2, 15, 3"),
    ];
    for (number, (progress, outstanding, expected)) in cases.into_iter().enumerate() {
        let job = day.stream(&format!("job-{number}"), "10").await;
        if let Some(units) = progress {
            day.worker.progress(&job, units).await.expect(200);
        }
        let more = and(json!({"force": true}), outstanding.map_or(json!({}), |units| json!({"outstanding": units})));
        let taken = day.operator.take_over(&job, 1, "w-2", stopped(more)).await.expect(201);
        assert_eq!(stand(&taken), expected, "{progress:?} {outstanding:?}");
        day.books().await;
        // The second settles nothing of its own; finance finds that nothing more was spent.
        day.worker.settle(&taken, "0").await.expect(200);
        let settled = taken.text("settled").to_owned();
        day.finance.close(&taken, &settled, "nothing more").await.expect(200);
        let [_, reserved, liability, _] = day.daily().await;
        assert_eq!((&*reserved, &*liability), ("0", "0"));
        service_has_room(&day).await;
    }
    day.books().await;
}

/// The day's limit is raised beyond anything that a test of many jobs needs.
async fn service_has_room(day: &Northstar) {
    day.service.apply(&NORTHSTAR.replace("limit: 100", "limit: 1000")).await;
}

#[tokio::test]
async fn what_the_room_does_not_cover_is_taken_from_available_even_below_zero() {
    let day = Northstar::open().await;
    let job = day.stream("job", "60").await;
    day.worker.progress(&job, "20").await.expect(200);
    day.calls("other", "35").await;
    assert_eq!(day.daily().await, ["20", "75", "0", "5"]);
    day.clock("12:01:00").await;
    let taken = day.worker.take_over(&job, 1, "w-2", stopped(json!({"outstanding": "70"}))).await.expect(201);
    assert_eq!((&*stand(&taken), taken.text("overrun")), ("active: 60 20 0 0 50, 70, 3", "10"));
    assert_eq!(day.daily().await, ["20", "35", "50", "-5"]);
    // The second attempt has no room: it extends beyond all that, or spends over it.
    day.worker.extend(&taken, "75").await.problem(429, "budget_exhausted");
    let over = day.worker.progress(&taken, "3").await.expect(200);
    assert_eq!((&*stand(&over), over.text("overrun")), ("active: 60 23 0 0 50, 73, 4", "13"));
    assert_eq!(day.daily().await, ["23", "35", "50", "-8"]);
    day.finance.close(&job, "33", "the first spent 30").await.expect(200);
    assert_eq!(day.daily().await, ["33", "35", "0", "32"]);
    assert_eq!(
        day.books().await.moves()[3..],
        [
            "takeover reserved>liability 40",
            "takeover available>liability 10",
            "progressive_settlement available>settled 3",
            "finance_settlement liability>settled 10",
            "finance_settlement liability>available 40",
        ]
    );
}

#[tokio::test]
async fn a_repeat_states_nothing_anew() {
    let day = Northstar::open().await;
    let job = day.stream("job", "30").await;
    day.clock("12:01:00").await;
    let taken = day.worker.take_over(&job, 1, "w-2", stopped(json!({"outstanding": "5"}))).await.expect(201);
    let unchanged = Unchanged::from_now(&day.service).await;
    for more in [json!({}), stopped(json!({"outstanding": "20"})), stopped(json!({}))] {
        let again = day.worker.take_over(&job, 1, "w-2", more).await.expect(200);
        assert_eq!(again.body, taken.body);
    }
    unchanged.check("a repeat").await;
    assert_eq!(day.daily().await, ["0", "25", "5", "70"]);
}

#[tokio::test]
async fn an_amount_beyond_the_range_of_the_books_is_refused() {
    let day = Northstar::open().await;
    let (one, other) = (day.stream("one", "30").await, day.stream("other", "30").await);
    day.clock("12:01:00").await;
    // The one fits the columns, and is an overrun; with the other the balance would not.
    let most = stopped(json!({"outstanding": "9999999999999999.999999999999"}));
    day.worker.take_over(&one, 1, "w-2", most.clone()).await.expect(201);
    let unchanged = Unchanged::from_now(&day.service).await;
    let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/attempts", other.id()));
    let request = request.json(&and(json!({"previous": 1, "holder": "w-2"}), most));
    let refused = unchanged.refuses(&day.worker, request, 400, "invalid_request", Some("outstanding")).await;
    assert_eq!(refused.body["reservation"]["id"], other.id());
    assert_eq!(stand(&day.worker.now(&other).await), "active: 30 0 0 0 0, 30, 1");
    let available = "-9999999999999929.999999999999";
    assert_eq!(day.daily().await, ["0", "30", "9999999999999999.999999999999", available]);
}
