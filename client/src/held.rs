//! Which attempts this client has handed out.
//!
//! An attempt belongs to a holder, and a holder is a process: a job that is
//! delivered to the same process twice gets the same attempt twice. Both would pay
//! for the same calls, so only one of them gets a [`Job`](crate::Job).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An attempt: its reservation and its number.
pub(crate) type AttemptId = (String, u32);

enum Holding {
    /// A job works on it.
    Live,
    /// A job worked on it and was dropped before its end. What calls it made is
    /// forgotten here.
    Abandoned,
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

/// The attempts that were handed out and have not ended.
#[derive(Default)]
pub(crate) struct Held(Mutex<HashMap<AttemptId, Holding>>);

impl Held {
    /// Takes an attempt for a job, unless it is busy.
    pub(crate) fn take(&self, attempt: AttemptId) -> Taken {
        let mut held = lock(&self.0);
        match held.get(&attempt) {
            Some(Holding::Live) => return Taken::Busy,
            Some(Holding::Abandoned) => {
                held.insert(attempt, Holding::Live);
                return Taken::Again;
            }
            None => {}
        }
        held.insert(attempt, Holding::Live);
        Taken::First
    }

    /// Gives an attempt back. One that has ended for good need not be remembered.
    pub(crate) fn give_back(&self, attempt: AttemptId, ended: bool) {
        let mut held = lock(&self.0);
        if ended {
            held.remove(&attempt);
        } else {
            held.insert(attempt, Holding::Abandoned);
        }
    }
}

/// Locks, whatever happened to whoever held the lock: what is locked in this
/// library is whole after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_held_once_at_a_time() {
        let held = Held::default();
        let attempt = || ("r".to_owned(), 1);
        assert_eq!(held.take(attempt()), Taken::First);
        assert_eq!(held.take(attempt()), Taken::Busy);
        assert_eq!(held.take(("r".to_owned(), 2)), Taken::First);
        held.give_back(attempt(), false);
        assert_eq!(held.take(attempt()), Taken::Again);
        held.give_back(attempt(), true);
        assert_eq!(held.take(attempt()), Taken::First);
    }
}
