//! The free space of a device: summaries and the index of all groups, and the runs of those that
//! are loaded.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use crate::{
    free_index::FreeIndex,
    free_runs::{FreeRuns, Summary},
    geometry::Geometry,
    inconsistent::Inconsistent,
    plan::Space,
};

/// A group that is loaded.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) runs: FreeRuns,
    /// When it was used last, in changes.
    pub(crate) used_at: u64,
}

/// Free blocks of a device.
#[derive(Clone, Debug)]
pub(crate) struct FreeSpace {
    pub(crate) geometry: Geometry,
    pub(crate) summaries: Vec<Summary>,
    pub(crate) index: FreeIndex,
    pub(crate) loaded: BTreeMap<u32, Loaded>,
    pub(crate) free: u64,
    pub(crate) pointer: u64,
    /// The same for windows that small objects share.
    pub(crate) shared_pointer: u64,
    /// Changes so far, by which the last use of groups is known.
    pub(crate) changes: u64,
    /// Groups whose records are damaged: none of their blocks is free.
    pub(crate) out_of_use: BTreeSet<u32>,
}

impl Space for FreeSpace {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn index(&self) -> &FreeIndex {
        &self.index
    }

    fn runs(&self, group: u32) -> Option<&FreeRuns> {
        self.loaded.get(&group).map(|loaded| &loaded.runs)
    }

    fn free(&self) -> u64 {
        self.free
    }

    fn pointer(&self) -> u64 {
        self.pointer
    }

    fn shared_pointer(&self) -> u64 {
        self.shared_pointer
    }
}

impl FreeSpace {
    /// Loads a group of which the summary says everything; whether it is loaded now.
    pub(crate) fn load_trivial(&mut self, group: u32) -> bool {
        let blocks = self.geometry.blocks_of(group);
        let runs = match self.summaries[group as usize].free {
            _ if self.loaded.contains_key(&group) || self.out_of_use.contains(&group) => return true,
            0 => FreeRuns::default(),
            free if free == blocks => FreeRuns::all(blocks),
            _ => return false,
        };
        self.loaded.insert(group, Loaded { runs, used_at: self.changes });
        true
    }

    /// See [`crate::Allocator::put_out_of_use`].
    pub(crate) fn put_out_of_use(&mut self, group: u32) {
        assert!(!self.loaded.contains_key(&group), "a group that is loaded is not damaged");
        let before = std::mem::take(&mut self.summaries[group as usize]);
        self.free -= u64::from(before.free);
        self.index.set(group, 0);
        self.out_of_use.insert(group);
    }

    /// Those of these blocks whose groups are not out of use.
    pub(crate) fn in_use(&self, blocks: &Range<u64>) -> Vec<Range<u64>> {
        if self.out_of_use.is_empty() {
            return vec![blocks.clone()];
        }
        let pieces = self.geometry.pieces(blocks.clone()).filter(|(group, _)| !self.out_of_use.contains(group));
        let on_device = |(group, piece): (u32, Range<u32>)| {
            let start = self.geometry.start_of(group);
            start + u64::from(piece.start)..start + u64::from(piece.end)
        };
        pieces.map(on_device).collect()
    }

    /// Changes the runs of every group that these blocks touch. All of them are loaded.
    pub(crate) fn change(
        &mut self,
        blocks: &Range<u64>,
        change: impl Fn(&mut FreeRuns, &Range<u32>) -> Result<(), Inconsistent>,
    ) -> Result<(), Inconsistent> {
        for (group, piece) in self.geometry.pieces(blocks.clone()) {
            self.changes += 1;
            let loaded = self.loaded.get_mut(&group).expect("the group is loaded");
            loaded.used_at = self.changes;
            change(&mut loaded.runs, &piece).map_err(|wrong| of_device(wrong, self.geometry.start_of(group)))?;
            let summary = loaded.runs.summary();
            let before = std::mem::replace(&mut self.summaries[group as usize], summary);
            self.free = self.free + u64::from(summary.free) - u64::from(before.free);
            self.index.set(group, summary.longest);
        }
        Ok(())
    }
}

/// An error about blocks of a group, with their numbers on the device.
pub(crate) fn of_device(wrong: Inconsistent, start: u64) -> Inconsistent {
    Inconsistent { first: start + wrong.first, last: start + wrong.last, ..wrong }
}
