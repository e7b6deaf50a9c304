//! Windows: free blocks that are kept for the object, or the small objects of one locality, that
//! will probably write next. They exist in memory only; a restart makes them free.
//!
//! A window of an object maps a range of the object to a run of the device, so that an object
//! written out of order is still in order on the device. Using its middle leaves two windows.

use std::{collections::BTreeMap, ops::Bound, ops::Range};

use types::ObjectId;

/// Windows of objects, at most. An object that loses its window gets a new one elsewhere.
const WINDOWS_MAX: usize = 65_536;

/// Windows of localities, at most.
const SHARED_MAX: usize = 4096;

/// Blocks of the device for a range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First block, within the object.
    pub logical: u64,
    /// First block on the device.
    pub start: u64,
    /// Blocks.
    pub blocks: u32,
}

impl Window {
    /// Its blocks on the device.
    pub fn device(&self) -> Range<u64> {
        self.start..self.start + u64::from(self.blocks)
    }

    fn end(&self) -> u64 {
        self.logical + u64::from(self.blocks)
    }

    /// Its parts without a range of it: before and after.
    fn without(&self, logical: &Range<u64>) -> [Window; 2] {
        let before = Window { blocks: (logical.start - self.logical) as u32, ..*self };
        let skipped = logical.end - self.logical;
        let after = Window { logical: logical.end, start: self.start + skipped, blocks: self.blocks - skipped as u32 };
        [before, after]
    }
}

/// All windows of a device.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    of_objects: BTreeMap<(ObjectId, u64), Window>,
    of_localities: BTreeMap<u64, Range<u64>>,
    blocks: u64,
    /// The window that is given up next when there are too many.
    hand: (ObjectId, u64),
}

impl Windows {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.of_objects.len() + self.of_localities.len()
    }

    /// Blocks of all of them.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The part of an object's window from a block on.
    pub fn of_object(&self, object: ObjectId, logical: u64) -> Option<Window> {
        let (_, window) = self.of_objects.range((object, 0)..=(object, logical)).next_back()?;
        let [_, rest] = (logical < window.end()).then(|| window.without(&(logical..logical)))?;
        Some(rest)
    }

    /// Where the next window of an object begins, at or after a block of it.
    pub(crate) fn next_of_object(&self, object: ObjectId, logical: u64) -> Option<u64> {
        self.of_objects.range((object, logical)..=(object, u64::MAX)).next().map(|((_, logical), _)| *logical)
    }

    /// What is left of a locality's window.
    pub fn of_locality(&self, locality: u64) -> Option<Range<u64>> {
        self.of_localities.get(&locality).cloned()
    }

    /// Adds a window; returns blocks of another one that had to be given up for it.
    pub(crate) fn add(&mut self, object: ObjectId, window: Window) -> Option<Range<u64>> {
        if window.blocks == 0 {
            return None;
        }
        let given_up = if self.of_objects.len() >= WINDOWS_MAX { self.give_up_one() } else { None };
        self.blocks += u64::from(window.blocks);
        let old = self.of_objects.insert((object, window.logical), window);
        assert!(old.is_none(), "windows of an object do not overlap");
        given_up
    }

    /// Gives a locality a window, which had none; returns blocks of another one that had to be
    /// given up for it.
    pub(crate) fn add_shared(&mut self, locality: u64, window: Range<u64>) -> Option<Range<u64>> {
        if window.is_empty() {
            return None;
        }
        let is_full = self.of_localities.len() >= SHARED_MAX;
        let given_up = if is_full { self.of_localities.pop_first().map(|(_, blocks)| blocks) } else { None };
        self.blocks -= given_up.as_ref().map_or(0, |blocks| blocks.end - blocks.start);
        self.blocks += window.end - window.start;
        let old = self.of_localities.insert(locality, window);
        assert!(old.is_none(), "a locality has one window");
        given_up
    }

    /// Uses a part of an object's window.
    pub(crate) fn take(&mut self, object: ObjectId, logical: &Range<u64>) {
        let (key, window) = self.of_objects.range(..=(object, logical.start)).next_back().expect("there is a window");
        let (key, window) = (*key, *window);
        assert!(key.0 == object && logical.end <= window.end(), "the window has these blocks");
        self.of_objects.remove(&key);
        for part in window.without(logical).into_iter().filter(|part| part.blocks > 0) {
            self.of_objects.insert((object, part.logical), part);
        }
        self.blocks -= logical.end - logical.start;
    }

    /// Uses the first blocks of a locality's window.
    pub(crate) fn take_shared(&mut self, locality: u64, blocks: u32) {
        let window = self.of_localities.get_mut(&locality).expect("the locality has a window");
        window.start += u64::from(blocks);
        assert!(window.start <= window.end, "the window has these blocks");
        if window.is_empty() {
            self.of_localities.remove(&locality);
        }
        self.blocks -= u64::from(blocks);
    }

    /// Takes away all windows of an object; returns their blocks.
    pub(crate) fn drop_object(&mut self, object: ObjectId) -> Vec<Range<u64>> {
        let keys: Vec<_> = self.of_objects.range((object, 0)..=(object, u64::MAX)).map(|(key, _)| *key).collect();
        let dropped: Vec<_> = keys.iter().filter_map(|key| self.of_objects.remove(key)).collect();
        self.blocks -= dropped.iter().map(|window| u64::from(window.blocks)).sum::<u64>();
        dropped.iter().map(Window::device).collect()
    }

    /// Halves every window from its end; returns the blocks. Nothing is left after
    /// log2(longest) + 1 times.
    pub(crate) fn halve(&mut self) -> Vec<Range<u64>> {
        let mut given = Vec::new();
        for window in self.of_objects.values_mut() {
            let kept = window.blocks / 2;
            given.push(window.start + u64::from(kept)..window.device().end);
            window.blocks = kept;
        }
        for window in self.of_localities.values_mut() {
            let kept = (window.end - window.start) / 2;
            given.push(window.start + kept..window.end);
            window.end = window.start + kept;
        }
        self.of_objects.retain(|_, window| window.blocks > 0);
        self.of_localities.retain(|_, window| !window.is_empty());
        self.blocks -= given.iter().map(|blocks| blocks.end - blocks.start).sum::<u64>();
        given
    }

    fn give_up_one(&mut self) -> Option<Range<u64>> {
        let next = self.of_objects.range((Bound::Excluded(self.hand), Bound::Unbounded)).next();
        let (key, window) = next.or_else(|| self.of_objects.iter().next()).map(|(key, window)| (*key, *window))?;
        self.of_objects.remove(&key);
        self.hand = key;
        self.blocks -= u64::from(window.blocks);
        Some(window.device())
    }

    /// The blocks of all windows, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Range<u64>> {
        self.of_objects.values().map(Window::device).chain(self.of_localities.values().cloned())
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;

    const OBJECT: ObjectId = ObjectId::new(InodeNumber(1), 0);
    const OTHER: ObjectId = ObjectId::new(InodeNumber(2), 0);

    #[test]
    fn the_middle_of_a_window_leaves_two() {
        let mut windows = Windows::default();
        windows.add(OBJECT, Window { logical: 100, start: 5000, blocks: 50 });
        windows.take(OBJECT, &(110..120));
        assert_eq!((windows.count(), windows.blocks()), (2, 40));
        assert_eq!(windows.of_object(OBJECT, 105), Some(Window { logical: 105, start: 5005, blocks: 5 }));
        assert_eq!(windows.of_object(OBJECT, 115), None);
        assert_eq!(windows.of_object(OBJECT, 120), Some(Window { logical: 120, start: 5020, blocks: 30 }));
        assert_eq!(windows.of_object(OBJECT, 150), None);
        assert_eq!(windows.of_object(OTHER, 105), None);
        assert_eq!(windows.next_of_object(OBJECT, 101), Some(120));
        assert_eq!(windows.drop_object(OBJECT), [5000..5010, 5020..5050]);
        assert_eq!((windows.count(), windows.blocks()), (0, 0));
    }

    #[test]
    fn halving_ends_with_nothing() {
        let mut windows = Windows::default();
        windows.add(OBJECT, Window { logical: 0, start: 0, blocks: 9 });
        windows.add_shared(3, 100..116);
        assert_eq!(windows.halve(), [4..9, 108..116]);
        assert_eq!(windows.blocks(), 12);
        let rest: u64 = (0..4).flat_map(|_| windows.halve()).map(|blocks| blocks.end - blocks.start).sum();
        assert_eq!((rest, windows.count(), windows.blocks()), (12, 0, 0));
    }

    #[test]
    fn there_are_never_more_windows_than_the_limit() {
        let mut windows = Windows::default();
        for number in 0..WINDOWS_MAX as u64 {
            let object = ObjectId::new(InodeNumber(number), 0);
            assert_eq!(windows.add(object, Window { logical: 0, start: number * 8, blocks: 8 }), None);
        }
        let given_up = windows.add(OBJECT, Window { logical: 8, start: 1 << 40, blocks: 8 });
        assert_eq!((given_up, windows.count()), (Some(8..16), WINDOWS_MAX));
        let mut shared = Windows::default();
        for locality in 0..SHARED_MAX as u64 {
            assert_eq!(shared.add_shared(locality, locality * 8..locality * 8 + 8), None);
        }
        let given_up = shared.add_shared(1 << 40, 1 << 40..(1 << 40) + 8);
        assert_eq!((given_up, shared.count(), shared.blocks()), (Some(0..8), SHARED_MAX, 8 * SHARED_MAX as u64));
    }
}
