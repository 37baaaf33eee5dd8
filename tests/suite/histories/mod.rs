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

use std::sync::atomic::{AtomicBool, Ordering};

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use spend_ledger::ledger::verify::verify;

use bench::Bench;
use play::play;
use policy::{SHAPES, Shape};
use steps::histories;

const HISTORIES: u64 = 2000;
const LONGEST: usize = 25;
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

/// Each shape of policy has a database, a thread, and every fourth history.
#[test]
fn one_client_at_a_time() {
    let plan = Plan::from_environment(HISTORIES);
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (lane, shape) in SHAPES.iter().enumerate() {
            let failed = &failed;
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let mut bench = runtime.block_on(Bench::new(shape));
                for (played, n) in plan.of_lane(lane, SHAPES.len()).enumerate() {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Err(told) = one(&runtime, &mut bench, shape, plan, n) {
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
    let bench = std::cell::RefCell::new(bench);
    let result = TestRunner::new(plan.config(n)).run(&histories(LONGEST), |history| {
        runtime.block_on(async {
            let mut bench = bench.borrow_mut();
            let played = play(&mut **bench, shape, &history).await;
            if played.is_err() {
                // What it left open is in nobody's way.
                **bench = Bench::new(shape).await;
            }
            played.map_err(TestCaseError::fail)
        })
    });
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
