//! Where the data of an object are, for administrators: a page of its extents.
//!
//! The records of a chunk are looked at as they are at that moment, without a lock: nobody may rely
//! on places that may change at once. So an answer over several chunks may be of several moments,
//! but no reader holds up a writer.
//!
//! Downside: of an object in a host file, only the file system of the host knows the places.

use kv::Loading;
use rpc::message::ost::{EXTENTS_MAX, Extent, ExtentPlace, ExtentsQuery, FoundExtents};
use types::{FsResult, limits::BLOCK_BYTES, limits::FILE_BYTES_MAX};

use super::{DirectoryStore, blocks_of};
use crate::chunk_record::{BlockState, CHUNK_BLOCKS, ChunkRecord};

/// Records of chunks that are looked at for one page: 1 GiB of an object. The work for one request
/// is bounded also if all of it is one extent.
const CHUNKS_MAX: u64 = 1024;

impl DirectoryStore {
    pub(super) async fn object_extents(&self, query: ExtentsQuery) -> FsResult<FoundExtents> {
        let end = query.offset.saturating_add(query.bytes).min(FILE_BYTES_MAX);
        if query.offset >= end {
            return Ok(FoundExtents::default());
        }
        let blocks = blocks_of(query.offset, end - query.offset);
        let mut page = Page { extents: Vec::new(), extents_max: query.extents_max.clamp(1, EXTENTS_MAX) as usize };
        let (loading, mut next) = (&mut Loading::default(), blocks.start / CHUNK_BLOCKS);
        for _ in 0..CHUNKS_MAX {
            let Some((chunk, record)) = self.next_chunk(loading, query.object, next).await? else {
                return Ok(page.last());
            };
            let start = chunk * CHUNK_BLOCKS;
            if start >= blocks.end {
                return Ok(page.last());
            }
            let within = blocks.start.max(start)..blocks.end.min(start + CHUNK_BLOCKS);
            if let Some(block) = page.add(&record, within) {
                return Ok(page.before(block));
            }
            next = chunk + 1;
        }
        Ok(if next * CHUNK_BLOCKS < blocks.end { page.before(next * CHUNK_BLOCKS) } else { page.last() })
    }
}

/// Extents in the order of the object.
struct Page {
    extents: Vec<Extent>,
    extents_max: usize,
}

impl Page {
    /// Adds these blocks of a chunk; the first one for which there is no room.
    fn add(&mut self, record: &ChunkRecord, blocks: std::ops::Range<u64>) -> Option<u64> {
        let first = (blocks.start % CHUNK_BLOCKS) as usize;
        let states = &record.states()[first..first + (blocks.end - blocks.start) as usize];
        let mut block = blocks.start;
        for run in states.chunk_by(|one, next| one.is_followed_by(next)) {
            if let Some(place) = place(&run[0])
                && !self.push(Extent { offset: block * BLOCK_BYTES, bytes: run.len() as u64 * BLOCK_BYTES, place })
            {
                return Some(block);
            }
            block += run.len() as u64;
        }
        None
    }

    /// Adds an extent, to the last one if that goes on with it; whether there was room.
    fn push(&mut self, extent: Extent) -> bool {
        let is_full = self.extents.len() == self.extents_max;
        match self.extents.last_mut() {
            Some(last) if last.is_followed_by(&extent) => last.bytes += extent.bytes,
            _ if is_full => return false,
            _ => self.extents.push(extent),
        }
        true
    }

    /// There is no more.
    fn last(self) -> FoundExtents {
        FoundExtents { extents: self.extents, next: None }
    }

    /// What follows begins with this block.
    fn before(self, block: u64) -> FoundExtents {
        FoundExtents { extents: self.extents, next: Some(block * BLOCK_BYTES) }
    }
}

fn place(state: &BlockState) -> Option<ExtentPlace> {
    match *state {
        BlockState::Absent => None,
        BlockState::InPlace { .. } => Some(ExtentPlace::HostFile),
        BlockState::Inline { .. } => Some(ExtentPlace::Tables),
        BlockState::OnDevice { address, .. } => Some(ExtentPlace::Device(address.saturating_mul(BLOCK_BYTES))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn on_device(record: &mut ChunkRecord, block: u64, address: u64) {
        record.set(block, BlockState::OnDevice { checksum: 0, epoch: 0, address });
    }

    #[test]
    fn extents_go_on_across_chunks_and_a_full_page_says_where() {
        let (mut first, mut second) = (ChunkRecord::default(), ChunkRecord::default());
        for block in 250..256 {
            on_device(&mut first, block, 1000 + block);
        }
        on_device(&mut second, 256, 1256);
        second.set(257, BlockState::Inline { checksum: 0 });
        second.set(300, BlockState::InPlace { checksum: 0, epoch: 7 });
        let mut page = Page { extents: Vec::new(), extents_max: 2 };
        assert_eq!(page.add(&first, 252..256), None);
        assert_eq!(page.add(&second, 256..512), Some(300));
        let expected = [
            Extent { offset: 1008 * KIB, bytes: 20 * KIB, place: ExtentPlace::Device(1252 * 4 * KIB) },
            Extent { offset: 1028 * KIB, bytes: 4 * KIB, place: ExtentPlace::Tables },
        ];
        let found = page.before(300);
        assert_eq!((found.extents.as_slice(), found.next), (&expected[..], Some(1200 * KIB)));
    }
}
