//! A request to reserve as its statement takes it, and what the statement says of it.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use rust_decimal::Decimal;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use super::super::attempts::new_token;
use super::super::charges::ChargeSeen;
use super::super::group::{Grouped, Numbered, Subject, column};
use super::super::policy::PolicyInForce;
use super::super::{By, Context, Error};
use super::Reserve;
use crate::model::admission::Estimate;
use crate::model::reservation::{ChargedPeriod, Record, Reservation, State};
use crate::model::{Name, Units};

/// What the deciding statement said of one item.
pub(in crate::ledger) struct Verdict {
    n: i64,
    /// What was decided: `admitted`, or a word for why not.
    pub outcome: String,
    /// The database's clock.
    pub at: DateTime<Utc>,
    /// The budgets, as the item saw them.
    pub charges: Json<Vec<ChargeSeen>>,
}

impl Numbered for Verdict {
    fn number(&self) -> i64 {
        self.n
    }
}

/// A request as the statement takes it.
pub(in crate::ledger) struct Item {
    reserve: Reserve,
    estimate: Estimate,
    admission: Admission,
    /// The policy that the estimate was made by.
    policy_version: i64,
    by: By,
}

impl Item {
    /// What this process makes for an admission before it is decided: sent again by
    /// itself, it is recognised by its id.
    pub(in crate::ledger) fn new(
        context: &Context,
        reserve: &Reserve,
        policy: &PolicyInForce,
        estimate: &Estimate,
    ) -> Result<Self, Error> {
        let revision = policy.revision(&reserve.request.operation);
        Ok(Self {
            reserve: reserve.clone(),
            estimate: estimate.clone(),
            admission: Admission { id: Uuid::now_v7(), token: new_token(1)?, revision },
            policy_version: policy.version,
            by: By::of(context),
        })
    }

    /// What was made for it.
    pub(in crate::ledger) fn admission(&self) -> &Admission {
        &self.admission
    }
}

impl Grouped for Item {
    type Verdict = Verdict;
    const VERB: &'static str = "reserve";

    fn account(&self) -> &Name {
        &self.reserve.account
    }

    fn subject(&self) -> Subject {
        Subject::Job(self.reserve.account.clone(), self.reserve.key.clone())
    }

    /// A statement compares one version with the policy in force.
    fn goes_with(&self, other: &Self) -> bool {
        self.policy_version == other.policy_version
    }

    /// Another process has admitted a copy of one of these jobs.
    fn raced(error: &sqlx::Error) -> bool {
        error.as_database_error().and_then(|reported| reported.constraint()) == Some("reservation_key")
    }

    fn send<'a>(
        connection: &'a mut PgConnection,
        items: &'a [Arc<Self>],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, sqlx::Error>> {
        Box::pin(async move {
            let charges = Charges::of(items);
            let policy_version = items.first().map_or(0, |item| item.policy_version);
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/reserve.sql",
                &column(items, |item| item.reserve.account.to_string()),
                &column(items, |item| item.admission.id),
                &column(items, |item| item.reserve.key.clone()),
                &column(items, |item| serde_json::json!(item.reserve.request)),
                &column(items, |item| item.reserve.request.operation.to_string()),
                &column(items, |item| item.admission.revision),
                &column(items, |item| item.estimate.provider.to_string()),
                &column(items, |item| item.estimate.enforcement.as_str().to_owned()),
                &column(items, |item| item.estimate.unit.to_string()),
                &column(items, |item| text(item.reserve.request.member.as_ref())) as &[Option<String>],
                &column(items, |item| text(item.reserve.request.provider_key.as_ref())) as &[Option<String>],
                &column(items, |item| item.estimate.units.get()),
                &column(items, |item| item.reserve.holder.clone()),
                &column(items, |item| item.admission.token.clone()),
                &column(items, |item| item.reserve.lease_seconds),
                &column(items, |item| item.reserve.request.reference.clone()) as &[Option<String>],
                &column(items, |item| serde_json::json!(item.reserve.request.labels)),
                &column(items, |item| item.by.actor.clone()),
                &charges.items,
                &charges.owners,
                &charges.budgets,
                &charges.members,
                &charges.enforcing,
                policy_version,
                &charges.limits,
                &column(items, |item| item.by.key) as &[Option<Uuid>],
            )
            .fetch_all(connection)
            .await
        })
    }
}

/// The budgets that each item is charged to: one element for each charge.
#[derive(Default)]
struct Charges {
    /// The number of the item.
    items: Vec<i64>,
    owners: Vec<String>,
    budgets: Vec<String>,
    members: Vec<String>,
    enforcing: Vec<bool>,
    limits: Vec<Decimal>,
}

impl Charges {
    fn of(items: &[Arc<Item>]) -> Self {
        let mut charges = Self::default();
        for (number, item) in (1..).zip(items) {
            for charge in &item.estimate.charges {
                charges.items.push(number);
                charges.owners.push(text(charge.owner.as_ref()).unwrap_or_default());
                charges.budgets.push(charge.budget.to_string());
                charges.members.push(text(charge.member.as_ref()).unwrap_or_default());
                charges.enforcing.push(charge.enforces());
                charges.limits.push(charge.definition.limit.get());
            }
        }
        charges
    }
}

fn text(name: Option<&Name>) -> Option<String> {
    name.map(Name::to_string)
}

/// What this process made for an admission before it was decided.
#[derive(Clone)]
pub(in crate::ledger) struct Admission {
    /// Of the reservation.
    pub id: Uuid,
    /// Of its first attempt.
    pub token: String,
    /// Of the operation's cost map.
    revision: i32,
}

/// The reservation that the statement wrote, put together from what it was
/// given.
pub(super) fn admitted(reserve: &Reserve, estimate: &Estimate, admission: Admission, verdict: &Verdict) -> Reservation {
    let request = &reserve.request;
    let charges = &verdict.charges.0;
    let mut period_ids: Vec<Uuid> = charges.iter().filter_map(|charge| charge.period_id).collect();
    period_ids.sort_unstable();
    let lease = chrono::TimeDelta::seconds(i64::from(reserve.lease_seconds));
    let record = Record {
        account: reserve.account.clone(),
        id: admission.id,
        request: request.clone(),
        operation: request.operation.clone(),
        operation_revision: admission.revision,
        provider: estimate.provider.clone(),
        enforcement: estimate.enforcement,
        unit: estimate.unit.clone(),
        member: request.member.clone(),
        provider_key: request.provider_key.clone(),
        period_ids,
        estimate: estimate.units,
        ceiling: estimate.units,
        settled: Units::ZERO,
        in_flight: Units::ZERO,
        unknown: Units::ZERO,
        stated_outstanding: Units::ZERO,
        reserved: estimate.units,
        liability: Units::ZERO,
        state: State::Active,
        version: 1,
        attempt_number: Some(1),
        attempt_holder: Some(reserve.holder.clone()),
        attempt_token: Some(admission.token),
        lease_expires_at: Some(verdict.at + lease),
        reference: request.reference.clone(),
        labels: request.labels.clone(),
        created_at: verdict.at,
        updated_at: verdict.at,
        closed_at: None,
    };
    let budgets = charges
        .iter()
        .filter_map(|charge| {
            Some(ChargedPeriod {
                budget: charge.budget.clone(),
                period_starts_at: charge.starts_at?,
                period_ends_at: charge.ends_at,
            })
        })
        .collect();
    Reservation { record, budgets, at: verdict.at }
}
