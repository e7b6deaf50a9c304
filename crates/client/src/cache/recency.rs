//! The order in which inodes were used, roughly: an inode that is among the newest stays where it
//! is, so that most uses cost nothing.

use std::collections::BTreeMap;

use types::InodeNumber;

/// The newest part of all uses within which the order is not kept: one in so many.
const NEWEST_PART: u64 = 8;

/// See the module documentation. A use is a number, kept with the inode; 0: never.
#[derive(Debug, Default)]
pub(crate) struct Recency {
    now: u64,
    order: BTreeMap<u64, InodeNumber>,
}

impl Recency {
    /// An inode is used; `used`: its number, which changes.
    pub fn use_now(&mut self, inode: InodeNumber, used: &mut u64) {
        let newest = self.order.len() as u64 / NEWEST_PART;
        if *used != 0 && self.now - *used < newest {
            return;
        }
        let former = self.order.remove(used);
        assert!(former.is_none_or(|former| former == inode), "a use is kept with its inode");
        self.now += 1;
        *used = self.now;
        assert!(self.order.insert(*used, inode).is_none(), "each use has a number of its own");
    }

    /// An inode is gone.
    pub fn remove(&mut self, used: u64) {
        let former = self.order.remove(&used);
        assert!(used == 0 || former.is_some(), "an inode that was used is in the order");
    }

    /// The inode that was not used for the longest time.
    pub fn oldest(&self) -> Option<InodeNumber> {
        self.order.first_key_value().map(|(_, inode)| *inode)
    }

    /// All inodes, roughly in the order of their last use.
    pub fn newest_first(&self) -> impl Iterator<Item = InodeNumber> + '_ {
        self.order.values().rev().copied()
    }

    /// All are gone.
    pub fn clear(&mut self) {
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays() {
        let mut recency = Recency::default();
        let mut used = [0; 16];
        for (inode, used) in used.iter_mut().enumerate() {
            recency.use_now(InodeNumber(inode as u64), used);
        }
        assert_eq!(recency.oldest(), Some(InodeNumber(0)));
        recency.use_now(InodeNumber(0), &mut used[0]);
        assert_eq!(recency.oldest(), Some(InodeNumber(1)));
        recency.remove(used[1]);
        assert_eq!(recency.oldest(), Some(InodeNumber(2)));
        assert_eq!(recency.order.len(), 15);
    }

    #[test]
    fn the_newest_do_not_move() {
        let mut recency = Recency::default();
        let mut used = [0; 16];
        for (inode, used) in used.iter_mut().enumerate() {
            recency.use_now(InodeNumber(inode as u64), used);
        }
        let before = used[15];
        recency.use_now(InodeNumber(15), &mut used[15]);
        assert_eq!(used[15], before);
    }
}
