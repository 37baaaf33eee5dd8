//! One row's life: reserve, ask for more if it needs more, settle.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use spend_ledger_client::wire::{Answer, Exchange, Patience, Request, Wire};
use spend_ledger_client::{BuildError, ServiceUrl};

use super::args::{ReplayArgs, RunName};
use super::choices::Choices;
use super::trace::Row;
use crate::model::{Name, Units};

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Reserve,
    Extend,
    Settle,
    Books,
}

/// What all workers of a run have in common.
pub(super) struct Fleet {
    wire: Wire,
    pub(super) choices: Choices,
    pub(super) run: RunName,
    url: ServiceUrl,
    operation: Name,
    account: Name,
    /// The names of the quantities for prompt and output; none states units.
    quantities: Option<[Name; 2]>,
    max_output: u64,
}

/// What became of a row.
pub(super) struct RowReport {
    pub(super) row: u64,
    /// Its requests, in order.
    pub(super) exchanges: Vec<Exchanged>,
    /// None if it was not admitted.
    pub(super) admission: Option<Admission>,
    /// None if it did not ask for more; otherwise whether it got it, or the code of the refusal.
    pub(super) extension: Option<Result<(), String>>,
    pub(super) end: End,
}

/// What an exchange leaves for the statistics.
pub(super) struct Exchanged {
    pub(super) kind: Kind,
    pub(super) tries: u64,
    pub(super) lost: u64,
    pub(super) micros: Option<u64>,
}

/// What the service said when it admitted a row.
pub(super) struct Admission {
    pub(super) estimate: Units,
    /// Whether the answer was that of an earlier copy of the request.
    pub(super) replayed: bool,
}

/// How a row ended.
pub(super) enum End {
    /// The service acknowledged what it used.
    Settled { settled: Units, overrun: Units, before: bool },
    /// Not admitted, for this reason.
    Refused(String),
    /// The reservation's state did not allow it, for this reason.
    Conflict(String),
    /// Given up on.
    Failed(String),
    /// The operation does not count one unit per token. What was reserved is given back.
    NotTokens { asked: u64, estimate: Units },
}

/// What is read of a reservation.
#[derive(Deserialize)]
struct Reservation {
    id: String,
    state: String,
    estimate: Units,
    settled: Units,
    overrun: Units,
    attempt: Option<Attempt>,
}

#[derive(Deserialize)]
struct Attempt {
    token: Option<String>,
}

#[derive(Serialize)]
struct ReserveBody<'a> {
    operation: &'a str,
    account: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantities: Option<BTreeMap<&'a str, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<String>,
    holder: &'a str,
    reference: &'a str,
}

#[derive(Serialize)]
struct ExtendBody<'a> {
    attempt: &'a str,
    ceiling: String,
}

#[derive(Serialize)]
struct SettleBody<'a> {
    attempt: &'a str,
    units: String,
}

impl Fleet {
    pub(super) fn new(args: &ReplayArgs, run: RunName) -> Result<Self, BuildError> {
        let names = [args.prompt_quantity.clone(), args.output_quantity.clone()];
        let patience = Patience { retry_for: args.retry_for, ..Patience::default() };
        Ok(Self {
            wire: Wire::new(&args.key, patience)?,
            choices: Choices { seed: args.seed, lost: args.lost_share, small: args.extend_share },
            run,
            url: args.url.clone(),
            operation: args.operation.clone(),
            account: args.account.clone(),
            quantities: (!args.units).then_some(names),
            max_output: args.max_output,
        })
    }

    /// The budgets of the account.
    pub(super) async fn books(&self) -> Exchange {
        let url = self.url.path(&["v1", "accounts", self.account.as_str(), "budgets"]);
        self.wire.send(&Request::get(url)).await
    }

    /// Lives the life of one row's worker.
    pub(super) async fn work(&self, row: &Row) -> RowReport {
        let mut report = RowReport {
            row: row.number,
            exchanges: Vec::with_capacity(3),
            admission: None,
            extension: None,
            end: End::Failed(String::new()),
        };
        report.end = match self.live(row, &mut report).await {
            Ok(end) | Err(end) => end,
        };
        report
    }

    /// Either way the row ended; `Err` is for leaving early.
    async fn live(&self, row: &Row, report: &mut RowReport) -> Result<End, End> {
        let output = self.output(row);
        let asked = self.asked(row, output);
        let reservation = self.reserve(row, output, report).await?;
        if reservation.state == "settled" {
            let (settled, overrun) = (reservation.settled, reservation.overrun);
            return Ok(End::Settled { settled, overrun, before: true });
        }
        let Some(attempt) = reservation.attempt.and_then(|attempt| attempt.token) else {
            return Err(End::Conflict(format!("no_attempt ({})", reservation.state)));
        };
        let job = Job { id: &reservation.id, attempt: &attempt };
        if reservation.estimate != whole(asked) {
            // Settled in tokens it would be charged at the wrong price. No work was done.
            self.settle(row, job, 0, report).await?;
            return Err(End::NotTokens { asked, estimate: reservation.estimate });
        }
        if row.actual() > asked {
            let ceiling = row.prompt.saturating_add(row.generated.max(self.max_output));
            report.extension = Some(self.extend(row, job, ceiling, report).await?);
        }
        let settled = self.settle(row, job, row.actual(), report).await?;
        Ok(End::Settled { settled: settled.settled, overrun: settled.overrun, before: false })
    }

    /// The output that the row reserves.
    fn output(&self, row: &Row) -> u64 {
        if row.generated > 0 && self.choices.starts_small(row.number) {
            (row.generated / 2).min(self.max_output)
        } else {
            self.max_output
        }
    }

    /// The units that the row reserves. An explicit amount is above zero.
    fn asked(&self, row: &Row, output: u64) -> u64 {
        let least = u64::from(self.quantities.is_none());
        row.prompt.saturating_add(output).max(least)
    }

    async fn reserve(&self, row: &Row, output: u64, report: &mut RowReport) -> Result<Reservation, End> {
        let name = format!("replay-{}-{}", self.run.as_str(), row.number);
        let quantities = self.quantities.as_ref().map(|[prompt_name, output_name]| {
            BTreeMap::from([(prompt_name.as_str(), row.prompt.to_string()), (output_name.as_str(), output.to_string())])
        });
        let body = ReserveBody {
            operation: self.operation.as_str(),
            account: self.account.as_str(),
            units: quantities.is_none().then(|| self.asked(row, output).to_string()),
            quantities,
            holder: &name,
            reference: &name,
        };
        let answer = self.post(row, Kind::Reserve, &["v1", "reservations"], Some(&name), &body, report).await?;
        if !answer.is_success() {
            let problem = answer.problem();
            let code = problem.code.as_deref().unwrap_or_default();
            return Err(match (answer.status, code) {
                (429, _) | (_, "too_expensive" | "no_budget") => End::Refused(named(&answer)),
                (409, _) => End::Conflict(named(&answer)),
                _ => End::Failed(told(Kind::Reserve, &answer)),
            });
        }
        let reservation: Reservation = read(Kind::Reserve, &answer)?;
        let (estimate, replayed) = (reservation.estimate, answer.replayed);
        report.admission = Some(Admission { estimate, replayed });
        Ok(reservation)
    }

    /// Asks for a higher ceiling. Refused, the job goes on: the tokens are generated.
    async fn extend(
        &self,
        row: &Row,
        job: Job<'_>,
        ceiling: u64,
        report: &mut RowReport,
    ) -> Result<Result<(), String>, End> {
        let body = ExtendBody { attempt: job.attempt, ceiling: ceiling.to_string() };
        let path = ["v1", "reservations", job.id, "extend"];
        let answer = self.post(row, Kind::Extend, &path, None, &body, report).await?;
        Ok(if answer.is_success() { Ok(()) } else { Err(named(&answer)) })
    }

    async fn settle(&self, row: &Row, job: Job<'_>, units: u64, report: &mut RowReport) -> Result<Reservation, End> {
        let body = SettleBody { attempt: job.attempt, units: units.to_string() };
        let path = ["v1", "reservations", job.id, "settle"];
        let answer = self.post(row, Kind::Settle, &path, None, &body, report).await?;
        match answer.status {
            200..300 => read(Kind::Settle, &answer),
            409 => Err(End::Conflict(named(&answer))),
            _ => Err(End::Failed(told(Kind::Settle, &answer))),
        }
    }

    async fn post(
        &self,
        row: &Row,
        kind: Kind,
        path: &[&str],
        key: Option<&str>,
        body: &impl Serialize,
        report: &mut RowReport,
    ) -> Result<Answer, End> {
        let body = serde_json::to_value(body).map_err(|error| End::Failed(error.to_string()))?;
        let lost = self.choices.loses_answer(row.number, kind);
        let request = Request::post(self.url.path(path), &body).hang_up_after(lost);
        let request = match key {
            Some(key) => request.with_key(key).map_err(|error| End::Failed(error.to_string()))?,
            None => request,
        };
        let exchange = self.wire.send(&request).await;
        let micros = exchange.outcome.as_ref().ok().map(|answer| {
            // 64 bits of microseconds are half a million years.
            u64::try_from(answer.latency.as_micros()).unwrap_or(u64::MAX)
        });
        let Exchange { tries, lost, outcome, .. } = exchange;
        report.exchanges.push(Exchanged { kind, tries, lost, micros });
        outcome.map_err(|reason| End::Failed(format!("{}: {reason}", verb(kind))))
    }
}

/// A reservation that a worker holds.
#[derive(Clone, Copy)]
struct Job<'a> {
    id: &'a str,
    attempt: &'a str,
}

fn whole(tokens: u64) -> Units {
    // Bounded by the trace: the sum of two numbers far below what an amount holds.
    Units::parse(&tokens.to_string()).unwrap_or(Units::MAX)
}

fn read(kind: Kind, answer: &Answer) -> Result<Reservation, End> {
    serde_json::from_slice(&answer.body)
        .map_err(|error| End::Failed(format!("{}: the answer is no reservation: {error}", verb(kind))))
}

/// The stable reason of a refusal, to count by.
fn named(answer: &Answer) -> String {
    answer.problem().code.unwrap_or_else(|| format!("status {}", answer.status))
}

/// An answer that nobody expected, in full.
pub(super) fn told(kind: Kind, answer: &Answer) -> String {
    let problem = answer.problem();
    let detail = problem.detail.map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("{}: answered {} ({}){detail}", verb(kind), answer.status, named(answer))
}

fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Reserve => "reserve",
        Kind::Extend => "extend",
        Kind::Settle => "settle",
        Kind::Books => "budgets",
    }
}
