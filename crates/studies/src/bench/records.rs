//! Phases that write or read records, common to ior and random I/O.

use std::{io, time::Duration};

use bytes::Bytes;

use super::{
    measurement::{Measurement, Run},
    target::TargetFile,
    workers,
};

/// Records of every worker: how many, how large, in which file, where.
pub struct Records<'a> {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// Records of each worker.
    pub count: u64,
    /// Bytes of a record.
    pub bytes: usize,
    /// File of a worker; it exists.
    pub path: &'a (dyn Fn(usize) -> String + Sync),
    /// Offset of a worker's record.
    pub offset: &'a (dyn Fn(usize, u64) -> u64 + Sync),
}

impl Records<'_> {
    /// Writes all records, then fsync: part of the time.
    pub fn write(&self, run: &Run<'_>, data: &Bytes) -> io::Result<Measurement> {
        let cpu = run.cpu();
        let wall = self.on_files(run, |file, rank| {
            (0..self.count).try_for_each(|record| file.write_at(data, (self.offset)(rank, record)))?;
            file.sync()
        })?;
        Ok(self.measurement(run, "write", wall, cpu))
    }

    /// Reads all records.
    pub fn read(&self, run: &Run<'_>) -> io::Result<Measurement> {
        let cpu = run.cpu();
        let wall = self.on_files(run, |file, rank| {
            let mut buffer = vec![0; self.bytes];
            (0..self.count).try_for_each(|record| file.read_at(&mut buffer, (self.offset)(rank, record)))
        })?;
        Ok(self.measurement(run, "read", wall, cpu))
    }

    fn on_files(
        &self,
        run: &Run<'_>,
        transfer: impl Fn(&dyn TargetFile, usize) -> io::Result<()> + Sync,
    ) -> io::Result<Duration> {
        workers::run(run.workers, |rank| {
            let file = run.target.open(&(self.path)(rank))?;
            transfer(&*file, rank)?;
            file.close()
        })
    }

    fn measurement(&self, run: &Run<'_>, phase: &'static str, wall: Duration, cpu: Duration) -> Measurement {
        let operations = self.count * run.workers as u64;
        run.measurement(self.bench, phase, operations, operations * self.bytes as u64, wall, cpu)
    }
}
