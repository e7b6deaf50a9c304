//! Where names are in a listing, by hashes of them. Made by the first searches for a name, and
//! extended by the next ones if the listing has grown: a part at a time, since the cache is locked
//! meanwhile. What is not in it yet is not found.
//!
//! Downside: of two names with one hash, only one is found.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use super::listings::Names;

/// Entries that one search adds.
const STEPS_MAX: usize = 4096;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    positions: BTreeMap<u64, u64>,
    /// Entries before this position are in.
    end: u64,
}

impl NameIndex {
    /// The position of a name in its listing.
    pub fn find(&mut self, entries: &Names, name: &[u8]) -> Option<u64> {
        for (cookie, listed) in entries.range(self.end..).take(STEPS_MAX) {
            self.positions.insert(hash_of(&listed.name), *cookie);
            self.end = cookie.saturating_add(1);
        }
        let position = *self.positions.get(&hash_of(name))?;
        entries.get(&position).filter(|listed| *listed.name == *name)?;
        Some(position)
    }

    /// A name was added to the listing.
    pub fn add(&mut self, name: &[u8], position: u64) {
        if position < self.end {
            self.positions.insert(hash_of(name), position);
        }
    }

    /// A name was removed from it.
    pub fn remove(&mut self, name: &[u8], position: u64) {
        let hash = hash_of(name);
        if self.positions.get(&hash) == Some(&position) {
            self.positions.remove(&hash);
        }
    }
}

fn hash_of(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use types::{FileKind, InodeNumber};

    use super::*;
    use crate::cache::listings::Listed;

    #[test]
    fn names_are_found_where_they_are() {
        let (mut entries, mut index) = (Names::new(), NameIndex::default());
        let add = |entries: &mut Names, name: &str, cookie| {
            let (name, inode) = (name.as_bytes().into(), InodeNumber(cookie));
            entries.insert(cookie, Listed { name, inode, kind: FileKind::Regular, cookie });
        };
        assert_eq!(index.find(&entries, b"a"), None);
        add(&mut entries, "a", 10);
        add(&mut entries, "b", u64::MAX);
        assert_eq!((index.find(&entries, b"a"), index.find(&entries, b"b")), (Some(10), Some(u64::MAX)));
        // Removed, and made again where others are known already.
        entries.remove(&10);
        assert_eq!(index.find(&entries, b"a"), None);
        index.remove(b"a", 10);
        assert_eq!(index.positions.len(), 1);
        add(&mut entries, "a", 11);
        index.add(b"a", 11);
        assert_eq!(index.find(&entries, b"a"), Some(11));
    }

    #[test]
    fn a_search_adds_a_part_at_a_time() {
        let (mut entries, mut index) = (Names::new(), NameIndex::default());
        for number in 0..2 * STEPS_MAX as u64 {
            let (name, inode) = (format!("f{number}").into_bytes().into(), InodeNumber(number));
            entries.insert(number, Listed { name, inode, kind: FileKind::Regular, cookie: number });
        }
        let last = format!("f{}", 2 * STEPS_MAX - 1);
        assert_eq!(index.find(&entries, last.as_bytes()), None);
        assert_eq!(index.find(&entries, last.as_bytes()), Some(2 * STEPS_MAX as u64 - 1));
    }
}
