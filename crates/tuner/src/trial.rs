//! A trial: two settings take turns, and the rates of their windows are compared in pairs.
//!
//! The windows are `P O O P P O O P ...` (present, other): a rate that grows or falls steadily
//! cancels out in each two pairs, and each second window begins where the setting was the same
//! before, which shows the noise.

use crate::noise::Noise;

/// Fewest pairs that decide: something that happens once, such as a pause of the device, hits one
/// of them, and the second pair shows how much windows with the same setting differ.
const PAIRS_MIN: u32 = 2;
/// Pairs of windows after which a trial ends without a clear difference.
const PAIRS_MAX: u32 = 8;
/// A difference is clear beyond so many standard errors.
const CLEAR: f64 = 2.0;
/// Windows of the present setting whose rates differ by more than this, and more than
/// [`CHANGED_ERRORS`] standard errors, are of different loads.
const CHANGED: f64 = 0.4;
const CHANGED_ERRORS: f64 = 6.0;

/// What a trial shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The other setting gains at least what it must.
    Better,
    /// It does not.
    Worse,
    /// Neither is clear.
    Unclear,
    /// The load changed.
    Changed,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trial {
    pub from: u32,
    pub tried: u32,
    /// Relative gain that the other setting must bring.
    needed: f64,
    /// At the beginning: a load that changes is no noise.
    noise: Noise,
    windows: u32,
    /// The previous window's rate.
    previous: f64,
    /// The last rate with the present setting.
    present: Option<f64>,
    /// Fewest requests of a window.
    requests: u64,
    pairs: u32,
    /// Of the relative differences of the pairs, and of their squares.
    sum: f64,
    squares: f64,
}

impl Trial {
    pub fn new((from, tried): (u32, u32), needed: f64, noise: Noise) -> Self {
        assert_ne!(from, tried, "a setting is compared with another one");
        Self {
            from,
            tried,
            needed,
            noise,
            windows: 0,
            previous: 0.0,
            present: None,
            requests: u64::MAX,
            pairs: 0,
            sum: 0.0,
            squares: 0.0,
        }
    }

    /// The setting of the next window.
    pub fn setting(&self) -> u32 {
        if Self::is_other(self.windows) { self.tried } else { self.from }
    }

    /// Whether the next window has another setting than the one before.
    pub fn turns(&self) -> bool {
        self.windows % 2 == 1
    }

    fn is_other(window: u32) -> bool {
        matches!(window % 4, 1 | 2)
    }

    /// Mean relative gain of the other setting.
    pub fn gain(&self) -> f64 {
        self.sum / f64::from(self.pairs.max(1))
    }

    pub fn pairs(&self) -> u32 {
        self.pairs
    }

    /// Whether the other setting seems to gain what it must, clearly or not.
    pub fn seems_better(&self) -> bool {
        self.gain() > self.needed
    }

    /// Standard error of [`Trial::gain`]: by what is known of the noise, or by how much the pairs
    /// differ if that is more, as with pauses that hit a few of them.
    pub fn error(&self, noise: &Noise) -> f64 {
        let known = noise.of_pairs(self.pairs, self.requests);
        if self.pairs < 2 {
            return known;
        }
        let (pairs, gain) = (f64::from(self.pairs), self.gain());
        let variance = (self.squares / pairs - gain * gain).max(0.0) / (pairs - 1.0);
        known.max(variance.sqrt())
    }

    /// The next window had this rate, from so many requests. `None`: one more is needed.
    pub fn record(&mut self, rate: f64, requests: u64, noise: &mut Noise) -> Option<Verdict> {
        self.requests = self.requests.min(requests);
        let (window, previous) = (self.windows, self.previous);
        (self.windows, self.previous) = (window + 1, rate);
        if window.is_multiple_of(2) {
            if window > 0 {
                noise.learn(previous, rate);
            }
            return (!Self::is_other(window) && self.has_changed(rate)).then_some(Verdict::Changed);
        }
        let (present, other) = if Self::is_other(window) { (previous, rate) } else { (rate, previous) };
        if !Self::is_other(window) && self.has_changed(rate) {
            return Some(Verdict::Changed);
        }
        self.pairs += 1;
        // Differences are relative to the mean of both, so that a gain and the loss on the way back
        // weigh the same.
        let difference = 2.0 * (other - present) / (other + present).max(f64::MIN_POSITIVE);
        (self.sum, self.squares) = (self.sum + difference, self.squares + difference * difference);
        if self.pairs < PAIRS_MIN {
            return None;
        }
        let (gain, error) = (self.gain(), CLEAR * self.error(noise));
        if gain - error > self.needed {
            Some(Verdict::Better)
        } else if gain + error < self.needed {
            Some(Verdict::Worse)
        } else {
            (self.pairs >= PAIRS_MAX).then_some(Verdict::Unclear)
        }
    }

    /// Whether the rate with the present setting is that of another load.
    fn has_changed(&mut self, rate: f64) -> bool {
        let Some(before) = self.present.replace(rate) else { return false };
        let difference = 2.0 * (rate - before).abs() / (rate + before).max(f64::MIN_POSITIVE);
        difference > CHANGED.max(CHANGED_ERRORS * self.noise.of_pairs(1, self.requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(needed: f64, rate: impl Fn(u32, u32) -> f64) -> (Option<Verdict>, u32) {
        let (mut trial, mut noise) = (Trial::new((4, 8), needed, Noise::new()), Noise::new());
        for window in 0.. {
            if let Some(verdict) = trial.record(rate(window, trial.setting()), 1000, &mut noise) {
                return (Some(verdict), trial.pairs());
            }
        }
        unreachable!("a trial ends")
    }

    #[test]
    fn a_large_difference_is_seen_in_two_pairs() {
        assert_eq!(verdict(0.0, |_, setting| f64::from(setting)), (Some(Verdict::Better), PAIRS_MIN));
        assert_eq!(verdict(0.0, |_, setting| 1.0 / f64::from(setting)), (Some(Verdict::Worse), PAIRS_MIN));
    }

    #[test]
    fn one_window_with_a_pause_decides_nothing() {
        for window in [1, 2] {
            let pauses = |now, _| if now == window { 30.0 } else { 100.0 };
            assert_eq!(verdict(0.0, pauses).0, Some(Verdict::Unclear), "in window {window}");
        }
    }

    #[test]
    fn equal_rates_are_unclear_or_decided_by_what_is_needed() {
        assert_eq!(verdict(0.0, |_, _| 100.0), (Some(Verdict::Unclear), PAIRS_MAX));
        assert_eq!(verdict(0.05, |_, _| 100.0).0, Some(Verdict::Worse));
        assert_eq!(verdict(-0.05, |_, _| 100.0).0, Some(Verdict::Better));
    }

    #[test]
    fn a_rate_that_grows_steadily_does_not_speak_for_either() {
        let grows = |window, _| 100.0 + 2.0 * f64::from(window);
        assert_eq!(verdict(0.0, grows).0, Some(Verdict::Unclear));
    }

    #[test]
    fn another_load_ends_the_trial() {
        let halves = |window, _| if window < 2 { 100.0 } else { 50.0 };
        assert_eq!(verdict(0.01, halves).0, Some(Verdict::Changed));
    }
}
