//! Where the ledger cannot stop a worker, a fence needs evidence, and states what
//! may be outstanding; nothing stated means everything that the attempt had.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::unchanged::Unchanged;
use crate::support::verbs::{and, stand, stopped};
use crate::support::{Answer, Northstar};

/// How much a fence released, and where the reservation stands after it.
fn fenced(answer: &Answer) -> (&str, String) {
    (answer.text("released"), stand(answer))
}

#[tokio::test]
async fn it_needs_evidence_about_the_current_attempt() {
    let day = Northstar::open().await;
    let job = day.stream("job", "30").await;
    day.worker.progress(&job, "10").await.expect(200);
    let path = format!("/v1/reservations/{}/fence", job.id());
    let refuse = async |state: &str| {
        let unchanged = Unchanged::from_now(&day.service).await;
        for (body, code) in [
            (json!({"attempt_number": 1}), "evidence_required"),
            (json!({"attempt_number": 1, "outstanding": "5"}), "evidence_required"),
            (json!({"attempt_number": 1, "evidence": null}), "evidence_required"),
            (json!({"attempt_number": 2}), "stale_attempt"),
            (stopped(json!({"attempt_number": 2, "outstanding": "5"})), "stale_attempt"),
        ] {
            for client in [&day.worker, &day.operator] {
                let request = client.request(Method::POST, &path).json(&body);
                let refused = unchanged.refuses(client, request, 409, code, None).await;
                assert_eq!(refused.body["reservation"]["state"], state);
                assert_eq!(refused.body["reservation"]["attempt"].get("token"), None);
            }
        }
    };
    refuse("active").await;
    day.worker.cancel(&job).await.expect(200);
    refuse("cancelling").await;
    let evidence = json!({"evidence": {"kind": "fenced_elsewhere", "detail": "egress closed"}, "outstanding": "5"});
    let answer = day.worker.fence(&job, 1, evidence).await.expect(200);
    assert_eq!(fenced(&answer), ("15", "fenced: 15 10 0 0 5, 15, 4".to_owned()));
    refuse("fenced").await;
    assert_eq!(day.daily().await, ["10", "0", "5", "85"]);
    let answer = day.worker.get(&format!("/v1/reservations/{}?events=true", job.id())).await.expect(200);
    assert_eq!(
        answer.body["events"][3]["detail"],
        json!({"evidence": {"kind": "fenced_elsewhere", "detail": "egress closed"}, "outstanding": "5"})
    );
    day.books().await;
}

#[tokio::test]
async fn what_is_stated_is_beyond_what_is_settled() {
    // (whether it is cancelled first, outstanding, released, what follows)
    let cases = [
        (false, Some("0"), "20", "settled: 10 10 0 0 0, 10, 3"),
        (true, Some("0"), "20", "settled: 10 10 0 0 0, 10, 4"),
        (false, Some("7.5"), "12.5", "fenced: 17.5 10 0 0 7.5, 17.5, 3"),
        (true, Some("7.5"), "12.5", "fenced: 17.5 10 0 0 7.5, 17.5, 4"),
        (false, Some("20"), "0", "fenced: 30 10 0 0 20, 30, 3"),
        (false, None, "0", "fenced: 30 10 0 0 20, 30, 3"),
        (true, None, "0", "fenced: 30 10 0 0 20, 30, 4"),
        // Beyond the room: an overrun, never refused.
        (false, Some("26"), "0", "fenced: 30 10 0 0 26, 36, 3"),
        (true, Some("26"), "0", "fenced: 30 10 0 0 26, 36, 4"),
    ];
    for (cancelled, outstanding, released, expected) in cases {
        let day = Northstar::open().await;
        let job = day.stream("job", "30").await;
        day.worker.progress(&job, "10").await.expect(200);
        if cancelled {
            day.worker.cancel(&job).await.expect(200);
        }
        let more = outstanding.map_or(json!({}), |units| json!({"outstanding": units}));
        let answer = day.operator.fence(&job, 1, stopped(more)).await.expect(200);
        assert_eq!(fenced(&answer), (released, expected.to_owned()), "{cancelled} {outstanding:?}");
        let [settled, reserved, liability, _] = day.daily().await;
        assert_eq!((&*settled, &*reserved, &*liability), ("10", "0", answer.text("stated_outstanding")));
        // No token of a fenced attempt spends any more.
        day.worker.extend(&job, "40").await.problem(409, "not_active");
        day.books().await;
    }
}

#[tokio::test]
async fn a_later_fence_of_the_same_attempt_can_only_lower_it() {
    let day = Northstar::open().await;
    let job = day.stream("job", "50").await;
    day.worker.progress(&job, "10").await.expect(200);
    let fence = async |more: Value| {
        let answer = day.operator.fence(&job, 1, stopped(more)).await.expect(200);
        (answer.text("released").to_owned(), stand(&answer))
    };
    let fenced = |released: &str, stand: &str| (released.to_owned(), stand.to_owned());
    assert_eq!(fence(json!({"outstanding": "30"})).await, fenced("10", "fenced: 40 10 0 0 30, 40, 3"));
    let unchanged = Unchanged::from_now(&day.service).await;
    for higher in [json!({"outstanding": "30"}), json!({"outstanding": "31"}), json!({"outstanding": 1000}), json!({})]
    {
        assert_eq!(fence(higher).await, fenced("0", "fenced: 40 10 0 0 30, 40, 3"));
    }
    unchanged.check("a fence that states no less").await;
    drop(unchanged);
    assert_eq!(fence(json!({"outstanding": "29.5"})).await, fenced("0.5", "fenced: 39.5 10 0 0 29.5, 39.5, 4"));
    assert_eq!(fence(json!({"outstanding": "12"})).await, fenced("17.5", "fenced: 22 10 0 0 12, 22, 5"));
    assert_eq!(day.daily().await, ["10", "0", "12", "78"]);
    assert_eq!(fence(json!({"outstanding": "0"})).await, fenced("12", "settled: 10 10 0 0 0, 10, 6"));
    assert_eq!(fence(json!({"outstanding": "0"})).await, fenced("0", "settled: 10 10 0 0 0, 10, 6"));
    assert_eq!(day.daily().await, ["10", "0", "0", "90"]);
    assert_eq!(
        day.books().await.moves()[2..],
        [
            "fence reserved>liability 30",
            "fence reserved>available 10",
            "fence liability>available 0.5",
            "fence liability>available 17.5",
            "fence liability>available 12",
        ]
    );
    let audited = "select count(*)::text from audit_entry where action = 'reservation_fenced'";
    assert_eq!(day.service.database.lines(audited).await, ["4"]);
}

#[tokio::test]
async fn what_earlier_attempts_may_have_spent_stays() {
    let day = Northstar::open().await;
    let taken = async |key: &str| {
        let job = day.stream(key, "25").await;
        let more = stopped(json!({"outstanding": "10", "force": true}));
        day.operator.take_over(&job, 1, "w-2", more).await.expect(201);
        job
    };
    // Stated of the second, beside the 10 of the first.
    let job = taken("stated").await;
    let answer = day.operator.fence(&job, 2, stopped(json!({"outstanding": "4"}))).await.expect(200);
    assert_eq!(fenced(&answer), ("11", "fenced: 14 0 0 0 14, 14, 3".to_owned()));
    // Lowered to nothing, the 10 of the first are still there.
    let answer = day.operator.fence(&job, 2, stopped(json!({"outstanding": "0"}))).await.expect(200);
    assert_eq!(fenced(&answer), ("4", "fenced: 10 0 0 0 10, 10, 4".to_owned()));
    // Everything that the second had is what the first left it.
    let job = taken("nothing-stated").await;
    let answer = day.operator.fence(&job, 2, stopped(json!({}))).await.expect(200);
    assert_eq!(fenced(&answer), ("0", "fenced: 25 0 0 0 25, 25, 3".to_owned()));
    let answer = day.operator.fence(&job, 2, stopped(json!({"outstanding": "5"}))).await.expect(200);
    assert_eq!(fenced(&answer), ("10", "fenced: 15 0 0 0 15, 15, 4".to_owned()));
    // The first is older: about it nothing more is said.
    let old = and(json!({"attempt_number": 1}), stopped(json!({"outstanding": "0"})));
    day.operator.verb(&job, "fence", old).await.problem(409, "stale_attempt");
    assert_eq!(day.daily().await, ["0", "0", "25", "75"]);
    day.books().await;
}

#[tokio::test]
async fn an_amount_beyond_the_range_of_the_books_is_refused() {
    let day = Northstar::open().await;
    let (one, other) = (day.stream("one", "30").await, day.stream("other", "30").await);
    let most = stopped(json!({"outstanding": "9999999999999999.999999999999"}));
    day.worker.fence(&one, 1, most.clone()).await.expect(200);
    let unchanged = Unchanged::from_now(&day.service).await;
    let request = day.worker.request(Method::POST, &format!("/v1/reservations/{}/fence", other.id()));
    let request = request.json(&and(json!({"attempt_number": 1}), most));
    let refused = unchanged.refuses(&day.worker, request, 400, "invalid_request", Some("outstanding")).await;
    assert_eq!(refused.body["reservation"]["id"], other.id());
    assert_eq!(stand(&day.worker.now(&other).await), "active: 30 0 0 0 0, 30, 1");
}
