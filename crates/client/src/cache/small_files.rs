//! Data of small files on the MDT: all bytes of their objects, as this client has read them.
//!
//! Invariant: each is under the lock on the data of its inode, and goes with it. They are limited
//! by memory; what was not used for the longest time goes first, and its lock stays: the next read
//! brings the data again.
//!
//! Downside: what arrives is copied, so that a small file does not keep the buffer of a large
//! frame.

use std::collections::BTreeMap;

use bytes::Bytes;
use types::{InodeNumber, ObjectId, limits::SMALL_FILE_BYTES_MAX};

use super::{
    cached_inode::Epoch,
    recency::{Recency, Uses},
};

/// Memory for data of small files, unless another size is set.
pub(crate) const SMALL_FILES_BYTES_DEFAULT: u64 = 64 << 20;
/// What a file takes besides its bytes, roughly.
const FILE_BYTES: u64 = 256;

/// One file.
#[derive(Debug)]
struct SmallFile {
    object: ObjectId,
    data: Bytes,
    known_in: Epoch,
    uses: Uses,
}

impl SmallFile {
    fn weight(&self) -> u64 {
        FILE_BYTES + self.data.len() as u64
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct SmallFiles {
    files: BTreeMap<InodeNumber, SmallFile>,
    bytes: u64,
    /// 0: none is kept.
    bytes_max: u64,
    recency: Recency,
}

impl Default for SmallFiles {
    fn default() -> Self {
        Self { files: BTreeMap::new(), bytes: 0, bytes_max: SMALL_FILES_BYTES_DEFAULT, recency: Recency::default() }
    }
}

impl SmallFiles {
    /// Memory that they take, and may take at most.
    pub fn usage(&self) -> (u64, u64) {
        (self.bytes, self.bytes_max)
    }

    /// Changes how much memory they may take; 0: none is kept.
    pub fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
        self.shrink();
    }

    /// Keeps all bytes of an object.
    pub fn keep(&mut self, object: ObjectId, data: &[u8], known_in: Epoch) {
        self.forget(object.inode);
        let file = SmallFile { object, data: Bytes::copy_from_slice(data), known_in, uses: Uses::default() };
        if data.len() > SMALL_FILE_BYTES_MAX as usize || file.weight() > self.bytes_max {
            return;
        }
        self.bytes += file.weight();
        let file = self.files.entry(object.inode).or_insert(file);
        self.recency.use_now(object.inode, &mut file.uses);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.bytes_max {
            let oldest = self.recency.oldest().expect("what takes memory was used");
            self.forget(oldest);
        }
    }

    /// The data of an inode are not known any more.
    pub fn forget(&mut self, inode: InodeNumber) {
        if let Some(file) = self.files.remove(&inode) {
            self.bytes -= file.weight();
            self.recency.remove(file.uses);
        }
    }

    /// Nothing is known any more.
    pub fn clear(&mut self) {
        self.files.clear();
        self.recency.clear();
        self.bytes = 0;
    }

    /// Whether the data of an inode are known in this epoch.
    pub fn has(&self, inode: InodeNumber, epoch: Epoch) -> bool {
        self.files.get(&inode).is_some_and(|file| file.known_in == epoch)
    }

    /// Bytes of an object from `offset` on, fewer than asked for only at its end, and its size; if
    /// they are known in this epoch.
    pub fn read(&mut self, object: ObjectId, offset: u64, bytes: u64, epoch: Epoch) -> Option<(Bytes, u64)> {
        let known = self.files.get_mut(&object.inode)?;
        if known.object != object || known.known_in != epoch {
            return None;
        }
        self.recency.use_now(object.inode, &mut known.uses);
        let size = known.data.len() as u64;
        let start = offset.min(size);
        let end = start.saturating_add(bytes).min(size);
        Some((known.data.slice(start as usize..end as usize), size))
    }

    /// All that are known in this epoch.
    pub fn all(&self, epoch: Epoch) -> impl Iterator<Item = (ObjectId, &Bytes)> {
        self.files.values().filter(move |file| file.known_in == epoch).map(|file| (file.object, &file.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(inode: u64) -> ObjectId {
        ObjectId::new(InodeNumber(inode), 0)
    }

    #[test]
    fn reads_end_with_the_object() {
        let mut files = SmallFiles::default();
        files.keep(object(7), b"0123456789", 1);
        let mut read =
            |offset, bytes| files.read(object(7), offset, bytes, 1).map(|(data, size)| (data.to_vec(), size));
        assert_eq!(read(2, 3), Some((b"234".to_vec(), 10)));
        assert_eq!(read(8, 100), Some((b"89".to_vec(), 10)));
        assert_eq!(read(u64::MAX, u64::MAX), Some((Vec::new(), 10)));
        assert_eq!(files.read(object(7), 0, 10, 2), None, "in another epoch");
        assert_eq!(files.read(ObjectId::new(InodeNumber(7), 1), 0, 10, 1), None, "another object");
    }

    #[test]
    fn memory_is_limited_and_what_was_used_last_stays() {
        const EACH: u64 = FILE_BYTES + 100;
        let mut files = SmallFiles::default();
        files.set_bytes_max(16 * EACH);
        for inode in 0..16 {
            files.keep(object(inode), &[7; 100], 1);
        }
        files.keep(object(3), &[8; 100], 1);
        assert!(files.read(object(0), 0, 1, 1).is_some());
        for inode in 16..30 {
            files.keep(object(inode), &[7; 100], 1);
        }
        assert_eq!(files.usage(), (16 * EACH, 16 * EACH));
        let kept: Vec<u64> = files.all(1).map(|(object, _)| object.inode.0).collect();
        assert_eq!(kept, [0, 3].into_iter().chain(16..30).collect::<Vec<_>>());
        files.keep(object(3), &[9; SMALL_FILE_BYTES_MAX as usize + 1], 1);
        assert!(!files.has(InodeNumber(3), 1), "it is not small any more");
        files.set_bytes_max(0);
        assert_eq!((files.usage(), files.recency.oldest()), ((0, 0), None));
        files.keep(object(3), b"", 1);
        assert!(!files.has(InodeNumber(3), 1), "none is kept");
    }
}
