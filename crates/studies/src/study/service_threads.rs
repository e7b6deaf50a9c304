//! Runs a cell of E2 in virtual time: the shipped code with its numbers of service threads and of
//! requests in flight set, on processors and arrays that are modelled.
//!
//! A call of IOR (64 MiB, direct I/O) is as many requests of 1 MiB at once as a Lustre client of
//! the time makes of it, in order of offsets unless the testbed says otherwise; the client's limit
//! decides how many are on their way. Writing ends with fsync, so that what is in the drives'
//! caches counts: less than in the study is written, and the caches would have a larger part of it.

use std::{future::poll_fn, sync::Arc, task::Poll};

use client::WriteOptions;
use lab::{Random, processors::ProcessorUse, server::Role};
use rpc::message::mgs::TargetRole;
use rt::{BoxFuture, Entropy};
use types::{FsError, FsResult, OstIndex};

use super::{
    Job, Outcome,
    e2::{self, Cell},
    run::{Task, Testbed, World, in_world},
};
use crate::model::{raid::RaidStatistics, spindle::zeros};

/// Bytes of a request of the study's clients.
const REQUEST_BYTES: u64 = 1 << 20;

/// Runs one cell; its job says which.
pub fn run(job: &Job, testbed: Testbed, seed: u64) -> Result<Vec<Outcome>, String> {
    let cell = Cell::of(job).ok_or_else(|| format!("{} is no cell of this study", job.name))?;
    let testbed = Testbed { clients: cell.load.clients(), ..testbed };
    in_world(job, testbed, seed, move |world| async move {
        set(&world, cell)?;
        let mut outcomes = Vec::new();
        for phase in ["write", "read"] {
            let job = world.job.clone();
            let before = Usage::of(&world);
            let order = testbed.out_of_order.then_some(Order { seed, group: cell.setting.in_flight });
            let seconds = world.all(phase, move |task, rank| transfer(task, (job.clone(), rank), phase, order)).await?;
            Usage::of(&world).since(&before).tell(&world.job.name, phase, seconds);
            let operations = (0..world.job.tasks).map(|rank| world.job.transfers(rank).count() as u64).sum();
            let (job, bytes) = (world.job.name.clone(), world.job.bytes());
            outcomes.push(Outcome { job, phase, bytes, operations, seconds });
        }
        Ok(outcomes)
    })
}

/// What a server's cores and arrays did, for the log: why a cell is as fast as it is.
struct Usage {
    arrays: RaidStatistics,
    cores: ProcessorUse,
}

impl Usage {
    fn of(world: &World) -> Self {
        let cores = world.hardware.cores(&Role::Oss(0).host()).unwrap_or_default();
        Self { arrays: world.hardware.arrays(), cores }
    }

    fn since(self, before: &Usage) -> Self {
        let arrays = RaidStatistics {
            whole: self.arrays.whole - before.arrays.whole,
            partial: self.arrays.partial - before.arrays.partial,
        };
        let cores = ProcessorUse {
            worked: self.cores.worked - before.cores.worked,
            switching: self.cores.switching - before.cores.switching,
            switches: self.cores.switches - before.cores.switches,
        };
        Self { arrays, cores }
    }

    fn tell(&self, cell: &str, phase: &str, seconds: f64) {
        let RaidStatistics { whole, partial } = self.arrays;
        let working = self.cores.worked.as_secs_f64() / seconds;
        let switching = self.cores.switching.as_secs_f64() / seconds;
        tracing::info!(
            "{cell}, {phase}: {whole} whole and {partial} partial stripes; {working:.2} of the OSS's cores work, \
             {switching:.3} switch"
        );
    }
}

/// Sets the numbers of the cell, as an administrator does while the file system is in use.
fn set(world: &World, cell: Cell) -> Result<(), String> {
    let threads = usize::from(cell.setting.service_threads);
    let set = world.cluster.inspect(Role::Oss(0), |serving| {
        serving.server.service(oss::SERVICE_IO).set_threads(threads);
    });
    set.ok_or("the object storage server is down")?;
    for (_, file_system) in world.cluster.file_systems() {
        for ost in (0..e2::OSTS).map(OstIndex) {
            file_system.set_rpcs_in_flight_max(TargetRole::Ost(ost), cell.setting.in_flight);
        }
    }
    Ok(())
}

/// The order in which requests of a call leave, if it is not that of their offsets: as if as many
/// threads as may have a request in flight took them in turn, and each ran when its time came.
#[derive(Clone, Copy)]
pub(super) struct Order {
    seed: u64,
    group: u16,
}

impl Order {
    /// Each group in an order of its own, which the seed decides.
    fn shuffle(self, rank: u32, call: u64, requests: &mut [u64]) {
        let random = Random::for_purpose(self.seed, &format!("requests of call {call} of task {rank}"));
        for group in requests.chunks_mut(usize::from(self.group.max(1))) {
            for last in (1..group.len()).rev() {
                group.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
    }
}

/// Writes a task's block, or reads it.
pub(super) async fn transfer(
    task: Task,
    (job, rank): (Arc<Job>, u32),
    phase: &'static str,
    order: Option<Order>,
) -> FsResult<()> {
    for (offset, bytes) in job.transfers(rank) {
        let mut requests: Vec<u64> = (offset..offset + bytes).step_by(REQUEST_BYTES as usize).collect();
        if let Some(order) = order {
            order.shuffle(rank, offset, &mut requests);
        }
        let request = |start: u64| {
            let bytes = REQUEST_BYTES.min(offset + bytes - start);
            let task = task.clone();
            let work: BoxFuture<'static, FsResult<()>> = match phase {
                "write" => Box::pin(write(task, start, bytes)),
                _ => Box::pin(async move { task.read(start, bytes).await }),
            };
            Some(work)
        };
        all(requests.into_iter().map(request).collect()).await?;
    }
    if phase == "write" { task.file_system.fsync(&task.file, false).await } else { Ok(()) }
}

pub(super) async fn write(task: Task, offset: u64, bytes: u64) -> FsResult<()> {
    let data = zeros(bytes as usize);
    let written = task.file_system.write(&task.file, offset, data, WriteOptions::default()).await?;
    if written as u64 == bytes { Ok(()) } else { Err(FsError::NoSpace) }
}

/// Begins all work in order; done when all of it is, or one has failed.
pub(super) async fn all(mut work: Vec<Option<BoxFuture<'static, FsResult<()>>>>) -> FsResult<()> {
    poll_fn(|context| {
        let mut is_done = true;
        for slot in &mut work {
            let Some(one) = slot else { continue };
            match one.as_mut().poll(context) {
                Poll::Ready(Ok(())) => *slot = None,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_out_of_order_stay_in_their_group() {
        let mut requests: Vec<u64> = (0..10).collect();
        Order { seed: 1, group: 4 }.shuffle(3, 0, &mut requests);
        assert_ne!(requests, (0..10).collect::<Vec<u64>>());
        for (number, group) in requests.chunks(4).enumerate() {
            assert!(group.iter().all(|request| *request / 4 == number as u64), "{requests:?}");
        }
        requests.sort_unstable();
        assert_eq!(requests, (0..10).collect::<Vec<u64>>(), "none is lost");
    }

    #[test]
    fn a_cell_runs_with_its_setting_and_repeats() {
        let study = e2::sweep(crate::study::Scale { bytes: 1024, ..crate::study::Scale::FULL });
        let job = study.jobs.iter().find(|job| job.name == "1x1 k1 s4 c4").unwrap();
        let job = Job { task_bytes: 64 << 20, transfer_bytes: 32 << 20, ..job.clone() };
        let testbed = Testbed::e2(Some(crate::model::costs::APART), 0);
        let outcomes = run(&job, testbed, 1).unwrap();
        assert_eq!(run(&job, testbed, 1).unwrap(), outcomes);
        // One OST writes 8 x 100 MB/s.
        let rate = outcomes[0].rate();
        assert!((400.0..780.0).contains(&rate), "{rate} MiB/s");
        let few = run(&job, testbed.without_write_caches(), 1).unwrap();
        assert!(few[0].rate() < rate, "{few:?} {outcomes:?}");
        let other = Job { name: "9x9 k1 s4 c4".to_owned(), ..job };
        assert!(run(&other, testbed, 1).is_err());
    }
}
