//! Finding data and holes. Absent blocks are holes, all others data, in units of 4096 bytes; the object's end counts as
//! the beginning of a hole.

use types::{FsResult, ObjectId, limits::BLOCK_BYTES};

use super::DirectoryStore;
use crate::chunk_record::{BlockState, CHUNK_BLOCKS};

impl DirectoryStore {
    pub(super) async fn seek_object(&self, object: ObjectId, offset: u64, data: bool) -> FsResult<Option<u64>> {
        let _guard = self.locks.shared(object, 0..u64::MAX).await;
        let size = self.load_object(object)?.map_or(0, |record| record.size);
        if offset >= size {
            return Ok(None);
        }
        let first = offset / BLOCK_BYTES;
        let block = if data { self.next_data(object, first)? } else { Some(self.next_hole(object, first)?) };
        let found = block.map(|block| offset.max(block.saturating_mul(BLOCK_BYTES)));
        Ok(if data { found.filter(|at| *at < size) } else { found.map(|at| at.min(size)) })
    }

    /// The first block at or after `from` that holds data.
    fn next_data(&self, object: ObjectId, from: u64) -> FsResult<Option<u64>> {
        let mut next = from / CHUNK_BLOCKS;
        while let Some(chunk) = self.next_chunk(object, next)? {
            let record = self.load_chunk(object, chunk)?.unwrap_or_default();
            let start = from.max(chunk * CHUNK_BLOCKS);
            let held = (start..(chunk + 1) * CHUNK_BLOCKS).find(|block| record.state(*block) != BlockState::Absent);
            if held.is_some() {
                return Ok(held);
            }
            next = chunk + 1;
        }
        Ok(None)
    }

    /// The first block at or after `from` that holds none.
    fn next_hole(&self, object: ObjectId, from: u64) -> FsResult<u64> {
        let mut block = from;
        loop {
            let Some(record) = self.load_chunk(object, block / CHUNK_BLOCKS)? else { return Ok(block) };
            let end = (block / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS;
            if let Some(hole) = (block..end).find(|block| record.state(*block) == BlockState::Absent) {
                return Ok(hole);
            }
            block = end;
        }
    }
}
