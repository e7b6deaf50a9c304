//! The stripe cache of an array: which stripes are being written, and when one that is not written
//! whole may wait no longer for its neighbours.
//!
//! The rules are those of Linux's md (raid5.c, release 3.10):
//!
//! - the cache has room for a fixed number of stripes; a write to any other waits;
//! - a stripe that is covered from end to end is written at once;
//! - one that is not is delayed. When no delayed stripe is being read, all that are delayed by then
//!   are read (`IO_THRESHOLD` is 1): what their parity needs besides the new data;
//! - until that is read, further writes to the stripe are taken in. Then all of it is written, and
//!   what comes later waits until that is done.
//!
//! So a stripe costs reads, and a turn of its drives, if the writes that cover it do not arrive
//! close enough to each other, or do not fit into the cache together.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

/// Identifies a write to the array.
pub type WriteId = u64;

/// A part of a write that is within one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The write.
    pub write: WriteId,
    /// The stripe.
    pub stripe: u64,
    /// Bytes within the stripe.
    pub bytes: Range<u64>,
}

/// What the array must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Read what the parity of this stripe needs; the bytes that are covered so far.
    Read(u64, Vec<Range<u64>>),
    /// Write these bytes of a stripe, and its parity.
    Write(u64, Vec<Range<u64>>),
}

/// How far a stripe in the cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Covered in part, and waits for the rest.
    Delayed,
    /// Covered from end to end, or read: to be written.
    Ready,
    /// What it lacks is being read.
    Reading,
    /// Being written.
    Writing,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    /// Sorted and apart from each other.
    covered: Vec<Range<u64>>,
    writes: Vec<WriteId>,
}

/// The stripe cache. Parts come in with [`StripeCache::add`]; [`StripeCache::next`] says what is to
/// be done.
#[derive(Debug)]
pub struct StripeCache {
    stripes_max: usize,
    stripe_bytes: u64,
    entries: BTreeMap<u64, Entry>,
    /// Stripes in the phase of this name, in the order in which they got there.
    ready: VecDeque<u64>,
    delayed: VecDeque<u64>,
    /// To be read.
    activated: VecDeque<u64>,
    /// Activated, or being read.
    reading: usize,
    /// Parts without room, or whose stripe is being written.
    waiting: VecDeque<Part>,
    /// Stripes that were written whole, ...
    pub whole: u64,
    /// ... and in part.
    pub partial: u64,
}

impl StripeCache {
    /// An empty one.
    pub fn new(stripes_max: usize, stripe_bytes: u64) -> Self {
        assert!(stripes_max > 0 && stripe_bytes > 0, "a cache has room for a stripe");
        Self {
            stripes_max,
            stripe_bytes,
            entries: BTreeMap::new(),
            ready: VecDeque::new(),
            delayed: VecDeque::new(),
            activated: VecDeque::new(),
            reading: 0,
            waiting: VecDeque::new(),
            whole: 0,
            partial: 0,
        }
    }

    /// A part of a write arrives.
    pub fn add(&mut self, part: Part) {
        assert!(part.bytes.start < part.bytes.end && part.bytes.end <= self.stripe_bytes, "within one stripe");
        if let Err(part) = self.take(part) {
            self.waiting.push_back(part);
        }
    }

    /// Takes a part in, or gives it back if it has to wait.
    fn take(&mut self, part: Part) -> Result<(), Part> {
        let is_full = self.entries.len() >= self.stripes_max;
        let entry = match self.entries.get_mut(&part.stripe) {
            Some(entry) if entry.phase == Phase::Writing => return Err(part),
            Some(entry) => entry,
            None if is_full => return Err(part),
            None => {
                self.delayed.push_back(part.stripe);
                let new = Entry { phase: Phase::Delayed, covered: Vec::new(), writes: Vec::new() };
                self.entries.entry(part.stripe).or_insert(new)
            }
        };
        cover(&mut entry.covered, part.bytes);
        entry.writes.push(part.write);
        let is_whole = is_whole(&entry.covered, self.stripe_bytes);
        if is_whole && entry.phase == Phase::Delayed {
            entry.phase = Phase::Ready;
            self.delayed.retain(|stripe| *stripe != part.stripe);
            self.ready.push_back(part.stripe);
        }
        Ok(())
    }

    /// The next job, if there is one now.
    pub fn next(&mut self) -> Option<Job> {
        if let Some(stripe) = self.ready.pop_front() {
            let entry = self.entry(stripe);
            entry.phase = Phase::Writing;
            let covered = entry.covered.clone();
            *(if is_whole(&covered, self.stripe_bytes) { &mut self.whole } else { &mut self.partial }) += 1;
            return Some(Job::Write(stripe, covered));
        }
        if self.reading == 0 {
            self.reading = self.delayed.len();
            self.activated = std::mem::take(&mut self.delayed);
            for stripe in self.activated.clone() {
                self.entry(stripe).phase = Phase::Reading;
            }
        }
        let stripe = self.activated.pop_front()?;
        Some(Job::Read(stripe, self.entry(stripe).covered.clone()))
    }

    /// What a stripe lacked was read.
    pub fn read(&mut self, stripe: u64) {
        let entry = self.entry(stripe);
        assert_eq!(entry.phase, Phase::Reading, "it was being read");
        entry.phase = Phase::Ready;
        self.reading -= 1;
        self.ready.push_back(stripe);
    }

    /// A stripe was written: the writes of which a part was done with it. What waited comes in.
    pub fn written(&mut self, stripe: u64) -> Vec<WriteId> {
        let entry = self.entries.remove(&stripe).expect("what was written is in the cache");
        assert_eq!(entry.phase, Phase::Writing, "it was being written");
        for part in std::mem::take(&mut self.waiting) {
            if let Err(part) = self.take(part) {
                self.waiting.push_back(part);
            }
        }
        entry.writes
    }

    fn entry(&mut self, stripe: u64) -> &mut Entry {
        self.entries.get_mut(&stripe).expect("a stripe in a queue is in the cache")
    }
}

/// Whether what is covered is one run from the beginning of the stripe to its end.
fn is_whole(covered: &[Range<u64>], stripe_bytes: u64) -> bool {
    matches!(covered, [all] if *all == (0..stripe_bytes))
}

/// Adds a range to sorted ranges that are apart from each other.
fn cover(covered: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    covered.retain(|old| {
        let touches = old.start <= new.end && new.start <= old.end;
        if touches {
            new = new.start.min(old.start)..new.end.max(old.end);
        }
        !touches
    });
    let place = covered.partition_point(|old| old.start < new.start);
    covered.insert(place, new);
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPE: u64 = 1024;

    fn part(write: WriteId, stripe: u64, bytes: Range<u64>) -> Part {
        Part { write, stripe, bytes }
    }

    fn cache() -> StripeCache {
        StripeCache::new(2, STRIPE)
    }

    fn one(run: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(run).collect()
    }

    #[test]
    fn a_whole_stripe_is_written_at_once() {
        let mut cache = cache();
        cache.add(part(1, 7, 0..STRIPE));
        assert_eq!(cache.next(), Some(Job::Write(7, one(0..STRIPE))));
        assert_eq!(cache.next(), None);
        assert_eq!((cache.written(7), cache.whole, cache.partial), (vec![1], 1, 0));
    }

    #[test]
    fn neighbours_that_arrive_together_make_a_whole_stripe() {
        let mut cache = cache();
        cache.add(part(2, 7, 512..STRIPE));
        cache.add(part(1, 7, 0..512));
        assert_eq!(cache.next(), Some(Job::Write(7, one(0..STRIPE))));
        assert_eq!((cache.next(), cache.written(7)), (None, vec![2, 1]));
    }

    #[test]
    fn a_part_of_a_stripe_is_read_first_and_takes_in_what_arrives_meanwhile() {
        let mut cache = cache();
        cache.add(part(1, 7, 0..100));
        assert_eq!(cache.next(), Some(Job::Read(7, one(0..100))));
        cache.add(part(2, 7, 200..300));
        assert_eq!(cache.next(), None, "it is being read");
        cache.read(7);
        assert_eq!(cache.next(), Some(Job::Write(7, vec![0..100, 200..300])));
        cache.add(part(3, 7, 100..200));
        assert_eq!((cache.next(), cache.written(7), cache.partial), (None, vec![1, 2], 1));
        assert_eq!(cache.next(), Some(Job::Read(7, one(100..200))), "what came later is on its own");
    }

    #[test]
    fn while_some_are_read_others_are_delayed_and_may_become_whole() {
        let mut cache = cache();
        cache.add(part(1, 7, 0..100));
        assert_eq!(cache.next(), Some(Job::Read(7, one(0..100))));
        cache.add(part(2, 8, 0..100));
        assert_eq!(cache.next(), None);
        cache.add(part(3, 8, 100..STRIPE));
        assert_eq!(cache.next(), Some(Job::Write(8, one(0..STRIPE))));
        // There is no room for a third.
        cache.add(part(4, 9, 0..STRIPE));
        assert_eq!(cache.next(), None);
        assert_eq!(cache.written(8), [2, 3]);
        assert_eq!(cache.next(), Some(Job::Write(9, one(0..STRIPE))));
    }

    #[test]
    fn a_stripe_that_becomes_whole_while_it_is_read_is_written_whole() {
        let mut cache = cache();
        cache.add(part(1, 7, 0..100));
        assert!(matches!(cache.next(), Some(Job::Read(7, _))));
        cache.add(part(2, 7, 100..STRIPE));
        assert_eq!(cache.next(), None, "its reads are under way");
        cache.read(7);
        assert_eq!((cache.next(), cache.whole), (Some(Job::Write(7, one(0..STRIPE))), 1));
    }

    #[test]
    fn nothing_is_lost_whatever_the_order() {
        let mut cache = StripeCache::new(3, STRIPE);
        let mut done = BTreeMap::new();
        let mut jobs = VecDeque::new();
        for write in 0..200_u64 {
            // Two halves of each of 20 stripes, ten times over, in an order of their own.
            let place = write * 77 % 40;
            let start = place % 2 * 512;
            cache.add(part(write, place / 2, start..start + 512));
            while let Some(job) = cache.next() {
                jobs.push_back(job);
            }
            if write % 3 == 0 || write == 199 {
                while let Some(job) = jobs.pop_front() {
                    match job {
                        Job::Read(stripe, _) => cache.read(stripe),
                        Job::Write(stripe, _) => {
                            cache.written(stripe).into_iter().for_each(|write| *done.entry(write).or_insert(0) += 1);
                        }
                    }
                    while let Some(job) = cache.next() {
                        jobs.push_back(job);
                    }
                    if write != 199 {
                        break;
                    }
                }
            }
        }
        assert!(done.len() == 200 && done.values().all(|times| *times == 1));
        assert!(cache.entries.is_empty() && cache.waiting.is_empty() && cache.reading == 0);
    }

    #[test]
    fn ranges_are_joined() {
        let mut covered = Vec::new();
        for range in [40..50, 0..10, 20..30, 10..15] {
            cover(&mut covered, range);
        }
        assert_eq!(covered, [0..15, 20..30, 40..50]);
        cover(&mut covered, 15..45);
        assert_eq!(covered, one(0..50));
    }
}
