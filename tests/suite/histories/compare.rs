//! What an expected answer and the one that came differ in.

use std::collections::BTreeMap;

use serde_json::Value;

use super::model::{ABSENT, Answer, UNKNOWN};

/// What the service has named by itself: ids and tokens, under the names that
/// the model gives them.
#[derive(Debug, Clone, Default)]
pub struct Names {
    known: BTreeMap<String, String>,
}

impl Names {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.known.get(name).map(String::as_str)
    }

    /// The same without asking: a contradiction shows when answers are compared.
    pub fn learn(&mut self, name: &str, text: &str) {
        let _ = self.stands_for(name, text);
    }

    /// Whether this may stand for the name; from now on only this may, and for
    /// nothing else.
    fn stands_for(&mut self, name: &str, text: &str) -> bool {
        match self.known.get(name) {
            Some(known) => known == text,
            None if self.known.values().any(|known| known == text) => false,
            None => self.known.insert(name.to_owned(), text.to_owned()).is_none(),
        }
    }

    /// The differences between an expected answer and one that came, one a line.
    /// What is only in the latter is no difference.
    pub fn differences(&mut self, expected: &Answer, got: &Answer) -> Vec<String> {
        let mut found = Vec::new();
        if expected.status != got.status {
            found.push(format!("status: expected {}, got {}", expected.status, got.status));
        }
        self.compare("", &expected.body, Some(&got.body), &mut found);
        if found.is_empty() {
            return found;
        }
        // A refusal in the place of an answer differs in everything: its code says it.
        let code = |answer: &Answer| answer.body["code"].as_str().map(str::to_owned);
        if expected.status != got.status || code(expected) != code(got) {
            found.truncate(2);
            found.push(format!("got: {}", got.body));
        }
        found
    }

    fn compare(&mut self, place: &str, expected: &Value, got: Option<&Value>, found: &mut Vec<String>) {
        match (expected, got) {
            (Value::String(text), got) if text == ABSENT => {
                if let Some(got) = got {
                    found.push(format!("{place}: expected nothing, got {got}"));
                }
            }
            (Value::String(text), Some(Value::String(got))) if text.starts_with(UNKNOWN) => {
                if !self.stands_for(text, got) {
                    found.push(format!("{place}: expected the {text}, got {got}"));
                }
            }
            (Value::Object(members), Some(got @ Value::Object(_))) => {
                for (name, expected) in members {
                    self.compare(&format!("{place}.{name}"), expected, got.get(name), found);
                }
            }
            (Value::Array(expected), Some(Value::Array(got))) if expected.len() == got.len() => {
                for (n, (expected, got)) in expected.iter().zip(got).enumerate() {
                    self.compare(&format!("{place}[{n}]"), expected, Some(got), found);
                }
            }
            (expected, Some(got)) if expected == got => {}
            (expected, Some(got)) => found.push(format!("{place}: expected {expected}, got {got}")),
            (expected, None) => found.push(format!("{place}: expected {expected}, got nothing")),
        }
    }
}

/// The differences between two books, both ways.
pub fn book_differences(expected: &Value, got: &Value) -> Vec<String> {
    let mut found = Vec::new();
    both_ways("", expected, got, &mut found);
    found
}

fn both_ways(place: &str, expected: &Value, got: &Value, found: &mut Vec<String>) {
    match (expected, got) {
        (Value::Object(left), Value::Object(right)) => {
            for (name, expected) in left {
                both_ways(&format!("{place}.{name}"), expected, got.get(name).unwrap_or(&Value::Null), found);
            }
            for (name, got) in right.iter().filter(|(name, _)| !left.contains_key(*name)) {
                found.push(format!("{place}.{name}: expected nothing, got {got}"));
            }
        }
        (expected, got) if expected == got => {}
        (expected, got) => found.push(format!("{place}: expected {expected}, got {got}")),
    }
}
