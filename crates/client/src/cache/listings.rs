//! Names of whole directories in the order in which the MDT shows them, with its cookies.
//!
//! A listing grows with the pages that are read, and is served once it has reached the end. Cookies
//! grow along a directory, so pages that overlap fit together. It is dropped with the locks on the
//! directory's names or attributes (`..` is one of these), and with every change of a name in it by
//! this client. A listing that would take too much of the limit of locks is not kept, because
//! everything else would have to be dropped for it.

use std::collections::BTreeMap;

use rpc::message::mdt::DirectoryEntry;
use types::{FileKind, InodeNumber};

use super::cached_inode::Epoch;

/// Entries that count as much as a lock, in memory.
const ENTRIES_PER_LOCK: usize = 8;
/// One listing may take this part of the limit.
const PART_MAX: usize = 4;

/// A name in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub name: Box<[u8]>,
    pub inode: InodeNumber,
    pub kind: FileKind,
    /// Position after it.
    pub cookie: u64,
}

/// One directory.
#[derive(Debug)]
struct Listing {
    epoch: Epoch,
    entries: Vec<Listed>,
    is_complete: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    directories: BTreeMap<InodeNumber, Listing>,
    entries: usize,
}

impl Listings {
    /// A page was read after `cookie`; `is_end`: the directory ends after it; `locks_max`: the
    /// limit of locks.
    pub fn keep(
        &mut self,
        (directory, cookie): (InodeNumber, u64),
        (page, is_end): (&[DirectoryEntry], bool),
        epoch: Epoch,
        locks_max: usize,
    ) {
        if self.directories.get(&directory).is_some_and(|listing| listing.epoch != epoch) {
            self.forget(directory);
        }
        if cookie == 0 {
            let new = Listing { epoch, entries: Vec::new(), is_complete: false };
            self.directories.entry(directory).or_insert(new);
        }
        let Some(listing) = self.directories.get_mut(&directory) else { return };
        let last = listing.entries.last().map_or(0, |entry| entry.cookie);
        if listing.is_complete || cookie > last {
            return;
        }
        let before = listing.entries.len();
        for DirectoryEntry { name, inode, kind, cookie, .. } in page.iter().filter(|entry| entry.cookie > last) {
            let (name, inode, kind, cookie) = (name.clone().into_boxed_slice(), *inode, *kind, *cookie);
            listing.entries.push(Listed { name, inode, kind, cookie });
        }
        let is_sorted = listing.entries.is_sorted_by(|one, next| one.cookie < next.cookie);
        // No MDT sends names in another order.
        if !is_sorted || listing.entries.len() / ENTRIES_PER_LOCK > locks_max / PART_MAX {
            assert!(self.entries >= before, "names that are kept are counted");
            self.entries -= before;
            self.directories.remove(&directory);
            return;
        }
        listing.is_complete = is_end;
        self.entries += listing.entries.len() - before;
    }

    /// At most so many names after a cookie, and whether the directory ends after them; `None`:
    /// they are not known.
    pub fn page(
        &self,
        directory: InodeNumber,
        cookie: u64,
        entries_max: usize,
        epoch: Epoch,
    ) -> Option<(&[Listed], bool)> {
        let entries = self.all(directory, epoch)?;
        let rest = &entries[entries.partition_point(|entry| entry.cookie <= cookie)..];
        let count = rest.len().min(entries_max);
        Some((&rest[..count], count == rest.len()))
    }

    /// The names of a directory after a cookie that are known so far, if its beginning is known.
    pub fn begun(&self, directory: InodeNumber, cookie: u64, epoch: Epoch) -> Option<&[Listed]> {
        let listing = self.directories.get(&directory).filter(|listing| listing.epoch == epoch)?;
        Some(&listing.entries[listing.entries.partition_point(|entry| entry.cookie <= cookie)..])
    }

    /// All names of a directory in order, if they are known.
    pub fn all(&self, directory: InodeNumber, epoch: Epoch) -> Option<&[Listed]> {
        let listing = self.directories.get(&directory)?;
        (listing.is_complete && listing.epoch == epoch).then_some(&listing.entries)
    }

    /// Nothing is known of a directory any more.
    pub fn forget(&mut self, directory: InodeNumber) {
        if let Some(listing) = self.directories.remove(&directory) {
            assert!(self.entries >= listing.entries.len(), "names that are kept are counted");
            self.entries -= listing.entries.len();
        }
    }

    /// How much of the limit of locks they take.
    pub fn weight(&self) -> usize {
        self.entries / ENTRIES_PER_LOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber(1);

    fn page(cookies: std::ops::Range<u64>) -> Vec<DirectoryEntry> {
        let entry = |cookie: u64| DirectoryEntry {
            name: cookie.to_string().into_bytes(),
            inode: InodeNumber(cookie),
            kind: FileKind::Regular,
            cookie,
            entry: None,
            locks: Vec::new(),
            version: 0,
        };
        cookies.map(entry).collect()
    }

    fn cookies(listings: &Listings, cookie: u64, entries_max: usize) -> Option<(Vec<u64>, bool)> {
        let (page, end) = listings.page(DIRECTORY, cookie, entries_max, 0)?;
        Some((page.iter().map(|entry| entry.cookie).collect(), end))
    }

    #[test]
    fn pages_that_overlap_are_joined() {
        let mut listings = Listings::default();
        listings.keep((DIRECTORY, 5), (&page(6..9), true), 0, 100);
        assert_eq!(cookies(&listings, 0, 10), None, "its beginning is not known");
        listings.keep((DIRECTORY, 0), (&page(1..5), false), 0, 100);
        assert_eq!(cookies(&listings, 0, 10), None, "its end is not known");
        listings.keep((DIRECTORY, 5), (&page(6..9), true), 0, 100);
        assert_eq!(cookies(&listings, 0, 10), None, "there may be a name in between");
        listings.keep((DIRECTORY, 0), (&page(1..3), false), 0, 100);
        listings.keep((DIRECTORY, 2), (&page(3..9), true), 0, 100);
        assert_eq!(cookies(&listings, 0, 5), Some((vec![1, 2, 3, 4, 5], false)));
        assert_eq!(cookies(&listings, 5, 5), Some((vec![6, 7, 8], true)));
        assert_eq!(cookies(&listings, 8, 5), Some((vec![], true)));
        assert_eq!(listings.weight(), 1);
        listings.forget(DIRECTORY);
        assert_eq!((cookies(&listings, 0, 5), listings.entries), (None, 0));
    }

    #[test]
    fn another_epoch_begins_again() {
        let mut listings = Listings::default();
        listings.keep((DIRECTORY, 0), (&page(1..5), false), 0, 100);
        listings.keep((DIRECTORY, 4), (&page(5..7), true), 1, 100);
        assert_eq!(listings.page(DIRECTORY, 0, 10, 1), None);
        listings.keep((DIRECTORY, 0), (&page(1..7), true), 1, 100);
        assert_eq!(listings.page(DIRECTORY, 0, 10, 1).map(|(page, _)| page.len()), Some(6));
        assert_eq!(listings.page(DIRECTORY, 0, 10, 2), None);
    }

    #[test]
    fn a_large_directory_is_not_kept() {
        let mut listings = Listings::default();
        listings.keep((DIRECTORY, 0), (&page(1..200), true), 0, 100);
        assert!(listings.page(DIRECTORY, 0, 1000, 0).is_some());
        listings.forget(DIRECTORY);
        listings.keep((DIRECTORY, 0), (&page(1..150), false), 0, 100);
        listings.keep((DIRECTORY, 149), (&page(150..300), true), 0, 100);
        assert_eq!((listings.page(DIRECTORY, 0, 1000, 0), listings.weight()), (None, 0));
    }
}
