//! Histograms in powers of two: exact counts, coarse values, constant size, cheap enough for every
//! request.

use std::time::Duration;

/// Number of buckets: bucket 0 counts values of 0 us, bucket `n` counts values of 2^(n-1)..2^n us.
/// The last one, from 2^30 us (18 minutes), takes everything above.
pub const BUCKETS: usize = 32;

/// Distribution of durations in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Values counted.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// The largest, in nanoseconds.
    pub max_ns: u64,
    /// Counts per bucket.
    pub buckets: [u64; BUCKETS],
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        self.buckets[Self::bucket(ns / 1000)] += 1;
    }

    fn bucket(us: u64) -> usize {
        ((u64::BITS - us.leading_zeros()) as usize).min(BUCKETS - 1)
    }

    /// Upper bound in microseconds of the bucket that holds the `fraction` quantile; 0 if nothing
    /// was counted.
    pub fn quantile_us(&self, fraction: f64) -> u64 {
        let rank = (self.count as f64 * fraction).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= rank {
                return if bucket == 0 { 1 } else { 1 << bucket };
            }
        }
        0
    }

    /// Mean in nanoseconds; 0 if nothing was counted.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_their_power_of_two() {
        let mut histogram = Histogram::default();
        for us in [0, 1, 2, 3, 4, 1 << 40] {
            histogram.record(Duration::from_micros(us));
        }
        assert_eq!(histogram.buckets[0], 1);
        assert_eq!(histogram.buckets[1], 1);
        assert_eq!(histogram.buckets[2], 2);
        assert_eq!(histogram.buckets[3], 1);
        assert_eq!(histogram.buckets[BUCKETS - 1], 1);
        assert_eq!(histogram.count, 6);
        assert_eq!(histogram.quantile_us(0.5), 4);
        assert_eq!(histogram.quantile_us(1.0), 1 << (BUCKETS - 1));
    }

    #[test]
    fn an_empty_histogram_has_no_values() {
        assert_eq!(Histogram::default().quantile_us(0.99), 0);
        assert_eq!(Histogram::default().mean_ns(), 0);
    }
}
