//! Windows: free blocks that are kept for the object, or the small objects of one locality, that
//! will probably write next. They exist in memory only; a restart makes them free.
//!
//! A window of an object maps a range of the object to a run of the device, so that an object
//! written out of order is still in order on the device. Using its middle leaves two windows.
//!
//! Windows whose owner was idle for long are given back, and under pressure those that are idle
//! longest go first: objects that are complete need none, and what they keep cuts the free space
//! into pieces.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Bound, Range},
};

use types::ObjectId;

use crate::window_uses::{Owner, WindowUses};

/// Windows of objects, at most. An object that loses its window gets a new one elsewhere.
const WINDOWS_MAX: usize = 65_536;

/// Windows of localities, at most.
const SHARED_MAX: usize = 4096;

/// Windows that are given up or halved at a time, of each kind: the caller holds a lock, and each
/// takes about a microsecond. An object that is overwritten here and there has very many.
pub(crate) const GIVEN_MAX: usize = 1024;

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
    uses: WindowUses,
    /// The caller's time.
    now: u64,
    /// The windows that were halved last.
    halved: (Option<(ObjectId, u64)>, Option<u64>),
}

/// Up to [`GIVEN_MAX`] keys after one, from the first on after the last.
fn keys_after<K: Copy + Ord, V>(map: &BTreeMap<K, V>, last: Option<K>) -> Vec<K> {
    let after = last.map_or(Bound::Unbounded, Bound::Excluded);
    let up_to = last.map(|last| map.range(..=last)).into_iter().flatten();
    map.range((after, Bound::Unbounded)).chain(up_to).map(|(key, _)| *key).take(GIVEN_MAX).collect()
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

    /// Windows are used at this time from now on, in any unit.
    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Adds a window; returns blocks of others that had to be given up for it.
    pub(crate) fn add(&mut self, object: ObjectId, window: Window) -> Vec<Range<u64>> {
        if window.blocks == 0 {
            return Vec::new();
        }
        let is_full = self.of_objects.len() >= WINDOWS_MAX;
        let given_up =
            if is_full { self.give_up_oldest(|owner| matches!(owner, Owner::Object(_))) } else { Vec::new() };
        self.blocks += u64::from(window.blocks);
        let old = self.of_objects.insert((object, window.logical), window);
        assert!(old.is_none(), "windows of an object do not overlap");
        self.uses.used(Owner::Object(object), self.now);
        given_up
    }

    /// Gives a locality a window, which had none; returns blocks of another one that had to be
    /// given up for it.
    pub(crate) fn add_shared(&mut self, locality: u64, window: Range<u64>) -> Vec<Range<u64>> {
        if window.is_empty() {
            return Vec::new();
        }
        let is_full = self.of_localities.len() >= SHARED_MAX;
        let given_up =
            if is_full { self.give_up_oldest(|owner| matches!(owner, Owner::Locality(_))) } else { Vec::new() };
        self.blocks += window.end - window.start;
        let old = self.of_localities.insert(locality, window);
        assert!(old.is_none(), "a locality has one window");
        self.uses.used(Owner::Locality(locality), self.now);
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
        self.note_use(Owner::Object(object));
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
        self.note_use(Owner::Locality(locality));
    }

    /// An owner used a window, and perhaps has none any more.
    fn note_use(&mut self, owner: Owner) {
        if self.has_windows(owner) {
            self.uses.used(owner, self.now);
        } else {
            self.uses.forget(owner);
        }
    }

    fn has_windows(&self, owner: Owner) -> bool {
        match owner {
            Owner::Object(object) => self.next_of_object(object, 0).is_some(),
            Owner::Locality(locality) => self.of_localities.contains_key(&locality),
        }
    }

    /// Takes away the windows of an object; returns their blocks. If it has very many, the rest are
    /// the first to be given up next.
    pub(crate) fn drop_object(&mut self, object: ObjectId) -> Vec<Range<u64>> {
        let owner = Owner::Object(object);
        let given = self.give_up(owner);
        if self.has_windows(owner) {
            self.uses.used(owner, 0);
        }
        given
    }

    /// Takes away windows of owners that are idle since before a time, those that are idle longest
    /// first, until they had so many blocks, or are many; returns the blocks.
    pub(crate) fn give_up_idle(&mut self, since_before: u64, blocks: u64) -> Vec<Range<u64>> {
        let (mut given, end) = (Vec::new(), self.blocks.saturating_sub(blocks));
        while self.blocks > end
            && given.len() < GIVEN_MAX
            && let Some(owner) = self.uses.idle_since(since_before)
        {
            given.append(&mut self.give_up(owner));
        }
        given
    }

    /// The same under pressure: of all that were not used at the present time; if there are none,
    /// half of every window, those after the ones that were halved before.
    pub(crate) fn shrink(&mut self, blocks: u64) -> Vec<Range<u64>> {
        let given = self.give_up_idle(self.now, blocks);
        if given.is_empty() { self.halve() } else { given }
    }

    fn give_up_oldest(&mut self, wanted: impl Fn(&Owner) -> bool) -> Vec<Range<u64>> {
        self.uses.oldest(wanted).map_or(Vec::new(), |owner| self.give_up(owner))
    }

    /// Takes away windows of an owner: all, if they are not very many.
    fn give_up(&mut self, owner: Owner) -> Vec<Range<u64>> {
        let given: Vec<Range<u64>> = match owner {
            Owner::Object(object) => {
                let of_object = self.of_objects.range((object, 0)..=(object, u64::MAX));
                let keys: Vec<_> = of_object.map(|(key, _)| *key).take(GIVEN_MAX).collect();
                keys.iter().filter_map(|key| self.of_objects.remove(key)).map(|window| window.device()).collect()
            }
            Owner::Locality(locality) => self.of_localities.remove(&locality).into_iter().collect(),
        };
        if !self.has_windows(owner) {
            self.uses.forget(owner);
        }
        self.blocks -= given.iter().map(|blocks| blocks.end - blocks.start).sum::<u64>();
        given
    }

    /// Halves windows from their ends; returns the blocks. Nothing is left after each was halved
    /// log2(its blocks) + 1 times.
    fn halve(&mut self) -> Vec<Range<u64>> {
        let (mut given, mut owners) = (Vec::new(), BTreeSet::new());
        for key in keys_after(&self.of_objects, self.halved.0) {
            let window = self.of_objects.get_mut(&key).expect("its key was found");
            let kept = window.blocks / 2;
            given.push(window.start + u64::from(kept)..window.device().end);
            window.blocks = kept;
            if kept == 0 {
                self.of_objects.remove(&key);
                owners.insert(Owner::Object(key.0));
            }
            self.halved.0 = Some(key);
        }
        for key in keys_after(&self.of_localities, self.halved.1) {
            let window = self.of_localities.get_mut(&key).expect("its key was found");
            let kept = (window.end - window.start) / 2;
            given.push(window.start + kept..window.end);
            window.end = window.start + kept;
            if kept == 0 {
                self.of_localities.remove(&key);
                owners.insert(Owner::Locality(key));
            }
            self.halved.1 = Some(key);
        }
        for owner in owners {
            if !self.has_windows(owner) {
                self.uses.forget(owner);
            }
        }
        self.blocks -= given.iter().map(|blocks| blocks.end - blocks.start).sum::<u64>();
        given
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

    /// One range.
    fn only(blocks: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(blocks).collect()
    }

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
        assert_eq!((windows.count(), windows.blocks(), windows.uses.count()), (0, 0, 0));
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
            assert_eq!(windows.add(object, Window { logical: 0, start: number * 8, blocks: 8 }), []);
        }
        windows.set_time(1);
        windows.take(ObjectId::new(InodeNumber(0), 0), &(0..1));
        let given_up = windows.add(OBJECT, Window { logical: 8, start: 1 << 40, blocks: 8 });
        assert_eq!(given_up, only(8..16), "the first one was used since");
        assert_eq!(windows.count(), WINDOWS_MAX);
        let mut shared = Windows::default();
        for locality in 0..SHARED_MAX as u64 {
            assert_eq!(shared.add_shared(locality, locality * 8..locality * 8 + 8), []);
        }
        let given_up = shared.add_shared(1 << 40, 1 << 40..(1 << 40) + 8);
        assert_eq!(given_up, only(0..8));
        assert_eq!((shared.count(), shared.blocks()), (SHARED_MAX, 8 * SHARED_MAX as u64));
    }

    #[test]
    fn windows_that_are_idle_longest_go_first() {
        let mut windows = Windows::default();
        for (time, number) in [(1, 5), (2, 3), (3, 4)] {
            windows.set_time(time);
            let object = ObjectId::new(InodeNumber(number), 0);
            assert_eq!(windows.add(object, Window { logical: 0, start: number * 100, blocks: 16 }), []);
            assert_eq!(windows.add_shared(number, number * 1000..number * 1000 + 4), []);
        }
        windows.set_time(9);
        windows.take(ObjectId::new(InodeNumber(5), 0), &(0..2));
        assert_eq!(windows.give_up_idle(2, u64::MAX), only(5000..5004), "its object was used");
        assert_eq!(windows.give_up_idle(9, 17), [300..316, 3000..3004], "no more than are wanted");
        assert_eq!(windows.shrink(1), only(400..416));
        assert_eq!(windows.shrink(100), only(4000..4004));
        assert_eq!(windows.shrink(100), only(509..516), "what is in use is halved");
        assert_eq!((windows.count(), windows.blocks(), windows.uses.count()), (1, 7, 1));
        for _ in 0..3 {
            windows.shrink(100);
        }
        assert_eq!((windows.count(), windows.blocks(), windows.uses.count()), (0, 0, 0));
    }

    #[test]
    fn an_object_with_very_many_windows_gives_up_some_at_a_time() {
        let many = || {
            let mut windows = Windows::default();
            windows.set_time(5);
            for number in 0..3 * GIVEN_MAX as u64 {
                assert_eq!(windows.add(OBJECT, Window { logical: number * 8, start: number * 8, blocks: 7 }), []);
            }
            windows
        };
        let mut windows = many();
        assert_eq!(windows.give_up_idle(6, u64::MAX).len(), GIVEN_MAX);
        assert_eq!(windows.give_up_idle(6, 7).len(), GIVEN_MAX, "of one object, what it has in that place");
        assert_eq!((windows.count(), windows.uses.count()), (GIVEN_MAX, 1));
        let mut windows = many();
        let mut halved: Vec<_> = (0..3).flat_map(|_| windows.shrink(1)).collect();
        halved.sort_by_key(|blocks| blocks.start);
        assert!((0..).zip(&halved).all(|(number, blocks)| *blocks == (number * 8 + 3..number * 8 + 7)), "each once");
        assert_eq!(windows.blocks(), 3 * 3 * GIVEN_MAX as u64);
        while windows.count() > 0 {
            assert!((1..=GIVEN_MAX).contains(&windows.shrink(1).len()));
        }
        assert_eq!((windows.blocks(), windows.uses.count()), (0, 0));
        let mut windows = many();
        assert_eq!(windows.drop_object(OBJECT).len(), GIVEN_MAX);
        windows.add(OTHER, Window { logical: 0, start: 1 << 40, blocks: 9 });
        for _ in 0..2 {
            assert_eq!(windows.give_up_idle(5, u64::MAX).len(), GIVEN_MAX, "the dropped ones go first");
        }
        assert_eq!((windows.blocks(), windows.give_up_idle(5, u64::MAX)), (9, Vec::new()));
    }
}
