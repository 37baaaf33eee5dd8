//! Group commit: requests that wait while a statement is in flight are decided
//! together by the next one. One mechanism for every verb on the busy path.
//!
//! Nobody waits for company: there is no timer, and a request that finds its verb
//! idle is sent at once, alone. Every request gets its own decision, and its answer
//! only after the commit. The statement decides its items in the order in which they
//! came, so that they come out as if they had been sent one by one.
//!
//! A verb has [`LANES`] statements in flight at most, and one account is in one of
//! them at a time: its requests stay in order, and an account that asks too much is
//! in the way of its own requests only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::database::run;
use super::{Context, Database, Error};
use crate::model::Name;

/// How many statements of one verb are in flight at most. The second one is for
/// other accounts than those of the first.
const LANES: usize = 2;
/// How many items one statement decides at most: it ends long before its timeout,
/// and what a larger one would save is below what can be measured.
const MAX_ITEMS: usize = 128;
/// How many requests of one verb may wait, and how many of one account.
const MAX_WAITING: usize = 16_384;
const MAX_WAITING_OF_ACCOUNT: usize = 512;
/// How much longer than its deadline a request waits for what its statement says.
const GRACE: Duration = Duration::from_millis(20);
/// How often a group is sent again because one of its keys raced.
const MAX_RACES: u32 = 3;

/// One request as its statement takes it.
pub(super) trait Grouped: Send + Sync + 'static {
    /// What the statement says of one item.
    type Verdict: Numbered + Send + 'static;
    /// The verb, for the metrics.
    const VERB: &'static str;

    /// Whose request it is.
    fn account(&self) -> &Name;

    /// What it is about: no statement is about anything twice.
    fn subject(&self) -> Subject;

    /// Whether one statement can decide both.
    fn goes_with(&self, _other: &Self) -> bool {
        true
    }

    /// Whether the statement was rolled back because a copy of one of its items was
    /// committed a moment ago: the same statement sees that copy now.
    fn raced(_error: &sqlx::Error) -> bool {
        false
    }

    /// Sends the statement. Items are numbered from 1 in the order given; an item
    /// that has no verdict is about nothing that exists.
    fn send<'a>(
        connection: &'a mut PgConnection,
        items: &'a [Arc<Self>],
    ) -> BoxFuture<'a, Result<Vec<Self::Verdict>, sqlx::Error>>;
}

/// A verdict that says which item it is about.
pub(super) trait Numbered {
    /// The item's number in its statement.
    fn number(&self) -> i64;
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// This reservation.
    Reservation(Uuid),
    /// The job with this key.
    Job(Name, String),
}

/// One value of every item: a parameter of the statement.
pub(super) fn column<T, U>(items: &[Arc<T>], value: impl Fn(&T) -> U) -> Vec<U> {
    items.iter().map(|item| value(item)).collect()
}

/// What became of one item; nothing if it is about nothing that exists.
type Answer<V> = Result<Option<V>, Error>;

/// The requests of one verb that wait.
pub(super) struct Group<T: Grouped> {
    queue: Arc<Mutex<Queue<T>>>,
}

impl<T: Grouped> Default for Group<T> {
    fn default() -> Self {
        Self { queue: Arc::default() }
    }
}

struct Queue<T: Grouped> {
    waiting: VecDeque<Place<T>>,
    /// How many of those are whose.
    waiting_of: HashMap<Name, usize>,
    lanes: usize,
    /// The accounts that are in a statement in flight.
    in_flight: HashSet<Name>,
}

impl<T: Grouped> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), waiting_of: HashMap::new(), lanes: 0, in_flight: HashSet::new() }
    }
}

/// A request that waits, and who is told.
struct Place<T: Grouped> {
    item: Arc<T>,
    deadline: Instant,
    answer: oneshot::Sender<Answer<T::Verdict>>,
}

impl<T: Grouped> Group<T> {
    /// Has this item decided, together with others that wait.
    ///
    /// # Errors
    ///
    /// `Overloaded` if too many wait; what went wrong with the statement.
    pub(super) async fn decide(&self, database: &Database, context: &Context, item: T) -> Answer<T::Verdict> {
        let item = Arc::new(item);
        if !database.grouping() {
            return send_all(database, context.deadline, &[item]).await.pop().unwrap_or_else(lost);
        }
        let (answer, told) = oneshot::channel();
        self.join(database, Place { item, deadline: context.deadline, answer })?;
        // Its statement gives up at the same moment, and knows why.
        match tokio::time::timeout_at(context.deadline + GRACE, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => lost(),
            Err(_) => Err(Error::DeadlineExceeded("the statement that was to decide it did not end in time")),
        }
    }

    fn join(&self, database: &Database, place: Place<T>) -> Result<(), Error> {
        let mut queue = locked(&self.queue);
        let of_account = queue.waiting_of.get(place.item.account()).copied().unwrap_or(0);
        if queue.waiting.len() >= MAX_WAITING || of_account >= MAX_WAITING_OF_ACCOUNT {
            return Err(Error::Overloaded);
        }
        queue.waiting_of.insert(place.item.account().clone(), of_account + 1);
        queue.waiting.push_back(place);
        if queue.lanes < LANES {
            queue.lanes += 1;
            tokio::spawn(run_lane(Arc::clone(&self.queue), database.clone()));
        }
        Ok(())
    }
}

/// Sends one group after the other, until nobody waits whom it could send.
async fn run_lane<T: Grouped>(queue: Arc<Mutex<Queue<T>>>, database: Database) {
    let mut lane = Lane { queue, accounts: Vec::new(), ended: false };
    loop {
        let places = lane.next();
        if places.is_empty() {
            return;
        }
        let until = places.iter().map(|place| place.deadline).max().unwrap_or_else(Instant::now);
        let items: Vec<Arc<T>> = places.iter().map(|place| Arc::clone(&place.item)).collect();
        let answers = send_all(&database, until, &items).await;
        for (place, answer) in places.into_iter().zip(answers) {
            // Whoever asked may have gone.
            let _ = place.answer.send(answer);
        }
    }
}

/// The right to have a statement in flight, and the accounts that are in it.
/// Dropped, also by a panic, it makes way for others.
struct Lane<T: Grouped> {
    queue: Arc<Mutex<Queue<T>>>,
    accounts: Vec<Name>,
    ended: bool,
}

impl<T: Grouped> Lane<T> {
    /// The next group. None wait whom this lane could send: then it has ended,
    /// decided under the same lock as who joins, so that nobody is left waiting.
    fn next(&mut self) -> Vec<Place<T>> {
        let mut queue = locked(&self.queue);
        for account in self.accounts.drain(..) {
            queue.in_flight.remove(&account);
        }
        let places = queue.take();
        if places.is_empty() {
            queue.lanes = queue.lanes.saturating_sub(1);
            self.ended = true;
        }
        let accounts: HashSet<&Name> = places.iter().map(|place| place.item.account()).collect();
        self.accounts = accounts.into_iter().cloned().collect();
        queue.in_flight.extend(self.accounts.iter().cloned());
        places
    }
}

impl<T: Grouped> Drop for Lane<T> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut queue = locked(&self.queue);
        for account in self.accounts.drain(..) {
            queue.in_flight.remove(&account);
        }
        queue.lanes = queue.lanes.saturating_sub(1);
    }
}

impl<T: Grouped> Queue<T> {
    /// Takes who can be sent together now, in the order in which they came. Who has
    /// to wait (its account is in flight, or its subject is in this group already)
    /// makes those of the same account behind it wait too.
    fn take(&mut self) -> Vec<Place<T>> {
        let mut group: Vec<Place<T>> = Vec::new();
        let mut subjects = HashSet::new();
        let mut behind: HashSet<Name> = HashSet::new();
        let mut waiting = VecDeque::with_capacity(self.waiting.len());
        let now = Instant::now();
        while let Some(place) = self.waiting.pop_front() {
            if place.answer.is_closed() || place.deadline <= now {
                self.leaves(place.item.account());
                continue;
            }
            if group.len() >= MAX_ITEMS {
                waiting.push_back(place);
                break;
            }
            let account = place.item.account();
            let fits = group.first().is_none_or(|first| first.item.goes_with(&place.item));
            if !fits
                || behind.contains(account)
                || self.in_flight.contains(account)
                || !subjects.insert(place.item.subject())
            {
                behind.insert(account.clone());
                waiting.push_back(place);
                continue;
            }
            self.leaves(account);
            group.push(place);
        }
        waiting.append(&mut self.waiting);
        self.waiting = waiting;
        group
    }

    fn leaves(&mut self, account: &Name) {
        if let Some(waiting) = self.waiting_of.get_mut(account) {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.waiting_of.remove(account);
            }
        }
    }
}

fn locked<T: Grouped>(queue: &Mutex<Queue<T>>) -> MutexGuard<'_, Queue<T>> {
    // Nothing between a lock and its release leaves the queue half changed.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn lost<V>() -> Answer<V> {
    Err(Error::Unavailable("the statement that was to decide it was abandoned".to_owned()))
}

/// Sends the items together. What fails because of one of them is sent again in
/// halves, the earlier one first, so that it fails alone; what fails for any other
/// reason has failed for all of them.
async fn send_all<T: Grouped>(database: &Database, until: Instant, items: &[Arc<T>]) -> Vec<Answer<T::Verdict>> {
    let mut answers: Vec<Answer<T::Verdict>> = items.iter().map(|_| Ok(None)).collect();
    let mut parts: Vec<Range<usize>> = std::iter::once(0..items.len()).collect();
    while let Some(part) = parts.pop() {
        let Some(together) = items.get(part.clone()) else { continue };
        let error = match send(database, until, together).await {
            Ok(verdicts) => {
                for verdict in verdicts {
                    let place = usize::try_from(verdict.number()).ok().and_then(|n| (part.start + n).checked_sub(1));
                    if let Some(answer) = place.and_then(|place| answers.get_mut(place)) {
                        *answer = Ok(Some(verdict));
                    }
                }
                continue;
            }
            Err(error) => error,
        };
        if part.len() > 1 && matches!(error, Error::Refused(_) | Error::Unexpected(_)) {
            let middle = part.start + part.len() / 2;
            parts.push(middle..part.end);
            parts.push(part.start..middle);
            continue;
        }
        for answer in answers.get_mut(part).into_iter().flatten() {
            *answer = Err(error.clone());
        }
    }
    answers
}

/// Sends one statement, again if a key raced.
async fn send<T: Grouped>(database: &Database, until: Instant, items: &[Arc<T>]) -> Result<Vec<T::Verdict>, Error> {
    let context = Context { deadline: until, ..Context::system("group") };
    for _ in 0..MAX_RACES {
        let verdicts = run!(database, &context, |connection| {
            match T::send(connection, items).await {
                Err(error) if T::raced(&error) => Ok(None),
                sent => sent.map(Some),
            }
        })?;
        if let Some(verdicts) = verdicts {
            database.decided(T::VERB, items.len());
            return Ok(verdicts);
        }
    }
    Err(Error::Unexpected("a key raced too often".to_owned()))
}
