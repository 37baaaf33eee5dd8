//! One bad item fails alone, and never its neighbours.

use futures_util::future::join_all;
use spend_ledger::ledger::Error;
use spend_ledger::ledger::settle::{Settle, Usage};
use spend_ledger::model::Refusal;
use uuid::Uuid;

use super::{context, counted, grouped, name, one_by_one, reserve, together, units};
use crate::support::server::TestDatabase;
use crate::support::{NORTHSTAR, Service};

async fn service() -> Service {
    let service = Service::on(TestDatabase::new().await, grouped()).await;
    service.apply(NORTHSTAR).await;
    // Its period is open.
    together(&service.ledger, &[reserve("northstar", "first", "stream", "1")]).await.remove(0).unwrap();
    service
}

#[tokio::test]
async fn those_who_wait_are_decided_by_one_statement() {
    let service = service().await;
    let (before, _) = counted(&service.ledger, "reserve");
    let asked: Vec<_> = (0..100).map(|n| reserve("northstar", &format!("job {n}"), "stream", "1")).collect();
    let answers = together(&service.ledger, &asked).await;
    let admitted = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(admitted, 99, "an estimate equal to what is available is admitted, and no more");
    assert!(matches!(&answers[99], Err(Error::Refused(Refusal::BudgetExhausted { .. }))), "the last one");
    // The first of them found the verb idle.
    assert_eq!(counted(&service.ledger, "reserve").0, before + 2);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 0 100 0 0"]);
}

/// A settlement out of the range of the columns rolls its statement back.
#[tokio::test]
async fn an_overflow_among_settlements() {
    let service = service().await;
    let asked: Vec<_> = (0..9).map(|n| reserve("northstar", &format!("job {n}"), "stream", "10")).collect();
    let admitted = together(&service.ledger, &asked).await;
    let settlements: Vec<Settle> = admitted
        .iter()
        .enumerate()
        .map(|(n, reserved)| {
            let record = &reserved.as_ref().unwrap().reservation.record;
            let amount = if n == 4 { "9999999999999999" } else { "7" };
            Settle {
                account: name("northstar"),
                id: record.id,
                attempt: record.attempt_token.clone().unwrap(),
                usage: Some(Usage::Units(units(amount))),
                r#final: true,
                provider_request_id: None,
            }
        })
        .collect();
    let context = context();
    let mut settlements = settlements;
    // And one of a reservation that is not there.
    settlements.push(Settle { id: Uuid::now_v7(), ..settlements[0].clone() });
    let answers = join_all(settlements.iter().map(|settle| service.ledger.settle(&context, settle))).await;
    for (n, answer) in answers.iter().enumerate() {
        match n {
            4 => assert!(matches!(answer, Err(Error::RefusedOn { refusal: Refusal::Invalid(_), .. })), "{answer:?}"),
            9 => assert!(matches!(answer, Err(Error::Refused(Refusal::NotFound(_)))), "{answer:?}"),
            _ => assert_eq!(answer.as_ref().unwrap().record.settled, units("7")),
        }
    }
    assert_eq!(service.books().await.periods, ["northstar daily : 100 33 11 0 56"]);
}

/// The same key twice at once is one job; with another request it is refused, and
/// takes nothing.
#[tokio::test]
async fn a_key_twice() {
    let service = service().await;
    let asked = [
        reserve("northstar", "a", "stream", "10"),
        reserve("northstar", "b", "stream", "10"),
        reserve("northstar", "a", "stream", "10"),
        reserve("northstar", "b", "stream", "11"),
        reserve("northstar", "c", "stream", "10"),
    ];
    let answers = together(&service.ledger, &asked).await;
    let id = |n: usize| answers[n].as_ref().unwrap().reservation.record.id;
    assert_eq!(id(0), id(2));
    assert!(answers[2].as_ref().unwrap().replayed);
    assert!(matches!(&answers[3], Err(Error::RefusedOn { refusal: Refusal::KeyReused, .. })));
    assert!(!answers[4].as_ref().unwrap().replayed);
    assert_eq!(service.books().await.periods, ["northstar daily : 100 69 31 0 0"]);
}

/// Two processes admit the same jobs at once: whole groups race, and every job is
/// admitted once.
#[tokio::test]
async fn keys_that_race_with_another_process() {
    let service = service().await;
    let other = Service::on(service.database.clone(), grouped()).await;
    let third = Service::on(service.database.clone(), one_by_one()).await;
    for round in 0..5 {
        let asked: Vec<_> =
            (0..15).map(|n| reserve("northstar", &format!("round {round} job {n}"), "stream", "1")).collect();
        let mut turned = asked.clone();
        turned.rotate_left(7);
        let (one, two, three) = tokio::join!(
            together(&service.ledger, &asked),
            together(&other.ledger, &turned),
            together(&third.ledger, &asked)
        );
        let id = |answers: &[Result<_, Error>], n: usize| match &answers[n] {
            Ok(spend_ledger::ledger::reserve::Reserved { reservation, .. }) => reservation.record.id,
            Err(error) => panic!("{error}"),
        };
        for n in 0..15 {
            assert_eq!(id(&one, n), id(&two, (n + 8) % 15));
            assert_eq!(id(&one, n), id(&three, n));
        }
        let all = one.iter().chain(&two).chain(&three);
        assert_eq!(all.filter(|answer| !answer.as_ref().unwrap().replayed).count(), 15);
    }
    assert_eq!(service.books().await.periods, ["northstar daily : 100 24 76 0 0"]);
}

/// A copy that took the last room is found by its key, also in a group.
#[tokio::test]
async fn the_last_room_taken_by_copies() {
    let service = service().await;
    let other = Service::on(service.database.clone(), grouped()).await;
    let asked: Vec<_> = (0..9).map(|n| reserve("northstar", &format!("job {n}"), "stream", "11")).collect();
    let (one, two) = tokio::join!(together(&service.ledger, &asked), together(&other.ledger, &asked));
    for (one, two) in one.iter().zip(&two) {
        let (one, two) = (one.as_ref().unwrap(), two.as_ref().unwrap());
        assert_eq!(one.reservation.record.id, two.reservation.record.id);
        assert!(one.replayed != two.replayed);
    }
    assert_eq!(service.books().await.periods, ["northstar daily : 100 0 100 0 0"]);
}
