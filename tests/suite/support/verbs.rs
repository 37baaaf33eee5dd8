//! The verbs on a reservation as a client sends them, and a day at northstar's to
//! send them on.

use serde_json::{Value, json};

use super::{Answer, Books, Client, NORTHSTAR, Service};

/// One segment of a path, every character encoded that could mean something.
pub fn encoded(segment: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    segment.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// A body with more fields in it.
pub fn and(mut body: Value, more: Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        body[field] = value.clone();
    }
    body
}

/// What a reservation's answer says of where it stands: `state: ceiling settled
/// in_flight unknown stated_outstanding, charged, version`.
#[track_caller]
pub fn stand(answer: &Answer) -> String {
    stand_of(&answer.body)
}

/// The same of a reservation inside another answer.
#[track_caller]
pub fn stand_of(reservation: &Value) -> String {
    let text = |field: &str| {
        reservation[field].as_str().unwrap_or_else(|| panic!("no text {field} in {reservation:#}")).to_owned()
    };
    let amounts = ["ceiling", "settled", "in_flight", "unknown", "stated_outstanding"].map(text).join(" ");
    format!("{}: {amounts}, {}, {}", text("state"), text("charged"), reservation["version"])
}

/// The same of a call's answer: `state units actual attempt, remaining ceiling
/// reservation_state version`.
#[track_caller]
pub fn call_stand(answer: &Answer) -> String {
    let body = &answer.body;
    let actual = body["actual"].as_str().unwrap_or("-");
    let said = [answer.text("state"), answer.text("units"), actual].join(" ");
    let of = [answer.text("remaining"), answer.text("ceiling"), answer.text("reservation_state")].join(" ");
    format!("{said} {}, {of} {}", body["attempt"], body["version"])
}

/// The service with northstar's policy on a Wednesday at noon (UTC), when the
/// clock stands still, and somebody of each role.
pub struct Northstar {
    pub service: Service,
    pub worker: Client,
    pub operator: Client,
    pub finance: Client,
}

impl Northstar {
    pub async fn open() -> Self {
        Self::with_policy(NORTHSTAR).await
    }

    pub async fn with_policy(policy: &str) -> Self {
        let service = Service::with_policy(policy).await;
        let (operator, finance) = (service.operator().await, service.finance().await);
        let day = Self { worker: service.worker(&["northstar"]).await, operator, finance, service };
        day.clock("12:00:00").await;
        day
    }

    /// It is this time of that day.
    pub async fn clock(&self, time: &str) {
        self.service.database.stop_clock(&format!("2026-03-04T{time}Z")).await;
    }

    /// settled, reserved, liability, available of northstar's day.
    pub async fn daily(&self) -> [String; 4] {
        self.worker.balance("northstar", "daily", None).await
    }

    /// The books, verified.
    pub async fn books(&self) -> Books {
        self.service.books().await
    }

    /// A job whose calls the ledger admits, of the holder `w-1`.
    pub async fn calls(&self, key: &str, units: &str) -> Answer {
        self.worker.reserve_bulk(key, units).await.expect(201)
    }

    /// A job whose worker calls the provider directly, of the holder `w-1`.
    pub async fn stream(&self, key: &str, units: &str) -> Answer {
        let body = json!({"operation": "stream", "units": units, "holder": "w-1"});
        self.worker.reserve(key, body).await.expect(201)
    }
}

impl Client {
    /// A verb on a reservation.
    pub async fn verb(&self, reservation: &Answer, verb: &str, body: Value) -> Answer {
        self.post(&format!("/v1/reservations/{}/{verb}", reservation.id()), body).await
    }

    /// The reservation as it is now.
    pub async fn now(&self, reservation: &Answer) -> Answer {
        self.get(&format!("/v1/reservations/{}", reservation.id())).await.expect(200)
    }

    /// Its history: `version event detail`.
    pub async fn history(&self, reservation: &Answer) -> Vec<String> {
        let answer = self.get(&format!("/v1/reservations/{}?events=true", reservation.id())).await.expect(200);
        let events = answer.body["events"].as_array().unwrap().clone();
        let line =
            |event: Value| format!("{} {} {}", event["version"], event["event"].as_str().unwrap(), event["detail"]);
        events.into_iter().map(line).collect()
    }

    /// Its calls, newest first: `call attempt state units actual`.
    pub async fn calls_of(&self, reservation: &Answer) -> Vec<String> {
        let answer = self.get(&format!("/v1/reservations/{}/calls", reservation.id())).await.expect(200);
        let text = |item: &Value, field: &str| item[field].as_str().unwrap_or("-").to_owned();
        let line = |item: &Value| {
            let rest = ["state", "units", "actual"].map(|field| text(item, field)).join(" ");
            format!("{} {} {rest}", text(item, "call"), item["attempt"])
        };
        answer.body["items"].as_array().unwrap().iter().map(line).collect()
    }

    /// Late usage, newest first: `attempt call units refused_as`. For finance and
    /// operators.
    pub async fn late_usage(&self, query: &str) -> Vec<String> {
        let answer = self.get(&format!("/v1/late-usage{query}")).await.expect(200);
        let text = |item: &Value, field: &str| item[field].as_str().unwrap_or("-").to_owned();
        let line = |item: &Value| {
            let rest = ["call", "units", "refused_as"].map(|field| text(item, field)).join(" ");
            format!("{} {rest}", item["attempt"])
        };
        answer.body["items"].as_array().unwrap().iter().map(line).collect()
    }

    /// Asks for the admission of a call.
    pub async fn call(&self, reservation: &Answer, call: &str, units: &str) -> Answer {
        self.verb(reservation, "calls", json!({"attempt": reservation.token(), "call": call, "units": units})).await
    }

    /// The same, raising the ceiling if that is needed.
    pub async fn call_extending(&self, reservation: &Answer, call: &str, units: &str) -> Answer {
        let body = json!({"attempt": reservation.token(), "call": call, "units": units, "extend": true});
        self.verb(reservation, "calls", body).await
    }

    /// Ends a call in a way that a test shapes itself.
    pub async fn end_call(&self, reservation: &Answer, call: &str, body: Value) -> Answer {
        self.verb(reservation, &format!("calls/{}/settle", encoded(call)), body).await
    }

    /// Settles a call.
    pub async fn settle_call(&self, reservation: &Answer, call: &str, units: &str) -> Answer {
        self.end_call(reservation, call, json!({"attempt": reservation.token(), "units": units})).await
    }

    /// Says that a call was not sent.
    pub async fn not_sent(&self, reservation: &Answer, call: &str) -> Answer {
        self.end_call(reservation, call, json!({"attempt": reservation.token(), "outcome": "not_sent"})).await
    }

    /// Says, without a token, that nobody knows what became of a call.
    pub async fn unknown(&self, reservation: &Answer, call: &str) -> Answer {
        self.end_call(reservation, call, json!({"outcome": "unknown"})).await
    }

    /// Renews the lease for so many seconds.
    pub async fn renew(&self, reservation: &Answer, seconds: u32) -> Answer {
        self.verb(reservation, "renew", json!({"attempt": reservation.token(), "lease_seconds": seconds})).await
    }

    /// Takes over from this attempt, with more fields.
    pub async fn take_over(&self, reservation: &Answer, previous: u32, holder: &str, more: Value) -> Answer {
        self.verb(reservation, "attempts", and(json!({"previous": previous, "holder": holder}), more)).await
    }

    pub async fn cancel(&self, reservation: &Answer) -> Answer {
        self.verb(reservation, "cancel", json!({})).await
    }

    /// Fences this attempt, with more fields.
    pub async fn fence(&self, reservation: &Answer, number: u32, more: Value) -> Answer {
        self.verb(reservation, "fence", and(json!({"attempt_number": number}), more)).await
    }

    /// Settles at what the attempt's calls came to.
    pub async fn finish(&self, reservation: &Answer) -> Answer {
        self.verb(reservation, "settle", json!({"attempt": reservation.token()})).await
    }

    /// Closes as finance does.
    pub async fn close(&self, reservation: &Answer, units: &str, reason: &str) -> Answer {
        self.verb(reservation, "settle", json!({"units": units, "reason": reason})).await
    }
}

/// Evidence that a process has stopped, with more fields.
pub fn stopped(more: Value) -> Value {
    and(json!({"evidence": {"kind": "process_stopped"}}), more)
}
