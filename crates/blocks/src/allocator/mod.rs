//! Carries out what [`plan`] decides, and keeps the books: which blocks are free, held or used.
//!
//! ```text
//!              allocate                  record
//!        free ----------> in progress ----------> used
//!        ^  ^  \              | abandon            |
//!        |  |   window <------+--> free            | free
//!        |  +---- (shrunk, dropped)                v
//!        +-------- durable, unread ------------- retired
//! ```
//!
//! *Held* blocks (in a window, in progress, retired) are not free for others, and no record names
//! them once the last change is durable. A device's records show them as free
//! ([`Allocator::recorded`]), so a restart finds them free.
//!
//! Life cycle: [`Allocator::new`], or [`Allocator::open`] with summaries of all groups; groups are
//! loaded when they are needed ([`Refusal::Load`]) and dropped by [`Allocator::unload`].
//!
//! Downside: one mutex of the caller protects all of it; a decision takes microseconds.

mod audit;
mod records;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use types::ObjectId;

use crate::{
    Allocation, FreeIndex, FreeRuns, GROUP_BLOCKS, Geometry, Histogram, Inconsistent, Policy, ReadTicket, Refusal,
    Request, Summary, Window, Windows,
    free_runs::BITMAP_BYTES,
    free_space::{FreeSpace, Loaded},
    plan::{Plan, Space, find_run, plan},
    range_set::RangeSet,
    recorded::{Naming, RecordedRuns},
    retired::Retired,
};

/// Gives out the blocks of a device.
#[derive(Clone, Debug)]
pub struct Allocator {
    space: FreeSpace,
    windows: Windows,
    /// Given out, and not recorded yet.
    in_progress: RangeSet,
    retired: Retired,
    /// In windows, in progress or retired.
    held: RangeSet,
    /// The groups that records change, as these show them.
    recorded: RecordedRuns,
    policy: Policy,
}

impl Allocator {
    /// A device without used blocks.
    pub fn new(geometry: Geometry, policy: Policy) -> Self {
        let summary_of = |group| {
            let blocks = geometry.blocks_of(group);
            Summary { free: blocks, longest: blocks, runs: 1 }
        };
        Self::with_summaries(geometry, policy, (0..geometry.groups()).map(summary_of).collect())
    }

    /// A device whose groups have these summaries. None is loaded.
    pub fn open(geometry: Geometry, policy: Policy, summaries: Vec<Summary>) -> Result<Self, Inconsistent> {
        if summaries.len() != geometry.groups() as usize {
            return Err(Inconsistent::new(&(0..geometry.blocks()), "not described by as many groups"));
        }
        for (group, summary) in (0..).zip(&summaries) {
            let blocks = geometry.blocks_of(group);
            if !summary.is_possible(blocks) {
                let start = geometry.start_of(group);
                return Err(Inconsistent::new(&(start..start + u64::from(blocks)), "described impossibly"));
            }
        }
        Ok(Self::with_summaries(geometry, policy, summaries))
    }

    fn with_summaries(geometry: Geometry, policy: Policy, summaries: Vec<Summary>) -> Self {
        let longest: Vec<u32> = summaries.iter().map(|summary| summary.longest).collect();
        let space = FreeSpace {
            geometry,
            index: FreeIndex::new(&longest),
            free: summaries.iter().map(|summary| u64::from(summary.free)).sum(),
            summaries,
            loaded: BTreeMap::new(),
            pointer: 0,
            shared_pointer: 0,
            changes: 0,
            out_of_use: BTreeSet::new(),
        };
        Self {
            space,
            windows: Windows::default(),
            in_progress: RangeSet::default(),
            retired: Retired::default(),
            held: RangeSet::default(),
            recorded: RecordedRuns::default(),
            policy,
        }
    }

    /// The groups.
    pub fn geometry(&self) -> Geometry {
        self.space.geometry
    }

    /// Free blocks, without those in windows.
    pub fn free_blocks(&self) -> u64 {
        self.space.free
    }

    /// Blocks in windows: they become free when they are needed.
    pub fn window_blocks(&self) -> u64 {
        self.windows.blocks()
    }

    /// Blocks that no record names: free ones, and all that are held.
    pub fn unrecorded_blocks(&self) -> u64 {
        self.space.free + self.held.blocks()
    }

    /// Freed blocks that may not be used again yet.
    pub fn retired_blocks(&self) -> u64 {
        self.held.blocks() - self.windows.blocks() - self.in_progress.blocks()
    }

    /// What is known of a group: ldiskfs's `mb_groups`.
    pub fn summary(&self, group: u32) -> Summary {
        self.space.summaries[group as usize]
    }

    /// The group in which the next new window is looked for first: ldiskfs's `mb_last_group`.
    pub fn mb_last_group(&self) -> u32 {
        (self.space.pointer / u64::from(GROUP_BLOCKS)) as u32
    }

    /// The block of this group from which on it is looked for: ldiskfs's `mb_last_start`.
    pub fn mb_last_start(&self) -> u32 {
        (self.space.pointer % u64::from(GROUP_BLOCKS)) as u32
    }

    /// Sets the allocation pointer to a block of a group: to the first one if it has no such, or if
    /// there is no such group to the first of all.
    pub fn set_pointer(&mut self, group: u32, start: u32) {
        let geometry = self.space.geometry;
        self.space.pointer = match group < geometry.groups() {
            true => geometry.start_of(group) + u64::from(if start < geometry.blocks_of(group) { start } else { 0 }),
            false => 0,
        };
        self.space.shared_pointer = self.space.pointer;
    }

    /// The tunables.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Changes the tunables. Windows remain.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Groups that are loaded.
    pub fn loaded_groups(&self) -> usize {
        self.space.loaded.len()
    }

    /// Bytes of memory, about.
    pub fn memory_bytes(&self) -> usize {
        // A node of a B-tree has room for twice its entries in the worst case.
        let entry = 2 * (size_of::<u32>() + size_of::<Loaded>());
        let loaded = self.space.loaded.values().map(|loaded| entry + loaded.runs.heap_bytes());
        let summaries = self.space.summaries.len() * size_of::<Summary>();
        loaded.sum::<usize>() + self.recorded.heap_bytes() + summaries + self.space.index.heap_bytes()
    }

    /// Loads a group's bitmap, which the device has recorded.
    pub fn load(&mut self, group: u32, bitmap: &[u8; BITMAP_BYTES]) -> Result<(), Inconsistent> {
        if self.space.loaded.contains_key(&group) {
            return Ok(());
        }
        let blocks = self.space.geometry.blocks_of(group);
        let runs = FreeRuns::from_bitmap(bitmap, blocks);
        if runs.summary() != self.space.summaries[group as usize] {
            let start = self.space.geometry.start_of(group);
            return Err(Inconsistent::new(&(start..start + u64::from(blocks)), "not as their group is described"));
        }
        self.space.loaded.insert(group, Loaded { runs, used_at: self.space.changes });
        Ok(())
    }

    /// Whether a group is loaded, which one that its summary describes completely always is.
    pub fn is_loaded(&mut self, group: u32) -> bool {
        self.space.load_trivial(group)
    }

    /// The records of a group, which is not loaded, are damaged: nothing is given out of it any
    /// more, and what is freed there is not counted.
    pub fn put_out_of_use(&mut self, group: u32) {
        self.space.put_out_of_use(group);
    }

    /// Groups that are out of use.
    pub fn out_of_use(&self) -> &BTreeSet<u32> {
        &self.space.out_of_use
    }

    /// Drops the groups that were not used for longest, if more than `groups_max` are loaded: half
    /// of them, but none that has held blocks.
    pub fn unload(&mut self, groups_max: usize) {
        if self.space.loaded.len() <= groups_max {
            return;
        }
        let mut by_use: Vec<(u64, u32)> =
            self.space.loaded.iter().map(|(group, loaded)| (loaded.used_at, *group)).collect();
        by_use.sort_unstable();
        by_use.truncate(by_use.len() - groups_max / 2);
        for (_, group) in by_use {
            let start = self.space.geometry.start_of(group);
            if !self.held.overlaps(&(start..start + u64::from(GROUP_BLOCKS))) {
                self.space.loaded.remove(&group);
                self.recorded.forget(group);
            }
        }
    }

    /// Blocks for the beginning of a request, which are then in progress.
    pub fn allocate(&mut self, request: &Request) -> Result<Allocation, Refusal> {
        loop {
            match plan(&self.space, &self.windows, &self.policy, request) {
                Plan::FromWindow(part) => {
                    let logical = part.logical..part.logical + u64::from(part.blocks);
                    self.windows.take(request.object, &logical);
                    return Ok(self.give_out(part.device()));
                }
                Plan::FromShared(device) => {
                    self.windows.take_shared(request.locality, (device.end - device.start) as u32);
                    return Ok(self.give_out(device));
                }
                Plan::Run { run, blocks, is_shared, is_left_over } => {
                    return Ok(self.take_run(request, &run, blocks, (is_shared, is_left_over))?);
                }
                Plan::Load(group) if self.space.load_trivial(group) => {}
                Plan::Load(group) => return Err(Refusal::Load(group)),
                Plan::ShrinkWindows => {
                    // Until they are gone: a plan asks for it while there are some.
                    let given = self.windows.shrink(u64::from(request.blocks));
                    assert!(!given.is_empty(), "windows that have blocks can become smaller");
                    self.make_free(given)?;
                }
                Plan::NoSpace => return Err(Refusal::NoSpace),
            }
        }
    }

    /// So many blocks in one run, for data that are moved ([`find_run`]), which are then in
    /// progress; `None` if there is no such run. Windows and the allocation pointer stay.
    pub fn allocate_run(&mut self, blocks: u32, goal: Option<u64>) -> Result<Option<Allocation>, Refusal> {
        if u64::from(blocks) + self.policy.reserve_blocks > self.space.free {
            return Ok(None);
        }
        loop {
            match find_run(&self.space, blocks, goal) {
                Ok(None) => return Ok(None),
                Ok(Some(run)) => {
                    self.space.change(&run, FreeRuns::take)?;
                    self.held.insert(&run);
                    return Ok(Some(self.give_out(run)));
                }
                Err(group) if self.space.load_trivial(group) => {}
                Err(group) => return Err(Refusal::Load(group)),
            }
        }
    }

    /// The longest free run.
    pub fn longest_run(&self) -> u32 {
        self.space.index.longest()
    }

    fn give_out(&mut self, device: Range<u64>) -> Allocation {
        self.in_progress.insert(&device);
        Allocation { device }
    }

    fn take_run(
        &mut self,
        request: &Request,
        run: &Range<u64>,
        blocks: u32,
        (is_shared, is_left_over): (bool, bool),
    ) -> Result<Allocation, Inconsistent> {
        assert!(blocks > 0 && blocks <= request.blocks, "a plan is for some blocks of the request");
        self.space.change(run, FreeRuns::take)?;
        self.held.insert(run);
        let after = if run.end < self.space.geometry.blocks() { run.end } else { 0 };
        *(if is_left_over { &mut self.space.shared_pointer } else { &mut self.space.pointer }) = after;
        let device = run.start..run.start + u64::from(blocks);
        let rest = device.end..run.end;
        let given_up = if is_shared {
            self.windows.add_shared(request.locality, rest)
        } else {
            let logical = request.logical + u64::from(blocks);
            let window = Window { logical, start: rest.start, blocks: (rest.end - rest.start) as u32 };
            self.windows.add(request.object, window)
        };
        self.make_free(given_up)?;
        Ok(self.give_out(device))
    }

    /// Held blocks become free.
    fn make_free(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<(), Inconsistent> {
        for blocks in ranges {
            self.held.remove(&blocks);
            self.space.change(&blocks, FreeRuns::give)?;
        }
        Ok(())
    }

    /// A record names these blocks, which were in progress: they are used.
    pub fn record(&mut self, device: &Range<u64>) -> Result<(), Inconsistent> {
        if !self.in_progress.contains(device) {
            return Err(Inconsistent::new(device, "not in progress"));
        }
        self.in_progress.remove(device);
        self.held.remove(device);
        self.happened(device, Naming::Begins)
    }

    /// A record names these free blocks, without a request for them: one that a power loss brought
    /// back. Their groups have to be loaded.
    pub fn claim(&mut self, device: &Range<u64>) -> Result<(), Refusal> {
        if device.start >= device.end || device.end > self.space.geometry.blocks() {
            return Err(Inconsistent::new(device, "not on the device").into());
        }
        let parts = self.space.in_use(device);
        let pieces = self.loaded_pieces(&parts)?;
        let is_free = |(group, piece): &(u32, Range<u32>)| {
            let free: u32 = self.space.loaded[group].runs.within(piece).map(|run| run.end - run.start).sum();
            free == piece.end - piece.start
        };
        if !pieces.iter().all(is_free) {
            return Err(Inconsistent::new(device, "not free").into());
        }
        for part in parts {
            self.space.change(&part, FreeRuns::take)?;
            self.happened(&part, Naming::Begins)?;
        }
        Ok(())
    }

    /// The pieces of blocks in groups that are loaded, or the group that is not.
    fn loaded_pieces(&mut self, parts: &[Range<u64>]) -> Result<Vec<(u32, Range<u32>)>, Refusal> {
        let geometry = self.space.geometry;
        let pieces: Vec<_> = parts.iter().flat_map(|part| geometry.pieces(part.clone())).collect();
        match pieces.iter().find(|(group, _)| !self.space.load_trivial(*group)) {
            Some((group, _)) => Err(Refusal::Load(*group)),
            None => Ok(pieces),
        }
    }

    /// No record will name these blocks, which were in progress, and nothing is written to them any
    /// more: they are free.
    pub fn abandon(&mut self, device: &Range<u64>) -> Result<(), Inconsistent> {
        if !self.in_progress.contains(device) {
            return Err(Inconsistent::new(device, "not in progress"));
        }
        self.in_progress.remove(device);
        self.make_free([device.clone()])
    }

    /// The change with this number names these used blocks no more. They become free when it is
    /// durable and all reads that have begun are ended.
    pub fn free(&mut self, device: &Range<u64>, change: u64) -> Result<(), Refusal> {
        if device.start >= device.end || device.end > self.space.geometry.blocks() {
            return Err(Inconsistent::new(device, "not on the device").into());
        }
        let parts = self.space.in_use(device);
        let pieces = self.loaded_pieces(&parts)?;
        if self.held.overlaps(device) {
            return Err(Inconsistent::new(device, "held, and not used").into());
        }
        let is_free = |(group, piece): &(u32, Range<u32>)| self.space.loaded[group].runs.within(piece).next().is_some();
        if pieces.iter().any(is_free) {
            return Err(Inconsistent::new(device, "free already").into());
        }
        for part in parts {
            self.held.insert(&part);
            self.retired.add(part.clone(), change);
            self.happened(&part, Naming::Ceases)?;
        }
        Ok(())
    }

    /// The time from now on, in any unit. Windows remember when they were used last.
    pub fn set_time(&mut self, now: u64) {
        self.windows.set_time(now);
    }

    /// Gives up windows that were not used since this time, until they had so many blocks or are a
    /// thousand: what is written no more needs none. How many blocks became free.
    pub fn give_up_idle(&mut self, since: u64, blocks_max: u64) -> Result<u64, Inconsistent> {
        let given = self.windows.give_up_idle(since, blocks_max);
        let blocks = given.iter().map(|blocks| blocks.end - blocks.start).sum();
        self.make_free(given)?;
        Ok(blocks)
    }

    /// Gives up the windows of an object, as when nothing writes to it any more: a thousand at
    /// once, and the rest before those of others.
    pub fn drop_windows(&mut self, object: ObjectId) -> Result<(), Inconsistent> {
        let dropped = self.windows.drop_object(object);
        self.make_free(dropped)
    }

    /// A read begins: blocks that it may find are not used again before it ends.
    pub fn begin_read(&mut self) -> ReadTicket {
        self.retired.begin_read()
    }

    /// A read ended; returns blocks that became free, for the device to discard.
    pub fn end_read(&mut self, ticket: ReadTicket) -> Result<Vec<Range<u64>>, Inconsistent> {
        self.retired.end_read(ticket);
        self.release(usize::MAX)
    }

    /// All changes up to this one are durable; returns blocks that became free, in at most so many
    /// ranges: if there are as many, more may wait for the next call.
    pub fn durable(&mut self, change: u64, ranges_max: usize) -> Result<Vec<Range<u64>>, Inconsistent> {
        self.retired.durable(change);
        self.release(ranges_max)
    }

    /// As [`Allocator::durable`], but the blocks are in progress afterwards: the caller discards
    /// them, and then abandons them.
    pub fn durable_in_progress(&mut self, change: u64, ranges_max: usize) -> Vec<Range<u64>> {
        self.retired.durable(change);
        let taken: Vec<Range<u64>> = std::iter::from_fn(|| self.retired.pop()).take(ranges_max).collect();
        taken.iter().for_each(|blocks| self.in_progress.insert(blocks));
        taken
    }

    fn release(&mut self, ranges_max: usize) -> Result<Vec<Range<u64>>, Inconsistent> {
        let mut released = Vec::new();
        while released.len() < ranges_max
            && let Some(blocks) = self.retired.pop()
        {
            self.make_free([blocks.clone()])?;
            released.push(blocks);
        }
        Ok(released)
    }

    /// Free blocks by the length of their runs, of loaded groups and of those that the summary
    /// describes completely; and how many groups are left out.
    pub fn histogram(&self) -> (Histogram, u32) {
        let mut histogram = Histogram::default();
        let mut left_out = 0;
        let geometry = self.space.geometry;
        for group in 0..geometry.groups() {
            let start = geometry.start_of(group);
            let summary = self.space.summaries[group as usize];
            match self.space.runs(group) {
                Some(runs) => {
                    runs.iter().for_each(|run| histogram.add(start + u64::from(run.start), run.end - run.start))
                }
                None if summary.free == 0 => {}
                None if summary.free == geometry.blocks_of(group) => histogram.add(start, summary.free),
                None => left_out += 1,
            }
        }
        (histogram.finish(), left_out)
    }
}
