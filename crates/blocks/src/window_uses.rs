//! When the owners of windows used them last, so that those go first that are idle longest.
//!
//! Times are the caller's, in any unit; what is used at the same time is in the order of owners.

use std::collections::{BTreeMap, BTreeSet};

use types::ObjectId;

/// What a window is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// An object.
    Object(ObjectId),
    /// Small objects of a locality.
    Locality(u64),
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct WindowUses {
    last: BTreeMap<Owner, u64>,
    by_time: BTreeSet<(u64, Owner)>,
}

impl WindowUses {
    /// An owner got or used a window.
    pub(crate) fn used(&mut self, owner: Owner, now: u64) {
        let before = self.last.insert(owner, now);
        if before == Some(now) {
            return;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, owner));
        }
        self.by_time.insert((now, owner));
    }

    /// An owner has no windows any more.
    pub(crate) fn forget(&mut self, owner: Owner) {
        if let Some(time) = self.last.remove(&owner) {
            self.by_time.remove(&(time, owner));
        }
    }

    /// The owner that is idle longest, if it is since before a time.
    pub(crate) fn idle_since(&self, before: u64) -> Option<Owner> {
        self.by_time.first().filter(|(time, _)| *time < before).map(|(_, owner)| *owner)
    }

    /// The owner that is idle longest of those that are wanted.
    pub(crate) fn oldest(&self, wanted: impl Fn(&Owner) -> bool) -> Option<Owner> {
        self.by_time.iter().map(|(_, owner)| *owner).find(wanted)
    }

    /// How many owners have windows.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        assert_eq!(self.last.len(), self.by_time.len(), "each owner has one time");
        self.last.len()
    }
}
