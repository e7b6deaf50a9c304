//! The tables in memory: everything that changed since the last checkpoint, and as much of the rest as fits.
//!
//! One ordered map per table. An entry is *dirty* while its latest value is not in the cold store: it carries the epoch in
//! which it changed. A checkpoint *freezes*: it takes the list of keys that changed and begins a new epoch; entries become
//! clean when their value is in the cold store and they did not change in between. Clean entries may be dropped when
//! memory is short; from then on the tables are no longer *complete* and a missing key must be asked for in the cold store.
//!
//! Invariants: a dirty entry is never dropped; a clean entry equals the cold store's; removed keys stay as dirty
//! entries without a value until the cold store knows; complete means that a missing key does not exist.
//!
//! Downside of one map instead of a stack of tables: a checkpoint reads the newest values, so they must be durable in the
//! journal first, and a busy key is written although it is dirty again. In return a read is one look-up.

use std::{collections::BTreeMap, ops::Bound};

use bytes::Bytes;

use crate::{
    batch::{Operation, Table},
    key::Key,
};

/// Estimated memory of an entry apart from its bytes: its place in a node that is 60% full, and the value's allocation
/// with its share count.
const ENTRY_OVERHEAD_BYTES: usize = 72 * 10 / 6 + 16 + 40;
/// The epoch of clean entries.
const CLEAN: u32 = 0;

struct Entry {
    /// `None`: removed.
    value: Option<Bytes>,
    epoch: u32,
    /// Read or written since eviction last came by.
    referenced: bool,
}

/// What memory knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    Found(Bytes),
    Absent,
    /// Ask the cold store.
    Unknown,
}

/// A changed key, as a freeze lists it.
pub(crate) type DirtyKey = (Table, Key);

/// A part of a table in order, removed keys included.
pub(crate) struct Range {
    pub entries: Vec<(Key, Option<Bytes>)>,
    /// There is more in memory behind the last entry.
    pub more: bool,
    /// Nothing is missing between the entries.
    pub complete: bool,
}

/// The tables.
pub(crate) struct Tables {
    maps: Vec<BTreeMap<Key, Entry>>,
    bytes: usize,
    dirty_bytes: usize,
    epoch: u32,
    dirty: Vec<DirtyKey>,
    complete: bool,
    /// Where eviction goes on.
    hand: (u8, Option<Key>),
    /// Counts the times that entries became clean; see [`Tables::fill`].
    cleanings: u64,
}

fn entry_bytes(key: &Key, entry: &Entry) -> usize {
    ENTRY_OVERHEAD_BYTES + key.heap_bytes() + entry.value.as_ref().map_or(0, Bytes::len)
}

impl Tables {
    pub fn new() -> Tables {
        Tables {
            maps: (0..=u8::MAX).map(|_| BTreeMap::new()).collect(),
            bytes: 0,
            dirty_bytes: 0,
            epoch: CLEAN + 1,
            dirty: Vec::new(),
            complete: true,
            hand: (0, None),
            cleanings: 0,
        }
    }

    /// Makes one change. Values are copied: they may be parts of large buffers.
    pub fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Put(table, key, value) => self.set(*table, key, Some(Bytes::copy_from_slice(value))),
            Operation::Delete(table, key) => self.set(*table, key, None),
        }
    }

    fn set(&mut self, table: Table, key: &[u8], value: Option<Bytes>) {
        let epoch = self.epoch;
        let map = &mut self.maps[usize::from(table.0)];
        let added = ENTRY_OVERHEAD_BYTES + value.as_ref().map_or(0, Bytes::len);
        match map.entry(Key::new(key)) {
            std::collections::btree_map::Entry::Occupied(mut slot) => {
                let before = entry_bytes(slot.key(), slot.get());
                let after = added + slot.key().heap_bytes();
                if slot.get().epoch != CLEAN {
                    self.dirty_bytes -= before;
                }
                if slot.get().epoch != epoch {
                    self.dirty.push((table, slot.key().clone()));
                }
                *slot.get_mut() = Entry { value, epoch, referenced: true };
                self.bytes = self.bytes - before + after;
                self.dirty_bytes += after;
            }
            std::collections::btree_map::Entry::Vacant(slot) => {
                let bytes = added + slot.key().heap_bytes();
                self.dirty.push((table, slot.key().clone()));
                slot.insert(Entry { value, epoch, referenced: true });
                self.bytes += bytes;
                self.dirty_bytes += bytes;
            }
        }
    }

    pub fn get(&mut self, table: Table, key: &[u8]) -> Lookup {
        match self.maps[usize::from(table.0)].get_mut(key) {
            Some(entry) => {
                entry.referenced = true;
                entry.value.as_ref().map_or(Lookup::Absent, |value| Lookup::Found(value.clone()))
            }
            None if self.complete => Lookup::Absent,
            None => Lookup::Unknown,
        }
    }

    /// Up to `count` entries in order.
    pub fn range(&self, table: Table, from: Bound<&[u8]>, to: Option<&[u8]>, count: usize) -> Range {
        let mut result = Range { entries: Vec::new(), more: false, complete: self.complete };
        if let (Bound::Included(from) | Bound::Excluded(from), Some(to)) = (from, to)
            && from >= to
        {
            return result;
        }
        let to = to.map_or(Bound::Unbounded, Bound::Excluded);
        for (key, entry) in self.maps[usize::from(table.0)].range::<[u8], _>((from, to)) {
            if result.entries.len() == count {
                result.more = true;
                break;
            }
            result.entries.push((key.clone(), entry.value.clone()));
        }
        result
    }

    /// Begins a new epoch; the keys that changed before, which are all that is dirty except for what earlier freezes
    /// handed out, and the epoch that ended.
    pub fn freeze(&mut self) -> (Vec<DirtyKey>, u32) {
        let frozen = self.epoch;
        self.epoch = self.epoch.checked_add(1).expect("a checkpoint per second fills a u32 after 136 years");
        (std::mem::take(&mut self.dirty), frozen)
    }

    /// The newest values of frozen keys, sorted, without those that were written meanwhile; and whether any changed after
    /// `frozen`.
    pub fn frozen_values(&self, keys: &mut [DirtyKey], frozen: u32) -> (Vec<Operation>, bool) {
        keys.sort_unstable();
        let mut changed = false;
        let mut operations: Vec<Operation> = Vec::with_capacity(keys.len());
        for (index, dirty) in keys.iter().enumerate() {
            let (table, key) = dirty;
            let Some(entry) = self.maps[usize::from(table.0)].get(key.as_slice()) else { continue };
            if entry.epoch == CLEAN || (index > 0 && keys[index - 1] == *dirty) {
                continue;
            }
            changed |= entry.epoch > frozen;
            let key = Bytes::copy_from_slice(key.as_slice());
            operations.push(match &entry.value {
                Some(value) => Operation::Put(*table, key, value.clone()),
                None => Operation::Delete(*table, key),
            });
        }
        (operations, changed)
    }

    /// The cold store has these keys' values of epochs up to `frozen`.
    pub fn mark_clean(&mut self, keys: &[DirtyKey], frozen: u32) {
        self.cleanings += 1;
        for (table, key) in keys {
            let map = &mut self.maps[usize::from(table.0)];
            let Some(entry) = map.get_mut(key.as_slice()) else { continue };
            if entry.epoch == CLEAN || entry.epoch > frozen {
                continue;
            }
            let bytes = entry_bytes(key, entry);
            entry.epoch = CLEAN;
            self.dirty_bytes -= bytes;
            if entry.value.is_none() {
                map.remove(key.as_slice());
                self.bytes -= bytes;
            }
        }
    }

    /// To be remembered before the cold store is read, and given to [`Tables::fill`].
    pub fn cleanings(&self) -> u64 {
        self.cleanings
    }

    /// Remembers what the cold store said of a key that memory did not know, unless the answer may be stale: if entries
    /// became clean meanwhile, a newer value may have come, gone to the cold store and been dropped.
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
            let entry = Entry { value: Some(value), epoch: CLEAN, referenced: false };
            self.bytes += entry_bytes(slot.key(), &entry);
            slot.insert(entry);
        }
    }

    /// Not everything is in memory from now on.
    pub fn set_incomplete(&mut self) {
        self.complete = false;
    }

    /// Drops clean entries that were not used since it last came by, until memory is within `budget`, looking at no more
    /// than `steps` entries.
    pub fn evict(&mut self, budget: usize, mut steps: usize) {
        while self.bytes > budget && steps > 0 {
            let looked_at = self.evict_some(budget, steps.min(64));
            steps -= looked_at;
        }
    }

    /// One run of the hand within one table; the number of entries looked at, at least 1 so that it ends.
    fn evict_some(&mut self, budget: usize, steps: usize) -> usize {
        let (table, from) = self.hand.clone();
        let map = &mut self.maps[usize::from(table)];
        let start = from.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
        let mut excess = self.bytes.saturating_sub(budget);
        let mut victims = Vec::new();
        let mut looked_at = 0;
        let mut last = None;
        for (key, entry) in map.range_mut::<[u8], _>((start, Bound::Unbounded)).take(steps) {
            looked_at += 1;
            last = Some(key.clone());
            if entry.epoch == CLEAN && !entry.referenced {
                excess = excess.saturating_sub(entry_bytes(key, entry));
                victims.push(key.clone());
            }
            entry.referenced = false;
            if excess == 0 {
                break;
            }
        }
        self.hand = match last {
            Some(key) => (table, Some(key)),
            None => (table.wrapping_add(1), None),
        };
        for key in victims {
            let entry = map.remove(key.as_slice()).expect("it was there a moment ago");
            self.bytes -= entry_bytes(&key, &entry);
            self.complete = false;
        }
        looked_at.max(1)
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Estimated memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Estimated memory of dirty entries.
    pub fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }
}
