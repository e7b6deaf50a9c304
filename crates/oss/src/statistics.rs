//! Statistics of an OST: counts, bytes and sizes, like Lustre's `brw_stats` and `stats`.

use std::fmt;

use parking_lot::Mutex;
use types::limits::BLOCK_BYTES;

/// Buckets of request sizes: bucket 0 counts requests of at most one block, bucket `n` those of
/// more than 2^(n-1) and at most 2^n blocks; the last one takes what is larger.
pub const SIZE_BUCKETS: usize = 12;

/// Requests with data, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Requests that succeeded.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests by size.
    pub sizes: [u64; SIZE_BUCKETS],
}

impl Transfers {
    fn record(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
        let blocks = bytes.div_ceil(BLOCK_BYTES).max(1);
        let bucket = (u64::BITS - (blocks - 1).leading_zeros()) as usize;
        self.sizes[bucket.min(SIZE_BUCKETS - 1)] += 1;
    }
}

/// Counters since the start, or since they were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OstCounters {
    /// Reads.
    pub read: Transfers,
    /// Writes.
    pub write: Transfers,
    /// Truncations, allocations, punches and zeroings.
    pub space: u64,
    /// Objects glimpsed.
    pub glimpse: u64,
    /// Syncs.
    pub sync: u64,
    /// Objects destroyed, missing ones included.
    pub destroy: u64,
    /// Searches for data or holes.
    pub seek: u64,
    /// Requests for space.
    pub statfs: u64,
    /// Writes that arrived damaged.
    pub damaged_transfers: u64,
    /// Requests that met stored data that do not match their checksum.
    pub corrupt: u64,
    /// Requests refused for lack of space.
    pub no_space: u64,
    /// Requests that failed for any other reason.
    pub failed: u64,
}

/// Collects the counters.
#[derive(Debug, Default)]
pub struct Statistics {
    counters: Mutex<OstCounters>,
}

impl Statistics {
    /// The counters up to now.
    pub fn counters(&self) -> OstCounters {
        *self.counters.lock()
    }

    /// Starts again.
    pub fn reset(&self) {
        *self.counters.lock() = OstCounters::default();
    }

    pub(crate) fn record(&self, change: impl FnOnce(&mut OstCounters)) {
        change(&mut self.counters.lock());
    }

    pub(crate) fn record_read(&self, bytes: u64) {
        self.record(|counters| counters.read.record(bytes));
    }

    pub(crate) fn record_write(&self, bytes: u64) {
        self.record(|counters| counters.write.record(bytes));
    }
}

impl OstCounters {
    /// Lustre's `brw_stats`: requests by size, in blocks of 4 KiB.
    pub fn brw_stats(&self) -> String {
        let percent = |part: u64, whole: u64| (part * 100).checked_div(whole).unwrap_or(0);
        let mut text = format!("{:<22}{:>24} | {:>24}\n", "", "read", "write");
        text += &format!(
            "{:<22}{:>12} {:>5} {:>5} | {:>12} {:>5} {:>5}\n",
            "pages per bulk r/w", "rpcs", "%", "cum %", "rpcs", "%", "cum %"
        );
        let last = |sizes: &[u64]| sizes.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let (mut read, mut write) = (0, 0);
        for bucket in 0..last(&self.read.sizes).max(last(&self.write.sizes)) {
            let (reads, writes) = (self.read.sizes[bucket], self.write.sizes[bucket]);
            read += reads;
            write += writes;
            text += &format!(
                "{:<22}{reads:>12} {:>5} {:>5} | {writes:>12} {:>5} {:>5}\n",
                format!("{}:", 1u64 << bucket),
                percent(reads, self.read.requests),
                percent(read, self.read.requests),
                percent(writes, self.write.requests),
                percent(write, self.write.requests),
            );
        }
        text
    }
}

impl fmt::Display for OstCounters {
    /// Lustre's `stats`: name, samples, unit, and the sum of bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, transfers) in [("read_bytes", &self.read), ("write_bytes", &self.write)] {
            writeln!(f, "{name:<26}{} samples [bytes] {}", transfers.requests, transfers.bytes)?;
        }
        for (name, count) in [
            ("punch", self.space),
            ("glimpse", self.glimpse),
            ("sync", self.sync),
            ("destroy", self.destroy),
            ("seek", self.seek),
            ("statfs", self.statfs),
            ("damaged_transfers", self.damaged_transfers),
            ("corrupt", self.corrupt),
            ("no_space", self.no_space),
            ("failed", self.failed),
        ] {
            writeln!(f, "{name:<26}{count} samples [reqs]")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_their_power_of_two() {
        let statistics = Statistics::default();
        for bytes in [1, 4096, 4097, 8192, 12288, 4 << 20, 64 << 20] {
            statistics.record_write(bytes);
        }
        let write = statistics.counters().write;
        assert_eq!((write.sizes[0], write.sizes[1], write.sizes[2], write.sizes[10]), (2, 2, 1, 1));
        assert_eq!(write.sizes[SIZE_BUCKETS - 1], 1);
        assert_eq!(write.requests, 7);
        let text = statistics.counters().brw_stats();
        assert!(text.lines().any(|line| line.starts_with("2:") && line.contains(" 2 ")), "{text}");
        statistics.reset();
        assert_eq!(statistics.counters(), OstCounters::default());
    }
}
