//! Names that this client has changed on one MDT, of inodes on another one. The MDT of the name
//! decides a rename or a link, and a change is durable when it is durable there: so a sync of the
//! file commits that MDT, too, and tells if it lost the change
//! (docs/decisions/0058-striped-directories.md).
//!
//! Downside: of a name whose inode was not cached, it is not known which file the change concerns.
//! Then the next sync of any file on another MDT commits it, and is told of its loss; not of an MDT
//! that is out of use.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use types::{InodeNumber, MdtIndex};

/// Changes that are noted with the inode.
const NOTED_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Noted {
    /// Number of the last change.
    number: u64,
    /// Power-loss era of the MDT at the first one.
    era: u64,
}

#[derive(Debug, Default)]
struct State {
    changes: u64,
    /// By inode, if it is known, and MDT of the name.
    noted: BTreeMap<(Option<InodeNumber>, MdtIndex), Noted>,
}

/// What a sync has to commit besides the MDT of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToCommit {
    /// Changes so far: later ones are not covered.
    changes: u64,
    /// The MDTs, with the power-loss era of the first change.
    pub mdts: BTreeMap<MdtIndex, u64>,
    /// Those where a name of this inode has changed; of the others it is not known whose.
    certain: BTreeSet<MdtIndex>,
}

impl ToCommit {
    /// Leaves out MDTs that are out of use, unless a name of this inode is there.
    pub fn leave_out(&mut self, is_active: impl Fn(MdtIndex) -> bool) {
        let certain = &self.certain;
        self.mdts.retain(|mdt, _| certain.contains(mdt) || is_active(*mdt));
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct NamesElsewhere {
    state: Mutex<State>,
}

impl NamesElsewhere {
    /// An MDT has acknowledged, in this power-loss era, the change of a name; the inode, if it is
    /// known.
    pub fn changed(&self, inode: Option<InodeNumber>, mdt: MdtIndex, era: u64) {
        if inode.is_some_and(|inode| inode.mdt() == mdt) {
            return;
        }
        let mut state = self.state.lock();
        state.changes += 1;
        let number = state.changes;
        let has_room = state.noted.len() < NOTED_MAX || state.noted.contains_key(&(inode, mdt));
        let noted = state.noted.entry((inode.filter(|_| has_room), mdt)).or_insert(Noted { number, era });
        (noted.number, noted.era) = (number, noted.era.min(era));
    }

    /// What a sync of this inode has to commit.
    pub fn of(&self, inode: InodeNumber) -> ToCommit {
        let state = self.state.lock();
        let mut found = ToCommit { changes: state.changes, ..ToCommit::default() };
        for ((of, mdt), noted) in &state.noted {
            if *mdt != inode.mdt() && of.is_none_or(|of| of == inode) {
                let era = found.mdts.entry(*mdt).or_insert(noted.era);
                *era = noted.era.min(*era);
                found.certain.extend(of.map(|_| *mdt));
            }
        }
        found
    }

    /// An MDT has committed for this inode; `lost`: its last loss
    /// ([`Uncommitted::lost`](crate::targets::uncommitted::Uncommitted::lost)), of which the caller
    /// is told. Other files are still to be told of theirs.
    pub fn committed(&self, inode: InodeNumber, to_commit: &ToCommit, mdt: MdtIndex, lost: u64) {
        let is_left = |of: &Option<InodeNumber>, noted: &Noted| {
            let is_told = of.is_none_or(|of| of == inode);
            noted.number > to_commit.changes || noted.era < lost && !is_told
        };
        self.state.lock().noted.retain(|(of, at), noted| *at != mdt || is_left(of, noted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: MdtIndex = MdtIndex(0);

    fn file(counter: u64) -> InodeNumber {
        InodeNumber::new(MdtIndex(1), 0x200 + counter)
    }

    fn mdts(names: &NamesElsewhere, inode: InodeNumber) -> Vec<(u16, u64)> {
        names.of(inode).mdts.into_iter().map(|(mdt, era)| (mdt.0, era)).collect()
    }

    #[test]
    fn a_sync_commits_the_mdts_of_names_until_that_has_succeeded() {
        let names = NamesElsewhere::default();
        names.changed(Some(InodeNumber::new(NAME, 0x300)), NAME, 3);
        assert_eq!(mdts(&names, file(0)), [], "name and inode are together");
        names.changed(Some(file(0)), NAME, 3);
        assert_eq!((mdts(&names, file(0)), mdts(&names, file(1))), (vec![(0, 3)], vec![]));
        let to_commit = names.of(file(0));
        names.changed(Some(file(0)), NAME, 4);
        names.committed(file(0), &to_commit, NAME, 0);
        assert_eq!(mdts(&names, file(0)), [(0, 3)], "the second change came later");
        names.committed(file(0), &names.of(file(0)), NAME, 0);
        assert_eq!(mdts(&names, file(0)), []);
    }

    #[test]
    fn each_file_is_told_of_its_loss() {
        let names = NamesElsewhere::default();
        for number in [0, 1] {
            names.changed(Some(file(number)), NAME, 3);
        }
        names.committed(file(0), &names.of(file(0)), NAME, 4);
        assert_eq!((mdts(&names, file(0)), mdts(&names, file(1))), (vec![], vec![(0, 3)]));
        names.changed(Some(file(2)), NAME, 4);
        names.committed(file(1), &names.of(file(1)), NAME, 4);
        assert_eq!((mdts(&names, file(1)), mdts(&names, file(2))), (vec![], vec![]), "it is not lost, and durable");
    }

    #[test]
    fn an_mdt_out_of_use_holds_up_the_files_whose_names_are_there() {
        let names = NamesElsewhere::default();
        names.changed(None, NAME, 3);
        names.changed(Some(file(1)), MdtIndex(2), 3);
        let left = |inode, active: u16| {
            let mut to_commit = names.of(inode);
            to_commit.leave_out(|mdt| mdt.0 == active);
            to_commit.mdts.into_keys().map(|mdt| mdt.0).collect::<Vec<_>>()
        };
        assert_eq!((left(file(1), 0), left(file(2), 0)), (vec![0, 2], vec![0]));
        assert_eq!((left(file(1), 2), left(file(2), 2)), (vec![2], vec![]), "whose name it is, is not known");
        assert_eq!(left(file(1), 3), [2], "its name is there");
    }

    #[test]
    fn a_change_of_an_unknown_file_may_be_one_of_any() {
        let names = NamesElsewhere::default();
        names.changed(None, NAME, 3);
        assert_eq!(mdts(&names, file(7)), [(0, 3)]);
        assert_eq!(mdts(&names, InodeNumber::new(NAME, 0x300)), [], "its own MDT commits anyway");
        for number in 0..2 * NOTED_MAX as u64 {
            names.changed(Some(file(number)), MdtIndex(2), 1);
        }
        assert_eq!(mdts(&names, file(2 * NOTED_MAX as u64)), [(0, 3), (2, 1)], "more than are noted");
    }
}
