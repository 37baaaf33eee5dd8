//! Two workers, one job, where the ledger cannot stop the first.

use serde_json::json;

use crate::support::Northstar;
use crate::support::verbs::{stand, stopped};

#[tokio::test]
async fn what_the_first_may_have_spent_stays_charged_until_finance_knows() {
    let day = Northstar::open().await;
    let first = day.stream("job", "50").await;
    assert_eq!(day.daily().await, ["0", "50", "0", "50"]);

    // The first is stopped, its lease has run out; it may have spent 20.
    day.clock("12:01:00").await;
    let evidence = json!({"evidence": {"kind": "process_stopped", "detail": "exited with 137"}, "outstanding": "20"});
    let second = day.worker.take_over(&first, 1, "w-2", evidence).await.expect(201);
    assert_eq!(stand(&second), "active: 50 0 0 0 20, 50, 2");
    assert_eq!(day.daily().await, ["0", "30", "20", "50"]);

    // The second settles its own work at 25.
    let settled = day.worker.settle(&second, "25").await.expect(200);
    assert_eq!(stand(&settled), "fenced: 50 25 0 0 20, 45, 3");
    assert_eq!(day.daily().await, ["25", "0", "20", "55"]);

    // The provider's export shows that the first one spent 12.
    let closed = day.finance.close(&first, "37", "export of the provider, line 4711").await.expect(200);
    assert_eq!(stand(&closed), "settled: 50 37 0 0 0, 37, 4");
    assert_eq!(day.daily().await, ["37", "0", "0", "63"]);
    assert_eq!(
        day.books().await.moves(),
        [
            "reserve available>reserved 50",
            "takeover reserved>liability 20",
            "final_settlement reserved>settled 25",
            "final_settlement reserved>available 5",
            "finance_settlement liability>settled 12",
            "finance_settlement liability>available 8",
        ]
    );
}

#[tokio::test]
async fn by_its_progress_the_first_has_told_a_part_of_it() {
    let day = Northstar::open().await;
    let first = day.stream("job", "50").await;
    day.worker.progress(&first, "15").await.expect(200);
    day.clock("12:01:00").await;
    // 20 in total, what it reported included.
    let second = day.worker.take_over(&first, 1, "w-2", stopped(json!({"outstanding": 20}))).await.expect(201);
    assert_eq!(stand(&second), "active: 50 15 0 0 5, 50, 3");
    assert_eq!(day.daily().await, ["15", "30", "5", "50"]);
    // What the first still reports is late: it changes no balance.
    day.worker.settle(&first, "18").await.problem(409, "stale_attempt");
    assert_eq!(stand(&day.worker.settle(&second, "25").await.expect(200)), "fenced: 50 40 0 0 5, 45, 4");
    assert_eq!(day.daily().await, ["40", "0", "5", "55"]);
    day.finance.close(&first, "43", "the first spent 18").await.expect(200);
    assert_eq!(day.daily().await, ["43", "0", "0", "57"]);
    let late = day.finance.get("/v1/late-usage").await.expect(200);
    assert_eq!((&late.body["items"][0]["units"], &late.body["items"][0]["attempt"]), (&json!("18"), &json!(1)));
    day.books().await;
}
