//! The rows on this machine: servers and a client in this process, connected over TCP.

use std::path::Path;

use host::progress;
use types::FsError;

use super::{
    Cost,
    work::{ROWS, Subject},
};
use crate::bench::{
    both_ends::BothEnds,
    workers::{self, own_cpu},
};

/// OSTs, here and in virtual time.
pub const OSTS: u16 = 4;

/// More than the rows of a round write.
const WARM_BYTES: u64 = 512 << 20;

fn io_error(error: FsError) -> std::io::Error {
    std::io::Error::from_raw_os_error(host::errno::of(&error).0)
}

/// What every row cost, in each round.
pub fn run(place: &Path, rounds: u32, scale: u64) -> anyhow::Result<Vec<[Cost; ROWS.len()]>> {
    let system = BothEnds::start(&place.join("live"), OSTS)?;
    let subject = |round: u32| {
        let made = Subject::new(system.file_system.clone(), round, scale);
        system.client_cores.block_on(made).map_err(io_error)
    };
    // With the file that stats ask for.
    let kept = subject(0)?;
    let mut all = Vec::new();
    for round in 1..=rounds {
        progress::show(format_args!("live, round {round} of {rounds}"));
        let subject = subject(round)?;
        workers::warm_memory(place, WARM_BYTES / scale)?;
        let mut costs = [Cost::default(); ROWS.len()];
        for (row, cost) in ROWS.into_iter().zip(&mut costs) {
            let count = row.count(scale);
            subject.begin(row).map_err(io_error)?;
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
        all.push(costs);
    }
    progress::done();
    system.client_cores.block_on(kept.remove()).map_err(io_error)?;
    Ok(all)
}
