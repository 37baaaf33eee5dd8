//! Models that are wrong on purpose, in the place of the service: each must be
//! told from the model, and the history that tells it must be short.

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use serde_json::Value;

use super::compare::Names;
use super::model::Answer;
use super::model::job::State;
use super::model::units::Units;
use super::model::world::World;
use super::play::{Subject, play};
use super::policy::{Policy, SHAPES, Shape};
use super::request::{Request, Verb};
use super::steps::{Step, histories};

/// What a mutant does after the model has answered; it can also change that.
type Wrong = fn(before: &World, &mut World, &Request, &mut Answer);

struct Mutant {
    world: World,
    wrong: Wrong,
}

impl Mutant {
    fn asked(&mut self, request: &Request) -> Answer {
        let before = self.world.clone();
        let mut answer = self.world.ask(request).unwrap();
        (self.wrong)(&before, &mut self.world, request, &mut answer);
        answer.body = as_it_is_sent(answer.body);
        answer
    }
}

/// Without what must not be there.
pub fn as_it_is_sent(body: Value) -> Value {
    match body {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .filter(|(_, value)| value != super::model::ABSENT)
                .map(|(name, value)| (name, as_it_is_sent(value)))
                .collect(),
        ),
        Value::Array(items) => items.into_iter().map(as_it_is_sent).collect(),
        other => other,
    }
}

impl Subject for Mutant {
    async fn begin(&mut self, shape: &Shape) -> i64 {
        self.world = World::new(*shape, 1_772_352_000);
        self.world.now
    }

    async fn ask(&mut self, request: &Request, _: &Names, _: usize) -> Answer {
        self.asked(request)
    }

    async fn ask_twice(&mut self, request: &Request, _: &Names) -> [Answer; 2] {
        [self.asked(request), self.asked(request)]
    }

    async fn ask_and_crash(&mut self, request: &Request, _: &Names, after: u64) -> Answer {
        if after.is_multiple_of(2) {
            self.asked(request);
        }
        self.asked(request)
    }

    async fn budgets(&mut self, account: usize, _: usize) -> Answer {
        Answer::new(200, self.world.budgets(account))
    }

    async fn liabilities(&mut self) -> Answer {
        Answer::new(200, as_it_is_sent(self.world.liabilities()))
    }

    async fn lists(&mut self, job: usize, _: &Names) -> Value {
        let mut rows = self.world.jobs[&job].rows_beside_it();
        rows.as_object_mut().unwrap().remove("events");
        rows
    }

    async fn wait_until(&mut self, now: i64) {
        self.world.now = now;
    }

    async fn apply(&mut self, policy: Policy) {
        self.world.apply(policy);
    }

    async fn books(&mut self) -> Value {
        self.world.books()
    }

    async fn beside_the_books(&mut self) -> Value {
        self.world.beside_the_books()
    }
}

/// Looks for a history that tells the mutant from the model.
fn hunt(wrong: Wrong, shape: &Shape, cases: u32) -> Result<(), (String, Vec<Step>)> {
    let config = Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        max_shrink_iters: 400,
        ..Config::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let result = TestRunner::new(config).run(&histories(25), |history| {
        let mut mutant = Mutant { world: World::new(*shape, 0), wrong };
        runtime.block_on(play(&mut mutant, shape, &history)).map_err(TestCaseError::fail)?;
        Ok(())
    });
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, history)) => Err((why.message().to_owned(), history)),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn the_model_is_like_itself() {
    for shape in &SHAPES {
        let told = hunt(|_, _, _, _| {}, shape, 50);
        assert!(told.is_ok(), "{}", told.unwrap_err().0);
    }
}

#[test]
fn what_differs_is_found_and_told_in_a_few_steps() {
    let mutants: [(&str, usize, Wrong); 6] = [
        ("a fence leaves the ceiling", 2, |before, world, request, _| {
            if let (Verb::Fence { .. }, Some(was)) = (request.verb, before.jobs.get(&request.job)) {
                world.jobs.get_mut(&request.job).unwrap().ceiling = was.ceiling;
            }
        }),
        ("late usage is lost", 5, |before, world, request, _| {
            if let (Some(was), Some(job)) = (before.jobs.get(&request.job), world.jobs.get_mut(&request.job)) {
                job.late.truncate(was.late.len());
            }
        }),
        ("a call whose outcome is unknown gives its room back", 3, |_, world, request, _| {
            if let (Verb::Unknown { .. }, Some(job)) = (request.verb, world.jobs.get_mut(&request.job)) {
                job.unknown = Units::ZERO;
            }
        }),
        ("a renewal after the end moves the lease", 4, |_, world, request, _| {
            if let (Verb::Renew { lease, .. }, Some(job)) = (request.verb, world.jobs.get_mut(&request.job))
                && job.state != State::Active
            {
                job.lease_ends = world.now + lease;
            }
        }),
        ("a cancel shows the token", 2, |_, world, request, answer| {
            if request.verb == Verb::Cancel {
                let job = &world.jobs[&request.job];
                answer.body["attempt"]["token"] = job.token(job.attempt).into();
            }
        }),
        ("a raised limit counts for the next period only", 3, |before, world, _, _| {
            if before.policy == world.policy && world.policy.own == 30 {
                for period in &mut world.periods {
                    period.limit = Units::whole(20);
                }
            }
        }),
    ];
    for (what, most, wrong) in mutants {
        let (told, history) = hunt(wrong, &SHAPES[0], 2000).expect_err(what);
        assert!(history.len() <= most, "{what}: it takes {} steps to tell\n{told}", history.len());
        assert!(told.contains("expected"), "{what}: {told}");
    }
}
