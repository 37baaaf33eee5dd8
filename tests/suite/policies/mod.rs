//! What a policy means for what is open, and what the limits it states refuse.

mod applying;
mod changing;
mod kinds;
mod refusing;

use crate::support::{Answer, Client, NORTHSTAR, Service};

const NOON: &str = "2026-03-04T12:00:00Z";

/// A service at noon of a Wednesday, its worker for northstar, its operator.
async fn with(policy: &str) -> (Service, Client, Client) {
    let service = Service::with_policy(policy).await;
    service.database.stop_clock(NOON).await;
    let worker = service.worker(&["northstar"]).await;
    let operator = service.operator().await;
    (service, worker, operator)
}

/// NORTHSTAR with another daily limit.
fn limit(units: &str) -> String {
    NORTHSTAR.replace("limit: 100", &format!("limit: {units}"))
}

/// settled, reserved, liability, available of northstar's day.
async fn daily(client: &Client) -> [String; 4] {
    client.balance("northstar", "daily", None).await
}

/// What was refused, or would have been: `account operation code units`. Ends
/// the service's use of its database.
async fn refusals(service: &Service) -> Vec<String> {
    service.ledger.close().await;
    let query = "select format('%s %s %s %s%s', coalesce(account, '-'), operation, code,
                               coalesce(trim_scale(units)::text, '-'), case when observed then ' observed' end)
                 from refusal order by id";
    service.database.lines(query).await
}

/// The names of the budgets that refused.
fn breached(refused: &Answer) -> Vec<&str> {
    refused.body["breaches"].as_array().unwrap().iter().map(|breach| breach["budget"].as_str().unwrap()).collect()
}

/// The fields that a refused policy names.
fn faults(refused: Answer) -> Vec<String> {
    let refused = refused.problem(400, "invalid_request");
    let errors = refused.body["errors"].as_array().unwrap();
    errors.iter().map(|error| error["field"].as_str().unwrap().to_owned()).collect()
}

fn budgets_of(reservation: &Answer) -> Vec<&str> {
    let budgets = reservation.body["budgets"].as_array().unwrap();
    budgets.iter().map(|period| period["budget"].as_str().unwrap()).collect()
}

/// Without the lines that begin like this.
fn without(policy: &str, starts: &[&str]) -> String {
    let kept = policy.lines().filter(|line| !starts.iter().any(|start| line.trim_start().starts_with(start)));
    kept.collect::<Vec<_>>().join("\n")
}
