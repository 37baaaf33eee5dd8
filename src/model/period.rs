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
mod tests;
