//! Requests that meet: whatever the order in which they come, the outcome is
//! that of one of them after the other, in every process of the service.

mod midnight;
mod pairs;
mod policy_meets;
mod room;
mod storms;
mod verbs_meet;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::Client;
use crate::support::contention::Replicas;
use crate::support::server::TestDatabase;

const THE_PERIOD: &str = "select from budget_period where budget = 'daily' for update";
const THE_OPEN_RESERVATION: &str = "select from reservation where state = 'active' for update";

/// A number that the database answers with.
async fn count(database: &TestDatabase, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&mut database.connect().await).await.unwrap()
}

/// Entry times that run backwards against entry numbers, in any period or in
/// the history of any reservation.
async fn times_that_run_backwards(database: &TestDatabase) -> i64 {
    count(
        database,
        "select (select count(*) from (select at < lag(at) over (partition by account, period_id order by entry_no)
                                              as back from journal_entry) entry where back)
              + (select count(*) from (select at < lag(at) over (partition by account, reservation_id order by version)
                                              as back from reservation_event) event where back)",
    )
    .await
}

/// Workers that reserve 5 and settle some of it, over and over, until told.
struct Pressure {
    stop: Arc<AtomicBool>,
    admitted: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    workers: Vec<tokio::task::JoinHandle<()>>,
}

impl Pressure {
    fn start(replicas: &Replicas, client: &Client, workers: usize) -> Self {
        let (stop, admitted, refused) = (Arc::default(), Arc::default(), Arc::default());
        let workers = (0..workers)
            .map(|worker| {
                let client = replicas.at(client, worker);
                let (stop, admitted, refused): (Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>) =
                    (Arc::clone(&stop), Arc::clone(&admitted), Arc::clone(&refused));
                tokio::spawn(async move {
                    for job in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        let reserved = client.reserve_bulk(&format!("{worker}-{job}"), "5").await;
                        if reserved.status == 201 {
                            admitted.fetch_add(1, Ordering::Relaxed);
                            if job % 3 == 0 {
                                client.settle(&reserved, "4").await.expect(200);
                            }
                        } else {
                            reserved.problem(429, "budget_exhausted");
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        Self { stop, admitted, refused, workers }
    }

    async fn until(&self, enough: impl Fn(usize, usize) -> bool) {
        let both = || (self.admitted.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed));
        let wait = async {
            while !enough(both().0, both().1) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("stuck at {:?}", both()));
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.unwrap();
        }
    }
}
