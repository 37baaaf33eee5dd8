//! Whose turn it is: an account is in one statement at a time, of all the verbs that
//! take turns, and the verb whose request of the account has waited longest is next.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::model::Name;

/// One of the verbs that take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Verb(usize);

/// Lets a verb look whether somebody waits whom it can send now.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// The turns of all accounts.
#[derive(Default)]
pub(in crate::ledger) struct Turns {
    accounts: Mutex<Accounts>,
    verbs: Mutex<Vec<Wake>>,
}

/// The accounts that are in flight, or that somebody waits for.
#[derive(Default)]
pub(super) struct Accounts {
    turns: HashMap<Name, Turn>,
    arrivals: u64,
}

#[derive(Default)]
struct Turn {
    in_flight: bool,
    /// In the order in which they came.
    waiting: BTreeSet<(u64, Verb)>,
}

impl Turns {
    /// Another verb takes part.
    pub(super) fn take_part(&self, wake: Wake) -> Verb {
        let mut verbs = self.verbs.lock().unwrap_or_else(PoisonError::into_inner);
        verbs.push(wake);
        Verb(verbs.len().saturating_sub(1))
    }

    /// Held while a group is put together. (A verb's own queue is locked before it.)
    pub(super) fn accounts(&self) -> MutexGuard<'_, Accounts> {
        // Nothing between a lock and its release leaves a turn half changed.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a statement of this account if none is in flight and nobody waits for
    /// it.
    pub(super) fn take_if_free(&self, account: &Name) -> bool {
        let mut accounts = self.accounts();
        let free = !accounts.turns.contains_key(account);
        if free {
            accounts.begin(account);
        }
        free
    }

    /// A request comes to wait. Answers its place.
    pub(super) fn arrive(&self, account: &Name, verb: Verb) -> u64 {
        let mut accounts = self.accounts();
        accounts.arrivals += 1;
        let number = accounts.arrivals;
        accounts.turns.entry(account.clone()).or_default().waiting.insert((number, verb));
        number
    }

    /// A statement of these accounts has ended.
    pub(super) fn free(&self, ended: &[Name]) {
        {
            let mut accounts = self.accounts();
            for account in ended {
                if let Some(turn) = accounts.turns.get_mut(account) {
                    turn.in_flight = false;
                }
                accounts.forget_if_idle(account);
            }
        }
        self.wake_next(ended);
    }

    /// Wakes the verbs whose turn it is for these accounts.
    pub(super) fn wake_next(&self, of: &[Name]) {
        let next: BTreeSet<Verb> = {
            let accounts = self.accounts();
            of.iter().filter_map(|account| accounts.next(account)).collect()
        };
        for Verb(verb) in next {
            let wake = self.verbs.lock().unwrap_or_else(PoisonError::into_inner).get(verb).cloned();
            if let Some(wake) = wake {
                wake();
            }
        }
    }
}

impl Accounts {
    /// The verb that may send a statement of this account now.
    fn next(&self, account: &Name) -> Option<Verb> {
        let turn = self.turns.get(account).filter(|turn| !turn.in_flight)?;
        turn.waiting.first().map(|(_, verb)| *verb)
    }

    /// Whether it is this verb's turn.
    pub(super) fn is_next(&self, account: &Name, verb: Verb) -> bool {
        self.next(account) == Some(verb)
    }

    /// A statement of this account begins.
    pub(super) fn begin(&mut self, account: &Name) {
        self.turns.entry(account.clone()).or_default().in_flight = true;
    }

    /// A request waits no more.
    pub(super) fn leave(&mut self, account: &Name, number: u64, verb: Verb) {
        if let Some(turn) = self.turns.get_mut(account) {
            turn.waiting.remove(&(number, verb));
        }
        self.forget_if_idle(account);
    }

    fn forget_if_idle(&mut self, account: &Name) {
        if self.turns.get(account).is_some_and(|turn| !turn.in_flight && turn.waiting.is_empty()) {
            self.turns.remove(account);
        }
    }
}
