//! How much means of the rate over some time differ though the setting is the same.
//!
//! The rate of a device with a cache rises and falls by more than half within 100 ms, and its mean
//! over 2 s differs by 4%: what is known of short windows says nothing about long ones. So windows
//! of each length are compared with the next one of the same length (the Allan variance): adjacent
//! windows of 100 ms, of 200 ms, which are made of two of these, and so on.

/// Shortest windows; those of each level are twice as long as those of the one before.
pub(crate) const WINDOW_MIN_NS: u64 = 100_000_000;
/// Up to 12.8 s.
const LEVELS: usize = 8;
/// Relative standard deviation of the shortest windows before anything was measured.
const FIRST: f64 = 0.2;
/// How many pairs of windows that, or what follows from shorter windows, counts for, until
/// [`PAIRS_MAX`] are known.
const FIRST_PAIRS: f64 = 2.0;
/// Pairs that are remembered of each level.
const PAIRS_MAX: f64 = 16.0;
/// With so many pairs, one that differs by so much more than usual, in variances, counts as that: a
/// load that changes is no noise.
const KNOWN_PAIRS: f64 = 4.0;
const OUTLIER: f64 = 9.0;
/// By what the variance falls if windows are twice as long.
const FALLS_LEAST: f64 = 0.27;
const FALLS_MOST: f64 = 0.5;
/// Steadier loads are taken to be no steadier.
const LEAST: f64 = 0.003;

/// The level whose windows are no longer than this.
fn level_of(nanoseconds: u64) -> usize {
    let ratio = (nanoseconds / WINDOW_MIN_NS).max(1);
    (ratio.ilog2() as usize).min(LEVELS - 1)
}

#[derive(Clone, Copy, Debug, Default)]
struct Level {
    pairs: f64,
    /// Mean of half the squares of the relative differences.
    variance: f64,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noise {
    levels: [Level; LEVELS],
}

/// Windows of a stay at one setting that wait for the next one of their length.
#[derive(Clone, Debug, Default)]
pub(crate) struct Windows {
    halves: [Option<f64>; LEVELS],
}

impl Windows {
    /// The next window had this rate.
    pub fn add(&mut self, nanoseconds: u64, rate: f64, noise: &mut Noise) {
        let mut mean = rate;
        for level in level_of(nanoseconds)..LEVELS {
            let Some(before) = self.halves[level].take() else {
                self.halves[level] = Some(mean);
                return;
            };
            noise.learn(level, before, mean);
            mean = (before + mean) / 2.0;
        }
    }
}

impl Noise {
    fn learn(&mut self, level: usize, one: f64, other: f64) {
        let mean = (one + other) / 2.0;
        if mean <= 0.0 {
            return;
        }
        let difference = (one - other) / mean;
        let most = if self.levels[level].pairs < KNOWN_PAIRS {
            f64::INFINITY
        } else {
            OUTLIER * self.variance(level).max(LEAST * LEAST)
        };
        let level = &mut self.levels[level];
        level.pairs = (level.pairs + 1.0).min(PAIRS_MAX);
        level.variance += ((difference * difference / 2.0).min(most) - level.variance) / level.pairs;
    }

    /// Relative variance of the rate of a window of this level. What was not seen is taken to fall
    /// with the length as it did up to there: to a half at most, as if windows had nothing to do
    /// with each other, and nearly to a quarter where what one lacks comes with the next.
    fn variance(&self, level: usize) -> f64 {
        let (mut expected, mut variance, mut falls) = (FIRST * FIRST, FIRST * FIRST, FALLS_MOST);
        for (number, known) in self.levels[..=level].iter().enumerate() {
            let (before, weight) = (variance, FIRST_PAIRS * (1.0 - known.pairs / PAIRS_MAX));
            variance = (weight * expected + known.pairs * known.variance) / (weight + known.pairs);
            if number > 0 {
                let fell = (variance / before.max(f64::MIN_POSITIVE)).clamp(FALLS_LEAST, FALLS_MOST);
                falls = (falls + fell) / 2.0;
            }
            expected = variance * falls;
        }
        variance
    }

    /// Relative standard error of the mean over a stay of `nanoseconds`, in which so many requests
    /// ended: one more or less makes a difference where they are few.
    pub fn error(&self, nanoseconds: u64, requests: u64) -> f64 {
        let level = level_of(nanoseconds);
        let windows = (nanoseconds as f64 / (WINDOW_MIN_NS << level) as f64).max(1.0);
        let counted = 0.5 / (requests.max(1) as f64).powi(2);
        (self.variance(level) / windows).max(counted).max(LEAST * LEAST).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn learned(rate: impl Fn(u32) -> f64) -> Noise {
        let (mut noise, mut windows) = (Noise::default(), Windows::default());
        (0..512).for_each(|number| windows.add(WINDOW_MIN_NS, rate(number), &mut noise));
        noise
    }

    #[test]
    fn what_comes_and_goes_in_short_windows_is_not_seen_in_long_ones() {
        let noise = learned(|number| if matches!(number % 4, 1 | 2) { 160.0 } else { 40.0 });
        assert!(noise.error(SECOND / 10, 1_000_000) > 0.3, "{noise:?}");
        assert!(noise.error(3 * SECOND, 1_000_000) < 0.05, "{noise:?}");
    }

    #[test]
    fn a_rate_that_wanders_is_no_surer_over_longer_windows() {
        let noise = learned(|number| 100.0 + 30.0 * f64::from(number / 32 % 2));
        assert!(noise.error(4 * SECOND, 1_000_000) > 0.1, "{noise:?}");
    }

    #[test]
    fn a_load_that_changes_once_is_no_noise() {
        let noise = learned(|number| if number < 331 { 100.0 + f64::from(number % 3) } else { 10.0 });
        assert!(noise.error(SECOND / 10, 1_000_000) < 0.02, "{noise:?}");
    }

    #[test]
    fn without_knowledge_longer_stays_are_surer() {
        let noise = Noise::default();
        let [short, long] = [SECOND / 10, 16 * SECOND / 10].map(|nanoseconds| noise.error(nanoseconds, 1_000_000));
        assert!(long < short / 3.0, "{short} {long}");
    }

    #[test]
    fn few_requests_are_chance() {
        let noise = learned(|_| 100.0);
        assert!((noise.error(SECOND, 1_000_000) - LEAST).abs() < 0.002);
        assert!(noise.error(SECOND, 4) > 0.15);
    }
}
