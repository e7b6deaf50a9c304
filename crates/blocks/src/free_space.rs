//! The free space of a device: summaries and the index of all groups, runs of those that are loaded.

use std::{collections::BTreeMap, ops::Range};

use crate::{FreeIndex, FreeRuns, Geometry, Inconsistent, Summary, plan::Space};

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
    /// Changes so far, by which the last use of groups is known.
    pub(crate) changes: u64,
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
}

impl FreeSpace {
    /// Loads a group of which the summary says everything; whether it is loaded now.
    pub(crate) fn load_trivial(&mut self, group: u32) -> bool {
        let blocks = self.geometry.blocks_of(group);
        let runs = match self.summaries[group as usize].free {
            _ if self.loaded.contains_key(&group) => return true,
            0 => FreeRuns::default(),
            free if free == blocks => FreeRuns::all(blocks),
            _ => return false,
        };
        self.loaded.insert(group, Loaded { runs, used_at: self.changes });
        true
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
