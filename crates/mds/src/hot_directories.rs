//! Directories in which names are made and removed so fast, for so long and by several clients that
//! their MDT has little else to do: then more MDTs can do it faster, however few names there are at
//! a time ([`crate::mdt::splits`]). Pure.
//!
//! Time is cut into windows of a second. A directory is hot in one if it has so many changes as the
//! rate says (`mdt.*.dir_split_hot`), half of all that this MDT counts, and no client makes three
//! quarters of them: one that unpacks an archive waits for its own requests, and is not faster with
//! more MDTs. With so many hot windows in a row as [`WINDOWS`] it is due, once for a while.
//!
//! It has cooled when it, or any of its shards here, has had no quarter of that rate for
//! [`COOLING`]: until then it does not merge, whatever number of names it has.
//!
//! Life cycle: volatile. It begins from nothing with each start.
//!
//! Downside: only changes count. A directory of which many look names up is not split by that: each
//! look-up would take two requests then (docs/decisions/0062-directories-that-split.md).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use rt::Instant;
use tokio::sync::Notify;
use types::{ClientId, InodeNumber};

/// In which changes are counted together.
const WINDOW: Duration = Duration::from_secs(1);
/// Hot ones in a row that make a directory hot: a short burst is over before its names have moved.
const WINDOWS: u32 = 10;
/// For so long a directory that was due is not due again.
const REST: Duration = Duration::from_secs(600);
/// For so long a directory is not hot any more.
const COOLING: Duration = Duration::from_secs(300);
/// A directory is not cool with so many times fewer changes.
const HYSTERESIS: u64 = 4;
/// Directories that are remembered.
const DIRECTORIES_MAX: usize = 4096;

/// A client makes or removes a name in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamesChange {
    /// The directory, or a shard.
    pub directory: InodeNumber,
    /// Of how many shards it is one; 1: it is a directory without any.
    pub parts: u64,
    /// The client.
    pub client: ClientId,
    /// When.
    pub at: Instant,
    /// The rate that makes a directory hot.
    pub hot_per_second: u64,
}

/// Changes of a directory in a window.
#[derive(Debug)]
struct Count {
    changes: u64,
    /// Of how many shards it is one.
    parts: u64,
    /// One client of which no other one has more than half of the changes, if any has; and by how
    /// many it is ahead of all others.
    first: ClientId,
    ahead: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct HotDirectories {
    window: Instant,
    all: u64,
    counts: BTreeMap<InodeNumber, Count>,
    /// Hot windows in a row, up to the last one.
    rows: BTreeMap<InodeNumber, u32>,
    /// When a directory was due.
    split: BTreeMap<InodeNumber, Instant>,
    /// When a directory or shard was last not cool.
    warm: BTreeMap<InodeNumber, Instant>,
    due: BTreeSet<InodeNumber>,
    wakeup: Arc<Notify>,
}

impl HotDirectories {
    /// Rung when a directory is hot.
    pub fn wakeup(&self) -> Arc<Notify> {
        self.wakeup.clone()
    }

    /// A directory that is hot.
    pub fn take_due(&mut self) -> Option<InodeNumber> {
        self.due.pop_first()
    }

    /// Counts a change.
    pub fn changed(&mut self, change: NamesChange) {
        let NamesChange { directory, parts, client, at, hot_per_second } = change;
        if at.since(self.window) >= WINDOW {
            self.end_window(at, hot_per_second);
        }
        self.all += 1;
        if self.counts.len() >= DIRECTORIES_MAX && !self.counts.contains_key(&directory) {
            return;
        }
        let count = self.counts.entry(directory).or_insert(Count { changes: 0, parts, first: client, ahead: 0 });
        count.changes += 1;
        if count.ahead == 0 {
            count.first = client;
        }
        count.ahead = if count.first == client { count.ahead + 1 } else { count.ahead - 1 };
    }

    /// Whether neither this directory nor this shard of it is, or was a while ago, near to hot.
    pub fn has_cooled(&self, directory: InodeNumber, shard: InodeNumber, now: Instant) -> bool {
        let is_warm = |at: &InodeNumber| {
            let last = [self.warm.get(at), self.split.get(at)].into_iter().flatten().max();
            last.is_some_and(|last| now.since(*last) < COOLING)
        };
        ![directory, shard].iter().any(is_warm)
    }

    fn end_window(&mut self, now: Instant, per_second: u64) {
        // Of the time since the last change nothing is known: then it was not hot.
        let is_whole = now.since(self.window) < 2 * WINDOW;
        let counts = std::mem::take(&mut self.counts);
        let all = std::mem::take(&mut self.all);
        let mut rows = BTreeMap::new();
        self.split.retain(|_, at| now.since(*at) < REST);
        self.warm.retain(|_, at| now.since(*at) < COOLING);
        for (directory, count) in counts {
            if count.changes * count.parts * HYSTERESIS >= per_second && self.warm.len() < DIRECTORIES_MAX {
                // The window may have been over for long.
                self.warm.insert(directory, self.window);
            }
            let is_hot = count.parts == 1
                && count.changes >= per_second
                && count.changes * 2 >= all
                && count.ahead * 2 < count.changes;
            if !is_hot || !is_whole || self.split.contains_key(&directory) {
                continue;
            }
            let row = self.rows.get(&directory).map_or(1, |row| row + 1);
            if row >= WINDOWS {
                self.split.insert(directory, now);
                self.due.insert(directory);
                self.wakeup.notify_one();
            } else {
                rows.insert(directory, row);
            }
        }
        (self.rows, self.window) = (rows, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: InodeNumber = InodeNumber(7);
    const OTHER: InodeNumber = InodeNumber(8);
    const RATE: u64 = 20;

    fn change(directory: InodeNumber, parts: u64, client: u64, at: Instant) -> NamesChange {
        NamesChange { directory, parts, client: ClientId(client), at, hot_per_second: RATE }
    }

    /// So many seconds in each of which clients make so many changes; in another directory, too.
    fn work(hot: &mut HotDirectories, now: &mut u64, seconds: u64, of_clients: &[u64], elsewhere: u64) {
        for _ in 0..seconds {
            let at = Instant(*now * 1_000_000_000);
            for (client, changes) in of_clients.iter().enumerate() {
                (0..*changes).for_each(|_| hot.changed(change(DIRECTORY, 1, client as u64, at)));
            }
            (0..elsewhere).for_each(|_| hot.changed(change(OTHER, 1, 9, at)));
            *now += 1;
        }
    }

    #[test]
    fn a_directory_is_hot_when_several_clients_keep_its_mdt_busy_for_long() {
        for (seconds, of_clients, elsewhere, is_hot) in [
            (12, &[10, 10][..], 0, true),
            (12, &[14, 3, 3], 15, true),
            (9, &[10, 10], 0, false),
            (100, &[9, 10], 0, false),
            (100, &[100], 0, false),
            (100, &[80, 20], 0, false),
            (100, &[10, 10], 21, false),
        ] {
            let (mut hot, mut now) = (HotDirectories::default(), 1000);
            work(&mut hot, &mut now, seconds, of_clients, elsewhere);
            let case = format!("{seconds} s, {of_clients:?}, {elsewhere}");
            assert_eq!(hot.take_due(), is_hot.then_some(DIRECTORY), "{case}");
            assert_eq!(hot.take_due(), None, "{case}");
        }
    }

    #[test]
    fn bursts_with_pauses_in_between_do_not_count_together() {
        let (mut hot, mut now) = (HotDirectories::default(), 1000);
        for _ in 0..20 {
            work(&mut hot, &mut now, 8, &[50, 50], 0);
            now += 2;
        }
        assert_eq!(hot.take_due(), None);
        work(&mut hot, &mut now, 12, &[50, 50], 0);
        assert_eq!(hot.take_due(), Some(DIRECTORY));
        work(&mut hot, &mut now, 580, &[50, 50], 0);
        assert_eq!(hot.take_due(), None, "it could not, perhaps");
        work(&mut hot, &mut now, 40, &[50, 50], 0);
        assert_eq!(hot.take_due(), Some(DIRECTORY), "then once more");
    }

    #[test]
    fn it_has_cooled_long_after_its_shards_had_little_to_do() {
        let (mut hot, mut now) = (HotDirectories::default(), 1000);
        let shard = OTHER.as_shard();
        let has_cooled =
            |hot: &HotDirectories, now: u64| hot.has_cooled(DIRECTORY, shard, Instant(now * 1_000_000_000));
        assert!(has_cooled(&hot, now));
        work(&mut hot, &mut now, 12, &[50, 50], 0);
        assert_eq!(hot.take_due(), Some(DIRECTORY));
        let in_shard = |hot: &mut HotDirectories, now: &mut u64, seconds: u64, changes: u64| {
            for _ in 0..seconds {
                let at = Instant(*now * 1_000_000_000);
                (0..changes).for_each(|_| hot.changed(change(shard, 5, 1, at)));
                *now += 1;
            }
        };
        in_shard(&mut hot, &mut now, 400, 1);
        assert!(!has_cooled(&hot, now), "a quarter of the rate, by its five shards");
        assert_eq!(hot.take_due(), None, "a shard does not split");
        now += 297;
        assert!(!has_cooled(&hot, now));
        now += 1;
        assert!(has_cooled(&hot, now));
        // What was before a pause is noticed after it.
        work(&mut hot, &mut now, 3, &[50, 50], 0);
        now += 400;
        work(&mut hot, &mut now, 1, &[1], 0);
        assert!(has_cooled(&hot, now));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut hot = HotDirectories::default();
        for second in 0..4 {
            for number in 0..2 * DIRECTORIES_MAX as u64 {
                let change = change(InodeNumber(number), 1, 1, Instant(second * 1_000_000_000));
                hot.changed(NamesChange { hot_per_second: 1, ..change });
            }
        }
        assert!(hot.counts.len() <= DIRECTORIES_MAX && hot.warm.len() <= DIRECTORIES_MAX && hot.rows.is_empty());
    }
}
