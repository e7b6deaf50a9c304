//! An open fjall database: its two keyspaces, their keys, and what its errors mean to the system.
//!
//! It is closed with [`Keyspaces::close`]: then fjall's thread has ended, nothing writes, no file is open, the lock is free.

use std::{io, path::Path, sync::Arc};

use fjall::{
    Database, Keyspace, KeyspaceCreateOptions,
    compaction::{Leveled, filter::Factory},
};

use super::{FjallOptions, descriptors, journals, wakes::Wakes};
use crate::batch::Table;

/// Size of a table file: a quarter of fjall's default, since a compaction's memory grows with it.
pub(super) const TABLE_BYTES: u64 = 16 << 20;
const DATA: &str = "data";
/// Table files kept open, 1.5 GiB of them: the process has other uses for its descriptors, and several stores.
const FILES_OPEN_MAX: usize = 96;

/// See the module documentation.
pub(super) struct Keyspaces {
    pub database: Database,
    /// Everything a store holds, see [`data_key`].
    pub data: Keyspace,
    /// The checkpoint.
    pub meta: Keyspace,
}

impl Keyspaces {
    /// Opens or creates it.
    pub fn open(directory: &Path, options: &FjallOptions, wakes: &Wakes) -> io::Result<Keyspaces> {
        let factory: Arc<dyn Factory> = Arc::new(wakes.share());
        let database = Database::builder(directory)
            .with_compaction_filter_factories(Arc::new(move |keyspace| (keyspace == DATA).then(|| factory.clone())))
            .cache_size(options.cache_bytes)
            .max_cached_files(Some(FILES_OPEN_MAX))
            .max_journaling_size((4 * options.write_buffer_bytes).max(64 << 20))
            .worker_threads(1)
            .open()
            .map_err(failed)?;
        let write_buffer_bytes = options.write_buffer_bytes;
        let data = database
            .keyspace(DATA, || {
                let strategy = Leveled::default().with_table_target_size(TABLE_BYTES);
                KeyspaceCreateOptions::default()
                    .max_memtable_size(write_buffer_bytes)
                    .compaction_strategy(Arc::new(strategy))
            })
            .map_err(failed)?;
        let meta = database
            .keyspace("meta", || KeyspaceCreateOptions::default().max_memtable_size(1 << 20))
            .map_err(failed)?;
        // Behind fjall's lock.
        journals::write_again(directory)?;
        Ok(Keyspaces { database, data, meta })
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
