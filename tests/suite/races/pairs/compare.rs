//! What came of two requests, in a form in which two runs on two copies can be
//! compared.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::Answer;

/// What came of two requests: both answers, in a fixed order, and every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome(Value);

impl Outcome {
    /// What there is without any request.
    pub fn untouched(rows: &Value, account: &str, tokens: &[String]) -> Self {
        Self::masked(json!({"rows": rows}), account, tokens)
    }

    /// Without what differs between copies: ids, the account's name, and the tokens
    /// that were made by these requests, which are numbered as they are met.
    pub fn new(answers: [&Answer; 2], rows: &Value, account: &str, tokens: &[String]) -> Self {
        let answers = answers.map(|answer| json!({"status": answer.status.as_u16(), "body": answer.body}));
        Self::masked(json!({"answers": answers, "rows": rows}), account, tokens)
    }

    fn masked(mut outcome: Value, account: &str, tokens: &[String]) -> Self {
        Mask { account, tokens: tokens.to_vec() }.apply("", &mut outcome);
        Self(outcome)
    }

    /// The answers as `status code`, for messages.
    pub fn summary(&self) -> String {
        let answer = |n: usize| {
            let answer = &self.0["answers"][n];
            format!("{} {}", answer["status"], answer["body"]["code"].as_str().unwrap_or("-"))
        };
        format!("{}, {}", answer(0), answer(1))
    }

    /// Where another differs from this one, one line for each place.
    pub fn differences(&self, other: &Self) -> String {
        let mut lines = Vec::new();
        differences("", &self.0, &other.0, &mut lines);
        lines.join("\n")
    }
}

struct Mask<'a> {
    account: &'a str,
    tokens: Vec<String>,
}

impl Mask<'_> {
    fn apply(&mut self, field: &str, value: &mut Value) {
        match value {
            Value::Object(members) => members.iter_mut().for_each(|(name, value)| self.apply(name, value)),
            Value::Array(elements) => elements.iter_mut().for_each(|value| self.apply(field, value)),
            Value::String(text) => {
                if text == self.account {
                    *text = "the account".to_owned();
                } else if Uuid::parse_str(text).is_ok() {
                    *text = "an id".to_owned();
                } else if ["token", "attempt_token", "superseded_tokens"].contains(&field) {
                    let known = self.tokens.iter().position(|known| known == text);
                    let number = known.unwrap_or(self.tokens.len());
                    if known.is_none() {
                        self.tokens.push(text.clone());
                    }
                    *text = format!("token {number}");
                }
            }
            _ => {}
        }
    }
}

fn differences(place: &str, one: &Value, other: &Value, lines: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            for (name, value) in a {
                differences(&format!("{place}.{name}"), value, b.get(name).unwrap_or(&Value::Null), lines);
            }
            for (name, value) in b.iter().filter(|(name, _)| !a.contains_key(*name)) {
                differences(&format!("{place}.{name}"), &Value::Null, value, lines);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for n in 0..a.len().max(b.len()) {
                let at = |values: &[Value]| values.get(n).cloned().unwrap_or(Value::Null);
                differences(&format!("{place}[{n}]"), &at(a), &at(b), lines);
            }
        }
        _ if one == other => {}
        _ => lines.push(format!("    {place}: {one} or {other}")),
    }
}
