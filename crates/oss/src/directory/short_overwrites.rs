//! Blocks for short overwrites: what finds room for their areas ([`super::areas`]).

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use kv::Loading;
use types::{FsError, FsResult, limits::BLOCK_BYTES};

use super::{
    DirectoryStore,
    areas::{Area, TakenBlocks},
    device::InProgress,
    device_space::DeviceSpace,
};

/// An area may have this part of the free blocks.
const FREE_PARTS: u64 = 16;

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
        if self.areas.open.read().await.as_ref().is_some_and(|area| area.has(blocks)) {
            return Ok(true);
        }
        if self.areas.has_no_room.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Some((range, unnamed)) = self.room_for_area(loading).await? else {
            self.areas.has_no_room.store(true, Ordering::Relaxed);
            return Ok(false);
        };
        self.areas.replace(Area::new(range, Box::new(unnamed))).await;
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
