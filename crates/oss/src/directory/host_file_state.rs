//! What the directory store knows beyond its records: which host files are unflushed, which of
//! their ranges must not be written yet, and what is to be freed or written back. All of it is
//! rebuilt at open from the tables DIRTY, FLUSHED, PENDING and BACKLOG.
//!
//! Epochs number the intervals between flushes. A block written in place carries the epoch in which
//! its record was made; its bytes were already written to the kernel at that time. A flush that
//! starts after the epoch was advanced covers all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use kv::Lsn;
use rangemap::{RangeMap, RangeSet};
use rt::Instant;
use types::{ObjectId, SpaceUsage};

use super::{device_space::DeviceSpace, retired::Retired};
use crate::superblock::Totals;

/// A host file written since it was last known to be flushed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DirtyFile {
    /// Chunks with blocks written in place; each has a key in table DIRTY.
    pub chunks: BTreeSet<u64>,
    /// Epoch of the last such write.
    pub written: u64,
}

/// What is to happen to a tainted range of the host file once the removal of its blocks is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostWork {
    /// Its space is given back. A range without end is cut off.
    GiveBack,
    /// It stays reserved.
    Keep,
}

/// Why a range of a host file must not be written in place: the last durable records may still name
/// its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taint {
    /// Epoch of the removal; the commit that ends this epoch (or a later one) lifts the taint.
    pub epoch: u64,
    /// What the commit does then.
    pub work: HostWork,
}

/// The state, behind one short mutex.
#[derive(Debug, Default)]
pub(super) struct HostFileState {
    /// Epoch of in-place writes from now on; at least 1.
    pub epoch: u64,
    /// Everything written in place up to this epoch is flushed, and the mark says so.
    pub marked: u64,
    /// Files written since the last commit began.
    pub dirty: BTreeMap<ObjectId, DirtyFile>,
    /// Files the commit in progress is flushing.
    pub flushing: BTreeMap<ObjectId, DirtyFile>,
    /// Time of the oldest change that waits for the next commit: no commit that began covers it.
    pub unmarked_since: Option<Instant>,
    /// Time of the oldest change that the commit in progress covers.
    pub flushing_since: Option<Instant>,
    /// Files flushed by themselves since the last mark: through which epoch. Same as table FLUSHED.
    pub flushed: BTreeMap<ObjectId, u64>,
    /// Objects that were synced by themselves since the last commit, and before it since the one
    /// before.
    pub synced: [BTreeSet<ObjectId>; 2],
    /// Ranges of blocks not to be written in place.
    pub taints: BTreeMap<ObjectId, RangeMap<u64, Taint>>,
    /// Keys of table PENDING, and the epoch of each removal.
    pub pending: BTreeMap<u64, u64>,
    /// Key of the next entry of PENDING.
    pub pending_next: u64,
    /// Large objects with inline blocks, and how many. Same objects as table BACKLOG.
    pub backlog: BTreeMap<ObjectId, u64>,
    /// Sum over `backlog`.
    pub backlog_blocks: u64,
    /// Where write-back was last: an object, and the chunk at which to continue in it; `None`:
    /// after it.
    pub write_back_hand: (ObjectId, Option<u64>),
    /// When it was last logged that a round of it failed.
    pub write_back_told: Option<Instant>,
    /// The object of which blocks are being copied to where they will be, by write-back or because
    /// they are merged, and its blocks that changed since the copy began.
    pub copying: Option<(ObjectId, RangeSet<u64>)>,
    /// Space as it was last asked for, for parameters.
    pub last_space: SpaceUsage,
    /// Objects that must not be made.
    pub retired: Retired,
    /// Sums over all objects.
    pub totals: Totals,
    /// Free space of the target's device, if it has one.
    pub device: Option<DeviceSpace>,
    /// The last batch applied.
    pub last_lsn: Lsn,
    /// Time of the last requested change.
    pub last_change: Instant,
    /// The first failed flush: nothing is changed any more.
    pub failure: Option<String>,
}

impl HostFileState {
    /// Whether any block of the range must not be written in place.
    pub fn is_tainted(&self, object: ObjectId, blocks: &Range<u64>) -> bool {
        self.taints.get(&object).is_some_and(|taints| taints.overlaps(blocks))
    }

    /// Whether space of the range is still to be given back.
    pub fn is_given_back(&self, object: ObjectId, blocks: &Range<u64>) -> bool {
        let Some(taints) = self.taints.get(&object) else { return false };
        taints.overlapping(blocks).any(|(_, taint)| taint.work == HostWork::GiveBack)
    }

    /// Whether there is anything for a commit beyond flushing the journal.
    pub fn has_unmarked(&self) -> bool {
        let has_retired = self.device.as_ref().is_some_and(DeviceSpace::has_retired);
        !self.dirty.is_empty() || !self.taints.is_empty() || !self.pending.is_empty() || has_retired
    }

    /// Epoch up to which the in-place blocks of an object are flushed.
    pub fn flushed_epoch(&self, object: ObjectId) -> u64 {
        self.flushed.get(&object).copied().unwrap_or(0).max(self.marked)
    }

    /// Whether an object's file has unflushed blocks, as far as is known.
    pub fn is_unflushed(&self, object: ObjectId) -> bool {
        let flushed = self.flushed_epoch(object);
        [&self.dirty, &self.flushing].into_iter().filter_map(|files| files.get(&object)).any(|f| f.written > flushed)
    }

    /// Ends the present epoch and returns it: what was recorded so far is in it or in earlier ones.
    pub fn end_epoch(&mut self) -> u64 {
        assert!(self.epoch > self.marked, "the present epoch is not flushed");
        self.epoch += 1;
        self.epoch - 1
    }

    /// A batch was applied, under the mutex of this state.
    pub fn note_applied(&mut self, lsn: Lsn) {
        assert!(lsn > self.last_lsn, "batch {lsn:?} is applied after batch {:?}", self.last_lsn);
        self.last_lsn = lsn;
    }

    /// The files that are being flushed are flushed, and the mark of `epoch` says so.
    pub fn note_marked(&mut self, epoch: u64) {
        assert!(epoch > self.marked, "epoch {epoch} is marked after epoch {}", self.marked);
        assert!(epoch < self.epoch, "epoch {epoch} is marked, and it has not ended");
        self.marked = epoch;
        self.flushed.retain(|_, flushed| *flushed > epoch);
    }

    /// Whether an object was synced by itself lately.
    pub fn is_synced(&self, object: ObjectId) -> bool {
        self.synced.iter().any(|objects| objects.contains(&object))
    }

    /// A commit begins.
    pub fn age_synced(&mut self) {
        let [now, before] = &mut self.synced;
        *before = std::mem::take(now);
    }

    /// A file was flushed by itself after this epoch had ended.
    pub fn note_flushed(&mut self, object: ObjectId, epoch: u64) {
        assert!(epoch < self.epoch, "a file is flushed through epoch {epoch}, which has not ended");
        let before = self.flushed.insert(object, epoch);
        assert!(before.is_none_or(|before| before < epoch), "what is flushed of a file does not go back");
    }

    /// A block range changed: a copy of it in progress is not to be recorded.
    pub fn touch(&mut self, object: ObjectId, blocks: Range<u64>) {
        if let Some((copying, touched)) = &mut self.copying
            && *copying == object
            && !blocks.is_empty()
        {
            touched.insert(blocks);
        }
    }

    /// Takes the backlog of one object as it is now.
    pub fn set_backlog(&mut self, object: ObjectId, inline_blocks: Option<u64>) {
        let before = match inline_blocks {
            Some(blocks) => self.backlog.insert(object, blocks),
            None => self.backlog.remove(&object),
        };
        assert!(before.unwrap_or(0) <= self.backlog_blocks, "the blocks of an object are counted in the backlog");
        self.backlog_blocks = self.backlog_blocks - before.unwrap_or(0) + inline_blocks.unwrap_or(0);
    }

    /// Removes the taints of `epoch` and before; returns them by object.
    pub fn taints_through(&self, epoch: u64) -> Vec<(ObjectId, Range<u64>, Taint)> {
        let ranges = self
            .taints
            .iter()
            .flat_map(|(object, taints)| taints.iter().map(|(blocks, taint)| (*object, blocks.clone(), *taint)));
        ranges.filter(|(_, _, taint)| taint.epoch <= epoch).collect()
    }

    /// Lifts the taints of `epoch` and before.
    pub fn lift_taints(&mut self, epoch: u64) {
        assert!(epoch < self.epoch, "taints are lifted once their epoch has ended");
        for (object, blocks, _) in self.taints_through(epoch) {
            if let Some(taints) = self.taints.get_mut(&object) {
                taints.remove(blocks);
            }
        }
        self.taints.retain(|_, taints| !taints.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectId = ObjectId::new(types::InodeNumber(9), 1);

    #[test]
    fn taints_are_lifted_by_the_commit_of_their_epoch() {
        let mut volatile = HostFileState { epoch: 3, ..HostFileState::default() };
        let taints = volatile.taints.entry(OBJECT).or_default();
        taints.insert(0..10, Taint { epoch: 1, work: HostWork::GiveBack });
        taints.insert(5..7, Taint { epoch: 2, work: HostWork::Keep });
        volatile.lift_taints(1);
        assert!(!volatile.is_tainted(OBJECT, &(0..5)));
        assert!(volatile.is_tainted(OBJECT, &(6..20)));
        assert!(!volatile.is_given_back(OBJECT, &(0..20)));
        volatile.lift_taints(2);
        assert!(volatile.taints.is_empty());
    }

    #[test]
    fn a_file_flushed_by_itself_is_clean_until_it_is_written_again() {
        let mut volatile = HostFileState { epoch: 3, ..HostFileState::default() };
        volatile.dirty.insert(OBJECT, DirtyFile { chunks: [0].into(), written: 3 });
        assert!(volatile.is_unflushed(OBJECT));
        let ended = volatile.end_epoch();
        volatile.flushed.insert(OBJECT, ended);
        assert!(!volatile.is_unflushed(OBJECT));
        volatile.dirty.get_mut(&OBJECT).unwrap().written = volatile.epoch;
        assert!(volatile.is_unflushed(OBJECT));
    }

    #[test]
    fn the_backlog_sums_up() {
        let mut volatile = HostFileState::default();
        volatile.set_backlog(OBJECT, Some(5));
        volatile.set_backlog(OBJECT, Some(3));
        assert_eq!(volatile.backlog_blocks, 3);
        volatile.set_backlog(OBJECT, None);
        volatile.set_backlog(OBJECT, None);
        assert_eq!((volatile.backlog_blocks, volatile.backlog.len()), (0, 0));
    }
}
