//! The ranks of a job as the workers of a benchmark.

use std::{
    cell::RefCell,
    io,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::pmi::Pmi;
use crate::bench::{
    measurement::Run,
    target::BenchTarget,
    team::{Spent, Team, Work},
    workers::own_cpu,
};

/// Every rank has its own view of it.
pub struct Ranks<'r> {
    pmi: RefCell<Pmi>,
    workers: usize,
    target: &'r dyn BenchTarget,
    /// Of rank 0.
    run: Option<&'r Run<'r>>,
}

/// What a rank tells rank 0 of a phase.
#[derive(Serialize, Deserialize)]
struct Share {
    wall: Duration,
    cpu: Duration,
}

impl<'r> Ranks<'r> {
    /// As rank 0 sees it.
    pub fn leading(pmi: Pmi, run: &'r Run<'r>) -> Self {
        Self { pmi: RefCell::new(pmi), workers: run.workers, target: run.target, run: Some(run) }
    }

    /// As others see it. Ranks from `workers` on only meet.
    pub fn following(pmi: Pmi, workers: usize, target: &'r dyn BenchTarget) -> Self {
        Self { pmi: RefCell::new(pmi), workers, target, run: None }
    }

    /// The connection, after all work.
    pub fn into_pmi(self) -> Pmi {
        self.pmi.into_inner()
    }

    /// Processor time of this process, and of what rank 0 has started.
    fn cpu(&self) -> Duration {
        self.run.map_or_else(own_cpu, Run::cpu)
    }
}

/// Whose files a rank uses in a phase: it has one client, so files go round instead.
fn files_of(rank: usize, phase: usize, workers: usize) -> usize {
    (rank + workers - phase % workers) % workers
}

impl Team for Ranks<'_> {
    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&self) -> Option<&Run<'_>> {
        self.run
    }

    /// Times are those of each rank by itself, since hosts have clocks of their own.
    fn work(&self, phase: usize, work: &Work<'_>) -> io::Result<Spent> {
        let mut pmi = self.pmi.borrow_mut();
        let (rank, workers) = (pmi.rank(), self.workers);
        let before = self.cpu();
        pmi.barrier()?;
        let begun = Instant::now();
        if rank < workers {
            work(self.target, files_of(rank, phase, workers))?;
        }
        let wall = if rank < workers { begun.elapsed() } else { Duration::ZERO };
        let share = Share { wall, cpu: self.cpu().saturating_sub(before) };
        pmi.give_to(0, &serde_json::to_string(&share)?)?;
        pmi.barrier()?;
        // What servers did for all is known by now.
        let mut spent = Spent { wall, cpu: self.cpu().saturating_sub(before) };
        let others = if self.run.is_some() { 1..pmi.size() } else { 0..0 };
        for other in others {
            let Share { wall, cpu } = serde_json::from_str(&pmi.value_from(other)?)?;
            spent = Spent { wall: spent.wall.max(wall), cpu: spent.cpu + cpu };
        }
        Ok(spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_each_phase_every_worker_has_the_files_of_the_one_before_it() {
        let phase = |phase| [0, 1, 2].map(|rank| files_of(rank, phase, 3));
        assert_eq!([0, 1, 2, 3].map(phase), [[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 1, 2]]);
        assert_eq!(files_of(0, 5, 1), 0);
    }
}
