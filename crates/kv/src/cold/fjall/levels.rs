//! How much of a fjall store waits to be merged, the space that merging it takes, and the merges
//! themselves.
//!
//! fjall's own thread merges nothing ([`super::keyspaces`]): it runs one merge per flushed buffer,
//! however much is waiting; on a device without space for it the merge fails, fjall accepts no more
//! writes, and the merge fails again each time the store is opened. So this store merges, by
//! fjall's leveled strategy: on the thread that manages space, as soon as a buffer is flushed, if
//! there is space for it.
//!
//! A fast writer nevertheless piles up tables in level 0, each as large as all buffers that waited
//! for the flush (up to 64 MiB). The merge of that level takes all of its tables and those of the
//! next level at once, and writes as much again before it frees anything. So the number of these
//! tables is kept small while little of the device is free ([`Shared::make_space_to_write`]): the
//! writing thread merges before it writes more.
//!
//! fjall delays a writer while more than three buffers wait to be flushed, or thirty runs to be
//! merged, without checking whether its own thread is alive. The writing thread waits before it
//! calls fjall, and does check.
//!
//! Downside: near a full device, checkpoints proceed at the speed of merges. The levels are those
//! of fjall's leveled strategy, whose choice is repeated here because fjall does not offer it.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use fjall::{AbstractTree, Keyspace, compaction::Leveled};

use super::{
    fault::Fault,
    keyspaces::{COMPACTION_TABLES, Keyspaces, failed},
    shared::Shared,
};
use crate::error::is_no_space;

/// Tables in level 0 that are merged, and target size of the first level below, in tables.
const LEVEL_TABLES: u64 = 4;
/// Each level is as many times as large as the one before.
const LEVEL_RATIO: u64 = 10;
/// A pile that is larger than so many tables is merged before more is written.
const PILE_TABLES_MAX: u64 = 8;
/// Free space, besides twice what merging takes, from which on a pile may grow.
const PLENTY_BYTES: u64 = 512 << 20;
/// Full buffers that may wait to be flushed while more is written, and runs of level 0 to be
/// merged: fewer than hold up a writer in fjall, even if each buffer that is there becomes one.
const SEALED_MAX: usize = 1;
const RUNS_MAX: usize = 16;
/// Runs of level 0 with which nothing more is written if there is no room to merge them.
const RUNS_WITHOUT_SPACE_MAX: usize = 24;
/// Pause while another thread flushes or merges.
const POLL: Duration = Duration::from_millis(5);
/// How long so many runs may wait while the strategy sees nothing to merge: others merge what it
/// would.
const STUCK: Duration = Duration::from_secs(60);
/// After a merge that failed for another reason than space, none is tried for so long.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// What came of an attempt to merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merge {
    /// Something was merged, and more may be due.
    Done,
    /// Nothing is due.
    NotDue,
    /// There is too little room.
    NoSpace,
    /// Another thread merges.
    Busy,
}

/// What earlier merges leave to be minded.
#[derive(Debug, Default)]
pub(super) struct Merging {
    /// So much was free, and was not enough.
    too_little_bytes: u64,
    /// When the last one failed for another reason than space, and why.
    failure: Option<(Instant, String)>,
}

impl Merging {
    /// Notes how one ended that began with so much free.
    fn note(&mut self, free_bytes: u64, outcome: &io::Result<Merge>) {
        match outcome {
            Ok(Merge::Done) => *self = Merging::default(),
            Ok(_) => self.failure = None,
            Err(error) if is_no_space(error) => self.too_little_bytes = free_bytes,
            Err(error) => self.failure = Some((Instant::now(), error.to_string())),
        }
    }

    /// The failure that is too recent to try again.
    fn recent_failure(&self) -> Option<io::Error> {
        let (failed, reason) = self.failure.as_ref()?;
        (failed.elapsed() < FAILURE_PAUSE).then(|| io::Error::other(format!("cannot merge tables: {reason}")))
    }
}

/// What waits to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pile {
    /// Bytes in buffers, which are tables of level 0 soon.
    pub buffered_bytes: u64,
    /// Bytes of each level.
    pub level_bytes: Vec<u64>,
    /// Size of a table file.
    pub table_bytes: u64,
    /// Runs of level 0, which most flushes of buffers add one to, and its tables.
    pub runs: usize,
    pub tables: u64,
}

impl Pile {
    /// Of an open store.
    pub fn of(keyspaces: &Keyspaces) -> Pile {
        let version = keyspaces.data.tree.current_version();
        Pile {
            buffered_bytes: keyspaces.database.write_buffer_size(),
            level_bytes: version.iter_levels().map(|level| level.size()).collect(),
            table_bytes: keyspaces.table_bytes,
            runs: keyspaces.data.tree.l0_run_count(),
            tables: keyspaces.data.tree.level_table_count(0).unwrap_or_default() as u64,
        }
    }

    /// Bytes that have not been merged at all.
    fn unmerged_bytes(&self) -> u64 {
        self.buffered_bytes + self.level_bytes.first().copied().unwrap_or_default()
    }

    /// What is written, at most, before the merge of level 0 gives anything back; buffers included,
    /// which are written before it.
    pub fn merge_bytes(&self) -> u64 {
        self.unmerged_bytes().saturating_add(self.next_level_bytes())
    }

    /// What the next merge writes, at most, before it gives anything back.
    fn next_merge_bytes(&self) -> u64 {
        let level_0 = self.level_bytes.first().copied().unwrap_or_default();
        let is_due = self.tables >= LEVEL_TABLES;
        let pile_bytes = if is_due { level_0.saturating_add(self.next_level_bytes()) } else { 0 };
        pile_bytes.max(self.table_bytes * COMPACTION_TABLES).min(self.level_bytes.iter().sum())
    }

    /// Size of the level that level 0 is merged with: the first one with tables, or an empty one
    /// above it if all are as large as they should be.
    fn next_level_bytes(&self) -> u64 {
        let Some(first) = (1..self.level_bytes.len()).find(|level| self.level_bytes[*level] > 0) else { return 0 };
        let mut target = self.table_bytes * LEVEL_TABLES;
        let mut all_full = first > 1;
        for bytes in &self.level_bytes[first..] {
            all_full &= *bytes == 0 || *bytes > target;
            target = target.saturating_mul(LEVEL_RATIO);
        }
        if all_full { 0 } else { self.level_bytes[first] }
    }

    /// Whether it is to be merged before more is written, with so much free on the device.
    fn is_too_large(&self, free_bytes: u64) -> bool {
        let is_short = free_bytes < self.merge_bytes().saturating_mul(2).saturating_add(PLENTY_BYTES);
        is_short && self.unmerged_bytes() > self.table_bytes * PILE_TABLES_MAX
    }
}

impl Shared {
    /// Merges what is piled up before more is written, if that is needed.
    pub fn make_space_to_write(&self) -> Result<(), Fault> {
        let begun = Instant::now();
        while !self.is_stopping() {
            if !self.wait_for_flushes().map_err(Fault::Now)? {
                // The write tells why.
                return Ok(());
            }
            let free_bytes = self.free_bytes().map_err(Fault::Now)?;
            let pile = Pile::of(&*self.keyspaces().map_err(Fault::Now)?);
            if pile.runs <= RUNS_MAX && !pile.is_too_large(free_bytes) {
                return Ok(());
            }
            match self.merge().map_err(Fault::Now)? {
                Merge::Done => {}
                Merge::Busy => std::thread::sleep(POLL),
                Merge::NoSpace if pile.runs > RUNS_WITHOUT_SPACE_MAX => return Err(Fault::NoSpaceToMerge),
                Merge::NotDue if pile.runs > RUNS_WITHOUT_SPACE_MAX => {
                    if begun.elapsed() > STUCK {
                        let text = format!("{} runs of tables are not merged", pile.runs);
                        return Err(Fault::Now(io::Error::other(text)));
                    }
                    std::thread::sleep(POLL);
                }
                // The write that follows finds out whether there is room for it.
                Merge::NoSpace | Merge::NotDue => return Ok(()),
            }
        }
        Ok(())
    }

    /// Waits until few buffers wait to be flushed; false if they never will be, because fjall's
    /// thread has ended.
    pub fn wait_for_flushes(&self) -> io::Result<bool> {
        while !self.is_stopping() {
            let keyspaces = self.keyspaces()?;
            if keyspaces.is_poisoned() {
                return Ok(false);
            }
            let sealed = |keyspace: &Keyspace| keyspace.tree.sealed_memtable_count();
            if sealed(&keyspaces.data).max(sealed(&keyspaces.meta)) <= SEALED_MAX {
                break;
            }
            drop(keyspaces);
            // fjall does not tell the end.
            std::thread::sleep(POLL);
        }
        Ok(true)
    }

    /// One merge of the leveled strategy's choice.
    pub fn merge(&self) -> io::Result<Merge> {
        let Some(mut merging) = self.merging.try_lock() else { return Ok(Merge::Busy) };
        if let Some(failure) = merging.recent_failure() {
            return Err(failure);
        }
        let free_bytes = self.free_bytes()?;
        let needed_bytes = Pile::of(&*self.keyspaces()?).next_merge_bytes();
        if free_bytes < needed_bytes || free_bytes <= merging.too_little_bytes {
            return Ok(Merge::NoSpace);
        }
        let outcome = self.compact();
        merging.note(free_bytes, &outcome);
        match outcome {
            Ok(Merge::Done) => {
                self.forget_versions()?;
                Ok(Merge::Done)
            }
            Ok(other) => Ok(other),
            Err(error) => {
                // The files that it left go when it is opened.
                self.open_again()?;
                if is_no_space(&error) { Ok(Merge::NoSpace) } else { Err(error) }
            }
        }
    }

    fn compact(&self) -> io::Result<Merge> {
        let keyspaces = self.keyspaces()?;
        let tree = &keyspaces.data.tree;
        let version = tree.current_version().id();
        let strategy = Leveled::default().with_table_target_size(keyspaces.table_bytes);
        // Past values are never read: what is replaced may go at once.
        let present = keyspaces.database.visible_seqno().saturating_sub(1);
        tree.compact(Arc::new(strategy), present).map_err(|error| failed(error.into()))?;
        Ok(if tree.current_version().id() == version { Merge::NotDue } else { Merge::Done })
    }

    /// Lets go of the versions of the tree before the newest, and with them of their files.
    pub fn forget_versions(&self) -> io::Result<()> {
        let keyspaces = self.keyspaces()?;
        let Keyspaces { database, data, .. } = &*keyspaces;
        if data.tree.version_free_list_len() == 0 {
            return Ok(());
        }
        let mut versions = data.tree.get_version_history_lock();
        // No version is made without the lock, and each has a number below what is visible from
        // then on.
        let newest = database.visible_seqno();
        versions.maintenance(data.path(), newest).map_err(|error| failed(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pile(buffered_mib: u64, level_mib: [u64; 7]) -> Pile {
        Pile {
            buffered_bytes: buffered_mib * MIB,
            level_bytes: level_mib.map(|mib| mib * MIB).to_vec(),
            table_bytes: 2 * MIB,
            runs: 2,
            tables: 4,
        }
    }

    #[test]
    fn level_0_is_merged_with_the_first_level_that_has_tables() {
        assert_eq!(pile(0, [0; 7]).merge_bytes(), 0);
        assert_eq!(pile(3, [20, 0, 0, 0, 0, 0, 0]).merge_bytes(), 23 * MIB);
        assert_eq!(pile(3, [20, 5, 70, 0, 0, 0, 300]).merge_bytes(), 28 * MIB);
        assert_eq!(pile(3, [20, 0, 0, 0, 0, 0, 7]).merge_bytes(), 30 * MIB, "not full");
        assert_eq!(pile(3, [20, 0, 0, 0, 0, 0, 400]).merge_bytes(), 23 * MIB, "full: a level above it is begun");
        assert_eq!(pile(3, [20, 0, 0, 0, 0, 9, 70]).merge_bytes(), 32 * MIB, "the last one is not full");
    }

    #[test]
    fn a_merge_needs_space_for_what_it_writes() {
        assert_eq!(pile(3, [20, 5, 70, 0, 0, 0, 300]).next_merge_bytes(), 25 * MIB);
        assert_eq!(pile(3, [8, 5, 70, 0, 0, 0, 300]).next_merge_bytes(), 24 * MIB, "two levels below");
        assert_eq!(pile(3, [8, 5, 0, 0, 0, 0, 0]).next_merge_bytes(), 13 * MIB, "no more than there is");
    }

    #[test]
    fn a_merge_that_failed_is_not_repeated_at_once() {
        let mut merging = Merging::default();
        merging.note(7, &Err(io::ErrorKind::StorageFull.into()));
        assert_eq!((merging.too_little_bytes, merging.recent_failure().is_none()), (7, true));
        merging.note(8, &Err(io::Error::other("bad checksum")));
        assert!(merging.recent_failure().unwrap().to_string().contains("bad checksum"));
        merging.note(9, &Ok(Merge::Done));
        assert_eq!((merging.too_little_bytes, merging.recent_failure().is_none()), (0, true));
    }

    #[test]
    fn a_pile_is_too_large_only_where_little_is_free() {
        let small = pile(4, [12, 8, 300, 0, 0, 0, 0]);
        assert!(!small.is_too_large(100 * MIB));
        let large = pile(4, [60, 30, 300, 0, 0, 0, 0]);
        assert!(large.is_too_large(100 * MIB));
        assert!(large.is_too_large(600 * MIB));
        assert!(!large.is_too_large(800 * MIB));
    }
}
