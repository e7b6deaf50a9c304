//! Reading: every block is verified against its checksum before a byte of it is sent.
//!
//! A range that is in place in one piece, as in large files that are read sequentially (on a
//! device: one that is not scattered over it), is one device read whose buffer is the reply.
//! Everything else is assembled block by block. Checksums of whole blocks are passed on as stored;
//! those of a first or last piece that is not a whole block are computed.

use std::ops::Range;

use bytes::Bytes;
use kv::Loading;
use rpc::{
    checksum::{ZERO_BLOCK, crc32c, pieces},
    message::ost::{Read, ReadDone},
};
use types::{Damage, FsError, FsResult, ObjectId, limits::BLOCK_BYTES, limits::BULK_BYTES_MAX};

use super::{
    BLOCK, DirectoryStore, blocks_of,
    counts::Counts,
    host_file,
    records::{Access, Records},
};
use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS},
    service_threads::{SERVICE, SERVICE_IO},
};

impl DirectoryStore {
    pub(super) async fn read_object(&self, read: Read) -> FsResult<(ReadDone, Bytes)> {
        let Read { object, offset, bytes, layout_generation } = read;
        if bytes as usize > BULK_BYTES_MAX {
            return Err(FsError::Invalid);
        }
        let asked = blocks_of(offset, u64::from(bytes));
        let look = |records: &Records<'_>| {
            let size = records.permitted(object, &asked, layout_generation)?.map_or(0, |record| record.size);
            let bytes = size.saturating_sub(offset).min(u64::from(bytes));
            let blocks = if bytes == 0 { 0..0 } else { blocks_of(offset, bytes) };
            let states = records.block_states(object, blocks.clone())?;
            let inline = records.inlines(object, blocks.start, &states)?;
            Ok((size, bytes, blocks, states, inline))
        };
        let access = (SERVICE_IO, Access::Shared);
        let locked = self.lock_and_look(access, (object, asked.clone()), &mut Loading::default(), look).await?;
        let (_guard, (size, bytes, blocks, states, inline)) = locked;
        if bytes == 0 {
            return Ok((ReadDone { checksums: Vec::new(), size }, Bytes::new()));
        }
        let data = self.load_blocks(object, blocks.clone(), &states, &inline).await?;
        self.note_pieces(object, blocks.start, &states);
        let skip = (offset - blocks.start * BLOCK_BYTES) as usize;
        let data = data.slice(skip..skip + bytes as usize);
        let sum = |(piece, state): (Range<usize>, &BlockState)| {
            if piece.len() == BLOCK { state.checksum().unwrap_or(ZERO_BLOCK) } else { crc32c(&data[piece]) }
        };
        let checksums = pieces(offset, data.len()).zip(&states).map(sum).collect();
        Ok((ReadDone { checksums, size }, data))
    }

    /// Verified contents of blocks, whose states are given, and what table INLINE has of each
    /// ([`Records::inlines`]).
    async fn load_blocks(
        &self,
        object: ObjectId,
        blocks: Range<u64>,
        states: &[BlockState],
        inline: &[Bytes],
    ) -> FsResult<Bytes> {
        assert_eq!(states.len() as u64, blocks.end - blocks.start, "each block to be read has a state");
        assert_eq!(inline.len(), states.len(), "each block to be read has its part of table INLINE");
        let is_one_piece = states.windows(2).all(|pair| pair[0].is_followed_by(&pair[1]));
        if is_one_piece && states.first().is_some_and(BlockState::is_outside_tables) {
            return self.load_in_place(object, blocks, states).await;
        }
        let mut data = vec![0; states.len() * BLOCK];
        let mut at = 0;
        for run in states.chunk_by(BlockState::is_followed_by) {
            let start = blocks.start + at as u64;
            let target = &mut data[at * BLOCK..(at + run.len()) * BLOCK];
            match run[0] {
                BlockState::Absent => {}
                BlockState::InPlace { .. } | BlockState::OnDevice { .. } => {
                    let loaded = self.load_in_place(object, start..start + run.len() as u64, run).await?;
                    target.copy_from_slice(&loaded);
                }
                BlockState::Inline { .. } => {
                    let stored = (start..).zip(run).zip(&inline[at..]);
                    for (((block, state), stored), target) in stored.zip(target.chunks_exact_mut(BLOCK)) {
                        self.fill_inline(object, block, (*state, stored), target)?;
                    }
                }
            }
            at += run.len();
        }
        Ok(data.into())
    }

    /// Verified contents of one block, whose state is given, and what table INLINE has of it.
    pub(super) async fn load_block(
        &self,
        object: ObjectId,
        block: u64,
        state: BlockState,
        stored: &[u8],
    ) -> FsResult<Vec<u8>> {
        match state {
            BlockState::Absent => Ok(vec![0; BLOCK]),
            BlockState::InPlace { .. } | BlockState::OnDevice { .. } => {
                self.load_in_place(object, block..block + 1, &[state]).await.map(Vec::from)
            }
            BlockState::Inline { .. } => {
                let mut contents = vec![0; BLOCK];
                self.fill_inline(object, block, (state, stored), &mut contents)?;
                Ok(contents)
            }
        }
    }

    /// Verified contents of blocks that follow each other in one place outside of the tables.
    async fn load_in_place(&self, object: ObjectId, blocks: Range<u64>, states: &[BlockState]) -> FsResult<Bytes> {
        assert_eq!(states.len() as u64, blocks.end - blocks.start, "each block to be verified has a state");
        let data = self.read_outside_tables(object, blocks.clone(), states).await?;
        for ((block, state), contents) in blocks.zip(states).zip(data.chunks_exact(BLOCK)) {
            if state.checksum() != Some(crc32c(contents)) {
                return Err(self.corrupt(object, block));
            }
        }
        Ok(data)
    }

    /// Bytes of such blocks, unverified.
    pub(super) async fn read_outside_tables(
        &self,
        object: ObjectId,
        blocks: Range<u64>,
        states: &[BlockState],
    ) -> FsResult<Bytes> {
        match states.first().and_then(BlockState::address) {
            Some(address) => self.read_device(address, states.len()).await,
            None => self.read_host_file(object, blocks).await,
        }
    }

    /// Bytes of the host file, unverified; beyond its end zeros.
    pub(super) async fn read_host_file(&self, object: ObjectId, blocks: Range<u64>) -> FsResult<Bytes> {
        let bytes = (blocks.end - blocks.start) as usize * BLOCK;
        let read = self.device.read(&host_file(object), blocks.start * BLOCK_BYTES, self.buffers.take(bytes)).await;
        let (mut data, filled) = read.map_err(|error| self.device_error("reading an object", &error))?;
        data.truncate(filled.min(bytes));
        data.resize(bytes, 0);
        Ok(self.buffers.share(data))
    }

    /// Fills `target`, a block of zeros, with what table INLINE has of a block, and compares it
    /// with its checksum.
    pub(super) fn fill_inline(
        &self,
        object: ObjectId,
        block: u64,
        (state, stored): (BlockState, &[u8]),
        target: &mut [u8],
    ) -> FsResult<()> {
        let target_part = target.get_mut(..stored.len()).ok_or_else(|| self.corrupt(object, block))?;
        target_part.copy_from_slice(stored);
        if state.checksum() == Some(crc32c(target)) { Ok(()) } else { Err(self.corrupt(object, block)) }
    }

    /// Reads everything, chunk by chunk, and compares checksums and counts, and on a device the
    /// bitmaps.
    pub(super) async fn verify_object(&self, object: ObjectId) -> FsResult<()> {
        let (loading, mut next) = (&mut Loading::default(), 0);
        while let Some((chunk, _)) = self.next_chunk(loading, object, next).await? {
            let blocks = chunk * CHUNK_BLOCKS..(chunk + 1) * CHUNK_BLOCKS;
            let look = |records: &Records<'_>| {
                let states = records.block_states(object, blocks.clone())?;
                let inline = records.inlines(object, blocks.start, &states)?;
                Ok((states, inline))
            };
            // Of its own, lest it grows to the size of the object.
            let contents = &mut Loading::default();
            let locked =
                self.lock_and_look((SERVICE, Access::Shared), (object, blocks.clone()), contents, look).await?;
            let (_guard, (states, inline)) = locked;
            self.load_blocks(object, blocks, &states, &inline).await?;
            next = chunk + 1;
        }
        self.verify_counts(object).await?;
        if !self.has_device() {
            return Ok(());
        }
        let (loading, whole) = (&mut Loading::default(), (object, 0..u64::MAX));
        let access = (SERVICE, Access::Shared);
        let _guard = self.lock_and_look(access, whole, loading, |records| records.object(object)).await?;
        match self.check_blocks(loading, object).await? {
            None => Ok(()),
            Some(problem) => Err(Damage::new(format!("free space of {}", self.target), problem).into()),
        }
    }

    /// The object's counts against its chunks.
    async fn verify_counts(&self, object: ObjectId) -> FsResult<()> {
        let (loading, whole) = (&mut Loading::default(), (object, 0..u64::MAX));
        let look = |records: &Records<'_>| records.object(object);
        let (_guard, record) = self.lock_and_look((SERVICE, Access::Shared), whole, loading, look).await?;
        let record = record.unwrap_or_default();
        let (mut counts, mut next) = (Counts::of(&record), 0);
        while let Some((chunk, states)) = self.next_chunk(loading, object, next).await? {
            counts.add(chunk, &states);
            next = chunk + 1;
        }
        let (counted, found) = ((record.blocks, record.inline_blocks), (counts.blocks, counts.inline));
        if found != counted {
            let target = self.target.clone();
            return Err(Damage::Blocks { object, target, part: "inline", counted, found }.into());
        }
        let (empty, counted) = (counts.reserved_empty(), record.reserved.empty());
        if empty == counted {
            return Ok(());
        }
        Err(Damage::ReservedBlocks { object, target: self.target.clone(), counted, found: empty }.into())
    }
}
