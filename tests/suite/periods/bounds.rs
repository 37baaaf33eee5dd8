//! A reservation belongs to the periods of the calendar in whose zone it was
//! admitted, to the microsecond, and stays in them.

use serde_json::{Value, json};

use super::{DAILY, policy, reserve, service};
use crate::support::Answer;

/// The bounds of the period of one budget that a reservation is charged to.
fn bounds(reservation: &Answer, budget: &str) -> [Value; 2] {
    let budgets = reservation.body["budgets"].as_array().unwrap();
    let period = budgets.iter().find(|period| period["budget"] == budget).unwrap_or_else(|| panic!("no {budget}"));
    ["period_starts_at", "period_ends_at"].map(|bound| period[bound].clone())
}

/// The bounds of a budget's period as the balances show them, and whether it is
/// open or only as it would open.
fn shown(item: &Value) -> (&str, &str, bool) {
    assert_eq!(item["resets_at"], item["period_ends_at"]);
    (
        item["period_starts_at"].as_str().unwrap(),
        item["period_ends_at"].as_str().unwrap_or("never"),
        !item["period_id"].is_null(),
    )
}

#[tokio::test]
async fn every_kind_of_period_has_the_bounds_of_its_local_calendar() {
    // 2026-03-08T12:30:00Z is the Sunday on which New York's clocks go forward.
    let expected = [
        ("hour", "hour", "America/New_York", "2026-03-08T12:00:00Z", "2026-03-08T13:00:00Z"),
        ("hour-half", "hour", "Asia/Kolkata", "2026-03-08T12:30:00Z", "2026-03-08T13:30:00Z"),
        ("day", "day", "America/New_York", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
        ("day-east", "day", "Asia/Tokyo", "2026-03-07T15:00:00Z", "2026-03-08T15:00:00Z"),
        ("week", "week", "America/New_York", "2026-03-02T05:00:00Z", "2026-03-09T04:00:00Z"),
        ("week-east", "week", "Pacific/Auckland", "2026-03-08T11:00:00Z", "2026-03-15T11:00:00Z"),
        ("month", "month", "America/New_York", "2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z"),
        ("month-quarter-hour", "month", "Asia/Kathmandu", "2026-02-28T18:15:00Z", "2026-03-31T18:15:00Z"),
        ("quarter", "quarter", "America/New_York", "2026-01-01T05:00:00Z", "2026-04-01T04:00:00Z"),
        ("year", "year", "America/New_York", "2026-01-01T05:00:00Z", "2027-01-01T05:00:00Z"),
        ("year-east", "year", "Pacific/Kiritimati", "2025-12-31T10:00:00Z", "2026-12-31T10:00:00Z"),
    ];
    let definitions =
        expected.map(|(name, period, zone, ..)| (name, format!("limit: 5, period: {period}, timezone: {zone}")));
    let mut budgets: Vec<(&str, &str)> = definitions.iter().map(|(name, text)| (*name, text.as_str())).collect();
    budgets.push(("life", "limit: 5, period: total"));
    let (service, worker) = service(&budgets).await;
    service.database.stop_clock("2026-03-08T12:30:00Z").await;

    // As they would open, then as they are.
    for (name, _, _, starts, ends) in expected {
        assert_eq!(shown(&worker.budget("northstar", name, None).await), (starts, ends, false), "{name}");
    }
    let reservation = reserve(&worker, "job", "5").await.expect(201);
    for (name, _, _, starts, ends) in expected {
        assert_eq!(bounds(&reservation, name), [json!(starts), json!(ends)], "{name}");
        assert_eq!(shown(&worker.budget("northstar", name, None).await), (starts, ends, true), "{name}");
    }
    assert_eq!(bounds(&reservation, "life"), [json!("2026-03-08T12:30:00Z"), Value::Null]);
    let read = worker.get(&format!("/v1/reservations/{}", reservation.id())).await.expect(200);
    assert_eq!(read.body["budgets"], reservation.body["budgets"]);

    // All of them refuse, each until its own end; `life` never ends, so no time
    // can be named.
    let refused = reserve(&worker, "more", "1").await.problem(429, "budget_exhausted");
    let breaches = refused.body["breaches"].as_array().unwrap();
    assert_eq!(breaches.len(), 12);
    for (name, _, _, _, ends) in expected {
        assert_eq!(breaches.iter().find(|breach| breach["budget"] == name).unwrap()["resets_at"], ends, "{name}");
    }
    assert!(refused.headers.get("retry-after").is_none());
    let books = service.books().await;
    assert_eq!(books.entries_of("reserve").len(), 12);
    assert!(books.periods.iter().all(|line| line.ends_with(": 5 0 5 0 0")), "{:#?}", books.periods);
}

#[tokio::test]
async fn iso_weeks_cross_the_year() {
    let (service, worker) = service(&[("week", "limit: 5, period: week, timezone: Europe/Berlin")]).await;
    service.database.stop_clock("2027-01-01T12:00:00Z").await;
    let reservation = reserve(&worker, "job", "1").await.expect(201);
    assert_eq!(bounds(&reservation, "week"), [json!("2026-12-27T23:00:00Z"), json!("2027-01-03T23:00:00Z")]);
    service.books().await;
}

/// (zone, first instant of a day, first instant of the next day): days on which
/// the clocks change, in the order of time.
const DAYS: [(&str, &str, &str); 9] = [
    // Midnight does not exist: 00:00 becomes 01:00.
    ("America/Santiago", "2025-09-07T04:00:00Z", "2025-09-08T03:00:00Z"),
    // 01:00 becomes 00:00: midnight happens twice and the day starts at the first.
    ("America/Havana", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z"),
    ("America/New_York", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
    ("America/Havana", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
    ("Asia/Beirut", "2026-03-28T22:00:00Z", "2026-03-29T21:00:00Z"),
    ("Africa/Cairo", "2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"),
    // 24:00 becomes 23:00: midnight is the one after the repeated hour.
    ("Asia/Beirut", "2026-10-23T21:00:00Z", "2026-10-24T22:00:00Z"),
    ("Africa/Cairo", "2026-10-28T21:00:00Z", "2026-10-29T22:00:00Z"),
    ("America/New_York", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
];

fn microsecond_before(time: &str) -> String {
    let time = chrono::DateTime::parse_from_rfc3339(time).unwrap() - chrono::TimeDelta::microseconds(1);
    time.to_rfc3339()
}

#[tokio::test]
async fn days_when_the_clocks_change_and_their_first_and_last_microseconds() {
    for zone in ["America/Santiago", "America/New_York", "America/Havana", "Asia/Beirut", "Africa/Cairo"] {
        let definition = format!("limit: 100, period: day, timezone: {zone}");
        let (service, worker) = service(&[("day", &definition)]).await;
        let mut opened = 0;
        for (_, starts, ends) in DAYS.into_iter().filter(|(of, ..)| *of == zone) {
            service.database.stop_clock(&microsecond_before(starts)).await;
            let before = reserve(&worker, &format!("before-{starts}"), "1").await.expect(201);
            assert_eq!(bounds(&before, "day")[1], starts, "{zone}");

            service.database.stop_clock(starts).await;
            let first = reserve(&worker, &format!("first-{starts}"), "2").await.expect(201);
            assert_eq!(bounds(&first, "day"), [json!(starts), json!(ends)], "{zone}");
            assert_eq!(worker.balance("northstar", "day", None).await, ["0", "2", "0", "98"]);

            service.database.stop_clock(&microsecond_before(ends)).await;
            let last = reserve(&worker, &format!("last-{starts}"), "3").await.expect(201);
            assert_eq!(bounds(&last, "day"), [json!(starts), json!(ends)], "{zone}");
            assert_eq!(worker.balance("northstar", "day", None).await, ["0", "5", "0", "95"]);

            service.database.stop_clock(ends).await;
            let next = reserve(&worker, &format!("next-{starts}"), "4").await.expect(201);
            assert_eq!(bounds(&next, "day")[0], ends, "{zone}");
            assert_eq!(worker.balance("northstar", "day", None).await, ["0", "4", "0", "96"]);
            opened += 3;
        }
        let books = service.books().await;
        assert_eq!(books.periods.len(), opened, "{zone}");
        assert_eq!(books.entries_of("reserve").len(), opened / 3 * 4, "{zone}");
    }
}

#[tokio::test]
async fn an_hour_that_the_clock_repeats_is_two_and_one_that_it_skips_is_none() {
    let (service, worker) = service(&[("hour", "limit: 5, period: hour, timezone: America/New_York")]).await;
    for (at, starts, ends) in [
        // 01:59 is followed by 03:00.
        ("2026-03-08T06:59:59Z", "2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z"),
        ("2026-03-08T07:00:00Z", "2026-03-08T07:00:00Z", "2026-03-08T08:00:00Z"),
        // 01:30, and an hour later 01:30 again.
        ("2026-11-01T05:30:00Z", "2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z"),
        ("2026-11-01T06:30:00Z", "2026-11-01T06:00:00Z", "2026-11-01T07:00:00Z"),
    ] {
        service.database.stop_clock(at).await;
        let reservation = reserve(&worker, at, "5").await.expect(201);
        assert_eq!(bounds(&reservation, "hour"), [json!(starts), json!(ends)]);
    }
    assert_eq!(service.books().await.periods, vec!["northstar hour : 5 0 5 0 0"; 4]);
}

#[tokio::test]
async fn what_straddles_a_boundary_stays_in_the_periods_it_was_admitted_in() {
    let (service, worker) = service(&[
        ("day", DAILY),
        ("hour", "limit: 100, period: hour, timezone: America/New_York"),
        ("life", "limit: 1000, period: total"),
        ("month", "limit: 100, period: month, timezone: America/New_York"),
    ])
    .await;
    service.database.stop_clock("2026-04-01T03:59:59.999999Z").await;
    let job = reserve(&worker, "job", "20").await.expect(201);
    worker.progress(&job, "10").await.expect(200);

    service.database.stop_clock("2026-04-01T04:00:00Z").await;
    reserve(&worker, "next", "100").await.expect(201);
    worker.extend(&job, "30").await.expect(200);
    worker.progress(&job, "25").await.expect(200);
    assert_eq!(worker.settle(&job, "33").await.expect(200).text("overrun"), "3");
    for budget in ["day", "hour", "month"] {
        assert_eq!(worker.balance("northstar", budget, None).await, ["0", "100", "0", "0"], "{budget}");
        let old = worker.balance("northstar", budget, Some("2026-04-01T03:59:59.999999Z")).await;
        assert_eq!(old, ["33", "0", "0", "67"], "{budget}");
    }
    assert_eq!(worker.balance("northstar", "life", None).await, ["33", "100", "0", "867"]);

    let books = service.books().await;
    let day: Vec<&str> = books.journal.iter().map(String::as_str).filter(|line| line.starts_with("day ")).collect();
    assert_eq!(
        day,
        [
            "day 1 period_opened granted>available 100",
            "day 2 reserve available>reserved 20",
            "day 3 progressive_settlement reserved>settled 10",
            "day 4 extend available>reserved 10",
            "day 5 progressive_settlement reserved>settled 15",
            "day 6 final_settlement reserved>settled 5",
            "day 7 final_settlement available>settled 3",
            "day 1 period_opened granted>available 100",
            "day 2 reserve available>reserved 100",
        ]
    );
    assert_eq!(books.periods.len(), 7);
}

#[tokio::test]
async fn an_extension_into_an_ended_period_finds_its_own_room_only() {
    let (service, worker) = service(&[("day", DAILY)]).await;
    service.database.stop_clock("2026-03-04T04:00:00Z").await;
    let job = reserve(&worker, "job", "20").await.expect(201);
    reserve(&worker, "other", "75").await.expect(201);
    service.database.stop_clock("2026-03-04T05:00:00Z").await;
    let refused = worker.extend(&job, "26").await.problem(429, "budget_exhausted");
    assert_eq!((refused.text("retry"), &refused.body["breaches"][0]["available"]), ("after_release", &json!("5")));
    assert!(refused.headers.get("retry-after").is_none());
    worker.extend(&job, "25").await.expect(200);
    // The new day was not even opened.
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar day : 100 0 100 0 0"]);
    assert_eq!(books.entries_of("extend"), ["day 4 extend available>reserved 5"]);
}

#[tokio::test]
async fn a_period_after_days_without_work_opens_at_its_own_calendar_day() {
    let (service, worker) = service(&[("day", DAILY)]).await;
    service.database.stop_clock("2026-03-03T12:00:00Z").await;
    reserve(&worker, "first", "10").await.expect(201);
    service.database.stop_clock("2026-03-09T12:00:00Z").await;
    let late = reserve(&worker, "late", "20").await.expect(201);
    assert_eq!(bounds(&late, "day"), [json!("2026-03-09T04:00:00Z"), json!("2026-03-10T04:00:00Z")]);

    // Nothing fills the gap.
    let ordinals = service
        .database
        .lines("select format('%s %s', ordinal, starts_at at time zone 'UTC') from budget_period order by ordinal")
        .await;
    assert_eq!(ordinals, ["1 2026-03-03 05:00:00", "2 2026-03-09 04:00:00"]);
    let between = worker.budget("northstar", "day", Some("2026-03-08T12:00:00Z")).await;
    assert_eq!(shown(&between), ("2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z", false));
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar day : 100 90 10 0 0", "northstar day : 100 80 20 0 0"]);
}

#[tokio::test]
async fn another_kind_of_period_begins_when_the_open_one_ends() {
    let (service, worker) = service(&[("b", DAILY)]).await;
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    let day = reserve(&worker, "day", "10").await.expect(201);
    service.apply(&policy(&[("b", "limit: 100, period: week, timezone: America/New_York")])).await;
    let same_day = reserve(&worker, "same-day", "20").await.expect(201);
    assert_eq!(bounds(&same_day, "b"), bounds(&day, "b"));
    assert_eq!(worker.balance("northstar", "b", None).await, ["0", "30", "0", "70"]);

    // The rest of the week, from the end of the day.
    service.database.stop_clock("2026-03-05T05:00:00Z").await;
    let rest = reserve(&worker, "rest", "30").await.expect(201);
    assert_eq!(bounds(&rest, "b"), [json!("2026-03-05T05:00:00Z"), json!("2026-03-09T04:00:00Z")]);
    service.database.stop_clock("2026-03-09T04:00:00Z").await;
    let week = reserve(&worker, "week", "40").await.expect(201);
    assert_eq!(bounds(&week, "b"), [json!("2026-03-09T04:00:00Z"), json!("2026-03-16T04:00:00Z")]);

    // Back to shorter ones: the week stays until it ends.
    service.apply(&policy(&[("b", "limit: 100, period: hour, timezone: Asia/Kolkata")])).await;
    service.database.stop_clock("2026-03-16T03:59:59.999999Z").await;
    assert_eq!(bounds(&reserve(&worker, "still", "1").await.expect(201), "b"), bounds(&week, "b"));
    service.database.stop_clock("2026-03-16T04:00:00Z").await;
    let half_hour = reserve(&worker, "half-hour", "50").await.expect(201);
    assert_eq!(bounds(&half_hour, "b"), [json!("2026-03-16T04:00:00Z"), json!("2026-03-16T04:30:00Z")]);
    let books = service.books().await;
    assert_eq!(
        books.periods,
        [
            "northstar b : 100 70 30 0 0",
            "northstar b : 100 70 30 0 0",
            "northstar b : 100 59 41 0 0",
            "northstar b : 100 50 50 0 0",
        ]
    );
}

#[tokio::test]
async fn another_timezone_begins_when_the_open_period_ends() {
    let (service, worker) = service(&[("b", DAILY)]).await;
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    reserve(&worker, "new-york", "10").await.expect(201);
    service.apply(&policy(&[("b", "limit: 100, period: day, timezone: Asia/Tokyo")])).await;
    service.database.stop_clock("2026-03-04T20:00:00Z").await;
    let still = reserve(&worker, "still", "10").await.expect(201);
    assert_eq!(bounds(&still, "b"), [json!("2026-03-04T05:00:00Z"), json!("2026-03-05T05:00:00Z")]);
    service.database.stop_clock("2026-03-05T06:00:00Z").await;
    let cut = reserve(&worker, "cut", "10").await.expect(201);
    assert_eq!(bounds(&cut, "b"), [json!("2026-03-05T05:00:00Z"), json!("2026-03-05T15:00:00Z")]);
    service.database.stop_clock("2026-03-05T15:00:00Z").await;
    let whole = reserve(&worker, "whole", "10").await.expect(201);
    assert_eq!(bounds(&whole, "b"), [json!("2026-03-05T15:00:00Z"), json!("2026-03-06T15:00:00Z")]);

    // When nobody worked where they meet, nothing is cut.
    service.apply(&policy(&[("b", "limit: 100, period: week, timezone: UTC")])).await;
    service.database.stop_clock("2026-03-11T12:00:00Z").await;
    let week = reserve(&worker, "week", "10").await.expect(201);
    assert_eq!(bounds(&week, "b"), [json!("2026-03-09T00:00:00Z"), json!("2026-03-16T00:00:00Z")]);
    let zones = service.database.lines("select period || ' ' || timezone from budget_period order by ordinal").await;
    assert_eq!(zones, ["day America/New_York", "day Asia/Tokyo", "day Asia/Tokyo", "week UTC"]);
    service.books().await;
}

#[tokio::test]
async fn the_first_period_of_another_calendar_is_shown_as_it_will_open() {
    let (service, worker) = service(&[("b", DAILY)]).await;
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    reserve(&worker, "day", "10").await.expect(201);
    service.apply(&policy(&[("b", "limit: 100, period: week, timezone: America/New_York")])).await;
    let next = worker.budget("northstar", "b", Some("2026-03-05T06:00:00Z")).await;
    assert_eq!(shown(&next), ("2026-03-05T05:00:00Z", "2026-03-09T04:00:00Z", false));
    service.books().await;
}

#[tokio::test]
async fn a_budget_may_become_total_and_stays_so() {
    let (service, worker) = service(&[("b", DAILY)]).await;
    let operator = service.operator().await;
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    reserve(&worker, "day", "10").await.expect(201);
    service.apply(&policy(&[("b", "limit: 100, period: total")])).await;
    service.database.stop_clock("2026-03-05T04:59:59.999999Z").await;
    let day = reserve(&worker, "still", "10").await.expect(201);
    assert_eq!(bounds(&day, "b")[1], "2026-03-05T05:00:00Z");
    service.database.stop_clock("2026-03-05T05:00:00Z").await;
    let total = reserve(&worker, "total", "10").await.expect(201);
    assert_eq!(bounds(&total, "b"), [json!("2026-03-05T05:00:00Z"), Value::Null]);
    service.database.stop_clock("2036-03-05T05:00:00Z").await;
    let later = reserve(&worker, "later", "90").await.expect(201);
    assert_eq!(bounds(&later, "b"), bounds(&total, "b"));
    let refused = reserve(&worker, "more", "1").await.problem(429, "budget_exhausted");
    assert_eq!((refused.text("retry"), refused.headers.get("retry-after")), ("after_release", None));

    // Never back, not even after it was retired.
    let back = policy(&[("b", DAILY)]);
    let faults = |answer: Answer| answer.problem(400, "invalid_request").body["errors"][0]["field"].clone();
    assert_eq!(faults(operator.apply_policy(&back, "").await), "plans.p.budgets.b.period");
    service.apply(&policy(&[("c", DAILY)])).await;
    assert_eq!(faults(operator.apply_policy(&back, "").await), "plans.p.budgets.b.period");
    let books = service.books().await;
    assert_eq!(books.periods, ["northstar b : 100 80 20 0 0", "northstar b : 100 0 100 0 0"]);
}

#[tokio::test]
async fn balances_at_other_times() {
    let (service, worker) = service(&[("day", DAILY), ("life", "limit: 9, period: total")]).await;
    service.database.stop_clock("2026-03-04T12:00:00Z").await;
    reserve(&worker, "job", "5").await.expect(201);
    service.database.stop_clock("2026-03-10T12:00:00Z").await;
    let day = async |at: &str| worker.budget("northstar", "day", Some(at)).await;

    let past = day("2026-03-05T04:59:59.999999Z").await;
    assert_eq!(shown(&past), ("2026-03-04T05:00:00Z", "2026-03-05T05:00:00Z", true));
    assert_eq!((&past["reserved"], &past["available"], &past["limit"]), (&json!("5"), &json!("95"), &json!("100")));
    for (at, starts, ends) in [
        ("2026-03-05T05:00:00Z", "2026-03-05T05:00:00Z", "2026-03-06T05:00:00Z"),
        ("1999-12-31T12:00:00Z", "1999-12-31T05:00:00Z", "2000-01-01T05:00:00Z"),
        ("2031-07-01T12:00:00Z", "2031-07-01T04:00:00Z", "2031-07-02T04:00:00Z"),
        // As people in other zones write it.
        ("2031-07-01T08:00:00-04:00", "2031-07-01T04:00:00Z", "2031-07-02T04:00:00Z"),
        ("2031-07-01T14:00:00%2B02:00", "2031-07-01T04:00:00Z", "2031-07-02T04:00:00Z"),
    ] {
        let item = day(at).await;
        assert_eq!(shown(&item), (starts, ends, false), "{at}");
        assert_eq!((&item["reserved"], &item["available"]), (&json!("0"), &json!("100")), "{at}");
    }
    assert_eq!(worker.balance("northstar", "life", Some("2031-07-01T12:00:00Z")).await, ["0", "5", "0", "4"]);

    for bad in [
        "yesterday",
        "2026-03-04",
        "2026-03-04T12:00:00",
        "2026-02-30T00:00:00Z",
        "1960-01-01T00:00:00Z",
        "9999-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "1767225600",
        "2031-07-01T14:00:00+02:00",
    ] {
        let answer = worker.get(&format!("/v1/accounts/northstar/budgets?at={bad}")).await;
        let errors = answer.problem(400, "invalid_request").body["errors"].clone();
        assert_eq!(errors[0]["field"], "at", "{bad}");
    }
    let typo = worker.get("/v1/accounts/northstar/budgets?as=2026-03-04T12:00:00Z").await;
    typo.problem(400, "invalid_request");
    // Looking opens nothing.
    assert_eq!(service.books().await.periods.len(), 2);
}

/// The clock jumps a day ahead and is corrected: what was opened ahead of time
/// stops nobody, and is used when its time has come.
#[tokio::test]
async fn a_period_opened_ahead_of_its_time_stops_nobody() {
    let (service, worker) = service(&[("hourly", "limit: 100, period: hour")]).await;
    let mut at = Vec::new();
    for (time, key) in [
        ("2026-03-03T10:30:00Z", "before"),
        ("2026-03-04T10:30:00Z", "ahead"),
        ("2026-03-03T10:45:00Z", "corrected"),
        ("2026-03-03T11:05:00Z", "the next hour"),
        ("2026-03-04T10:40:00Z", "its time"),
    ] {
        service.database.set_clock(time).await;
        let reservation = reserve(&worker, &key.replace(' ', "-"), "10").await.expect(201);
        at.push(bounds(&reservation, "hourly")[0].clone());
    }
    assert_eq!(
        at,
        [
            "2026-03-03T10:00:00Z",
            "2026-03-04T10:00:00Z",
            "2026-03-03T10:00:00Z",
            "2026-03-03T11:00:00Z",
            "2026-03-04T10:00:00Z"
        ]
    );
    assert_eq!(service.books().await.periods.len(), 3);
}
