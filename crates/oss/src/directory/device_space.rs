//! The free space of a target's device, and how it gets into the tables: the crate `blocks`, with
//! what the store keeps of it under its mutex.
//!
//! A change of an object collects the blocks that its records name from now on, and those that they
//! name no more ([`BlockChanges`]). [`DeviceSpace::records`] says what the tables GROUPS and
//! BITMAPS must have then, for the same batch; when the batch is applied,
//! [`DeviceSpace::applied`] follows.
//!
//! *Available* is what new data may still take: blocks that no record names, less those reserved
//! for objects, those that inline blocks of large objects will move to, and those promised to
//! writes in progress. So an overwrite frees as much as its data will take when they are written
//! back, and never needs space that others were promised.
//!
//! No I/O: groups are loaded by the caller.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use blocks::{
    Allocation, Allocator, BITMAP_BYTES, Geometry, Inconsistent, Policy, Refusal, Request, SECTION_BLOCKS, Summary,
};
use bytes::Bytes;
use kv::Batch;
use rt::Instant;
use types::ObjectId;

use super::discard_queue::{DiscardCounts, DiscardQueue};
use crate::{
    group_record::{PIECE_BLOCKS, encode_summary},
    tables::{BITMAPS, GROUPS, OUT_OF_USE, group_key, piece_key},
};

/// Groups that stay loaded between commits: their runs take a few megabytes.
const LOADED_GROUPS_MAX: usize = 4096;

/// Ranges that become free in one hold of the store's mutex: a removed object of 1 TiB may have a
/// million.
pub(super) const RELEASED_MAX: usize = 1000;
/// Blocks of each of these ranges, where neighbours have become one: 256 MiB.
const RELEASED_BLOCKS_MAX: u64 = 1 << 16;

/// Blocks of idle windows that are given back in one hold of the store's mutex: 1 GiB.
const IDLE_BLOCKS_MAX: u64 = 1 << 18;

/// Of the free blocks, the part that moves of data may take until the next commit.
const MOVE_SHARE: u64 = 4;

/// What a change of an object does to the blocks of the device.
#[derive(Debug, Default)]
pub(super) struct BlockChanges {
    /// In progress before, named by a record now.
    recorded: Vec<Range<u64>>,
    /// Free before, named by a record again.
    claimed: Vec<Range<u64>>,
    /// Named no more.
    freed: Vec<Range<u64>>,
}

fn push(ranges: &mut Vec<Range<u64>>, block: u64) -> bool {
    match ranges.last_mut() {
        Some(last) if last.end == block => {
            last.end += 1;
            false
        }
        _ => {
            ranges.push(block..block + 1);
            true
        }
    }
}

impl BlockChanges {
    /// A block in progress is named by a record. Whether it begins a new run.
    pub fn record(&mut self, block: u64) -> bool {
        push(&mut self.recorded, block)
    }

    /// A free block is named by a record again.
    pub fn claim(&mut self, block: u64) -> bool {
        push(&mut self.claimed, block)
    }

    /// A block is named no more.
    pub fn free(&mut self, block: u64) -> bool {
        push(&mut self.freed, block)
    }

    fn is_empty(&self) -> bool {
        self.recorded.is_empty() && self.claimed.is_empty() && self.freed.is_empty()
    }
}

/// Counts of a device's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceCounts {
    /// Of the device.
    pub blocks: u64,
    /// Free for anything.
    pub free: u64,
    /// Free, and held for the next blocks of objects.
    pub in_windows: u64,
    /// Freed, and not to be used before the next commit.
    pub retired: u64,
    /// Reserved for objects, without places.
    pub reserved: u64,
    /// Promised to writes in progress.
    pub promised: u64,
    /// Freed blocks and discards.
    pub discards: DiscardCounts,
    /// Where the last window ended: the group, and the block of it.
    pub last_group: u32,
    /// See above.
    pub last_start: u32,
    /// Groups whose records are damaged.
    pub groups_out_of_use: usize,
    /// Groups whose runs are in memory, and bytes of all that is kept of the device.
    pub loaded_groups: usize,
    /// See above.
    pub memory_bytes: usize,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct DeviceSpace {
    allocator: Allocator,
    /// Blocks that writes in progress may still record.
    promised: u64,
    /// Blocks reserved for objects that hold no data.
    pub reserved: u64,
    /// Freed blocks that wait for their discard.
    discards: DiscardQueue,
    /// Groups that are out of use, and not noted to be yet.
    unnoted: BTreeSet<u32>,
}

impl DeviceSpace {
    /// Of a device whose groups have these summaries, those that are not free as a whole.
    pub fn open(geometry: Geometry, summaries: &BTreeMap<u32, Summary>, reserved: u64) -> Result<Self, Inconsistent> {
        let is_of_device = |group: &u32| *group < geometry.groups();
        if summaries.last_key_value().is_some_and(|(last, _)| !is_of_device(last)) {
            let (first, last) = (geometry.blocks(), geometry.blocks());
            return Err(Inconsistent { first, last, found: "after the end of the device, and described" });
        }
        let free = |group| {
            let blocks = geometry.blocks_of(group);
            Summary { free: blocks, longest: blocks, runs: 1 }
        };
        let all = (0..geometry.groups()).map(|group| summaries.get(&group).copied().unwrap_or_else(|| free(group)));
        let allocator = Allocator::open(geometry, Policy::default(), all.collect())?;
        Ok(Self { allocator, promised: 0, reserved, discards: DiscardQueue::default(), unnoted: BTreeSet::new() })
    }

    /// What the tables have of a new device of which only these blocks are used.
    pub fn batch_of_new(geometry: Geometry, used: &[Range<u64>]) -> Result<Batch, Inconsistent> {
        let mut space = Self::open(geometry, &BTreeMap::new(), 0)?;
        let mut changes = BlockChanges::default();
        for blocks in used {
            changes.claimed.push(blocks.clone());
            geometry.pieces(blocks.clone()).for_each(|(group, _)| {
                space.is_loaded(group);
            });
        }
        let mut batch = Batch::default();
        space.put(&changes, &mut batch)?;
        Ok(batch)
    }

    /// The group of a block; `None`: the device has no such block.
    pub fn group_of(&self, block: u64) -> Option<u32> {
        let geometry = self.allocator.geometry();
        (block < geometry.blocks()).then(|| geometry.group_of(block))
    }

    /// Whether nothing needs to be read for changes of a group.
    pub fn is_loaded(&mut self, group: u32) -> bool {
        self.allocator.is_loaded(group)
    }

    /// Takes a group's bitmap from the tables.
    pub fn load(&mut self, group: u32, bitmap: &[u8; BITMAP_BYTES]) -> Result<(), Inconsistent> {
        self.allocator.load(group, bitmap)
    }

    /// The records of a group, which is not loaded, are damaged: nothing is given out of it, and
    /// what is freed there is found when its records are made anew.
    pub fn put_out_of_use(&mut self, group: u32) {
        self.allocator.put_out_of_use(group);
        self.unnoted.insert(group);
    }

    /// Groups that are out of use.
    pub fn out_of_use(&self) -> &BTreeSet<u32> {
        self.allocator.out_of_use()
    }

    /// Those of them that are to be noted in the tables, not more than so many.
    pub fn unnoted(&self, groups_max: usize) -> Vec<u32> {
        self.unnoted.iter().take(groups_max).copied().collect()
    }

    /// The tables note that these are out of use.
    pub fn noted(&mut self, groups: &[u32]) {
        self.unnoted.retain(|group| !groups.contains(group));
    }

    /// Blocks of the device.
    pub fn blocks(&self) -> u64 {
        self.allocator.geometry().blocks()
    }

    /// Its blocks in numbers.
    pub fn counts(&self) -> SpaceCounts {
        SpaceCounts {
            blocks: self.blocks(),
            free: self.allocator.free_blocks(),
            in_windows: self.allocator.window_blocks(),
            retired: self.allocator.retired_blocks(),
            reserved: self.reserved,
            promised: self.promised,
            discards: self.discards.counts(),
            last_group: self.allocator.mb_last_group(),
            last_start: self.allocator.mb_last_start(),
            groups_out_of_use: self.allocator.out_of_use().len(),
            loaded_groups: self.allocator.loaded_groups(),
            memory_bytes: self.allocator.memory_bytes(),
        }
    }

    /// What is known of each group: 12 bytes.
    pub fn summaries(&self) -> Vec<Summary> {
        (0..self.allocator.geometry().groups()).map(|group| self.allocator.summary(group)).collect()
    }

    /// The allocator's tunables.
    pub fn policy(&self) -> &Policy {
        self.allocator.policy()
    }

    /// Changes them.
    pub fn set_policy(&mut self, policy: Policy) {
        self.allocator.set_policy(policy);
    }

    /// No group is loaded any more that can be loaded again.
    #[cfg(test)]
    pub fn unload(&mut self) {
        self.allocator.unload(0);
    }

    /// Sets the group of the allocation pointer. The block within it stays, as on ldiskfs, where
    /// the group has it.
    pub fn set_last_group(&mut self, group: u64) -> Result<(), String> {
        let (groups, start) = (self.allocator.geometry().groups(), self.allocator.mb_last_start());
        match u32::try_from(group) {
            Ok(group) if group < groups => self.allocator.set_pointer(group, start),
            _ => return Err(format!("the device has groups 0 to {}", groups - 1)),
        }
        Ok(())
    }

    /// Sets the block of the allocation pointer within its group.
    pub fn set_last_start(&mut self, start: u64) -> Result<(), String> {
        let group = self.allocator.mb_last_group();
        let blocks = self.allocator.geometry().blocks_of(group);
        match u32::try_from(start) {
            Ok(start) if start < blocks => self.allocator.set_pointer(group, start),
            _ => return Err(format!("group {group}, that of mb_last_group, has blocks 0 to {}", blocks - 1)),
        }
        Ok(())
    }

    /// Windows of objects that were not written for so long become free: some of them. How many
    /// blocks they had.
    pub fn give_back_idle(&mut self, now: Instant, idle: Duration) -> Result<u64, Inconsistent> {
        self.allocator.set_time(now.0);
        let since = now.0.saturating_sub(idle.as_nanos() as u64);
        self.allocator.give_up_idle(since, IDLE_BLOCKS_MAX)
    }

    /// Blocks that new data may take. `backlog`: inline blocks that will move to the device.
    pub fn available(&self, backlog: u64) -> u64 {
        let taken = self.reserved.saturating_add(backlog).saturating_add(self.promised);
        self.allocator.unrecorded_blocks().saturating_sub(taken)
    }

    /// Promises blocks to a write, which gives back what it was promised when it ends.
    pub fn promise(&mut self, blocks: u64) {
        self.promised += blocks;
    }

    /// The write ended.
    pub fn end_promise(&mut self, blocks: u64) {
        assert!(blocks <= self.promised, "what is given back was promised");
        self.promised -= blocks;
    }

    /// Whether freed blocks wait for the next commit.
    pub fn has_retired(&self) -> bool {
        self.allocator.retired_blocks() > 0
    }

    /// Blocks for all of a request, which are then in progress, or none.
    pub fn allocate(&mut self, request: &Request) -> Result<Vec<Range<u64>>, Refusal> {
        let (mut parts, mut rest): (Vec<Range<u64>>, Request) = (Vec::new(), *request);
        while rest.blocks > 0 {
            let Allocation { device } = match self.allocator.allocate(&rest) {
                Ok(allocation) => allocation,
                Err(Refusal::NoSpace) if self.has_released()? => continue,
                Err(refusal) => {
                    parts.iter().try_for_each(|part| self.allocator.abandon(part))?;
                    return Err(refusal);
                }
            };
            let blocks = device.end - device.start;
            rest.logical += blocks;
            rest.blocks -= blocks as u32;
            rest.goal = Some(device.end);
            parts.push(device);
        }
        Ok(parts)
    }

    /// Blocks that follow each other, for data that move, which are then in progress; `None` if no
    /// free run is that long.
    pub fn allocate_run(&mut self, blocks: u32, goal: Option<u64>) -> Result<Option<Range<u64>>, Refusal> {
        Ok(self.allocator.allocate_run(blocks, goal)?.map(|Allocation { device }| device))
    }

    /// The most blocks that the next move of data may take, in one run: of what moves may take
    /// until the next commit, and of the longest run. `backlog`: as in [`Self::available`].
    pub fn room_for_move(&self, backlog: u64) -> u64 {
        self.share_of_moves(backlog).min(u64::from(self.allocator.longest_run()))
    }

    /// Whether moves would have more room after a commit, because of their share: not if no free
    /// run is longer than it is.
    pub fn move_waits_for_commit(&self, backlog: u64) -> bool {
        let wanted = SECTION_BLOCKS.min(u64::from(self.allocator.longest_run()));
        self.has_retired() && self.share_of_moves(backlog) < wanted
    }

    /// What moves may still take until the next commit: only a part of the free blocks, lest new
    /// data find none. Blocks that were freed, as by a move, wait for the commit.
    fn share_of_moves(&self, backlog: u64) -> u64 {
        let retired = self.allocator.retired_blocks();
        let free = (self.allocator.free_blocks() + retired).min(self.available(backlog));
        (free / MOVE_SHARE).saturating_sub(retired)
    }

    /// No record will name these blocks, which were in progress.
    pub fn abandon(&mut self, blocks: &Range<u64>) -> Result<(), Inconsistent> {
        self.allocator.abandon(blocks)
    }

    /// Adds to a batch what the tables have of the device after these changes. Their groups are
    /// loaded.
    pub fn put(&mut self, changes: &BlockChanges, batch: &mut Batch) -> Result<(), Inconsistent> {
        if changes.is_empty() {
            return Ok(());
        }
        let geometry = self.allocator.geometry();
        let named = || changes.recorded.iter().chain(&changes.claimed);
        self.allocator.stage(named(), changes.freed.iter())?;
        let mut groups: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for blocks in named().chain(&changes.freed) {
            for (group, piece) in geometry.pieces(blocks.clone()) {
                if self.allocator.out_of_use().contains(&group) {
                    batch.put(OUT_OF_USE, Bytes::copy_from_slice(&group_key(group)), Bytes::new());
                    continue;
                }
                let pieces = groups.entry(group).or_default();
                pieces.extend(piece.start / PIECE_BLOCKS..=(piece.end - 1) / PIECE_BLOCKS);
            }
        }
        for (group, pieces) in groups {
            let Some(runs) = self.allocator.staged(group) else { continue };
            batch.put(GROUPS, Bytes::copy_from_slice(&group_key(group)), encode_summary(runs.summary()));
            for piece in pieces {
                let bytes = Bytes::copy_from_slice(&runs.used_piece(piece));
                batch.put(BITMAPS, Bytes::copy_from_slice(&piece_key(group, piece as u8)), bytes);
            }
        }
        Ok(())
    }

    /// The batch with these changes was applied; it has this number.
    pub fn applied(&mut self, changes: BlockChanges, batch: u64) -> Result<(), Refusal> {
        if changes.is_empty() {
            return Ok(());
        }
        for blocks in &changes.recorded {
            self.allocator.record(blocks)?;
        }
        changes.claimed.iter().try_for_each(|blocks| self.allocator.claim(blocks))?;
        changes.freed.iter().try_for_each(|blocks| self.allocator.free(blocks, batch))
    }

    /// The batches up to this number are durable, and so are the data that they name. What they
    /// freed is free, or waits for its discard. Returns whether that is all; otherwise this is to
    /// be called again.
    pub fn durable(&mut self, batch: u64, discards: bool) -> Result<bool, Inconsistent> {
        let released = if discards {
            let freed = self.allocator.durable_in_progress(batch, RELEASED_MAX);
            for blocks in &freed {
                if !self.discards.push(blocks) {
                    self.allocator.abandon(blocks)?;
                }
            }
            freed
        } else {
            self.allocator.durable(batch, RELEASED_MAX)?
        };
        let is_done = released.len() < RELEASED_MAX;
        if is_done {
            self.allocator.unload(LOADED_GROUPS_MAX);
        }
        Ok(is_done)
    }

    /// Blocks to be discarded, which become free when they are abandoned.
    pub fn next_discard(&mut self, blocks_max: u64) -> Option<Range<u64>> {
        self.discards.next(blocks_max)
    }

    /// So many blocks were discarded, or could not be.
    pub fn discard_ended(&mut self, blocks: u64, is_discarded: bool) {
        self.discards.ended(blocks, is_discarded);
    }

    /// Frees some of what waits for its discard without one. Whether there was any.
    pub fn has_released(&mut self) -> Result<bool, Inconsistent> {
        for released in 0..RELEASED_MAX {
            let Some(blocks) = self.discards.next(RELEASED_BLOCKS_MAX) else { return Ok(released > 0) };
            self.discards.ended(blocks.end - blocks.start, false);
            self.allocator.abandon(&blocks)?;
        }
        Ok(true)
    }

    /// Nothing writes to an object any more.
    pub fn drop_windows(&mut self, object: ObjectId) -> Result<(), Inconsistent> {
        self.allocator.drop_windows(object)
    }

    /// Checks what is kept of groups for the next batch; for tests and simulations.
    pub fn audit_recorded(&self) {
        self.allocator.audit_recorded();
    }

    /// The first of these blocks that the tables have as free, as far as their groups are loaded.
    pub fn first_unused(&self, blocks: &Range<u64>) -> Option<u64> {
        let geometry = self.allocator.geometry();
        let end = blocks.end.min(geometry.blocks());
        geometry.pieces(blocks.start.min(end)..end).find_map(|(group, piece)| {
            let free = self.allocator.recorded(group)?.within(&piece).next()?;
            Some(geometry.start_of(group) + u64::from(free.start))
        })
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;

    #[test]
    fn windows_of_idle_objects_are_given_back() {
        let geometry = Geometry::new(100_000).unwrap();
        let mut space = DeviceSpace::open(geometry, &BTreeMap::new(), 0).unwrap();
        let second = |seconds: u64| Instant(1_000_000_000 * seconds);
        for (number, time) in [(1, 10), (2, 30)] {
            space.give_back_idle(second(time), Duration::from_secs(30)).unwrap();
            let object = ObjectId::new(InodeNumber(number), 0);
            let request = Request {
                object,
                write_start: 1024,
                logical: 1024,
                blocks: 256,
                size: 1024,
                goal: None,
                locality: 0,
                may_use_reserve: false,
            };
            let parts = space.allocate(&request).unwrap();
            parts.iter().for_each(|part| space.abandon(part).unwrap());
        }
        let both = space.counts().in_windows;
        assert!(both > 0);
        space.give_back_idle(second(41), Duration::from_secs(30)).unwrap();
        assert_eq!(space.counts().in_windows, both / 2, "the second object is not idle for long");
        space.give_back_idle(second(61), Duration::from_secs(30)).unwrap();
        assert_eq!((space.counts().in_windows, space.counts().free), (0, 100_000));
    }
}
