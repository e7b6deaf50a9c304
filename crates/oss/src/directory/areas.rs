//! Places for short overwrites: one after the other in an *area* of the device, which is written
//! through the host's memory.
//!
//! A write of 4 KiB that goes to the device by itself waits for it, and one that goes into the
//! tables is written twice. In an area it only has to reach the kernel, as a record of the journal
//! does; the flush of the next commit writes all of them together, in order.
//!
//! What is in the host's memory and not written yet may keep a neighbour as it was, and write that
//! back ([`rt::Device::write_cached`]). So an area is one of the pieces of the device that this memory
//! keeps apart, 2 MiB, and nothing else is written there from its first write until a flush after
//! its last:
//!
//! - All blocks of an area are in progress until records name them. One of a write that failed stays
//!   so.
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

use kv::Loading;
use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use types::{FsError, FsResult, limits::BLOCK_BYTES};

use super::{DirectoryStore, device::InProgress, device_space::DeviceSpace};

/// An area may have this part of the free blocks.
const FREE_PARTS: u64 = 16;

/// See the module documentation.
pub(super) struct Area {
    /// The first block that has no use yet.
    next: AtomicU64,
    end: u64,
    /// What no record names.
    unnamed: Mutex<InProgress>,
}

impl Area {
    /// The next blocks, if there are so many.
    fn take(&self, blocks: u64) -> Option<Range<u64>> {
        let after = |next: u64| Some(next + blocks).filter(|after| *after <= self.end);
        let taken = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after);
        taken.ok().map(|next| next..next + blocks)
    }

    /// A record names this block.
    pub fn recorded(&self, block: u64) {
        self.unnamed.lock().recorded(std::iter::once(block));
    }
}

/// The open area, while nothing closes it.
type OpenArea = OwnedRwLockReadGuard<Option<Arc<Area>>>;

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
    open: Arc<RwLock<Option<Arc<Area>>>>,
    /// Held by what opens the next one.
    opening: tokio::sync::Mutex<()>,
    /// Closed and not flushed since.
    closed: Mutex<Vec<Arc<Area>>>,
    /// There was no room for one, and no commit since.
    has_no_room: AtomicBool,
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

    /// So many of the closed areas are flushed, and what was freed has been given out.
    pub fn flushed(&self, areas: usize) {
        let flushed: Vec<_> = self.closed.lock().drain(..areas).collect();
        drop(flushed);
        self.has_no_room.store(false, Ordering::Relaxed);
    }
}

impl DirectoryStore {
    /// Blocks for a short overwrite, in order; `None` if there is no room for an area.
    pub(super) async fn take_of_area(&self, loading: &mut Loading, blocks: u64) -> FsResult<Option<TakenBlocks>> {
        if blocks > self.area_blocks() {
            return Ok(None);
        }
        loop {
            let open = self.areas.open.clone().read_owned().await;
            if let Some(area) = open.as_ref()
                && let Some(taken) = area.take(blocks)
            {
                let area = area.clone();
                return Ok(Some(TakenBlocks { blocks: taken, area, open: Arc::new(open) }));
            }
            drop(open);
            if !self.open_area(loading, blocks).await? {
                return Ok(None);
            }
        }
    }

    /// Opens an area unless the open one has so many blocks left; false if there is no room for
    /// one.
    async fn open_area(&self, loading: &mut Loading, blocks: u64) -> FsResult<bool> {
        let _opening = self.areas.opening.lock().await;
        let has_blocks = |area: &Arc<Area>| area.next.load(Ordering::Relaxed) + blocks <= area.end;
        if self.areas.open.read().await.as_ref().is_some_and(has_blocks) {
            return Ok(true);
        }
        if self.areas.has_no_room.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some(unnamed) = self.room_for_area(loading).await? else {
            self.areas.has_no_room.store(true, Ordering::Relaxed);
            return Ok(false);
        };
        let (range, unnamed) = unnamed;
        let area = Area { next: range.start.into(), end: range.end, unnamed: Mutex::new(unnamed) };
        let mut open = self.areas.open.write().await;
        self.areas.closed.lock().extend(open.replace(Arc::new(area)));
        Ok(true)
    }

    fn area_blocks(&self) -> u64 {
        self.device.cached_area_bytes() / BLOCK_BYTES
    }

    /// A free piece of the device for an area.
    async fn room_for_area(&self, loading: &mut Loading) -> FsResult<Option<(Range<u64>, InProgress)>> {
        let area_blocks = self.area_blocks();
        let mut in_progress = InProgress::new(self);
        // A run that is nearly twice as long has a whole piece, wherever it begins.
        for blocks in [2 * area_blocks - 1, area_blocks] {
            let ask = |device: &mut DeviceSpace| {
                let free = device.counts().free;
                if free / FREE_PARTS < area_blocks { Ok(None) } else { device.allocate_run(blocks as u32, None) }
            };
            let run = match self.ask_allocator(loading, ask).await {
                Ok(Some(run)) => run,
                Ok(None) | Err(FsError::NoSpace) => continue,
                Err(error) => return Err(error),
            };
            in_progress.add(run.clone());
            let start = run.start.next_multiple_of(area_blocks);
            if start + area_blocks <= run.end {
                let area = start..start + area_blocks;
                let kept = in_progress.split(area.clone());
                return Ok(Some((area, kept)));
            }
        }
        Ok(None)
    }
}
