//! Whether a target may have forgotten changes of this client that were never made durable.
//!
//! A successful commit means that everything the target knows is durable; the target cannot know
//! what it forgot. So the client remembers in which power-loss era ([`rpc::Answered::era`]) its
//! oldest uncommitted change was acknowledged. If the era is a later one when the next commit
//! succeeds, the change may be lost, and syncs report it: each file or directory that was open by
//! then, once, and [`crate::FileSystem::sync_all`], once. (Linux reports failed write-back in the
//! same way.)
//!
//! Downsides: a loss is also reported for a change that had become durable by itself before (and,
//! at an OST, for one that an fsync of its file had made durable: only the sync of everything asks
//! here, files know better); nothing is reported for a file that is opened after the first report.

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct State {
    /// Power-loss era of the target when the oldest uncommitted change was acknowledged; `None`:
    /// all is committed.
    since: Option<u64>,
    /// Changes so far.
    changes: u64,
    /// See [`Uncommitted::lost`].
    lost: u64,
    /// The last of these that a sync of everything has told.
    told: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    state: Mutex<State>,
}

impl Uncommitted {
    /// A change was acknowledged in this power-loss era.
    pub fn changed(&self, era: u64) {
        let mut state = self.state.lock();
        state.changes += 1;
        state.since = Some(state.since.map_or(era, |since| since.min(era)));
    }

    /// A commit begins; to be given to [`Uncommitted::committed`].
    pub fn begin(&self) -> u64 {
        self.state.lock().changes
    }

    /// The commit that began at `changes` succeeded in this power-loss era. Returns
    /// [`Uncommitted::lost`].
    pub fn committed(&self, changes: u64, era: u64) -> u64 {
        let mut state = self.state.lock();
        assert!(changes <= state.changes, "a commit begins after the changes it covers");
        if state.since.is_some_and(|since| since < era) {
            state.lost = era;
            state.since = Some(era);
        }
        if state.changes == changes {
            state.since = None;
        }
        state.lost
    }

    /// Number of the last loss that took uncommitted changes, as far as a commit has found out; 0:
    /// none did.
    pub fn lost(&self) -> u64 {
        self.state.lock().lost
    }

    /// Whether this loss has not been reported to a sync of everything yet.
    pub fn is_news(&self, lost: u64) -> bool {
        let mut state = self.state.lock();
        let news = lost > state.told;
        state.told = state.told.max(lost);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(uncommitted: &Uncommitted, era: u64) -> u64 {
        uncommitted.committed(uncommitted.begin(), era)
    }

    #[test]
    fn only_changes_from_before_a_loss_and_without_a_commit_are_lost() {
        let uncommitted = Uncommitted::default();
        uncommitted.changed(0);
        assert_eq!(commit(&uncommitted, 0), 0);
        assert_eq!(commit(&uncommitted, 1), 0, "committed before the loss");
        uncommitted.changed(1);
        assert_eq!(commit(&uncommitted, 2), 2);
        uncommitted.changed(2);
        assert_eq!(commit(&uncommitted, 2), 2, "nothing new");
        assert!(uncommitted.is_news(2) && !uncommitted.is_news(2));
    }

    #[test]
    fn a_change_during_a_commit_waits_for_the_next() {
        let uncommitted = Uncommitted::default();
        uncommitted.changed(0);
        let begun = uncommitted.begin();
        uncommitted.changed(0);
        assert_eq!(uncommitted.committed(begun, 0), 0);
        assert_eq!(commit(&uncommitted, 1), 1);
    }
}
