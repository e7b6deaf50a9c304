//! Which changes of a file's data are included in its times. The order of changes at each object,
//! which its target counts, decides this, not the clocks of different hosts
//! (docs/decisions/0016-times.md).
//!
//! The data of a file have changed since its times were set or reported if, and only if, the sum of
//! the counts of its objects has changed. Then mtime and ctime are computed from the stored values
//! and those of the objects, such that each further change makes both later than any value seen
//! before, however far behind the clock of its target is. Pure; MDTs and clients compute the same.

use serde::{Deserialize, Serialize};

use crate::{Generation, Timestamp};

/// What the objects of a file say of their changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataChanges {
    /// Changes ever made, of all objects together.
    pub count: u64,
    /// Time of the latest of them, by the clock of its target; or of the latest that
    /// `Accounted::changes` does not cover.
    pub last: Timestamp,
}

/// What the objects said when a time of the file is about to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenChanges {
    /// What they said.
    pub changes: DataChanges,
    /// Why this includes whatever was done before.
    pub proof: SeenProof,
}

/// Why [`SeenChanges`] include every change that was over before the times are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeenProof {
    /// The client has been the only one to change the file since it was given this write epoch.
    Alone {
        /// The epoch.
        epoch: u64,
    },
    /// All objects of the layout of this generation were asked since the caller wanted the times to
    /// be set.
    Asked {
        /// The generation.
        generation: Generation,
    },
}

/// What the stored times of a file account for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounted {
    /// Not earlier than the time of any change that is accounted for, nor than any time at which
    /// mtime was set.
    pub time: Timestamp,
    /// Changes of objects that are accounted for.
    pub changes: u64,
    /// Changes of the inode itself since its ctime last took the objects' changes into account.
    pub records: u32,
}

/// Times of a file that change with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTimes {
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
}

impl Accounted {
    /// The times of a file whose objects say `found`, if `stored` are those of its record.
    ///
    /// Both grow strictly with each change of an object, and ctime also with each change of the
    /// record.
    pub fn times(&self, stored: DataTimes, found: &DataChanges) -> DataTimes {
        if found.count == self.changes {
            return stored;
        }
        // Fewer than accounted for: a target lost changes with its power, which is a change too.
        let further = found.count.saturating_sub(self.changes).saturating_sub(1);
        let written = found.last.max(self.time.next());
        let mtime = written.plus(further);
        // A time to come that was set by hand must not look as if nothing had happened when it
        // comes.
        let passed = u64::from(stored.mtime > self.time && mtime >= stored.mtime);
        let changed = written.max(stored.ctime.next());
        DataTimes {
            mtime: mtime.plus(passed),
            ctime: changed.plus(further.saturating_add(u64::from(self.records) + passed)),
        }
    }

    /// After the stored times became `times`, because the objects said `found`.
    pub fn size_known(&self, times: DataTimes, found: &DataChanges) -> Accounted {
        let time = if found.count == self.changes { self.time } else { self.time.max(times.mtime) };
        Accounted { time, changes: found.count, records: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp { seconds, nanoseconds: 0 }
    }

    fn found(count: u64, last: i64) -> DataChanges {
        DataChanges { count, last: at(last) }
    }

    const STORED: DataTimes = DataTimes {
        mtime: Timestamp { seconds: 7, nanoseconds: 0 },
        ctime: Timestamp { seconds: 100, nanoseconds: 0 },
    };
    const SET: Accounted = Accounted { time: Timestamp { seconds: 100, nanoseconds: 0 }, changes: 5, records: 0 };

    #[test]
    fn what_is_accounted_for_changes_nothing_whatever_its_time() {
        assert_eq!(SET.times(STORED, &found(5, 200)), STORED, "the clock of the target is ahead");
    }

    #[test]
    fn a_change_shows_however_far_behind_the_clock_of_its_target_is() {
        let times = SET.times(STORED, &found(6, 40));
        assert_eq!((times.mtime, times.ctime), (at(100).next(), at(100).next()));
        let later = SET.times(STORED, &found(7, 41));
        assert!(later.mtime > times.mtime && later.ctime > times.ctime);
        let right = SET.times(STORED, &found(6, 200));
        assert_eq!((right.mtime, right.ctime), (at(200), at(200)), "where clocks agree, it is the time of the write");
    }

    #[test]
    fn each_change_shows_although_another_object_has_a_later_time() {
        let first = SET.times(STORED, &found(6, 300));
        let second = SET.times(STORED, &found(7, 300));
        assert!(second.mtime > first.mtime && second.ctime > first.ctime);
        let size_known = SET.size_known(first, &found(6, 300));
        assert_eq!(size_known.times(first, &found(6, 300)), first);
        let third = size_known.times(first, &found(8, 300));
        assert!(third.mtime > second.mtime && third.ctime > second.ctime);
    }

    #[test]
    fn a_change_of_the_inode_shows_although_a_target_is_ahead() {
        let before = SET.times(STORED, &found(6, 300));
        let after = Accounted { records: 1, ..SET }.times(DataTimes { ctime: at(101), ..STORED }, &found(6, 300));
        assert_eq!(after.mtime, before.mtime);
        assert!(after.ctime > before.ctime);
    }

    #[test]
    fn a_time_to_come_is_passed_and_never_met() {
        let future = DataTimes { mtime: at(500), ..STORED };
        assert_eq!(SET.times(future, &found(6, 200)).mtime, at(200), "a write takes the present time");
        assert_eq!(SET.times(future, &found(6, 500)).mtime, at(500).next());
        assert!(SET.times(future, &found(7, 500)).mtime > at(500).next());
    }

    #[test]
    fn no_count_is_too_large() {
        let hostile = DataChanges { count: u64::MAX, last: Timestamp { seconds: i64::MAX, nanoseconds: 999_999_999 } };
        let accounted = Accounted { records: u32::MAX, ..SET };
        let times = accounted.times(STORED, &hostile);
        assert!(times.mtime.nanoseconds < 1_000_000_000 && times.ctime.nanoseconds < 1_000_000_000);
    }

    #[test]
    fn changes_that_were_lost_are_a_change() {
        let times = SET.times(STORED, &found(3, 40));
        assert!(times.mtime > STORED.mtime && times.ctime > STORED.ctime);
    }
}
