//! Time gives nothing back: a lease that has run out, a period that has ended and
//! years that have passed change no balance of what is open (RULES.md, sections 5
//! and 8). Only somebody who says something does.

mod restarted;

use crate::support::Service;
use crate::support::old_work::{HELD, OldWork, POLICY, Parties, new_work};

async fn parties(service: &Service) -> Parties {
    let worker = service.worker(&["northstar"]).await;
    Parties { worker, operator: service.operator().await, finance: service.finance().await }
}

#[tokio::test]
async fn what_is_open_stays_charged_for_years_whatever_else_is_done() {
    let service = Service::with_policy(POLICY).await;
    service.database.set_clock("2026-03-03T10:00:00Z").await;
    let parties = parties(&service).await;
    let work = OldWork::new(&parties, &service.database).await;
    service.books().await;
    for time in ["2026-03-03T10:02:00Z", "2026-03-04T10:00:00Z", "2026-04-01T00:00:00Z", "2027-03-03T10:00:00Z"]
        .into_iter()
        .chain(["2031-01-01T05:00:00Z", "2056-03-03T10:00:00Z"])
    {
        service.database.set_clock(time).await;
        work.is_unchanged(&service.database, time).await;
        work.is_read(&parties).await;
        work.leases_are_renewed(&parties).await;
        work.is_reserved_again(&parties).await;
        work.is_unchanged(&service.database, &format!("{time}, renewed")).await;
        service.ledger.sweep_refusals().await.unwrap();
        service.books().await;
        // What is done in a period that has not ended is charged to it.
        if time >= "2027" {
            new_work(&parties, &time[..10]).await;
            work.is_unchanged(&service.database, &format!("{time}, with new work")).await;
            let monthly = parties.worker.balance("northstar", "monthly", None).await;
            let carried: u32 = 1000 - 12 - HELD;
            assert_eq!(monthly, ["12".to_owned(), "0".to_owned(), "0".to_owned(), carried.to_string()]);
            service.books().await;
        }
    }
    work.is_closed(&parties).await;
    // All that was carried has come back.
    assert_eq!(parties.worker.balance("northstar", "monthly", None).await, ["12", "0", "0", "988"]);
    service.books().await;
}
