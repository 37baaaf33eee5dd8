//! The contract: what the service publishes, what it answers, and what it
//! refuses to read.

mod bad_fields;
mod bad_requests;
mod document;
mod lists;
mod problems;
mod verb_answers;
mod verb_fields;
mod verb_refusals;

use serde_json::{Value, json};

use crate::support::{Answer, Client, NORTHSTAR, Service};

const RESERVATIONS: &str = "/v1/reservations";

/// An id of nothing.
const NOBODY: &str = "0190a0a0-0000-7000-8000-000000000000";

/// A service with one reservation, and the paths of what can be done to it.
struct Scene {
    service: Service,
    worker: Client,
    operator: Client,
    job: Answer,
}

impl Scene {
    async fn new() -> Self {
        let service = Service::with_policy(NORTHSTAR).await;
        let (worker, operator) = (service.worker(&["northstar"]).await, service.operator().await);
        let job = worker.reserve_bulk("job", "10").await.expect(201);
        Self { service, worker, operator, job }
    }

    fn extend(&self) -> String {
        format!("{RESERVATIONS}/{}/extend", self.job.id())
    }

    fn settle(&self) -> String {
        format!("{RESERVATIONS}/{}/settle", self.job.id())
    }

    /// Every path that takes JSON, with a client that may and a good body.
    fn bodies(&self) -> Vec<(&Client, String, Value)> {
        let attempt = self.job.token();
        let verb = |verb: &str| format!("{RESERVATIONS}/{}/{verb}", self.job.id());
        let evidence = json!({"kind": "process_stopped"});
        vec![
            (&self.worker, RESERVATIONS.to_owned(), json!({"operation": "bulk", "units": "1"})),
            (&self.worker, self.extend(), json!({"attempt": attempt, "ceiling": "11"})),
            (&self.worker, self.settle(), json!({"attempt": attempt, "units": "1"})),
            (&self.worker, verb("renew"), json!({"attempt": attempt, "lease_seconds": 60})),
            (&self.worker, verb("attempts"), json!({"previous": 1, "holder": "w-2", "evidence": evidence})),
            (&self.worker, verb("calls"), json!({"attempt": attempt, "call": "a", "units": "1"})),
            (&self.worker, verb("calls/a/settle"), json!({"attempt": attempt, "units": "1"})),
            (&self.worker, verb("cancel"), json!({"reason": "because"})),
            (&self.operator, verb("fence"), json!({"attempt_number": 1, "evidence": evidence})),
            (&self.operator, "/v1/keys".to_owned(), json!({"role": "worker", "accounts": ["northstar"]})),
        ]
    }
}
