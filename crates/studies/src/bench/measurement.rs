//! A run of a benchmark, and what is measured in it.

use std::time::Duration;

use serde::Serialize;

use super::{systems::System, target::BenchTarget};

/// Large transfers of objects, without clients.
pub const OBJECTS_LARGE: &str = "objects-1m";

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Benchmark.
    pub bench: &'static str,
    /// Phase of it.
    pub phase: &'static str,
    /// File system.
    pub system: &'static str,
    /// Workers.
    pub workers: usize,
    /// Operations done.
    pub operations: u64,
    /// Bytes moved; 0 for metadata.
    pub bytes: u64,
    /// Seconds from start to end.
    pub seconds: f64,
    /// Processor seconds of workers, client and servers together.
    pub cpu_seconds: f64,
    /// fdatasyncs per second of the disk just before this run.
    pub fdatasync_per_second: f64,
    /// Bytes that the disks wrote because of it, where they are counted.
    pub written_bytes: Option<u64>,
}

impl Measurement {
    /// MiB per second for transfers, operations per second for the rest.
    pub fn rate(&self) -> f64 {
        let amount = if self.is_transfer() { self.bytes as f64 / f64::from(1 << 20) } else { self.operations as f64 };
        amount / self.seconds.max(1e-9)
    }

    /// Whether bytes count rather than operations.
    pub fn is_transfer(&self) -> bool {
        self.bench.starts_with("ior") || self.bench == OBJECTS_LARGE
    }

    /// Bytes that the disks wrote for each byte of data.
    pub fn amplification(&self) -> Option<f64> {
        self.written_bytes.filter(|_| self.bytes > 0).map(|written| written as f64 / self.bytes as f64)
    }

    /// Processor time per operation in microseconds, or per GiB in seconds.
    pub fn cpu_cost(&self) -> f64 {
        match self.is_transfer() {
            true => self.cpu_seconds / (self.bytes as f64 / f64::from(1 << 30)),
            false => self.cpu_seconds * 1e6 / self.operations.max(1) as f64,
        }
    }
}

/// One run of a benchmark on one system.
pub struct Run<'a> {
    /// What operations go to.
    pub target: &'a dyn BenchTarget,
    /// Workers.
    pub workers: usize,
    /// Where they run.
    pub(super) system: &'a System,
    /// What the disk did just before.
    pub(super) fdatasync_per_second: f64,
}

impl Run<'_> {
    /// A client of the system, in turn if there are several.
    pub fn client(&self, number: usize) -> &dyn BenchTarget {
        let clients = self.system.others.len() + 1;
        match number % clients {
            0 => self.target,
            other => &*self.system.others[other - 1],
        }
    }

    /// Processor time used so far.
    pub fn cpu(&self) -> Duration {
        self.system.cpu()
    }

    /// A result; `cpu_before` was taken when the phase began.
    pub fn measurement(
        &self,
        bench: &'static str,
        phase: &'static str,
        operations: u64,
        bytes: u64,
        wall: Duration,
        cpu_before: Duration,
    ) -> Measurement {
        self.measured(bench, phase, operations, bytes, (wall, self.cpu().saturating_sub(cpu_before)))
    }

    /// A result that took this time, and this processor time.
    pub fn measured(
        &self,
        bench: &'static str,
        phase: &'static str,
        operations: u64,
        bytes: u64,
        (wall, cpu): (Duration, Duration),
    ) -> Measurement {
        Measurement {
            bench,
            phase,
            system: self.system.kind.name(),
            workers: self.workers,
            operations,
            bytes,
            seconds: wall.as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            fdatasync_per_second: self.fdatasync_per_second,
            written_bytes: None,
        }
    }
}
