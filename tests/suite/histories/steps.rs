//! Random steps. What a step asks for is only settled when its turn comes: it
//! names jobs, calls and amounts by what they are then ("what is left, and one
//! more"), so that a step stays meaningful when those before it are taken away.

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::units::Units;
use super::request::{CALLS, Operation, Role};

/// One step of a history.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub what: What,
    pub how: How,
}

/// How a request is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Once, at the first or the second process of the service.
    Once(usize),
    /// Twice at the same time, at both.
    Twice,
    /// Once, and the service is killed so many milliseconds later; then again,
    /// at those that take its place.
    Crash(u64),
}

/// Which attempt's token is presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Current,
    Earlier,
    Nobodys,
}

/// An amount: as it is, or so much beside what matters to the verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Of(Units),
    Beside(Units),
}

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    Reserve {
        job: usize,
        operation: Option<Operation>,
        units: Amount,
        holder: u8,
        lease: i64,
    },
    /// The request that it was admitted with, by this holder.
    ReserveAgain {
        job: usize,
        holder: u8,
    },
    Renew {
        job: usize,
        whose: Whose,
        lease: i64,
    },
    Extend {
        job: usize,
        whose: Whose,
        ceiling: Amount,
    },
    TakeOver {
        job: usize,
        behind: i64,
        holder: u8,
        evidence: bool,
        outstanding: Option<Amount>,
        force: bool,
        by: Role,
    },
    /// The takeover that made the current attempt, by who made it.
    TakeOverAgain {
        job: usize,
    },
    /// A call under a new key, or under the key of another.
    Admit {
        job: usize,
        whose: Whose,
        call: Option<usize>,
        units: Amount,
        extend: bool,
    },
    /// The same call again.
    AdmitAgain {
        job: usize,
        whose: Whose,
        call: usize,
    },
    SettleCall {
        job: usize,
        whose: Whose,
        call: usize,
        units: Amount,
        provider_request: Option<u8>,
    },
    NotSent {
        job: usize,
        whose: Whose,
        call: usize,
    },
    Unknown {
        job: usize,
        whose: Option<Whose>,
        call: usize,
        by: Role,
    },
    CloseCall {
        job: usize,
        call: usize,
        units: Amount,
    },
    Settle {
        job: usize,
        whose: Whose,
        units: Option<Amount>,
        finally: Option<bool>,
    },
    Close {
        job: usize,
        units: Amount,
    },
    Cancel {
        job: usize,
        by: Role,
    },
    Fence {
        job: usize,
        behind: i64,
        evidence: bool,
        outstanding: Option<Amount>,
        by: Role,
    },
    Look {
        job: usize,
    },
    Budgets {
        account: usize,
    },
    Wait {
        seconds: i64,
    },
    /// Until the day has ended, and so many seconds more.
    Midnight {
        seconds: i64,
    },
    Apply {
        own: i64,
        pool: i64,
        ask_retired: bool,
    },
}

/// Histories of up to so many steps; most of them have a third of that at most.
pub fn histories(longest: usize) -> impl Strategy<Value = Vec<Step>> {
    // Cut, not drawn from another range: what is shrunk can get as short as it has to.
    (vec(step(), 1..=longest), 0..3_u8).prop_map(move |(mut steps, cut)| {
        steps.truncate(if cut > 0 { longest.div_ceil(3) } else { longest });
        steps
    })
}

/// Boxed, as its parts are: what is shrunk by value is too large for a stack.
fn step() -> BoxedStrategy<Step> {
    let how = prop_oneof![
        240 => (0..2_usize).prop_map(How::Once),
        12 => Just(How::Twice),
        1 => (0..6_u64).prop_map(How::Crash),
    ];
    (what(), how).prop_map(|(what, how)| Step { what, how }).boxed()
}

/// What only asks about jobs.
pub fn requests() -> impl Strategy<Value = What> {
    prop_oneof![10 => reserving(), 34 => calls(), 14 => attempts(), 10 => ends()]
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        10 => reserving(),
        34 => calls(),
        14 => attempts(),
        10 => ends(),
        6 => world(),
    ]
}

fn reserving() -> BoxedStrategy<What> {
    let operation = prop_oneof![9 => Just(None), 1 => Just(Some(Operation::Run)), 1 => Just(Some(Operation::Ask))];
    let lease = || prop_oneof![Just(60_i64), Just(5), Just(600)];
    prop_oneof![
        4 => (job(), operation, amount(), 0..3_u8, lease()).prop_map(|(job, operation, units, holder, lease)| {
            What::Reserve { job, operation, units, holder, lease }
        }),
        1 => (job(), 0..3_u8).prop_map(|(job, holder)| What::ReserveAgain { job, holder }),
        1 => (job(), whose(), lease()).prop_map(|(job, whose, lease)| What::Renew { job, whose, lease }),
        4 => (job(), whose(), amount()).prop_map(|(job, whose, ceiling)| What::Extend { job, whose, ceiling }),
    ]
    .boxed()
}

fn calls() -> BoxedStrategy<What> {
    let another = prop_oneof![5 => Just(None), 1 => (0..CALLS.len()).prop_map(Some)];
    let call = || 0..CALLS.len();
    let request_id = proptest::option::weighted(0.2, 0..2_u8);
    let asker = prop_oneof![3 => Just(Role::Worker), 1 => Just(Role::Operator)];
    let presented = prop_oneof![1 => Just(None), 1 => whose().prop_map(Some)];
    prop_oneof![
        10 => (job_with_calls(), whose(), another, amount(), proptest::bool::weighted(0.3))
            .prop_map(|(job, whose, call, units, extend)| What::Admit { job, whose, call, units, extend }),
        1 => (job_with_calls(), whose(), call()).prop_map(|(job, whose, call)| What::AdmitAgain { job, whose, call }),
        8 => (job_with_calls(), any_whose(), call(), amount(), request_id)
            .prop_map(|(job, whose, call, units, provider_request)| {
                What::SettleCall { job, whose, call, units, provider_request }
            }),
        3 => (job_with_calls(), whose(), call()).prop_map(|(job, whose, call)| What::NotSent { job, whose, call }),
        4 => (job_with_calls(), presented, call(), asker)
            .prop_map(|(job, whose, call, by)| What::Unknown { job, whose, call, by }),
        2 => (job_with_calls(), call(), amount()).prop_map(|(job, call, units)| What::CloseCall { job, call, units }),
    ]
    .boxed()
}

fn attempts() -> BoxedStrategy<What> {
    let asker = || prop_oneof![Just(Role::Worker), Just(Role::Operator)];
    let forcing = prop_oneof![
        3 => Just((Role::Worker, false)), 5 => Just((Role::Operator, true)),
        1 => Just((Role::Operator, false)), 1 => Just((Role::Worker, true)),
    ];
    let behind = || prop_oneof![10 => Just(0_i64), 1 => Just(1), 1 => Just(-1)];
    let evidence = || proptest::bool::weighted(0.85);
    prop_oneof![
        6 => (job(), behind(), 0..3_u8, evidence(), sometimes(), forcing)
            .prop_map(|(job, behind, holder, evidence, outstanding, (by, force))| {
                What::TakeOver { job, behind, holder, evidence, outstanding, force, by }
            }),
        1 => job().prop_map(|job| What::TakeOverAgain { job }),
        3 => (job(), behind(), evidence(), sometimes(), asker())
            .prop_map(|(job, behind, evidence, outstanding, by)| {
                What::Fence { job, behind, evidence, outstanding, by }
            }),
        1 => (job(), asker()).prop_map(|(job, by)| What::Cancel { job, by }),
    ]
    .boxed()
}

fn ends() -> BoxedStrategy<What> {
    let finally = prop_oneof![2 => Just(None), 3 => Just(Some(false)), 1 => Just(Some(true))];
    let stated = prop_oneof![3 => amount().prop_map(Some), 1 => Just(None)];
    prop_oneof![
        8 => (job(), any_whose(), stated, finally)
            .prop_map(|(job, whose, units, finally)| What::Settle { job, whose, units, finally }),
        1 => (job(), amount()).prop_map(|(job, units)| What::Close { job, units }),
        1 => job().prop_map(|job| What::Look { job }),
    ]
    .boxed()
}

fn world() -> BoxedStrategy<What> {
    let policy =
        prop_oneof![Just((20, 34)), Just((8, 34)), Just((20, 10)), Just((0, 34)), Just((30, 40)), Just((12, 0))];
    prop_oneof![
        2 => prop_oneof![Just(20_i64), Just(61), Just(3600)].prop_map(|seconds| What::Wait { seconds }),
        2 => prop_oneof![Just(0_i64), Just(-1), Just(4000)].prop_map(|seconds| What::Midnight { seconds }),
        1 => (policy, proptest::bool::weighted(0.2))
            .prop_map(|((own, pool), ask_retired)| What::Apply { own, pool, ask_retired }),
        1 => (0..2_usize).prop_map(|account| What::Budgets { account }),
    ]
    .boxed()
}

fn job() -> impl Strategy<Value = usize> {
    prop_oneof![5 => Just(0_usize), 5 => Just(2), 1 => Just(1), 1 => Just(3)]
}

/// Mostly one whose calls the ledger admits.
fn job_with_calls() -> impl Strategy<Value = usize> {
    prop_oneof![12 => Just(0_usize), 3 => Just(1), 1 => Just(2)]
}

fn whose() -> impl Strategy<Value = Whose> {
    prop_oneof![20 => Just(Whose::Current), 2 => Just(Whose::Earlier), 1 => Just(Whose::Nobodys)]
}

fn any_whose() -> impl Strategy<Value = Whose> {
    prop_oneof![6 => Just(Whose::Current), 3 => Just(Whose::Earlier), 1 => Just(Whose::Nobodys)]
}

fn sometimes() -> impl Strategy<Value = Option<Amount>> {
    prop_oneof![2 => Just(None), 1 => amount().prop_map(Some)]
}

fn amount() -> impl Strategy<Value = Amount> {
    let whole = (0..14_i64).prop_map(Units::whole);
    let fine = prop_oneof![Just("0.000000000001"), Just("2.5"), Just("0.333333333333"), Just("7.999999999999")];
    let nearby = prop_oneof![
        4 => Just(Units::ZERO), 1 => Just(Units::STEP), 1 => Just(Units::ZERO - Units::STEP),
        1 => Just(Units::whole(1)), 1 => Just(Units::whole(-1)), 1 => Just(Units::whole(-2)),
    ];
    prop_oneof![
        6 => whole.prop_map(Amount::Of),
        1 => fine.prop_map(|text| Amount::Of(Units::parse(text))),
        5 => nearby.prop_map(Amount::Beside),
    ]
}
