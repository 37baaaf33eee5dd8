//! Periods are those of the local calendar, and follow one another.

use proptest::prelude::*;

use super::*;

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn calendar(kind: &str, zone: &str) -> Calendar {
    Calendar::new(kind.parse().unwrap(), zone).unwrap()
}

/// Each line: kind, zone, an instant, and the bounds of its period.
fn check(table: &str) {
    for line in table.trim().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, zone, at, starts_at, ends_at] = words[..] else { panic!("{line}") };
        let full = |text: &str| utc(&format!("{text}:00Z"));
        let found = calendar(kind, zone).interval(full(at)).unwrap();
        let (starts_at, ends_at) = (full(starts_at), Some(full(ends_at)));
        assert_eq!(found, Interval { starts_at, ends_at }, "{line}");
    }
}

#[test]
fn bounds_are_those_of_the_local_calendar() {
    check(
        "day     UTC              2026-07-01T00:00 2026-07-01T00:00 2026-07-02T00:00
         day     America/New_York 2026-07-01T03:59 2026-06-30T04:00 2026-07-01T04:00
         week    Europe/Berlin    2026-01-01T12:00 2025-12-28T23:00 2026-01-04T23:00
         month   Asia/Tokyo       2028-02-29T14:59 2028-01-31T15:00 2028-02-29T15:00
         quarter America/New_York 2026-04-01T03:59 2026-01-01T05:00 2026-04-01T04:00
         quarter UTC              2026-12-31T23:59 2026-10-01T00:00 2027-01-01T00:00
         year    Asia/Kolkata     2026-12-31T18:30 2026-12-31T18:30 2027-12-31T18:30",
    );
}

#[test]
fn days_follow_the_clock_changes() {
    // Past years: governments change the rules of coming ones at short notice.
    // 23 and 25 hours; a midnight that is skipped; one that happens twice;
    // a clock set back across midnight; a date that does not exist.
    check(
        "day America/New_York 2024-03-10T12:00 2024-03-10T05:00 2024-03-11T04:00
         day America/New_York 2024-11-03T12:00 2024-11-03T04:00 2024-11-04T05:00
         day America/Santiago 2024-09-08T12:00 2024-09-08T04:00 2024-09-09T03:00
         day Asia/Beirut      2024-03-31T12:00 2024-03-30T22:00 2024-03-31T21:00
         day Africa/Cairo     2024-04-26T12:00 2024-04-25T22:00 2024-04-26T21:00
         day America/Havana   2024-11-03T05:30 2024-11-03T04:00 2024-11-04T05:00
         day America/Santiago 2024-04-07T03:30 2024-04-06T03:00 2024-04-07T04:00
         day America/St_Johns 2010-11-07T03:00 2010-11-07T02:30 2010-11-08T03:30
         day Pacific/Apia     2011-12-30T09:59 2011-12-29T10:00 2011-12-30T10:00
         day Pacific/Apia     2011-12-30T10:00 2011-12-30T10:00 2011-12-31T10:00",
    );
}

#[test]
fn hours_are_those_of_the_local_clock() {
    // 01:xx twice; 02:xx skipped; half-hour and quarter-hour offsets; a
    // half-hour change, back and forward.
    check(
        "hour America/New_York    2024-11-03T05:59 2024-11-03T05:00 2024-11-03T06:00
         hour America/New_York    2024-11-03T06:00 2024-11-03T06:00 2024-11-03T07:00
         hour America/New_York    2024-03-10T06:59 2024-03-10T06:00 2024-03-10T07:00
         hour America/New_York    2024-03-10T07:00 2024-03-10T07:00 2024-03-10T08:00
         hour Asia/Kolkata        2026-01-01T00:29 2025-12-31T23:30 2026-01-01T00:30
         hour Asia/Kathmandu      2026-01-01T00:15 2026-01-01T00:15 2026-01-01T01:15
         hour Australia/Lord_Howe 2024-04-06T14:59 2024-04-06T14:00 2024-04-06T15:00
         hour Australia/Lord_Howe 2024-04-06T15:00 2024-04-06T15:00 2024-04-06T15:30
         hour Australia/Lord_Howe 2024-10-05T15:29 2024-10-05T14:30 2024-10-05T15:30
         hour Australia/Lord_Howe 2024-10-05T15:30 2024-10-05T15:30 2024-10-05T16:00",
    );
}

#[test]
fn a_total_begins_when_asked_and_does_not_end() {
    let at = utc("2026-07-01T12:34:56.789Z");
    let life = calendar("total", "UTC").interval(at).unwrap();
    assert_eq!((life.starts_at, life.ends_at), (at, None));
    assert!(life.contains(utc("9000-01-01T00:00:00Z")));
}

#[test]
fn what_is_not_known_is_named() {
    for name in ["Mars/Olympus", "america/new_york", "", "Etc/Unknown", "+02:00", "Local"] {
        let error = Calendar::new(PeriodKind::Day, name).unwrap_err();
        assert_eq!(error.to_string(), format!("`{name}` is not a known IANA time zone"));
    }
    assert!("Day".parse::<PeriodKind>().is_err());
    for kind in PeriodKind::ALL {
        let calendar = Calendar::new(kind, "Pacific/Kiritimati").unwrap();
        assert_eq!(kind.to_string().parse(), Ok(kind));
        for outside in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
            assert_eq!(calendar.interval(outside), Err(PeriodError::OutOfRange));
        }
        for inside in ["1970-01-01T00:00:00Z", "9000-12-31T23:59:59.9Z", "2016-12-31T23:59:60.5Z"] {
            assert!(calendar.interval(utc(inside)).unwrap().contains(utc(inside)));
        }
    }
}

#[test]
fn json_has_the_period_and_the_timezone() {
    let json = r#"{"period":"day","timezone":"America/New_York"}"#;
    let read: Calendar = serde_json::from_str(json).unwrap();
    assert_eq!(read, calendar("day", "America/New_York"));
    assert_eq!(serde_json::to_string(&read).unwrap(), json);
    let unknown = json.replace("New_York", "Nowhere");
    assert!(serde_json::from_str::<Calendar>(&unknown).is_err());
}

/// An instant near which a zone's clocks change, or any other.
fn instants(zone: &TimeZone, at: i64, near: bool) -> DateTime<Utc> {
    let any = Timestamp::from_second(at).unwrap();
    let change = zone.following(any).next().filter(|_| near);
    let base = change.map_or(at, |change| change.timestamp().as_second() + at % 10_000 - 5_000);
    DateTime::from_timestamp(base, 999_999_999).unwrap()
}

proptest! {
    #[test]
    fn periods_tile_time(
        zone: prop::sample::Index, kind in 0..6_usize, near: bool,
        at in prop_oneof![100_000_000..4_000_000_000_i64, 4_000_000_000..221_000_000_000_i64],
    ) {
        let database = TimeZoneDatabase::bundled();
        let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
        let name: &String = zone.get(&names);
        let calendar = Calendar::new(PeriodKind::ALL[kind], name).unwrap();
        let at = instants(&calendar.zone, at, near);
        let period = calendar.interval(at).unwrap();
        let ends_at = period.ends_at.unwrap();
        prop_assert!(period.contains(at) && period.starts_at < ends_at);
        prop_assert_eq!(calendar.interval(period.starts_at), Ok(period));
        let nanosecond = chrono::TimeDelta::nanoseconds(1);
        prop_assert_eq!(calendar.interval(ends_at - nanosecond), Ok(period));
        prop_assert_eq!(calendar.interval(ends_at).unwrap().starts_at, ends_at);
        let before = calendar.interval(period.starts_at - nanosecond).unwrap();
        prop_assert_eq!(before.ends_at, Some(period.starts_at));
    }
}
