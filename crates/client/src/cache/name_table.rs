//! Names in directories: where they lead, and which do not exist.
//!
//! A name that leads to another MDT is covered by the lock on the names of its directory, as one
//! that does not exist is: the MDT of the name grants no lock on that inode.
//!
//! A directory that this client made is complete: no other client can have made a name in it, as
//! long as this client holds the lock on its attributes, which every new name changes. So a name
//! that is not known does not exist, except for some that were known and are not any more.
//!
//! Invariant: a name that leads to an inode is in the list of this inode, and the other way round,
//! so that all of them go with the inode's lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use types::InodeNumber;

/// Names of one directory.
#[derive(Debug, Default)]
struct Directory {
    present: BTreeMap<Arc<[u8]>, InodeNumber>,
    missing: BTreeSet<Box<[u8]>>,
    /// Names that lead to other MDTs.
    elsewhere: BTreeMap<Box<[u8]>, InodeNumber>,
    /// Of a complete directory: the names of which nothing is known.
    unknown: Option<BTreeSet<Box<[u8]>>>,
}

/// Names of which nothing is known in a complete directory: with more of them it is complete no
/// more.
const UNKNOWN_MAX: usize = 1024;

impl Directory {
    /// Nothing is known of a name from now on. `count`: of such names in all directories.
    fn forget(&mut self, name: &[u8], count: &mut usize) {
        let Some(unknown) = &mut self.unknown else { return };
        *count += usize::from(unknown.insert(name.into()));
        if unknown.len() > UNKNOWN_MAX {
            self.is_not_complete(count);
        }
    }

    /// Something is known of a name again.
    fn learn(&mut self, name: &[u8], count: &mut usize) {
        if self.unknown.as_mut().is_some_and(|unknown| unknown.remove(name)) {
            *count -= 1;
        }
    }

    /// There may be names that were never known.
    fn is_not_complete(&mut self, count: &mut usize) {
        *count -= self.unknown.take().map_or(0, |unknown| unknown.len());
    }

    fn lacks(&self, name: &[u8]) -> bool {
        self.missing.contains(name) || self.unknown.as_ref().is_some_and(|unknown| !unknown.contains(name))
    }
}

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// It leads there.
    Leads(InodeNumber),
    /// It does not exist.
    Missing,
}

impl Name {
    /// The inode to which it leads.
    pub fn inode(self) -> Option<InodeNumber> {
        match self {
            Name::Leads(inode) => Some(inode),
            Name::Missing => None,
        }
    }
}

/// A name, with its directory.
type Place = (InodeNumber, Arc<[u8]>);

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    directories: BTreeMap<InodeNumber, Directory>,
    /// Names that lead to an inode, with their directories.
    of_inode: BTreeMap<InodeNumber, Vec<Place>>,
    /// Names that do not exist or lead to other MDTs.
    by_directory: usize,
    /// Names that lead to inodes.
    present: usize,
    /// Names of which nothing is known in complete directories.
    unknown: usize,
}

impl NameTable {
    /// What is known of a name.
    pub fn find(&self, parent: InodeNumber, name: &[u8]) -> Option<Name> {
        let directory = self.directories.get(&parent)?;
        match directory.present.get(name) {
            Some(inode) => Some(Name::Leads(*inode)),
            None => directory.lacks(name).then_some(Name::Missing),
        }
    }

    /// The inode on another MDT to which a name leads.
    pub fn find_elsewhere(&self, parent: InodeNumber, name: &[u8]) -> Option<InodeNumber> {
        self.directories.get(&parent)?.elsewhere.get(name).copied()
    }

    /// A name leads to an inode on another MDT. In a complete directory it stays one of which
    /// nothing is known: that outlives the lock on the names.
    pub fn lead_elsewhere(&mut self, parent: InodeNumber, name: &[u8], inode: InodeNumber) {
        self.forget(parent, name);
        self.directories.entry(parent).or_default().elsewhere.insert(name.into(), inode);
        self.by_directory += 1;
    }

    /// A name leads to an inode.
    pub fn lead(&mut self, parent: InodeNumber, name: &[u8], inode: InodeNumber) {
        if self.find(parent, name) == Some(Name::Leads(inode)) {
            return;
        }
        self.forget(parent, name);
        let directory = self.directories.entry(parent).or_default();
        directory.learn(name, &mut self.unknown);
        let name: Arc<[u8]> = name.into();
        let former = directory.present.insert(name.clone(), inode);
        assert!(former.is_none(), "nothing is known of a name that is learnt");
        self.of_inode.entry(inode).or_default().push((parent, name));
        self.present += 1;
    }

    /// A name does not exist.
    pub fn miss(&mut self, parent: InodeNumber, name: &[u8]) {
        self.forget(parent, name);
        let directory = self.directories.entry(parent).or_default();
        directory.learn(name, &mut self.unknown);
        if !directory.lacks(name) {
            assert!(directory.missing.insert(name.into()), "a name that is not missing is not counted as such");
            self.by_directory += 1;
        }
    }

    /// A directory is new and empty.
    pub fn complete(&mut self, parent: InodeNumber) {
        let is_new = self.directories.get(&parent).is_none_or(|directory| directory.present.is_empty());
        if is_new {
            let directory = self.directories.entry(parent).or_default();
            directory.is_not_complete(&mut self.unknown);
            directory.unknown = Some(BTreeSet::new());
        }
    }

    /// Whether all names of a directory are known but some.
    pub fn is_complete(&self, parent: InodeNumber) -> bool {
        self.directories.get(&parent).is_some_and(|directory| directory.unknown.is_some())
    }

    /// Other clients may have made names in a directory.
    pub fn forget_complete(&mut self, parent: InodeNumber) {
        if let Some(directory) = self.directories.get_mut(&parent) {
            directory.is_not_complete(&mut self.unknown);
        }
        self.tidy(parent);
    }

    /// Nothing is known of a name any more.
    pub fn forget(&mut self, parent: InodeNumber, name: &[u8]) {
        let Some(directory) = self.directories.get_mut(&parent) else { return };
        directory.forget(name, &mut self.unknown);
        if directory.missing.remove(name) || directory.elsewhere.remove(name).is_some() {
            assert!(self.by_directory > 0, "such names are counted");
            self.by_directory -= 1;
        }
        if let Some(inode) = directory.present.remove(name) {
            let names = self.of_inode.get_mut(&inode).expect("a name that leads to an inode is in its list");
            let count = names.len();
            names.retain(|(of, each)| (*of, &**each) != (parent, name));
            assert_eq!(names.len() + 1, count, "a name that leads to an inode is in its list once");
            self.present -= 1;
            if names.is_empty() {
                self.of_inode.remove(&inode);
            }
        }
        self.tidy(parent);
    }

    /// Nothing is known of names that lead to an inode.
    pub fn forget_leading_to(&mut self, inode: InodeNumber) {
        for (parent, name) in self.of_inode.remove(&inode).unwrap_or_default() {
            self.present -= 1;
            if let Some(directory) = self.directories.get_mut(&parent) {
                assert_eq!(directory.present.remove(&name), Some(inode), "a name in the list of an inode leads there");
                directory.forget(&name, &mut self.unknown);
            }
            self.tidy(parent);
        }
    }

    /// Nothing is known of names that are covered by the lock on the names of a directory.
    pub fn forget_by_directory(&mut self, parent: InodeNumber) {
        if let Some(directory) = self.directories.get_mut(&parent) {
            self.by_directory -= std::mem::take(&mut directory.missing).len();
            self.by_directory -= std::mem::take(&mut directory.elsewhere).len();
        }
        self.tidy(parent);
    }

    /// All names of which something is known.
    pub fn all(&self) -> impl Iterator<Item = (InodeNumber, &[u8], Name)> {
        self.directories.iter().flat_map(|(parent, directory)| {
            let present = directory.present.iter().map(|(name, inode)| (*parent, &**name, Name::Leads(*inode)));
            let elsewhere = directory.elsewhere.iter().map(|(name, inode)| (*parent, &**name, Name::Leads(*inode)));
            present.chain(elsewhere).chain(directory.missing.iter().map(|name| (*parent, &**name, Name::Missing)))
        })
    }

    /// Names known not to exist, or to lead to other MDTs.
    pub fn by_directory_count(&self) -> usize {
        self.by_directory
    }

    /// Names of which nothing is known in complete directories.
    pub fn unknown_count(&self) -> usize {
        self.unknown
    }

    /// Names that lead to inodes, besides the first of each: that is covered by what an inode may
    /// take.
    pub fn further_count(&self) -> usize {
        self.present - self.of_inode.len()
    }

    fn tidy(&mut self, parent: InodeNumber) {
        let is_empty = |directory: &Directory| {
            let Directory { present, missing, elsewhere, unknown } = directory;
            present.is_empty() && missing.is_empty() && elsewhere.is_empty() && unknown.is_none()
        };
        if self.directories.get(&parent).is_some_and(is_empty) {
            self.directories.remove(&parent);
        }
    }

    /// Whether nothing is known.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let Self { directories, of_inode, by_directory, present, unknown } = self;
        directories.is_empty() && of_inode.is_empty() && [*by_directory, *present, *unknown] == [0; 3]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber(1);
    const OTHER: InodeNumber = InodeNumber(2);
    const FILE: InodeNumber = InodeNumber(7);

    #[test]
    fn all_names_of_an_inode_go_together() {
        let mut names = NameTable::default();
        names.lead(DIRECTORY, b"one", FILE);
        names.lead(OTHER, b"two", FILE);
        names.lead(OTHER, b"two", FILE);
        names.lead(OTHER, b"else", InodeNumber(8));
        assert_eq!(names.further_count(), 1, "one of FILE");
        names.forget(DIRECTORY, b"one");
        assert_eq!(names.further_count(), 0);
        names.lead(DIRECTORY, b"one", FILE);
        assert_eq!(names.further_count(), 1);
        names.forget_leading_to(FILE);
        assert_eq!(names.further_count(), 0);
        assert_eq!((names.find(DIRECTORY, b"one"), names.find(OTHER, b"two")), (None, None));
        assert_eq!(names.find(OTHER, b"else"), Some(Name::Leads(InodeNumber(8))));
        names.forget(OTHER, b"else");
        assert!(names.is_empty());
    }

    #[test]
    fn a_new_directory_is_complete() {
        let mut names = NameTable::default();
        names.complete(DIRECTORY);
        assert_eq!((names.find(DIRECTORY, b"any"), names.by_directory_count()), (Some(Name::Missing), 0));
        names.forget(DIRECTORY, b"made");
        assert_eq!(names.find(DIRECTORY, b"made"), None, "it is being made");
        names.lead(DIRECTORY, b"made", FILE);
        assert_eq!(names.find(DIRECTORY, b"made"), Some(Name::Leads(FILE)));
        names.forget_leading_to(FILE);
        assert_eq!((names.find(DIRECTORY, b"made"), names.find(DIRECTORY, b"any")), (None, Some(Name::Missing)));
        assert_eq!(names.unknown_count(), 1);
        names.miss(DIRECTORY, b"made");
        assert_eq!((names.find(DIRECTORY, b"made"), names.by_directory_count()), (Some(Name::Missing), 0));
        names.forget_complete(DIRECTORY);
        assert!(names.is_empty());
        names.complete(DIRECTORY);
        for name in 0..=UNKNOWN_MAX {
            names.forget(DIRECTORY, name.to_string().as_bytes());
        }
        assert!(names.is_empty(), "it is complete no more");
    }

    #[test]
    fn a_name_leads_somewhere_or_does_not_exist() {
        let mut names = NameTable::default();
        names.miss(DIRECTORY, b"name");
        names.miss(DIRECTORY, b"name");
        assert_eq!((names.find(DIRECTORY, b"name"), names.by_directory_count()), (Some(Name::Missing), 1));
        names.lead(DIRECTORY, b"name", FILE);
        assert_eq!((names.find(DIRECTORY, b"name"), names.by_directory_count()), (Some(Name::Leads(FILE)), 0));
        names.lead(DIRECTORY, b"name", OTHER);
        names.forget_leading_to(FILE);
        assert_eq!(names.find(DIRECTORY, b"name"), Some(Name::Leads(OTHER)));
        names.miss(DIRECTORY, b"name");
        names.forget_leading_to(OTHER);
        assert_eq!(names.find(DIRECTORY, b"name"), Some(Name::Missing), "it leads there no more");
        names.forget_by_directory(DIRECTORY);
        assert!(names.is_empty());
    }

    #[test]
    fn a_name_that_leads_elsewhere_goes_with_the_names_of_its_directory() {
        let mut names = NameTable::default();
        names.lead_elsewhere(DIRECTORY, b"name", OTHER);
        names.lead_elsewhere(DIRECTORY, b"name", OTHER);
        assert_eq!((names.find(DIRECTORY, b"name"), names.find_elsewhere(DIRECTORY, b"name")), (None, Some(OTHER)));
        assert_eq!(names.by_directory_count(), 1);
        names.miss(DIRECTORY, b"name");
        assert_eq!(names.find_elsewhere(DIRECTORY, b"name"), None, "it is removed");
        names.lead_elsewhere(DIRECTORY, b"name", OTHER);
        names.lead(DIRECTORY, b"name", FILE);
        assert_eq!((names.find_elsewhere(DIRECTORY, b"name"), names.by_directory_count()), (None, 0), "replaced");
        names.lead_elsewhere(DIRECTORY, b"name", OTHER);
        names.forget_leading_to(FILE);
        names.forget_by_directory(DIRECTORY);
        assert!(names.is_empty());
        names.complete(DIRECTORY);
        names.lead_elsewhere(DIRECTORY, b"name", OTHER);
        names.forget_by_directory(DIRECTORY);
        assert_eq!(names.find(DIRECTORY, b"name"), None, "it may exist");
        assert_eq!(names.find(DIRECTORY, b"any"), Some(Name::Missing));
    }
}
