//! Open files by the number the kernel knows them by.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use client::OpenFile;
use parking_lot::Mutex;
use types::{FsError, FsResult};

/// Table of open files and directories. Numbers are never reused, so a late request cannot reach another file.
///
/// With each file stands who may hold fcntl locks taken through it. The locks of a process end with FLUSH, which names
/// their owner. Those of an open file description (F_OFD_SETLK) end when that is released, and of them the kernel says
/// nothing: so owners are noted, and those that no FLUSH has named are unlocked with RELEASE.
#[derive(Default)]
pub struct Handles {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Handle>>,
}

struct Handle {
    file: Arc<OpenFile>,
    lock_owners: BTreeSet<u64>,
}

impl Handles {
    /// Enters a file; returns its number, which is not 0.
    pub fn insert(&self, file: Arc<OpenFile>) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(number, Handle { file, lock_owners: BTreeSet::new() });
        number
    }

    /// The open file of a number.
    pub fn get(&self, number: u64) -> FsResult<Arc<OpenFile>> {
        self.open.lock().get(&number).map(|handle| handle.file.clone()).ok_or(FsError::BadHandle)
    }

    /// A fcntl lock was taken through a file.
    pub fn note_lock_owner(&self, number: u64, owner: u64) {
        if let Some(handle) = self.open.lock().get_mut(&number) {
            handle.lock_owners.insert(owner);
        }
    }

    /// All locks of this owner on a file are released.
    pub fn forget_lock_owner(&self, number: u64, owner: u64) {
        if let Some(handle) = self.open.lock().get_mut(&number) {
            handle.lock_owners.remove(&owner);
        }
    }

    /// Removes a file that the kernel has released; with it, the owners whose locks nothing has released.
    pub fn remove(&self, number: u64) -> FsResult<(Arc<OpenFile>, BTreeSet<u64>)> {
        let handle = self.open.lock().remove(&number).ok_or(FsError::BadHandle)?;
        Ok((handle.file, handle.lock_owners))
    }
}
