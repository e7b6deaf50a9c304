//! Which nodes of the tree's part of the device are in use.
//!
//! Nothing of it is stored: an open finds it by walking the tree. A node that was written is not
//! written again before the next commit, even if the tree in memory does not have it any more: the
//! committed tree may have it, and with the same number and commit an old node would be taken for a
//! new one whose write was lost.

use std::collections::BTreeSet;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Space {
    /// A bit for each node: set while it is in use, or waits for a commit.
    bits: Vec<u64>,
    nodes: u64,
    /// Nodes whose bit is not set.
    free: u64,
    /// Free after the next commit.
    retired: BTreeSet<u64>,
    /// Where the next search begins: nodes that are written together follow each other.
    next: u64,
}

impl Space {
    /// All free, but for the first ones.
    pub fn new(nodes: u64, first: u64) -> Space {
        assert!(first <= nodes, "there is room for the places of the root");
        let bits = vec![0; nodes.div_ceil(64) as usize];
        let mut space = Space { bits, nodes, free: nodes, retired: BTreeSet::new(), next: first };
        for number in 0..first {
            assert!(space.take(number), "nothing is taken yet");
        }
        space
    }

    /// Marks a node of the committed tree; false if there is no such node, or it is marked already.
    pub fn take(&mut self, number: u64) -> bool {
        if number >= self.nodes {
            return false;
        }
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.bits[word] & bit != 0 {
            return false;
        }
        self.bits[word] |= bit;
        self.free -= 1;
        true
    }

    /// A free node.
    pub fn allocate(&mut self) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let words = self.bits.len();
        let start = (self.next / 64) as usize;
        // The word of the beginning comes twice: its bits before the beginning are last.
        for step in 0..=words {
            let word = (start + step) % words;
            let from = if step == 0 { self.next % 64 } else { 0 };
            let candidates = !self.bits[word] & (u64::MAX << from);
            let number = word as u64 * 64 + u64::from(candidates.trailing_zeros());
            if candidates != 0 && number < self.nodes {
                assert!(self.take(number), "it is free");
                self.next = if number + 1 < self.nodes { number + 1 } else { 0 };
                return Some(number);
            }
        }
        unreachable!("free nodes are counted")
    }

    fn is_taken(&self, number: u64) -> bool {
        number < self.nodes && self.bits[(number / 64) as usize] & (1 << (number % 64)) != 0
    }

    /// The tree in memory does not have a node any more. A node that is not in use stays as it is:
    /// only a damaged tree can have named it.
    pub fn retire(&mut self, number: u64) {
        if self.is_taken(number) {
            self.retired.insert(number);
        }
    }

    /// A node that was given out is not needed, and was not written. Of one that waits for a commit
    /// only a damaged tree says so.
    pub fn give_back(&mut self, number: u64) {
        if self.is_taken(number) && !self.retired.contains(&number) {
            self.clear(number);
        }
    }

    fn clear(&mut self, number: u64) {
        assert!(self.is_taken(number), "it was in use");
        self.bits[(number / 64) as usize] &= !(1 << (number % 64));
        self.free += 1;
    }

    /// The tree in memory is the committed one.
    pub fn committed(&mut self) {
        for number in std::mem::take(&mut self.retired) {
            self.clear(number);
        }
    }

    /// Whether a commit gives back nodes.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Nodes that the tree in memory has, and what is before them.
    pub fn used(&self) -> u64 {
        self.nodes - self.free - self.retired.len() as u64
    }

    /// Nodes that are free, at once or after a commit.
    pub fn available(&self) -> u64 {
        self.free + self.retired.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_were_written_wait_for_a_commit() {
        let mut space = Space::new(70, 2);
        let all: Vec<u64> = std::iter::from_fn(|| space.allocate()).collect();
        assert_eq!(all, (2..70).collect::<Vec<_>>());
        space.give_back(69);
        assert_eq!((space.allocate(), space.allocate()), (Some(69), None));
        space.retire(5);
        space.retire(68);
        space.give_back(68);
        assert_eq!((space.allocate(), space.available(), space.used()), (None, 2, 68));
        space.committed();
        assert_eq!((space.allocate(), space.allocate(), space.allocate()), (Some(5), Some(68), None));
        assert!(!space.take(5) && !space.take(70));
        for number in [70, u64::MAX] {
            space.retire(number);
            space.give_back(number);
        }
        assert_eq!(space.available(), 0);
    }
}
