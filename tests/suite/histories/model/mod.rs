//! The rules as a state machine in memory. It is written from docs/RULES.md and
//! the description of the API, not from the service: single-threaded, with no
//! thought of races, and with every amount where one can see it.

mod attempts;
mod calls;
pub mod job;
mod settling;
mod show;
pub mod units;
pub mod world;

use serde_json::{Value, json};

use units::Units;

/// What is answered: the parts of it that the rules fix.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
}

impl Answer {
    pub fn new(status: u16, body: Value) -> Self {
        Self { status, body }
    }

    pub fn status_and_code(&self) -> String {
        match self.body["code"].as_str() {
            Some(code) => format!("{} {code}", self.status),
            None => self.status.to_string(),
        }
    }
}

/// Stands in an expected answer for a member that must not be there.
pub const ABSENT: &str = "(absent)";
/// Begins what an expected answer cannot know, such as a token: what is first
/// seen in its place must be there ever after, and nowhere else.
pub const UNKNOWN: char = '§';

/// One budget that a reservation is charged to, as a decision sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Room {
    pub budget: &'static str,
    pub enforces: bool,
    pub limit: Units,
    pub available: Units,
    /// reserved + liability.
    pub held: Units,
    pub carried: Units,
    pub starts_at: i64,
    pub ends_at: i64,
}

/// Where and when a verb is decided.
#[derive(Debug, Clone)]
pub struct Place {
    /// Seconds since 1970, by the database's clock.
    pub now: i64,
    /// What one job of the operation may cost.
    pub max_units: Units,
    /// Whether the operation has been retired.
    pub retired: bool,
    /// The budgets: the account's, then the pool.
    pub rooms: Vec<Room>,
}

/// A reason to say no, with the members that go with it.
#[derive(Debug, Clone, PartialEq)]
pub struct No {
    pub status: u16,
    pub code: &'static str,
    pub retry: &'static str,
    /// Absent where a retry names no time.
    pub retry_after: Option<i64>,
    pub members: Value,
}

impl No {
    pub fn conflict(code: &'static str) -> Self {
        Self::because(409, code, json!({}))
    }

    pub fn invalid(field: &str) -> Self {
        Self::because(400, "invalid_request", json!({"errors": [{"field": field}]}))
    }

    pub fn because(status: u16, code: &'static str, members: Value) -> Self {
        Self { status, code, retry: "never", retry_after: None, members }
    }

    /// The answer, with the reservation if it is known.
    pub fn answer(self, reservation: Option<Value>) -> Answer {
        let mut body = self.members;
        body["status"] = json!(self.status);
        body["code"] = json!(self.code);
        body["retry"] = json!(self.retry);
        body["retry_after_seconds"] = self.retry_after.map_or(json!(ABSENT), |seconds| json!(seconds));
        if let Some(reservation) = reservation {
            body["reservation"] = reservation;
        }
        Answer::new(self.status, body)
    }
}

impl Place {
    /// Whether every enforcing budget has room for so many more units.
    pub fn admits(&self, units: Units) -> Result<(), Box<No>> {
        let refusing: Vec<&Room> =
            self.enforcing().filter(|room| units > Units::ZERO && units > room.available).collect();
        if refusing.is_empty() {
            return Ok(());
        }
        let breaches: Vec<Value> = refusing
            .iter()
            .map(|room| {
                json!({"budget": room.budget, "requested": units.to_string(),
                       "available": room.available.to_string(), "resets_at": time(room.ends_at)})
            })
            .collect();
        let retry = refusing.iter().map(|room| room.can_be_retried(units)).max().unwrap();
        let last_end = refusing.iter().map(|room| room.ends_at).max().unwrap();
        Err(Box::new(No {
            retry: ["after_release", "after_reset", "never"][retry],
            retry_after: (retry < 2).then_some(last_end - self.now),
            ..No::because(429, "budget_exhausted", json!({"breaches": breaches}))
        }))
    }

    /// Whether so many units in total could ever be admitted: by the operation's
    /// bound, and by what a whole period allows.
    pub fn could_ever_admit(&self, units: Units) -> Result<(), Box<No>> {
        let too_expensive = |most: Units| {
            let members = json!({"units": units.to_string(), "max_units": most.to_string()});
            Err(Box::new(No::because(400, "too_expensive", members)))
        };
        if units > self.max_units {
            return too_expensive(self.max_units);
        }
        // A limit of zero is a frozen account, not a bound on size.
        let limits = || self.enforcing().map(|room| room.limit).filter(|limit| *limit > Units::ZERO);
        if limits().any(|limit| units > limit) {
            return too_expensive(limits().min().unwrap());
        }
        Ok(())
    }

    fn enforcing(&self) -> impl Iterator<Item = &Room> {
        self.rooms.iter().filter(|room| room.enforces)
    }
}

impl Room {
    /// 0: live work may give enough back; 1: its period must end; 2: never.
    fn can_be_retried(&self, units: Units) -> usize {
        if self.limit == Units::ZERO {
            2
        } else if self.available + self.held + self.carried >= units {
            0
        } else {
            1
        }
    }
}

/// A time as answers show it.
pub fn time(seconds: i64) -> String {
    let time = chrono::DateTime::from_timestamp(seconds, 0).unwrap();
    time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)
}
