//! The rows on this machine: servers and a client in this process, connected over TCP.

use std::path::PathBuf;

use types::FsError;

use super::{
    Cost,
    work::{ROWS, Subject},
};
use crate::bench::{
    both_ends::BothEnds,
    leftovers::Place,
    workers::{self, own_cpu},
};

/// More than any row writes.
const WARM_BYTES: u64 = 128 << 20;

fn io_error(error: FsError) -> std::io::Error {
    std::io::Error::from_raw_os_error(host::errno::of(&error).0)
}

/// The rows, round after round.
pub struct Live<'a> {
    system: &'a BothEnds,
    directory: PathBuf,
    scale: u64,
    /// With the file that stats ask for.
    kept: Subject,
    rounds: Vec<[Cost; ROWS.len()]>,
}

impl<'a> Live<'a> {
    /// Makes what all rounds use.
    pub fn start(place: &Place, system: &'a BothEnds, scale: u64) -> anyhow::Result<Self> {
        let kept = subject(system, 0, scale)?;
        Ok(Self { system, directory: place.path().to_owned(), scale, kept, rounds: Vec::new() })
    }

    /// Every row once.
    pub fn round(&mut self) -> anyhow::Result<()> {
        let (system, scale) = (self.system, self.scale);
        let round = u32::try_from(self.rounds.len())? + 1;
        let subject = subject(system, round, scale)?;
        let mut costs = [Cost::default(); ROWS.len()];
        for (row, cost) in ROWS.into_iter().zip(&mut costs) {
            let count = row.count(scale);
            subject.begin(row).map_err(io_error)?;
            if row.writes() {
                workers::warm_memory(&self.directory, WARM_BYTES / scale)?;
            }
            workers::settle();
            let cpu = own_cpu();
            let took = workers::run(usize::from(row.streams), |stream| {
                (0..count).try_for_each(|number| {
                    let call = subject.call(row, stream as u16, number);
                    system.client_cores.block_on(call).map_err(io_error)
                })
            })?;
            let calls = (count * u64::from(row.streams)) as f64;
            let cpu = own_cpu().saturating_sub(cpu);
            system.client_cores.block_on(subject.settle(row)).map_err(io_error)?;
            *cost = Cost { seconds: took.as_secs_f64() / calls, cpu_seconds: cpu.as_secs_f64() / calls };
        }
        system.client_cores.block_on(subject.remove()).map_err(io_error)?;
        self.rounds.push(costs);
        Ok(())
    }

    /// What every row cost, in each round.
    pub fn end(self) -> anyhow::Result<Vec<[Cost; ROWS.len()]>> {
        self.system.client_cores.block_on(self.kept.remove()).map_err(io_error)?;
        Ok(self.rounds)
    }
}

fn subject(system: &BothEnds, round: u32, scale: u64) -> std::io::Result<Subject> {
    let made = Subject::new(system.file_system.clone(), round, scale);
    system.client_cores.block_on(made).map_err(io_error)
}
