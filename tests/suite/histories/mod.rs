//! Random histories of every verb, against an executable model of the rules.
//!
//! The model (`model/`) says what each request must be answered, and what every
//! balance, version, event, call and journal entry must be afterwards. Each
//! history is played on the service on Postgres through HTTP, and compared step
//! by step; one that differs is shrunk to the few steps that matter.
//!
//! `SPEND_LEDGER_HISTORIES=20000` plays more of them. `SPEND_LEDGER_SEED=7`
//! chooses which; with `SPEND_LEDGER_HISTORY=12` only that one is played.

mod bench;
mod compare;
mod model;
mod mutants;
mod play;
mod policy;
mod request;
mod steps;
mod together;
mod witness;

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use spend_ledger::ledger::verify::verify;

use bench::Bench;
use play::play;
use policy::{SHAPES, Shape};
use steps::histories;
use together::{meet, meetings};
use tokio::runtime::Runtime;

const HISTORIES: u64 = 2000;
/// How many of several clients at once, of those 2000.
const MEETINGS: u64 = 400;
const LONGEST: usize = 25;
/// How many databases each shape of policy has: while one waits for the disk,
/// another goes on.
const LANES_OF_EACH: usize = 2;
/// How many histories are played between two verifications of all the books.
const VERIFY_EVERY: u64 = 200;

/// Which histories are played.
#[derive(Clone, Copy)]
struct Plan {
    seed: u64,
    histories: u64,
    /// Only this one.
    only: Option<u64>,
}

impl Plan {
    fn from_environment(usually: u64) -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
        let seed = number("SPEND_LEDGER_SEED").unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            u64::from(now.subsec_nanos())
        });
        let histories = number("SPEND_LEDGER_HISTORIES").map_or(usually, |all| all * usually / HISTORIES);
        Self { seed, histories, only: number("SPEND_LEDGER_HISTORY") }
    }

    /// The histories of one of so many lanes.
    fn of_lane(self, lane: usize, lanes: usize) -> impl Iterator<Item = u64> {
        let mine = (0..self.histories).skip(lane).step_by(lanes);
        let only = self.only;
        mine.filter(move |n| only.is_none_or(|only| only == *n))
    }

    /// How the n-th history is made, and found again.
    fn config(self, n: u64) -> Config {
        Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 600,
            rng_seed: RngSeed::Fixed(self.seed.wrapping_mul(1_000_003).wrapping_add(n)),
            ..Config::default()
        }
    }
}

#[test]
fn one_client_at_a_time() {
    in_lanes(Plan::from_environment(HISTORIES), &SHAPES, one);
}

/// Not where budgets carry forward: what is given back when depends on who comes
/// first (`races/midnight.rs` has such a day end under load).
#[test]
fn several_clients_at_once() {
    let shapes: Vec<Shape> = SHAPES.into_iter().filter(|shape| !shape.carries).collect();
    in_lanes(Plan::from_environment(MEETINGS), &shapes, several);
}

/// Plays one history, or says how it differs.
type PlayOne = fn(&Runtime, &mut Bench, &Shape, Plan, u64) -> Result<(), String>;

/// Each lane has a database, a thread, and its share of the histories.
fn in_lanes(plan: Plan, shapes: &[Shape], play_one: PlayOne) {
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lane in 0..shapes.len() * LANES_OF_EACH {
            let shape = &shapes[lane % shapes.len()];
            let failed = &failed;
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let mut bench = runtime.block_on(Bench::new(shape));
                for (played, n) in plan.of_lane(lane, shapes.len() * LANES_OF_EACH).enumerate() {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(told) = play_one(&runtime, &mut bench, shape, plan, n) {
                        failed.store(true, Ordering::Relaxed);
                        panic!("SPEND_LEDGER_SEED={} SPEND_LEDGER_HISTORY={n} plays it again\n{told}", plan.seed);
                    }
                    if (played as u64).is_multiple_of(VERIFY_EVERY) {
                        runtime.block_on(books_hold(&bench));
                    }
                }
                runtime.block_on(books_hold(&bench));
            });
        }
    });
}

/// One history; if it differs, the shortest that still does.
fn one(runtime: &tokio::runtime::Runtime, bench: &mut Bench, shape: &Shape, plan: Plan, n: u64) -> Result<(), String> {
    let bench = RefCell::new(bench);
    let result = TestRunner::new(plan.config(n)).run(&histories(LONGEST), |history| {
        runtime.block_on(async {
            let mut bench = bench.borrow_mut();
            let played = play(&mut **bench, shape, &history).await;
            if played.is_err() && shape.carries {
                // What it left open would be carried into the next.
                **bench = Bench::new(shape).await;
            }
            played.map_err(TestCaseError::fail)
        })
    });
    as_told(result)
}

/// The same for several clients. What differs once may not differ again: it is
/// shrunk as far as it does.
fn several(runtime: &Runtime, bench: &mut Bench, shape: &Shape, plan: Plan, n: u64) -> Result<(), String> {
    let bench = RefCell::new(bench);
    let result = TestRunner::new(plan.config(n)).run(&meetings(), |meeting| {
        runtime.block_on(async {
            let mut bench = bench.borrow_mut();
            meet(&mut bench, shape, &meeting).await.map_err(TestCaseError::fail)
        })
    });
    as_told(result)
}

fn as_told<T>(result: Result<(), TestError<T>>) -> Result<(), String> {
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, _)) => Err(why.message().to_owned()),
        Err(TestError::Abort(why)) => Err(format!("given up: {why}")),
    }
}

async fn books_hold(bench: &Bench) {
    let mut differences = Vec::new();
    verify(&bench.database.owner_url, |difference| differences.push(difference.to_owned())).await.unwrap();
    assert!(differences.is_empty(), "the books do not hold:\n{}", differences.join("\n"));
}
