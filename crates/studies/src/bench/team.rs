//! The workers of a benchmark and what they spend: threads of this process, or processes
//! ([`super::ranks`]).

use std::{io, time::Duration};

use super::{measurement::Run, target::BenchTarget, workers};

/// What a worker does in a phase, with its client and as the worker of this number.
pub type Work<'w> = dyn Fn(&dyn BenchTarget, usize) -> io::Result<()> + Sync + 'w;

/// What a phase took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// From its start to the end of the slowest worker.
    pub wall: Duration,
    /// Processor time of workers, clients and servers.
    pub cpu: Duration,
}

/// See the module documentation.
pub trait Team {
    /// Workers.
    fn workers(&self) -> usize;

    /// The run, in the process that makes and removes directories and keeps results.
    fn run(&self) -> Option<&Run<'_>>;

    /// All workers begin together. In each phase another client does what a worker did in the phase
    /// before, if there are several.
    fn work(&self, phase: usize, work: &Work<'_>) -> io::Result<Spent>;
}

/// Threads of this process.
pub struct Threads<'r>(pub &'r Run<'r>);

impl Team for Threads<'_> {
    fn workers(&self) -> usize {
        self.0.workers
    }

    fn run(&self) -> Option<&Run<'_>> {
        Some(self.0)
    }

    fn work(&self, phase: usize, work: &Work<'_>) -> io::Result<Spent> {
        let before = self.0.cpu();
        let wall = workers::run(self.0.workers, |rank| work(self.0.client(rank + phase), rank))?;
        Ok(Spent { wall, cpu: self.0.cpu().saturating_sub(before) })
    }
}
