//! Whether the parts of the allocator agree; for tests and simulations.

use super::Allocator;
use crate::range_set::RangeSet;

impl Allocator {
    /// Checks the relations between the parts; for tests.
    pub fn audit(&self) {
        let free: u64 = self.space.summaries.iter().map(|summary| u64::from(summary.free)).sum();
        assert_eq!(free, self.space.free, "the free blocks are the sum over the groups");
        for (group, loaded) in &self.space.loaded {
            let summary = loaded.runs.summary();
            assert_eq!(summary, self.space.summaries[*group as usize], "summaries are those of the runs");
            assert_eq!(summary.longest, self.space.index.longest_of(*group), "the index has the longest runs");
            let start = self.space.geometry.start_of(*group);
            for run in loaded.runs.iter() {
                let run = start + u64::from(run.start)..start + u64::from(run.end);
                assert!(!self.held.overlaps(&run), "no block is free and held");
            }
        }
        let in_windows: u64 = self.windows.all().map(|blocks| blocks.end - blocks.start).sum();
        assert_eq!(in_windows, self.windows.blocks(), "the blocks of windows are counted");
        let mut all = RangeSet::default();
        for blocks in self.windows.all().chain(self.retired.all().cloned()) {
            all.insert(&blocks);
        }
        for blocks in self.in_progress.within(&(0..u64::MAX)) {
            all.insert(&blocks);
        }
        assert_eq!(all, self.held, "held blocks are in one window, in progress or retired");
        self.audit_recorded();
    }

    /// Checks what is kept of the device's records; for tests.
    pub fn audit_recorded(&self) {
        for (group, kept) in self.recorded.happened_only() {
            assert_eq!(Some(kept), self.recorded(group), "what is kept of group {group} is as it is made anew");
        }
    }
}
