//! Random histories of every verb, against an executable model of the rules.
//!
//! The model (`model/`) says what each request must be answered, and what every
//! balance, version, event, call and journal entry must be afterwards. Each
//! history is played on the service on Postgres through HTTP, and compared step
//! by step; one that differs is shrunk to the few steps that matter.
//!
//! `SPEND_LEDGER_HISTORIES=20000` plays more of them. `SPEND_LEDGER_SEED=7`
//! chooses which; with `SPEND_LEDGER_HISTORY=12` only that one is played.

mod asking;
mod bench;
mod compare;
mod lanes;
mod model;
mod mutants;
mod play;
mod policy;
mod request;
mod steps;
mod together;
mod witness;

use std::cell::RefCell;

use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Runtime;

use bench::Bench;
use lanes::{HISTORIES, Plan, in_lanes, told};
use play::{Tally, play};
use policy::{SHAPES, Shape};
use steps::histories;
use together::{meet, meetings};

/// How many of several clients at once.
const MEETINGS: u64 = 300;
const LONGEST: usize = 25;

/// What must come up in so many histories: every verb, answered in every way.
const ANSWERS: &[&str] = &[];

#[test]
fn one_client_at_a_time() {
    let plan = Plan::from_environment(HISTORIES);
    let tally = in_lanes(plan, &SHAPES, one);
    let missing: Vec<_> = ANSWERS.iter().filter(|answer| !tally.contains_key(**answer)).collect();
    assert!(missing.is_empty() || !plan.is_whole(HISTORIES), "never came up: {missing:?}, but\n{tally:#?}");
    println!("{tally:#?}");
}

/// Not where budgets carry forward: what is given back when depends on who comes
/// first (`races/midnight.rs` has such a day end under load).
#[test]
fn several_clients_at_once() {
    let shapes: Vec<Shape> = SHAPES.into_iter().filter(|shape| !shape.carries).collect();
    let tally = in_lanes(Plan::from_environment(MEETINGS), &shapes, several);
    println!("{tally:#?}");
}

/// One history; if it differs, the shortest that still does.
fn one(runtime: &Runtime, bench: &mut Bench, shape: &Shape, config: Config) -> Result<Tally, String> {
    let (bench, tally) = (RefCell::new(bench), RefCell::default());
    let result = TestRunner::new(config).run(&histories(LONGEST), |history| {
        let mut bench = bench.borrow_mut();
        runtime.block_on(async {
            let played = play(&mut **bench, shape, &history).await;
            if played.is_err() && shape.carries {
                // What it left open would be carried into the next.
                **bench = Bench::new(shape).await;
            }
            *tally.borrow_mut() = played.map_err(TestCaseError::fail)?;
            Ok(())
        })
    });
    told(result)?;
    Ok(tally.into_inner())
}

/// The same for several clients. What differs once may not differ again: it is
/// shrunk as far as it does.
fn several(runtime: &Runtime, bench: &mut Bench, shape: &Shape, config: Config) -> Result<Tally, String> {
    let (bench, tally) = (RefCell::new(bench), RefCell::default());
    let result = TestRunner::new(config).run(&meetings(), |meeting| {
        let met = runtime.block_on(meet(&mut bench.borrow_mut(), shape, &meeting));
        *tally.borrow_mut() = met.map_err(TestCaseError::fail)?;
        Ok(())
    });
    told(result)?;
    Ok(tally.into_inner())
}
