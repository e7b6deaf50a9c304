//! How much the rates of windows with the same setting differ.

/// Before anything was measured.
const FIRST: f64 = 0.05;
/// Steadier loads are taken to be no steadier.
const LEAST: f64 = 0.003;
/// Weight of a new pair of windows.
const WEIGHT: f64 = 0.25;

/// Relative standard deviation of the rate of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Noise {
    variance: f64,
}

impl Noise {
    pub fn new() -> Self {
        Self { variance: FIRST * FIRST }
    }

    /// Two windows with the same setting had these rates.
    pub fn learn(&mut self, one: f64, other: f64) {
        let mean = (one + other) / 2.0;
        if mean > 0.0 {
            // The difference of two has twice the variance of one.
            let difference = ((one - other) / mean).clamp(-1.0, 1.0);
            self.variance += WEIGHT * (difference * difference / 2.0 - self.variance);
        }
    }

    /// Standard error of the mean relative difference of so many pairs of windows, each with at
    /// least so many requests: where few were counted, one more or less makes a difference.
    pub fn of_pairs(&self, pairs: u32, requests: u64) -> f64 {
        let counted = 0.5 / (requests.max(1) as f64).powi(2);
        (2.0 * self.variance.max(LEAST * LEAST).max(counted) / f64::from(pairs.max(1))).sqrt()
    }
}
