//! Names of whole directories in the order in which the MDT shows them, with its cookies.
//!
//! A listing grows with the pages that are read, and is served once it has reached the end. Cookies
//! grow along a directory, so pages that overlap fit together. The listing of a directory that this
//! client makes is known from the beginning. A listing that is known to the end follows the changes
//! of this client, whose replies tell where the names are; one that is not is dropped with the
//! first of them. It is dropped with the locks on the directory's names or attributes (`..` is one
//! of these). A listing that would take too much of the limit of locks is not kept, because
//! everything else would have to be dropped for it.

use std::collections::{BTreeMap, btree_map::Entry};

use rpc::message::{
    extension::ChangedName,
    mdt::{COOKIE_PARENT, COOKIE_SELF, DirectoryEntry},
};
use types::{FileKind, InodeNumber};

use super::{cached_inode::Epoch, name_index::NameIndex};

/// Entries that count as much as a lock, in memory. So does each listing.
pub(super) const ENTRIES_PER_LOCK: usize = 8;
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

/// Names by their cookies.
pub(crate) type Names = BTreeMap<u64, Listed>;

/// One directory.
#[derive(Debug)]
struct Listing {
    epoch: Epoch,
    entries: Names,
    index: NameIndex,
    is_complete: bool,
}

impl Listing {
    /// Of a directory in this one that is new and empty.
    fn of_new(directory: InodeNumber, parent: InodeNumber, epoch: Epoch) -> Self {
        let dots = [(&b"."[..], directory, COOKIE_SELF), (b"..", parent, COOKIE_PARENT)];
        let listed = |(name, inode, cookie): (&[u8], _, _)| {
            (cookie, Listed { name: name.into(), inode, kind: FileKind::Directory, cookie })
        };
        Self { epoch, entries: dots.map(listed).into(), index: NameIndex::default(), is_complete: true }
    }

    /// The last cookie that is known.
    fn last(&self) -> u64 {
        self.entries.last_key_value().map_or(0, |(cookie, _)| *cookie)
    }

    /// Entries after a cookie.
    fn after(&self, cookie: u64) -> impl Iterator<Item = &Listed> {
        cookie.checked_add(1).into_iter().flat_map(|from| self.entries.range(from..)).map(|(_, listed)| listed)
    }

    /// Adds entries; false if they do not fit.
    fn extend(&mut self, page: &[DirectoryEntry]) -> bool {
        let before = self.last();
        for DirectoryEntry { name, inode, kind, cookie, .. } in page.iter().filter(|entry| entry.cookie > before) {
            // No MDT sends names in another order.
            if *cookie <= self.last() {
                return false;
            }
            let (name, inode, kind, cookie) = (name.clone().into_boxed_slice(), *inode, *kind, *cookie);
            self.entries.insert(cookie, Listed { name, inode, kind, cookie });
        }
        true
    }

    /// Follows a change; false if that contradicts what is known.
    fn follow(&mut self, changed: &ChangedName) -> bool {
        let cookie = changed.cookie;
        match (self.entries.entry(cookie), changed.target) {
            (Entry::Vacant(place), Some((inode, kind))) => {
                let name = changed.name.clone().into_boxed_slice();
                self.index.add(&name, cookie);
                place.insert(Listed { name, inode, kind, cookie });
                true
            }
            (Entry::Occupied(mut known), Some((inode, kind))) if *known.get().name == *changed.name => {
                let listed = known.get_mut();
                (listed.inode, listed.kind) = (inode, kind);
                true
            }
            (Entry::Occupied(known), None) if *known.get().name == *changed.name => {
                self.index.remove(&changed.name, cookie);
                known.remove();
                true
            }
            (Entry::Occupied(_), _) | (Entry::Vacant(_), None) => false,
        }
    }
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
            let (entries, index) = Default::default();
            let new = Listing { epoch, entries, index, is_complete: false };
            self.directories.entry(directory).or_insert(new);
        }
        let Some(listing) = self.directories.get(&directory) else { return };
        if listing.is_complete || cookie > listing.last() {
            return;
        }
        self.change(directory, locks_max, |listing| {
            let fits = listing.extend(page);
            listing.is_complete = is_end;
            fits
        });
    }

    /// A directory is new and empty.
    pub fn begin(&mut self, directory: InodeNumber, parent: InodeNumber, epoch: Epoch) {
        self.forget(directory);
        let new = Listing::of_new(directory, parent, epoch);
        self.entries += new.entries.len();
        self.directories.insert(directory, new);
    }

    /// A change of a name by this client has happened, and nothing else since.
    pub fn follow(&mut self, changed: &ChangedName, epoch: Epoch, locks_max: usize) {
        self.change(changed.directory, locks_max, |listing| listing.epoch == epoch && listing.follow(changed));
    }

    /// Changes a listing that is known; it is dropped if that fails, or if it is too large then.
    fn change(&mut self, directory: InodeNumber, locks_max: usize, change: impl FnOnce(&mut Listing) -> bool) {
        let Some(listing) = self.directories.get_mut(&directory) else { return };
        let before = listing.entries.len();
        let is_known = change(listing);
        let after = listing.entries.len();
        assert!(self.entries >= before, "names that are kept are counted");
        self.entries = self.entries - before + after;
        if !is_known || after / ENTRIES_PER_LOCK > locks_max / PART_MAX {
            self.forget(directory);
        }
    }

    /// At most so many names after a cookie, and whether the directory ends after them; `None`:
    /// they are not known.
    pub fn page(
        &self,
        directory: InodeNumber,
        cookie: u64,
        entries_max: usize,
        epoch: Epoch,
    ) -> Option<(Vec<Listed>, bool)> {
        let listing = self.complete(directory, epoch)?;
        let mut rest = listing.after(cookie);
        let page: Vec<Listed> = rest.by_ref().take(entries_max).cloned().collect();
        Some((page, rest.next().is_none()))
    }

    /// The names of a directory after a cookie that are known so far, if its beginning is known.
    pub fn begun(&self, directory: InodeNumber, cookie: u64, epoch: Epoch) -> Option<impl Iterator<Item = &Listed>> {
        let listing = self.directories.get(&directory).filter(|listing| listing.epoch == epoch)?;
        Some(listing.after(cookie))
    }

    /// Names of a directory that were read from the beginning on, and where they are.
    pub fn so_far(&mut self, directory: InodeNumber, epoch: Epoch) -> Option<(&Names, &mut NameIndex)> {
        let listing = self.directories.get_mut(&directory).filter(|listing| listing.epoch == epoch)?;
        Some((&listing.entries, &mut listing.index))
    }

    fn complete(&self, directory: InodeNumber, epoch: Epoch) -> Option<&Listing> {
        self.directories.get(&directory).filter(|listing| listing.is_complete && listing.epoch == epoch)
    }

    /// Whether something is known of the names of a directory.
    pub fn knows(&self, directory: InodeNumber) -> bool {
        self.directories.contains_key(&directory)
    }

    /// Nothing is known of a directory any more.
    pub fn forget(&mut self, directory: InodeNumber) {
        if let Some(listing) = self.directories.remove(&directory) {
            assert!(self.entries >= listing.entries.len(), "names that are kept are counted");
            self.entries -= listing.entries.len();
        }
    }

    /// Nothing is known of a directory any more, unless all of its names are.
    pub fn forget_begun(&mut self, directory: InodeNumber) {
        if self.directories.get(&directory).is_some_and(|listing| !listing.is_complete) {
            self.forget(directory);
        }
    }

    /// How much of the limit of locks they take.
    pub fn weight(&self) -> usize {
        self.directories.len() + self.entries / ENTRIES_PER_LOCK
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
        assert_eq!(listings.weight(), 2);
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

    fn changed(name: &str, cookie: u64, inode: Option<u64>) -> ChangedName {
        let target = inode.map(|inode| (InodeNumber(inode), FileKind::Regular));
        ChangedName { directory: DIRECTORY, name: name.as_bytes().to_vec(), cookie, target }
    }

    fn listed(listings: &Listings) -> Option<Vec<(String, u64)>> {
        let (page, is_end) = listings.page(DIRECTORY, 0, 100, 0)?;
        assert!(is_end);
        Some(page.iter().map(|entry| (String::from_utf8_lossy(&entry.name).into_owned(), entry.inode.0)).collect())
    }

    #[test]
    fn a_new_directory_is_known_and_follows_changes() {
        let mut listings = Listings::default();
        listings.begin(DIRECTORY, InodeNumber(9), 0);
        let names = |names: &[(&str, u64)]| {
            let dots = [(".", 1), ("..", 9)];
            Some(dots.iter().chain(names).map(|(name, inode)| ((*name).to_owned(), *inode)).collect::<Vec<_>>())
        };
        let steps: [(ChangedName, &[(&str, u64)]); 5] = [
            (changed("b", 20, Some(4)), &[("b", 4)]),
            (changed("a", 10, Some(3)), &[("a", 3), ("b", 4)]),
            (changed("a", 10, Some(5)), &[("a", 5), ("b", 4)]),
            (changed("b", 20, None), &[("a", 5)]),
            (changed("c", 20, Some(6)), &[("a", 5), ("c", 6)]),
        ];
        for (change, expected) in steps {
            listings.follow(&change, 0, 100);
            assert_eq!(listed(&listings), names(expected));
        }
        assert_eq!(listings.entries, 4);
    }

    #[test]
    fn what_contradicts_a_listing_ends_it() {
        let contradictions = [
            (changed("other", 10, Some(4)), 0),
            (changed("other", 10, None), 0),
            (changed("other", 11, None), 0),
            (changed("other", 11, Some(4)), 1),
        ];
        for (change, epoch) in contradictions {
            let mut listings = Listings::default();
            listings.begin(DIRECTORY, InodeNumber(9), 0);
            listings.follow(&changed("a", 10, Some(3)), 0, 100);
            assert!(listings.knows(DIRECTORY));
            listings.follow(&change, epoch, 100);
            assert_eq!((listings.knows(DIRECTORY), listings.entries), (false, 0), "{change:?}");
        }
    }

    #[test]
    fn a_listing_that_grows_too_large_is_given_up() {
        let mut listings = Listings::default();
        listings.begin(DIRECTORY, InodeNumber(9), 0);
        for number in 10..300 {
            listings.follow(&changed(&number.to_string(), number, Some(number)), 0, 100);
        }
        assert_eq!((listings.knows(DIRECTORY), listings.weight()), (false, 0));
    }
}
