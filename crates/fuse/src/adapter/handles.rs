//! Open files by the number the kernel knows them by.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use client::OpenFile;
use parking_lot::Mutex;
use types::{FsError, FsResult};

/// Table of open files and directories. Numbers are never reused, so a late request cannot reach another file.
#[derive(Default)]
pub struct Handles {
    last: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenFile>>>,
}

impl Handles {
    /// Enters a file; returns its number, which is not 0.
    pub fn insert(&self, file: Arc<OpenFile>) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(handle, file);
        handle
    }

    /// The open file of a number.
    pub fn get(&self, handle: u64) -> FsResult<Arc<OpenFile>> {
        self.open.lock().get(&handle).cloned().ok_or(FsError::BadHandle)
    }

    /// Removes a file that the kernel has released.
    pub fn remove(&self, handle: u64) -> FsResult<Arc<OpenFile>> {
        self.open.lock().remove(&handle).ok_or(FsError::BadHandle)
    }
}
