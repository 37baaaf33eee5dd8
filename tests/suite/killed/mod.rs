//! Workers that are killed or frozen at any instant, and others that take their
//! place. Whatever happens, the provider is asked for nothing that the ledger has
//! not charged: a call is counted when it is admitted, not when it is answered
//! (RULES.md, section 6), and nothing gives it back but who knows better.

mod frozen;
mod scene;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;

use self::scene::{End, Scene};
use crate::support::random::Random;
use crate::support::relay::{Fate, Stroke, When};

const KILLS: u64 = 200;
const AT_A_TIME: usize = 4;

/// Where in a job's life half of the kills are aimed; the others hit anything.
const AIMS: [&str; 12] = [
    "reserve asked",
    "reserve answered",
    "admit asked",
    "admit answered",
    "pay asked",
    "pay answered",
    "end asked",
    "end answered",
    "settle asked",
    "settle answered",
    "take over asked",
    "take over answered",
];

/// Any instant: the one in `aim`, or at any message, or after any time.
fn any_instant(random: &mut Random, aim: Option<usize>) -> When {
    let (what, nth) = match (aim, random.below(3)) {
        (Some(aim), _) if matches!(AIMS[aim], "reserve asked" | "reserve answered") => (AIMS[aim], 0),
        (Some(aim), _) if AIMS[aim].starts_with("settle") || AIMS[aim].starts_with("take") => (AIMS[aim], 0),
        (Some(aim), _) => (AIMS[aim], random.below(3)),
        (None, 0) => return When::After(Duration::from_micros(random.below(200_000))),
        (None, _) => ("", random.below(36)),
    };
    let nth = usize::try_from(nth).unwrap();
    if random.below(2) == 0 {
        return When::Passed { what, nth, after: Duration::from_micros(random.below(4_000)) };
    }
    When::InHand { what, nth, fate: random.one_of(&[Fate::Arrives, Fate::Lost, Fate::Late]) }
}

/// One job and its workers, all but the last killed. Says at what.
async fn job(scene: &Scene, number: u64) -> Vec<String> {
    let mut random = Random::new(number.wrapping_mul(7919));
    let mut assignment = scene.assign(number);
    let mut killed = Vec::new();
    let mut holder = None;
    for life in 0.. {
        // One in four comes back under its own name, the others take over. A name
        // that the library makes up never comes back.
        if holder.is_none() || random.below(4) > 0 {
            holder = (random.below(2) == 0).then(|| format!("w-{number}-{life}"));
        }
        let aim = (random.below(2) == 0).then(|| (usize::try_from(number).unwrap() + killed.len() * 10) % AIMS.len());
        let stroke = Stroke { when: any_instant(&mut random, aim), signal: Signal::KILL, whom: None };
        let stroke = (life < 4).then_some(stroke);
        let process = scene.start(&assignment, holder.clone(), life, stroke).await;
        match assignment.end_of(process).await {
            End::Killed(what) => killed.push(what),
            End::Well(_) => break,
        }
    }
    scene.is_covered(assignment).await;
    killed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_killed_at_any_instant_and_nothing_is_paid_for_that_was_not_charged() {
    let scene = Arc::new(Scene::new().await);
    let (next, killed) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(BTreeMap::<String, u64>::new())));
    let count = |killed: &Mutex<BTreeMap<String, u64>>| killed.lock().unwrap().values().sum::<u64>();
    let worked = (0..AT_A_TIME).map(|_| {
        let (scene, next, killed) = (Arc::clone(&scene), Arc::clone(&next), Arc::clone(&killed));
        tokio::spawn(async move {
            while count(&killed) < KILLS {
                for what in job(&scene, next.fetch_add(1, Ordering::SeqCst)).await {
                    *killed.lock().unwrap().entry(what).or_default() += 1;
                }
            }
        })
    });
    for worked in worked.collect::<Vec<_>>() {
        worked.await.unwrap();
    }
    let killed = killed.lock().unwrap().clone();
    println!("{} jobs, killed at {killed:#?}", next.load(Ordering::SeqCst));
    let missed: Vec<_> = AIMS.iter().filter(|aim| !killed.contains_key(**aim)).collect();
    assert!(missed.is_empty() && count(&Mutex::new(killed.clone())) >= KILLS, "{killed:#?}\nnever at {missed:?}");
    let jobs: Vec<String> = (0..next.load(Ordering::SeqCst)).map(|number| format!("job-{number}")).collect();
    scene.is_settled_by_the_bill(&jobs).await;
}
