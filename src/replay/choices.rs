//! What happens to which row. Every choice is a hash of the seed and the row, so
//! a run that is repeated makes the same choices, in whatever order its workers
//! get there.

use std::time::Duration;

use super::args::Share;
use super::worker::Kind;

/// The longest that a worker whose answer gets lost waits before it hangs up. A
/// local service mostly answers sooner, and then the answer is thrown away; a slow
/// one meets the repeat while it still works on the first copy. Both must do.
const LONGEST_PATIENCE_MS: u64 = 40;

/// The choices of one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choices {
    pub(super) seed: u64,
    pub(super) lost: Share,
    pub(super) small: Share,
}

impl Choices {
    /// After how long the first answer to a request of this row is lost, if it is.
    pub(super) fn loses_answer(&self, row: u64, kind: Kind) -> Option<Duration> {
        let drawn = self.draw(row, kind as u64);
        let patience = 1 + mix(drawn) % LONGEST_PATIENCE_MS;
        self.lost.covers(drawn).then(|| Duration::from_millis(patience))
    }

    /// Whether the row reserves less than it turns out to need.
    pub(super) fn starts_small(&self, row: u64) -> bool {
        self.small.covers(self.draw(row, 100))
    }

    fn draw(&self, row: u64, what: u64) -> u64 {
        mix(mix(mix(self.seed) ^ row) ^ what)
    }
}

/// The finaliser of splitmix64: spreads any number evenly over all of them.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_choices_repeat() {
        let choices = Choices { seed: 7, lost: "0.1".parse().unwrap(), small: "0.5".parse().unwrap() };
        let lost = (0..10_000).filter(|row| choices.loses_answer(*row, Kind::Settle).is_some());
        assert!((900..1100).contains(&lost.count()));
        let small = (0..10_000).filter(|row| choices.starts_small(*row));
        assert!((4800..5200).contains(&small.count()));
        assert_eq!(choices.loses_answer(3, Kind::Reserve), choices.loses_answer(3, Kind::Reserve));
        let never = Choices { lost: "0".parse().unwrap(), ..choices };
        assert!((0..10_000).all(|row| never.loses_answer(row, Kind::Reserve).is_none()));
    }
}
