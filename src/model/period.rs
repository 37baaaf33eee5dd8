//! Periods: which interval of a budget an instant falls in.
//!
//! Bounds are those of the local calendar, by the time-zone data built into the
//! program, so every replica and every machine agrees on them.
//!
//! # Days, weeks, months, quarters, years
//!
//! A period begins when its first local midnight does: at the first instant at
//! which the local clock shows that midnight or a later time. So a midnight
//! that happens twice counts the first time, one that the clock skips becomes
//! the first instant after the gap, and a date that the zone skipped altogether
//! has no period. A day has 23 or 25 hours when the clocks change.
//!
//! # Hours
//!
//! An hour is the stretch in which the local date, the hour on the local clock
//! and the offset from UTC stay the same. Hours therefore begin on the local
//! full hour (at half past in UTC for Asia/Kolkata), an hour that the clock
//! repeats is two periods of one hour, and a skipped hour is none. Where clocks
//! change by half an hour (Australia/Lord_Howe), or not on the full hour, the
//! change cuts the hour it falls in: hours can be shorter than 60 minutes,
//! never longer.
//!
//! Either way the periods tile time: every instant is in exactly one.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Datelike, Utc};
use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Span, Timestamp};
use serde::{Deserialize, Serialize};

/// Years of instants that have periods: those the zone data and every type here can hold.
const YEARS: std::ops::RangeInclusive<i32> = 1970..=9000;
/// Bound on how many periods beyond the local date's own the search looks: one
/// for a clock set back across midnight, more than any zone has needed.
const LOOKAHEAD: usize = 4;

/// Why something is not a period.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeriodError {
    /// The name is none of the kinds of period.
    #[error("`{0:.40}` is not a period: use hour, day, week, month, quarter, year or total")]
    UnknownKind(String),
    /// The name is no IANA time zone, or is not written as IANA writes it.
    #[error("`{0:.64}` is not a known IANA time zone")]
    UnknownZone(String),
    /// The instant is before the year 1970 or after the year 9000 (UTC).
    #[error("the time is outside the years 1970 to 9000")]
    OutOfRange,
}

/// How long the periods of a budget are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeriodKind {
    /// A local clock hour.
    Hour,
    /// A local calendar day.
    Day,
    /// An ISO week, which starts on Monday.
    Week,
    /// A calendar month.
    Month,
    /// Three months from January, April, July or October.
    Quarter,
    /// A calendar year.
    Year,
    /// The whole life of the budget: one period that does not end.
    Total,
}

impl PeriodKind {
    /// Every kind, from the shortest to the longest.
    pub const ALL: [PeriodKind; 7] = {
        use PeriodKind::*;
        [Hour, Day, Week, Month, Quarter, Year, Total]
    };

    /// The name in policy files, answers and the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PeriodKind::Hour => "hour",
            PeriodKind::Day => "day",
            PeriodKind::Week => "week",
            PeriodKind::Month => "month",
            PeriodKind::Quarter => "quarter",
            PeriodKind::Year => "year",
            PeriodKind::Total => "total",
        }
    }
}

impl fmt::Display for PeriodKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PeriodKind {
    type Err = PeriodError;

    fn from_str(name: &str) -> Result<PeriodKind, PeriodError> {
        let kind = PeriodKind::ALL.into_iter().find(|kind| kind.as_str() == name);
        kind.ok_or_else(|| PeriodError::UnknownKind(name.to_owned()))
    }
}

/// One concrete period, `[starts_at, ends_at)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interval {
    /// The first instant inside.
    pub starts_at: DateTime<Utc>,
    /// The first instant after it, which is later than `starts_at`; none if it never ends.
    pub ends_at: Option<DateTime<Utc>>,
}

impl Interval {
    /// Whether the instant is inside.
    #[must_use]
    pub fn contains(&self, at: DateTime<Utc>) -> bool {
        self.starts_at <= at && self.ends_at.is_none_or(|ends_at| at < ends_at)
    }
}

/// A kind of period in a time zone: what cuts time into the periods of a budget.
/// In JSON and YAML, `{"period": "day", "timezone": "America/New_York"}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Calendar {
    /// The kind of period.
    pub kind: PeriodKind,
    zone_name: String,
    zone: TimeZone,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    period: PeriodKind,
    timezone: String,
}

impl Calendar {
    /// The calendar of an IANA time zone, such as `America/New_York` or `UTC`.
    ///
    /// # Errors
    ///
    /// [`PeriodError::UnknownZone`]. Names are taken in IANA's spelling only, so
    /// that one zone never compares as two.
    pub fn new(kind: PeriodKind, zone_name: &str) -> Result<Calendar, PeriodError> {
        // The built-in data, never the machine's: replicas must agree.
        let zone = TimeZoneDatabase::bundled().get(zone_name).ok();
        zone.filter(|zone| zone.iana_name() == Some(zone_name) && !zone.is_unknown())
            .map(|zone| Calendar { kind, zone_name: zone_name.to_owned(), zone })
            .ok_or_else(|| PeriodError::UnknownZone(zone_name.to_owned()))
    }

    /// The IANA name of the time zone.
    #[must_use]
    pub fn zone_name(&self) -> &str {
        &self.zone_name
    }

    /// The period that an instant falls in; the bounds are whole seconds.
    ///
    /// [`PeriodKind::Total`] begins when the budget is first opened, which a
    /// calendar cannot know: its interval starts at `at` and does not end. The
    /// caller asks once, when it opens the budget, and keeps the start.
    ///
    /// # Errors
    ///
    /// [`PeriodError::OutOfRange`] outside the years 1970 to 9000 (UTC). The
    /// bounds themselves may lie outside.
    pub fn interval(&self, at: DateTime<Utc>) -> Result<Interval, PeriodError> {
        if !YEARS.contains(&at.year()) {
            return Err(PeriodError::OutOfRange);
        }
        if self.kind == PeriodKind::Total {
            return Ok(Interval { starts_at: at, ends_at: None });
        }
        // Bounds are whole seconds, so the fraction (a leap second's is above
        // one) cannot change the answer.
        let second = Timestamp::from_second(at.timestamp());
        let bounds = second.and_then(|at| match self.kind {
            PeriodKind::Hour => self.hour(at),
            _ => self.dates(at),
        });
        // Unreachable within the years above, all of whose bounds jiff can hold.
        let (starts_at, ends_at) = bounds.map_err(|_| PeriodError::OutOfRange)?;
        Ok(Interval { starts_at: to_utc(starts_at)?, ends_at: Some(to_utc(ends_at)?) })
    }

    /// The full hour around an instant, cut where the offset changes.
    fn hour(&self, at: Timestamp) -> Result<(Timestamp, Timestamp), jiff::Error> {
        let offset = self.zone.to_offset(at);
        let local = offset.to_datetime(at);
        let past = i64::from(local.minute()) * 60 + i64::from(local.second());
        let mut starts_at = at.checked_sub(SignedDuration::from_secs(past))?;
        let mut ends_at = starts_at.checked_add(SignedDuration::from_hours(1))?;
        // A transition that only renames the offset cuts nothing.
        let second = SignedDuration::from_secs(1);
        for change in self.zone.preceding(at.checked_add(second)?) {
            let changed_at = change.timestamp();
            if changed_at <= starts_at {
                break;
            }
            if self.zone.to_offset(changed_at.checked_sub(second)?) != offset {
                starts_at = changed_at;
            }
        }
        for change in self.zone.following(at) {
            if change.timestamp() >= ends_at {
                break;
            }
            if change.offset() != offset {
                ends_at = change.timestamp();
            }
        }
        Ok((starts_at, ends_at))
    }

    /// The days, months … around an instant.
    fn dates(&self, at: Timestamp) -> Result<(Timestamp, Timestamp), jiff::Error> {
        let mut first = self.first_date(self.zone.to_datetime(at).date())?;
        let mut starts_at = self.midnight(first)?;
        let (days, months) = self.length();
        // The clock may already have shown the next period's midnight, and have
        // been set back across it since. That period has begun.
        for _ in 0..LOOKAHEAD {
            let next = first.checked_add(Span::new().days(days).months(months))?;
            let ends_at = self.midnight(next)?;
            if at < ends_at {
                return Ok((starts_at, ends_at));
            }
            (first, starts_at) = (next, ends_at);
        }
        Err(jiff::Error::from_args(format_args!("no period at {at}")))
    }

    /// The first date of the period that a date is in.
    fn first_date(&self, date: Date) -> Result<Date, jiff::Error> {
        let weekday = i64::from(date.weekday().to_monday_zero_offset());
        match self.length() {
            (days, 0) => date.checked_sub(Span::new().days(weekday % days)),
            (_, months) => {
                let past = (i64::from(date.month()) - 1) % months;
                date.first_of_month().checked_sub(Span::new().months(past))
            }
        }
    }

    /// Days, or else months, from the first date of a period to that of the next.
    fn length(&self) -> (i64, i64) {
        match self.kind {
            PeriodKind::Week => (7, 0),
            PeriodKind::Month => (0, 1),
            PeriodKind::Quarter => (0, 3),
            PeriodKind::Year => (0, 12),
            PeriodKind::Day | PeriodKind::Hour | PeriodKind::Total => (1, 0),
        }
    }

    /// The first instant at which the local clock shows this date's midnight or later.
    fn midnight(&self, date: Date) -> Result<Timestamp, jiff::Error> {
        let midnight = date.to_datetime(Time::midnight());
        let ambiguous = self.zone.to_ambiguous_timestamp(midnight);
        let AmbiguousOffset::Gap { after, .. } = ambiguous.offset() else {
            return ambiguous.earlier();
        };
        // Read with the offset after the gap, a skipped time is an instant
        // before it. The change to that offset, which follows, ends the gap.
        let before_gap = after.to_timestamp(midnight)?;
        let mut changes = self.zone.following(before_gap);
        let gap = changes.find(|change| change.offset() == after);
        gap.map_or_else(|| ambiguous.later(), |change| Ok(change.timestamp()))
    }
}

fn to_utc(at: Timestamp) -> Result<DateTime<Utc>, PeriodError> {
    DateTime::from_timestamp(at.as_second(), 0).ok_or(PeriodError::OutOfRange)
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({} in {})", self.kind, self.zone_name)
    }
}

impl TryFrom<Written> for Calendar {
    type Error = PeriodError;

    fn try_from(written: Written) -> Result<Calendar, PeriodError> {
        Calendar::new(written.period, &written.timezone)
    }
}

impl From<Calendar> for Written {
    fn from(calendar: Calendar) -> Written {
        Written { period: calendar.kind, timezone: calendar.zone_name }
    }
}

#[cfg(test)]
mod tests {
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
}
