//! What several clients were answered must be what the model makes of their
//! requests one after the other, in the order of the versions that the
//! reservations went through.

mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::histories::compare::{Names, book_differences};
use crate::histories::model::Answer;
use crate::histories::model::job::Job;
use crate::histories::model::units::Units;
use crate::histories::model::world::World;
use crate::histories::play::Tally;
use crate::histories::together::{Asked, version_in};

/// More than anybody asks for.
const PLENTY: Units = Units::whole(1_000_000);

/// A job as it was at each of its versions; at 0 it was not there.
type Versions = BTreeMap<i64, Option<Job>>;

struct Witness {
    begin: World,
    names: Names,
    asked: Vec<Asked>,
    /// Which of them made a version.
    causes: BTreeSet<usize>,
    jobs: BTreeMap<usize, Versions>,
    /// Late usage that refusals must have left, by job.
    late: BTreeMap<usize, BTreeSet<String>>,
}

/// What the books, and all that is beside them, have come to must be explained
/// by what was asked and answered since the beginning. The error tells that, and
/// what of it nothing explains; else what came up is counted.
pub fn explain(begin: World, names: Names, asked: Vec<Asked>, books: &Value, beside: &Value) -> Result<Tally, String> {
    let mut witness =
        Witness { begin, names, asked, causes: BTreeSet::new(), jobs: BTreeMap::new(), late: BTreeMap::new() };
    let found = witness.versions(beside).and_then(|()| witness.others(beside)).and_then(|()| {
        let differences = witness.end(books, beside);
        if differences.is_empty() { Ok(()) } else { Err(differences.join("\n  ")) }
    });
    found.map_err(|told| format!("{}\n  {told}", witness.transcript()))?;
    Ok(witness.tally())
}

impl Witness {
    /// Finds the request that made each version.
    fn versions(&mut self, beside: &Value) -> Result<(), String> {
        let named = beside["jobs"].as_object().unwrap().iter();
        for (name, rows) in named {
            let number: usize = name.trim_start_matches('j').parse().unwrap();
            let mut job = self.begin.jobs.get(&number).cloned();
            let mut versions = Versions::from([(job.as_ref().map_or(0, |job| job.version), job.clone())]);
            let lines: Vec<&str> = rows["events"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
            let known = usize::try_from(*versions.keys().next().unwrap()).unwrap();
            for (line, version) in lines.iter().zip(1_i64..).skip(known) {
                let Some((n, after)) = self.cause(number, job.as_ref(), version, line) else {
                    return Err(format!("no request explains that {name} came to {line:?}"));
                };
                self.causes.insert(n);
                job = Some(after);
                versions.insert(version, job.clone());
            }
            self.jobs.insert(number, versions);
        }
        Ok(())
    }

    /// The request that made this version of the job, and the job after it.
    fn cause(&self, number: usize, before: Option<&Job>, version: i64, line: &str) -> Option<(usize, Job)> {
        let candidates = self.asked.iter().enumerate().filter(|(n, asked)| {
            asked.request.job == number
                && !self.causes.contains(n)
                && asked.got.status < 300
                && version_in(&asked.got.body) == Some(version)
        });
        candidates.into_iter().find_map(|(n, asked)| {
            let (expected, after) = self.decide(before, asked)?;
            let after = after.filter(|job| job.version == version)?;
            let told = after.events.last()?.line(version);
            (told == line && self.alike(expected, &asked.got)).then_some((n, after))
        })
    }

    /// Everything else changed nothing, and was answered from a version that the
    /// job had while it was asked.
    fn others(&mut self, beside: &Value) -> Result<(), String> {
        let mut late: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for (n, asked) in self.asked.iter().enumerate() {
            let shown = version_in(&asked.got.body);
            if shown.is_some_and(|shown| shown < asked.since) {
                return Err(format!("request {n} was answered from an older version than had been told"));
            }
            if self.causes.contains(&n) {
                continue;
            }
            let absent = Versions::from([(0, None)]);
            let versions = self.jobs.get(&asked.request.job).unwrap_or(&absent);
            let possible = versions.range(asked.since..).filter(|(version, _)| shown.is_none_or(|v| v == **version));
            let explained = possible.into_iter().find_map(|(version, before)| {
                let (expected, after) = self.decide(before.as_ref(), asked)?;
                let nothing_changed = after.as_ref().map_or(0, |job| job.version) == *version;
                (nothing_changed && self.alike(expected, &asked.got)).then_some(after)
            });
            match explained {
                None => return Err(format!("nothing explains the answer to request {n}")),
                Some(Some(job)) => {
                    late.entry(asked.request.job).or_default().extend(job.late.iter().map(|late| late.line()));
                }
                Some(None) => {}
            }
            self.room_was_so(n, asked, beside)?;
        }
        self.late = late;
        Ok(())
    }

    /// What a refusal says was available must have been so at some time.
    fn room_was_so(&self, n: usize, asked: &Asked, beside: &Value) -> Result<(), String> {
        for (owner, available) in reported(asked) {
            let name = ["a ", "b ", "pool "][owner];
            let after = beside["available"].as_object().unwrap().iter().filter(|(period, _)| period.starts_with(name));
            let ever = after.flat_map(|(_, available)| available.as_array().unwrap()).map(|v| v.as_str().unwrap());
            if !ever.map(Units::parse).any(|ever| ever == available) {
                return Err(format!("request {n} was told that {available} is available, and never was"));
            }
        }
        Ok(())
    }

    /// What the model makes of a request about the job as it was then. Whether
    /// there was room is not known here: there was, unless the answer says no.
    fn decide(&self, job: Option<&Job>, asked: &Asked) -> Option<(Answer, Option<Job>)> {
        let number = asked.request.job;
        let mut world = self.begin.clone();
        world.jobs = job.map(|job| (number, job.clone())).into_iter().collect();
        let reported: BTreeMap<usize, Units> = reported(asked).into_iter().collect();
        for period in &mut world.periods {
            let available = reported.get(&period.owner).copied().unwrap_or(PLENTY);
            // What others hold does not matter; the buckets must only add up.
            (period.reserved, period.liability, period.settled) = (PLENTY, PLENTY, PLENTY);
            period.available = available;
            period.carried = period.limit - available - PLENTY - PLENTY - PLENTY;
        }
        let answer = world.ask(&asked.request)?;
        Some((answer, world.jobs.remove(&number)))
    }

    /// Whether an answer is the expected one, apart from leases (which have no
    /// version) and from when to try again (which is a matter of room).
    fn alike(&self, mut expected: Answer, got: &Answer) -> bool {
        if expected.status == 429 || expected.body["code"] == "lease_current" {
            let members = expected.body.as_object_mut().unwrap();
            members.retain(|name, _| !name.starts_with("retry"));
        }
        without_leases(&mut expected.body);
        self.names.clone().differences(&expected, got).is_empty()
    }

    /// What the books must have come to.
    fn end(&self, books: &Value, beside: &Value) -> Vec<String> {
        let mut world = self.begin.clone();
        for (number, versions) in &self.jobs {
            for job in versions.values().skip(1).flatten() {
                world.comes_to(*number, job.clone());
            }
        }
        let mut differences = book_differences(&timeless(world.books()), &timeless(books.clone()));
        differences.extend(book_differences(&timeless(world.beside_the_books()), &timeless(beside.clone())));
        for (name, rows) in beside["jobs"].as_object().unwrap() {
            let number: usize = name.trim_start_matches('j').parse().unwrap();
            let got: BTreeSet<String> =
                rows["late"].as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect();
            let mut expected = self.late.get(&number).cloned().unwrap_or_default();
            expected.extend(self.begin.jobs.get(&number).into_iter().flat_map(|job| job.late.iter().map(|l| l.line())));
            // Which refusal of the same usage was first is not known.
            let keys = |lines: &BTreeSet<String>| -> BTreeSet<String> {
                lines.iter().map(|line| line.split(' ').take(5).collect::<Vec<_>>().join(" ")).collect()
            };
            if !got.is_subset(&expected) || keys(&got) != keys(&expected) {
                differences.push(format!("late usage of {name}: expected {expected:?}, got {got:?}"));
            }
        }
        differences
    }

    /// What was answered, and which answers were not from the newest version.
    fn tally(&self) -> Tally {
        let mut tally = Tally::new();
        for (n, asked) in self.asked.iter().enumerate() {
            let overtaken =
                version_in(&asked.got.body).is_some_and(|version| version > asked.since) && !self.causes.contains(&n);
            let overtaken = if overtaken { ", overtaken" } else { "" };
            let what = format!("{} {}{overtaken}", asked.request.name(), asked.got.status_and_code());
            *tally.entry(what).or_default() += 1;
        }
        tally
    }

    fn transcript(&self) -> String {
        let line = |(n, asked): (usize, &Asked)| {
            let Asked { client, request, since, got } = asked;
            let code = got.body["code"].as_str().unwrap_or_default();
            let version = version_in(&got.body).map_or(String::new(), |version| format!("version {version}"));
            let cause = if self.causes.contains(&n) { ", made it" } else { "" };
            format!(
                "  {n:2}. client {client}, from version {since}: {request:?} -> {} {code} {version}{cause}",
                got.status
            )
        };
        let lines: Vec<String> = self.asked.iter().enumerate().map(line).collect();
        let jobs: Vec<String> =
            self.begin.jobs.values().map(|job| format!("  {:?} {}", job.number, job.row())).collect();
        format!(
            "under the policy {:?}, jobs before:\n{}\nasked at once, in the order of the answers:\n{}",
            self.begin.shape.name,
            jobs.join("\n"),
            lines.join("\n")
        )
    }
}

/// What a refusal says was available, by the owner of the budget.
fn reported(asked: &Asked) -> Vec<(usize, Units)> {
    let breaches = asked.got.body["breaches"].as_array().into_iter().flatten();
    breaches
        .map(|breach| {
            let owner = if breach["budget"] == "pool" { 2 } else { asked.request.account() };
            (owner, Units::parse(breach["available"].as_str().unwrap()))
        })
        .collect()
}

fn without_leases(body: &mut Value) {
    if let Value::Object(members) = body {
        members.retain(|name, _| name != "lease_expires_at" && name != "overdue");
        members.values_mut().for_each(without_leases);
    }
}

/// Books without leases, which have no version, and without what is compared by
/// itself.
fn timeless(mut books: Value) -> Value {
    let top = books.as_object_mut().unwrap();
    top.retain(|name, _| name != "available");
    for job in books["jobs"].as_object_mut().unwrap().values_mut() {
        job.as_object_mut().unwrap().retain(|name, _| name != "lease_ends" && name != "late");
    }
    books
}
