//! The worked numbers of Northstar, through HTTP, to the unit.

use serde_json::json;

use crate::support::{Client, NORTHSTAR, Service};

/// settled, reserved, liability, available.
async fn daily(client: &Client) -> [String; 4] {
    client.balance("northstar", "daily", None).await
}

#[tokio::test]
async fn a_day_of_work() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;

    // 0: settled earlier that day.
    let earlier = worker.reserve_bulk("earlier", "40").await.expect(201);
    worker.settle(&earlier, "40").await.expect(200);
    assert_eq!(daily(&worker).await, ["40", "0", "0", "60"]);

    // 1: one large export.
    let large = worker.reserve_bulk("large", "30").await.expect(201);
    assert_eq!(daily(&worker).await, ["40", "30", "0", "30"]);

    // 2: another member's three formats at 12 are refused.
    let three = json!({"operation": "export", "quantities": {"formats": 3, "weight": 12}, "member": "ben"});
    let refused = worker.reserve("three", three.clone()).await.problem(429, "budget_exhausted");
    let breach = &refused.body["breaches"][0];
    assert_eq!(
        (&breach["budget"], &breach["requested"], &breach["available"]),
        (&json!("daily"), &json!("36"), &json!("30"))
    );
    assert_eq!(refused.body["retry"], "after_release");
    assert_eq!(daily(&worker).await, ["40", "30", "0", "30"]);

    // 3: the large export settles at 24.
    let settled = worker.settle(&large, "24").await.expect(200);
    assert_eq!(daily(&worker).await, ["64", "0", "0", "36"]);

    // 4: the same settlement again gives the same answer.
    let again = worker.settle(&large, "24.000").await.expect(200);
    assert_eq!(again.body, settled.body);
    assert_eq!(daily(&worker).await, ["64", "0", "0", "36"]);

    // 5: at 25 it is a conflict that shows 24.
    let conflict = worker.settle(&large, "25").await.problem(409, "already_settled");
    assert_eq!((conflict.text("settled"), &conflict.body["reservation"]["settled"]), ("24", &json!("24")));
    assert_eq!(daily(&worker).await, ["64", "0", "0", "36"]);

    // 6: exactly what is available is admitted; the refusal left the key unused.
    worker.reserve("three", three).await.expect(201);
    assert_eq!(daily(&worker).await, ["64", "36", "0", "0"]);

    // 7: five more are not.
    worker.reserve_bulk("five", "5").await.problem(429, "budget_exhausted");
    assert_eq!(daily(&worker).await, ["64", "36", "0", "0"]);

    let books = service.books().await;
    assert_eq!(
        books.journal,
        [
            "daily 1 period_opened granted>available 100",
            "daily 2 reserve available>reserved 40",
            "daily 3 final_settlement reserved>settled 40",
            "daily 4 reserve available>reserved 30",
            "daily 5 final_settlement reserved>settled 24",
            "daily 6 final_settlement reserved>available 6",
            "daily 7 reserve available>reserved 36",
        ]
    );
}

#[tokio::test]
async fn a_ceiling_is_raised_before_it_is_crossed_or_not_at_all() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    let job = worker.reserve("job", json!({"operation": "stream", "units": 12, "holder": "w-1"})).await.expect(201);
    worker.progress(&job, "10").await.expect(200);
    assert_eq!(daily(&worker).await, ["10", "2", "0", "88"]);

    // Only 2 are available to others and to itself: 15 needs 3.
    let other = worker.reserve_bulk("other", "86").await.expect(201);
    let refused = worker.extend(&job, "15").await.problem(429, "budget_exhausted");
    assert_eq!(
        (&refused.body["breaches"][0]["requested"], refused.body["retry"].as_str()),
        (&json!("3"), Some("after_release"))
    );
    assert_eq!(daily(&worker).await, ["10", "88", "0", "2"]);
    let unchanged = worker.get(&format!("/v1/reservations/{}", job.id())).await.expect(200);
    assert_eq!((unchanged.text("ceiling"), &unchanged.body["version"]), ("12", &json!(2)));

    // When 3 are, it is admitted, and repeating it is harmless.
    worker.settle(&other, "85").await.expect(200);
    let raised = worker.extend(&job, "15").await.expect(200);
    assert_eq!((raised.text("ceiling"), raised.text("charged")), ("15", "15"));
    let again = worker.extend(&job, "15").await.expect(200);
    assert_eq!(again.body, raised.body);
    assert_eq!(worker.extend(&job, "4").await.expect(200).body, raised.body);
    assert_eq!(daily(&worker).await, ["95", "5", "0", "0"]);
    worker.settle(&job, "15").await.expect(200);
    assert_eq!(daily(&worker).await, ["100", "0", "0", "0"]);
    service.books().await;
}

#[tokio::test]
async fn midnight_belongs_to_the_old_day() {
    let service = Service::with_policy(NORTHSTAR).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-03T23:59:30-05:00").await;
    let done = worker.reserve_bulk("done", "60").await.expect(201);
    worker.settle(&done, "60").await.expect(200);
    let running = worker.reserve_bulk("running", "30").await.expect(201);

    service.database.set_clock("2026-03-04T00:00:00-05:00").await;
    let old = Some("2026-03-04T04:59:00Z");
    assert_eq!(daily(&worker).await, ["0", "0", "0", "100"]);
    worker.extend(&running, "35").await.expect(200);
    assert_eq!(worker.balance("northstar", "daily", old).await, ["60", "35", "0", "5"]);
    worker.settle(&running, "33").await.expect(200);
    assert_eq!(worker.balance("northstar", "daily", old).await, ["93", "0", "0", "7"]);
    assert_eq!(daily(&worker).await, ["0", "0", "0", "100"]);
    let tomorrow = worker.reserve_bulk("tomorrow", "100").await.expect(201);
    assert_eq!(tomorrow.body["budgets"][0]["period_starts_at"], "2026-03-04T05:00:00Z");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 7 0 0 93", "northstar daily : 100 0 100 0 0"]);
}

#[tokio::test]
async fn midnight_with_carry_forward() {
    let policy = NORTHSTAR.replace("period: day,", "period: day, rollover: carry_forward,");
    let service = Service::with_policy(&policy).await;
    let worker = service.worker(&["northstar"]).await;
    service.database.set_clock("2026-03-03T23:59:30-05:00").await;
    let done = worker.reserve_bulk("done", "60").await.expect(201);
    worker.settle(&done, "60").await.expect(200);
    let running = worker.reserve_bulk("running", "30").await.expect(201);

    // The new day opens with 70 and does not change when the old job extends.
    service.database.set_clock("2026-03-04T00:00:00-05:00").await;
    assert_eq!(daily(&worker).await, ["0", "0", "0", "70"]);
    worker.reserve_bulk("too-much", "71").await.problem(429, "budget_exhausted");
    let one = worker.reserve_bulk("one", "1").await.expect(201);
    worker.settle(&one, "0").await.expect(200);
    worker.extend(&running, "35").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "0", "0", "70"]);

    // It has 100 again when the old job has settled.
    worker.settle(&running, "33").await.expect(200);
    assert_eq!(daily(&worker).await, ["0", "0", "0", "100"]);
    worker.reserve_bulk("all", "100").await.expect(201);
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar daily : 100 7 0 0 93", "northstar daily : 100 0 100 0 0"]);
    assert_eq!(books.entries_of("carried_in"), ["daily 2 carried_in available>granted 30"]);
    assert_eq!(books.entries_of("given_back").len(), 1);
}

#[tokio::test]
async fn admission_arithmetic() {
    let service = Service::with_policy(
        "
providers: { rows: { unit: row, enforcement: worker } }
operations:
  scan:
    provider: rows
    quantities: { accounts: { min: 1, max: 10 }, rows: { min: 1, max: 100 } }
    cost: [ { rate: 1, times: [accounts, rows] } ]
    max_units: 500
plans: { p: { budgets: { total: { unit: row, limit: 100000, period: total } } } }
accounts: { northstar: { plan: p } }
",
    )
    .await;
    let worker = service.worker(&["northstar"]).await;
    let scan =
        |accounts: u32, rows: u32| json!({"operation": "scan", "quantities": {"accounts": accounts, "rows": rows}});
    // 500 is inclusive.
    assert_eq!(worker.reserve("a", scan(5, 100)).await.expect(201).text("estimate"), "500");
    let refused = worker.reserve("b", scan(6, 100)).await.problem(400, "too_expensive");
    assert_eq!((refused.text("units"), refused.text("max_units"), refused.text("retry")), ("600", "500", "never"));
    let out_of_range = worker.reserve("c", scan(1, 101)).await.problem(400, "invalid_request");
    assert_eq!(out_of_range.body["errors"][0]["field"], "quantities.rows");
    let padding = "x".repeat(17 * 1024);
    worker.reserve("d", json!({"operation": "scan", "reference": padding})).await.problem(413, "body_too_large");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar total : 100000 99500 500 0 0"]);
    assert_eq!(books.reservations, ["a active 1 500 0 500 0"]);
}
