//! Which attempts this client has handed out, and what the service has yet to be
//! told of them.
//!
//! An attempt belongs to a holder, and a holder is a process: a job that is
//! delivered to the same process twice gets the same attempt twice. Both would pay
//! for the same calls, so only one of them at a time gets a [`Job`](crate::Job).
//! What one of them could not tell is kept here, where the next one finds it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::view::Reservation;

/// An attempt: its reservation and its number.
pub(crate) type AttemptId = (String, u32);

/// What is kept of an attempt.
#[derive(Default)]
struct Holding {
    /// A job works on it.
    live: bool,
    /// No job ever will again.
    over: bool,
    /// Calls whose admission was asked for and never answered: they may be
    /// admitted, and nothing has been paid for them.
    unanswered: BTreeSet<String>,
    /// How calls ended that the service does not know of yet.
    untold: BTreeMap<String, Untold>,
}

/// How a call ended that the service does not know of yet.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Untold {
    /// What is sent.
    pub(crate) body: Value,
    /// Whether the call is only given up, and was perhaps never admitted.
    pub(crate) withdrawn: bool,
}

/// What taking an attempt found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Nobody in this process had it before.
    First,
    /// A job of this process had it, and may have made calls.
    Again,
    /// A job of this process has it.
    Busy,
}

/// The attempts that were handed out, each until it is known that no job will work
/// on it again and that the service has been told everything.
#[derive(Default)]
pub(crate) struct Held(Mutex<BTreeMap<AttemptId, Holding>>);

impl Held {
    /// Takes an attempt for a job, unless it is busy.
    pub(crate) fn take(&self, attempt: &AttemptId) -> Taken {
        let mut held = lock(&self.0);
        match held.get_mut(attempt) {
            Some(holding) if holding.live => Taken::Busy,
            Some(holding) => {
                holding.live = true;
                Taken::Again
            }
            None => {
                held.insert(attempt.clone(), Holding { live: true, ..Holding::default() });
                Taken::First
            }
        }
    }

    /// No job works on the attempt any more.
    pub(crate) fn give_back(&self, attempt: &AttemptId) {
        self.change(attempt, |holding| holding.live = false);
    }

    /// No job will ever work on the attempt again.
    pub(crate) fn end(&self, attempt: &AttemptId) {
        self.change(attempt, |holding| holding.over = true);
    }

    /// Learns which attempts are over from a reservation that was shown.
    pub(crate) fn saw(&self, reservation: &Reservation) {
        let current = reservation.attempt.as_ref().map_or(0, |attempt| attempt.number);
        let over = if reservation.state.is_over() { u32::MAX } else { current };
        let of = (reservation.id.clone(), 0)..(reservation.id.clone(), over);
        let attempts: Vec<AttemptId> = lock(&self.0).range(of).map(|(attempt, _)| attempt.clone()).collect();
        for attempt in &attempts {
            self.end(attempt);
        }
    }

    /// Whether a job works on the attempt, or left something to be told.
    pub(crate) fn is_unfinished(&self, attempt: &AttemptId) -> bool {
        lock(&self.0).get(attempt).is_some_and(|holding| holding.live || !holding.untold.is_empty())
    }

    /// A call's admission was asked for and never answered.
    pub(crate) fn unanswered(&self, attempt: &AttemptId, call: &str) {
        self.change(attempt, |holding| holding.unanswered.insert(call.to_owned()));
    }

    /// A call's admission is about to be asked for: whether it was before, without
    /// an answer. None if its end has yet to be told.
    pub(crate) fn asks(&self, attempt: &AttemptId, call: &str) -> Option<bool> {
        let asks =
            |holding: &mut Holding| (!holding.untold.contains_key(call)).then(|| holding.unanswered.remove(call));
        self.change(attempt, asks).unwrap_or(Some(false))
    }

    /// Gives up what may have been admitted without an answer, but for what is in use.
    pub(crate) fn withdraw(&self, attempt: &AttemptId, in_use: impl Fn(&str) -> bool, body: &Value) {
        self.change(attempt, |holding| {
            let given_up = std::mem::take(&mut holding.unanswered).into_iter().filter(|call| !in_use(call));
            holding.untold.extend(given_up.map(|call| (call, Untold { body: body.clone(), withdrawn: true })));
        });
    }

    /// Keeps how a call ended, even if its attempt is over, until the service knows.
    pub(crate) fn remember(&self, attempt: &AttemptId, call: &str, body: Value) -> Untold {
        let untold = Untold { body, withdrawn: false };
        let over = || Holding { over: true, ..Holding::default() };
        let mut held = lock(&self.0);
        let holding = held.entry(attempt.clone()).or_insert_with(over);
        holding.untold.insert(call.to_owned(), untold.clone());
        untold
    }

    /// How a call ended, if the service does not know.
    pub(crate) fn untold(&self, attempt: &AttemptId, call: &str) -> Option<Untold> {
        lock(&self.0).get(attempt)?.untold.get(call).cloned()
    }

    /// The calls of an attempt whose end the service does not know.
    pub(crate) fn untold_calls(&self, attempt: &AttemptId) -> Vec<String> {
        lock(&self.0).get(attempt).map(|holding| holding.untold.keys().cloned().collect()).unwrap_or_default()
    }

    /// The attempts that have such calls.
    pub(crate) fn untold_attempts(&self) -> Vec<AttemptId> {
        let held = lock(&self.0);
        held.iter().filter(|(_, holding)| !holding.untold.is_empty()).map(|(attempt, _)| attempt.clone()).collect()
    }

    /// The service was told how a call ended. That is forgotten, unless something
    /// else has been remembered meanwhile.
    pub(crate) fn told(&self, attempt: &AttemptId, call: &str, told: &Untold) {
        self.settle(attempt, call, told, |_| ());
    }

    /// The service would not have it in these words; it is to be told others.
    pub(crate) fn tell_instead(&self, attempt: &AttemptId, call: &str, told: &Untold, body: Value) {
        let untold = Untold { body, ..*told };
        self.settle(attempt, call, told, |holding| {
            holding.untold.insert(call.to_owned(), untold);
        });
    }

    /// A call that was given up is not there yet. It may still come.
    pub(crate) fn not_there(&self, attempt: &AttemptId, call: &str, told: &Untold) {
        self.settle(attempt, call, told, |holding| {
            holding.unanswered.insert(call.to_owned());
        });
    }

    fn settle(&self, attempt: &AttemptId, call: &str, told: &Untold, then: impl FnOnce(&mut Holding)) {
        self.change(attempt, |holding| {
            if holding.untold.get(call) == Some(told) {
                holding.untold.remove(call);
                then(holding);
            }
        });
    }

    /// Changes what is kept of an attempt, and forgets it when nobody needs it.
    fn change<T>(&self, attempt: &AttemptId, change: impl FnOnce(&mut Holding) -> T) -> Option<T> {
        let mut held = lock(&self.0);
        let holding = held.get_mut(attempt)?;
        let changed = change(holding);
        if holding.over && !holding.live && holding.untold.is_empty() {
            held.remove(attempt);
        }
        Some(changed)
    }
}

/// Locks, whatever happened to whoever held the lock: what is locked in this
/// library is whole after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attempt(number: u32) -> AttemptId {
        ("r".to_owned(), number)
    }

    fn shown(state: &str, number: u32) -> Reservation {
        serde_json::from_value(json!({
            "id": "r", "account": "a", "operation": "bulk", "provider": "p", "enforcement": "calls", "unit": "u",
            "state": state, "estimate": "1", "ceiling": "1", "settled": "0", "in_flight": "0", "unknown": "0",
            "stated_outstanding": "0", "overrun": "0", "charged": "1", "version": 1, "reference": null,
            "attempt": { "number": number, "holder": "h", "lease_expires_at": "", "overdue": false },
        }))
        .unwrap()
    }

    #[test]
    fn an_attempt_is_held_once_at_a_time() {
        let held = Held::default();
        assert_eq!(held.take(&attempt(1)), Taken::First);
        assert_eq!(held.take(&attempt(1)), Taken::Busy);
        assert_eq!(held.take(&attempt(2)), Taken::First);
        held.give_back(&attempt(1));
        assert_eq!(held.take(&attempt(1)), Taken::Again);
    }

    #[test]
    fn what_is_over_is_forgotten_once_all_is_told() {
        let held = Held::default();
        for number in [1, 2] {
            held.take(&attempt(number));
            held.give_back(&attempt(number));
        }
        held.unanswered(&attempt(1), "c-1");
        let untold = held.remember(&attempt(1), "c-2", json!(1));
        held.saw(&shown("active", 2));
        let kept = |held: &Held| lock(&held.0).keys().map(|attempt| attempt.1).collect::<Vec<_>>();
        assert_eq!(kept(&held), [1, 2]);
        held.told(&attempt(1), "c-2", &untold);
        assert_eq!(kept(&held), [2]);
        held.saw(&shown("settled", 2));
        assert_eq!(kept(&held), [] as [u32; 0]);
        // Paid for by a task that outlived its job.
        let late = held.remember(&attempt(2), "c-3", json!(2));
        assert_eq!(held.untold_attempts(), [attempt(2)]);
        held.told(&attempt(2), "c-3", &late);
        assert_eq!(kept(&held), [] as [u32; 0]);
    }

    #[test]
    fn what_is_said_meanwhile_is_not_forgotten() {
        let held = Held::default();
        held.take(&attempt(1));
        let first = held.remember(&attempt(1), "c-1", json!(1));
        let second = held.remember(&attempt(1), "c-1", json!(2));
        held.told(&attempt(1), "c-1", &first);
        assert_eq!(held.untold(&attempt(1), "c-1"), Some(second));
    }

    #[test]
    fn what_is_given_up_is_not_asked_for_until_the_service_has_said_that_it_is_not_there() {
        let held = Held::default();
        held.take(&attempt(1));
        for call in ["c-1", "c-2"] {
            held.unanswered(&attempt(1), call);
        }
        held.withdraw(&attempt(1), |call| call == "c-2", &json!(0));
        assert_eq!(held.untold_calls(&attempt(1)), ["c-1"]);
        assert_eq!(held.asks(&attempt(1), "c-1"), None);
        let untold = held.untold(&attempt(1), "c-1").unwrap();
        held.not_there(&attempt(1), "c-1", &untold);
        assert_eq!(held.asks(&attempt(1), "c-1"), Some(true));
        assert_eq!(held.asks(&attempt(1), "c-1"), Some(false));
    }
}
