//! Files on a target: written at once, read, deleted; and what that takes on the modelled array.

use std::ops::Range;

use blocks::{Allocator, Request};
use types::{InodeNumber, ObjectId, SplitMix64};

use super::run::{LENGTH_BITS, Run};
use crate::model::rotating::{Access, Array, ArrayModel, Pipeline};

/// Blocks of a write: 1 MiB.
pub(super) const WRITE_BLOCKS: u64 = 256;
/// Blocks of a read: 8 MiB.
pub(super) const READ_BLOCKS: u64 = 2048;
/// Files of a best-case measurement, each of one task.
pub(super) const MEASURED_FILES: u32 = 4;
/// Writes of each task that the drives get at a time: `max_rpcs_in_flight`.
pub(super) const CALLS_IN_FLIGHT: usize = 8;

/// Files of one locality, made one after the other: the store's rule.
const LOCALITY_INODES: u64 = 64;

/// A file and where it is.
pub(super) struct File {
    pub(super) object: ObjectId,
    pub(super) runs: Vec<Run>,
    pub(super) blocks: u64,
}

impl File {
    /// Adds its next blocks.
    fn push(&mut self, blocks: &Range<u64>) {
        self.blocks += blocks.end - blocks.start;
        if let Some(last) = self.runs.last_mut() {
            let joined = last.range().start..blocks.end;
            if last.range().end == blocks.start && joined.end - joined.start < 1 << LENGTH_BITS {
                *last = Run::new(&joined);
                return;
            }
        }
        self.runs.push(Run::new(blocks));
    }

    /// The block of the device after its last one.
    fn goal(&self) -> Option<u64> {
        self.runs.last().map(|run| run.range().end)
    }
}

/// How far a file was read.
struct Reader<'a> {
    file: &'a File,
    run: usize,
    /// Blocks of the run that were read.
    within: u64,
}

impl Reader<'_> {
    /// The places of its next call; none at the end.
    fn next(&mut self) -> Vec<Range<u64>> {
        let (mut places, mut wanted) = (Vec::new(), READ_BLOCKS);
        while wanted > 0
            && let Some(run) = self.file.runs.get(self.run)
        {
            let start = run.range().start + self.within;
            let end = run.range().end.min(start + wanted);
            places.push(start..end);
            wanted -= end - start;
            self.within += end - start;
            if end == run.range().end {
                (self.run, self.within) = (self.run + 1, 0);
            }
        }
        places
    }
}

/// The target: its allocator and the number of changes so far.
pub(super) struct Target {
    allocator: Allocator,
    changes: u64,
    objects: u64,
}

impl Target {
    /// A target without files.
    pub(super) fn new(allocator: Allocator) -> Self {
        Self { allocator, changes: 0, objects: 0 }
    }

    /// Its allocator.
    pub(super) fn allocator(&self) -> &Allocator {
        &self.allocator
    }

    /// Sets the allocation pointer to the start of a group.
    pub(super) fn reset_pointer(&mut self, group: u32) {
        self.allocator.set_mb_last_group(group);
    }

    /// It is this time, in any unit: gives back at most so many blocks of windows that were not
    /// used since another one.
    pub(super) fn give_up_idle(&mut self, now: u64, since: u64, blocks_max: u64) -> Result<(), String> {
        self.allocator.set_time(now);
        self.allocator.give_up_idle(since, blocks_max).map(drop).map_err(|error| error.to_string())
    }

    /// A new file without data.
    pub(super) fn create(&mut self) -> File {
        self.objects += 1;
        File { object: ObjectId::new(InodeNumber(self.objects), 0), runs: Vec::new(), blocks: 0 }
    }

    /// A new file whose number is none of those that exist, for an allocator that others have used.
    pub(super) fn create_anew(&mut self) -> File {
        let file = self.create();
        File { object: ObjectId { slot: 1, ..file.object }, ..file }
    }

    /// A file is complete: its windows are free.
    pub(super) fn complete(&mut self, file: &File) -> Result<(), String> {
        self.allocator.drop_windows(file.object).map_err(|error| error.to_string())
    }

    /// Writes `count` files of at least so many blocks at once, in calls of 1 MiB whose order is
    /// derived from the seed. `note` is told the places of each call.
    pub(super) fn write(
        &mut self,
        count: u32,
        blocks: u64,
        seed: u64,
        mut note: impl FnMut(Vec<Range<u64>>),
    ) -> Result<Vec<File>, String> {
        let mut order = SplitMix64(seed);
        let mut files = Vec::new();
        for _ in 0..count {
            files.push(self.create());
        }
        let mut growing: Vec<usize> = (0..files.len()).collect();
        while !growing.is_empty() {
            let number = (order.next_u64() % growing.len() as u64) as usize;
            let file = &mut files[growing[number]];
            note(self.call(file, WRITE_BLOCKS)?);
            if file.blocks >= blocks {
                self.complete(&files[growing.swap_remove(number)])?;
            }
        }
        Ok(files)
    }

    /// One call, which appends so many blocks; its places.
    pub(super) fn call(&mut self, file: &mut File, blocks: u64) -> Result<Vec<Range<u64>>, String> {
        let (end, mut places) = (file.blocks + blocks, Vec::new());
        while file.blocks < end {
            let request = Request {
                object: file.object,
                logical: file.blocks,
                blocks: (end - file.blocks) as u32,
                size: file.blocks,
                goal: file.goal(),
                locality: file.object.inode.0 / LOCALITY_INODES,
                may_use_reserve: false,
            };
            let device = self.allocator.allocate(&request).map_err(|error| error.to_string())?.device;
            self.allocator.record(&device).map_err(|error| error.to_string())?;
            file.push(&device);
            places.push(device);
        }
        Ok(places)
    }

    /// Deletes a file; its blocks are free afterwards.
    pub(super) fn delete(&mut self, file: File) -> Result<(), String> {
        self.free(&file.runs)
    }

    /// Removes the file with this number, which had these runs.
    pub(super) fn remove(&mut self, number: u64, runs: &[Run]) -> Result<(), String> {
        let object = ObjectId::new(InodeNumber(number), 0);
        self.allocator.drop_windows(object).map_err(|error| error.to_string())?;
        self.free(runs)
    }

    /// Frees what a file had, whose windows are gone.
    fn free(&mut self, runs: &[Run]) -> Result<(), String> {
        self.changes += 1;
        for run in runs {
            self.allocator.free(&run.range(), self.changes).map_err(|error| error.to_string())?;
        }
        self.allocator.durable(self.changes, usize::MAX).map(drop).map_err(|error| error.to_string())
    }
}

/// Rates in MiB/s.
pub(super) struct Measured {
    pub(super) write: f64,
    pub(super) read: f64,
    pub(super) runs_per_gib: f64,
}

/// Best case: so many tasks write a file each, and read it in calls of 8 MiB. The files are deleted
/// again.
pub(super) fn measure(
    target: &mut Target,
    model: ArrayModel,
    (tasks, blocks): (u32, u64),
    seed: u64,
) -> Result<Measured, String> {
    let mut array = Array::new(model);
    let (mut pipeline, mut batch, mut calls) = (Pipeline::default(), Vec::new(), 0);
    let mut pass = |batch: &mut Vec<Range<u64>>| {
        let places = std::mem::take(batch);
        let travel = array.travel(places.iter().map(|place| place.end - place.start).sum());
        pipeline.pass(travel, array.serve(Access::Write, places));
    };
    let files = target.write(tasks, blocks / u64::from(tasks), seed, |places| {
        batch.extend(places);
        calls += 1;
        if calls % (CALLS_IN_FLIGHT * tasks as usize) == 0 {
            pass(&mut batch);
        }
    })?;
    pass(&mut batch);
    let written: u64 = files.iter().map(|file| file.blocks).sum();
    let runs: usize = files.iter().map(|file| file.runs.len()).sum();
    let mib = written as f64 / 256.0;
    let write = mib / pipeline.seconds();
    let read = mib / read(&mut Array::new(model), &files, seed);
    for file in files {
        target.delete(file)?;
    }
    Ok(Measured { write, read, runs_per_gib: runs as f64 / (mib / 1024.0) })
}

/// Seconds of reading all files at once. Tasks do not keep step: the next call is a random one's.
fn read(array: &mut Array, files: &[File], seed: u64) -> f64 {
    let mut order = SplitMix64(!seed);
    let mut readers: Vec<Reader<'_>> = files.iter().map(|file| Reader { file, run: 0, within: 0 }).collect();
    let mut pipeline = Pipeline::default();
    while !readers.is_empty() {
        let mut batch = Vec::new();
        for _ in 0..files.len() {
            if readers.is_empty() {
                break;
            }
            let number = (order.next_u64() % readers.len() as u64) as usize;
            let places = readers[number].next();
            if places.is_empty() {
                readers.swap_remove(number);
            }
            batch.extend(places);
        }
        let travel = array.travel(batch.iter().map(|place| place.end - place.start).sum());
        pipeline.pass(array.serve(Access::Read, batch), travel);
    }
    pipeline.seconds()
}

#[cfg(test)]
mod tests {
    use blocks::{Geometry, Policy};

    use super::*;

    fn target(groups: u64) -> Target {
        let geometry = Geometry::new(groups * 32_768).expect("a small device");
        Target::new(Allocator::new(geometry, Policy::with_table("32 64 128".parse().expect("a table"))))
    }

    #[test]
    fn a_reader_reads_every_block_once_in_order() {
        let mut target = target(4);
        let files = target.write(3, 10_000, 7, |_| {}).unwrap();
        for file in &files {
            assert_eq!(file.blocks, 10_240, "whole calls");
            let mut reader = Reader { file, run: 0, within: 0 };
            let calls: Vec<_> =
                std::iter::from_fn(|| Some(reader.next()).filter(|places| !places.is_empty())).collect();
            assert_eq!(calls.len(), 5);
            let read: Vec<u64> = calls.into_iter().flatten().flatten().collect();
            let wanted: Vec<u64> = file.runs.iter().flat_map(|run| run.range()).collect();
            assert_eq!(read, wanted);
        }
    }

    #[test]
    fn deleted_files_leave_everything_free() {
        let mut target = target(4);
        for seed in 0..3 {
            let files = target.write(5, 20_000, seed, |_| {}).unwrap();
            files.into_iter().for_each(|file| target.delete(file).unwrap());
            assert_eq!((target.allocator.free_blocks(), target.allocator.window_blocks()), (4 * 32_768, 0));
        }
        assert!(target.write(5, 30_000, 1, |_| {}).is_err(), "more than the device has");
    }
}
