//! What the device's records are to show of the blocks: all that no record names as free.

use std::ops::Range;

use super::Allocator;
use crate::{
    FreeRuns, GROUP_BLOCKS, Inconsistent, free_space::of_device, plan::Space, range_set::RangeSet, recorded::Naming,
};

impl Allocator {
    /// Shows the groups of a batch as its records are to show them ([`Allocator::staged`]). The
    /// batch begins to name the blocks of `named`, and ceases to name those of `freed`. If it is
    /// applied, [`Allocator::record`] or [`Allocator::claim`], and then [`Allocator::free`] follow,
    /// with the same ranges in the same order.
    pub fn stage<'a>(
        &mut self,
        named: impl Iterator<Item = &'a Range<u64>>,
        freed: impl Iterator<Item = &'a Range<u64>>,
    ) -> Result<(), Inconsistent> {
        self.recorded.unstage();
        let steps = named.map(|blocks| (blocks, Naming::Begins)).chain(freed.map(|blocks| (blocks, Naming::Ceases)));
        for (blocks, naming) in steps {
            for (group, piece) in self.space.geometry.pieces(blocks.clone()) {
                if self.space.out_of_use.contains(&group) {
                    continue;
                }
                let Some(runs) = self.space.runs(group) else {
                    self.recorded.unstage();
                    return Err(Inconsistent::new(blocks, "not loaded"));
                };
                let start = self.space.geometry.start_of(group);
                let anew = || with_held(runs, &self.held, start);
                let staged = self.recorded.stage((group, piece), naming, anew);
                staged.map_err(|wrong| of_device(wrong, start))?;
            }
        }
        Ok(())
    }

    /// A group of the batch that was staged last; `None` if it does not change the group.
    pub fn staged(&self, group: u32) -> Option<&FreeRuns> {
        self.recorded.group(group)
    }

    /// Records began or ceased to name blocks of loaded groups.
    pub(super) fn happened(&mut self, blocks: &Range<u64>, naming: Naming) -> Result<(), Inconsistent> {
        let geometry = self.space.geometry;
        geometry.pieces(blocks.clone()).try_for_each(|(group, piece)| {
            self.recorded.happened(group, piece, naming).map_err(|wrong| of_device(wrong, geometry.start_of(group)))
        })
    }

    /// A group as the device's records are to show it, in which held blocks are free, made anew;
    /// `None` if it is not loaded.
    pub fn recorded(&self, group: u32) -> Option<FreeRuns> {
        let runs = self.space.runs(group)?;
        Some(with_held(runs, &self.held, self.space.geometry.start_of(group)))
    }
}

/// Free and held blocks of a group, whose first block on the device is given.
fn with_held(free: &FreeRuns, held: &RangeSet, start: u64) -> FreeRuns {
    let held = held.within(&(start..start + u64::from(GROUP_BLOCKS)));
    let mut ranges: Vec<Range<u32>> =
        held.map(|blocks| (blocks.start - start) as u32..(blocks.end - start) as u32).chain(free.iter()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    FreeRuns::from_ranges(ranges.into_iter())
}
