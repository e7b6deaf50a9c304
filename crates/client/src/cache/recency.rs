//! The order in which inodes were used, roughly: an inode that is among the newest stays where it
//! is, so that most uses cost nothing. Marks tell which uses were before a moment.
//!
//! What was asked for *ahead* of a program ([`super::statahead`]) waits for its first use, which is
//! probably the only one: the program goes on to the next name, and the kernel keeps what it saw.
//! So inodes that were used once after they had been asked for ahead are the first to go, beyond a
//! part of all; those that wait would go first otherwise, since nobody used them for long.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use rt::Instant;
use types::InodeNumber;

/// The newest part of all uses within which the order is not kept: one in so many.
const NEWEST_PART: u64 = 8;
/// The part of all inodes that may be kept although they were asked for ahead and were used.
pub(super) const ONCE_PART: usize = 8;
/// So many looks in a row that find none of what waits: where most of it is used, there are not so
/// many.
const VAIN_MAX: u32 = 64;
/// After so many inodes that were asked for ahead, those before count half.
const LATELY: u32 = 4096;
/// Marks within the age that is asked for, about.
const MARKS: u32 = 16;

/// What is known of the uses of an inode, kept with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// The number of the last one; 0: there is none.
    last: u64,
    stage: Stage,
}

/// A moment between two uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UseMoment(u64);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Used,
    /// Asked for ahead, and not used.
    Ahead,
    /// Used once since then.
    Once,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Recency {
    now: u64,
    order: BTreeMap<u64, InodeNumber>,
    /// Those that were used once after they had been asked for ahead.
    once: BTreeMap<u64, InodeNumber>,
    /// How many of `order` were asked for ahead, and wait for their use.
    ahead: usize,
    /// What was asked for ahead before this use is not waited for any more.
    doubted: u64,
    /// Looks that found none of those that wait, since one did.
    vain: u32,
    /// Of those that were asked for ahead, how many were used lately, and how many went unused.
    hits: u32,
    misses: u32,
    /// Moments, each with the last use before it.
    marks: VecDeque<(Instant, u64)>,
}

impl Recency {
    /// An inode is used; `uses`: of it.
    pub fn use_now(&mut self, inode: InodeNumber, uses: &mut Uses) {
        let stage = match uses.stage {
            Stage::Ahead if self.is_awaited(uses) => {
                self.vain = 0;
                self.count(1, 0);
                Stage::Once
            }
            Stage::Ahead => Stage::Used,
            Stage::Used | Stage::Once if self.is_new(uses) => return,
            Stage::Used | Stage::Once => Stage::Used,
        };
        self.enter(inode, uses, stage);
    }

    /// An inode was asked for ahead; if its lock came after this moment, that was no use of it.
    pub fn expect(&mut self, inode: InodeNumber, uses: &mut Uses, since: UseMoment) {
        if uses.stage == Stage::Used && uses.last > since.0 {
            self.enter(inode, uses, Stage::Ahead);
        }
    }

    /// The present moment.
    pub fn moment(&self) -> UseMoment {
        UseMoment(self.now)
    }

    /// Whether it is among the newest, which need not move. The first use after a mark counts, or
    /// what is used all the time would seem to be old.
    fn is_new(&self, uses: &Uses) -> bool {
        let order = if uses.stage == Stage::Once { &self.once } else { &self.order };
        let marked = self.marks.back().map_or(0, |(_, last)| *last);
        uses.last > marked && self.now - uses.last < order.len() as u64 / NEWEST_PART
    }

    fn enter(&mut self, inode: InodeNumber, uses: &mut Uses, stage: Stage) {
        let former = self.take(uses);
        assert!(former.is_none_or(|former| former == inode), "a use is kept with its inode");
        self.now += 1;
        *uses = Uses { last: self.now, stage };
        self.ahead += usize::from(stage == Stage::Ahead);
        let order = if stage == Stage::Once { &mut self.once } else { &mut self.order };
        assert!(order.insert(uses.last, inode).is_none(), "each use has a number of its own");
    }

    /// Whether it was asked for ahead, and waits for its use.
    fn is_awaited(&self, uses: &Uses) -> bool {
        uses.stage == Stage::Ahead && uses.last > self.doubted
    }

    /// A name was looked up that is not among what waits, though no more may wait. After many of
    /// these in a row nobody will use it.
    pub fn missed(&mut self) {
        self.vain += 1;
        if self.vain >= VAIN_MAX {
            self.count(0, u32::try_from(self.ahead).unwrap_or(LATELY).min(LATELY));
            (self.doubted, self.ahead, self.vain) = (self.now, 0, 0);
        }
    }

    fn take(&mut self, uses: &Uses) -> Option<InodeNumber> {
        self.ahead -= usize::from(self.is_awaited(uses));
        let order = if uses.stage == Stage::Once { &mut self.once } else { &mut self.order };
        order.remove(&uses.last)
    }

    fn count(&mut self, hits: u32, misses: u32) {
        if self.hits + self.misses >= LATELY {
            (self.hits, self.misses) = (self.hits / 2, self.misses / 2);
        }
        (self.hits, self.misses) = (self.hits + hits, self.misses + misses);
    }

    /// Whether most of what was asked for ahead, and is not waiting any more, was used.
    pub fn ahead_is_useful(&self) -> bool {
        self.misses <= self.hits
    }

    /// An inode is gone.
    pub fn remove(&mut self, uses: Uses) {
        if self.is_awaited(&uses) {
            self.count(0, 1);
        }
        let former = self.take(&uses);
        assert!(uses.last == 0 || former.is_some(), "an inode that was used is in the order");
    }

    /// The inode that goes first.
    pub fn oldest(&self) -> Option<InodeNumber> {
        let is_many = self.once.len() > (self.order.len() + self.once.len()) / ONCE_PART;
        let (first, other) = if is_many { (&self.once, &self.order) } else { (&self.order, &self.once) };
        first.first_key_value().or_else(|| other.first_key_value()).map(|(_, inode)| *inode)
    }

    /// The inode that was not used for the longest time, if that was longer than `age_max`.
    pub fn oldest_unused(&mut self, now: Instant, age_max: Duration) -> Option<InodeNumber> {
        while self.marks.get(1).is_some_and(|(moment, _)| now - *moment > age_max) {
            self.marks.pop_front();
        }
        let (_, last) = self.marks.front().filter(|(moment, _)| now - *moment > age_max)?;
        let oldest = [&self.order, &self.once].into_iter().filter_map(BTreeMap::first_key_value).min();
        oldest.filter(|(used, _)| *used <= last).map(|(_, inode)| *inode)
    }

    /// How many inodes were asked for ahead, and wait for their use.
    pub fn ahead(&self) -> usize {
        self.ahead
    }

    /// Remembers which uses were before this moment, often enough for `age_max`.
    pub fn mark(&mut self, now: Instant, age_max: Duration) {
        if self.marks.back().is_none_or(|(moment, _)| now - *moment >= age_max / MARKS) {
            self.marks.push_back((now, self.now));
        }
    }

    /// All inodes: those that were used, or asked for ahead, roughly in the order of their last
    /// use, then those that were used once.
    pub fn newest_first(&self) -> impl Iterator<Item = InodeNumber> + '_ {
        self.order.values().rev().chain(self.once.values().rev()).copied()
    }

    /// All are gone.
    pub fn clear(&mut self) {
        self.order.clear();
        self.once.clear();
        (self.ahead, self.vain) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inodes 0 to 15, used in this order.
    fn sixteen() -> (Recency, [Uses; 16]) {
        let (mut recency, mut used) = (Recency::default(), [Uses::default(); 16]);
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

    #[test]
    fn what_was_asked_for_ahead_waits_for_its_use_and_is_the_first_to_go_then() {
        let (mut recency, mut used) = sixteen();
        // Of a hundred that are asked for ahead, half are used.
        let mut ahead = [Uses::default(); 100];
        let before = recency.moment();
        for (inode, uses) in ahead.iter_mut().enumerate() {
            recency.use_now(InodeNumber(100 + inode as u64), uses);
            recency.expect(InodeNumber(100 + inode as u64), uses, before);
        }
        assert_eq!((recency.ahead(), recency.oldest()), (100, Some(InodeNumber(0))));
        for (inode, uses) in ahead.iter_mut().enumerate().take(50) {
            recency.use_now(InodeNumber(100 + inode as u64), uses);
        }
        assert_eq!(recency.ahead(), 50);
        // Those that were used go, but for an eighth of all; the last one of these is used again.
        recency.use_now(InodeNumber(100), &mut ahead[0]);
        for (inode, uses) in ahead.iter().enumerate().take(50).skip(1) {
            let kept = recency.once.len() <= (recency.order.len() + recency.once.len()) / ONCE_PART;
            assert_eq!(kept, inode > 40, "inode {inode}");
            let oldest = if kept { 0 } else { 100 + inode as u64 };
            assert_eq!(recency.oldest(), Some(InodeNumber(oldest)));
            if kept {
                break;
            }
            recency.remove(*uses);
        }
        // What was known before is not asked for, though it is shown.
        recency.expect(InodeNumber(0), &mut used[0], before);
        recency.expect(InodeNumber(149), &mut ahead[49], before);
        assert_eq!(recency.ahead(), 50);
        assert!(recency.newest_first().any(|inode| inode == InodeNumber(149)));
        recency.clear();
        assert_eq!((recency.ahead(), recency.oldest()), (0, None));
    }

    #[test]
    fn what_nobody_looks_at_is_not_waited_for() {
        let (mut recency, mut ahead) = (Recency::default(), [Uses::default(); 100]);
        let before = recency.moment();
        for (inode, uses) in ahead.iter_mut().enumerate() {
            recency.use_now(InodeNumber(inode as u64), uses);
            recency.expect(InodeNumber(inode as u64), uses, before);
        }
        (1..VAIN_MAX).for_each(|_| recency.missed());
        recency.use_now(InodeNumber(0), &mut ahead[0]);
        (1..VAIN_MAX).for_each(|_| recency.missed());
        assert_eq!((recency.ahead(), recency.ahead_is_useful()), (99, true), "one was used between them");
        recency.missed();
        assert_eq!((recency.ahead(), recency.ahead_is_useful()), (0, false));
        recency.use_now(InodeNumber(1), &mut ahead[1]);
        recency.remove(ahead[2]);
        assert_eq!((recency.once.len(), recency.order.len()), (1, 98), "it is used as any other");
    }
}
