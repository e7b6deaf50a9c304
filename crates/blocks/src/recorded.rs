//! The free blocks of groups as the device's records show them: those that are free or held. Kept
//! for the groups that records change, so that a batch costs what it changes and not what its
//! groups have.
//!
//! A batch is *staged*: the runs are what they will be when it is applied. Then the same changes
//! happen, in the same order ([`RecordedRuns::happened`]). If others happen, or another batch is
//! staged, it was not applied, and is undone.
//!
//! Invariant: without what is staged, the runs of a group are those that
//! [`Allocator::recorded`](crate::Allocator::recorded) makes anew; tests compare them.
//!
//! Downside: such a group takes memory twice.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use crate::{free_runs::FreeRuns, inconsistent::Inconsistent};

/// Whether records begin or cease to name blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    Begins,
    Ceases,
}

impl Naming {
    fn apply(self, runs: &mut FreeRuns, blocks: &Range<u32>) -> Result<(), Inconsistent> {
        match self {
            Self::Begins => runs.take(blocks),
            Self::Ceases => runs.give(blocks),
        }
    }

    fn undo(self, runs: &mut FreeRuns, blocks: &Range<u32>) {
        let undone = match self {
            Self::Begins => runs.give(blocks),
            Self::Ceases => runs.take(blocks),
        };
        undone.expect("what was changed can be changed back");
    }
}

/// Blocks of a group, and what happens to them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    group: u32,
    blocks: Range<u32>,
    naming: Naming,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordedRuns {
    groups: BTreeMap<u32, FreeRuns>,
    /// Shown already, and not happened yet.
    staged: VecDeque<Step>,
}

impl RecordedRuns {
    /// The runs of a group, with what is staged.
    pub(crate) fn group(&self, group: u32) -> Option<&FreeRuns> {
        self.groups.get(&group)
    }

    /// Shows a change of a batch. `anew`: the runs of its group as they are now. After an error
    /// nothing is staged.
    pub(crate) fn stage(
        &mut self,
        (group, blocks): (u32, Range<u32>),
        naming: Naming,
        anew: impl FnOnce() -> FreeRuns,
    ) -> Result<(), Inconsistent> {
        let runs = self.groups.entry(group).or_insert_with(anew);
        match naming.apply(runs, &blocks) {
            Ok(()) => self.staged.push_back(Step { group, blocks, naming }),
            Err(wrong) => {
                self.unstage();
                return Err(wrong);
            }
        }
        Ok(())
    }

    /// What is staged will not happen.
    pub(crate) fn unstage(&mut self) {
        while let Some(Step { group, blocks, naming }) = self.staged.pop_back() {
            naming.undo(self.groups.get_mut(&group).expect("staged groups are kept"), &blocks);
        }
    }

    /// A change happened, staged or not.
    pub(crate) fn happened(&mut self, group: u32, blocks: Range<u32>, naming: Naming) -> Result<(), Inconsistent> {
        let step = Step { group, blocks, naming };
        if self.staged.front() == Some(&step) {
            self.staged.pop_front();
            return Ok(());
        }
        self.unstage();
        let Some(runs) = self.groups.get_mut(&group) else { return Ok(()) };
        step.naming.apply(runs, &step.blocks)
    }

    /// A group is not loaded any more.
    pub(crate) fn forget(&mut self, group: u32) {
        self.unstage();
        self.groups.remove(&group);
    }

    /// The groups that are kept, without what is staged; for tests.
    pub(crate) fn happened_only(&self) -> BTreeMap<u32, FreeRuns> {
        let mut copy = self.clone();
        copy.unstage();
        copy.groups
    }

    /// Bytes of memory, about.
    pub(crate) fn heap_bytes(&self) -> usize {
        // A node of a B-tree has room for twice its entries in the worst case.
        let entry = 2 * (size_of::<u32>() + size_of::<FreeRuns>());
        self.groups.values().map(|runs| entry + runs.heap_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(recorded: &RecordedRuns) -> Vec<u32> {
        let runs = recorded.group(7).unwrap();
        (0..100).filter(|block| runs.run_at(*block).is_none()).collect()
    }

    #[test]
    fn a_batch_that_is_not_applied_is_undone() {
        let mut recorded = RecordedRuns::default();
        let all = || FreeRuns::all(100);
        recorded.stage((7, 10..12), Naming::Begins, all).unwrap();
        recorded.stage((7, 20..21), Naming::Begins, all).unwrap();
        assert_eq!(used(&recorded), [10, 11, 20]);
        recorded.happened(7, 10..12, Naming::Begins).unwrap();
        assert_eq!(used(&recorded), [10, 11, 20], "it happens as it was staged");
        recorded.happened(7, 30..31, Naming::Begins).unwrap();
        assert_eq!(used(&recorded), [10, 11, 30], "the rest did not happen");
        recorded.stage((7, 10..11), Naming::Ceases, all).unwrap();
        assert!(recorded.stage((7, 10..12), Naming::Ceases, all).is_err(), "one of them is free already");
        assert_eq!(used(&recorded), [10, 11, 30]);
        recorded.stage((7, 10..11), Naming::Ceases, all).unwrap();
        assert_eq!(recorded.happened_only()[&7].summary().free, 97);
        recorded.forget(7);
        assert!(recorded.group(7).is_none() && recorded.staged.is_empty());
        recorded.happened(7, 10..11, Naming::Ceases).unwrap();
    }
}
