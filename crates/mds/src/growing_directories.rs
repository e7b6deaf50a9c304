//! Directories in which names are made, as far as they may have become large: then somebody counts
//! their names, and perhaps gives them shards ([`crate::mdt::splits`]). The same of shards in which
//! names are removed, whose directories may have become small.
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
/// Names are counted after so many new ones at least, as a part of the number that makes a
/// directory large.
const PARTS: u64 = 8;

/// What is known of a directory.
#[derive(Debug, Default)]
struct Growth {
    /// Names that it had when they were counted, at least.
    counted: u64,
    /// New names since then.
    made: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct GrowingDirectories {
    known: BTreeMap<InodeNumber, Growth>,
    /// Those that are to be counted.
    due: BTreeSet<InodeNumber>,
    /// The one that is about to change by itself.
    beginning: Option<InodeNumber>,
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
        let growth = self.of(directory);
        growth.made += 1;
        let missing = if growth.counted == 0 { 0 } else { large.saturating_sub(growth.counted) };
        if growth.made >= missing.max(large / PARTS).max(1) {
            self.known.remove(&directory);
            if self.due.len() < DIRECTORIES_MAX && self.due.insert(directory) {
                self.wakeup.notify_one();
            }
        }
    }

    /// A directory whose names are to be counted.
    pub fn take_due(&mut self) -> Option<InodeNumber> {
        self.due.pop_first()
    }

    /// This directory is about to get shards, or to lose them, because it is large or small; or
    /// none is.
    pub fn begin(&mut self, directory: Option<InodeNumber>) {
        self.beginning = directory;
    }

    /// Whether this directory changes because it is large or small. (If somebody asks for the same
    /// at that moment, it counts as that.)
    pub fn begins(&self, directory: InodeNumber) -> bool {
        self.beginning == Some(directory)
    }

    /// A directory has so many names.
    pub fn counted(&mut self, directory: InodeNumber, names: u64) {
        *self.of(directory) = Growth { counted: names, made: 0 };
    }

    fn of(&mut self, directory: InodeNumber) -> &mut Growth {
        if self.known.len() >= DIRECTORIES_MAX && !self.known.contains_key(&directory) {
            self.known.pop_first();
        }
        self.known.entry(directory).or_default()
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
    fn names_that_were_counted_are_not_counted_again_before_the_directory_can_be_large() {
        let mut growing = GrowingDirectories::default();
        let directory = InodeNumber(7);
        for (counted, then) in [(30, 50), (75, 10), (90, 10), (1, 79)] {
            growing.counted(directory, counted);
            for _ in 1..then {
                growing.made(directory, 80);
                assert_eq!(growing.take_due(), None, "{counted}");
            }
            growing.made(directory, 80);
            assert_eq!(growing.take_due(), Some(directory), "{counted}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut growing = GrowingDirectories::default();
        for number in 0..3 * DIRECTORIES_MAX as u64 {
            growing.made(InodeNumber(number), 1000);
            growing.made(InodeNumber(number), 1);
        }
        assert!(growing.known.len() <= DIRECTORIES_MAX && growing.due.len() == DIRECTORIES_MAX);
    }
}
