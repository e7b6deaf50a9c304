//! An open fjall database: its two keyspaces, their keys, and the meaning of its errors.
//!
//! It is closed with [`Keyspaces::close`]: after that, fjall's thread has ended, nothing writes, no
//! file is open, and the lock is free.

use std::{io, path::Path, sync::Arc};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, compaction::Leveled};

use super::{descriptors, journals, options::FjallOptions};
use crate::batch::Table;

/// Size of a table file: a quarter of fjall's default, since a compaction's memory grows with it.
const TABLE_BYTES: u64 = 16 << 20;
/// On a small device: a compaction writes about [`COMPACTION_TABLES`] before it gives anything
/// back, and these must have room besides what a store keeps free.
const TABLE_BYTES_SMALL: u64 = 2 << 20;
const SMALL_DEVICE_BYTES: u64 = 16 << 30;
/// One table, and those of the next level that it overlaps, ten times as large; or all of level 0
/// and 1.
pub(super) const COMPACTION_TABLES: u64 = 12;

/// How large table files are on a device of this size.
pub(super) fn table_bytes(device_bytes: u64) -> u64 {
    if device_bytes < SMALL_DEVICE_BYTES { TABLE_BYTES_SMALL } else { TABLE_BYTES }
}

/// What compactions may take for a time besides what a store keeps free anyway
/// ([`crate::Config::device_reserve_bytes`]).
pub(super) fn compaction_bytes(device_bytes: u64) -> u64 {
    COMPACTION_TABLES * (table_bytes(device_bytes) - TABLE_BYTES_SMALL)
}
/// So few tables, or so little data, fjall may have that it merges any by itself: never. This store
/// merges them, see [`super::levels`].
const FJALL_LEVEL_TABLES: u8 = u8::MAX;
const FJALL_TABLE_BYTES: u64 = 1 << 40;
/// Table files kept open, 1.5 GiB of them: the process has other uses for its descriptors, and
/// several stores.
const FILES_OPEN_MAX: usize = 96;

/// See the module documentation.
pub(super) struct Keyspaces {
    pub database: Database,
    /// Everything a store holds, see [`data_key`].
    pub data: Keyspace,
    /// The checkpoint.
    pub meta: Keyspace,
    /// Size of new table files.
    pub table_bytes: u64,
}

impl Keyspaces {
    /// Opens or creates it.
    pub fn open(directory: &Path, options: &FjallOptions) -> io::Result<Keyspaces> {
        let journals = journals::found_in(directory)?;
        let database = Database::builder(directory)
            .cache_size(options.cache_bytes)
            .max_cached_files(Some(FILES_OPEN_MAX))
            .max_journaling_size((4 * options.write_buffer_bytes).max(64 << 20))
            .worker_threads(1)
            .open()
            .map_err(failed)?;
        let write_buffer_bytes = options.write_buffer_bytes;
        let space = rustix::fs::statvfs(directory)?;
        let table_bytes = table_bytes(space.f_blocks.saturating_mul(space.f_frsize));
        let data = database
            .keyspace("data", || {
                let strategy =
                    Leveled::default().with_l0_threshold(FJALL_LEVEL_TABLES).with_table_target_size(FJALL_TABLE_BYTES);
                KeyspaceCreateOptions::default()
                    .max_memtable_size(write_buffer_bytes)
                    .compaction_strategy(Arc::new(strategy))
            })
            .map_err(failed)?;
        let meta = database
            .keyspace("meta", || KeyspaceCreateOptions::default().max_memtable_size(1 << 20))
            .map_err(failed)?;
        // Only now: fjall has locked the directory.
        journals::write_again(&journals)?;
        Ok(Keyspaces { database, data, meta, table_bytes })
    }

    /// Its background work failed: it takes no more writes, and nothing that it has to do is done
    /// any more.
    pub fn is_poisoned(&self) -> bool {
        matches!(self.database.persist(PersistMode::Buffer), Err(fjall::Error::Poisoned))
    }

    /// Closes what is open in this directory.
    pub fn close(self, directory: &Path) {
        drop(self);
        descriptors::wait_for_none_below(directory);
    }
}

/// Key of an entry in the keyspace `data`.
pub(super) fn data_key(table: Table, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.len());
    bytes.push(table.0);
    bytes.extend_from_slice(key);
    bytes
}

/// The error of the system, if it was one.
pub(super) fn failed(error: fjall::Error) -> io::Error {
    match error {
        fjall::Error::Io(error) => error,
        fjall::Error::Storage(fjall::LsmError::Io(error)) => error,
        other => io::Error::other(other),
    }
}
