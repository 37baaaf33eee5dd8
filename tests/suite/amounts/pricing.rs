//! An estimate is rounded up once, an actual half to even, both by the cost map
//! of the estimate, and what costs nothing takes nothing.

use serde_json::{Value, json};

use super::{RESERVATIONS, out_of_range};
use crate::support::unchanged::Unchanged;
use crate::support::{Answer, Client, Service};

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
    let body = json!({"attempt": before.token(), "quantities": {"input": 1, "output": 1, "answer": 1}});
    out_of_range(&unchanged, &worker, &path, body, "quantities.answer").await;
    let settled = settle_chat(&worker, &before, json!({"input": 1000, "output": 0})).await.expect(200);
    assert_eq!(settled.text("settled"), "0.0000000005");
    let settled = settle_chat(&worker, &after, json!({"input": 1000, "answer": 100})).await.expect(200);
    assert_eq!(settled.text("settled"), "0.00000000104");
    // Its repeat too, after everything has been retired.
    service.apply("{}").await;
    let again = settle_chat(&worker, &before, json!({"input": 1000, "output": 0})).await.expect(200);
    assert_eq!(again.text("settled"), "0.0000000005");
    service.books().await;
}

/// A quantity that is forgotten would settle at less than was used.
#[tokio::test]
async fn an_actual_states_every_quantity() {
    let service = Service::with_policy(PRICED).await;
    let worker = service.worker(&["a"]).await;
    // What an estimate leaves out is its default.
    let estimate = json!({"operation": "chat", "quantities": {"input": 2}, "holder": "w-1"});
    let job = worker.reserve("job", estimate).await.expect(201);
    let unchanged = Unchanged::from_now(&service).await;
    let path = format!("{RESERVATIONS}/{}/settle", job.id());
    for (quantities, field) in [
        (json!({"input": 2}), "quantities.output"),
        (json!({"output": 0}), "quantities.input"),
        (json!({"output": null, "input": 2}), "quantities.output"),
    ] {
        let body = json!({"attempt": job.token(), "quantities": quantities});
        out_of_range(&unchanged, &worker, &path, body, field).await;
    }
    let settled = settle_chat(&worker, &job, json!({"input": 2, "output": 0})).await.expect(200);
    assert_eq!(settled.text("settled"), "0.000000000001");
    assert_eq!(service.books().await.periods, ["a daily : 0.00000001 0.000000009999 0 0 0.000000000001"]);
}

/// The bounds of an estimate do not bound what has happened.
#[tokio::test]
async fn an_actual_may_be_beyond_the_bounds_of_an_estimate() {
    let service = Service::with_policy(PRICED).await;
    let worker = service.worker(&["a"]).await;
    let job = worker.reserve("job", chat(json!(2), json!(0))).await.expect(201);
    let settled = settle_chat(&worker, &job, json!({"input": 2_000_000, "output": 0})).await.expect(200);
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
    let settled = settle_chat(&worker, &free, json!({"input": 0, "output": 0})).await.expect(200);
    assert_eq!((settled.text("settled"), settled.text("state")), ("0", "settled"));
    assert_eq!(settle_chat(&worker, &free, json!({"input": 0, "output": 0})).await.expect(200).body, settled.body);
    settle_chat(&worker, &free, json!({"input": 2, "output": 0})).await.problem(409, "already_settled");
    let after = service.books().await;
    assert_eq!((&after.periods, &after.journal), (&before.periods, &before.journal));
    // Also where available is below zero.
    settle_chat(&worker, &all, json!({"input": 40000, "output": 0})).await.expect(200);
    worker.reserve("free-2", chat(json!(0), json!(0))).await.expect(201);
    service.books().await;
}
