//! The witness must be able to say no: what cannot have happened is not
//! explained.

use serde_json::{Value, json};

use super::explain;
use crate::histories::compare::Names;
use crate::histories::model::units::Units;
use crate::histories::model::world::World;
use crate::histories::mutants::as_it_is_sent;
use crate::histories::policy::SHAPES;
use crate::histories::request::{Operation, Request, Role, Token, Verb};
use crate::histories::together::{Asked, version_in};

/// What several clients were told, and what was found afterwards.
struct Case {
    begin: World,
    asked: Vec<Asked>,
    books: Value,
    beside: Value,
}

impl Case {
    /// As it happens when nothing is wrong: one after the other.
    fn new(verbs: &[Verb]) -> Self {
        let mut world = World::new(SHAPES[0], 1_772_352_000);
        let request = |verb| Request { job: 0, by: Role::Worker, verb };
        world.ask(&request(reserve(9))).unwrap();
        let begin = world.clone();
        let mut asked = Vec::new();
        for (client, verb) in verbs.iter().enumerate() {
            let mut got = world.ask(&request(*verb)).unwrap();
            got.body = as_it_is_sent(got.body);
            asked.push(Asked { client, request: request(*verb), since: 1, got });
        }
        let mut beside = world.beside_the_books();
        beside["available"] = json!({"a 2026-03-01": ["11", "20"], "pool 2026-03-01": ["25", "34"]});
        Self { begin, asked, books: world.books(), beside }
    }

    fn explained(self) -> Result<(), String> {
        let Self { begin, asked, books, beside } = self;
        explain(begin, Names::default(), asked, &books, &beside).map(|_| ())
    }

    /// Is not explained, for this reason.
    #[track_caller]
    fn refused(self, why: &str) {
        let told = self.explained().expect_err(why);
        assert!(told.contains(why), "{told}");
    }
}

fn reserve(units: i64) -> Verb {
    Verb::Reserve { operation: Operation::Ask, units: Units::whole(units), holder: 0, lease: 60 }
}

fn admit(call: usize, units: i64) -> Verb {
    Verb::Admit { attempt: Token::Of(1), call, units: Units::whole(units), extend: false }
}

fn settle_call(call: usize, units: i64) -> Verb {
    Verb::SettleCall { attempt: Token::Of(1), call, units: Units::whole(units), provider_request: None }
}

/// Two calls, one of them settled and settled again otherwise, a cancel, and a
/// call that comes after it.
fn usual() -> Case {
    Case::new(&[admit(0, 2), admit(1, 3), settle_call(0, 2), settle_call(0, 5), Verb::Cancel, admit(2, 1)])
}

#[test]
fn what_can_have_happened_is_explained() {
    usual().explained().unwrap();
    // In whatever order the answers came.
    let mut case = usual();
    case.asked.reverse();
    case.explained().unwrap();
}

#[test]
fn every_version_has_a_cause() {
    let mut case = usual();
    case.asked.remove(1);
    case.refused("no request explains that j0 came to \"3 call_admitted");
}

#[test]
fn what_happens_once_is_answered_once() {
    let mut case = usual();
    case.asked.push(case.asked[0].clone());
    case.refused("nothing explains the answer to request 6");
}

#[test]
fn a_refusal_has_a_reason() {
    let mut case = usual();
    case.asked[5].got.body["code"] = json!("stale_attempt");
    case.refused("nothing explains the answer to request 5");
}

#[test]
fn nobody_is_told_what_is_over() {
    let mut case = usual();
    let version = version_in(&case.asked[3].got.body).unwrap();
    case.asked[3].since = version + 1;
    case.refused("request 3 was answered from an older version");
}

#[test]
fn room_that_never_was_is_no_reason() {
    let extend = Verb::Extend { attempt: Token::Of(1), ceiling: Units::whole(16) };
    let refused = |available: &str| {
        let mut case = Case::new(&[Verb::Look]);
        let body = json!({"status": 429, "code": "budget_exhausted", "reservation": case.asked[0].got.body,
                          "breaches": [{"budget": "own", "requested": "7", "available": available,
                                        "resets_at": "2026-03-02T00:00:00Z"}]});
        let Asked { request, got, .. } = &mut case.asked[0];
        (request.verb, got.status, got.body) = (extend, 429, body);
        got.body["reservation"]["attempt"]["token"] = json!("the token");
        case
    };
    refused("3").refused("told that 3 is available, and never was");
    // It was so, but then there was room.
    refused("11").refused("nothing explains the answer to request 0");
}

#[test]
fn late_usage_is_neither_lost_nor_made_up() {
    let mut case = usual();
    case.beside["jobs"]["j0"]["late"] = json!([]);
    case.refused("late usage of j0");
    let mut case = usual();
    case.beside["jobs"]["j0"]["late"].as_array_mut().unwrap().push(json!("attempt 1 call c1 9 stale_attempt -"));
    case.refused("late usage of j0");
}

#[test]
fn the_books_are_what_the_versions_came_to() {
    let mut case = usual();
    case.books["periods"]["a 2026-03-01T00:00:00Z"]["available"] = json!("12");
    case.refused("available: expected \"11\", got \"12\"");
    let mut case = usual();
    case.beside["journal"]["a 2026-03-01T00:00:00Z"]["cancel j0 v5 because not wanted any more"] =
        json!(["0", "-6", "6", "0"]);
    case.refused("cancel j0 v5");
}
