//! ior: transfer rates, as defined by the tool of that name (as used by the IO500).
//!
//! easy: a file per worker, large transfers. hard: one shared file, records of 47008 bytes
//! interleaved by worker. Writing ends with fsync, which is part of the time. Reading starts with
//! an empty page cache if the process may drop it.

use std::io;

use bytes::Bytes;

use super::{
    caches::CacheKind,
    caches::drop_caches,
    measurement::{Measurement, Run},
    records::Records,
};

/// Bytes of a record of the hard variant.
const HARD_BYTES: usize = 47008;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Ior {
    /// One shared file with interleaved records, instead of a file per worker.
    pub hard: bool,
    /// Bytes per transfer of the easy variant.
    pub transfer_bytes: usize,
    /// Bytes each worker writes and reads.
    pub worker_bytes: u64,
}

impl Ior {
    fn name(self) -> &'static str {
        if self.hard { "ior-hard" } else { "ior-easy" }
    }

    fn record_bytes(self) -> usize {
        if self.hard { HARD_BYTES } else { self.transfer_bytes }
    }

    fn records(self) -> u64 {
        (self.worker_bytes / self.record_bytes() as u64).max(1)
    }

    fn path(self, rank: usize) -> String {
        if self.hard { "ior.shared".to_owned() } else { format!("ior.{rank}") }
    }

    fn offset(self, workers: usize, rank: usize, record: u64) -> u64 {
        let index = if self.hard { record * workers as u64 + rank as u64 } else { record };
        index * self.record_bytes() as u64
    }

    /// Writes, reads and removes.
    pub fn run(self, run: &Run<'_>) -> io::Result<Vec<Measurement>> {
        let files = if self.hard { 1 } else { run.workers };
        for rank in 0..files {
            run.target.create(&self.path(rank))?.close()?;
        }
        let data =
            Bytes::from((0..self.record_bytes()).map(|index| (index * 7 + index / 251) as u8).collect::<Vec<_>>());
        let records = Records {
            bench: self.name(),
            count: self.records(),
            bytes: self.record_bytes(),
            path: &|rank| self.path(rank),
            offset: &|rank, record| self.offset(run.workers, rank, record),
        };
        let write = records.write(run, &data)?;
        drop_caches(CacheKind::Pages);
        let read = records.read(run)?;
        for rank in 0..files {
            run.target.unlink(&self.path(rank))?;
        }
        Ok(vec![write, read])
    }
}
