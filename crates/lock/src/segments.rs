//! The locks of one owner on one file: disjoint ranges, each shared or exclusive.
//!
//! Invariants: ranges do not overlap; neighbours that touch differ in mode (equal ones are merged,
//! as fcntl does).

use std::collections::BTreeMap;

use crate::{LockMode, LockRange};

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub range: LockRange,
    pub mode: LockMode,
    pub pid: u32,
}

/// Disjoint locked ranges, by first byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segments {
    by_start: BTreeMap<u64, Segment>,
}

impl Segments {
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.by_start.values()
    }

    /// The segments that have a byte in `range`, in order.
    fn overlapping(&self, range: LockRange) -> impl Iterator<Item = &Segment> {
        let before = self.by_start.range(..range.start).next_back().map(|(_, segment)| segment);
        let within = self.by_start.range(range.start..=range.end).map(|(_, segment)| segment);
        before.into_iter().filter(move |segment| segment.range.end >= range.start).chain(within)
    }

    /// The first segment that another owner's lock of `mode` on `range` would conflict with.
    pub fn conflict(&self, range: LockRange, mode: LockMode) -> Option<&Segment> {
        self.overlapping(range).find(|segment| segment.mode.conflicts(mode))
    }

    /// Whether every byte of `range` is held in a mode that includes `mode`.
    pub fn covers(&self, range: LockRange, mode: LockMode) -> bool {
        let mut next = range.start;
        for segment in self.overlapping(range) {
            if segment.range.start > next || !segment.mode.includes(mode) {
                return false;
            }
            if segment.range.end >= range.end {
                return true;
            }
            next = segment.range.end + 1;
        }
        false
    }

    /// Whether unlocking `range` would leave one more segment than before.
    pub fn unlock_splits(&self, range: LockRange) -> bool {
        let inside = |segment: &Segment| segment.range.start < range.start && segment.range.end > range.end;
        self.by_start.range(..range.start).next_back().is_some_and(|(_, segment)| inside(segment))
    }

    /// How many segments more there would be after [`Segments::lock`].
    pub fn growth(&self, range: LockRange, mode: LockMode) -> usize {
        // It changes nothing but what it overlaps or touches.
        let near = LockRange { start: range.start.saturating_sub(1), end: range.end.saturating_add(1) };
        let mut changed =
            Segments { by_start: self.overlapping(near).map(|segment| (segment.range.start, *segment)).collect() };
        let before = changed.len();
        changed.lock(range, mode, 0);
        changed.len().saturating_sub(before)
    }

    /// Removes `range`, cutting what it overlaps.
    pub fn unlock(&mut self, range: LockRange) {
        let cut: Vec<Segment> = self.overlapping(range).copied().collect();
        for segment in cut {
            self.by_start.remove(&segment.range.start);
            if segment.range.start < range.start {
                self.insert(Segment { range: LockRange { end: range.start - 1, ..segment.range }, ..segment });
            }
            if segment.range.end > range.end {
                self.insert(Segment { range: LockRange { start: range.end + 1, ..segment.range }, ..segment });
            }
        }
    }

    /// Sets all of `range` to `mode`, merging with neighbours of the same mode.
    pub fn lock(&mut self, range: LockRange, mode: LockMode, pid: u32) {
        assert!(mode != LockMode::Unlock, "a held lock has a mode");
        self.unlock(range);
        let mut merged = Segment { range, mode, pid };
        let left = self.by_start.range(..range.start).next_back().map(|(_, segment)| *segment);
        if let Some(left) = left
            && left.range.end + 1 == range.start
            && left.mode == mode
        {
            self.by_start.remove(&left.range.start);
            merged.range.start = left.range.start;
        }
        if let Some(right) = range.end.checked_add(1).and_then(|next| self.by_start.get(&next)).copied()
            && right.mode == mode
        {
            self.by_start.remove(&right.range.start);
            merged.range.end = right.range.end;
        }
        self.insert(merged);
    }

    fn insert(&mut self, segment: Segment) {
        let range = segment.range;
        assert!(range.start <= range.end, "a segment has a byte");
        let previous = self.by_start.range(..=range.start).next_back().map(|(_, previous)| previous.range.end);
        assert!(previous.is_none_or(|end| end < range.start), "a segment begins after the end of the one before");
        let next = self.by_start.range(range.start..).next().map(|(start, _)| *start);
        assert!(next.is_none_or(|start| range.end < start), "a segment ends before the next one begins");
        self.by_start.insert(range.start, segment);
    }
}
