//! What a step comes to in the world as it is when its turn comes.

use super::model::Room;
use super::model::job::{CallState, Job, State};
use super::model::units::Units;
use super::model::world::World;
use super::policy::Policy;
use super::request::{CALLS, JOBS, Operation, Request, Role, Token, Verb};
use super::steps::{Amount, What, Whose};

/// What a step comes to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    Ask(Request),
    Budgets(usize),
    WaitUntil(i64),
    Apply(Policy),
}

impl Amount {
    /// The amount, where `mark` is what matters.
    fn at(self, mark: Units) -> Units {
        match self {
            Self::Of(units) => units,
            Self::Beside(by) => (mark + by).or_zero(),
        }
    }

    /// The same, never zero.
    fn above_zero(self, mark: Units) -> Units {
        self.at(mark).max(Units::STEP)
    }
}

/// The work that a job does unless a step says otherwise: on each account one
/// of each kind.
fn usual(job: usize) -> Operation {
    if job < JOBS / 2 { Operation::Ask } else { Operation::Run }
}

impl What {
    /// What it comes to in this world, where the service has told these tokens.
    pub fn action(&self, world: &World, knows: impl Fn(Token, usize) -> bool) -> Action {
        let (job, by, verb) = match *self {
            Self::Budgets { account } => return Action::Budgets(account),
            Self::Wait { seconds } => return Action::WaitUntil(world.now + seconds),
            Self::Midnight { seconds } => {
                let next = world.now - world.now % 86400 + 86400;
                return Action::WaitUntil((next + seconds).max(world.now));
            }
            Self::Apply { own, pool, ask_retired } => return Action::Apply(Policy { own, pool, ask_retired }),
            Self::Reserve { job, operation, units, holder, lease } => {
                let operation = operation.unwrap_or(usual(job));
                let available = room_in(&world.place_for(job, operation).rooms);
                (job, Role::Worker, Verb::Reserve { operation, units: units.above_zero(available), holder, lease })
            }
            Self::ReserveAgain { job, .. }
            | Self::Renew { job, .. }
            | Self::Extend { job, .. }
            | Self::TakeOver { job, .. }
            | Self::TakeOverAgain { job }
            | Self::Admit { job, .. }
            | Self::AdmitAgain { job, .. }
            | Self::SettleCall { job, .. }
            | Self::NotSent { job, .. }
            | Self::Unknown { job, .. }
            | Self::CloseCall { job, .. }
            | Self::Settle { job, .. }
            | Self::Close { job, .. }
            | Self::Cancel { job, .. }
            | Self::Fence { job, .. }
            | Self::Look { job } => match world.jobs.get(&job) {
                Some(known) => {
                    let (by, verb) = self.about(known, world, |token| knows(token, job));
                    (job, by, verb)
                }
                // What is not there yet is reserved first, if there is room.
                None => {
                    let operation = usual(job);
                    let rooms = world.place_for(job, operation).rooms;
                    let units = room_in(&rooms).min(Units::whole(9)).max(Units::STEP);
                    (job, Role::Worker, Verb::Reserve { operation, units, holder: 0, lease: 60 })
                }
            },
        };
        Action::Ask(Request { job, by, verb })
    }

    /// A request about a job that was admitted.
    fn about(&self, job: &Job, world: &World, knows: impl Fn(Token) -> bool) -> (Role, Verb) {
        let known = |token: Token| if knows(token) { token } else { Token::Never };
        let token = |whose: Whose| match whose {
            Whose::Current => known(Token::Of(job.attempt)),
            Whose::Earlier => known(Token::Of((job.attempt - 1).max(1))),
            Whose::Nobodys => Token::Never,
        };
        let worker = |verb| (Role::Worker, verb);
        match *self {
            Self::ReserveAgain { holder, .. } => {
                worker(Verb::Reserve { operation: job.operation, units: job.estimate, holder, lease: 60 })
            }
            Self::Renew { whose, lease, .. } => worker(Verb::Renew { attempt: token(whose), lease }),
            Self::Extend { whose, ceiling, .. } => {
                let most = job.ceiling + room_for(job, world);
                worker(Verb::Extend { attempt: token(whose), ceiling: ceiling.at(most) })
            }
            Self::Settle { whose, units, finally, .. } => {
                // Calls report no progress: it is tried only where no amount is stated.
                let pointless = job.operation == Operation::Ask && finally == Some(false) && units.is_some();
                let units = units.map(|amount| amount.at(job.attempt_settled));
                let finally = finally.filter(|_| !pointless);
                worker(Verb::Settle { attempt: token(whose), units, finally })
            }
            Self::Close { units, .. } => (Role::Finance, Verb::Close { units: units.at(job.settled) }),
            Self::Cancel { by, .. } => (by, Verb::Cancel),
            Self::TakeOver { .. } | Self::TakeOverAgain { .. } | Self::Fence { .. } => self.about_an_attempt(job),
            Self::Look { .. } => worker(Verb::Look),
            _ => self.about_a_call(job, world, token, known),
        }
    }

    fn about_an_attempt(&self, job: &Job) -> (Role, Verb) {
        match *self {
            Self::Fence { behind, evidence, outstanding, by, .. } => {
                // What was stated can only be lowered: mostly that is tried.
                let (mark, outstanding) = match job.state {
                    State::Fenced => (job.attempt_stated, outstanding.or(Some(Amount::Beside(Units::whole(-1))))),
                    _ => (job.ceiling - job.settled - job.stated, outstanding),
                };
                let of_a_worker = |_: &Amount| job.operation == Operation::Run || !evidence;
                let outstanding = outstanding.filter(of_a_worker).map(|amount| amount.at(mark));
                (by, Verb::Fence { number: (job.attempt - behind).max(1), evidence, outstanding })
            }
            Self::TakeOver { behind, holder, evidence, outstanding, force, by, .. } => {
                let everything = job.ceiling - job.settled - job.outstanding() + job.attempt_settled;
                let outstanding = outstanding.map(|amount| amount.at(everything));
                let previous = (job.attempt - behind).max(1);
                (by, Verb::TakeOver { previous, holder, lease: 60, evidence, outstanding, force })
            }
            _ => {
                let (previous, holder) = ((job.attempt - 1).max(1), job.holder);
                let verb =
                    Verb::TakeOver { previous, holder, lease: 60, evidence: true, outstanding: None, force: false };
                (Role::Worker, verb)
            }
        }
    }

    fn about_a_call(
        &self,
        job: &Job,
        world: &World,
        token: impl Fn(Whose) -> Token,
        known: impl Fn(Token) -> Token,
    ) -> (Role, Verb) {
        let worker = |verb| (Role::Worker, verb);
        match *self {
            // What ends a call is asked about one that there is: it is admitted first.
            Self::SettleCall { call, .. } | Self::NotSent { call, .. } | Self::Unknown { call, .. }
                if call > 0 && could_have_a_call(job) =>
            {
                let units = job.remaining().min(Units::whole(2)).max(Units::STEP);
                worker(Verb::Admit { attempt: token(Whose::Current), call, units, extend: false })
            }
            Self::Admit { whose, call, units, extend, .. } => {
                let unused = (0..CALLS.len()).find(|key| !job.calls.contains_key(key));
                let call = call.or(unused).unwrap_or(0);
                let most = if extend { job.remaining() + room_for(job, world) } else { job.remaining() };
                worker(Verb::Admit { attempt: token(whose), call, units: units.above_zero(most), extend })
            }
            Self::AdmitAgain { whose, call, .. } => {
                let call = existing(job, call);
                let units = job.calls.get(&call).map_or(Units::whole(1), |call| call.units);
                worker(Verb::Admit { attempt: token(whose), call, units, extend: false })
            }
            Self::SettleCall { whose, call, units, provider_request, .. } => {
                let call = existing(job, call);
                // Mostly whoever admitted it.
                let attempt = match (whose, job.calls.get(&call)) {
                    (Whose::Current, Some(call)) => known(Token::Of(call.attempt)),
                    (whose, _) => token(whose),
                };
                worker(Verb::SettleCall { attempt, call, units: units.at(recorded(job, call)), provider_request })
            }
            Self::NotSent { whose, call, .. } => {
                worker(Verb::NotSent { attempt: token(whose), call: existing(job, call) })
            }
            Self::Unknown { whose, call, by, .. } => {
                // An operator has no attempt to present.
                let attempt = whose.filter(|_| by == Role::Worker).map(token);
                (by, Verb::Unknown { attempt, call: existing(job, call) })
            }
            Self::CloseCall { call, units, .. } => {
                let call = existing(job, call);
                (Role::Finance, Verb::CloseCall { call, units: units.at(recorded(job, call)) })
            }
            _ => unreachable!("{self:?} is not about a call"),
        }
    }
}

/// Whether the job could have a call and has none.
fn could_have_a_call(job: &Job) -> bool {
    job.operation == Operation::Ask && job.state == State::Active && job.calls.is_empty()
}

/// What its budgets have room for beyond its ceiling.
fn room_for(job: &Job, world: &World) -> Units {
    room_in(&world.place_of(job).rooms).or_zero()
}

fn room_in(rooms: &[Room]) -> Units {
    rooms.iter().filter(|room| room.enforces).map(|room| room.available).min().unwrap()
}

/// The n-th of the calls that there are; if there are none, a key of no call.
fn existing(job: &Job, n: usize) -> usize {
    let keys: Vec<usize> = job.calls.keys().copied().collect();
    if keys.is_empty() { n } else { keys[n % keys.len()] }
}

/// What is known of a call.
fn recorded(job: &Job, call: usize) -> Units {
    job.calls.get(&call).map_or(Units::whole(1), |call| match call.state {
        CallState::Settled { actual } => actual,
        _ => call.units,
    })
}
