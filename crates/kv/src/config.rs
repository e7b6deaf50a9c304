//! The settings of a store, and the limits of all stores.

use std::{fmt, io, sync::Arc, time::Duration};

use rt::BoxFuture;

use crate::{
    batch::Lsn,
    error::{Error, Result},
};

/// Longest key.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value: 64 KiB of data and as much again for what the owner stores with them.
pub const VALUE_BYTES_MAX: usize = 128 << 10;
/// Largest encoded batch. A store with smaller segments takes only what fits in one.
pub const BATCH_BYTES_MAX: u64 = 8 << 20;
/// Smallest segment. Small ones are for tests and simulations.
pub const SEGMENT_BYTES_MIN: u64 = 16 << 10;
/// Largest segment: recovery reads one at a time into memory.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

const _: () = assert!(KEY_BYTES_MAX <= u16::MAX as usize, "the length of a key is a u16 on disk");
const _: () = assert!((VALUE_BYTES_MAX as u64) < BATCH_BYTES_MAX, "a value must fit in a batch");

/// Called before a checkpoint with the last batch it covers; the checkpoint continues when the
/// future completes. An owner whose records refer to other files makes those durable here: then
/// only batches seen by `replay` can be ahead of them. It must not wait for a checkpoint.
pub type CheckpointHook = Arc<dyn Fn(Lsn) -> BoxFuture<'static, io::Result<()>> + Send + Sync>;

/// Configuration of a store. It may change with every open, except for the size of segments, which
/// is that of the store's creation.
#[derive(Clone)]
pub struct Config {
    /// Size of a journal segment. At least [`SEGMENT_BYTES_MIN`].
    pub segment_bytes: u64,
    /// Segments the journal may have; more than half of them in use start a checkpoint. At least 3.
    pub segments_max: u32,
    /// Journal space that only [`crate::Store::apply_reserved`] may use.
    pub reserve_bytes: u64,
    /// Free space of the journal's device, which must be the cold store's as well, that only
    /// [`crate::Store::apply_reserved`] and checkpoints may use, besides what a checkpoint of all
    /// that has changed needs. 0: the device is not monitored.
    pub device_reserve_bytes: u64,
    /// New segments are written with zeros, so that a flush never has to change their metadata.
    pub zero_segments: bool,
    /// Memory for the tables, estimated with overheads. Beyond it clean entries are dropped and
    /// read from the cold store.
    pub memory_bytes: u64,
    /// Memory of changed entries that starts a checkpoint. At twice as much, `written` waits; at
    /// four times, `apply` refuses.
    pub dirty_bytes: u64,
    /// Longest time for which a batch stays unflushed when no caller requests a flush.
    pub commit_interval: Duration,
    /// Longest time between checkpoints while there are changes.
    pub checkpoint_interval: Duration,
    /// Entries that a checkpoint looks at, and at most writes, before it lets other tasks run.
    pub step_entries: usize,
    /// See [`CheckpointHook`].
    pub before_checkpoint: Option<CheckpointHook>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            segment_bytes: 16 << 20,
            segments_max: 16,
            reserve_bytes: 1 << 20,
            device_reserve_bytes: 32 << 20,
            zero_segments: true,
            memory_bytes: 256 << 20,
            dirty_bytes: 64 << 20,
            commit_interval: Duration::from_secs(1),
            checkpoint_interval: Duration::from_secs(300),
            step_entries: 2048,
            before_checkpoint: None,
        }
    }
}

impl Config {
    /// A store whose process may use about `bytes` for it and for a fjall opened with
    /// [`FjallOptions::for_budget`](crate::cold::fjall::FjallOptions::for_budget) of the same
    /// number. The tables get three sixteenths: measured, fjall uses half for buffers, filters,
    /// indices and compactions, whatever it is told.
    pub fn for_budget(bytes: u64) -> Config {
        Config { memory_bytes: bytes / 16 * 3, dirty_bytes: bytes / 16, ..Config::default() }
    }

    /// A store for simulations: segments of 256 KiB, 4 MiB of tables.
    pub fn small() -> Config {
        Config {
            segment_bytes: 256 << 10,
            segments_max: 16,
            reserve_bytes: 16 << 10,
            device_reserve_bytes: 0,
            zero_segments: false,
            memory_bytes: 4 << 20,
            dirty_bytes: 1 << 20,
            ..Config::default()
        }
    }

    /// Refuses contradictory settings.
    pub(crate) fn check(&self) -> Result<()> {
        let complaint = if self.segment_bytes < SEGMENT_BYTES_MIN {
            "segment_bytes is too small"
        } else if !self.segment_bytes.is_multiple_of(4096) {
            "segment_bytes is not a multiple of 4096"
        } else if self.segment_bytes > SEGMENT_BYTES_MAX {
            "segment_bytes is above 1 GiB"
        } else if self.segments_max < 3 {
            "segments_max is below 3"
        } else if self.reserve_bytes > self.segment_bytes / 4 {
            "reserve_bytes is more than a quarter of a segment"
        } else if self.step_entries == 0 {
            "step_entries is zero"
        } else if self.commit_interval.is_zero() || self.checkpoint_interval.is_zero() {
            "an interval is zero"
        } else {
            return Ok(());
        };
        Err(Error::Configuration(complaint))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("segment_bytes", &self.segment_bytes)
            .field("segments_max", &self.segments_max)
            .field("memory_bytes", &self.memory_bytes)
            .field("dirty_bytes", &self.dirty_bytes)
            .field("commit_interval", &self.commit_interval)
            .field("checkpoint_interval", &self.checkpoint_interval)
            .finish_non_exhaustive()
    }
}
