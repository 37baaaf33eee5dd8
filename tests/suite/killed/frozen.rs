//! A worker that is frozen in the middle of a job, is taken over, and goes on: the
//! ledger tells it that it is stale, and has its late settlement. (RULES.md,
//! section 5)

use rust_decimal::Decimal;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::any_instant;
use super::scene::{Assignment, End, Life, Scene, Standing};
use super::worker::{Ending, Orders, Outcome, Planned};
use crate::support::process::signal;
use crate::support::random::Random;
use crate::support::relay::Stroke;

const FREEZES: u64 = 36;

/// What a process said that ended by itself.
fn said(end: End) -> Vec<String> {
    match end {
        End::Well(said) => said,
        End::Killed(what) => panic!("killed at {what}"),
    }
}

/// A job of at least four calls that all go well.
fn seed() -> u64 {
    let goes_well = |call: &Planned| matches!(call.outcome, Outcome::Paid(1..));
    let suits = |seed: &u64| Planned::of(*seed).len() >= 4 && Planned::of(*seed).iter().all(goes_well);
    (0..).find(suits).unwrap()
}

fn charge(call: &Planned) -> Decimal {
    let Outcome::Paid(charge) = call.outcome else { panic!("{call:?}") };
    charge.into()
}

/// A worker that is frozen between the admission of its second call and the paid
/// request.
struct Frozen<'a> {
    scene: &'a Scene,
    of: Assignment,
    plan: Vec<Planned>,
    process: Life,
    token: String,
}

impl<'a> Frozen<'a> {
    async fn new(scene: &'a Scene, number: u64) -> Self {
        let mut of = scene.assign(number);
        of.seed = seed();
        let plan = Planned::of(of.seed);
        let stops = |orders| Orders { stops_before: Some(plan[1].key.clone()), ..orders };
        let process = scene.start_with(&of, None, stops).await;
        process.has_stopped().await;
        let standing = scene.standing(&of.job).await;
        assert_eq!((standing.settled, standing.outstanding), (charge(&plan[0]), plan[1].units.into()));
        assert_eq!(scene.provider.bill(standing.id).await.len(), 1);
        let token = scene.token(&of.job).await;
        Self { scene, of, plan, process, token }
    }

    /// It is stale, whether it knows it or not: it goes on and pays for what it was
    /// admitted for, which has been charged all along, and it is settled. Says what it
    /// said, and the job.
    async fn goes_on(mut self) -> (Vec<String>, Assignment) {
        let Standing { id, settled, outstanding, charged, .. } = self.scene.standing(&self.of.job).await;
        let held = Decimal::from(self.plan[1].units);
        assert!(outstanding == held && charged >= settled + held, "{charged} is charged, with {settled} settled");
        let call = json!({"attempt": self.token, "call": "c-9", "units": 1});
        self.scene.worker.post(&format!("/v1/reservations/{id}/calls"), call).await.problem(409, "stale_attempt");

        self.process.go_on();
        self.process.child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
        let said = said(self.of.end_of(self.process).await);
        assert_eq!(self.scene.provider.bill(id).await["c-2"].charged, charge(&self.plan[1]));
        let standing = self.scene.standing(&self.of.job).await;
        assert_eq!((standing.settled, standing.outstanding), (settled + charge(&self.plan[1]), Decimal::ZERO));
        (said, self.of)
    }
}

/// Everything that the job was to do was done once, and is settled.
async fn is_whole(scene: &Scene, of: Assignment) {
    let standing = scene.standing(&of.job).await;
    let whole: Decimal = Planned::of(of.seed).iter().map(charge).sum();
    assert_eq!((standing.state.as_str(), standing.settled, standing.charged), ("settled", whole, whole));
    let job = of.job.clone();
    scene.is_covered(of).await;
    scene.is_settled_by_the_bill(&[job]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_admitted_before_a_freeze_is_charged_while_another_works_and_settles_late() {
    let scene = Scene::new().await;
    let frozen = Frozen::new(&scene, 0).await;
    scene.provider.let_leases_run_out().await;
    let path = format!("/v1/reservations/{}/attempts", scene.standing(&frozen.of.job).await.id);
    scene.worker.post(&path, json!({"previous": 1, "holder": "other"})).await.expect(201);
    let (said_late, mut of) = frozen.goes_on().await;
    assert_eq!(said_late, ["c-1 told", "c-2 told", "c-3 stopped Lost", "lost"]);
    let other = scene.start(&of, Some("other".to_owned()), settling_life(1), None).await;
    said(of.end_of(other).await);
    is_whole(&scene, of).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_admitted_before_a_freeze_is_charged_after_another_has_settled_and_settles_late() {
    // Whoever took over says nothing of the call, or that its outcome is unknown.
    for life in [settling_life(1), settling_life(2)] {
        let scene = Scene::new().await;
        let mut frozen = Frozen::new(&scene, 0).await;
        let other = scene.start(&frozen.of, Some("other".to_owned()), life, None).await;
        let other = said(frozen.of.end_of(other).await);
        assert!(other.contains(&"taken over".to_owned()) && !other.contains(&"c-2 told".to_owned()), "{other:?}");
        assert_eq!(scene.standing(&frozen.of.job).await.state, "fenced");
        let (said_late, of) = frozen.goes_on().await;
        // Its late settlement was the last that was to be known.
        assert_eq!(said_late, ["c-1 told", "c-2 told", "c-3 stopped Over", "lost"]);
        is_whole(&scene, of).await;
    }
}

/// An odd or even life, from this one on, that settles when its calls are made.
fn settling_life(from: u64) -> u64 {
    (from..).step_by(2).find(|life| Ending::of(seed(), *life) == Ending::Settles).unwrap()
}

/// A job whose first process is frozen at any instant, and goes on at any instant of
/// the one that took over.
async fn frozen_at_any_instant(scene: &Scene, number: u64) -> Option<String> {
    let mut random = Random::new(number.wrapping_mul(104_729));
    let mut of = scene.assign(number);
    let aim = usize::try_from(number).unwrap() % 10;
    let stroke = Stroke { when: any_instant(&mut random, Some(aim)), signal: Signal::STOP, whom: None };
    let mut first = scene.start(&of, None, 0, Some(stroke)).await;
    let frozen = first.is_struck().await;
    let goes_on = Stroke { when: any_instant(&mut random, None), signal: Signal::CONT, whom: Some(first.pid) };
    let other = scene.start(&of, None, 1, frozen.is_some().then_some(goes_on)).await;
    said(of.end_of(other).await);
    of.let_late_in();
    first.go_on();
    said(of.end_of(first).await);
    // What neither has brought to its end.
    let last = scene.start(&of, None, 2, None).await;
    said(of.end_of(last).await);
    scene.is_covered(of).await;
    frozen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_are_frozen_at_any_instant_and_go_on() {
    let scene = Scene::new().await;
    let mut frozen = Vec::new();
    for number in (0..FREEZES).step_by(3) {
        let [one, two, three] = [number, number + 1, number + 2].map(|number| frozen_at_any_instant(&scene, number));
        let (one, two, three) = tokio::join!(one, two, three);
        frozen.extend([one, two, three].into_iter().flatten());
    }
    assert!(frozen.len() as u64 > FREEZES / 2, "{frozen:?}");
    let jobs: Vec<String> = (0..FREEZES).map(|number| format!("job-{number}")).collect();
    scene.is_settled_by_the_bill(&jobs).await;
}

impl Life {
    /// Waits until the process has stopped.
    async fn has_stopped(&self) {
        use rustix::process::{Pid, WaitOptions, waitpid};
        let pid = Pid::from_raw(self.pid.try_into().unwrap());
        let stopped = tokio::task::spawn_blocking(move || waitpid(pid, WaitOptions::UNTRACED));
        let (_, status) = stopped.await.unwrap().unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Waits until the signal has been sent, and says at what; none if the process has
    /// ended before.
    async fn is_struck(&mut self) -> Option<String> {
        tokio::select! {
            what = self.relay.struck() => Some(what),
            _ = self.child.wait() => None,
        }
    }

    /// Whatever it was doing. It may have ended.
    fn go_on(&self) {
        if self.child.id().is_some() {
            signal(self.pid, Signal::CONT);
        }
    }
}
