//! Checks blocks of objects on a device against its bitmaps: those of one object, while others are
//! served, or of all.
//!
//! Downside: the check of the whole device holds the store's mutex while it reads all chunk records
//! and bitmaps. It is for a target that serves nobody: tests and simulations.

use std::ops::Range;

use kv::Loading;
use types::{FsResult, ObjectId};

use super::{DirectoryStore, records::Records};
use crate::{
    device_records::{DeviceRecords, extents},
    superblock::Engine,
    tables::{BITMAPS, CHUNKS, GROUPS},
};

impl DirectoryStore {
    /// Whether the bitmaps have all blocks of an object, in words if not. The object is locked.
    pub(super) async fn check_blocks(&self, loading: &mut Loading, object: ObjectId) -> FsResult<Option<String>> {
        let mut next = 0;
        while let Some((chunk, record)) = self.next_chunk(loading, object, next).await? {
            let look = |records: &Records<'_>| {
                extents(&record).find_map(|blocks| self.check_extent(records, blocks).transpose()).transpose()
            };
            if let Some(problem) = self.look(loading, look).await? {
                return Ok(Some(format!("object {object} on {}: {problem}", self.target)));
            }
            next = chunk + 1;
        }
        Ok(None)
    }

    fn check_extent(&self, records: &Records<'_>, blocks: Range<u64>) -> FsResult<Option<String>> {
        let mut volatile = self.volatile.lock();
        let Some(device) = &mut volatile.device else { return Ok(None) };
        if blocks.end > device.blocks() {
            return Ok(Some(format!("blocks {blocks:?} are not on the device")));
        }
        let groups = [blocks.start, blocks.end - 1].map(|block| device.group_of(block));
        for group in groups.into_iter().flatten() {
            if !device.is_loaded(group) {
                self.load_group(device, records, group)?;
            }
        }
        Ok(device.first_unused(&blocks).map(|block| format!("block {block} of the device is marked as free")))
    }

    /// What is wrong with the records of the device as a whole, in words.
    pub(crate) fn check_device(&self) -> FsResult<Vec<String>> {
        let engine = self.superblock.engine;
        let Engine::Blocks { .. } = engine else { return Ok(Vec::new()) };
        // All batches are applied under it.
        let volatile = self.volatile.lock();
        let mut records = DeviceRecords::default();
        let out_of_use = volatile.device.iter().flat_map(|device| device.out_of_use());
        out_of_use.for_each(|group| records.leave_out(*group));
        for table in [CHUNKS, GROUPS, BITMAPS] {
            let scanned = self.kv.scan(table, &[], None, &mut |key, value| {
                records.note(table, key, value);
                true
            });
            scanned.map_err(|error| self.kv_error(error))?;
        }
        Ok(records.problems(engine))
    }
}
