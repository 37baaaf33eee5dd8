//! The options of `spend-ledger replay`, each parsed into what cannot be wrong.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use spend_ledger_client::{Key, ServiceUrl};

use crate::model::{Name, Units};

/// Closing words of `--help`.
const EXAMPLES: &str = "\
The trace is CSV with a header and the columns TIMESTAMP, ContextTokens and
GeneratedTokens, in any order; other columns are ignored. The operation has to
count one unit per token. Each row is one job: reserve its prompt and a maximum
output, ask for more if it turns out to need more, settle what it used.

Examples:
  As fast as 16 workers can:
    spend-ledger replay trace.csv --operation token --account northstar \\
      --url http://127.0.0.1:8080 --key \"$KEY\"
  An hour of traffic in six minutes, every tenth answer lost on its way back:
    spend-ledger replay trace.csv … --speed-up 10 --lost-share 0.1
  The same jobs again, which take nothing more (give the same options again:
  a job is its key and its request):
    spend-ledger replay trace.csv … --run monday
    spend-ledger replay trace.csv … --run monday

Ctrl-C finishes what is in flight and prints the summary so far; a second one
leaves what is in flight. The exit code is 1 if a row was given up on. Refused
rows are no failure: they are what budgets are for.";

/// What to replay, against which service, and how.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ReplayArgs {
    /// The trace, a CSV file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The operation that every row reserves for; one unit must be one token
    #[arg(long, value_name = "NAME", env = "SPEND_LEDGER_REPLAY_OPERATION")]
    pub operation: Name,
    /// The account that is charged
    #[arg(long, value_name = "NAME", env = "SPEND_LEDGER_REPLAY_ACCOUNT")]
    pub account: Name,
    /// Where the service is, for example http://127.0.0.1:8080
    #[arg(long, value_name = "URL", env = "SPEND_LEDGER_URL")]
    pub url: ServiceUrl,
    /// A key of the role `worker` that may act for the account
    #[arg(long, env = "SPEND_LEDGER_KEY", hide_env_values = true)]
    pub key: Key,

    /// Names the jobs: their keys are replay-RUN-ROW. The same name again repeats
    /// the same jobs and takes nothing more [default: random]
    #[arg(long, value_name = "NAME", env = "SPEND_LEDGER_REPLAY_RUN", help_heading = "Jobs")]
    pub run: Option<RunName>,
    /// Replay the first N rows only
    #[arg(long, value_name = "N", env = "SPEND_LEDGER_REPLAY_LIMIT", help_heading = "Jobs")]
    pub limit: Option<u64>,
    /// Output tokens that a job reserves. A row that generated more has to ask
    /// for more, and settles with overrun if it is refused
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, env = "SPEND_LEDGER_REPLAY_MAX_OUTPUT",
          value_parser = clap::value_parser!(u64).range(..=super::trace::MOST_TOKENS), help_heading = "Jobs")]
    pub max_output: u64,
    /// The quantity that states the prompt's tokens
    #[arg(
        long,
        value_name = "NAME",
        default_value = "prompt",
        conflicts_with = "units",
        env = "SPEND_LEDGER_REPLAY_PROMPT_QUANTITY",
        help_heading = "Jobs"
    )]
    pub prompt_quantity: Name,
    /// The quantity that states the output's tokens
    #[arg(
        long,
        value_name = "NAME",
        default_value = "output",
        conflicts_with = "units",
        env = "SPEND_LEDGER_REPLAY_OUTPUT_QUANTITY",
        help_heading = "Jobs"
    )]
    pub output_quantity: Name,
    /// State units instead of quantities, for an operation that is `explicit`
    #[arg(long, env = "SPEND_LEDGER_REPLAY_UNITS", help_heading = "Jobs")]
    pub units: bool,

    /// Time compression: 1 keeps the trace's own pace, 10 makes an hour six
    /// minutes, 0 does not wait at all
    #[arg(
        long,
        value_name = "FACTOR",
        default_value = "0",
        env = "SPEND_LEDGER_REPLAY_SPEED_UP",
        help_heading = "Pace"
    )]
    pub speed_up: SpeedUp,
    /// The most jobs at the same time, 1 to 512
    #[arg(long, value_name = "N", default_value_t = 16, env = "SPEND_LEDGER_REPLAY_CONCURRENCY",
          value_parser = clap::value_parser!(u16).range(1..=512), help_heading = "Pace")]
    pub concurrency: u16,

    /// Share of the answers, 0 to 1, that are lost: the request is sent, the
    /// worker hangs up, and sends the same request again
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "0",
        env = "SPEND_LEDGER_REPLAY_LOST_SHARE",
        help_heading = "Trouble"
    )]
    pub lost_share: Share,
    /// Share of the jobs, 0 to 1, that reserve less than they turn out to need and
    /// ask for more before they finish
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "0",
        env = "SPEND_LEDGER_REPLAY_EXTEND_SHARE",
        help_heading = "Trouble"
    )]
    pub extend_share: Share,
    /// How long a worker repeats a request that got no answer, or 503 or another
    /// transient one: the service may be restarted meanwhile. As 90s, 5m, 1h
    #[arg(long, value_name = "TIME", default_value = "60s", env = "SPEND_LEDGER_REPLAY_RETRY_FOR",
          value_parser = parse_time, help_heading = "Trouble")]
    pub retry_for: Duration,
    /// Decides which rows lose answers and which start small: the same seed, the
    /// same rows
    #[arg(long, value_name = "N", default_value_t = 1, env = "SPEND_LEDGER_REPLAY_SEED", help_heading = "Trouble")]
    pub seed: u64,

    /// Print the summary as JSON
    #[arg(long, env = "SPEND_LEDGER_REPLAY_JSON")]
    pub json: bool,
}

/// Why an option is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentError {
    /// A run name that no key could be made of.
    #[error("must be 1 to 64 characters of A-Z a-z 0-9 . _ : @ / -")]
    Run,
    /// A share that is no number from 0 to 1.
    #[error("must be from 0 to 1 with at most 6 decimals")]
    Share,
    /// A time compression that is no number.
    #[error("must be from 0 to 1000000 with at most 3 decimals")]
    SpeedUp,
    /// A time that is not written as a number and s, m or h.
    #[error("must be a whole number and s, m or h, such as 60s, and at most 24h")]
    Time,
}

/// The name of a run: a short [`Name`], so that with prefix and row number it is
/// still a key, a holder and a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunName(String);

impl RunName {
    /// A name that no other run has.
    pub(super) fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(format!("{:016x}", getrandom::u64()?)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RunName {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        if text.len() > 64 || Name::from_str(text).is_err() {
            return Err(ArgumentError::Run);
        }
        Ok(Self(text.to_owned()))
    }
}

/// A share of all, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share(u64);

impl Share {
    /// Whether a number drawn evenly from all `u64` falls into the share.
    pub(super) fn covers(self, drawn: u64) -> bool {
        drawn % 1_000_000 < self.0
    }
}

impl FromStr for Share {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        scaled(text, 6).filter(|share| *share <= 1_000_000).map(Self).ok_or(ArgumentError::Share)
    }
}

/// How many times faster than the trace, in thousandths. Zero does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeedUp(u64);

impl SpeedUp {
    /// How long after the start something is due that came this long after the
    /// trace's first row.
    pub(super) fn compress(self, elapsed: Duration) -> Duration {
        let nanos = elapsed.as_nanos().saturating_mul(1000).checked_div(u128::from(self.0));
        // A trace spans years at most: far below what 64 bits of nanoseconds hold.
        nanos.map_or(Duration::ZERO, |n| Duration::from_nanos(u64::try_from(n).unwrap_or(u64::MAX)))
    }
}

impl FromStr for SpeedUp {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Self, ArgumentError> {
        let thousandths = scaled(text, 3).filter(|factor| *factor <= 1_000_000_000);
        thousandths.map(Self).ok_or(ArgumentError::SpeedUp)
    }
}

/// The number times a power of ten, if that is a whole number that fits.
fn scaled(text: &str, decimals: u32) -> Option<u64> {
    let number = Units::parse_non_negative(text).ok()?.get();
    let shift = decimals.checked_sub(number.scale())?;
    u64::try_from(number.mantissa()).ok()?.checked_mul(10_u64.checked_pow(shift)?)
}

fn parse_time(text: &str) -> Result<Duration, ArgumentError> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let seconds: u64 = match text.strip_prefix(digits) {
        Some("s") => 1,
        Some("m") => 60,
        Some("h") => 3600,
        _ => return Err(ArgumentError::Time),
    };
    let number: u64 = digits.parse().map_err(|_| ArgumentError::Time)?;
    let total = number.checked_mul(seconds).filter(|total| *total <= 24 * 3600);
    total.map(Duration::from_secs).ok_or(ArgumentError::Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_exact() {
        assert_eq!(Share::from_str("0.05"), Ok(Share(50_000)));
        assert_eq!(Share::from_str("1"), Ok(Share(1_000_000)));
        for text in ["1.000001", "-0.1", "0.0000001", "NaN", ""] {
            assert_eq!(Share::from_str(text), Err(ArgumentError::Share), "{text}");
        }
        let minute = Duration::from_secs(60);
        let compress = |text: &str| SpeedUp::from_str(text).unwrap().compress(minute);
        assert_eq!(compress("0"), Duration::ZERO);
        assert_eq!(compress("1"), minute);
        assert_eq!(compress("0.5"), minute * 2);
        assert_eq!(compress("60"), Duration::from_secs(1));
        assert_eq!(parse_time("5m"), Ok(Duration::from_secs(300)));
        for text in ["60", "s", "1.5s", "25h", "-1s", "1 s", "99999999999999999999s"] {
            assert_eq!(parse_time(text), Err(ArgumentError::Time), "{text}");
        }
    }
}
