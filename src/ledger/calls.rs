//! Calls: each paid provider request is admitted before it is sent, and ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use rust_decimal::Decimal;
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use super::database::run;
use super::extend::extension_refusal;
use super::group::{Grouped, Subject, column};
use super::settle::Usage;
use super::verdict::{Concluded, Seen, Target, Verdict};
use super::{By, Context, Error, Ledger};
use crate::model::call::{CallRecord, CallState};
use crate::model::refusal::Conflict;
use crate::model::reservation::{ChargedPeriod, Record, Reservation};
use crate::model::{Name, Refusal, Units};

/// A call to be admitted.
#[derive(Debug, Clone)]
pub struct AdmitCall {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The token of the current attempt.
    pub attempt: String,
    /// The client's own key for the call.
    pub call: String,
    /// The most that it may cost.
    pub most: Usage,
    /// Whether to raise the ceiling if that is needed.
    pub extend: bool,
}

/// A call that ends.
#[derive(Debug, Clone)]
pub struct EndCall {
    /// Whose reservation it is.
    pub account: Name,
    /// The reservation.
    pub id: Uuid,
    /// The call.
    pub call: String,
    /// Who says so: the token of the attempt that admitted it; none of finance, or
    /// of somebody who only says that the outcome is unknown.
    pub attempt: Option<String>,
    /// How it ends.
    pub end: End,
    /// The provider's own name for it.
    pub provider_request_id: Option<String>,
    /// Why finance says so.
    pub reason: Option<String>,
}

/// How a call ends.
#[derive(Debug, Clone)]
pub enum End {
    /// With this usage.
    Settled(Usage),
    /// Nobody knows: it stays charged in full.
    Unknown,
    /// It was never sent.
    NotSent,
}

/// A call, and its reservation after it.
#[derive(Debug, Clone)]
pub struct Call {
    /// The call as it is now.
    pub record: CallRecord,
    /// The reservation as it is now.
    pub reservation: Reservation,
    /// Whether it was so before.
    pub repeated: bool,
}

/// A call to be admitted, as the statement takes it.
pub(super) struct Admission {
    ask: AdmitCall,
    units: Units,
    call_id: Uuid,
    by: By,
}

impl Grouped for Admission {
    type Verdict = Verdict;
    const VERB: &'static str = "admit_call";

    fn account(&self) -> &Name {
        &self.ask.account
    }

    fn subject(&self) -> Subject {
        Subject::Reservation(self.ask.account.clone(), self.ask.id)
    }

    fn send<'a>(
        connection: &'a mut PgConnection,
        items: &'a [Arc<Self>],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, sqlx::Error>> {
        Box::pin(async move {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/admit_call.sql",
                &column(items, |item| item.ask.account.to_string()),
                &column(items, |item| item.ask.id),
                &column(items, |item| item.ask.attempt.clone()),
                &column(items, |item| item.ask.call.clone()),
                &column(items, |item| item.call_id),
                &column(items, |item| item.units.get()),
                &column(items, |item| item.ask.extend),
                &column(items, |item| item.by.actor.clone()),
                &column(items, |item| item.by.key) as &[Option<Uuid>],
            )
            .fetch_all(connection)
            .await
        })
    }
}

/// The end of a call, as the statement takes it.
pub(super) struct Ending {
    ask: EndCall,
    becomes: CallState,
    units: Option<Units>,
    /// What it is kept as if it comes too late.
    late_id: Uuid,
    audit_id: Uuid,
    by: By,
}

impl Grouped for Ending {
    type Verdict = Verdict;
    const VERB: &'static str = "end_call";

    fn account(&self) -> &Name {
        &self.ask.account
    }

    fn subject(&self) -> Subject {
        Subject::Reservation(self.ask.account.clone(), self.ask.id)
    }

    fn send<'a>(
        connection: &'a mut PgConnection,
        items: &'a [Arc<Self>],
    ) -> BoxFuture<'a, Result<Vec<Verdict>, sqlx::Error>> {
        Box::pin(async move {
            sqlx::query_file_as!(
                Verdict,
                "src/ledger/settle_call.sql",
                &column(items, |item| item.ask.account.to_string()),
                &column(items, |item| item.ask.id),
                &column(items, |item| item.ask.call.clone()),
                &column(items, |item| item.ask.attempt.clone()) as &[Option<String>],
                &column(items, |item| item.becomes.as_str().to_owned()),
                &column(items, |item| item.units.map(Units::get)) as &[Option<Decimal>],
                &column(items, |item| item.ask.provider_request_id.clone()) as &[Option<String>],
                &column(items, |item| item.ask.reason.clone()) as &[Option<String>],
                &column(items, |item| item.by.actor.clone()),
                &column(items, |item| item.late_id),
                &column(items, |item| item.audit_id),
                &column(items, |item| item.by.key) as &[Option<Uuid>],
            )
            .fetch_all(connection)
            .await
        })
    }
}

impl Ledger {
    /// Admits a call as long as what is settled, what is outstanding and this stay
    /// within the ceiling. Repeated by the same attempt with the same amount it
    /// answers with the call as it is now.
    ///
    /// # Errors
    ///
    /// `StaleAttempt`, `CallKeyTaken`, `KeyReused`, `NotActive`, `CeilingReached`,
    /// with `extend` those of an extension, or the world.
    pub async fn admit_call(&self, context: &Context, ask: &AdmitCall) -> Result<Call, Error> {
        let units = match &ask.most {
            Usage::Units(units) => *units,
            Usage::Quantities(quantities) => self.call_units(context, target_of(ask), quantities).await?,
        };
        let call_id = Uuid::now_v7();
        let mut concluded = self.admit_once(context, ask, units, call_id).await?;
        if self.gave_back_carried(context, &concluded).await? {
            concluded = self.admit_once(context, ask, units, call_id).await?;
        }
        // Sent again by this process, because the answer of the database was lost.
        if concluded.outcome == "repeated" && concluded.seen.call.as_ref().is_some_and(|call| call.id == call_id) {
            "admitted".clone_into(&mut concluded.outcome);
        }
        let refusal = match concluded.outcome.as_str() {
            "admitted" | "repeated" => {
                if let Some(extension) = &concluded.seen.extension {
                    self.record_observed_extension(&concluded.reservation.record, extension);
                }
                return self.call(concluded, "a call");
            }
            "key_reused" => Refusal::KeyReused,
            "not_by_calls" => {
                Refusal::invalid("call", "this provider's workers call it directly: their usage is settled")
            }
            _ => match extension_refusal(&concluded, "units") {
                Some(refusal) => refusal,
                None => return Err(concluded.unexpected("a call")),
            },
        };
        Err(self.refuse_on(concluded.reservation, refusal))
    }

    async fn admit_once(
        &self,
        context: &Context,
        ask: &AdmitCall,
        units: Units,
        call_id: Uuid,
    ) -> Result<Concluded, Error> {
        let admission = Admission { ask: ask.clone(), units, call_id, by: By::of(context) };
        let sent = self.groups.admit_call.decide(context, admission).await;
        self.conclude(context, target_of(ask), sent).await
    }

    /// Ends a call. The same again changes nothing. Usage that comes too late to be
    /// charged is kept as late usage.
    ///
    /// # Errors
    ///
    /// `NotFound` of a call that was never admitted, `StaleAttempt`,
    /// `CallAlreadySettled`, `AlreadySettled` of the reservation, usage that is
    /// invalid or beyond the range of the columns, or the world.
    pub async fn end_call(&self, context: &Context, ask: &EndCall) -> Result<Call, Error> {
        let target = Target { account: &ask.account, id: ask.id, token: ask.attempt.as_deref() };
        let (becomes, units) = match &ask.end {
            End::Settled(usage) => (CallState::Settled, Some(self.actual_units(context, target, usage).await?)),
            End::Unknown => (CallState::Unknown, None),
            End::NotSent => (CallState::NotSent, None),
        };
        let ending = Ending {
            ask: ask.clone(),
            becomes,
            units,
            late_id: Uuid::now_v7(),
            audit_id: Uuid::now_v7(),
            by: By::of(context),
        };
        let sent = self.groups.end_call.decide(context, ending).await;
        let concluded = self.conclude(context, target, sent).await?;
        let refusal = match (concluded.outcome.as_str(), concluded.refusal()) {
            ("ended" | "repeated", _) => return self.call(concluded, "the end of a call"),
            ("no_call", _) => Refusal::NotFound("call"),
            ("call_already_settled", _) => {
                let settled = concluded.seen.call.as_ref().and_then(recorded);
                Refusal::Conflict(Conflict::CallAlreadySettled { settled })
            }
            (_, Some(refusal)) => refusal,
            (_, None) => return Err(concluded.unexpected("the end of a call")),
        };
        Err(self.refuse_on(concluded.reservation, refusal))
    }

    fn call(&self, concluded: Concluded, what: &str) -> Result<Call, Error> {
        let Some(record) = concluded.seen.call else {
            return Err(Error::Unexpected(format!("{what} came out without the call")));
        };
        Ok(Call { record, reservation: concluded.reservation, repeated: concluded.outcome == "repeated" })
    }

    async fn call_units(
        &self,
        context: &Context,
        target: Target<'_>,
        quantities: &BTreeMap<Name, Units>,
    ) -> Result<Units, Error> {
        match self.pricing_of(context, target.account, target.id).await?.of_call(quantities) {
            Ok(units) => Ok(units),
            Err(refusal) => Err(self.refuse(context, target, refusal).await),
        }
    }

    /// The calls of a reservation, newest first, from before this one.
    ///
    /// # Errors
    ///
    /// The world.
    pub async fn calls(
        &self,
        context: &Context,
        (account, id): (&Name, Uuid),
        state: Option<CallState>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<CallRecord>, Error> {
        let calls = run!(self.database, context, |connection| {
            sqlx::query_scalar!(
                r#"select call_json(c) as "call!: Json<CallRecord>"
                   from call c
                   where c.account = $1 and c.reservation_id = $2
                     and ($3::text is null or c.state = $3)
                     and ($4::uuid is null or c.id < $4)
                   order by c.id desc
                   limit $5"#,
                account.as_str(),
                id,
                state.map(CallState::as_str),
                before,
                limit
            )
            .fetch_all(&mut *connection)
            .await
        })?;
        Ok(calls.into_iter().map(|call| call.0).collect())
    }
}

fn target_of(ask: &AdmitCall) -> Target<'_> {
    Target { account: &ask.account, id: ask.id, token: Some(&ask.attempt) }
}

/// What was recorded as the usage of a call that has ended.
fn recorded(call: &CallRecord) -> Option<Units> {
    match call.state {
        CallState::NotSent => Some(Units::ZERO),
        _ => call.actual,
    }
}
