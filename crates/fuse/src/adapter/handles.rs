//! Open files by the number that the kernel uses for them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use client::OpenFile;
use parking_lot::Mutex;
use rpc::message::mdt::open_flag;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};
use types::{FsError, FsResult, InodeNumber};

/// Longest wait for the RELEASE after a FLUSH to arrive. It follows at once if there is one to come
/// at all.
const RELEASE_WAIT_MAX: Duration = Duration::from_millis(250);

/// Table of open files and directories. Numbers are never reused, so a late request cannot reach
/// another file. With each file are noted the owners that may hold locks taken through it. The
/// fcntl locks of a process end with FLUSH, which names their owner. Those of an open file
/// description (F_OFD_SETLK) end when that is released, and of them the kernel says nothing: so
/// owners are noted, and those that no FLUSH has named are unlocked with RELEASE, as flock locks
/// are.
///
/// close(2) waits for FLUSH, not for RELEASE. Lest a program find locked what it has just closed, a
/// file that is flushed while locks of its description are held counts as being closed, and a
/// request that is refused a lock waits for its RELEASE ([`Handles::closings`]). If the descriptor
/// was a duplicate, none comes; that is waited for once.
#[derive(Default)]
pub struct Handles {
    last: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    open: HashMap<u64, Handle>,
    /// Inode and number of the files that are perhaps being closed, and what [`Handle::released`]
    /// tells of each.
    closing: BTreeMap<(InodeNumber, u64), watch::Receiver<()>>,
}

struct Handle {
    file: Arc<OpenFile>,
    lock_owners: BTreeSet<u64>,
    /// A flock lock was taken through it and not given back.
    has_flock: bool,
    /// Of a directory: the kernel keeps the names that it reads through it.
    keeps_names: bool,
    /// Tells once when RELEASE arrives; closed when that is done and all its locks are released.
    released: watch::Sender<()>,
}

/// A handle that the kernel has released. Its locks count as being released until this is dropped.
pub struct Released<'a> {
    handles: &'a Handles,
    number: u64,
    handle: Handle,
}

impl Handles {
    /// Enters a file; returns its number, which is not 0.
    pub fn insert(&self, file: Arc<OpenFile>) -> u64 {
        self.insert_directory(file, false)
    }

    /// Enters a directory. `keeps_names`: the kernel keeps the names that it reads through it.
    pub fn insert_directory(&self, file: Arc<OpenFile>, keeps_names: bool) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (lock_owners, released) = (BTreeSet::new(), watch::Sender::new(()));
        let handle = Handle { file, lock_owners, has_flock: false, keeps_names, released };
        self.table.lock().open.insert(number, handle);
        number
    }

    /// The open file of a number.
    pub fn get(&self, number: u64) -> FsResult<Arc<OpenFile>> {
        self.table.lock().open.get(&number).map(|handle| handle.file.clone()).ok_or(FsError::BadHandle)
    }

    /// The open directory of a number, and whether the kernel keeps the names that it reads.
    pub fn get_directory(&self, number: u64) -> FsResult<(Arc<OpenFile>, bool)> {
        let table = self.table.lock();
        let handle = table.open.get(&number).ok_or(FsError::BadHandle)?;
        Ok((handle.file.clone(), handle.keeps_names))
    }

    /// Whether a process of this host executes the file: the kernel keeps a program, and its ELF
    /// interpreter, open until the process ends. The RELEASE of one that has just ended is waited
    /// for.
    pub async fn is_executed(&self, inode: InodeNumber) -> bool {
        let executions: Vec<watch::Receiver<()>> = {
            let table = self.table.lock();
            let of_inode = table.open.values().filter(|handle| handle.file.inode() == inode);
            let executed = of_inode.filter(|handle| handle.file.flags().has(open_flag::EXECUTE));
            executed.map(|handle| handle.released.subscribe()).collect()
        };
        let deadline = Instant::now() + RELEASE_WAIT_MAX;
        for mut released in executions {
            if timeout_at(deadline, released.changed()).await.is_err() {
                return true;
            }
        }
        false
    }

    /// A fcntl lock was taken through a file.
    pub fn note_lock_owner(&self, number: u64, owner: u64) {
        if let Some(handle) = self.table.lock().open.get_mut(&number) {
            handle.lock_owners.insert(owner);
        }
    }

    /// A flock lock of this file was taken, or given back.
    pub fn note_flock(&self, number: u64, is_held: bool) {
        if let Some(handle) = self.table.lock().open.get_mut(&number) {
            handle.has_flock = is_held;
        }
    }

    /// A descriptor of this file is gone, and with it all fcntl locks of the owner. It may have
    /// been the last descriptor.
    pub fn flushed(&self, number: u64, owner: u64) {
        let table = &mut *self.table.lock();
        let Some(handle) = table.open.get_mut(&number) else { return };
        handle.lock_owners.remove(&owner);
        if handle.has_flock || !handle.lock_owners.is_empty() {
            table.closing.insert((handle.file.inode(), number), handle.released.subscribe());
        }
    }

    /// Waits until the files of this inode that are being closed, other than this one, have
    /// released their locks. False if there are none.
    pub async fn closings(&self, inode: InodeNumber, but: u64) -> bool {
        let closing: Vec<(u64, watch::Receiver<()>)> = {
            let table = self.table.lock();
            let of_inode = table.closing.range((inode, 0)..=(inode, u64::MAX));
            let others = of_inode.filter(|((_, number), _)| *number != but);
            others.map(|((_, number), released)| (*number, released.clone())).collect()
        };
        let found = !closing.is_empty();
        let deadline = Instant::now() + RELEASE_WAIT_MAX;
        for (number, mut released) in closing {
            match timeout_at(deadline, released.changed()).await {
                Ok(Ok(())) => while released.changed().await.is_ok() {},
                Ok(Err(_)) => {}
                // A duplicate was closed; the file stays open.
                Err(_) => drop(self.table.lock().closing.remove(&(inode, number))),
            }
        }
        found
    }

    /// Removes a file that the kernel has released.
    pub fn remove(&self, number: u64) -> FsResult<Released<'_>> {
        let handle = self.table.lock().open.remove(&number).ok_or(FsError::BadHandle)?;
        handle.released.send_replace(());
        Ok(Released { handles: self, number, handle })
    }
}

impl Released<'_> {
    /// The file.
    pub fn file(&self) -> &Arc<OpenFile> {
        &self.handle.file
    }

    /// Whether the kernel kept the names that it read through it.
    pub fn keeps_names(&self) -> bool {
        self.handle.keeps_names
    }

    /// The owners of fcntl locks that nothing has released.
    pub fn lock_owners(&self) -> &BTreeSet<u64> {
        &self.handle.lock_owners
    }
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.handles.table.lock().closing.remove(&(self.handle.file.inode(), self.number));
    }
}
