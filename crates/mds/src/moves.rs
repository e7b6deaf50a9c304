//! Which finished files are worth migrating to another layout, judged by how they are read
//! ([`layout::migration`]). Volatile: after a restart the count starts again.
//!
//! Files are taken from here one by one ([`Moves::take`]), and the outcome is reported back
//! ([`Moves::forget`], [`Moves::failed`]). A file that could not be moved is tried again when it
//! has been read twice as often as before. So a file that always has a reader, or that there is no
//! space to move, is tried less and less often.
//!
//! Invariants: an inode waits at most once; at most [`COUNTED_MAX`] files are counted and
//! [`WAITING_MAX`] wait.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use layout::migration::Comparison;
use tokio::sync::Notify;
use types::InodeNumber;

/// Files counted. Beyond, the one that lost least is forgotten.
const COUNTED_MAX: usize = 4096;
/// Files that wait. Beyond, files continue being counted.
const WAITING_MAX: usize = 256;
/// Beyond so many failures, the threshold of a file is not doubled any more.
const FAILURES_MAX: u32 = 20;

/// What is known of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// Microseconds that its readers lost since it was last tried.
    lost_us: u64,
    /// How often it could not be moved.
    failures: u32,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    counted: BTreeMap<InodeNumber, Count>,
    waiting: VecDeque<InodeNumber>,
    wakeup: Arc<Notify>,
}

impl Moves {
    /// A client reads a file with this layout.
    pub fn read(&mut self, inode: InodeNumber, compared: &Comparison) {
        if !compared.is_worth_naming() || self.waiting.contains(&inode) {
            return;
        }
        let Count { lost_us, failures } = self.counted.get(&inode).copied().unwrap_or_default();
        let lost_us = lost_us.saturating_add(compared.lost_us());
        let threshold_us = compared.moving_us().saturating_mul(1 << failures);
        if lost_us >= threshold_us && self.waiting.len() < WAITING_MAX {
            match failures {
                0 => drop(self.counted.remove(&inode)),
                _ => self.count(inode, Count { lost_us: 0, failures }),
            }
            self.waiting.push_back(inode);
            self.wakeup.notify_one();
            return;
        }
        self.count(inode, Count { lost_us, failures });
    }

    /// Whether it matters how often a file is read.
    pub fn counts(&self, inode: InodeNumber) -> bool {
        self.counted.contains_key(&inode) || self.waiting.contains(&inode)
    }

    fn count(&mut self, inode: InodeNumber, count: Count) {
        self.counted.insert(inode, count);
        if self.counted.len() > COUNTED_MAX {
            let least = self.counted.iter().min_by_key(|(_, count)| count.lost_us).map(|(inode, _)| *inode);
            least.map(|inode| self.counted.remove(&inode));
        }
        assert!(self.counted.len() <= COUNTED_MAX, "the number of files that are counted is bounded");
    }

    /// The file that has waited longest; it does not wait any more.
    pub fn take(&mut self) -> Option<InodeNumber> {
        self.waiting.pop_front()
    }

    /// A file that was taken has moved, or is gone.
    pub fn forget(&mut self, inode: InodeNumber) {
        self.counted.remove(&inode);
    }

    /// A file that was taken could not be moved.
    pub fn failed(&mut self, inode: InodeNumber) {
        let Count { lost_us, failures } = self.counted.get(&inode).copied().unwrap_or_default();
        self.count(inode, Count { lost_us, failures: (failures + 1).min(FAILURES_MAX) });
    }

    /// Files that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Rung when a file waits.
    pub fn wakeup(&self) -> Arc<Notify> {
        self.wakeup.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(7);

    fn compared(own_us: u64) -> Comparison {
        Comparison { own_us, moved_us: 100_000 }
    }

    #[test]
    fn a_file_waits_once_readers_have_lost_what_moving_costs() {
        let mut moves = Moves::default();
        for _ in 0..3 {
            assert_eq!(moves.take(), None);
            moves.read(FILE, &compared(200_000));
        }
        moves.read(FILE, &compared(200_000));
        assert_eq!((moves.waiting(), moves.take(), moves.take()), (1, Some(FILE), None));
        moves.read(FILE, &compared(200_000));
        assert_eq!(moves.take(), None, "counted anew");
    }

    /// How often the file is read before it waits; it is taken.
    fn reads(moves: &mut Moves) -> usize {
        let mut reads = 0;
        while moves.take().is_none() {
            moves.read(FILE, &compared(200_000));
            reads += 1;
        }
        reads
    }

    #[test]
    fn a_file_that_cannot_be_moved_is_tried_ever_more_seldom() {
        let mut moves = Moves::default();
        for expected in [3, 6, 12, 24] {
            assert_eq!(reads(&mut moves), expected);
            moves.failed(FILE);
        }
        assert_eq!(reads(&mut moves), 48);
        moves.forget(FILE);
        assert!(moves.counted.is_empty());
        assert_eq!(reads(&mut moves), 3, "it has moved since");
        (0..100).for_each(|_| moves.failed(FILE));
        assert_eq!(moves.counted[&FILE].failures, FAILURES_MAX);
    }

    #[test]
    fn files_that_lie_well_are_not_counted_and_many_are_bounded() {
        let mut moves = Moves::default();
        moves.read(FILE, &compared(101_000));
        assert!(moves.counted.is_empty());
        moves.read(FILE, &compared(190_000));
        for number in 0..COUNTED_MAX as u64 {
            moves.read(InodeNumber(1000 + number), &compared(200_000));
        }
        assert_eq!(moves.counted.len(), COUNTED_MAX);
        assert!(!moves.counted.contains_key(&FILE), "it lost least");
        for number in 0..2 * WAITING_MAX as u64 {
            moves.read(InodeNumber(1_000_000 + number), &compared(2_000_000));
            moves.read(InodeNumber(1_000_000 + number), &compared(2_000_000));
        }
        assert_eq!(moves.waiting(), WAITING_MAX);
    }
}
