//! The load generator: clients that each send one request after another, all on one
//! thread with a runtime of its own, so that what they take can be told apart from
//! what is measured.
//!
//! A run has a window. What is answered inside of it counts; before it the clients
//! warm the service up, and after it each finishes what it has begun.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use hdrhistogram::Histogram;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use super::client::Client;
use super::process;
use super::wire::Target;
use super::workload::{Cycle, OPERATION, RESERVED};
use super::zipf::Zipf;

/// The slowest answer that is told apart: five minutes, in microseconds.
pub(super) const SLOWEST_US: u64 = 300_000_000;
/// Clients connect this many at a time: a listener's queue is not endless.
const CONNECT: usize = 64;

/// Clients that do the same.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) clients: u16,
    pub(super) cycle: Cycle,
    pub(super) who: Who,
    pub(super) authorization: HeaderValue,
    /// Cycles that all of them together begin in a second; as many as they can
    /// without it.
    pub(super) per_second: Option<u64>,
}

/// Which account the next cycle is for.
#[derive(Clone)]
pub(super) enum Who {
    /// Always the same.
    One(String),
    /// Each client one of its own, from the first.
    Own(Vec<String>),
    /// By popularity.
    Popular(Zipf, Vec<String>),
    /// Each account once, then the clients are done.
    Once(Vec<String>),
}

/// What is to be sent, and for how long.
pub(super) struct Load {
    pub(super) target: Target,
    pub(super) groups: Vec<Group>,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    /// Part of every key: no two loads on one database may have the same.
    pub(super) name: String,
}

/// When what is answered counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) begins: Instant,
    pub(super) ends: Instant,
}

impl Window {
    pub(super) fn contains(&self, at: Instant) -> bool {
        at >= self.begins && at < self.ends
    }
}

/// What one group saw.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// Requests that were answered, refusals included.
    pub(super) requests: u64,
    /// Cycles that were brought to their end.
    pub(super) cycles: u64,
    /// Reservations that were refused for want of room.
    pub(super) refused: u64,
    /// Requests that were not answered as they should be, inside the window or not.
    pub(super) failed: u64,
    pub(super) first_error: Option<String>,
    /// From sending a request to its whole answer, in microseconds.
    pub(super) latency: Histogram<u64>,
}

/// What the generator did.
#[derive(Debug)]
pub(super) struct Ran {
    /// In the order of the groups.
    pub(super) tallies: Vec<Tally>,
    /// What the generator's thread took of a core during the window, where the
    /// system tells.
    pub(super) cpu: Option<Duration>,
}

/// A load that is under way.
pub(super) struct Running {
    /// Told once all clients are connected.
    pub(super) window: oneshot::Receiver<Window>,
    pub(super) ran: oneshot::Receiver<Result<Ran, String>>,
}

/// What the clients of a group share.
pub(super) struct Shared {
    pub(super) group: Group,
    /// The bodies of reservations, one for each account.
    pub(super) bodies: Vec<Bytes>,
    pub(super) name: String,
    pub(super) window: Cell<Window>,
    pub(super) tally: RefCell<Tally>,
    /// How many accounts have been taken, of those that are done once.
    pub(super) taken: Cell<usize>,
}

impl Shared {
    fn new(group: Group, number: usize, load: &str, window: Window) -> Result<Self, String> {
        let body = |account: &String| {
            Bytes::from(format!(
                r#"{{"operation":"{OPERATION}","units":"{RESERVED}","account":"{account}","holder":"bench"}}"#
            ))
        };
        let bodies = match &group.who {
            Who::One(account) => vec![body(account)],
            Who::Own(accounts) | Who::Popular(_, accounts) | Who::Once(accounts) => accounts.iter().map(body).collect(),
        };
        let latency = Histogram::new_with_bounds(1, SLOWEST_US, 3).map_err(|error| error.to_string())?;
        let tally = Tally { requests: 0, cycles: 0, refused: 0, failed: 0, first_error: None, latency };
        Ok(Self {
            group,
            bodies,
            name: format!("{load}-{number}"),
            window: Cell::new(window),
            tally: RefCell::new(tally),
            taken: Cell::new(0),
        })
    }
}

/// Starts a load on a thread of its own.
///
/// # Errors
///
/// The system gives no thread.
pub(super) fn start(load: Load) -> std::io::Result<Running> {
    let (tell_window, window) = oneshot::channel();
    let (tell_ran, ran) = oneshot::channel();
    std::thread::Builder::new().name("load-generator".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let outcome = match runtime {
            Ok(runtime) => LocalSet::new().block_on(&runtime, drive(load, tell_window)),
            Err(error) => Err(error.to_string()),
        };
        // Who started it may have given up.
        let _ = tell_ran.send(outcome);
    })?;
    Ok(Running { window, ran })
}

async fn drive(load: Load, tell_window: oneshot::Sender<Window>) -> Result<Ran, String> {
    let Load { target, groups, warm_up, duration, name } = load;
    let unknown = Window { begins: Instant::now(), ends: Instant::now() };
    let groups = groups.into_iter().enumerate();
    let groups = groups.map(|(number, group)| Shared::new(group, number, &name, unknown).map(Rc::new));
    let groups: Vec<Rc<Shared>> = groups.collect::<Result<_, _>>()?;
    let clients = connect(&target, &groups).await?;
    let begins = Instant::now() + warm_up;
    let window = Window { begins, ends: begins + duration };
    for group in &groups {
        group.window.set(window);
    }
    // Who watches may have given up; then nobody waits for the end either.
    if tell_window.send(window).is_err() {
        return Err("nobody watches".to_owned());
    }
    let cpu = tokio::task::spawn_local(own_cpu(window));
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn_local(client.run());
    }
    while let Some(ended) = running.join_next().await {
        ended.map_err(|error| error.to_string())?;
    }
    // Clients that were done before the window ended are not waited for.
    let cpu = if Instant::now() >= window.ends { cpu.await.ok().flatten() } else { None };
    Ok(Ran { tallies: groups.iter().map(|group| group.tally.borrow().clone()).collect(), cpu })
}

/// Connects all clients before any of them sends anything.
async fn connect(target: &Target, groups: &[Rc<Shared>]) -> Result<Vec<Client>, String> {
    let mut clients = Vec::new();
    for group in groups {
        clients.extend((0..group.group.clients).map(|number| Client::new(target.clone(), Rc::clone(group), number)));
    }
    for some in clients.chunks_mut(CONNECT) {
        for connected in futures_util::future::join_all(some.iter_mut().map(Client::connect)).await {
            connected.map_err(|error| format!("cannot connect to {}: {error}", target.address))?;
        }
    }
    Ok(clients)
}

/// What this thread takes of a core during the window.
async fn own_cpu(window: Window) -> Option<Duration> {
    tokio::time::sleep_until(window.begins).await;
    let before = process::thread_cpu()?;
    tokio::time::sleep_until(window.ends).await;
    process::thread_cpu()?.checked_sub(before)
}
