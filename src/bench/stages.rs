//! The measurements of a run, one after another, and the ratios that come of them.

use sqlx::{Connection as _, Executor as _, PgConnection};

use super::BenchError;
use super::arena::{Arena, Keys};
use super::args::Plan;
use super::figures::{Series, to_f64};
use super::findings::Findings;
use super::floor::{self, Floor};
use super::load::{Group, Who};
use super::ratios::{Ratio, Target};
use super::service::Grouping;
use super::single;
use super::turns::{Turn, clients, take};
use super::workload::{Cycle, Workload, account};

/// KiB in a million bytes.
const KIB_PER_MB: f64 = 1_000_000.0 / 1024.0;

/// A run under way.
pub(super) struct Stages<'a> {
    pub(super) plan: &'a Plan,
    pub(super) arena: &'a mut Arena,
    pub(super) keys: &'a Keys,
    pub(super) findings: &'a mut Findings,
}

impl Stages<'_> {
    /// All that is planned.
    pub(super) async fn run(&mut self) -> Result<(), BenchError> {
        for workload in [Workload::Hot, Workload::Zipf] {
            for cycle in [Cycle::Settle, Cycle::Call] {
                if self.plan.has(workload, cycle) {
                    self.grouping(workload, cycle).await?;
                }
            }
        }
        let hot = self.plan.has(Workload::Hot, Cycle::Settle);
        if hot {
            self.yardsticks().await?;
        }
        if self.plan.workloads.contains(&Workload::Refusals) {
            self.refusals().await?;
            self.wal_of_refusals().await?;
            self.storm().await?;
        }
        if hot {
            if self.plan.prefill > 0 {
                self.history().await?;
            }
            self.memory().await?;
        }
        // What has a target comes first.
        self.findings.ratios.sort_by_key(|ratio| ratio.target.is_none());
        Ok(())
    }

    /// The same service with grouping on and off.
    async fn grouping(&mut self, workload: Workload, cycle: Cycle) -> Result<(), BenchError> {
        let name = format!("{}-{}", workload.as_str(), cycle.as_str());
        let mut stands = vec![
            self.arena.stand(&format!("{name}-on"), Grouping::On).await?,
            self.arena.stand(&format!("{name}-off"), Grouping::Off).await?,
        ];
        for number in &self.plan.clients {
            let group = clients(self.plan, self.keys, workload, cycle, *number);
            let turns = (0..2).map(|stand| Turn::new(&stands, stand, workload, group.clone())).collect();
            let rounds = self.plan.rounds_of(*number);
            let series = take(&self.arena.progress, self.plan.times, rounds, &mut stands, turns).await?;
            if let [on, off] = series.as_slice() {
                self.findings.ratios.extend(grouping_ratios(self.plan, workload, cycle, (on, off)));
            }
            self.findings.series.extend(series);
        }
        self.end(stands).await
    }

    /// The floor, and the shape with one reservation in each statement.
    async fn yardsticks(&mut self) -> Result<(), BenchError> {
        let judged = self.plan.judged;
        let name = format!("hot/settle/{judged}/on");
        let Some(on) = self.findings.series.iter().find(|series| series.name == name).cloned() else {
            return Ok(());
        };
        let what = format!("hot account, {judged} clients, over HTTP: cycles per second, against bare statements");
        let database = self.arena.copy("floor").await?;
        let size = |verb: &str| on.middle(|round| round.cost.decisions_per_statement.get(verb).copied());
        let asked = Floor {
            database_url: database.service_url.clone(),
            times: self.plan.times,
            reserve_group: size("reserve"),
            settle_group: size("settle"),
        };
        self.arena.progress.doing("floor");
        let target = Some(Target::AtLeast(0.5));
        let ratio = match floor::measure(&asked, self.plan.rounds).await? {
            floor::Outcome::Measured(series) => {
                let figure = |round: &super::figures::Measured| round.cycles_per_second;
                let ratio = Ratio::paired("hot_against_floor", what, target, (&on, &series), figure);
                self.findings.series.push(*series);
                ratio
            }
            floor::Outcome::NotMeasured(why) => Ratio::new("hot_against_floor", what, target, Vec::new()).note(why),
        };
        self.findings.ratios.push(ratio);
        self.arena.end_database("floor", database).await?;

        let database = self.arena.copy("single-statement").await?;
        let single = single::measure(self.arena, self.plan, &database).await?;
        let what = format!("hot account, {judged} clients, over HTTP: cycles per second, against single statements");
        self.findings.ratios.push(Ratio::paired("hot_against_single_statement", what, None, (&on, &single), |round| {
            round.cycles_per_second
        }));
        self.findings.series.push(single);
        self.arena.end_database("single-statement", database).await
    }

    /// Refusals with grouping on and off; at the number of clients that ratios are
    /// about, beside admissions: one request each.
    async fn refusals(&mut self) -> Result<(), BenchError> {
        let mut stands = vec![
            self.arena.stand("refusals-on", Grouping::On).await?,
            self.arena.stand("refusals-off", Grouping::Off).await?,
        ];
        for number in &self.plan.clients {
            let of = |workload| clients(self.plan, self.keys, workload, Cycle::Reserve, *number);
            let turn = |stand, workload| Turn::new(&stands, stand, workload, of(workload));
            let mut turns = vec![turn(0, Workload::Refusals), turn(1, Workload::Refusals)];
            if *number == self.plan.judged {
                turns.extend([turn(0, Workload::Hot), turn(1, Workload::Hot)]);
            }
            let series = take(&self.arena.progress, self.plan.times, self.plan.rounds, &mut stands, turns).await?;
            if let [refused_on, refused_off, admitted_on, admitted_off] = series.as_slice() {
                let ratios = refusal_ratios(self.plan, (refused_on, refused_off), (admitted_on, admitted_off));
                self.findings.ratios.extend(ratios);
            }
            self.findings.series.extend(series);
        }
        self.end(stands).await
    }

    /// What a refusal writes on its own way. The record of refusals is written beside
    /// the requests, in batches: here a trigger throws it away before it becomes a
    /// row, so that whatever is written is the requests'.
    async fn wal_of_refusals(&mut self) -> Result<(), BenchError> {
        let stand = self.arena.stand("refusals-without-record", Grouping::On).await?;
        if let Some(database) = &stand.database {
            let mut connection = PgConnection::connect(&database.owner_url).await?;
            connection.execute(NO_RECORD).await?;
            // Who reads a page with dead rows on it tidies up, once, and writes that down.
            connection.execute("vacuum").await?;
            connection.close().await?;
        }
        let mut stands = vec![stand];
        let group = clients(self.plan, self.keys, Workload::Refusals, Cycle::Reserve, self.plan.judged);
        let turns = vec![Turn::new(&stands, 0, Workload::Refusals, group).named("refusals without their record")];
        let series = take(&self.arena.progress, self.plan.times, self.plan.rounds, &mut stands, turns).await?;
        if let [refused] = series.as_slice() {
            let bytes = refused.rounds.iter().filter_map(|round| round.cost.wal_bytes_per_operation).collect();
            let wrote = refused.middle(|round| round.cost.writing_transactions_per_operation);
            let wrote =
                wrote.map_or_else(String::new, |wrote| format!("; {wrote:.6} transactions per refusal wrote anything"));
            // No record of WAL is shorter than 24 bytes.
            let what = "WAL of a refusal on the request's path (none; below 1 byte is the server's own housekeeping)";
            let ratio = Ratio::new("wal_per_refusal", what, Some(Target::AtMost(1.0)), bytes).unit("bytes");
            self.findings.ratios.push(ratio.note(format!("the batched record of refusals apart{wrote}")));
        }
        self.findings.series.extend(series);
        self.end(stands).await
    }

    /// Clients on accounts of their own, while an exhausted account is hammered at
    /// twice the rate that the service can admit.
    async fn storm(&mut self) -> Result<(), BenchError> {
        let plan = self.plan;
        let admissions = format!("hot/reserve/{}/on", plan.judged);
        let admitted = self.findings.series.iter().find(|series| series.name == admissions);
        let Some(rate) = admitted.and_then(|series| series.middle(|round| Some(round.cycles_per_second))) else {
            return Ok(());
        };
        let mut stands = vec![self.arena.stand("storm", Grouping::On).await?];
        let others = Group {
            clients: plan.others,
            cycle: Cycle::Settle,
            who: Who::Own((0..u32::from(plan.others)).map(account).collect()),
            authorization: self.keys.fleet.clone(),
            per_second: None,
        };
        let mut hammer = clients(plan, self.keys, Workload::Refusals, Cycle::Reserve, plan.hammers);
        hammer.per_second = Some(twice(rate));
        let turn = || Turn::new(&stands, 0, Workload::Zipf, others.clone());
        let turns = vec![turn().named("others, quiet"), turn().beside(hammer).named("others, in the storm")];
        let series = take(&self.arena.progress, plan.times, plan.rounds, &mut stands, turns).await?;
        if let [quiet, storm] = series.as_slice() {
            let what = format!(
                "{} clients on other accounts, while {} hammer an exhausted one: their p99, against without",
                plan.others, plan.hammers
            );
            let figure = |round: &super::figures::Measured| to_f64(round.latency_us.p99);
            let ratio = Ratio::paired("storm_p99", what, Some(Target::AtMost(5.0)), (storm, quiet), figure);
            let offered = twice(rate);
            let got = super::figures::median(storm.beside.iter().map(|round| round.requests_per_second)).unwrap_or(0.0);
            self.findings.ratios.push(ratio.note(format!("{offered} refusals per second offered, {got:.0} answered")));
        }
        self.findings.series.extend(series);
        self.end(stands).await
    }

    /// A database with history against one without.
    async fn history(&mut self) -> Result<(), BenchError> {
        let plan = self.plan;
        let mut stands = vec![
            self.arena.prefilled("history", Grouping::On, plan.prefill).await?,
            // Treated in the same way, but for the history.
            self.arena.prefilled("no-history", Grouping::On, 0).await?,
        ];
        let group = clients(plan, self.keys, Workload::Hot, Cycle::Settle, plan.judged);
        let turn = |stand, name: &str| Turn::new(&stands, stand, Workload::Hot, group.clone()).named(name);
        let turns = vec![turn(0, "hot, with history"), turn(1, "hot, without history")];
        let series = take(&self.arena.progress, plan.times, plan.rounds, &mut stands, turns).await?;
        if let [history, none] = series.as_slice() {
            let what = format!(
                "hot account, {} clients: cycles per second with {} settled reservations, against none",
                plan.judged, plan.prefill
            );
            let target = Some(Target::AtLeast(0.85));
            self.findings
                .ratios
                .push(Ratio::paired("history", what, target, (history, none), |round| round.cycles_per_second));
        }
        self.findings.series.extend(series);
        self.end(stands).await
    }

    /// What the service takes of memory when it has many connections, half of them on
    /// one account and half on many.
    async fn memory(&mut self) -> Result<(), BenchError> {
        let plan = self.plan;
        let mut stands = vec![self.arena.stand("memory", Grouping::On).await?];
        let half = plan.crowd / 2;
        let of = |workload| clients(plan, self.keys, workload, Cycle::Settle, half);
        let turn = Turn::new(&stands, 0, Workload::Hot, of(Workload::Hot)).beside(of(Workload::Zipf));
        let turns = vec![turn.named(format!("{} connections", plan.crowd))];
        let series = take(&self.arena.progress, plan.times, 1, &mut stands, turns).await?;
        let megabytes = |series: &Series, figure: fn(&super::figures::Cost) -> Option<u64>| {
            series.rounds.iter().filter_map(|round| figure(&round.cost)).map(megabytes).collect()
        };
        if let [crowd] = series.as_slice() {
            let target = Some(Target::AtMost(120.0));
            let what = |which| format!("memory of the service with {} connections under load, {which}", plan.crowd);
            let peak = megabytes(crowd, |cost| cost.service_peak_kib);
            let now = megabytes(crowd, |cost| cost.service_resident_kib);
            self.findings.ratios.extend([
                Ratio::new("memory_peak", what("peak"), target, peak).unit("MB"),
                Ratio::new("memory_resident", what("at the end"), target, now).unit("MB"),
            ]);
        }
        self.findings.series.extend(series);
        self.end(stands).await
    }

    async fn end(&mut self, stands: Vec<super::stand::Stand>) -> Result<(), BenchError> {
        for stand in stands {
            self.arena.end(stand).await?;
        }
        Ok(())
    }
}

/// Throws the record of refusals away before it becomes a row, in a database of the
/// run only.
const NO_RECORD: &str = "
    create function no_record() returns trigger language plpgsql as 'begin return null; end';
    create trigger refusal_is_not_recorded before insert on refusal
        for each row execute function no_record();";

fn grouping_ratios(plan: &Plan, workload: Workload, cycle: Cycle, pair: (&Series, &Series)) -> Vec<Ratio> {
    let number = pair.0.clients;
    let mut ratios = Vec::new();
    if number == plan.judged {
        let (name, target) = match (workload, cycle) {
            (Workload::Hot, Cycle::Settle) => ("hot_grouping", Some(Target::AtLeast(6.0))),
            (Workload::Zipf, Cycle::Settle) => ("zipf_grouping", Some(Target::AtLeast(2.0))),
            (Workload::Hot, _) => ("hot_grouping_with_calls", None),
            (_, _) => ("zipf_grouping_with_calls", None),
        };
        let who = match workload {
            Workload::Zipf => format!("{} accounts by Zipf", plan.accounts),
            _ => "hot account".to_owned(),
        };
        let what = format!("{who}, {number} clients, {}: cycles per second, grouping on against off", told(cycle));
        ratios.push(Ratio::paired(name, what, target, pair, |round| round.cycles_per_second));
    }
    if number == 1 && workload == Workload::Hot && cycle == Cycle::Settle {
        let what = "one client alone: latency p50, grouping on against off";
        let target = Some(Target::AtMost(1.05));
        ratios.push(Ratio::paired("alone_p50", what, target, pair, |round| to_f64(round.latency_us.p50)));
    }
    ratios
}

fn refusal_ratios(plan: &Plan, refused: (&Series, &Series), admitted: (&Series, &Series)) -> [Ratio; 3] {
    let number = plan.judged;
    let rate = |round: &super::figures::Measured| round.requests_per_second;
    let ratio =
        |name, what: &str, target, pair| Ratio::paired(name, format!("{number} clients: {what}"), target, pair, rate);
    let [against, refusals, admissions] = [
        "refusals of an exhausted account per second, against admissions with grouping off",
        "refusals of an exhausted account per second, grouping on against off",
        "admissions of a hot account per second, grouping on against off",
    ];
    let twice = Some(Target::AtLeast(2.0));
    [
        ratio("refusals_against_admissions", against, twice, (refused.0, admitted.1)),
        ratio("refusals_grouping", refusals, None, refused),
        ratio("admissions_grouping", admissions, None, admitted),
    ]
}

fn told(cycle: Cycle) -> &'static str {
    match cycle {
        Cycle::Settle => "reserve, settle",
        Cycle::Call => "reserve, call, settle call, settle",
        Cycle::Reserve => "reserve",
    }
}

#[expect(clippy::float_arithmetic, reason = "memory, for people")]
fn megabytes(kib: u64) -> f64 {
    to_f64(kib) / KIB_PER_MB
}

/// Twice a rate, in whole requests.
#[expect(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate of requests"
)]
fn twice(rate: f64) -> u64 {
    (rate * 2.0).max(1.0) as u64
}
