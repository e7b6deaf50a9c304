//! The tables in memory: everything that changed since the last checkpoint, and as much of the rest
//! as fits.
//!
//! One ordered map per table. An entry is *dirty* while its latest value is not in the cold store:
//! it carries the epoch in which it changed. A checkpoint *freezes*: it starts a new epoch, then
//! walks the maps for entries changed before; entries become clean when their value is in the cold
//! store and they did not change in between. Clean entries may be dropped when memory is short;
//! from then on keys up to the last one that was dropped from a table are *lacking*: if memory does
//! not have one, it must be looked up in the cold store. Beyond it the table is still known, so
//! things with ascending numbers need no look into the cold store when they are new.
//!
//! Invariants: a dirty entry is never dropped; a clean entry equals the cold store's; removed keys
//! stay as dirty entries without a value until they are removed from the cold store; a key that is
//! neither in memory nor lacking does not exist.
//!
//! Downside of one map instead of a stack of tables: a checkpoint reads the newest values, so they
//! must be durable in the journal first, and a busy key is written although it is dirty again. In
//! return a read is one look-up. A walk looks at clean entries as well, at about ten nanoseconds
//! each; in return the cold store gets its keys in order.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;

use crate::{
    batch::{Operation, Table},
    key::Key,
};

/// Estimated memory of an entry apart from its bytes: its place in a node that is 60% full, and the
/// value's allocation with its share count.
const ENTRY_OVERHEAD_BYTES: usize = 72 * 10 / 6 + 16 + 40;
/// Estimated bytes of an entry in the cold store apart from its value: a key as they are, lengths
/// and numbers.
const COLD_OVERHEAD_BYTES: usize = 64;
/// The epoch of clean entries.
const CLEAN: u32 = 0;

struct Entry {
    /// `None`: removed.
    value: Option<Bytes>,
    /// Epoch of the value.
    epoch: u32,
    /// A value of an earlier epoch has not reached the cold store either: a checkpoint of that
    /// epoch must write the key, even though it can only write the newest value.
    overdue: bool,
    /// Read or written since eviction last came by. Readers set it beside each other.
    referenced: AtomicBool,
}

impl Entry {
    fn new(value: Option<Bytes>, epoch: u32, overdue: bool, referenced: bool) -> Self {
        Self { value, epoch, overdue, referenced: AtomicBool::new(referenced) }
    }
}

/// What memory knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(Bytes),
    Absent,
    /// Ask the cold store.
    Unknown,
}

/// How far a walk has come: all tables before this one, and the keys of this one up to and
/// including this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    table: u8,
    key: Option<Key>,
}

/// What a step of a walk found.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// The newest values of entries that changed before the freeze, in order.
    pub operations: Vec<Operation>,
    /// One of them changed after the freeze as well.
    pub newer: bool,
    /// Where to continue, `None` at the end.
    pub next: Option<Cursor>,
}

/// A part of a table in order, removed keys included.
pub(crate) struct Range {
    pub entries: Vec<(Key, Option<Bytes>)>,
    /// There is more in memory after the last entry.
    pub more: bool,
    /// Nothing is missing between the entries.
    pub complete: bool,
}

/// Which keys of a table the cold store may have and memory not.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lacking {
    Nothing,
    /// None after this one.
    UpTo(Key),
    Anything,
}

impl Lacking {
    fn includes(&self, key: &Key) -> bool {
        match self {
            Lacking::Nothing => false,
            Lacking::UpTo(last) => key <= last,
            Lacking::Anything => true,
        }
    }

    /// Whether it includes keys from there on.
    fn meets(&self, from: Bound<&Key>) -> bool {
        match (self, from) {
            (Lacking::Nothing, _) => false,
            (Lacking::UpTo(last), Bound::Included(from)) => from <= last,
            (Lacking::UpTo(last), Bound::Excluded(from)) => from < last,
            (Lacking::UpTo(_), Bound::Unbounded) | (Lacking::Anything, _) => true,
        }
    }

    /// A key is not in memory any more.
    fn add(&mut self, key: Key) {
        if !self.includes(&key) {
            *self = Lacking::UpTo(key);
        }
    }
}

/// The tables.
pub(crate) struct Tables {
    maps: Vec<BTreeMap<Key, Entry>>,
    bytes: usize,
    dirty: Dirty,
    epoch: u32,
    /// Of each table.
    lacking: Vec<Lacking>,
    /// Where eviction continues.
    hand: Cursor,
    /// Counts the times that entries became clean; see [`Tables::fill`].
    cleanings: u64,
}

/// What the cold store does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirty {
    entries: usize,
    /// Of these, removed keys.
    removals: usize,
    bytes: usize,
}

impl Dirty {
    fn add(&mut self, removal: bool, bytes: usize) {
        self.entries += 1;
        self.removals += usize::from(removal);
        self.bytes += bytes;
    }

    fn subtract(&mut self, removal: bool, bytes: usize) {
        self.entries -= 1;
        self.removals -= usize::from(removal);
        self.bytes -= bytes;
    }

    /// Estimated memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Estimated bytes that it will take in the cold store.
    pub fn cold_bytes(&self) -> usize {
        self.bytes - self.entries * (ENTRY_OVERHEAD_BYTES - COLD_OVERHEAD_BYTES)
    }

    /// Removed keys.
    pub fn removals(&self) -> usize {
        self.removals
    }
}

const _: () = assert!(size_of::<Key>() + size_of::<Entry>() == 72, "the overhead is computed with this");

fn entry_bytes(key: &Key, entry: &Entry) -> usize {
    ENTRY_OVERHEAD_BYTES + key.heap_bytes() + entry.value.as_ref().map_or(0, Bytes::len)
}

impl Tables {
    pub fn new() -> Tables {
        Tables {
            maps: (0..=u8::MAX).map(|_| BTreeMap::new()).collect(),
            bytes: 0,
            dirty: Dirty::default(),
            epoch: CLEAN + 1,
            lacking: vec![Lacking::Nothing; 1 + usize::from(u8::MAX)],
            hand: Cursor::default(),
            cleanings: 0,
        }
    }

    /// Makes one change. Values are copied: they may be parts of large buffers. Returns the value
    /// that was replaced, if that is of the present epoch: then the journal has it, or what makes
    /// it of an earlier one of the epoch, after all that the next checkpoint makes obsolete.
    pub fn apply(&mut self, operation: &Operation) -> Option<Bytes> {
        match operation {
            Operation::Put(table, key, value) => self.set(*table, key, Some(Bytes::copy_from_slice(value))),
            Operation::Delete(table, key) => self.set(*table, key, None),
        }
    }

    fn set(&mut self, table: Table, key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        let epoch = self.epoch;
        let removal = value.is_none();
        let map = &mut self.maps[usize::from(table.0)];
        let added = ENTRY_OVERHEAD_BYTES + value.as_ref().map_or(0, Bytes::len);
        match map.entry(Key::new(key)) {
            std::collections::btree_map::Entry::Occupied(mut slot) => {
                let before = entry_bytes(slot.key(), slot.get());
                let after = added + slot.key().heap_bytes();
                let old = slot.get();
                if old.epoch != CLEAN {
                    self.dirty.subtract(old.value.is_none(), before);
                }
                let overdue = old.epoch != CLEAN && (old.overdue || old.epoch != epoch);
                let old = std::mem::replace(slot.get_mut(), Entry::new(value, epoch, overdue, true));
                self.bytes = self.bytes - before + after;
                self.dirty.add(removal, after);
                old.value.filter(|_| old.epoch == epoch)
            }
            std::collections::btree_map::Entry::Vacant(slot) => {
                let bytes = added + slot.key().heap_bytes();
                slot.insert(Entry::new(value, epoch, false, true));
                self.bytes += bytes;
                self.dirty.add(removal, bytes);
                None
            }
        }
    }

    pub fn get(&self, table: Table, key: &[u8]) -> Lookup {
        let key = Key::new(key);
        match self.maps[usize::from(table.0)].get(&key) {
            Some(entry) => {
                // Mostly it is set: a look does not take the cache line away from other processors.
                if !entry.referenced.load(Ordering::Relaxed) {
                    entry.referenced.store(true, Ordering::Relaxed);
                }
                entry.value.as_ref().map_or(Lookup::Absent, |value| Lookup::Found(value.clone()))
            }
            None if self.lacking[usize::from(table.0)].includes(&key) => Lookup::Unknown,
            None => Lookup::Absent,
        }
    }

    /// Value of a key that changed in the present epoch, and was not removed.
    pub fn changed(&self, table: Table, key: &[u8]) -> Option<Bytes> {
        let entry = self.maps[usize::from(table.0)].get(&Key::new(key))?;
        entry.value.clone().filter(|_| entry.epoch == self.epoch)
    }

    /// Up to `count` entries in order.
    pub fn range(&self, table: Table, from: Bound<&[u8]>, to: Option<&[u8]>, count: usize) -> Range {
        let start = from.map(Key::new);
        let complete = !self.lacking[usize::from(table.0)].meets(start.as_ref());
        let mut result = Range { entries: Vec::new(), more: false, complete };
        if let (Bound::Included(from) | Bound::Excluded(from), Some(to)) = (from, to)
            && from >= to
        {
            return result;
        }
        let bounds = (start, to.map_or(Bound::Unbounded, |to| Bound::Excluded(Key::new(to))));
        for (key, entry) in self.maps[usize::from(table.0)].range(bounds) {
            if result.entries.len() == count {
                result.more = true;
                break;
            }
            result.entries.push((key.clone(), entry.value.clone()));
        }
        result
    }

    /// Begins a new epoch; the one that ended.
    pub fn freeze(&mut self) -> u32 {
        let frozen = self.epoch;
        self.epoch = self.epoch.checked_add(1).expect("a checkpoint per second fills a u32 after 136 years");
        frozen
    }

    /// Looks at up to `steps` entries from `cursor` on for those that changed in epochs up to
    /// `frozen`, until these have `bytes`.
    pub fn walk(&self, cursor: &Cursor, frozen: u32, steps: usize, bytes: usize) -> Step {
        let mut step = Step { next: Some(cursor.clone()), ..Step::default() };
        let (mut left, mut found) = (steps, 0);
        while let Some(cursor) = step.next.take() {
            let table = Table(cursor.table);
            let start = cursor.key.map_or(Bound::Unbounded, Bound::Excluded);
            let mut last = None;
            for (key, entry) in self.maps[usize::from(cursor.table)].range((start, Bound::Unbounded)).take(left) {
                left -= 1;
                last = Some(key);
                let newer = entry.epoch > frozen;
                if entry.epoch == CLEAN || (newer && !entry.overdue) {
                    continue;
                }
                step.newer |= newer;
                found += entry_bytes(key, entry);
                let key = Bytes::copy_from_slice(key.as_slice());
                step.operations.push(match &entry.value {
                    Some(value) => Operation::Put(table, key, value.clone()),
                    None => Operation::Delete(table, key),
                });
                if found >= bytes {
                    left = 0;
                    break;
                }
            }
            step.next = match last {
                Some(key) if left == 0 => Some(Cursor { table: cursor.table, key: Some(key.clone()) }),
                _ => cursor.table.checked_add(1).map(|table| Cursor { table, key: None }),
            };
            if left == 0 {
                break;
            }
        }
        step
    }

    /// The cold store has these values; those of epochs up to `frozen` are still the newest.
    pub fn mark_clean(&mut self, operations: &[Operation], frozen: u32) {
        self.cleanings += 1;
        for operation in operations {
            let map = &mut self.maps[usize::from(operation.table().0)];
            let key = Key::new(operation.key());
            let Some(entry) = map.get_mut(&key) else { continue };
            if entry.epoch > frozen {
                entry.overdue = false;
                continue;
            }
            assert_ne!(entry.epoch, CLEAN, "only a checkpoint cleans, and there is one at a time");
            entry.epoch = CLEAN;
            entry.overdue = false;
            let removed = entry.value.is_none();
            let bytes = entry_bytes(&key, entry);
            self.dirty.subtract(removed, bytes);
            if removed {
                map.remove(&key);
                self.bytes -= bytes;
            }
        }
    }

    /// To be remembered before the cold store is read, and given to [`Tables::fill`].
    pub fn cleanings(&self) -> u64 {
        self.cleanings
    }

    /// Remembers what the cold store said of a key that memory did not know, unless the answer may
    /// be stale: if entries became clean meanwhile, a newer value may have come, gone to the cold
    /// store and been dropped.
    pub fn fill(&mut self, table: Table, key: &[u8], value: Bytes, cleanings: u64) {
        if cleanings != self.cleanings {
            return;
        }
        self.insert_clean(table, key, value);
    }

    /// Adds an entry of the cold store, if nothing newer is there.
    pub fn insert_clean(&mut self, table: Table, key: &[u8], value: Bytes) {
        let slot = self.maps[usize::from(table.0)].entry(Key::new(key));
        if let std::collections::btree_map::Entry::Vacant(slot) = slot {
            let entry = Entry::new(Some(value), CLEAN, false, false);
            self.bytes += entry_bytes(slot.key(), &entry);
            slot.insert(entry);
        }
    }

    /// Not everything of a table is in memory from now on.
    pub fn set_incomplete(&mut self, table: Table) {
        self.lacking[usize::from(table.0)] = Lacking::Anything;
    }

    /// Drops clean entries that were not used since it last came by, until memory is within
    /// `budget`, looking at no more than `steps` entries.
    pub fn evict(&mut self, budget: usize, mut steps: usize) {
        while self.bytes > budget && steps > 0 {
            let looked_at = self.evict_some(budget, steps.min(64));
            steps -= looked_at;
        }
    }

    /// One run of the hand within one table; the number of entries looked at, at least 1 so that it
    /// ends.
    fn evict_some(&mut self, budget: usize, steps: usize) -> usize {
        let Cursor { table, key: from } = self.hand.clone();
        let map = &mut self.maps[usize::from(table)];
        let start = from.map_or(Bound::Unbounded, Bound::Excluded);
        let mut excess = self.bytes.saturating_sub(budget);
        let mut victims = Vec::new();
        let mut looked_at = 0;
        let mut last = None;
        for (key, entry) in map.range_mut((start, Bound::Unbounded)).take(steps) {
            looked_at += 1;
            last = Some(key.clone());
            if entry.epoch == CLEAN && !*entry.referenced.get_mut() {
                excess = excess.saturating_sub(entry_bytes(key, entry));
                victims.push(key.clone());
            }
            *entry.referenced.get_mut() = false;
            if excess == 0 {
                break;
            }
        }
        self.hand = match last {
            Some(key) => Cursor { table, key: Some(key) },
            None => Cursor { table: table.wrapping_add(1), key: None },
        };
        for key in victims {
            let entry = map.remove(&key).expect("it was there a moment ago");
            self.bytes -= entry_bytes(&key, &entry);
            self.lacking[usize::from(table)].add(key);
        }
        looked_at.max(1)
    }

    /// Whether everything is in memory.
    pub fn is_complete(&self) -> bool {
        self.lacking.iter().all(|lacking| *lacking == Lacking::Nothing)
    }

    /// Estimated memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the cold store does not know yet.
    pub fn dirty(&self) -> Dirty {
        self.dirty
    }
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
