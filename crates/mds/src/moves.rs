//! Which finished files are worth a move to another layout, by how they are read ([`layout::migration`]). Volatile: after a
//! restart the count begins anew.
//!
//! Whoever moves files takes them from here one by one ([`crate::Mdt::next_move`]). A file that could not be moved comes again when
//! it has been read as often again.
//!
//! Invariants: an inode waits at most once; at most [`COUNTED_MAX`] files are counted and [`WAITING_MAX`] wait.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use layout::migration::Comparison;
use tokio::sync::Notify;
use types::InodeNumber;

/// Files counted. Beyond, the one that lost least is forgotten.
const COUNTED_MAX: usize = 4096;
/// Files that wait. Beyond, files go on being counted.
const WAITING_MAX: usize = 256;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Microseconds that readers of a file lost.
    lost: BTreeMap<InodeNumber, u64>,
    waiting: VecDeque<InodeNumber>,
    bell: Arc<Notify>,
}

impl Moves {
    /// Somebody reads a file that lies so.
    pub fn read(&mut self, inode: InodeNumber, compared: &Comparison) {
        if !compared.is_worth_naming() || self.waiting.contains(&inode) {
            return;
        }
        let lost = self.lost.get(&inode).copied().unwrap_or(0).saturating_add(compared.lost_us());
        if lost >= compared.moving_us() && self.waiting.len() < WAITING_MAX {
            self.lost.remove(&inode);
            self.waiting.push_back(inode);
            self.bell.notify_one();
            return;
        }
        self.lost.insert(inode, lost);
        if self.lost.len() > COUNTED_MAX {
            let least = self.lost.iter().min_by_key(|(_, lost)| **lost).map(|(inode, _)| *inode);
            least.map(|inode| self.lost.remove(&inode));
        }
    }

    /// The file that has waited longest; it does not wait any more.
    pub fn take(&mut self) -> Option<InodeNumber> {
        self.waiting.pop_front()
    }

    /// Files that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Rung when a file waits.
    pub fn bell(&self) -> Arc<Notify> {
        self.bell.clone()
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

    #[test]
    fn files_that_lie_well_are_not_counted_and_many_are_bounded() {
        let mut moves = Moves::default();
        moves.read(FILE, &compared(101_000));
        assert!(moves.lost.is_empty());
        moves.read(FILE, &compared(190_000));
        for number in 0..COUNTED_MAX as u64 {
            moves.read(InodeNumber(1000 + number), &compared(200_000));
        }
        assert_eq!(moves.lost.len(), COUNTED_MAX);
        assert!(!moves.lost.contains_key(&FILE), "it lost least");
        for number in 0..2 * WAITING_MAX as u64 {
            moves.read(InodeNumber(1_000_000 + number), &compared(2_000_000));
            moves.read(InodeNumber(1_000_000 + number), &compared(2_000_000));
        }
        assert_eq!(moves.waiting(), WAITING_MAX);
    }
}
