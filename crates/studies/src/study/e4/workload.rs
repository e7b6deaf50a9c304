//! Files on a target: written at once, read, deleted; and what that takes on the modelled array.

use std::ops::Range;

use blocks::{Allocator, Request};
use types::{InodeNumber, ObjectId, SplitMix64};

use super::{
    readers::seconds_of_reading,
    run::{LENGTH_BITS, Run},
};
use crate::model::rotating::{Access, Array, ArrayModel, Pipeline};

/// Blocks of a write: 1 MiB.
pub(super) const WRITE_BLOCKS: u64 = 256;
/// Files of a best-case measurement, each of one task.
pub const MEASURED_FILES: u32 = 4;
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
        self.allocator.set_pointer(group, 0);
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
        let (start, end, mut places) = (file.blocks, file.blocks + blocks, Vec::new());
        while file.blocks < end {
            let request = Request {
                object: file.object,
                write_start: start,
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
    let walks: Vec<[&[Run]; 1]> = files.iter().map(|file| [file.runs.as_slice()]).collect();
    let read = mib / seconds_of_reading(walks.iter().map(<[_; 1]>::as_slice), model, 1, seed);
    for file in files {
        target.delete(file)?;
    }
    Ok(Measured { write, read, runs_per_gib: runs as f64 / (mib / 1024.0) })
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
    fn files_are_written_in_whole_calls() {
        let files = target(4).write(3, 10_000, 7, |_| {}).unwrap();
        for file in &files {
            let blocks: u64 = file.runs.iter().map(|run| run.range().end - run.range().start).sum();
            assert_eq!((file.blocks, blocks), (10_240, 10_240));
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
