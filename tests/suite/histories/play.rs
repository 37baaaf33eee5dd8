//! One history, played against the model and against what is to be like it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::asking::Action;
use super::compare::{Names, book_differences};
use super::model::Answer;
use super::model::job::{Job, State};
use super::model::units::Units;
use super::model::world::World;
use super::policy::{Policy, Shape};
use super::request::{Request, Role, Token, Verb};
use super::steps::{How, Step};

/// What must be like the model: the service, or in tests of this part a model
/// that is wrong on purpose.
pub trait Subject {
    /// Gets ready for a new history, and says when it begins (seconds since 1970).
    async fn begin(&mut self, shape: &Shape) -> i64;
    /// Asks once, at one of the processes.
    async fn ask(&mut self, request: &Request, names: &Names, process: usize) -> Answer;
    /// Asks twice at the same time.
    async fn ask_twice(&mut self, request: &Request, names: &Names) -> [Answer; 2];
    /// Asks, is killed so many milliseconds later, and is asked again.
    async fn ask_and_crash(&mut self, request: &Request, names: &Names, after: u64) -> Answer;
    async fn budgets(&mut self, account: usize, process: usize) -> Answer;
    /// What is open, as finance sees it.
    async fn liabilities(&mut self) -> Answer;
    /// The calls and the late usage of a job in the shape of
    /// [`Job::rows_beside_it`](super::model::job::Job::rows_beside_it), as they
    /// are listed.
    async fn lists(&mut self, job: usize, names: &Names) -> Value;
    async fn wait_until(&mut self, now: i64);
    async fn apply(&mut self, policy: Policy);
    /// In the shape of [`World::books`].
    async fn books(&mut self) -> Value;
    /// In the shape of [`World::beside_the_books`].
    async fn beside_the_books(&mut self) -> Value;
}

/// A history that is being played.
struct Play<'a, S> {
    subject: &'a mut S,
    world: World,
    names: Names,
    /// What has been asked and answered.
    told: Vec<String>,
    tally: Tally,
}

/// How often each verb was answered in each way.
pub type Tally = BTreeMap<String, u64>;

/// Plays a history. The error tells the steps, as they came out, and what
/// differs after the last of them.
pub async fn play<S: Subject>(subject: &mut S, shape: &Shape, history: &[Step]) -> Result<Tally, String> {
    let now = subject.begin(shape).await;
    let mut play = Play {
        subject,
        world: World::new(*shape, now),
        names: Names::default(),
        told: Vec::new(),
        tally: Tally::new(),
    };
    for step in history {
        play.step(step).await?;
    }
    play.end().await?;
    Ok(play.tally)
}

/// Plays what comes before something else, and what has to be asked then; what
/// the world has come to.
pub async fn first_steps<S: Subject>(
    subject: &mut S,
    shape: &Shape,
    steps: &[Step],
    requests: fn(&World) -> Vec<Request>,
) -> Result<(World, Names), String> {
    let now = subject.begin(shape).await;
    let mut play = Play {
        subject,
        world: World::new(*shape, now),
        names: Names::default(),
        told: Vec::new(),
        tally: Tally::new(),
    };
    for step in steps {
        play.step(step).await?;
    }
    for request in &requests(&play.world) {
        play.ask(request, How::Once(0)).await?;
    }
    Ok((play.world, play.names))
}

impl<S: Subject> Play<'_, S> {
    async fn step(&mut self, step: &Step) -> Result<(), String> {
        let names = &self.names;
        let action = step.what.action(&self.world, |token, job| names.get(&token_name(job, token)).is_some());
        let process = if let How::Once(process) = step.how { process } else { 0 };
        match action {
            Action::Ask(request) => self.ask(&request, step.how).await?,
            Action::Budgets(account) => {
                self.told.push(format!("budgets of account {account}"));
                let got = self.subject.budgets(account, process).await;
                let expected = Answer::new(200, self.world.budgets(account));
                let differences = self.names.differences(&expected, &got);
                self.same(differences)?;
            }
            Action::WaitUntil(now) => {
                self.told.push(format!("{} seconds later", now - self.world.now));
                self.world.now = now;
                self.subject.wait_until(now).await;
            }
            Action::Apply(policy) => {
                self.told.push(format!("{policy:?} is applied"));
                self.world.apply(policy);
                self.subject.apply(policy).await;
            }
        }
        let got = self.subject.books().await;
        self.same(book_differences(&self.world.books(), &got))
    }

    async fn ask(&mut self, request: &Request, how: How) -> Result<(), String> {
        self.told.push(match how {
            How::Once(_) => format!("{request:?}"),
            How::Twice => format!("twice at once, {request:?}"),
            How::Crash(after) => format!("killed after {after} ms, and again, {request:?}"),
        });
        let before = self.world.jobs.get(&request.job).cloned();
        let first = self.world.ask(request).expect("it is about a job that is there");
        let again = self.again(request)?;
        let names = self.names.clone();
        let differences = match how {
            How::Once(process) => {
                let got = self.subject.ask(request, &names, process).await;
                self.names.differences(&first, &got)
            }
            How::Twice => {
                let [one, other] = self.subject.ask_twice(request, &names).await;
                self.either(&[(&first, &one), (&again, &other)], &[(&first, &other), (&again, &one)])
            }
            How::Crash(after) => {
                let got = self.subject.ask_and_crash(request, &names, after).await;
                self.either(&[(&first, &got)], &[(&again, &got)])
            }
        };
        self.told.last_mut().unwrap().push_str(&format!(" -> {}", first.status_and_code()));
        let what = came_up(request, before.as_ref(), &self.world.jobs, &first);
        *self.tally.entry(what).or_default() += 1;
        self.same(differences)
    }

    /// What a repeat is answered: it must change nothing.
    fn again(&self, request: &Request) -> Result<Answer, String> {
        let mut world = self.world.clone();
        let again = world.ask(request).expect("it is about a job that is there");
        if world == self.world {
            return Ok(again);
        }
        self.same(vec!["the model itself does something when it is asked again".to_owned()])?;
        Ok(again)
    }

    /// The differences of the first pairing, unless the second has none.
    fn either(&mut self, first: &[(&Answer, &Answer)], second: &[(&Answer, &Answer)]) -> Vec<String> {
        let before = self.names.clone();
        let mut compare = |pairs: &[(&Answer, &Answer)]| -> Vec<String> {
            self.names = before.clone();
            pairs.iter().flat_map(|(expected, got)| self.names.differences(expected, got)).collect()
        };
        let one = compare(second);
        if one.is_empty() { one } else { compare(first) }
    }

    /// Everything that was written is compared. Where what is held would be carried
    /// into the next history, finance looks at it and closes it first.
    async fn end(&mut self) -> Result<(), String> {
        let carries = self.world.shape.carries;
        if carries {
            self.lists().await?;
        }
        let open = self.world.jobs.values().filter(|job| carries && job.state != State::Settled);
        let closing: Vec<Request> = open
            .map(|job| {
                let units = if job.version % 2 == 0 { job.settled } else { job.charged().max(Units::STEP) };
                Request { job: job.number, by: Role::Finance, verb: Verb::Close { units } }
            })
            .collect();
        for request in closing {
            self.ask(&request, How::Once(0)).await?;
        }
        let got = self.subject.books().await;
        self.same(book_differences(&self.world.books(), &got))?;
        self.told.push("what was written beside the books".to_owned());
        let mut got = self.subject.beside_the_books().await;
        got.as_object_mut().unwrap().remove("available");
        self.same(book_differences(&self.world.beside_the_books(), &got))
    }

    /// What is listed is what there is.
    async fn lists(&mut self) -> Result<(), String> {
        self.told.push("finance looks at what is open".to_owned());
        let got = self.subject.liabilities().await;
        let differences = self.names.differences(&Answer::new(200, self.world.liabilities()), &got);
        self.same(differences)?;
        for job in self.world.jobs.values() {
            let mut expected = job.rows_beside_it();
            expected.as_object_mut().unwrap().remove("events");
            let got = self.subject.lists(job.number, &self.names).await;
            self.same(book_differences(&expected, &got))?;
        }
        Ok(())
    }

    /// Tells the history, if there are differences.
    fn same(&self, differences: Vec<String>) -> Result<(), String> {
        if differences.is_empty() {
            return Ok(());
        }
        let steps: Vec<String> = self.told.iter().zip(1..).map(|(step, n)| format!("  {n:2}. {step}")).collect();
        Err(format!(
            "under the policy {:?}:\n{}\nthe answer or the books differ from the model:\n  {}",
            self.world.shape.name,
            steps.join("\n"),
            differences.join("\n  ")
        ))
    }
}

/// What came up with a request: the verb, the work, the state that it met, the
/// answer, and whether it made a version.
fn came_up(request: &Request, before: Option<&Job>, after: &BTreeMap<usize, Job>, answer: &Answer) -> String {
    let after = after.get(&request.job);
    let met = before.map_or("none", |job| job.state.name());
    let work = after.map_or("work", |job| job.operation.name());
    let made = before.map(|job| job.version) != after.map(|job| job.version);
    let made = if made { ", a version" } else { "" };
    format!("{} {work} {met}: {}{made}", request.name(), answer.status_and_code())
}

/// The name of a token, as the model gives it.
pub fn token_name(job: usize, token: Token) -> String {
    match token {
        Token::Of(attempt) => format!("§token of j{job} attempt {attempt}"),
        Token::Never => "§no token".to_owned(),
    }
}
