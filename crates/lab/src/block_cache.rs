//! What a server's memory holds of its targets' files: records of a fixed size, the least recently used leave first.
//!
//! Only which records are held is kept, no contents. Downside: a record is held or not; none is partly read.

use std::collections::BTreeMap;

/// Bytes of a record: what a read of a single byte brings into memory (the default recordsize of ZFS).
pub const RECORD_BYTES: u64 = 128 << 10;

type Key = (String, u64);

/// The records held.
#[derive(Debug, Default)]
pub struct BlockCache {
    /// When each record was used.
    used: BTreeMap<Key, u64>,
    /// The same the other way round: the first is the least recently used.
    order: BTreeMap<u64, Key>,
    uses: u64,
}

impl BlockCache {
    /// Whether all of `offset..offset + bytes` is held; then it has just been used.
    pub fn hit(&mut self, file: &str, offset: u64, bytes: u64) -> bool {
        let held = records(offset, bytes).all(|record| self.used.contains_key(&(file.to_owned(), record)));
        if held {
            records(offset, bytes).for_each(|record| self.touch((file.to_owned(), record)));
        }
        held
    }

    /// `offset..offset + bytes` was read or written; of all records, so many bytes at most are held.
    pub fn hold(&mut self, file: &str, offset: u64, bytes: u64, bytes_max: u64) {
        records(offset, bytes).for_each(|record| self.touch((file.to_owned(), record)));
        while self.used.len() as u64 * RECORD_BYTES > bytes_max {
            let Some((_, oldest)) = self.order.pop_first() else { return };
            self.used.remove(&oldest);
        }
    }

    /// The file is gone.
    pub fn forget(&mut self, file: &str) {
        self.used.retain(|(name, _), _| name != file);
        self.order.retain(|_, (name, _)| name != file);
    }

    fn touch(&mut self, key: Key) {
        self.uses += 1;
        if let Some(before) = self.used.insert(key.clone(), self.uses) {
            self.order.remove(&before);
        }
        self.order.insert(self.uses, key);
    }
}

fn records(offset: u64, bytes: u64) -> std::ops::Range<u64> {
    offset / RECORD_BYTES..(offset + bytes).div_ceil(RECORD_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_record_leaves_first() {
        let (mut cache, room) = (BlockCache::default(), 2 * RECORD_BYTES);
        cache.hold("f", 0, 1, room);
        cache.hold("f", RECORD_BYTES, 1, room);
        assert!(cache.hit("f", 100, 4096));
        cache.hold("g", 0, 1, room);
        assert!(cache.hit("f", 0, RECORD_BYTES) && cache.hit("g", 0, 1));
        assert!(!cache.hit("f", RECORD_BYTES, 1), "it was not used since");
        assert!(!cache.hit("f", 0, RECORD_BYTES + 1), "half of it is not enough");
        cache.forget("f");
        assert!(!cache.hit("f", 0, 1) && cache.hit("g", 0, 1));
    }
}
