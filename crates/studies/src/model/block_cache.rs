//! The part of its targets' files that a server holds in memory: records of a fixed size, of which
//! the least recently used are evicted first.
//!
//! Only the identity of the records and the time when each is available are stored, not their
//! contents: a record is in the cache as soon as it is being fetched, so that others that want it
//! wait for the same fetch. Downside: a record is held as a whole or not at all.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rt::Instant;

/// Bytes of a record: what a read of a single byte brings into memory (the default recordsize of
/// ZFS).
pub const RECORD_BYTES: u64 = 128 << 10;

/// The memory of a server, which its targets share.
pub type ServerMemory = Arc<Mutex<BlockCache>>;

type Key = (Arc<str>, u64);

#[derive(Debug)]
struct Record {
    /// When it was used, in uses.
    used: u64,
    /// When it is there.
    ready: Instant,
}

/// The records held.
#[derive(Debug)]
pub struct BlockCache {
    bytes_max: u64,
    records: BTreeMap<Key, Record>,
    /// By use: the first is the least recently used.
    order: BTreeMap<u64, Key>,
    uses: u64,
}

impl BlockCache {
    /// One that holds so many bytes at most; 0: none.
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, records: BTreeMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// When all of `offset..offset + bytes` is there, if it is held or on its way; then it has just
    /// been used.
    pub fn hit(&mut self, file: &Arc<str>, offset: u64, bytes: u64) -> Option<Instant> {
        let keys = || records(offset, bytes).map(|record| (file.clone(), record));
        let ready: Option<Vec<Instant>> = keys().map(|key| self.records.get(&key).map(|record| record.ready)).collect();
        let ready = ready?.into_iter().max()?;
        keys().for_each(|key| self.touch(key, ready));
        Some(ready)
    }

    /// How far from `offset` on all is held (and when that is there), or nothing is (`None`),
    /// within `bytes`.
    pub fn run(&mut self, file: &Arc<str>, offset: u64, bytes: u64) -> (u64, Option<Instant>) {
        let is_held = |record| self.records.contains_key(&(file.clone(), record));
        let mut all = records(offset, bytes).map(|record| (record, is_held(record)));
        let Some((_, held)) = all.next() else { return (0, None) };
        let end = all.find(|(_, other)| *other != held).map_or(offset + bytes, |(record, _)| record * RECORD_BYTES);
        (end - offset, if held { self.hit(file, offset, end - offset) } else { None })
    }

    /// `offset..offset + bytes` is fetched and there at `ready`.
    pub fn hold(&mut self, file: &Arc<str>, offset: u64, bytes: u64, ready: Instant) {
        if self.bytes_max == 0 {
            return;
        }
        records(offset, bytes).for_each(|record| self.touch((file.clone(), record), ready));
        while self.records.len() as u64 * RECORD_BYTES > self.bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.records.remove(&oldest);
        }
    }

    /// The file is gone.
    pub fn forget(&mut self, file: &str) {
        self.records.retain(|(name, _), _| **name != *file);
        self.order.retain(|_, (name, _)| **name != *file);
    }

    /// Used now; there at `ready`, unless it was there before.
    fn touch(&mut self, key: Key, ready: Instant) {
        self.uses += 1;
        let record = self.records.entry(key.clone()).or_insert(Record { used: self.uses, ready });
        self.order.remove(&record.used);
        *record = Record { used: self.uses, ready: record.ready.min(ready) };
        self.order.insert(self.uses, key);
    }
}

fn records(offset: u64, bytes: u64) -> std::ops::Range<u64> {
    offset / RECORD_BYTES..(offset + bytes).div_ceil(RECORD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(5);

    #[test]
    fn the_least_recently_used_record_leaves_first() {
        let mut cache = BlockCache::new(2 * RECORD_BYTES);
        let [f, g] = ["f", "g"].map(Arc::from);
        cache.hold(&f, 0, 1, NOW);
        cache.hold(&f, RECORD_BYTES, 1, NOW);
        assert_eq!(cache.hit(&f, 100, 4096), Some(NOW));
        cache.hold(&g, 0, 1, NOW);
        assert!(cache.hit(&f, 0, RECORD_BYTES).is_some() && cache.hit(&g, 0, 1).is_some());
        assert_eq!(cache.hit(&f, RECORD_BYTES, 1), None, "it was not used since");
        assert_eq!(cache.hit(&f, 0, RECORD_BYTES + 1), None, "half of it is not enough");
        cache.forget("f");
        assert!(cache.hit(&f, 0, 1).is_none() && cache.hit(&g, 0, 1).is_some());
        assert_eq!((cache.records.len(), cache.order.len()), (1, 1));
    }

    #[test]
    fn runs_are_held_or_missing() {
        let mut cache = BlockCache::new(8 * RECORD_BYTES);
        let file = Arc::from("f");
        cache.hold(&file, 2 * RECORD_BYTES, 2 * RECORD_BYTES, NOW);
        assert_eq!(cache.run(&file, 0, 8 * RECORD_BYTES), (2 * RECORD_BYTES, None));
        assert_eq!(cache.run(&file, 2 * RECORD_BYTES, 8 * RECORD_BYTES), (2 * RECORD_BYTES, Some(NOW)));
        assert_eq!(cache.run(&file, 3 * RECORD_BYTES + 7, 9), (9, Some(NOW)));
        assert_eq!(cache.run(&file, 4 * RECORD_BYTES, RECORD_BYTES + 1), (RECORD_BYTES + 1, None));
        assert_eq!(cache.run(&file, 0, 0), (0, None));
    }

    #[test]
    fn what_is_on_its_way_is_there_when_the_last_of_it_is() {
        let mut cache = BlockCache::new(8 * RECORD_BYTES);
        let file = Arc::from("f");
        cache.hold(&file, 0, RECORD_BYTES, Instant(10));
        cache.hold(&file, RECORD_BYTES, RECORD_BYTES, Instant(20));
        assert_eq!(cache.hit(&file, 0, 2 * RECORD_BYTES), Some(Instant(20)));
        assert_eq!(cache.hit(&file, 0, 1), Some(Instant(10)), "its neighbour does not delay it");
        cache.hold(&file, 0, 1, Instant(30));
        assert_eq!(cache.hit(&file, 0, 1), Some(Instant(10)), "fetched again, but it was there");
    }

    #[test]
    fn without_memory_nothing_is_held() {
        let mut cache = BlockCache::new(0);
        let file = Arc::from("f");
        cache.hold(&file, 0, 1, NOW);
        assert_eq!(cache.hit(&file, 0, 1), None);
    }
}
