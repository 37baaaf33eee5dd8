//! A service that is already running, measured from outside.

use std::sync::Arc;

use sqlx::{Connection as _, PgConnection};

use super::arena::{Keys, check};
use super::args::{BenchArgs, Plan};
use super::facts::Facts;
use super::findings::Findings;
use super::progress::Progress;
use super::stand::Stand;
use super::turns::{Turn, clients, take};
use super::wire::{Target, authorization};
use super::workload::{Cycle, EXHAUSTED, HOT, Workload, account};
use super::{BenchError, found_nothing};

/// Measures what can be seen from outside, and with a database URL also what Postgres
/// counts; then the books are checked.
pub(super) async fn run(args: &BenchArgs, plan: &Plan) -> Result<Findings, BenchError> {
    let (Some(url), Some(key)) = (&args.url, &args.key) else { return Err(BenchError::Key) };
    let key = authorization(key).ok_or(BenchError::Key)?;
    let keys = Keys { hot: key.clone(), exhausted: key.clone(), fleet: key };
    let parsed = url.path(&[]);
    let host = parsed.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let port = parsed.port_or_known_default().unwrap_or(80);
    let unknown = || BenchError::Unreachable(url.to_string());
    // A name may stand for several addresses: the first that answers, as everybody does.
    let stream = tokio::net::TcpStream::connect((host, port)).await.map_err(|_| unknown())?;
    let address = stream.peer_addr().map_err(|_| unknown())?;
    drop(stream);
    let target = Target::named(address, &format!("{}:{port}", parsed.host_str().unwrap_or_default()), parsed.path());
    let sampler = match &args.database_url {
        Some(url) => Some(PgConnection::connect(url).await?),
        None => None,
    };
    let variants = plan.workloads.iter().map(|workload| cycles(plan, *workload).len() * plan.clients.len());
    let measurements = variants.sum::<usize>() * usize::from(plan.rounds);
    let progress = Arc::new(Progress::new(u64::try_from(measurements).unwrap_or(0)));
    let facts = Facts::gather(args.database_url.as_deref(), false, true).await?;
    let mut findings = found_nothing(args, plan, facts);
    // Keys of reservations that no earlier run has used.
    let run = getrandom::u64().map_err(|error| BenchError::Load(error.to_string()))?;
    let stand = Stand::outside(&format!("bench-{run:016x}"), target, sampler);
    let outcome = tokio::select! {
        outcome = measure(plan, &keys, &progress, stand, &mut findings) => outcome,
        _ = tokio::signal::ctrl_c() => Err(BenchError::Interrupted),
    };
    progress.end();
    outcome?;
    match &args.database_url {
        Some(url) => findings.books.push(check("the database of the service", url).await?),
        None => findings.facts.warnings.push("the books were not checked: there is no database to ask".to_owned()),
    }
    Ok(findings)
}

/// What is refused needs no more to be done with it.
fn cycles(plan: &Plan, workload: Workload) -> &[Cycle] {
    match workload {
        Workload::Refusals => &[Cycle::Reserve],
        Workload::Hot | Workload::Zipf => &plan.cycles,
    }
}

async fn measure(
    plan: &Plan,
    keys: &Keys,
    progress: &Progress,
    mut stand: Stand,
    findings: &mut Findings,
) -> Result<(), BenchError> {
    progress.doing("using each account once");
    let mut accounts = vec![HOT.to_owned(), EXHAUSTED.to_owned()];
    if plan.workloads.contains(&Workload::Zipf) {
        accounts.extend((0..plan.accounts).map(account));
    }
    if let Err(error) = stand.prime(&keys.fleet, accounts).await {
        stand.stop().await?;
        return Err(error);
    }
    let mut stands = [stand];
    let mut done = Ok(());
    for workload in &plan.workloads {
        for (cycle, number) in
            cycles(plan, *workload).iter().flat_map(|cycle| plan.clients.iter().map(move |number| (cycle, number)))
        {
            let group = clients(plan, keys, *workload, *cycle, *number);
            let turns = vec![Turn::new(&stands, 0, *workload, group)];
            match take(progress, plan.times, plan.rounds, &mut stands, turns).await {
                Ok(series) => findings.series.extend(series),
                Err(error) if done.is_ok() => done = Err(error),
                Err(_) => {}
            }
        }
    }
    let [stand] = stands;
    stand.stop().await?;
    done
}
