//! The packed entries of READDIR and READDIRPLUS answers.
//!
//! ```text
//! READDIR:                  | DirentHead, 24 bytes | name | zeros up to a multiple of 8 |
//! READDIRPLUS: | EntryOut, 128 bytes | DirentHead, 24 bytes | name | zeros up to a multiple of 8 |
//! ```

use zerocopy::IntoBytes;

use super::reply::{DirentHead, EntryOut};

/// Fills an answer up to the room the kernel gave.
pub struct DirectoryBuffer {
    bytes: Vec<u8>,
    capacity: usize,
}

impl DirectoryBuffer {
    /// An empty answer of at most `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), capacity }
    }

    /// Bytes an entry needs.
    pub fn entry_bytes(name_bytes: usize, plus: bool) -> usize {
        let lookup = if plus { size_of::<EntryOut>() } else { 0 };
        lookup + (size_of::<DirentHead>() + name_bytes).next_multiple_of(8)
    }

    /// Whether an entry fits.
    pub fn has_space_for(&self, name_bytes: usize, plus: bool) -> bool {
        self.bytes.len() + Self::entry_bytes(name_bytes, plus) <= self.capacity
    }

    /// Appends an entry, with its lookup in READDIRPLUS answers. False, and nothing appended, if it
    /// does not fit.
    pub fn push(&mut self, lookup: Option<&EntryOut>, inode: u64, cookie: u64, kind: u32, name: &[u8]) -> bool {
        if !self.has_space_for(name.len(), lookup.is_some()) {
            return false;
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(self.capacity);
        }
        if let Some(lookup) = lookup {
            self.bytes.extend_from_slice(lookup.as_bytes());
        }
        let head = DirentHead { inode, offset: cookie, name_bytes: name.len() as u32, kind };
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        true
    }

    /// The answer's bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_bounded() {
        let mut buffer = DirectoryBuffer::new(24 + 8 + 24 + 8);
        assert!(buffer.push(None, 5, 1, 8, b"a"));
        assert!(buffer.push(None, 6, 2, 4, b"12345678"));
        assert!(!buffer.push(None, 7, 3, 4, b"c"));
        let bytes = buffer.finish();
        assert_eq!(bytes.len(), 64);
        assert_eq!(&bytes[24..32], b"a\0\0\0\0\0\0\0");
        assert_eq!(&bytes[56..64], b"12345678");
    }

    #[test]
    fn entries_with_lookup_carry_it_first() {
        let lookup = EntryOut { node: 77, ..EntryOut::default() };
        let mut buffer = DirectoryBuffer::new(160);
        assert!(buffer.push(Some(&lookup), 77, 1, 8, b"name"));
        let bytes = buffer.finish();
        assert_eq!(bytes.len(), DirectoryBuffer::entry_bytes(4, true));
        assert_eq!(bytes[0], 77);
        assert_eq!(bytes[128], 77);
        assert!(!DirectoryBuffer::new(159).push(Some(&lookup), 77, 1, 8, b"name"));
    }
}
