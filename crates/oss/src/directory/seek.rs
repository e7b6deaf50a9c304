//! Finding data and holes. Absent blocks are holes, all others data, in units of 4096 bytes; the
//! object's end counts as the start of a hole.

use kv::Loading;
use types::{FsResult, ObjectId, limits::BLOCK_BYTES};

use super::{
    DirectoryStore,
    records::{Access, Records},
};
use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS},
    service_threads::SERVICE,
};

impl DirectoryStore {
    pub(super) async fn seek_object(&self, object: ObjectId, offset: u64, data: bool) -> FsResult<Option<u64>> {
        let first = offset / BLOCK_BYTES;
        let loading = &mut Loading::default();
        let look = |records: &Records<'_>| {
            let size = records.object(object)?.map_or(0, |record| record.size);
            if offset < size {
                records.next_chunk(object, first / CHUNK_BLOCKS)?;
            }
            Ok(size)
        };
        let (_guard, size) =
            self.lock_and_look((SERVICE, Access::Shared), (object, 0..u64::MAX), loading, look).await?;
        if offset >= size {
            return Ok(None);
        }
        let block = if data {
            self.next_data(loading, object, first).await?
        } else {
            Some(self.next_hole(loading, object, first).await?)
        };
        let found = block.map(|block| offset.max(block.saturating_mul(BLOCK_BYTES)));
        Ok(if data { found.filter(|at| *at < size) } else { found.map(|at| at.min(size)) })
    }

    /// The first block at or after `from` that holds data.
    async fn next_data(&self, loading: &mut Loading, object: ObjectId, from: u64) -> FsResult<Option<u64>> {
        let mut next = from / CHUNK_BLOCKS;
        while let Some((chunk, record)) = self.next_chunk(loading, object, next).await? {
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
    async fn next_hole(&self, loading: &mut Loading, object: ObjectId, from: u64) -> FsResult<u64> {
        let mut block = from;
        loop {
            let number = block / CHUNK_BLOCKS;
            let Some((chunk, record)) = self.next_chunk(loading, object, number).await? else { return Ok(block) };
            if chunk > number {
                return Ok(block);
            }
            let end = (number + 1) * CHUNK_BLOCKS;
            if let Some(hole) = (block..end).find(|block| record.state(*block) == BlockState::Absent) {
                return Ok(hole);
            }
            block = end;
        }
    }
}
