//! Group commit: requests that wait while a statement is in flight are decided
//! together by the next one. One mechanism for every verb on the busy path.
//!
//! Nobody waits for company: there is no timer, and a request that finds its verb
//! idle is sent at once, alone. Every request gets its own decision, and its answer
//! only after the commit. The statement decides its items in the order in which they
//! came, so that they come out as if they had been sent one by one.
//!
//! A verb has [`LANES`] statements in flight at most. Verbs that change the same rows
//! take [`Turns`]: an account is in one statement at a time, so that its requests stay
//! in order, statements seldom wait for each other's locks, and an account that asks
//! too much is in the way of its own requests only.

mod turns;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::PgConnection;
use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::database::run;
use super::{Context, Database, Error};
use crate::model::Name;
pub(super) use turns::Turns;
use turns::{Accounts, Verb};

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
    /// This reservation, as this account names it.
    Reservation(Name, Uuid),
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
pub(super) struct Group<T: Grouped>(Arc<Shared<T>>);

/// What a verb's requests and its lanes share.
struct Shared<T: Grouped> {
    database: Database,
    queue: Mutex<Queue<T>>,
    turns: Arc<Turns>,
    /// Which of the verbs that share the turns this one is.
    verb: Verb,
}

struct Queue<T: Grouped> {
    waiting: VecDeque<Place<T>>,
    /// How many of those are whose.
    waiting_of: HashMap<Name, usize>,
    lanes: usize,
}

/// A request that waits, and who is told.
struct Place<T: Grouped> {
    item: Arc<T>,
    /// Its place among those of all the verbs that share the turns.
    number: u64,
    deadline: Instant,
    answer: oneshot::Sender<Answer<T::Verdict>>,
}

/// How a request is to be decided.
enum Joined<T: Grouped> {
    /// At once, by whoever asks, who keeps the lane while it is in flight.
    Alone(Lane<T>),
    /// By the next statement.
    Waiting(oneshot::Receiver<Answer<T::Verdict>>),
}

impl<T: Grouped> Group<T> {
    /// A verb that takes turns with the others that have been given the same.
    pub(super) fn new(database: &Database, turns: &Arc<Turns>) -> Self {
        Self(Arc::new_cyclic(|own: &Weak<Shared<T>>| {
            let own = own.clone();
            let verb = turns.take_part(Arc::new(move || {
                if let Some(shared) = own.upgrade() {
                    shared.wake();
                }
            }));
            let queue = Queue { waiting: VecDeque::new(), waiting_of: HashMap::new(), lanes: 0 };
            Shared { database: database.clone(), queue: Mutex::new(queue), turns: Arc::clone(turns), verb }
        }))
    }

    /// Has this item decided, together with others that wait.
    ///
    /// # Errors
    ///
    /// `Overloaded` if too many wait; what went wrong with the statement.
    pub(super) async fn decide(&self, context: &Context, item: T) -> Answer<T::Verdict> {
        let item = Arc::new(item);
        let database = &self.0.database;
        if !database.grouping() {
            return send_all(database, context.deadline, &[item]).await.pop().unwrap_or_else(lost);
        }
        let told = match self.0.join(context.deadline, &item)? {
            Joined::Waiting(told) => told,
            Joined::Alone(lane) => {
                let answer = send_all(database, context.deadline, &[item]).await.pop();
                drop(lane);
                return answer.unwrap_or_else(lost);
            }
        };
        // Its statement gives up at the same moment, and knows why.
        match tokio::time::timeout_at(context.deadline + GRACE, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => lost(),
            Err(_) => Err(Error::DeadlineExceeded("the statement that was to decide it did not end in time")),
        }
    }
}

impl<T: Grouped> Shared<T> {
    fn join(self: &Arc<Self>, deadline: Instant, item: &Arc<T>) -> Result<Joined<T>, Error> {
        let account = item.account();
        let mut queue = self.queue();
        if queue.lanes < LANES && queue.waiting.is_empty() && self.turns.take_if_free(account) {
            queue.lanes += 1;
            return Ok(Joined::Alone(self.lane(vec![account.clone()])));
        }
        let of_account = queue.waiting_of.get(account).copied().unwrap_or(0);
        if queue.waiting.len() >= MAX_WAITING || of_account >= MAX_WAITING_OF_ACCOUNT {
            return Err(Error::Overloaded);
        }
        let (answer, told) = oneshot::channel();
        let number = self.turns.arrive(account, self.verb);
        queue.waiting_of.insert(account.clone(), of_account + 1);
        queue.waiting.push_back(Place { item: Arc::clone(item), number, deadline, answer });
        drop(queue);
        self.wake();
        Ok(Joined::Waiting(told))
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        // Nothing between a lock and its release leaves the queue half changed.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane, with the accounts that it has in flight already.
    fn lane(self: &Arc<Self>, accounts: Vec<Name>) -> Lane<T> {
        let begun = !accounts.is_empty();
        Lane { shared: Arc::clone(self), accounts, begun, ended: false }
    }

    /// Starts a lane if somebody waits and there may be another one. (Outside of the
    /// lock: a runtime that shuts down drops what is spawned at once, and with it the
    /// lane.)
    fn wake(self: &Arc<Self>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.queue().add_lane() {
            runtime.spawn(run_lane(self.lane(Vec::new())));
        }
    }
}

/// Sends one group after the other, until nobody waits whom it could send.
async fn run_lane<T: Grouped>(mut lane: Lane<T>) {
    loop {
        let places = lane.next();
        if places.is_empty() {
            return;
        }
        let until = places.iter().map(|place| place.deadline).max().unwrap_or_else(Instant::now);
        let items: Vec<Arc<T>> = places.iter().map(|place| Arc::clone(&place.item)).collect();
        let answers = send_all(&lane.shared.database, until, &items).await;
        lane.free();
        for (place, answer) in places.into_iter().zip(answers) {
            // Whoever asked may have gone.
            let _ = place.answer.send(answer);
        }
    }
}

/// The right to have a statement in flight, and the accounts that are in it.
/// Dropped, by who has been decided alone, or by a panic, it makes way for those who
/// have come to wait.
struct Lane<T: Grouped> {
    shared: Arc<Shared<T>>,
    accounts: Vec<Name>,
    /// Whether it has ever had anything to send.
    begun: bool,
    ended: bool,
}

impl<T: Grouped> Lane<T> {
    /// The next group. None wait whom this lane could send: then it has ended,
    /// decided under the same lock as who joins, so that nobody is left waiting.
    fn next(&mut self) -> Vec<Place<T>> {
        self.begun = true;
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.queue();
        let Taken { places, accounts, gone } = queue.take(&shared);
        self.accounts = accounts;
        if places.is_empty() {
            queue.lanes = queue.lanes.saturating_sub(1);
            self.ended = true;
        }
        drop(queue);
        // Those that did not wait for it may have kept others waiting.
        shared.turns.wake_next(&gone);
        places
    }

    /// Lets the next statement of the accounts begin, of whatever verb.
    fn free(&mut self) {
        let accounts = std::mem::take(&mut self.accounts);
        self.shared.turns.free(&accounts);
    }
}

impl<T: Grouped> Drop for Lane<T> {
    fn drop(&mut self) {
        self.free();
        if !self.ended {
            let mut queue = self.shared.queue();
            queue.lanes = queue.lanes.saturating_sub(1);
            drop(queue);
            // One that has not even begun was dropped by a runtime that shuts down: so
            // would be its successor.
            if self.begun {
                self.shared.wake();
            }
        }
    }
}

/// Who is sent together.
struct Taken<T: Grouped> {
    places: Vec<Place<T>>,
    /// Whose they are.
    accounts: Vec<Name>,
    /// Whose requests have gone, or were too late to be sent.
    gone: Vec<Name>,
}

impl<T: Grouped> Queue<T> {
    /// Whether there is work for another lane, which is counted then.
    fn add_lane(&mut self) -> bool {
        let wanted = self.lanes < LANES && !self.waiting.is_empty();
        if wanted {
            self.lanes += 1;
        }
        wanted
    }

    /// Takes who can be sent together now, in the order in which they came. Who has
    /// to wait (it is not its account's turn, or its subject is in this group already)
    /// makes those of the same account behind it wait too.
    fn take(&mut self, shared: &Shared<T>) -> Taken<T> {
        let mut turns = shared.turns.accounts();
        let mut taken: Taken<T> = Taken { places: Vec::new(), accounts: Vec::new(), gone: Vec::new() };
        let mut subjects = HashSet::new();
        let mut behind: HashSet<Name> = HashSet::new();
        let mut waiting = VecDeque::with_capacity(self.waiting.len());
        let now = Instant::now();
        while let Some(place) = self.waiting.pop_front() {
            let account = place.item.account();
            if place.answer.is_closed() || place.deadline <= now {
                self.leaves(&mut turns, account, place.number, shared.verb);
                taken.gone.push(account.clone());
                // Whoever asked may have gone.
                let _ = place.answer.send(Err(Error::DeadlineExceeded("nothing was sent to the database")));
                continue;
            }
            if taken.places.len() >= MAX_ITEMS {
                waiting.push_back(place);
                break;
            }
            let its_turn = taken.accounts.contains(account) || turns.is_next(account, shared.verb);
            let fits = taken.places.first().is_none_or(|first| first.item.goes_with(&place.item));
            if behind.contains(account) || !its_turn || !fits || !subjects.insert(place.item.subject()) {
                behind.insert(account.clone());
                waiting.push_back(place);
                continue;
            }
            if !taken.accounts.contains(account) {
                turns.begin(account);
                taken.accounts.push(account.clone());
            }
            self.leaves(&mut turns, account, place.number, shared.verb);
            taken.places.push(place);
        }
        waiting.append(&mut self.waiting);
        self.waiting = waiting;
        taken
    }

    fn leaves(&mut self, turns: &mut Accounts, account: &Name, number: u64, verb: Verb) {
        turns.leave(account, number, verb);
        if let Some(waiting) = self.waiting_of.get_mut(account) {
            *waiting = waiting.saturating_sub(1);
            if *waiting == 0 {
                self.waiting_of.remove(account);
            }
        }
    }
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
    let database = database.deciding();
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
