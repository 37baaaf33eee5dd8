//! What is decided together comes out as if it had been sent one by one in the
//! order of arrival: random batches of every verb, with several budgets for each
//! item and budgets that run out in the middle.

use std::collections::BTreeMap;
use std::future::Future;

use futures_util::future::join_all;
use spend_ledger::ledger::calls::{AdmitCall, End, EndCall};
use spend_ledger::ledger::extend::Extend;
use spend_ledger::ledger::renew::Renew;
use spend_ledger::ledger::reserve::Reserve;
use spend_ledger::ledger::settle::{Settle, Usage};
use spend_ledger::ledger::{Error, Ledger};
use spend_ledger::model::Refusal;
use spend_ledger::model::reservation::Reservation;
use uuid::Uuid;

use super::{context, counted, grouped, name, one_by_one, reserve, units};
use crate::support::random::Random;
use crate::support::server::TestDatabase;
use crate::support::{Books, Service};

/// Budgets that run out at different times: of the account, of each member, of an
/// operation, of everybody; one only observes.
const POLICY: &str = "
providers:
  transformer: { unit: transformation, enforcement: calls }
  direct: { unit: transformation, enforcement: worker }
operations:
  bulk: { provider: transformer, explicit: true, max_units: 400 }
  stream: { provider: direct, explicit: true, max_units: 400 }
plans:
  standard:
    budgets:
      whole: { unit: transformation, limit: 900, period: total }
      each: { unit: transformation, limit: 400, period: total, per: member }
      streams: { unit: transformation, limit: 450, period: total, operation: stream }
      watched: { unit: transformation, limit: 300, period: total, mode: observe }
accounts:
  northstar: { plan: standard }
  southstar: { plan: standard, limits: { whole: 700 } }
pools:
  everyone: { unit: transformation, limit: 1300, period: total }
";

const BATCHES: usize = 40;

/// The same requests, decided together and one by one.
///
/// Of one account: they come in order, also when several are about the same job, and
/// the pool that it shares may run out in the middle. Of two accounts, those of one
/// need not wait for those of the other: then the pool has room for all.
struct Twins {
    one_account: bool,
    together: Side,
    alone: Side,
    random: Random,
    made: usize,
}

struct Side {
    service: Service,
    /// Each reservation that was admitted, by its key, as it was then.
    jobs: BTreeMap<String, Job>,
}

#[derive(Clone)]
struct Job {
    account: String,
    id: Uuid,
    token: String,
}

/// One request, of either side: it names the job by its key.
#[derive(Debug, Clone)]
enum Asked {
    Reserve(Reserve),
    Extend(String, String),
    Call(String, String, String, bool),
    EndCall(String, String, Option<String>),
    Settle(String, String, bool),
    Renew(String, i32, bool),
}

impl Side {
    async fn new(options: crate::support::Options, pool: &str) -> Self {
        let service = Service::on(TestDatabase::new().await, options).await;
        service.apply(&POLICY.replace("limit: 1300,", &format!("limit: {pool},"))).await;
        let side = Self { service, jobs: BTreeMap::new() };
        // Every period is open: who finds one missing is decided after it was opened.
        for account in ["northstar", "southstar"] {
            for member in ["ann", "ben", "cleo"] {
                let mut first = reserve(account, &format!("first of {member}"), "stream", "1");
                first.request.member = Some(name(member));
                side.ask(&Asked::Reserve(first)).await.1.unwrap();
            }
        }
        side
    }

    fn ledger(&self) -> &Ledger {
        &self.service.ledger
    }

    fn job(&self, key: &str) -> Job {
        self.jobs[key].clone()
    }

    /// Asks one, and says what came of it in the same words on either side.
    async fn ask(&self, asked: &Asked) -> (String, Option<Reservation>) {
        let (ledger, context) = (self.ledger(), context());
        let answer = match asked {
            Asked::Reserve(reserve) => ledger.reserve(&context, reserve).await.map(|reserved| reserved.reservation),
            Asked::Extend(key, ceiling) => {
                let Job { account, id, token } = self.job(key);
                let ask = Extend { account: name(&account), id, attempt: token, ceiling: units(ceiling) };
                ledger.extend(&context, &ask).await
            }
            Asked::Call(key, call, most, extend) => {
                let Job { account, id, token } = self.job(key);
                let most = Usage::Units(units(most));
                let call = call.clone();
                let ask = AdmitCall { account: name(&account), id, attempt: token, call, most, extend: *extend };
                ledger.admit_call(&context, &ask).await.map(|call| call.reservation)
            }
            Asked::EndCall(key, call, amount) => {
                let Job { account, id, token } = self.job(key);
                let end = match amount {
                    Some(amount) => End::Settled(Usage::Units(units(amount))),
                    None => End::Unknown,
                };
                let (attempt, call) = (Some(token), call.clone());
                let ask = EndCall {
                    account: name(&account),
                    id,
                    call,
                    attempt,
                    end,
                    provider_request_id: None,
                    reason: None,
                };
                ledger.end_call(&context, &ask).await.map(|call| call.reservation)
            }
            Asked::Settle(key, amount, r#final) => {
                let Job { account, id, token } = self.job(key);
                let usage = Some(Usage::Units(units(amount)));
                let account = name(&account);
                let ask = Settle { account, id, attempt: token, usage, r#final: *r#final, provider_request_id: None };
                ledger.settle(&context, &ask).await
            }
            Asked::Renew(key, lease_seconds, stale) => {
                let Job { account, id, token } = self.job(key);
                let attempt = if *stale { "1.stale".to_owned() } else { token };
                let ask = Renew { account: name(&account), id, attempt, lease_seconds: *lease_seconds };
                ledger.renew(&context, &ask).await
            }
        };
        match answer {
            Ok(reservation) => (stand(&reservation), Some(reservation)),
            Err(Error::Refused(refusal)) => (said(&refusal), None),
            Err(Error::RefusedOn { refusal, reservation }) => {
                (format!("{} {}", said(&refusal), stand(&reservation)), None)
            }
            Err(error) => panic!("{asked:?}: {error}"),
        }
    }

    fn keep(&mut self, asked: &[Asked], answers: &[(String, Option<Reservation>)]) {
        for (asked, (_, reservation)) in asked.iter().zip(answers) {
            if let (Asked::Reserve(reserve), Some(reservation)) = (asked, reservation) {
                let (account, token) = (reserve.account.to_string(), reservation.record.attempt_token.clone().unwrap());
                self.jobs.insert(reserve.key.clone(), Job { account, id: reservation.record.id, token });
            }
        }
    }

    async fn books(&self) -> Books {
        Books::read(&self.service.database).await
    }
}

/// What a refusal says, and by how much: the balances that it saw are those that
/// the ones before it left.
fn said(refusal: &Refusal) -> String {
    match refusal {
        Refusal::BudgetExhausted { breaches, retry, .. } => {
            let breaches: Vec<_> = breaches
                .iter()
                .map(|breach| format!("{} {} of {}", breach.budget, breach.requested, breach.available))
                .collect();
            format!("budget_exhausted {retry:?} {breaches:?}")
        }
        other => format!("{} {other}", other.code()),
    }
}

fn stand(reservation: &Reservation) -> String {
    let record = &reservation.record;
    format!(
        "{:?} v{} ceiling {} settled {} in flight {} unknown {} reserved {} liability {}",
        record.state,
        record.version,
        record.ceiling,
        record.settled,
        record.in_flight,
        record.unknown,
        record.reserved,
        record.liability
    )
}

impl Twins {
    async fn new(seed: u64, one_account: bool) -> Self {
        let pool = if one_account { "1300" } else { "100000" };
        let (together, alone) = (Side::new(grouped(), pool).await, Side::new(one_by_one(), pool).await);
        Self { one_account, together, alone, random: Random::new(seed), made: 0 }
    }

    fn amount(&mut self, below: u64) -> String {
        self.random.below(below).to_string()
    }

    /// A batch of one verb.
    fn batch(&mut self) -> Vec<Asked> {
        let size = 2 + self.random.below(30);
        let verb = self.random.below(7);
        let one_account = self.one_account;
        let account = self.random.one_of(&["northstar", "southstar"]);
        let jobs: Vec<String> = self
            .together
            .jobs
            .iter()
            .filter(|(_, job)| !one_account || job.account == account)
            .map(|(key, _)| key.clone())
            .collect();
        let mut batch: Vec<Asked> = Vec::new();
        let mut about = Vec::new();
        for _ in 0..size {
            if verb < 2 || jobs.is_empty() {
                let account = if one_account { account } else { self.random.one_of(&["northstar", "southstar"]) };
                batch.push(self.a_reserve(account));
                continue;
            }
            let job = jobs[usize::try_from(self.random.below(jobs.len() as u64)).unwrap()].clone();
            if !one_account && about.contains(&job) {
                continue;
            }
            about.push(job.clone());
            batch.push(self.about(verb, job));
        }
        batch
    }

    fn a_reserve(&mut self, account: &str) -> Asked {
        self.made += 1;
        let operation = self.random.one_of(&["bulk", "stream"]);
        let amount = (1 + self.random.below(60)).to_string();
        let mut asked = reserve(account, &format!("job {}", self.made), operation, &amount);
        asked.request.member = Some(name(self.random.one_of(&["ann", "ben", "cleo"])));
        Asked::Reserve(asked)
    }

    fn about(&mut self, verb: u64, job: String) -> Asked {
        let call = format!("call {}", self.random.below(3));
        match verb {
            2 => Asked::Extend(job, self.amount(120)),
            3 => Asked::Call(job, call, self.amount(40), self.random.below(2) == 0),
            4 => Asked::EndCall(job, call, (self.random.below(4) > 0).then(|| self.amount(50))),
            5 => Asked::Settle(job, self.amount(70), self.random.below(2) == 0),
            _ => Asked::Renew(job, 30, self.random.below(4) == 0),
        }
    }

    async fn play(&mut self) {
        for turn in 0..BATCHES {
            let batch = self.batch();
            let together = all_of(batch.iter().map(|asked| self.together.ask(asked))).await;
            let mut alone = Vec::new();
            for asked in &batch {
                alone.push(self.alone.ask(asked).await);
            }
            for (n, asked) in batch.iter().enumerate() {
                assert_eq!(together[n].0, alone[n].0, "batch {turn}, item {n}: {asked:?} of {batch:#?}");
            }
            self.together.keep(&batch, &together);
            self.alone.keep(&batch, &alone);
        }
        let (together, alone) = (self.together.books().await, self.alone.books().await);
        assert_eq!(together.periods, alone.periods);
        assert_eq!(together.reservations, alone.reservations);
        // In the pool the entries of two accounts may be in another order.
        if self.one_account {
            assert_eq!(together.journal, alone.journal);
        }
    }
}

async fn all_of<T>(asked: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    join_all(asked).await
}

async fn play(seeds: std::ops::Range<u64>, one_account: bool) {
    let (mut statements, mut decisions) = (0, 0);
    for seed in seeds {
        let mut twins = Twins::new(seed, one_account).await;
        twins.play().await;
        for verb in ["reserve", "extend", "admit_call", "end_call", "settle", "renew"] {
            let (sent, decided) = counted(twins.together.ledger(), verb);
            assert!(sent <= decided);
            statements += sent;
            decisions += decided;
            let (sent, decided) = counted(twins.alone.ledger(), verb);
            assert_eq!(sent, decided, "one by one, every decision has its statement");
        }
    }
    assert!(decisions > 3 * statements, "{decisions} decisions by {statements} statements: little was put together");
}

#[tokio::test]
async fn random_batches_of_one_account() {
    play(0..4, true).await;
}

#[tokio::test]
async fn random_batches_of_several_accounts() {
    play(4..8, false).await;
}
