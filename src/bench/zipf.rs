//! Which account a request is for, when some are far more popular than others.

/// Zipf's law with exponent one: account k of n is asked for in proportion to 1/k.
/// The first of a thousand gets every seventh request or so.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    /// The weights added up, so that a number below the last one names an account.
    upto: Vec<u64>,
}

/// The weight of the first account. The others' are whole parts of it: of a
/// thousand, the last one's is exact to one in four million.
const FIRST: u64 = 1 << 32;

impl Zipf {
    /// Over so many accounts; at least one.
    pub(super) fn new(accounts: u32) -> Self {
        let mut total = 0;
        let upto = (1..=u64::from(accounts.max(1))).map(|k| {
            total += FIRST / k;
            total
        });
        Self { upto: upto.collect() }
    }

    /// The account that a number drawn evenly from all `u64` falls on, from zero.
    pub(super) fn pick(&self, drawn: u64) -> usize {
        let total = self.upto.last().copied().unwrap_or(1);
        let at = drawn % total;
        self.upto.partition_point(|upto| *upto <= at)
    }
}

/// Numbers drawn evenly from all `u64`, the same for the same seed (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Draws(u64);

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_as_popular_as_zipf_says() {
        let zipf = Zipf::new(1000);
        let mut draws = Draws::new(7);
        let mut asked = vec![0_u64; 1000];
        for _ in 0..748_547 {
            asked[zipf.pick(draws.draw())] += 1;
        }
        // The thousandth harmonic number is 7.48547: account k is due 100,000 / k.
        for k in [1_u64, 2, 10, 100] {
            let due = 100_000 / k;
            let got = asked[usize::try_from(k - 1).unwrap()];
            assert!(got.abs_diff(due) * 8 < due, "account {k}: {got} for {due}");
        }
        assert!(asked.iter().all(|asked| *asked > 0), "nobody is left out");
    }

    #[test]
    fn every_number_falls_on_an_account() {
        for accounts in [0, 1, 2, 7] {
            let zipf = Zipf::new(accounts);
            let most = usize::try_from(accounts.max(1)).unwrap();
            for drawn in [0, 1, FIRST - 1, FIRST, u64::MAX / 2, u64::MAX] {
                assert!(zipf.pick(drawn) < most, "{drawn} of {accounts}");
            }
        }
        assert_eq!(Zipf::new(2).pick(0), 0);
        assert_eq!(Zipf::new(2).pick(FIRST), 1);
    }

    #[test]
    fn draws_repeat_with_their_seed() {
        let drawn = |seed| {
            (0..3)
                .map({
                    let mut draws = Draws::new(seed);
                    move |_| draws.draw()
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }
}
