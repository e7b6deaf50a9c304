//! `stria bench objects`: both kinds of object stores compared with the local file system, without
//! clients, network or metadata: what an OST does with its disk.
//!
//! In each round every store is made anew and does the same work: workers write an object each in
//! requests of 1 MiB and read it again, overwrite records of 4 KiB at random (also past the page
//! cache, and some with an fsync each), make and remove small objects. Whatever a phase changed is
//! durable at its end, which is part of its time; meanwhile each store commits every second, the
//! local file system by syncfs(2).
//!
//! Beside each rate stands the write amplification: bytes that the disks wrote for each byte of
//! data, together with what a store put off and does after the phase (such as moving inline data).
//! The processor time includes that too. It is that of this process: the kernel's own threads, as
//! those that write back pages, do not count.
//!
//! Downside: the write amplification of a disk that others use at the same time is too large, and a
//! store that commits by syncfs(2) waits for what they wrote. A disk of its own is needed, or a
//! loop device with a file system.

mod file_system;
pub mod store;

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use clap::{Args, builder::RangedU64ValueParser};
use host::progress;
use node::storage::Storage;
use parking_lot::{Condvar, Mutex};

use self::{
    file_system::{FileSystem, FileSystemKind},
    store::{LocalFiles, Store, StoreKind, Target, WriteMode},
};
use super::{
    caches::{CacheKind, drop_caches},
    disk::Disks,
    fdatasync::fdatasync_rate,
    leftovers::Place,
    measurement::{Measurement, OBJECTS_LARGE as LARGE},
    random::shuffled,
    results::Results,
    workers::{self, own_cpu},
};

/// Benchmarks in results, beside that of large transfers: records at random, small objects.
const RANDOM: &str = "objects-4k";
const SMALL: &str = "objects-small";

const TRANSFER_BYTES: usize = 1 << 20;
const RECORD_BYTES: usize = 4096;
/// Numbers of the small objects of a worker begin at a multiple of this.
const NUMBERS_PER_WORKER: u64 = 1 << 32;
/// A file in place of a device has this much space beside that for all data twice.
const SPARE_BYTES: u64 = 256 << 20;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct ObjectsArgs {
    /// Stores to compare, separated by commas; local is the baseline
    #[arg(long, value_delimiter = ',', default_values = ["local", "directory", "blocks"])]
    stores: Vec<StoreKind>,
    /// Numbers of workers, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8], value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024))]
    workers: Vec<usize>,
    /// MiB that all workers together write, and read again
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Records of 4 KiB that all workers together overwrite at random
    #[arg(long, default_value_t = 8192, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    records: u64,
    /// Records of 4 KiB that all workers together overwrite with an fsync each
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    synced: u64,
    /// Small objects, of 4 KiB, that all workers together make and remove
    #[arg(long, default_value_t = 4000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    objects: u64,
    /// Repetitions, interleaved between stores; the table shows medians
    #[arg(long, default_value_t = 3, value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    repeat: usize,
    /// Directory on the disk to be measured: for files, and for the tables of targets [default: the
    /// temporary directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Block device for the objects of the store `blocks`, and for ext4 and xfs, one after the
    /// other. All that it holds is lost [default: files in the directory]
    #[arg(long, value_name = "DEV")]
    device: Option<PathBuf>,
    /// With --device: use it even if it seems to hold data, which are lost
    #[arg(long, requires = "device")]
    force: bool,
    /// After each phase, show what a target has written since it was made, by cause: its parameter
    /// write_stats
    #[arg(long)]
    causes: bool,
    /// Write every measurement to this file as a JSON line
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// History file to which the medians are appended, see `stria bench compare` [default:
    /// stria/bench.jsonl in $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Runs `stria bench objects`.
pub fn run(arguments: ObjectsArgs) -> anyhow::Result<()> {
    ensure!(
        arguments.device.is_none() || arguments.force || !arguments.stores.iter().any(|kind| kind.is_made()),
        "ext4 and xfs overwrite whatever the device holds: give --force if nothing on it is needed"
    );
    let place = Place::new("stria-bench-", arguments.dir.as_deref())?;
    let (mut results, mut force) = (Results::new(arguments.json.as_deref())?, arguments.force);
    for workers in &arguments.workers {
        for round in 1..=arguments.repeat {
            for kind in &arguments.stores {
                let name = kind.name();
                progress::show(format_args!("{name} x{workers}, round {round} of {}", arguments.repeat));
                let directory = place.path().join(name);
                let measured = measure(&arguments, *kind, (&directory, force), *workers);
                let measured = measured.with_context(|| format!("on {name}"))?;
                std::fs::remove_dir_all(&directory)
                    .with_context(|| format!("cannot remove {}", directory.display()))?;
                // From then on the device holds what was measured.
                force |= *kind == StoreKind::Blocks;
                results.record(measured)?;
            }
        }
    }
    progress::done();
    results.finish(arguments.history, |_| None);
    Ok(())
}

/// Makes a store in a directory, and measures it.
fn measure(
    arguments: &ObjectsArgs,
    kind: StoreKind,
    (directory, force): (&Path, bool),
    workers: usize,
) -> anyhow::Result<Vec<Measurement>> {
    let parent = directory.parent().context("the directory has a parent")?;
    let fdatasync_per_second = fdatasync_rate(parent)?;
    let device = arguments.device.as_deref().filter(|_| kind == StoreKind::Blocks || kind.is_made());
    let disks = Disks::of(&[Some(parent), device].into_iter().flatten().collect::<Vec<_>>())?;
    let space = 2 * ((arguments.mib << 20) + arguments.objects * RECORD_BYTES as u64) + SPARE_BYTES;
    let file_system = |kind: FileSystemKind| {
        std::fs::create_dir(directory)?;
        let root = directory.join("root");
        std::fs::create_dir(&root)?;
        let made = match device {
            Some(device) => FileSystem::on_device(kind, device, &root),
            None => FileSystem::on_file(kind, (&directory.join("image"), space), &root),
        };
        Ok::<_, io::Error>(Box::new(LocalFiles::on(made?)))
    };
    let store: Box<dyn Store> = match (kind, device) {
        (StoreKind::Local, _) => Box::new(LocalFiles::new(directory.to_owned())?),
        (StoreKind::Ext4, _) => file_system(FileSystemKind::Ext4)?,
        (StoreKind::Xfs, _) => file_system(FileSystemKind::Xfs)?,
        (StoreKind::Directory, _) => Box::new(Target::start(directory, &Storage::HostFiles)?),
        (StoreKind::Blocks, Some(device)) => {
            let path = std::path::absolute(device)?;
            Box::new(Target::start(directory, &Storage::Device { path, force })?)
        }
        (StoreKind::Blocks, None) => Box::new(Target::start(directory, &Storage::File(space))?),
    };
    let load = Load {
        workers,
        transfers: (arguments.mib << 20).div_ceil(TRANSFER_BYTES as u64 * workers as u64),
        records: arguments.records.div_ceil(workers as u64),
        synced: arguments.synced.div_ceil(workers as u64),
        objects: arguments.objects.div_ceil(workers as u64),
    };
    let shows_causes = arguments.causes;
    let run = Run { store: &*store, system: kind.name(), disks, load, fdatasync_per_second, shows_causes };
    Ok(run.all()?)
}

/// What is done: so much by each worker.
#[derive(Clone, Copy, Debug)]
struct Load {
    workers: usize,
    /// Of [`TRANSFER_BYTES`].
    transfers: u64,
    /// Of [`RECORD_BYTES`].
    records: u64,
    /// Of these, with an fsync each.
    synced: u64,
    objects: u64,
}

/// One store, while it is measured.
struct Run<'a> {
    store: &'a dyn Store,
    system: &'static str,
    disks: Disks,
    load: Load,
    fdatasync_per_second: f64,
    shows_causes: bool,
}

/// The object of a worker that is written in large transfers.
fn large(rank: usize) -> u64 {
    rank as u64 * NUMBERS_PER_WORKER
}

/// A small object of a worker.
fn small(rank: usize, number: u64) -> u64 {
    large(rank) + 1 + number
}

impl Run<'_> {
    fn all(&self) -> io::Result<Vec<Measurement>> {
        let Load { workers, transfers, records, synced, objects } = self.load;
        let (large_data, record) = (data(TRANSFER_BYTES), data(RECORD_BYTES));
        let transfer = |index: u64| index * TRANSFER_BYTES as u64;
        let total = |each: u64| each * workers as u64;
        let write = self.phase((LARGE, "write"), (total(transfers), TRANSFER_BYTES), |rank| {
            (0..transfers).try_for_each(|index| {
                self.store.write(rank, large(rank), transfer(index), &large_data, WriteMode::Buffered)
            })
        })?;
        drop_caches(CacheKind::Pages);
        let read = self.phase((LARGE, "read"), (total(transfers), TRANSFER_BYTES), |rank| {
            (0..transfers).try_for_each(|index| self.store.read(rank, large(rank), transfer(index), TRANSFER_BYTES))
        })?;
        let places = transfer(transfers) / RECORD_BYTES as u64;
        let at = |index| shuffled(index % places, places) * RECORD_BYTES as u64;
        let overwrite = |phase, records, mode| {
            self.phase((RANDOM, phase), (total(records), RECORD_BYTES), |rank| {
                (0..records).try_for_each(|index| self.store.write(rank, large(rank), at(index), &record, mode))
            })
        };
        let overwritten = [
            overwrite("overwrite", records, WriteMode::Buffered)?,
            overwrite("direct", records, WriteMode::Direct)?,
            overwrite("synced", synced, WriteMode::Synced)?,
        ];
        let create = self.phase((SMALL, "create"), (total(objects), RECORD_BYTES), |rank| {
            (0..objects)
                .try_for_each(|number| self.store.write(rank, small(rank, number), 0, &record, WriteMode::Buffered))
        })?;
        let remove = self.phase((SMALL, "remove"), (total(objects), 0), |rank| {
            (0..objects).try_for_each(|number| self.store.remove(rank, small(rank, number)))
        })?;
        Ok([write, read].into_iter().chain(overwritten).chain([create, remove]).collect())
    }

    /// Workers do `work`, while the store commits from time to time; at the end all is durable.
    fn phase(
        &self,
        (bench, phase): (&'static str, &'static str),
        (operations, bytes_each): (u64, usize),
        work: impl Fn(usize) -> io::Result<()> + Sync,
    ) -> io::Result<Measurement> {
        let (cpu, written) = (own_cpu(), self.disks.written());
        let wall = self.committing(|| {
            let worked = workers::run(self.load.workers, &work)?;
            let begun = Instant::now();
            self.store.commit()?;
            Ok(worked + begun.elapsed())
        })?;
        self.store.settle()?;
        if self.shows_causes
            && let Some(causes) = self.store.written_by_cause()?
        {
            println!("{} x{}, after {phase}:\n{causes}", self.system, self.load.workers);
        }
        let written_bytes = self.disks.written().zip(written).map(|(after, before)| after.saturating_sub(before));
        Ok(Measurement {
            bench,
            phase,
            system: self.system,
            workers: self.load.workers,
            operations,
            bytes: operations * bytes_each as u64,
            seconds: wall.as_secs_f64(),
            cpu_seconds: own_cpu().saturating_sub(cpu).as_secs_f64(),
            fdatasync_per_second: self.fdatasync_per_second,
            // Reads write nothing that would be worth telling.
            written_bytes: written_bytes.filter(|_| phase != "read"),
        })
    }

    /// Executes `work`; meanwhile a store that does not commit by itself is made to.
    fn committing(&self, work: impl FnOnce() -> io::Result<Duration>) -> io::Result<Duration> {
        let Some(interval) = self.store.commit_interval() else { return work() };
        let (ended, end) = (Mutex::new(false), Condvar::new());
        std::thread::scope(|scope| {
            let committer = scope.spawn(|| {
                let mut ended = ended.lock();
                while !*ended {
                    if end.wait_for(&mut ended, interval).timed_out() {
                        self.store.commit()?;
                    }
                }
                Ok::<(), io::Error>(())
            });
            let worked = work();
            *ended.lock() = true;
            end.notify_all();
            committer.join().map_err(|_| io::Error::other("a benchmark worker panicked"))??;
            worked
        })
    }
}

/// Bytes that no device can compress much, without zeros at their end, aligned for direct writes.
pub fn data(bytes: usize) -> Bytes {
    let mixed = |at: usize| ((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 | 1;
    let data: Bytes = (0..bytes + RECORD_BYTES).map(mixed).collect();
    let skipped = data.as_ptr().align_offset(RECORD_BYTES);
    data.slice(skipped..skipped + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { workers: 2, transfers: 3, records: 20, synced: 3, objects: 5 };

    /// All stores do all of the work, and what is measured of them is of the same amount.
    #[test]
    fn every_store_does_the_same_work() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let stores: [(&str, Box<dyn Store>); 3] = [
            ("local", Box::new(LocalFiles::new(path("local")).unwrap())),
            ("directory", Box::new(Target::start(&path("directory"), &Storage::HostFiles).unwrap())),
            ("blocks", Box::new(Target::start(&path("blocks"), &Storage::File(64 << 20)).unwrap())),
        ];
        for (system, store) in &stores {
            let disks = Disks::of(&[place.path()]).unwrap();
            let run = Run { store: &**store, system, disks, load: LOAD, fdatasync_per_second: 1.0, shows_causes: true };
            let amounts: Vec<_> =
                run.all().unwrap().into_iter().map(|one| (one.bench, one.phase, one.operations, one.bytes)).collect();
            let expected = [
                (LARGE, "write", 6, 6 << 20),
                (LARGE, "read", 6, 6 << 20),
                (RANDOM, "overwrite", 40, 40 << 12),
                (RANDOM, "direct", 40, 40 << 12),
                (RANDOM, "synced", 6, 6 << 12),
                (SMALL, "create", 10, 10 << 12),
                (SMALL, "remove", 10, 0),
            ];
            assert_eq!(amounts, expected, "{system}");
            for rank in 0..LOAD.workers {
                store.read(rank, large(rank), 2 << 20, TRANSFER_BYTES).unwrap();
                assert!(store.read(rank, large(rank), 3 << 20, 1).is_err(), "{system}: after the end");
                assert!(store.read(rank, small(rank, 0), 0, 1).is_err(), "{system}: removed");
            }
        }
    }
}
