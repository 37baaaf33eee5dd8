//! Reserve: admit a new reservation, or answer a repeat from its key.

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use sqlx::types::Json;
use uuid::Uuid;

use super::attempts::new_token;
use super::carry::BudgetOf;
use super::charges::{ChargeSeen, exhausted, observed, over_a_whole_period};
use super::database::run;
use super::open_period::Opened;
use super::policy::PolicyInForce;
use super::refusals::Refused;
use super::{Context, Error, Ledger};
use crate::model::admission::Estimate;
use crate::model::request::ReservationRequest;
use crate::model::reservation::{ChargedPeriod, Record, Reservation, State};
use crate::model::{Name, Refusal, Units};

/// A request to reserve, from a credential that may act for the account.
#[derive(Debug, Clone)]
pub struct Reserve {
    /// Whose spending it is.
    pub account: Name,
    /// The job's identity within the account.
    pub key: String,
    /// What is asked for.
    pub request: ReservationRequest,
    /// The process that asks.
    pub holder: String,
    /// How long the first lease is, in seconds.
    pub lease_seconds: i32,
}

/// The answer to an admitted request, or to its repeat.
#[derive(Debug, Clone)]
pub struct Reserved {
    /// The reservation as it is now.
    pub reservation: Reservation,
    /// Whether it was admitted before.
    pub replayed: bool,
}

/// How often a decision is made again because the world moved: a period opened,
/// the policy changed, a key raced. Each of these makes progress for somebody.
const MAX_DECISIONS: u32 = 16;

/// What the deciding statement said of one item.
struct Verdict {
    n: i64,
    outcome: String,
    at: DateTime<Utc>,
    charges: Json<Vec<ChargeSeen>>,
}

/// A decision, or a reason to decide again.
enum Step {
    Done(Box<Reserved>),
    Again,
}

impl Ledger {
    /// Admits the request if every enforcing budget that matches has room, and
    /// charges all that match; or answers a repeat of the same request with the
    /// reservation as it is now, taking nothing more.
    ///
    /// # Errors
    ///
    /// A refusal by policy or by room, `KeyReused` for another request with the
    /// same key, or the world.
    pub async fn reserve(&self, context: &Context, reserve: &Reserve) -> Result<Reserved, Error> {
        let mut given_back = false;
        for _ in 0..MAX_DECISIONS {
            let policy = self.policy();
            let step = match policy.policy.estimate(&reserve.account, &reserve.request) {
                Ok(estimate) => self.decide(context, reserve, &policy, &estimate, &mut given_back).await?,
                Err(refusal) => self.refused_by_policy(context, reserve, &policy, refusal).await?,
            };
            if let Step::Done(reserved) = step {
                return Ok(*reserved);
            }
        }
        Err(Error::Unavailable("the decision had to be made again too often".to_owned()))
    }

    /// Refuses, unless the key says that the job was admitted before, or the
    /// database says that this process's policy is not the one in force.
    async fn refused_by_policy(
        &self,
        context: &Context,
        reserve: &Reserve,
        policy: &PolicyInForce,
        refusal: Refusal,
    ) -> Result<Step, Error> {
        if let Some(reservation) = self.replay(context, reserve).await? {
            return Ok(Step::Done(Box::new(Reserved { reservation, replayed: true })));
        }
        if self.refresh_policy(context, policy.version).await? {
            return Ok(Step::Again);
        }
        self.refusals.record(Refused::new(Some(&reserve.account), &reserve.request.operation, &refusal, false));
        Err(refusal.into())
    }

    async fn decide(
        &self,
        context: &Context,
        reserve: &Reserve,
        policy: &PolicyInForce,
        estimate: &Estimate,
        given_back: &mut bool,
    ) -> Result<Step, Error> {
        let admission = Admission {
            id: Uuid::now_v7(),
            token: new_token(1)?,
            revision: policy.revision(&reserve.request.operation),
        };
        let Some(verdict) = self.reserve_statement(context, reserve, policy, estimate, &admission).await? else {
            return self.known(context, reserve, admission.id).await;
        };
        let charges = &verdict.charges.0;
        match verdict.outcome.as_str() {
            "admitted" => {
                self.record_observed(reserve, estimate, charges);
                self.metrics.admitted(&reserve.request.operation);
                let reservation = admitted(reserve, estimate, admission, &verdict);
                Ok(Step::Done(Box::new(Reserved { reservation, replayed: false })))
            }
            "known" => self.known(context, reserve, admission.id).await,
            "policy_changed" => {
                self.refresh_policy(context, policy.version).await?;
                Ok(Step::Again)
            }
            "period_missing" => {
                for charge in &estimate.charges {
                    if self.open_period(context, charge, policy.version).await? == Opened::PolicyChanged {
                        self.refresh_policy(context, policy.version).await?;
                        break;
                    }
                }
                Ok(Step::Again)
            }
            "budget_exhausted" | "too_expensive" => {
                if let Some(reservation) = self.replay(context, reserve).await? {
                    return Ok(Step::Done(Box::new(Reserved { reservation, replayed: true })));
                }
                if !*given_back && self.give_back_carried(context, &reserve.account, charges).await? {
                    *given_back = true;
                    return Ok(Step::Again);
                }
                let refusal = match verdict.outcome.as_str() {
                    "too_expensive" => over_a_whole_period(charges, estimate.units),
                    _ => exhausted(charges, estimate.units, verdict.at),
                };
                self.refusals.record(Refused::new(Some(&reserve.account), &reserve.request.operation, &refusal, false));
                Err(refusal.into())
            }
            "out_of_range" => {
                let refusal = Refusal::invalid("units", "would take a balance out of range");
                self.refused_by_policy(context, reserve, policy, refusal).await
            }
            other => Err(Error::Unexpected(format!("item {} came out as {other}", verdict.n))),
        }
    }

    /// The answer when the deciding statement found the key taken: by an earlier copy
    /// of the request, or by this one, when the answer of the database was lost and
    /// the statement was sent again.
    async fn known(&self, context: &Context, reserve: &Reserve, own: Uuid) -> Result<Step, Error> {
        match self.replay(context, reserve).await? {
            Some(reservation) => {
                let replayed = reservation.record.id != own;
                Ok(Step::Done(Box::new(Reserved { reservation, replayed })))
            }
            // Cannot be: reservations are never deleted. Deciding again is safe.
            None => Ok(Step::Again),
        }
    }

    /// The reservation that this key was admitted with before, if any, with the
    /// attempt's token only for its holder.
    async fn replay(&self, context: &Context, reserve: &Reserve) -> Result<Option<Reservation>, Error> {
        let Some((mut reservation, pricing)) = self.reservation_by_key(context, &reserve.account, &reserve.key).await?
        else {
            return Ok(None);
        };
        if !reservation.record.request.means_the_same(&reserve.request, &pricing) {
            return Err(self.refuse_on(reservation.without_token(), Refusal::KeyReused));
        }
        if reservation.record.attempt_holder.as_deref() != Some(&reserve.holder) {
            reservation.record.attempt_token = None;
        }
        Ok(Some(reservation))
    }

    /// Sends the deciding statement for a batch of one. `None`: the key raced
    /// with a copy of the request that was admitted first.
    async fn reserve_statement(
        &self,
        context: &Context,
        reserve: &Reserve,
        policy: &PolicyInForce,
        estimate: &Estimate,
        admission: &Admission,
    ) -> Result<Option<Verdict>, Error> {
        let request = &reserve.request;
        let charges = &estimate.charges;
        let text = |name: &Option<Name>| name.as_ref().map_or(String::new(), Name::to_string);
        let owners: Vec<String> = charges.iter().map(|charge| text(&charge.owner)).collect();
        let budgets: Vec<String> = charges.iter().map(|charge| charge.budget.to_string()).collect();
        let members: Vec<String> = charges.iter().map(|charge| text(&charge.member)).collect();
        let enforcing: Vec<bool> = charges.iter().map(|charge| charge.enforces()).collect();
        let limits: Vec<Decimal> = charges.iter().map(|charge| charge.definition.limit.get()).collect();
        let items = vec![1_i64; charges.len()];
        let labels = serde_json::json!(request.labels);
        let as_sent = serde_json::json!(request);
        run!(self.database, context, |connection| {
            let verdict = sqlx::query_file_as!(
                Verdict,
                "src/ledger/reserve.sql",
                &[reserve.account.to_string()],
                &[admission.id],
                std::slice::from_ref(&reserve.key),
                std::slice::from_ref(&as_sent),
                &[request.operation.to_string()],
                &[admission.revision],
                &[estimate.provider.to_string()],
                &[estimate.enforcement.as_str().to_owned()],
                &[estimate.unit.to_string()],
                &[request.member.as_ref().map(Name::to_string)] as &[Option<String>],
                &[request.provider_key.as_ref().map(Name::to_string)] as &[Option<String>],
                &[estimate.units.get()] as &[Decimal],
                std::slice::from_ref(&reserve.holder),
                std::slice::from_ref(&admission.token),
                &[reserve.lease_seconds],
                std::slice::from_ref(&request.reference) as &[Option<String>],
                std::slice::from_ref(&labels),
                std::slice::from_ref(&context.actor),
                &items,
                &owners,
                &budgets,
                &members,
                &enforcing,
                policy.version,
                &limits,
            )
            .fetch_one(&mut *connection)
            .await;
            match verdict {
                Ok(verdict) => Ok(Some(verdict)),
                Err(error) if violates(&error, "reservation_key") => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    /// Gives back what budgets that refused still carry. Answers whether
    /// anything changed, so that the decision is worth making again.
    pub(super) async fn give_back_carried(
        &self,
        context: &Context,
        account: &Name,
        charges: &[ChargeSeen],
    ) -> Result<bool, Error> {
        let mut changed = false;
        for charge in charges.iter().filter(|charge| charge.enforcing && charge.carries()) {
            let budget = BudgetOf {
                account: if charge.pool { String::new() } else { account.to_string() },
                budget: charge.budget.clone(),
                member: charge.member.clone(),
            };
            changed |= self.give_back(context, &budget).await?;
        }
        Ok(changed)
    }

    /// Writes down what limits that only observe would have refused.
    fn record_observed(&self, reserve: &Reserve, estimate: &Estimate, charges: &[ChargeSeen]) {
        let account = Some(&reserve.account);
        let operation = &reserve.request.operation;
        if let Some(refusal) = &estimate.observed {
            self.refusals.record(Refused::new(account, operation, refusal, true));
        }
        let breaches = observed(charges, estimate.units);
        if !breaches.is_empty() {
            let refusal =
                Refusal::BudgetExhausted { breaches, retry: crate::model::Retry::Never, retry_after_seconds: None };
            self.refusals.record(Refused::new(account, operation, &refusal, true));
        }
    }
}

/// What this process made for an admission before it was decided.
struct Admission {
    id: Uuid,
    token: String,
    revision: i32,
}

/// The reservation that the statement wrote, put together from what it was
/// given.
fn admitted(reserve: &Reserve, estimate: &Estimate, admission: Admission, verdict: &Verdict) -> Reservation {
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

/// Whether the error is a violation of this named constraint.
fn violates(error: &sqlx::Error, constraint: &str) -> bool {
    error.as_database_error().and_then(|reported| reported.constraint()) == Some(constraint)
}
