//! Reserve: admit a new reservation, or answer a repeat from its key.

mod item;

use uuid::Uuid;

use super::carry::BudgetOf;
use super::charges::{ChargeSeen, exhausted, observed, over_a_whole_period};
use super::open_period::Opened;
use super::policy::PolicyInForce;
use super::refusals::Refused;
use super::verdict::UNAUTHENTICATED;
use super::{Context, Error, Ledger};
use crate::model::admission::Estimate;
use crate::model::request::ReservationRequest;
use crate::model::reservation::Reservation;
use crate::model::{Name, Refusal};
pub(super) use item::Item;
use item::admitted;

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

/// What has been done about the reasons not to admit.
#[derive(Default)]
struct Tried {
    opening: bool,
    giving_back: bool,
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
        let mut tried = Tried::default();
        for _ in 0..MAX_DECISIONS {
            let policy = self.policy();
            let step = match policy.policy.estimate(&reserve.account, &reserve.request) {
                Ok(estimate) => self.decide(context, reserve, &policy, &estimate, &mut tried).await?,
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
        self.still_valid(context).await?;
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
        tried: &mut Tried,
    ) -> Result<Step, Error> {
        let opened = self.openings.so_far(&reserve.account);
        let item = Item::new(context, reserve, policy, estimate)?;
        let admission = item.admission().clone();
        let Some(verdict) = self.groups.reserve.decide(context, item).await? else {
            return Err(Error::Unexpected("a reservation was not decided".to_owned()));
        };
        let charges = &verdict.charges.0;
        match verdict.outcome.as_str() {
            "admitted" => {
                self.record_observed(reserve, estimate, charges);
                self.metrics.admitted(&reserve.request.operation);
                let reservation = admitted(reserve, estimate, admission, &verdict);
                self.remember(&reservation.record);
                Ok(Step::Done(Box::new(Reserved { reservation, replayed: false })))
            }
            UNAUTHENTICATED => Err(self.unauthenticated(context)),
            "known" => self.known(context, reserve, admission.id).await,
            "policy_changed" => {
                self.refresh_policy(context, policy.version).await?;
                Ok(Step::Again)
            }
            "period_missing" => {
                // Who has waited for others once does not do so again.
                let so_far = (!std::mem::replace(&mut tried.opening, true)).then_some(opened);
                let opened = self.open_missing(context, &reserve.account, so_far, estimate, policy.version).await?;
                if opened == Opened::PolicyChanged {
                    self.refresh_policy(context, policy.version).await?;
                }
                Ok(Step::Again)
            }
            "budget_exhausted" | "too_expensive" => {
                if !tried.giving_back && self.give_back_carried(context, &reserve.account, charges).await? {
                    tried.giving_back = true;
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
            other => Err(Error::Unexpected(format!("a reservation came out as {other}"))),
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
