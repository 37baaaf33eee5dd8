//! All jobs of a history, the budget periods that they are charged to, the
//! policy and the clock.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::job::Job;
use super::units::Units;
use super::{Answer, No, Place, Room, time};
use crate::histories::policy::{Policy, Shape};
use crate::histories::request::{ACCOUNTS, Operation, Request, Token, Verb};

/// The pool stands after the accounts.
const POOL: usize = ACCOUNTS.len();

/// One period of the budget of an account, or of the pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    pub owner: usize,
    pub starts_at: i64,
    pub ends_at: i64,
    pub limit: Units,
    pub carried: Units,
    pub available: Units,
    pub reserved: Units,
    pub liability: Units,
    pub settled: Units,
    /// What moved, by what caused it: available, reserved, liability, settled.
    pub journal: BTreeMap<String, [Units; 4]>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct World {
    pub shape: Shape,
    pub policy: Policy,
    pub now: i64,
    pub jobs: BTreeMap<usize, Job>,
    /// The jobs in the order in which they were admitted.
    pub order: Vec<usize>,
    /// Those that have been opened, in that order.
    pub periods: Vec<Period>,
}

impl World {
    /// Nothing has happened yet.
    pub fn new(shape: Shape, now: i64) -> Self {
        Self { shape, policy: shape.usual, now, jobs: BTreeMap::new(), order: Vec::new(), periods: Vec::new() }
    }

    /// Answers a request, and does what it does. `None`: it is about a job that
    /// was never admitted.
    pub fn ask(&mut self, request: &Request) -> Option<Answer> {
        if let Verb::Reserve { operation, units, holder, lease } = request.verb {
            return Some(self.reserve(request.job, operation, units, holder, lease));
        }
        let place = self.place_of(self.jobs.get(&request.job)?);
        let job = self.jobs.get_mut(&request.job)?;
        let before = job.clone();
        let answer = job.act(request, &place);
        job.holds_together();
        self.post(request.job, Some(&before));
        Some(answer)
    }

    fn reserve(&mut self, number: usize, operation: Operation, units: Units, holder: u8, lease: i64) -> Answer {
        if let Some(job) = self.jobs.get(&number) {
            if (job.operation, job.estimate) != (operation, units) {
                return No::because(422, "idempotency_key_reused", json!({})).answer(None);
            }
            let token = if job.holder == holder { Token::Of(job.attempt) } else { Token::Never };
            let mut answer = job.ok(token, &self.place_of(job));
            answer.body["(replayed)"] = json!(true);
            return answer;
        }
        let place = self.place_for(number, operation);
        if place.retired {
            return No::because(422, "unknown_operation", json!({})).answer(None);
        }
        if let Err(no) = place.could_ever_admit(units) {
            return no.answer(None);
        }
        for owner in [number % ACCOUNTS.len(), POOL] {
            self.open(owner);
        }
        let place = self.place_for(number, operation);
        if let Err(no) = place.admits(units) {
            return no.answer(None);
        }
        let job = Job::new(number, operation, units, holder, lease, &place);
        let answer = Answer { status: 201, ..job.ok(Token::Of(1), &place) };
        self.jobs.insert(number, job);
        self.order.push(number);
        self.post(number, None);
        answer
    }

    /// Where a new job would be decided.
    pub fn place_for(&self, number: usize, operation: Operation) -> Place {
        let rooms = [number % ACCOUNTS.len(), POOL].into_iter().map(|owner| self.room(&self.present(owner)));
        self.place(operation, rooms.collect())
    }

    /// Where a verb on this job is decided: in its own periods.
    pub fn place_of(&self, job: &Job) -> Place {
        let own = |(budget, owner): (&Room, usize)| {
            let period = self.periods.iter().find(|p| p.owner == owner && p.starts_at == budget.starts_at);
            self.room(period.unwrap())
        };
        let rooms = job.budgets.iter().zip([job.number % ACCOUNTS.len(), POOL]).map(own).collect();
        self.place(job.operation, rooms)
    }

    fn place(&self, operation: Operation, rooms: Vec<Room>) -> Place {
        Place {
            now: self.now,
            max_units: Units::whole(self.shape.max_units),
            retired: operation == Operation::Ask && self.policy.ask_retired,
            rooms,
        }
    }

    fn room(&self, period: &Period) -> Room {
        Room {
            budget: if period.owner == POOL { "pool" } else { "own" },
            enforces: period.owner != POOL || self.shape.pool_enforces,
            limit: period.limit,
            available: period.available,
            held: period.reserved + period.liability,
            carried: period.carried,
            starts_at: period.starts_at,
            ends_at: period.ends_at,
        }
    }

    /// The period of the present, as it is or as it would open.
    fn present(&self, owner: usize) -> Period {
        let of_it = || self.periods.iter().filter(|period| period.owner == owner);
        if let Some(open) = of_it().find(|period| period.starts_at <= self.now && self.now < period.ends_at) {
            return open.clone();
        }
        let (kind, limit) = match owner {
            POOL => (self.shape.pool_period, self.policy.pool),
            _ => (self.shape.own_period, self.policy.own),
        };
        let limit = Units::whole(limit);
        let held = of_it().map(|period| period.reserved + period.liability).sum();
        let carried = if self.shape.carries { held } else { Units::ZERO };
        let starts_at = self.now - self.now % kind.seconds();
        let mut period = Period {
            owner,
            starts_at,
            ends_at: starts_at + kind.seconds(),
            limit,
            carried,
            available: limit - carried,
            reserved: Units::ZERO,
            liability: Units::ZERO,
            settled: Units::ZERO,
            journal: BTreeMap::new(),
        };
        period.note("period_opened", [limit, Units::ZERO, Units::ZERO, Units::ZERO]);
        period.note("carried_in", [Units::ZERO - carried, Units::ZERO, Units::ZERO, Units::ZERO]);
        period
    }

    fn open(&mut self, owner: usize) {
        if !self.is_open(owner) {
            self.periods.push(self.present(owner));
        }
    }

    fn is_open(&self, owner: usize) -> bool {
        let open = |period: &Period| period.starts_at <= self.now && self.now < period.ends_at;
        self.periods.iter().any(|period| period.owner == owner && open(period))
    }

    /// Whether the present periods of an account, and of the pool, are open.
    pub fn has_opened(&self, account: usize) -> bool {
        self.is_open(account) && self.is_open(POOL)
    }

    /// The job has come to this, one version later.
    pub fn comes_to(&mut self, number: usize, job: Job) {
        let before = self.jobs.insert(number, job);
        self.post(number, before.as_ref());
    }

    /// Posts what a job has come to hold, in each of its periods.
    fn post(&mut self, number: usize, before: Option<&Job>) {
        let job = &self.jobs[&number];
        let of = |job: Option<&Job>| {
            job.map_or([Units::ZERO; 4], |job| {
                [Units::ZERO - job.charged(), job.reserved(), job.liability(), job.settled]
            })
        };
        let (was, is) = (of(before), of(Some(job)));
        let change = [0, 1, 2, 3].map(|bucket| is[bucket] - was[bucket]);
        let event = job.events.last().unwrap();
        let because = event.reason.map_or(String::new(), |reason| format!(" because {reason}"));
        let cause = format!("{} j{number} v{}{because}", event.event, job.version);
        let bounds: Vec<i64> = job.budgets.iter().map(|budget| budget.starts_at).collect();
        for (owner, starts_at) in [number % ACCOUNTS.len(), POOL].into_iter().zip(bounds) {
            let period = self.periods.iter_mut().find(|p| p.owner == owner && p.starts_at == starts_at).unwrap();
            period.moves(&cause, change);
            self.give_back(owner);
        }
    }

    /// What earlier periods no longer hold comes back to the newest.
    fn give_back(&mut self, owner: usize) {
        let of_it: Vec<usize> = (0..self.periods.len()).filter(|i| self.periods[*i].owner == owner).collect();
        let Some((newest, earlier)) = of_it.split_last() else { return };
        let held: Units = earlier.iter().map(|i| self.periods[*i].reserved + self.periods[*i].liability).sum();
        let newest = &mut self.periods[*newest];
        if newest.carried > held {
            let back = newest.carried - held;
            newest.carried = held;
            newest.moves("given_back", [back, Units::ZERO, Units::ZERO, Units::ZERO]);
        }
    }

    /// Another policy is in force, at once for the periods that are open.
    pub fn apply(&mut self, policy: Policy) {
        self.policy = policy;
        for period in self.periods.iter_mut().filter(|period| self.now < period.ends_at) {
            let limit = Units::whole(if period.owner == POOL { policy.pool } else { policy.own });
            let change = limit - period.limit;
            period.limit = limit;
            let cause = if change > Units::ZERO { "limit_raised" } else { "limit_lowered" };
            period.moves(cause, [change, Units::ZERO, Units::ZERO, Units::ZERO]);
        }
    }

    /// The budgets of an account as they are answered.
    pub fn budgets(&self, account: usize) -> Value {
        let period = self.present(account);
        json!({"items": [{
            "budget": "own", "member": null, "unit": "u", "mode": "enforce",
            "period_starts_at": time(period.starts_at), "period_ends_at": time(period.ends_at),
            "resets_at": time(period.ends_at), "limit": period.limit.to_string(),
            "available": period.available.to_string(), "reserved": period.reserved.to_string(),
            "liability": period.liability.to_string(), "settled": period.settled.to_string(),
        }]})
    }

    /// What is open and needs somebody: who, why, and how much of each budget.
    pub fn liabilities(&self) -> Value {
        let open: Vec<&Job> = self.order.iter().map(|number| &self.jobs[number]).collect();
        let mut open: Vec<&Job> = open.into_iter().filter(|job| !job.open_parts(self.now).is_empty()).collect();
        open.sort_by_key(|job| job.open_since(self.now));
        let items: Vec<Value> = open
            .iter()
            .map(|job| {
                let why: Vec<&str> = job.open_parts(self.now).iter().map(|(why, _)| *why).collect();
                let since = job.open_since(self.now);
                json!({"reservation": job.view(Token::Never, self.now), "why": why, "since": time(since),
                       "age_seconds": self.now - since})
            })
            .collect();
        let total = |owner: usize| {
            let charged = open.iter().filter(|job| owner == POOL || job.number % ACCOUNTS.len() == owner);
            let parts: Vec<(&str, Units)> = charged.clone().flat_map(|job| job.open_parts(self.now)).collect();
            let sum = |why: &str| -> String {
                let of_it = parts.iter().filter(|(reason, _)| *reason == why);
                of_it.map(|(_, units)| *units).sum::<Units>().to_string()
            };
            let liability: Units = charged.map(|job| job.liability()).sum();
            json!({"account": ACCOUNTS.get(owner), "budget": if owner == POOL { "pool" } else { "own" },
                   "member": null, "unit": "u", "overdue": sum("overdue"), "cancelled": sum("cancelled"),
                   "unknown_calls": sum("unknown_calls"), "earlier_attempts": sum("earlier_attempts"),
                   "fenced": sum("fenced"), "liability": liability.to_string()})
        };
        let charges = |owner: &usize| open.iter().any(|job| *owner == POOL || job.number % ACCOUNTS.len() == *owner);
        let totals: Vec<Value> = (0..=POOL).filter(charges).map(total).collect();
        json!({"items": items, "totals": totals, "next_cursor": null})
    }

    /// Every balance and every reservation.
    pub fn books(&self) -> Value {
        let jobs: Map<String, Value> = self.jobs.values().map(|job| (format!("j{}", job.number), job.row())).collect();
        let periods: Map<String, Value> =
            self.periods.iter().map(|period| (period.name(), period.balances())).collect();
        json!({"jobs": jobs, "periods": periods})
    }

    /// What there is beside the books: histories, calls, late usage, the journal.
    pub fn beside_the_books(&self) -> Value {
        let jobs: Map<String, Value> =
            self.jobs.values().map(|job| (format!("j{}", job.number), job.rows_beside_it())).collect();
        let journal: Map<String, Value> = self
            .periods
            .iter()
            .map(|period| {
                let moved = period
                    .journal
                    .iter()
                    .map(|(cause, moved)| (cause.clone(), json!(moved.map(|units| units.to_string()))));
                (period.name(), Value::Object(moved.collect()))
            })
            .collect();
        json!({"jobs": jobs, "journal": journal})
    }
}

impl Period {
    fn moves(&mut self, cause: &str, change: [Units; 4]) {
        let [available, reserved, liability, settled] = change;
        self.available += available;
        self.reserved += reserved;
        self.liability += liability;
        self.settled += settled;
        self.note(cause, change);
        let whole = self.available + self.reserved + self.liability + self.settled;
        assert_eq!(whole, self.limit - self.carried, "the buckets add up to what is granted");
        assert!(self.reserved.min(self.liability).min(self.settled) >= Units::ZERO, "{self:?}");
    }

    fn note(&mut self, cause: &str, change: [Units; 4]) {
        if change != [Units::ZERO; 4] {
            let noted = self.journal.entry(cause.to_owned()).or_default();
            for (sum, moved) in noted.iter_mut().zip(change) {
                *sum += moved;
            }
        }
    }

    fn name(&self) -> String {
        format!("{} {}", ["a", "b", "pool"][self.owner], time(self.starts_at))
    }

    fn balances(&self) -> Value {
        json!({"limit": self.limit.to_string(), "carried": self.carried.to_string(),
               "available": self.available.to_string(), "reserved": self.reserved.to_string(),
               "liability": self.liability.to_string(), "settled": self.settled.to_string()})
    }
}
