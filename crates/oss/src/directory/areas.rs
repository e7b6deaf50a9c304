//! Places for short overwrites: one after the other in an *area* of the device, which is written
//! through the host's memory.
//!
//! A write of 4 KiB that goes to the device by itself waits for it, and one that goes into the
//! tables is written twice. In an area it only has to reach the kernel, as a record of the journal
//! does; the flush of the next commit writes all of them together, in order.
//!
//! What is in the host's memory and not written yet may keep a neighbour as it was, and write that
//! back ([`rt::Device::write_cached`]). So an area is one of the pieces of the device that this
//! memory keeps apart, 2 MiB, and nothing else is written there from its first write until a flush
//! after its last:
//!
//! - All blocks of an area are in progress until records name them. One of a write that failed
//!   stays so.
//! - A commit *closes* areas, after the writes to them that have begun, and before it decides which
//!   of the freed blocks it will give out. Whatever it gives out of an area is flushed then.
//! - When its flush has ended, the blocks of closed areas that no record names are given back.
//!
//! Downside: blocks are in the order in which they were written, whatever their objects.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Blocks that no record names, which are given back when this is dropped.
pub(super) trait Unnamed: Send {
    /// A record names this block.
    fn recorded(&mut self, block: u64);
}

/// See the module documentation.
pub(super) struct Area {
    /// The first block that has no use yet.
    next: AtomicU64,
    end: u64,
    /// What no record names.
    unnamed: Mutex<Box<dyn Unnamed>>,
}

impl Area {
    /// One of these blocks, none of which is named.
    pub fn new(blocks: Range<u64>, unnamed: Box<dyn Unnamed>) -> Self {
        Self { next: blocks.start.into(), end: blocks.end, unnamed: Mutex::new(unnamed) }
    }

    /// Whether so many blocks have no use yet.
    pub fn has(&self, blocks: u64) -> bool {
        self.next.load(Ordering::Relaxed) + blocks <= self.end
    }

    /// The next blocks, if there are so many.
    pub fn take(&self, blocks: u64) -> Option<Range<u64>> {
        let after = |next: u64| Some(next + blocks).filter(|after| *after <= self.end);
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        taken.ok().map(|next| next..next + blocks)
    }

    /// A record names this block.
    pub fn recorded(&self, block: u64) {
        self.unnamed.lock().recorded(block);
    }
}

/// The open area, while nothing closes it.
pub(super) type OpenArea = OwnedRwLockReadGuard<Option<Arc<Area>>>;

/// Blocks of an area that a write has taken.
pub(super) struct TakenBlocks {
    pub blocks: Range<u64>,
    pub area: Arc<Area>,
    /// Held until they are written.
    pub open: Arc<OpenArea>,
}

/// The areas of a store.
#[derive(Default)]
pub(super) struct Areas {
    pub open: Arc<RwLock<Option<Arc<Area>>>>,
    /// Held by what opens the next one.
    pub opening: tokio::sync::Mutex<()>,
    /// Closed and not flushed since.
    closed: Mutex<Vec<Arc<Area>>>,
    /// There was no room for one, and no commit since.
    pub has_no_room: AtomicBool,
}

impl Areas {
    /// Waits for the writes to the open area that have begun. As long as the result lives, none
    /// begins.
    pub async fn stop_writes(&self) -> OwnedRwLockWriteGuard<Option<Arc<Area>>> {
        self.open.clone().write_owned().await
    }

    /// Closes the open area; how many closed ones a flush from now on covers.
    pub fn close(&self, open: &mut Option<Arc<Area>>) -> usize {
        let mut closed = self.closed.lock();
        closed.extend(open.take());
        closed.len()
    }

    /// Opens an area; the one that was open is closed.
    pub async fn replace(&self, area: Area) {
        let mut open = self.open.write().await;
        self.closed.lock().extend(open.replace(Arc::new(area)));
    }

    /// So many of the closed areas are flushed, and what was freed has been given out.
    pub fn flushed(&self, areas: usize) {
        let flushed: Vec<_> = self.closed.lock().drain(..areas).collect();
        drop(flushed);
        self.has_no_room.store(false, Ordering::Relaxed);
    }
}
