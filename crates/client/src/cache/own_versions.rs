//! Attributes of inodes that this client changes, as the replies to its changes show them.
//!
//! While changes of an inode are under way, its attributes are not known. Replies may be handled in
//! another order than the one in which the changes were executed; versions tell that order. When
//! the last change under way was answered, the attributes with the highest version are the present
//! ones, if every reply contained its version and no other client can have changed the inode
//! meanwhile.
//!
//! Life cycle of an episode: from the first change under way of an inode to the last.

use std::collections::BTreeMap;

use rpc::message::mdt::Entry;
use types::InodeNumber;

use super::subject::Subject;

/// Changes of one inode that overlap.
#[derive(Debug, Default)]
struct Episode {
    under_way: u32,
    /// The highest version that was told.
    highest: u64,
    /// The newest attributes that were shown, with their version.
    shown: Option<(u64, Entry)>,
    /// Something changed the inode that tells no version.
    is_doubtful: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct OwnVersions {
    episodes: BTreeMap<InodeNumber, Episode>,
}

/// Inodes whose attributes a change concerns.
pub(crate) fn inodes_of(subjects: &[Subject]) -> Vec<InodeNumber> {
    let inode = |subject: &Subject| match subject {
        Subject::Inode(inode) | Subject::Times(inode) => Some(*inode),
        Subject::AllAttributes
        | Subject::Layout(_)
        | Subject::Data(_)
        | Subject::Above(_)
        | Subject::Name(..)
        | Subject::Names(_) => None,
    };
    let mut inodes: Vec<_> = subjects.iter().filter_map(inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    inodes
}

impl OwnVersions {
    /// A change of these inodes begins.
    pub fn begin(&mut self, inodes: &[InodeNumber]) {
        for inode in inodes {
            self.episodes.entry(*inode).or_default().under_way += 1;
        }
    }

    /// A change of an inode was answered, with its version after the change and its attributes
    /// then, if these were shown under a lock that was held all the time. Returns the present
    /// attributes, if they are known.
    pub fn end(&mut self, inode: InodeNumber, version: Option<u64>, shown: Option<&Entry>) -> Option<Entry> {
        let episode = self.episodes.get_mut(&inode).expect("a change ends after it began");
        assert!(episode.under_way > 0, "an episode lasts as long as changes are under way");
        episode.under_way -= 1;
        match version {
            Some(version) => {
                episode.highest = episode.highest.max(version);
                if let Some(entry) = shown
                    && episode.shown.as_ref().is_none_or(|(known, _)| *known < version)
                {
                    episode.shown = Some((version, entry.clone()));
                }
            }
            None => episode.is_doubtful = true,
        }
        if episode.under_way > 0 {
            return None;
        }
        let Episode { highest, shown, is_doubtful, .. } = self.episodes.remove(&inode)?;
        let (version, entry) = shown.filter(|_| !is_doubtful)?;
        (version == highest).then_some(entry)
    }

    /// Another client may have changed an inode, or this client by a change that reports no
    /// version.
    pub fn doubt(&mut self, inode: InodeNumber) {
        if let Some(episode) = self.episodes.get_mut(&inode) {
            episode.is_doubtful = true;
        }
    }

    /// The same of all inodes.
    pub fn doubt_all(&mut self) {
        for episode in self.episodes.values_mut() {
            episode.is_doubtful = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::mdt::Entry;
    use types::{Attributes, FileKind};

    use super::*;

    const ONE: InodeNumber = InodeNumber(7);

    fn entry(size: u64) -> Entry {
        Entry::of(Attributes { size, ..Attributes::zeroed(ONE, FileKind::Directory) })
    }

    #[test]
    fn the_highest_version_counts_in_whatever_order_replies_come() {
        let mut versions = OwnVersions::default();
        versions.begin(&[ONE]);
        versions.begin(&[ONE]);
        versions.begin(&[ONE]);
        assert_eq!(versions.end(ONE, Some(8), Some(&entry(8))), None, "others are under way");
        assert_eq!(versions.end(ONE, Some(9), Some(&entry(9))), None);
        assert_eq!(versions.end(ONE, Some(7), Some(&entry(7))), Some(entry(9)));
        assert!(versions.episodes.is_empty());
    }

    #[test]
    fn a_change_without_a_version_leaves_them_unknown() {
        let mut versions = OwnVersions::default();
        versions.begin(&[ONE]);
        versions.begin(&[ONE]);
        assert_eq!(versions.end(ONE, None, None), None);
        assert_eq!(versions.end(ONE, Some(9), Some(&entry(9))), None);
        versions.begin(&[ONE]);
        assert_eq!(versions.end(ONE, Some(10), Some(&entry(10))), Some(entry(10)), "a new episode");
    }

    #[test]
    fn the_newest_state_must_have_been_shown() {
        let mut versions = OwnVersions::default();
        versions.begin(&[ONE]);
        versions.begin(&[ONE]);
        assert_eq!(versions.end(ONE, Some(9), None), None);
        assert_eq!(versions.end(ONE, Some(8), Some(&entry(8))), None);
        versions.begin(&[ONE]);
        versions.doubt(ONE);
        assert_eq!(versions.end(ONE, Some(9), Some(&entry(9))), None, "somebody else may have changed it");
    }
}
