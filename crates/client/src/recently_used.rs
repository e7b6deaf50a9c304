//! Values by inode, a limited number: those are given up that were not used for the longest time.

use std::collections::BTreeMap;

use types::InodeNumber;

/// The part of the values that is given up at once when there are too many: one in so many.
const GIVEN_UP_PART: usize = 4;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct RecentlyUsed<V> {
    max: usize,
    uses: u64,
    /// Each with its last use.
    values: BTreeMap<InodeNumber, (V, u64)>,
}

impl<V> RecentlyUsed<V> {
    /// Keeps at most `max` values.
    pub fn new(max: usize) -> Self {
        Self { max, uses: 0, values: BTreeMap::new() }
    }

    /// The value of an inode, which is used.
    pub fn get(&mut self, inode: InodeNumber) -> Option<&V> {
        let (value, used) = self.values.get_mut(&inode)?;
        self.uses += 1;
        *used = self.uses;
        Some(value)
    }

    /// Keeps a value. True if others were given up for it.
    pub fn insert(&mut self, inode: InodeNumber, value: V) -> bool {
        let is_full = self.values.len() >= self.max && !self.values.contains_key(&inode);
        if is_full {
            let mut uses: Vec<u64> = self.values.values().map(|(_, used)| *used).collect();
            let given_up = (uses.len() / GIVEN_UP_PART).min(uses.len() - 1);
            let (_, last, _) = uses.select_nth_unstable(given_up);
            let last = *last;
            self.values.retain(|_, (_, used)| *used > last);
        }
        self.uses += 1;
        self.values.insert(inode, (value, self.uses));
        is_full
    }

    /// The value of an inode is not needed any more.
    pub fn remove(&mut self, inode: InodeNumber) {
        self.values.remove(&inode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays() {
        let mut kept = RecentlyUsed::new(8);
        assert!(!kept.insert(InodeNumber(1), 1));
        let gave_up = (2..100).filter(|number| {
            let gave_up = kept.insert(InodeNumber(*number), *number);
            assert_eq!(kept.get(InodeNumber(1)), Some(&1), "it is used all the time");
            assert_eq!(kept.get(InodeNumber(*number)), Some(number), "it is the last");
            assert!(kept.values.len() <= 8);
            gave_up
        });
        assert!(gave_up.count() > 10);
        assert_eq!(kept.get(InodeNumber(2)), None);
        kept.remove(InodeNumber(1));
        assert_eq!(kept.get(InodeNumber(1)), None);
    }

    #[test]
    fn a_value_is_replaced_without_loss() {
        let mut kept = RecentlyUsed::new(2);
        assert_eq!([1, 2, 1, 2].map(|number| kept.insert(InodeNumber(number), number)), [false; 4]);
        assert_eq!(kept.values.len(), 2);
        let mut one = RecentlyUsed::new(1);
        assert_eq!([1, 2].map(|number| one.insert(InodeNumber(number), number)), [false, true]);
        assert_eq!(one.get(InodeNumber(2)), Some(&2));
    }
}
