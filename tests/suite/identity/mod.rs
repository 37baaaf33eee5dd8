//! The Idempotency-Key is the job's identity within its account: RULES.md,
//! section 3, "Retry identity".

mod later;
mod meeting;
mod same_request;

use serde_json::{Value, json};

use crate::support::Answer;

const THE_PERIOD: &str = "select from budget_period where budget = 'daily' for update";
const NOTHING_RESERVED: [&str; 1] = ["northstar daily : 100 100 0 0 0"];

/// That an answer is a repeat: of the reservation, by its header, with the
/// token or wholly without.
#[track_caller]
fn repeated(answer: Answer, reservation: &Answer, with_token: bool) -> Answer {
    let answer = answer.expect(200);
    assert_eq!(answer.id(), reservation.id());
    assert_eq!(answer.headers["idempotency-replayed"], "true");
    if with_token {
        assert_eq!(answer.token(), reservation.token());
    } else {
        let attempt = answer.body["attempt"].as_object().unwrap();
        assert!(!attempt.contains_key("token"), "absent, not null: {:#}", answer.body);
        assert_eq!(attempt["number"], 1);
    }
    answer
}

fn bulk_of(units: u32) -> Value {
    json!({"operation": "bulk", "units": units, "holder": "w-1"})
}
