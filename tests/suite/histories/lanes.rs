//! Which histories are played, and where.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::test_runner::{Config, RngSeed, TestError};
use spend_ledger::ledger::verify::verify;
use tokio::runtime::Runtime;

use super::bench::Bench;
use super::play::Tally;
use super::policy::Shape;

/// How many histories of one client are played unless somebody asks for more; of
/// several clients there are proportionally more then.
pub const HISTORIES: u64 = 2000;
/// How many databases each shape of policy has: while one waits for the disk,
/// another goes on.
const LANES_OF_EACH: usize = 2;
/// How many histories are played between two verifications of all the books.
const VERIFY_EVERY: u64 = 200;

/// Which histories are played.
#[derive(Clone, Copy)]
pub struct Plan {
    seed: u64,
    pub histories: u64,
    /// Only this one.
    only: Option<u64>,
}

impl Plan {
    pub fn from_environment(usually: u64) -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
        let seed = number("SPEND_LEDGER_SEED").unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            u64::from(now.subsec_nanos())
        });
        let histories = number("SPEND_LEDGER_HISTORIES").map_or(usually, |all| all * usually / HISTORIES);
        Self { seed, histories, only: number("SPEND_LEDGER_HISTORY") }
    }

    /// Whether all of the usual histories are played, so that all that they are
    /// about must have come up.
    pub fn is_whole(self, usually: u64) -> bool {
        self.histories >= usually && self.only.is_none()
    }

    /// The histories of one of so many lanes.
    fn of_lane(self, lane: usize, lanes: usize) -> impl Iterator<Item = u64> {
        let mine = (0..self.histories).skip(lane).step_by(lanes);
        let only = self.only;
        mine.filter(move |n| only.is_none_or(|only| only == *n))
    }

    /// How the n-th history is made, and found again.
    pub fn config(self, n: u64) -> Config {
        Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 600,
            rng_seed: RngSeed::Fixed(self.seed.wrapping_mul(1_000_003).wrapping_add(n)),
            ..Config::default()
        }
    }
}

/// Plays the history that this makes, or says how it differs.
pub type PlayOne = fn(&Runtime, &mut Bench, &Shape, Config) -> Result<Tally, String>;

/// Each lane has a database, a thread, and its share of the histories.
pub fn in_lanes(plan: Plan, shapes: &[Shape], play_one: PlayOne) -> Tally {
    let failed = AtomicBool::new(false);
    let tally = Mutex::new(Tally::new());
    let lanes = shapes.len() * LANES_OF_EACH;
    std::thread::scope(|scope| {
        for lane in 0..lanes {
            let (shape, failed, tally) = (&shapes[lane % shapes.len()], &failed, &tally);
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let mut bench = runtime.block_on(Bench::new(shape));
                for (played, n) in (1_u64..).zip(plan.of_lane(lane, lanes)) {
                    if failed.load(Ordering::Relaxed) {
                        return;
                    }
                    match play_one(&runtime, &mut bench, shape, plan.config(n)) {
                        Ok(more) => {
                            let mut tally = tally.lock().unwrap();
                            more.into_iter().for_each(|(what, count)| *tally.entry(what).or_default() += count);
                        }
                        Err(told) => {
                            failed.store(true, Ordering::Relaxed);
                            let seed = plan.seed;
                            panic!("SPEND_LEDGER_SEED={seed} SPEND_LEDGER_HISTORY={n} plays it again\n{told}");
                        }
                    }
                    if played.is_multiple_of(VERIFY_EVERY) {
                        runtime.block_on(books_hold(&bench, shape));
                    }
                }
                runtime.block_on(books_hold(&bench, shape));
            });
        }
    });
    tally.into_inner().unwrap()
}

/// What a search that found something tells.
pub fn told<T>(result: Result<(), TestError<T>>) -> Result<(), String> {
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, _)) => Err(why.message().to_owned()),
        Err(TestError::Abort(why)) => Err(format!("given up: {why}")),
    }
}

async fn books_hold(bench: &Bench, shape: &Shape) {
    let mut differences = Vec::new();
    verify(&bench.database.owner_url, |difference| differences.push(difference.to_owned())).await.unwrap();
    assert!(differences.is_empty(), "the books do not hold:\n{}", differences.join("\n"));
    let beyond = bench.database.lines(ADMITTED_BEYOND_ROOM).await;
    let enforced: Vec<_> = beyond.iter().filter(|line| shape.pool_enforces || !line.starts_with("pool ")).collect();
    assert!(enforced.is_empty(), "admitted without room: {enforced:#?}");
}

/// Whatever else makes available negative, no admission does.
const ADMITTED_BEYOND_ROOM: &str = "
    select format('%s %s', p.budget, e)
    from journal_entry e
    join budget_period p on p.account = e.account and p.id = e.period_id
    where e.event in ('reserve', 'extend', 'call_admitted') and e.source = 'available' and e.available < 0";
