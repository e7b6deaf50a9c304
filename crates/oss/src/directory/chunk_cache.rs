//! Decoded records of chunks. A short overwrite looks at the record of its chunk, changes one state
//! of 256, and encodes the record again: decoding it takes longer than the rest of that.
//!
//! A record is found by its bytes, which the tables have: what is remembered of a chunk is used
//! only if it was made of the same bytes. So nothing has to be forgotten when a record changes.
//!
//! Life cycle of an entry: put by the look of a request -> taken by its change, which has it alone
//! then -> put with the new bytes. A place is shared by many chunks, the last one has it. Downside:
//! chunks that are used in turns and share a place are decoded each time.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use types::ObjectId;

use crate::chunk_record::ChunkRecord;

/// Places, of up to 16 KiB: records of 256 MiB of objects that are overwritten at random.
const PLACES: usize = 256;

struct Decoded {
    bytes: Bytes,
    record: Arc<ChunkRecord>,
}

/// See the module documentation.
pub(super) struct ChunkCache {
    places: Box<[Mutex<Option<Decoded>>]>,
}

impl Default for ChunkCache {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| Mutex::default()).collect() }
    }
}

impl ChunkCache {
    fn place(&self, object: ObjectId, chunk: u64) -> &Mutex<Option<Decoded>> {
        /// Fibonacci hashing.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let object = object.inode.0.wrapping_mul(MULTIPLIER) ^ u64::from(object.slot) << 32;
        // Chunks of an object that follow each other are in places that do.
        &self.places[((object >> 40).wrapping_add(chunk) % PLACES as u64) as usize]
    }

    /// The record of these bytes, if it is known.
    pub fn get(&self, object: ObjectId, chunk: u64, bytes: &[u8]) -> Option<Arc<ChunkRecord>> {
        let place = self.place(object, chunk).lock();
        place.as_ref().filter(|decoded| decoded.bytes == bytes).map(|decoded| decoded.record.clone())
    }

    /// The same for what changes it: it is forgotten.
    pub fn take(&self, object: ObjectId, chunk: u64, bytes: &[u8]) -> Option<ChunkRecord> {
        let mut place = self.place(object, chunk).lock();
        let decoded = if place.as_ref()?.bytes == bytes { place.take()? } else { return None };
        drop(place);
        Some(Arc::unwrap_or_clone(decoded.record))
    }

    /// These bytes are those of this record.
    pub fn put(&self, object: ObjectId, chunk: u64, bytes: Bytes, record: Arc<ChunkRecord>) {
        let replaced = self.place(object, chunk).lock().replace(Decoded { bytes, record });
        drop(replaced);
    }
}

#[cfg(test)]
mod tests {
    use types::InodeNumber;

    use super::*;
    use crate::chunk_record::BlockState;

    const OBJECT: ObjectId = ObjectId::new(InodeNumber(9), 0);

    #[test]
    fn a_record_is_found_by_its_bytes_alone() {
        let (cache, mut record) = (ChunkCache::default(), ChunkRecord::default());
        record.set(3, BlockState::Inline { checksum: 7 });
        let bytes = Bytes::from(record.encode());
        cache.put(OBJECT, 1, bytes.clone(), Arc::new(record.clone()));
        assert_eq!(cache.get(OBJECT, 1, &bytes).as_deref(), Some(&record));
        // Records of other objects, and of other chunks with the same place, may have these bytes.
        record.set(4, BlockState::Inline { checksum: 8 });
        let other = record.encode();
        assert_eq!((cache.get(OBJECT, 1, &other), cache.take(OBJECT, 1, &other)), (None, None));
        assert_eq!(cache.take(OBJECT, 1, &bytes).map(|taken| taken.encode()), Some(bytes.to_vec()));
        assert_eq!(cache.get(OBJECT, 1, &bytes), None, "it was taken");
    }
}
