//! What a faulty network does to a frame: a pure decision.

use std::time::Duration;

use crate::Entropy;

/// Probabilities are in parts per million.
pub const PPM: u64 = 1_000_000;

/// How bad the network is. The default is a good one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkRules {
    /// Probability that a frame is lost, in ppm.
    pub loss_ppm: u64,
    /// Probability that a frame arrives twice, in ppm.
    pub duplicate_ppm: u64,
    /// Probability that a frame is delayed, in ppm.
    pub delay_ppm: u64,
    /// Delays are uniform between these.
    pub delay_min: Duration,
    /// Longest delay.
    pub delay_max: Duration,
    /// Whether a delayed frame may be overtaken.
    pub reorder: bool,
}

/// What was done to frames so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStatistics {
    /// Frames given to senders.
    pub sent: u64,
    /// Frames that never arrive.
    pub lost: u64,
    /// Frames that arrive twice.
    pub duplicated: u64,
    /// Frames (or copies) that were delayed.
    pub delayed: u64,
}

impl NetworkRules {
    /// The delays of the copies of one frame: none if it is lost, two if it is duplicated.
    pub(super) fn delays(&self, entropy: &dyn Entropy) -> Vec<Duration> {
        let happens = |ppm: u64| ppm > 0 && entropy.below(PPM) < ppm;
        if happens(self.loss_ppm) {
            return Vec::new();
        }
        let copies = if happens(self.duplicate_ppm) { 2 } else { 1 };
        let span = self.delay_max.saturating_sub(self.delay_min).as_nanos().min(u128::from(u64::MAX - 1)) as u64;
        let delay = || {
            if happens(self.delay_ppm) {
                self.delay_min + Duration::from_nanos(entropy.below(span + 1))
            } else {
                Duration::ZERO
            }
        };
        (0..copies).map(|_| delay()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SeededEntropy;

    #[test]
    fn frequencies_are_those_of_the_rules() {
        let entropy = SeededEntropy::new(5);
        let rules = NetworkRules {
            loss_ppm: 100_000,
            duplicate_ppm: 200_000,
            delay_ppm: 500_000,
            delay_min: Duration::from_millis(2),
            delay_max: Duration::from_millis(4),
            reorder: true,
        };
        let all: Vec<Vec<Duration>> = (0..10_000).map(|_| rules.delays(&entropy)).collect();
        let count = |copies: usize| all.iter().filter(|delays| delays.len() == copies).count();
        assert!((900..1100).contains(&count(0)), "{} lost", count(0));
        assert!((1600..2000).contains(&count(2)), "{} duplicated", count(2));
        let delays: Vec<Duration> = all.concat().into_iter().filter(|delay| !delay.is_zero()).collect();
        assert!((4900..5900).contains(&delays.len()), "{} delayed", delays.len());
        assert!(delays.iter().all(|delay| (rules.delay_min..=rules.delay_max).contains(delay)));
        assert_eq!(NetworkRules::default().delays(&entropy), [Duration::ZERO]);
    }
}
