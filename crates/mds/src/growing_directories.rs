//! Directories in which names are made, as far as they may have become large: then somebody counts
//! their names, and perhaps gives them shards ([`crate::mdt::splits`]).
//!
//! Life cycle: volatile. It begins from nothing with each start, and forgets directories when there
//! are too many: then they are noticed later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::Notify;
use types::InodeNumber;

/// Directories that are remembered.
const DIRECTORIES_MAX: usize = 4096;
/// Names are counted after so many new ones, as a part of the number that makes a directory large.
const PARTS: u64 = 8;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct GrowingDirectories {
    /// New names of each since its names were counted.
    made: BTreeMap<InodeNumber, u64>,
    /// Those that are to be counted.
    due: BTreeSet<InodeNumber>,
    wakeup: Arc<Notify>,
}

impl GrowingDirectories {
    /// Rung when a directory may have become large.
    pub fn wakeup(&self) -> Arc<Notify> {
        self.wakeup.clone()
    }

    /// A name is made in a directory, which is large with `large` of them. (Also if that comes to
    /// nothing: it matters only for when names are counted.)
    pub fn made(&mut self, directory: InodeNumber, large: u64) {
        if self.made.len() >= DIRECTORIES_MAX && !self.made.contains_key(&directory) {
            self.made.pop_first();
        }
        let made = self.made.entry(directory).or_default();
        *made += 1;
        if *made >= (large / PARTS).max(1) {
            self.made.remove(&directory);
            if self.due.len() < DIRECTORIES_MAX && self.due.insert(directory) {
                self.wakeup.notify_one();
            }
        }
    }

    /// A directory whose names are to be counted.
    pub fn take_due(&mut self) -> Option<InodeNumber> {
        self.due.pop_first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_now_and_then() {
        let mut growing = GrowingDirectories::default();
        let [one, two] = [1, 2].map(InodeNumber);
        for round in 1..=20 {
            growing.made(one, 80);
            assert_eq!(growing.take_due(), (round % 10 == 0).then_some(one), "{round}");
        }
        growing.made(two, 3);
        growing.made(two, 3);
        assert_eq!((growing.take_due(), growing.take_due()), (Some(two), None), "once");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut growing = GrowingDirectories::default();
        for number in 0..3 * DIRECTORIES_MAX as u64 {
            growing.made(InodeNumber(number), 1000);
            growing.made(InodeNumber(number), 1);
        }
        assert!(growing.made.len() <= DIRECTORIES_MAX && growing.due.len() == DIRECTORIES_MAX);
    }
}
