//! The settings of an OST.

use std::time::Duration;

use types::limits::BLOCK_BYTES;

/// Writes of at least this many bytes may go to the host file at once; smaller ones go inline. One
/// page-cache write and a flush of a host file cost about what journaling 64 KiB costs.
pub const IN_PLACE_BYTES_MIN: u64 = 64 << 10;
/// Shorter overwrites never go to the device at once: they are of parts of blocks.
pub const OVERWRITE_BYTES_MIN: u64 = BLOCK_BYTES;
/// Objects up to this size keep their blocks inline permanently.
pub const INLINE_OBJECT_BYTES_MAX: u64 = 64 << 10;
/// Inline data that wait for write-back by default: half of the changed entries that start a
/// checkpoint of the tables ([`kv::Config::dirty_bytes`]). With more, most of them would be in the
/// cold store first, which writes each several times.
const WRITE_BACK_BYTES: u64 = 32 << 20;

/// Settings of an OST. All but `audits` can be changed at run time through the parameter tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OstOptions {
    /// Longest time in-place data stay unflushed; bounds what a power loss takes.
    pub commit_interval: Duration,
    /// Inline bytes of large objects beyond which they are copied into their files.
    pub write_back_bytes: u64,
    /// Time without changes after which inline blocks of large objects are copied into their files
    /// anyway.
    pub write_back_idle: Duration,
    /// Overwrites of at least this many bytes that need not be durable when they are answered go to
    /// new places on the device at once, below [`IN_PLACE_BYTES_MIN`] through the host's memory;
    /// shorter ones go inline. What is new goes there from [`IN_PLACE_BYTES_MIN`] on.
    pub overwrite_bytes_min: u64,
    /// Space kept free for the journal, the tables, for overwriting and for deleting: writes of
    /// what is new get `NoSpace` beyond it.
    pub reserve_bytes: u64,
    /// Whether the device is told which blocks became free, so that it need not keep what they
    /// hold.
    pub discard: bool,
    /// Bytes per second that are moved to merge the pieces of objects on the device; 0: none.
    pub defrag_bytes_per_second: u64,
    /// The part of the time, in percent, for which requests may keep the device busy while that is
    /// done; 100: always.
    pub defrag_busy_percent: u64,
    /// Bytes per second that a scrub reads; 0: as many as the device reads while no requests are in
    /// progress.
    pub scrub_bytes_per_second: u64,
    /// Time after the end of a scrub after which the next one begins by itself; zero: never.
    pub auto_scrub: Duration,
    /// Whether the records of an object are checked after each change of it, and a breach is a
    /// panic: for tests and simulations, since it takes time. As of the opening of the target.
    pub audits: bool,
}

impl Default for OstOptions {
    fn default() -> Self {
        Self {
            commit_interval: Duration::from_secs(1),
            write_back_bytes: WRITE_BACK_BYTES,
            write_back_idle: Duration::from_secs(5),
            overwrite_bytes_min: OVERWRITE_BYTES_MIN,
            reserve_bytes: 128 << 20,
            discard: false,
            defrag_bytes_per_second: 16 << 20,
            defrag_busy_percent: 50,
            scrub_bytes_per_second: 64 << 20,
            auto_scrub: Duration::ZERO,
            audits: false,
        }
    }
}
