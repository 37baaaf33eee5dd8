//! Where the ledger admits every call: usage is what its calls come to, and an
//! attempt cannot spend what is not admitted.

use serde_json::json;

use super::Stage;
use super::verbs::{
    Verb, admit, admit_extending, cancel, close, close_call, extend, fence, force, not_sent, renew, repeat, settle,
    settle_call, settle_calls, take_over, unknown,
};

/// A job of 40, of which one call took 5; call `a` of 10 is in flight.
async fn started() -> (Stage, String) {
    let mut stage = Stage::new().await;
    let token = stage.reserve("bulk", 40).await;
    stage.done(admit("start", &token, "s", 6)).await;
    stage.done(settle_call("start", &token, "s", 5)).await;
    stage.done(admit("start", &token, "a", 10)).await;
    (stage, token)
}

/// What may become of call `a`.
fn ends_of_a(token: &str) -> Vec<Verb> {
    vec![
        settle_call("a-10", token, "a", 10),
        settle_call("a-14", token, "a", 14),
        unknown("a-unknown", "a"),
        not_sent("a-not-sent", token, "a"),
        close_call("a-closed-9", "a", 9),
    ]
}

#[tokio::test]
async fn on_an_active_job_of_calls() {
    let (stage, token) = started().await;
    let mut verbs = ends_of_a(&token);
    verbs.extend([
        settle_call("a-50", &token, "a", 50),
        settle_call("b-20", &token, "b", 20),
        admit("admit-a-10", &token, "a", 10),
        admit("admit-a-11", &token, "a", 11),
        admit("admit-b-20", &token, "b", 20),
        admit("admit-b-22", &token, "b", 22),
        admit("admit-c-20", &token, "c", 20),
        admit_extending("extend-for-d", &token, "d", 35),
        admit_extending("extend-for-e", &token, "e", 36),
        settle_calls("settle", &token),
        settle("settle-12", &token, 12),
        extend("extend-50", &token, 50),
        extend("extend-60", &token, 60),
        renew("renew", &token),
        cancel(),
        fence("fence", 1, json!({})),
        force("force-2", 1, "w-2", json!({})),
        force("force-3", 1, "w-3", json!({})),
        close("close-22", 22),
        close("close-3", 3),
        repeat("bulk", 40),
    ]);
    stage.every_two(&verbs).await;
}

#[tokio::test]
async fn on_an_overdue_job_of_calls() {
    let (stage, token) = started().await;
    stage.later().await;
    stage
        .every_two(&[
            settle_call("a-14", &token, "a", 14),
            not_sent("a-not-sent", &token, "a"),
            unknown("a-unknown", "a"),
            admit("admit-b-20", &token, "b", 20),
            admit_extending("extend-for-d", &token, "d", 35),
            settle_calls("settle", &token),
            extend("extend-50", &token, 50),
            renew("renew", &token),
            cancel(),
            fence("fence", 1, json!({})),
            take_over("take-2", 1, "w-2", json!({})),
            take_over("take-3", 1, "w-3", json!({})),
            take_over("take-4-stating", 1, "w-4", json!({"outstanding": 5})),
            close("close-22", 22),
            repeat("bulk", 40),
        ])
        .await;
}

/// Call `u` of 6 is unknown, call `e` of 7 of the first attempt and call `a` of 8 of
/// the second one are in flight.
#[tokio::test]
async fn on_a_job_with_an_unknown_call_and_one_of_an_earlier_attempt() {
    let mut stage = Stage::new().await;
    let first = stage.reserve("bulk", 40).await;
    stage.done(admit("start", &first, "u", 6)).await;
    stage.done(unknown("start", "u")).await;
    stage.done(admit("start", &first, "e", 7)).await;
    let second = stage.taken_over(force("start", 1, "w-2", json!({}))).await;
    stage.done(admit("start", &second, "a", 8)).await;
    stage
        .every_two(&[
            settle_call("u-5", &first, "u", 5),
            close_call("u-closed-4", "u", 4),
            settle_call("e-9", &first, "e", 9),
            settle_call("e-7-by-another", &second, "e", 7),
            not_sent("e-not-sent", &first, "e"),
            unknown("e-unknown", "e"),
            settle_call("a-8", &second, "a", 8),
            not_sent("a-not-sent", &second, "a"),
            admit("admit-e-7", &second, "e", 7),
            admit("admit-b-15", &second, "b", 15),
            admit("late-admit-b-15", &first, "b", 15),
            settle_calls("settle", &second),
            settle("late-settle-9", &first, 9),
            extend("extend-50", &second, 50),
            cancel(),
            fence("fence", 2, json!({})),
            take_over("take-2-again", 1, "w-2", json!({})),
            force("force-3", 2, "w-3", json!({})),
            close("close-22", 22),
            repeat("bulk", 40),
        ])
        .await;
}

#[tokio::test]
async fn on_a_cancelled_job_of_calls() {
    let (mut stage, token) = started().await;
    stage.done(cancel()).await;
    let mut verbs = ends_of_a(&token);
    verbs.extend([
        admit("admit-a-10", &token, "a", 10),
        admit("admit-b-20", &token, "b", 20),
        settle_calls("settle", &token),
        settle("settle-12", &token, 12),
        extend("extend-50", &token, 50),
        renew("renew", &token),
        cancel(),
        fence("fence", 1, json!({})),
        force("force-2", 1, "w-2", json!({})),
        close("close-22", 22),
        repeat("bulk", 40),
    ]);
    stage.every_two(&verbs).await;
}

#[tokio::test]
async fn on_a_fenced_job_of_calls() {
    let (mut stage, token) = started().await;
    stage.done(fence("start", 1, json!({}))).await;
    let mut verbs = ends_of_a(&token);
    verbs.extend([
        settle_call("a-0", &token, "a", 0),
        admit("admit-a-10", &token, "a", 10),
        admit("admit-b-5", &token, "b", 5),
        settle_calls("settle", &token),
        settle("settle-12", &token, 12),
        renew("renew", &token),
        cancel(),
        fence("fence", 1, json!({})),
        force("force-2", 1, "w-2", json!({})),
        close("close-22", 22),
        repeat("bulk", 40),
    ]);
    stage.every_two(&verbs).await;
}
