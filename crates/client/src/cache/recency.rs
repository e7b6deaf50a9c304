//! The order in which inodes were used, roughly: an inode that is among the newest stays where it
//! is, so that most uses cost nothing. Marks tell which uses were before a moment.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use rt::Instant;
use types::InodeNumber;

/// The newest part of all uses within which the order is not kept: one in so many.
const NEWEST_PART: u64 = 8;
/// Marks within the age that is asked for, about.
const MARKS: u32 = 16;

/// See the module documentation. A use is a number, kept with the inode; 0: never.
#[derive(Debug, Default)]
pub(crate) struct Recency {
    now: u64,
    order: BTreeMap<u64, InodeNumber>,
    /// Moments, each with the last use before it.
    marks: VecDeque<(Instant, u64)>,
}

impl Recency {
    /// An inode is used; `used`: its number, which changes.
    pub fn use_now(&mut self, inode: InodeNumber, used: &mut u64) {
        let newest = self.order.len() as u64 / NEWEST_PART;
        // The first use after a mark counts, or what is used all the time would seem to be old.
        let marked = self.marks.back().map_or(0, |(_, last)| *last);
        if *used > marked && self.now - *used < newest {
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

    /// The inode that was not used for the longest time, if that was longer than `age_max`.
    pub fn oldest_unused(&mut self, now: Instant, age_max: Duration) -> Option<InodeNumber> {
        while self.marks.get(1).is_some_and(|(moment, _)| now - *moment > age_max) {
            self.marks.pop_front();
        }
        let (_, last) = self.marks.front().filter(|(moment, _)| now - *moment > age_max)?;
        self.order.first_key_value().filter(|(used, _)| *used <= last).map(|(_, inode)| *inode)
    }

    /// Remembers which uses were before this moment, often enough for `age_max`.
    pub fn mark(&mut self, now: Instant, age_max: Duration) {
        if self.marks.back().is_none_or(|(moment, _)| now - *moment >= age_max / MARKS) {
            self.marks.push_back((now, self.now));
        }
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

    /// Inodes 0 to 15, used in this order.
    fn sixteen() -> (Recency, [u64; 16]) {
        let (mut recency, mut used) = (Recency::default(), [0; 16]);
        for (inode, used) in used.iter_mut().enumerate() {
            recency.use_now(InodeNumber(inode as u64), used);
        }
        (recency, used)
    }

    #[test]
    fn what_is_used_stays() {
        let (mut recency, mut used) = sixteen();
        assert_eq!(recency.oldest(), Some(InodeNumber(0)));
        recency.use_now(InodeNumber(0), &mut used[0]);
        assert_eq!(recency.oldest(), Some(InodeNumber(1)));
        recency.remove(used[1]);
        assert_eq!(recency.oldest(), Some(InodeNumber(2)));
        assert_eq!(recency.order.len(), 15);
    }

    #[test]
    fn what_was_not_used_for_long_is_found() {
        const AGE: Duration = Duration::from_secs(160);
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        let (mut recency, mut used) = sixteen();
        recency.mark(at(0), AGE);
        for seconds in (10..=160).step_by(10) {
            recency.use_now(InodeNumber(15), &mut used[15]);
            assert_eq!(recency.oldest_unused(at(seconds), AGE), None, "after {seconds} s");
            recency.mark(at(seconds), AGE);
        }
        assert!(recency.marks.len() <= 17);
        for (inode, used) in used.iter().enumerate().take(15) {
            assert_eq!(recency.oldest_unused(at(161), AGE), Some(InodeNumber(inode as u64)));
            recency.remove(*used);
        }
        assert_eq!(recency.oldest_unused(at(161), AGE), None, "it was used all the time");
        assert_eq!(recency.oldest_unused(at(320), AGE), None, "until 160 s");
        assert_eq!(recency.oldest_unused(at(321), AGE), Some(InodeNumber(15)));
    }

    #[test]
    fn the_newest_do_not_move() {
        let (mut recency, mut used) = sixteen();
        let before = used[15];
        recency.use_now(InodeNumber(15), &mut used[15]);
        assert_eq!(used[15], before);
    }
}
