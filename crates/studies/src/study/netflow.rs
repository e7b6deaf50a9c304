//! E1's netflow workload in virtual time: where and how much both phases read, for both schedules.
//!
//! Modelled disks store no records, so the generator, not the data read, determines which record
//! belongs to which host. The order is that of the live workload: hosts by number, their records by
//! offset.
//!
//! Downside: neither indexing nor modelling costs processor time; what remains is the time of the
//! reads.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use types::FsResult;

use super::{
    Job, Outcome,
    e1::scheduled,
    flow::{CALL_BYTES, Generator, RECORD_BYTES, whole_records},
    run::{Task, Testbed, World, in_world},
};

/// Reads that belong together: one call of the first phase, or all records of one host.
type Item = Vec<(u64, u64)>;

/// Runs one job of table 4 under both schedules, each in a world of its own: what a server has in
/// its memory from one must not help the other.
pub fn run(job: &Job, testbed: Testbed, seed: u64) -> Result<Vec<Outcome>, String> {
    let mut outcomes = run_scheduled(job, testbed, seed, true)?;
    outcomes.extend(run_scheduled(job, testbed, seed, false)?);
    Ok(outcomes)
}

/// Under one schedule; the file is written before, unmeasured.
fn run_scheduled(job: &Job, testbed: Testbed, seed: u64, synchronous: bool) -> Result<Vec<Outcome>, String> {
    in_world(job, testbed, seed, move |world| async move {
        let writing = world.job.clone();
        world.all("write", move |task, rank| task.transfer(writing.clone(), rank, "write")).await?;
        let bytes = whole_records(world.job.bytes());
        let (parts, hosts) = (Arc::new(parts(bytes)), Arc::new(hosts(bytes)));
        let indexed = each(&world, "index", &parts, synchronous).await?;
        let modelled = each(&world, "model", &hosts, synchronous).await?;
        let reads: u64 = hosts.iter().map(|records| records.len() as u64).sum();
        let calls = parts.len() as u64;
        let outcome = |phase, operations, bytes, seconds| Outcome {
            job: scheduled(&world.job.name, synchronous),
            phase,
            bytes,
            operations,
            seconds,
        };
        Ok(vec![
            outcome("index", calls, bytes, indexed),
            outcome("model", reads, reads * RECORD_BYTES as u64, modelled),
            outcome("total", calls + reads, bytes, indexed + modelled),
        ])
    })
}

/// Calls of the first phase.
fn parts(bytes: u64) -> Vec<Item> {
    let calls = 0..bytes.div_ceil(CALL_BYTES);
    calls.map(|call| vec![(call * CALL_BYTES, CALL_BYTES.min(bytes - call * CALL_BYTES))]).collect()
}

/// Records of each modelled host.
fn hosts(bytes: u64) -> Vec<Item> {
    let generator = Generator::for_bytes(bytes);
    let mut hosts: BTreeMap<u32, Item> = BTreeMap::new();
    for number in 0..bytes / RECORD_BYTES as u64 {
        if let Some(host) = generator.flow(number).modelled() {
            hosts.entry(host).or_default().push((number * RECORD_BYTES as u64, RECORD_BYTES as u64));
        }
    }
    hosts.into_values().collect()
}

/// Reads all items: in equal shares, or every task takes the next one when it is ready.
async fn each(world: &World, phase: &str, items: &Arc<Vec<Item>>, synchronous: bool) -> Result<f64, String> {
    let next = Arc::new(AtomicUsize::new(0));
    let tasks = world.job.tasks as usize;
    let share = |rank: usize| items.len() * rank / tasks..items.len() * (rank + 1) / tasks;
    world
        .all(phase, |task, rank| {
            let (items, next, share) = (items.clone(), next.clone(), share(rank as usize));
            async move {
                if synchronous {
                    return read_all(&task, items[share].iter().flatten()).await;
                }
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    read_all(&task, item.iter()).await?;
                }
                Ok(())
            }
        })
        .await
}

async fn read_all(task: &Task, reads: impl Iterator<Item = &(u64, u64)>) -> FsResult<()> {
    for (offset, bytes) in reads {
        task.read(*offset, *bytes).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{Scale, e1};

    #[test]
    fn every_record_of_a_modelled_host_is_read_once_and_every_byte_indexed() {
        let bytes = whole_records(3 << 20);
        assert_eq!(parts(bytes).iter().flatten().map(|(_, bytes)| bytes).sum::<u64>(), bytes);
        let mut offsets: Vec<u64> = hosts(bytes).into_iter().flatten().map(|(offset, _)| offset).collect();
        let reads = offsets.len() as u64;
        // One host in sixteen; of so few hosts some have many records.
        let records = bytes / RECORD_BYTES as u64;
        assert!((records / 50..records / 5).contains(&reads), "{reads} of {records}");
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len() as u64, reads);
    }

    #[test]
    fn what_the_servers_hold_in_memory_is_modelled_in_no_time() {
        let study = e1::netflow(Scale { bytes: 50_000, osts: 1, tasks: 16 });
        let seconds = |testbed: Testbed| {
            // Its layout needs no more OSTs.
            let outcomes = run(&study.jobs[0], Testbed { osts: 4, ..testbed }, 1).unwrap();
            assert_eq!(outcomes.len(), 6);
            outcomes.iter().find(|outcome| outcome.phase == "model").unwrap().seconds
        };
        let (held, disks) = (seconds(Testbed::e1_with_memory(1 << 30)), seconds(Testbed::e1(false)));
        assert!(held * 10.0 < disks, "{held} s, {disks} s");
    }
}
