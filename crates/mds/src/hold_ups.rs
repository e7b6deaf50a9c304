//! How long a client may hold others off while it lives and renews its lease. Counted in intervals
//! (`mdt/silent_clients.rs`), so that time during which this process was suspended does not count.
//!
//! | a client | others wait | after |
//! |---|---|---|
//! | holds writers off a file | to write to it | 10 minutes of waiting its hold ends: the epoch shows it that its copy is of no use |
//! | changes the layout of a file | to be shown the layout | a minute its change ends (`volatile`); after two minutes of changes no new one begins |
//! | has the exclusive data lock of a file | in the queue of the lock | 10 minutes of waiting it is evicted |
//!
//! Holds and changes of a layout can begin again at once, before those that wait have asked again.
//! So they count as one as long as they follow each other, whichever clients make them. When their
//! time is over, none begins for a whole interval.
//!
//! Downside: a client that cannot end a truncation or an append for 10 minutes is evicted, although
//! it may be an OST that does not answer it.

use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, InodeNumber};

use crate::volatile::Volatile;

/// Intervals of 3 s of which one passes while others wait, until a hold ends or a client is
/// evicted: 10 minutes. A call to a server that is down fails after 100 s, unless set otherwise.
const AWAITED_MAX: u32 = 200;
/// Intervals of 3 s during which layouts of a file are changed: two minutes, twice as long as one
/// change may take.
const LAYOUT_CHANGES_MAX: u32 = 40;

/// One hold-up after the other of an inode.
#[derive(Debug, Default)]
struct HoldUp {
    intervals: u32,
    /// In this interval.
    has_begun: bool,
}

/// What an interval has brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Nobody is to be held off these any more.
    pub over: Vec<InodeNumber>,
    /// Nobody was held off these for a whole interval: what waits for its turn may begin.
    pub free: Vec<InodeNumber>,
}

/// Hold-ups of one kind. See the module documentation.
#[derive(Debug)]
pub(crate) struct HoldUps {
    intervals_max: u32,
    inodes: BTreeMap<InodeNumber, HoldUp>,
}

impl HoldUps {
    fn new(intervals_max: u32) -> Self {
        Self { intervals_max, inodes: BTreeMap::new() }
    }

    /// Of clients that hold writers off.
    pub fn of_writers() -> Self {
        Self::new(AWAITED_MAX)
    }

    /// Of clients that change layouts.
    pub fn of_layouts() -> Self {
        Self::new(LAYOUT_CHANGES_MAX)
    }

    /// A client wants to hold others off an inode. False: those that wait come first.
    pub fn begin(&mut self, inode: InodeNumber) -> bool {
        let hold_up = self.inodes.entry(inode).or_default();
        let may_begin = hold_up.intervals < self.intervals_max;
        hold_up.has_begun |= may_begin;
        may_begin
    }

    /// An interval has passed. `is_held`: whether others are held off now; `counts`: whether that
    /// counts.
    fn pass(&mut self, is_held: impl Fn(InodeNumber) -> bool, counts: impl Fn(InodeNumber) -> bool) -> Passed {
        let (max, mut passed) = (self.intervals_max, Passed::default());
        self.inodes.retain(|inode, hold_up| {
            let is_held = is_held(*inode);
            if !std::mem::take(&mut hold_up.has_begun) && !is_held {
                passed.free.push(*inode);
                return false;
            }
            hold_up.intervals = max.min(hold_up.intervals + u32::from(counts(*inode)));
            if is_held && hold_up.intervals == max {
                passed.over.push(*inode);
            }
            true
        });
        passed
    }
}

impl Volatile {
    /// An interval has passed: ends what holds others off for too long. Returns the clients that
    /// are to be evicted.
    pub fn end_long_hold_ups(&mut self) -> BTreeSet<ClientId> {
        let Self { opens, waiters, writers_held_off, .. } = self;
        let ended = writers_held_off.pass(|inode| opens.is_held(inode), |inode| waiters.is_awaited(inode)).over;
        for inode in ended {
            tracing::warn!(%inode, "writers were held off for too long; they continue");
            self.end_hold(inode);
        }
        let mut changes = std::mem::replace(&mut self.layouts_withheld, HoldUps::of_layouts());
        let passed = changes.pass(|inode| self.is_layout_changing(inode), |_| true);
        self.layouts_withheld = changes;
        for inode in passed.over {
            if let Some(client) = self.layout_changing_by(inode) {
                tracing::warn!(%inode, %client, "the layout was changed for too long; other clients continue");
                self.end_layout_change(inode, client);
            }
        }
        passed.free.into_iter().for_each(|inode| self.waiters.wake(inode));
        self.exclusive.long_awaited(AWAITED_MAX).into_iter().map(|(_, client)| client).collect()
    }
}

#[cfg(test)]
mod tests {
    use layout::ComponentId;
    use types::Timestamp;

    use super::*;

    const FILE: InodeNumber = InodeNumber(7);
    const MAX: u32 = 3;

    fn over() -> Passed {
        Passed { over: vec![FILE], free: Vec::new() }
    }

    fn free() -> Passed {
        Passed { over: Vec::new(), free: vec![FILE] }
    }

    #[test]
    fn what_follows_at_once_counts_as_one() {
        let mut hold_ups = HoldUps::new(MAX);
        for _ in 0..MAX {
            assert!(hold_ups.begin(FILE), "it ended before the interval did, and begins again");
            assert_eq!(hold_ups.pass(|_| false, |_| true), Passed::default());
        }
        assert!(!hold_ups.begin(FILE), "others first");
        assert_eq!(hold_ups.pass(|_| false, |_| true), free());
        assert!(hold_ups.begin(FILE) && hold_ups.inodes[&FILE].intervals == 0);
    }

    /// A client that changes a layout again and again has no more time for it, and the others are
    /// shown the layout for an interval.
    #[test]
    fn a_layout_is_shown_between_changes() {
        const CLIENT: ClientId = ClientId(1);
        let mut volatile = Volatile::new(Timestamp::default(), 0, 10);
        volatile.exclusive.begin(FILE, CLIENT).unwrap();
        let (mut begun, mut now_ns, mut ended_after) = (0, 0, Vec::new());
        while begun < 2 * LAYOUT_CHANGES_MAX {
            now_ns += 3_000_000_000;
            assert!(!volatile.is_layout_changing(FILE) || ended_after.last() != Some(&begun));
            if volatile.layouts_withheld.begin(FILE) {
                volatile.begin_layout_change(FILE, CLIENT, ComponentId(1), now_ns);
                begun += 1;
            } else {
                assert!(!volatile.is_layout_changing(FILE), "it is shown");
            }
            volatile.end_old_layout_changes(now_ns);
            assert_eq!(volatile.end_long_hold_ups(), BTreeSet::new());
            if !volatile.is_layout_changing(FILE) && ended_after.last() != Some(&begun) {
                ended_after.push(begun);
            }
        }
        // A minute each, and then two minutes in all.
        assert_eq!(ended_after, [22, 40, 62, 80]);
    }

    #[test]
    fn only_waiting_counts() {
        let mut hold_ups = HoldUps::new(MAX);
        assert!(hold_ups.begin(FILE));
        for _ in 0..10 * MAX {
            assert_eq!(hold_ups.pass(|_| true, |_| false), Passed::default());
        }
        for _ in 1..MAX {
            assert_eq!(hold_ups.pass(|_| true, |_| true), Passed::default());
            assert_eq!(hold_ups.pass(|_| true, |_| false), Passed::default());
        }
        assert_eq!(hold_ups.pass(|_| true, |_| true), over());
        assert_eq!(hold_ups.pass(|_| false, |_| false), free());
        assert!(hold_ups.inodes.is_empty());
    }
}
