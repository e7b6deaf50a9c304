//! Random I/O: records of 4 KiB at random places of a file per worker, every record once, in a
//! fixed pseudo-random order.
//!
//! Downside: the read phase follows the overwriting, and the servers keep running: records that
//! they have in memory are read from there.

use std::io;

use bytes::Bytes;

use super::{
    caches::{CacheKind, drop_caches},
    measurement::{Measurement, Run},
    records::Records,
};

/// Name in results.
pub const NAME: &str = "random-4k";
/// What a reader of the table must know.
pub const NOTE: &str = "random-4k: read rates are not comparable. Overwritten blocks are in the servers' tables, partly in memory, \
    which is not emptied before the reads; the local file system reads from the disk.";

const RECORD_BYTES: usize = 4096;

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct RandomIo {
    /// Records of each worker.
    pub records: u64,
}

impl RandomIo {
    /// Fills the files, overwrites and reads them at random, removes them.
    pub fn run(self, run: &Run<'_>) -> io::Result<Vec<Measurement>> {
        let fill = Bytes::from(vec![1; 1 << 20]);
        for rank in 0..run.workers {
            let file = run.target.create(&path(rank))?;
            let bytes = self.records * RECORD_BYTES as u64;
            (0..bytes.div_ceil(fill.len() as u64)).try_for_each(|index| file.write_at(&fill, index << 20))?;
            file.sync()?;
            file.close()?;
        }
        let records = Records {
            bench: NAME,
            count: self.records,
            bytes: RECORD_BYTES,
            path: &path,
            offset: &|_, record| shuffled(record, self.records) * RECORD_BYTES as u64,
        };
        let write = records.write(run, &Bytes::from(vec![2; RECORD_BYTES]))?;
        drop_caches(CacheKind::Pages);
        let read = records.read(run)?;
        (0..run.workers).try_for_each(|rank| run.target.unlink(&path(rank)))?;
        Ok(vec![write, read])
    }
}

fn path(rank: usize) -> String {
    format!("random.{rank}")
}

/// A fixed permutation of `0..count`: multiplication by a number prime to `count`, far from its
/// divisors.
pub fn shuffled(index: u64, count: u64) -> u64 {
    let mut factor = (count as f64 * 0.618) as u64 | 1;
    while gcd(factor, count) != 1 {
        factor += 2;
    }
    (u128::from(index) * u128::from(factor) % u128::from(count)) as u64
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_comes_once() {
        for count in [1, 2, 7, 100, 1024] {
            let mut seen: Vec<u64> = (0..count).map(|index| shuffled(index, count)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
    }
}
