//! Blocks that were freed and may not be used again yet: the change that freed them must be
//! durable, and every read that may have found them must have ended.
//!
//! Reads are told apart by when they began, not by what they read: blocks wait for every read that
//! began before they were freed. Downside: one slow read delays the reuse of all blocks that are
//! freed meanwhile.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

/// A read in progress, to be ended with [`crate::Allocator::end_read`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a read that does not end keeps freed blocks from being used"]
pub struct ReadTicket(u64);

#[derive(Clone, Debug)]
struct Freed {
    blocks: Range<u64>,
    /// Number of the change that freed them.
    change: u64,
    /// Reads with a ticket up to this one may have found them.
    reads: u64,
}

/// Freed blocks in the order in which they were freed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retired {
    freed: VecDeque<Freed>,
    /// Reads in progress by ticket.
    reads: BTreeMap<u64, u32>,
    next_ticket: u64,
    durable: u64,
}

impl Retired {
    /// A read begins.
    pub(crate) fn begin_read(&mut self) -> ReadTicket {
        *self.reads.entry(self.next_ticket).or_default() += 1;
        ReadTicket(self.next_ticket)
    }

    /// A read ended.
    pub(crate) fn end_read(&mut self, ticket: ReadTicket) {
        let reads = self.reads.get_mut(&ticket.0).expect("the read began");
        *reads -= 1;
        if *reads == 0 {
            self.reads.remove(&ticket.0);
        }
    }

    /// A change freed these blocks. Changes are numbered in their order.
    pub(crate) fn add(&mut self, blocks: Range<u64>, change: u64) {
        assert!(self.freed.back().is_none_or(|last| last.change <= change), "changes come in order");
        self.freed.push_back(Freed { blocks, change, reads: self.next_ticket });
        self.next_ticket += 1;
    }

    /// Everything up to this change is durable.
    pub(crate) fn durable(&mut self, change: u64) {
        self.durable = self.durable.max(change);
    }

    /// The next blocks that may be used again.
    pub(crate) fn pop(&mut self) -> Option<Range<u64>> {
        let first = self.freed.front()?;
        let is_read = self.reads.first_key_value().is_some_and(|(ticket, _)| *ticket <= first.reads);
        if first.change > self.durable || is_read {
            return None;
        }
        self.freed.pop_front().map(|freed| freed.blocks)
    }

    /// All blocks that wait.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Range<u64>> {
        self.freed.iter().map(|freed| &freed.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_wait_for_their_change_and_for_reads_that_began_before() {
        let mut retired = Retired::default();
        let before = retired.begin_read();
        retired.add(0..10, 5);
        let between = retired.begin_read();
        retired.add(10..20, 6);
        let after = retired.begin_read();
        assert_eq!(retired.pop(), None);
        retired.durable(6);
        assert_eq!(retired.pop(), None);
        retired.end_read(before);
        assert_eq!(retired.pop(), Some(0..10));
        assert_eq!(retired.pop(), None);
        retired.end_read(between);
        assert_eq!(retired.pop(), Some(10..20), "a later read cannot have found them");
        retired.add(20..30, 7);
        retired.end_read(after);
        assert_eq!(retired.pop(), None, "not durable");
        retired.durable(7);
        assert_eq!(retired.pop(), Some(20..30));
        assert_eq!(retired.pop(), None);
    }
}
