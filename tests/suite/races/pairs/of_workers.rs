//! Where workers call the provider themselves: usage is what they report, and only
//! evidence says that they have stopped.

use serde_json::json;

use super::Stage;
use super::verbs::{Verb, cancel, close, extend, fence, force, progress, renew, repeat, settle, stopped, take_over};

/// A job of 40 that has reported 5.
async fn started() -> (Stage, String) {
    let mut stage = Stage::new().await;
    let token = stage.reserve("stream", 40).await;
    stage.done(progress("start", &token, 5)).await;
    (stage, token)
}

fn settlements(token: &str) -> Vec<Verb> {
    vec![
        settle("settle-30", token, 30),
        settle("settle-50", token, 50),
        progress("progress-12", token, 12),
        progress("progress-20", token, 20),
    ]
}

#[tokio::test]
async fn on_an_active_job_of_a_worker() {
    let (stage, token) = started().await;
    let mut verbs = settlements(&token);
    verbs.extend([
        extend("extend-50", &token, 50),
        extend("extend-52", &token, 52),
        extend("extend-60", &token, 60),
        renew("renew", &token),
        cancel(),
        fence("fence", 1, stopped(None)),
        fence("fence-10", 1, stopped(Some(10))),
        fence("fence-unproven", 1, json!({})),
        take_over("take-2-early", 1, "w-2", stopped(None)),
        force("force-2-of-20", 1, "w-2", stopped(Some(20))),
        force("force-3", 1, "w-3", stopped(None)),
        close("close-22", 22),
        repeat("stream", 40),
    ]);
    stage.every_two(&verbs).await;
}

#[tokio::test]
async fn on_an_overdue_job_of_a_worker() {
    let (stage, token) = started().await;
    stage.later().await;
    stage
        .every_two(&[
            settle("settle-30", &token, 30),
            progress("progress-12", &token, 12),
            extend("extend-50", &token, 50),
            renew("renew", &token),
            cancel(),
            fence("fence-10", 1, stopped(Some(10))),
            take_over("take-2-of-20", 1, "w-2", stopped(Some(20))),
            take_over("take-2-of-30", 1, "w-2", stopped(Some(30))),
            take_over("take-3-of-60", 1, "w-3", stopped(Some(60))),
            take_over("take-4-unproven", 1, "w-4", json!({})),
            close("close-22", 22),
            repeat("stream", 40),
        ])
        .await;
}

#[tokio::test]
async fn on_a_job_that_another_worker_has_taken_over() {
    let (mut stage, first) = started().await;
    let second = stage.taken_over(force("start", 1, "w-2", stopped(Some(15)))).await;
    stage.done(progress("start", &second, 3)).await;
    stage
        .every_two(&[
            settle("settle-20", &second, 20),
            progress("progress-8", &second, 8),
            extend("extend-50", &second, 50),
            settle("late-settle-9", &first, 9),
            progress("late-progress-9", &first, 9),
            renew("late-renew", &first),
            renew("renew", &second),
            cancel(),
            fence("fence-1", 1, stopped(None)),
            fence("fence-2-5", 2, stopped(Some(5))),
            take_over("take-2-again", 1, "w-2", stopped(Some(15))),
            force("force-3", 2, "w-3", stopped(None)),
            close("close-22", 22),
            repeat("stream", 40),
        ])
        .await;
}

#[tokio::test]
async fn on_a_cancelled_job_of_a_worker() {
    let (mut stage, token) = started().await;
    stage.done(cancel()).await;
    let mut verbs = settlements(&token);
    verbs.extend([
        extend("extend-50", &token, 50),
        renew("renew", &token),
        cancel(),
        fence("fence", 1, stopped(None)),
        fence("fence-10", 1, stopped(Some(10))),
        force("force-2", 1, "w-2", stopped(None)),
        close("close-22", 22),
        close("close-3", 3),
        repeat("stream", 40),
    ]);
    stage.every_two(&verbs).await;
}

#[tokio::test]
async fn on_a_fenced_job_of_a_worker() {
    let (mut stage, token) = started().await;
    stage.done(fence("start", 1, stopped(Some(10)))).await;
    stage
        .every_two(&[
            settle("settle-12", &token, 12),
            settle("settle-20", &token, 20),
            progress("progress-8", &token, 8),
            progress("progress-15", &token, 15),
            extend("extend-50", &token, 50),
            renew("renew", &token),
            cancel(),
            fence("fence", 1, stopped(None)),
            fence("fence-4", 1, stopped(Some(4))),
            fence("fence-0", 1, stopped(Some(0))),
            force("force-2", 1, "w-2", stopped(None)),
            close("close-9", 9),
            close("close-3", 3),
            repeat("stream", 40),
        ])
        .await;
}
