//! A call is admitted as long as what is settled, what is outstanding and the call
//! stay within the ceiling, for the current attempt of an active reservation.

use serde_json::json;

use crate::support::verbs::{call_stand, stand};
use crate::support::{NORTHSTAR, Northstar};

#[tokio::test]
async fn a_call_is_counted_when_it_is_admitted_and_not_when_it_is_answered() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    let first = day.worker.call(&job, "a", "12").await.expect(201);
    assert_eq!(call_stand(&first), "in_flight 12 - 1, 18 30 active 2");
    let second = day.worker.call(&job, "b", "18").await.expect(201);
    assert_eq!(call_stand(&second), "in_flight 18 - 1, 0 30 active 3");
    // The boundary is inclusive; the smallest amount more is not admitted.
    let refused = day.worker.call(&job, "c", "0.000000000001").await.problem(409, "ceiling_reached");
    assert_eq!((refused.text("ceiling"), refused.text("remaining")), ("30", "0"));
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 0 30 0 0, 30, 3");
    // The room was the job's already: no bucket moves.
    assert_eq!(day.daily().await, ["0", "30", "0", "70"]);
    assert_eq!(day.books().await.moves(), ["reserve available>reserved 30"]);

    // What was not used of a call is room again; what is settled never is.
    let settled = day.worker.settle_call(&job, "a", "7").await.expect(200);
    assert_eq!(call_stand(&settled), "settled 12 7 1, 5 30 active 4");
    day.worker.call(&job, "c", "5.000000000001").await.problem(409, "ceiling_reached");
    day.worker.call(&job, "c", "5").await.expect(201);
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 7 23 0 0, 30, 5");
    assert_eq!(day.daily().await, ["7", "23", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn a_call_that_costs_nothing_needs_no_room() {
    let day = Northstar::open().await;
    let job = day.calls("job", "10").await;
    day.worker.call(&job, "all", "10").await.expect(201);
    let free = day.worker.call(&job, "free", "0").await.expect(201);
    assert_eq!(call_stand(&free), "in_flight 0 - 1, 0 10 active 3");
    // It is a call of the attempt all the same, and ends like any.
    assert_eq!(
        call_stand(&day.worker.settle_call(&job, "free", "0").await.expect(200)),
        "settled 0 0 1, 0 10 active 4"
    );
    day.worker.settle_call(&job, "all", "0").await.expect(200);
    assert_eq!(stand(&day.worker.finish(&job).await.expect(200)), "settled: 10 0 0 0 0, 0, 6");
    assert_eq!(day.daily().await, ["0", "0", "0", "100"]);
    assert_eq!(day.books().await.moves(), ["reserve available>reserved 10", "final_settlement reserved>available 10"]);
}

#[tokio::test]
async fn the_most_that_a_call_may_cost_is_priced_by_the_cost_map_of_the_estimate() {
    let day = Northstar::open().await;
    let export = json!({"operation": "export", "quantities": {"formats": 3, "weight": 12}, "holder": "w-1"});
    let job = day.worker.reserve("job", export).await.expect(201);
    // The price of weight doubles for what is estimated from now on.
    day.service
        .apply(&NORTHSTAR.replace("rate: 1, times: [formats, weight]", "rate: 2, times: [formats, weight]"))
        .await;
    let ask = async |call: &str, quantities: serde_json::Value| {
        let body = json!({"attempt": job.token(), "call": call, "quantities": quantities});
        day.worker.verb(&job, "calls", body).await
    };
    // A default is taken for what is left out.
    assert_eq!(call_stand(&ask("a", json!({"weight": 12})).await.expect(201)), "in_flight 12 - 1, 24 36 active 2");
    let same = ask("a", json!({"weight": "12.0", "formats": 1})).await.expect(200);
    assert_eq!(call_stand(&same), "in_flight 12 - 1, 24 36 active 2");
    // In units it is the same call.
    day.worker.call(&job, "a", "12").await.expect(200);
    ask("a", json!({"weight": 13})).await.problem(422, "idempotency_key_reused");
    ask("b", json!({"formats": 5})).await.problem(409, "ceiling_reached");
    let settle = json!({"attempt": job.token(), "quantities": {"formats": 1, "weight": "9.5"}});
    let settled = day.worker.end_call(&job, "a", settle).await.expect(200);
    assert_eq!(call_stand(&settled), "settled 12 9.5 1, 26.5 36 active 3");
    // Of what has happened every quantity is stated.
    day.worker.call(&job, "b", "12").await.expect(201);
    for (quantities, field) in [
        (json!({"weight": 9}), "quantities.formats"),
        (json!({"formats": 1, "weight": 9, "colour": 1}), "quantities.colour"),
    ] {
        let body = json!({"attempt": job.token(), "quantities": quantities});
        let refused = day.worker.end_call(&job, "b", body).await.problem(400, "invalid_request");
        assert_eq!(refused.body["errors"][0]["field"], field);
        assert_eq!(refused.body["reservation"]["id"], job.id());
    }
    let refused = ask("c", json!({"colour": 1})).await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "quantities.colour");
    // An explicit operation has no cost map.
    let bulk = day.calls("bulk", "5").await;
    let body = json!({"attempt": bulk.token(), "call": "a", "quantities": {"weight": 1}});
    let refused = day.worker.verb(&bulk, "calls", body).await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "quantities");
    assert_eq!(day.daily().await, ["9.5", "31.5", "0", "59"]);
    day.books().await;
}

#[tokio::test]
async fn where_workers_call_the_provider_directly_no_call_is_admitted() {
    let day = Northstar::open().await;
    let job = day.stream("job", "30").await;
    let refused = day.worker.call(&job, "a", "5").await.problem(400, "invalid_request");
    assert_eq!(refused.body["errors"][0]["field"], "call");
    assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token());
    // Who is stale is told that first.
    let body = json!({"attempt": "1.made-up", "call": "a", "units": "5"});
    day.worker.verb(&job, "calls", body).await.problem(409, "stale_attempt");
    day.worker.unknown(&job, "a").await.problem(404, "not_found");
    day.worker.settle_call(&job, "a", "5").await.problem(404, "not_found");
    assert_eq!(stand(&day.worker.now(&job).await), "active: 30 0 0 0 0, 30, 1");
    assert_eq!(day.daily().await, ["0", "30", "0", "70"]);
    day.books().await;
}

#[tokio::test]
async fn who_enforces_is_decided_when_it_is_reserved() {
    let day = Northstar::open().await;
    let (calls, stream) = (day.calls("calls", "30").await, day.stream("stream", "30").await);
    // From now on it is the other way round.
    let swapped =
        NORTHSTAR.replace("enforcement: calls", "enforcement: x").replace("enforcement: worker", "enforcement: calls");
    day.service.apply(&swapped.replace("enforcement: x", "enforcement: worker")).await;
    assert_eq!((calls.text("enforcement"), stream.text("enforcement")), ("calls", "worker"));
    day.worker.call(&calls, "a", "5").await.expect(201);
    day.worker.progress(&calls, "5").await.problem(400, "invalid_request");
    day.worker.call(&stream, "a", "5").await.problem(400, "invalid_request");
    day.worker.progress(&stream, "5").await.expect(200);
    day.operator.fence(&stream, 1, json!({})).await.problem(409, "evidence_required");
    assert_eq!(day.operator.fence(&calls, 1, json!({})).await.expect(200).text("released"), "25");
    let (new, other) = (day.calls("new", "10").await, day.stream("other", "10").await);
    assert_eq!((new.text("enforcement"), other.text("enforcement")), ("worker", "calls"));
    day.worker.progress(&new, "5").await.expect(200);
    day.worker.call(&other, "a", "5").await.expect(201);
    assert_eq!(day.daily().await, ["10", "40", "5", "45"]);
    day.books().await;
}

#[tokio::test]
async fn nothing_is_admitted_after_a_cancel_a_fence_or_the_settlement() {
    let day = Northstar::open().await;
    let job = day.calls("job", "30").await;
    day.worker.call(&job, "a", "10").await.expect(201);
    let refused = async |state: &str| {
        for extend in [false, true] {
            let body = json!({"attempt": job.token(), "call": "b", "units": "1", "extend": extend});
            let refused = day.worker.verb(&job, "calls", body).await.problem(409, "not_active");
            assert_eq!(refused.body["reservation"]["state"], state);
            assert_eq!(refused.body["reservation"]["attempt"]["token"], job.token());
        }
        // A call that is known is answered as it is, whatever has become of the job.
        let known = day.worker.call(&job, "a", "10").await.expect(200);
        assert_eq!(known.body["reservation_state"], state);
        day.worker.call(&job, "a", "11").await.problem(422, "idempotency_key_reused");
    };
    day.worker.cancel(&job).await.expect(200);
    refused("cancelling").await;
    assert_eq!(day.daily().await, ["0", "0", "30", "70"]);
    day.worker.fence(&job, 1, json!({})).await.expect(200);
    refused("fenced").await;
    assert_eq!(day.daily().await, ["0", "0", "10", "90"]);
    day.worker.settle_call(&job, "a", "8").await.expect(200);
    refused("settled").await;
    assert_eq!(day.daily().await, ["8", "0", "0", "92"]);
    assert_eq!(day.worker.calls_of(&job).await, ["a 1 settled 10 8"]);
    assert_eq!(day.books().await.reservations, ["job settled 5 10 8 0 0"]);
}
