//! How much a fjall store has waiting to be merged, and the room that merging it takes.
//!
//! fjall runs one compaction per flushed buffer and prefers the level that is most over its size. A fast writer on a slow
//! machine therefore piles up tables in level 0, each as large as all buffers that waited for the flush (up to 64 MiB). The
//! merge of that level takes all of its tables and those of the next level at once, and writes as much again before it
//! gives anything back. On a device without that much room it fails, fjall takes no more writes, and it fails again each
//! time the store is opened: no space ever comes back.
//!
//! So the pile is kept small while little of the device is free ([`Shared::make_room_to_merge`]): the writing thread merges
//! before it writes more.
//!
//! Downside: near a full device, checkpoints proceed at the speed of merges. The levels are those of fjall's leveled
//! strategy, whose choice is repeated here because fjall does not offer it.

use std::{io, sync::Arc, time::Duration};

use fjall::{AbstractTree, compaction::Leveled};
use parking_lot::RwLockWriteGuard;

use super::{
    keyspaces::{Keyspaces, failed},
    shared::Shared,
};

/// Tables in level 0 that fjall merges, and target size of the first level below, in tables.
const LEVEL_TABLES: u64 = 4;
/// Each level is as many times as large as the one before.
const LEVEL_RATIO: u64 = 10;
/// A pile that is larger than so many tables is merged before more is written.
const PILE_TABLES_MAX: u64 = 8;
/// Free space, beside twice what merging takes, from which on a pile may grow.
const PLENTY_BYTES: u64 = 512 << 20;
/// Pause while fjall's own thread merges.
const POLL: Duration = Duration::from_millis(5);
/// Merges, or pauses, after which the writer goes on in any case: fjall may choose other merges first.
const ATTEMPTS_MAX: u32 = 2000;

/// What waits to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pile {
    /// Bytes in buffers, which are tables of level 0 soon.
    pub buffered_bytes: u64,
    /// Bytes of each level.
    pub level_bytes: Vec<u64>,
    /// Size of a table file.
    pub table_bytes: u64,
}

impl Pile {
    /// Of an open store.
    pub fn of(keyspaces: &Keyspaces) -> Pile {
        let version = keyspaces.data.tree.current_version();
        Pile {
            buffered_bytes: keyspaces.database.write_buffer_size(),
            level_bytes: version.iter_levels().map(|level| level.size()).collect(),
            table_bytes: keyspaces.table_bytes,
        }
    }

    /// Bytes that have not been merged at all.
    fn unmerged_bytes(&self) -> u64 {
        self.buffered_bytes + self.level_bytes.first().copied().unwrap_or_default()
    }

    /// What is written, at most, before the merge of level 0 gives anything back; buffers included, which are written
    /// before it.
    pub fn merge_bytes(&self) -> u64 {
        self.unmerged_bytes().saturating_add(self.next_level_bytes())
    }

    /// Size of the level that level 0 is merged with: the first one with tables, or an empty one above it if all are as
    /// large as they should be.
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
    /// Merges what is piled up while little of the device is free. If there is no room to merge, nothing is done: the
    /// write that follows finds that out.
    pub fn make_room_to_merge(&self) -> io::Result<()> {
        for _ in 0..ATTEMPTS_MAX {
            let free_bytes = self.free_bytes()?;
            let (pile, is_busy) = {
                let keyspaces = self.keyspaces()?;
                let database = &keyspaces.database;
                let tree = &keyspaces.data.tree;
                let is_flushing = database.outstanding_flushes() > 0 || tree.sealed_memtable_count() > 0;
                (Pile::of(&keyspaces), is_flushing || database.active_compactions() > 0)
            };
            if self.is_stopping() || !pile.is_too_large(free_bytes) || pile.merge_bytes() > free_bytes {
                return Ok(());
            }
            if is_busy {
                // fjall tells neither its end nor its failure.
                std::thread::sleep(POLL);
            } else if pile.level_bytes.first().is_none_or(|bytes| *bytes == 0) {
                // All of it is in the present buffer, which goes on filling.
                return Ok(());
            } else {
                self.merge_once()?;
            }
        }
        Ok(())
    }

    /// One merge of fjall's choice.
    fn merge_once(&self) -> io::Result<()> {
        let merged = {
            // While nobody else is here, nobody reads, so that nobody who reads later reads the past.
            let open = self.open.write();
            let Some(keyspaces) = open.as_ref() else { return Ok(()) };
            let present = keyspaces.database.visible_seqno().saturating_sub(1);
            // From here on others may read and write, but not close it.
            let open = RwLockWriteGuard::downgrade(open);
            let Some(keyspaces) = open.as_ref() else { return Ok(()) };
            let strategy = Leveled::default().with_table_target_size(keyspaces.table_bytes);
            keyspaces.data.tree.compact(Arc::new(strategy), present)
        };
        merged.map_err(|error| failed(error.into()))
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
    fn a_pile_is_too_large_only_where_little_is_free() {
        let small = pile(4, [12, 8, 300, 0, 0, 0, 0]);
        assert!(!small.is_too_large(100 * MIB));
        let large = pile(4, [60, 30, 300, 0, 0, 0, 0]);
        assert!(large.is_too_large(100 * MIB));
        assert!(large.is_too_large(600 * MIB));
        assert!(!large.is_too_large(800 * MIB));
    }
}
