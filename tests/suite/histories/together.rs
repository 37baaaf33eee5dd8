//! Several clients at once on the same jobs: what they ask, what they are
//! answered, and what each can have seen when it asked.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::Value;
use tokio::sync::Mutex;

use super::asking::Action;
use super::bench::{Bench, as_answer};
use super::compare::Names;
use super::model::Answer;
use super::model::job::State;
use super::model::units::Units;
use super::model::world::World;
use super::play::{Subject as _, Tally, first_steps, token_name};
use super::policy::Shape;
use super::request::{JOBS, KEYS, Operation, Request, Role, Token, Verb};
use super::steps::{Step, What, histories, requests};
use super::witness;

/// Steps of one client after the other, and then of several at once.
#[derive(Debug, Clone)]
pub struct Meeting {
    pub before: Vec<Step>,
    pub clients: Vec<Vec<What>>,
}

pub fn meetings() -> impl Strategy<Value = Meeting> {
    (histories(6), vec(vec(requests(), 1..6), 2..=4)).prop_map(|(before, clients)| Meeting { before, clients })
}

/// One request as its client saw it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub client: usize,
    pub request: Request,
    /// The newest version of the job that anybody had been told when it was sent.
    pub since: i64,
    pub got: Answer,
}

/// What the clients know together.
struct Shared {
    names: Names,
    /// The newest versions that were told.
    versions: BTreeMap<usize, i64>,
    /// What the jobs may look like by now: requests are made up from it, nothing
    /// is compared with it.
    guess: World,
    asked: Vec<Asked>,
}

/// Lets them meet, and says what cannot have happened.
pub async fn meet(bench: &mut Bench, shape: &Shape, meeting: &Meeting) -> Result<Tally, String> {
    let (world, names) = first_steps(bench, shape, &meeting.before, openers).await?;
    let versions = world.jobs.values().map(|job| (job.number, job.version)).collect();
    let shared = Mutex::new(Shared { names, versions, guess: world.clone(), asked: Vec::new() });
    let (bench_of_all, shared_by_all, begin) = (&*bench, &shared, &world);
    join_all(meeting.clients.iter().enumerate().map(|(client, steps)| async move {
        for what in steps {
            one(bench_of_all, shared_by_all, begin, client, what).await;
        }
    }))
    .await;
    let Shared { asked, names, .. } = shared.into_inner();
    let beside = bench.beside_the_books().await;
    let books = bench.books().await;
    witness::explain(world, names, asked, &books, &beside)
}

/// Periods that open while clients meet would make what they find depend on who
/// comes first; they are open before, by jobs that nobody else asks about.
fn openers(world: &World) -> Vec<Request> {
    let verb = Verb::Reserve { operation: Operation::Run, units: Units::whole(1), holder: 0, lease: 60 };
    let openers = (JOBS..KEYS).map(|job| Request { job, by: Role::Worker, verb });
    openers.filter(|request| !world.has_opened(request.account())).collect()
}

/// One request of one client.
async fn one(bench: &Bench, shared: &Mutex<Shared>, begin: &World, client: usize, what: &What) {
    let (request, since, builder) = {
        let shared = shared.lock().await;
        let knows = |token, job| shared.names.get(&token_name(job, token)).is_some();
        let Action::Ask(request) = what.action(&shared.guess, knows) else { return };
        let request = that_leases_allow(begin, request);
        let since = shared.versions.get(&request.job).copied().unwrap_or(0);
        (request, since, bench.request(&request, &shared.names, client % 2))
    };
    let (sender, builder) = builder;
    let got = as_answer(sender.send(builder).await);
    let mut shared = shared.lock().await;
    if got.status < 300 {
        shared.guess.ask(&request);
    }
    shared.learn(&request, &got);
    shared.asked.push(Asked { client, request, since, got });
}

/// Renewals change no version. Where a lease has run out they would decide about
/// a takeover without a trace: there, nobody renews.
fn that_leases_allow(begin: &World, request: Request) -> Request {
    let run_out = |job: &super::model::job::Job| job.state == State::Active && job.lease_has_run_out(begin.now);
    let run_out = begin.jobs.get(&request.job).is_some_and(run_out);
    match request.verb {
        Verb::Renew { .. } if run_out => Request { verb: Verb::Look, ..request },
        _ => request,
    }
}

impl Shared {
    fn learn(&mut self, request: &Request, got: &Answer) {
        let (job, reservation) = (request.job, &got.body);
        if let Some(version) = version_in(&got.body) {
            let newest = self.versions.entry(job).or_default();
            *newest = version.max(*newest);
        }
        if got.status >= 300 {
            return;
        }
        if let Some(id) = reservation["id"].as_str() {
            self.names.learn(&format!("§id of j{job}"), id);
        }
        if let (Some(token), Some(number)) =
            (reservation["attempt"]["token"].as_str(), reservation["attempt"]["number"].as_i64())
        {
            self.names.learn(&token_name(job, Token::Of(number)), token);
        }
    }
}

/// The version of the reservation that an answer shows.
pub fn version_in(body: &Value) -> Option<i64> {
    body["version"].as_i64().or_else(|| body["reservation"]["version"].as_i64())
}
