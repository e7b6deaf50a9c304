//! Writing: new contents of each block, bytes to the host file, then the records.
//!
//! 1. Space where the tables are: for all data, or for their records if the data go to a device of
//!    the target (step 3 asks for the rest if they do not). Existing data may be overwritten in the
//!    reserve ([`super::overwrite`]). The block in which an object ends may be filled up from it:
//!    one block per object, so that data that continue elsewhere (see the layout) can start at a
//!    block's boundary.
//! 2. The range lock (a request that waits for it holds no service thread), and under it the fence
//!    and the records (without the lock, if they have to be loaded).
//! 3. Contents: blocks written in part are read, verified and merged.
//! 4. Blocks that may go in place are written to the host file; on a device, to new places.
//! 5. One change of the records (several for a large inline write).
//! 6. After the lock: wait until the journal has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::atomic::Ordering,
};

use bytes::Bytes;
use kv::Loading;
use rpc::{
    checksum::{crc32c, pieces},
    message::ost::{Changed, Write},
};
use types::{FsError, FsResult, ObjectId, limits::BLOCK_BYTES, limits::FILE_BYTES_MAX};

use super::{
    BLOCK, DirectoryStore, blocks_of,
    device::{InProgress, Unplaced},
    host_file,
    overwrite::{OVERWRITE_ATTEMPTS, WriteSpace, tables_bytes},
    records::{Access, Edge, Records},
    transaction::{Applied, Transaction, device::may_be_replaced},
};
use crate::{
    chunk_record::BlockState, object_record::ObjectOrigin, options::IN_PLACE_BYTES_MIN, replies::Origin,
    reserved::Reserved, service_threads::SERVICE_IO,
};

/// New contents of one block.
pub(super) struct NewBlock {
    pub block: u64,
    pub checksum: u32,
    /// Up to 4096 bytes; what is missing is zeros.
    pub data: Bytes,
    pub place: Place,
}

/// Where the bytes of a new block go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Into table INLINE.
    Inline,
    /// Into the host file.
    HostFile,
    /// To this block of the device.
    Device(u64),
}

/// `data` without the zeros at its end.
pub(super) fn without_zeros(data: Bytes) -> Bytes {
    let bytes = data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    data.slice(..bytes)
}

/// Bytes that are on their way to a host file, until their records are made. If that fails, or the
/// write is given up half way, the file may be one that no record knows: the next start looks for
/// such files.
struct BytesWithoutRecord<'a>(Option<&'a DirectoryStore>);

impl<'a> BytesWithoutRecord<'a> {
    fn of(store: &'a DirectoryStore, contents: &[NewBlock]) -> Self {
        Self(contents.iter().any(|new| new.place == Place::HostFile).then_some(store))
    }

    fn recorded(mut self) {
        self.0 = None;
    }
}

impl Drop for BytesWithoutRecord<'_> {
    fn drop(&mut self) {
        if let Some(store) = self.0 {
            store.has_unreferenced.store(true, Ordering::Release);
        }
    }
}

/// What a write finds under its lock.
struct Before {
    size: u64,
    /// Blocks that are reserved for the object.
    reserved: Reserved,
    /// Where the block before the first one is on the device.
    address_before: Option<u64>,
    /// Of the blocks it touches.
    states: Vec<BlockState>,
    /// The blocks it writes in part, in order.
    edges: Vec<Edge>,
}

impl Before {
    /// Whether these blocks are the one that the object ends in, with bytes of its in it.
    fn ends_in(&self, blocks: &Range<u64>) -> bool {
        let last = self.size / BLOCK_BYTES;
        !self.size.is_multiple_of(BLOCK_BYTES) && *blocks == (last..last + 1)
    }

    /// How many of these blocks take space that the object does not have yet.
    fn new_blocks(&self, blocks: &Range<u64>) -> u64 {
        let is_new = |(block, state): (u64, &BlockState)| *state == BlockState::Absent && !self.reserved.has(block);
        blocks.clone().zip(&self.states).filter(|item| is_new(*item)).count() as u64
    }
}

impl DirectoryStore {
    pub(super) async fn write_object(&self, write: &Write, data: Bytes, origin: Option<Origin>) -> FsResult<Changed> {
        let (object, offset, bytes) = (write.object, write.offset, data.len() as u64);
        assert!(bytes > 0, "the target answers empty writes");
        let end = offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX).ok_or(FsError::FileTooLarge)?;
        let blocks = blocks_of(offset, bytes);
        let loading = &mut Loading::default();
        let mut attempts = 1;
        // If they are not found, it is tried again with space for all data where the tables are.
        let mut expects_places = self.may_go_to_device(write, bytes);
        let applied = loop {
            let outcome = self.try_write(loading, write, &data, (end, &blocks), origin, expects_places).await;
            if expects_places && matches!(outcome, Err(FsError::NoSpace)) {
                expects_places = false;
                continue;
            }
            let is_refused = matches!(outcome, Err(FsError::NoSpace)) && attempts < OVERWRITE_ATTEMPTS;
            if !is_refused || !self.hold_data(loading, object, &blocks).await? {
                break outcome?;
            }
            attempts += 1;
            self.make_space_to_overwrite().await?;
        };
        self.written(applied).await?;
        if write.sync {
            self.sync_objects(&[object]).await?;
        }
        Ok(applied.changed())
    }

    /// Steps 1 to 5, with the end of the write and the blocks it touches.
    async fn try_write(
        &self,
        loading: &mut Loading,
        write: &Write,
        data: &Bytes,
        (end, blocks): (u64, &Range<u64>),
        origin: Option<Origin>,
        expects_places: bool,
    ) -> FsResult<Applied> {
        let object = write.object;
        let space = self.space_for(loading, object, blocks, tables_bytes(blocks, expects_places)).await?;
        let look = |records: &Records<'_>| {
            let record = records.object_with(object, blocks)?;
            records.check_change(object, record.as_ref(), write.layout_generation)?;
            let (address_before, states) = self.states_with_address_before(records, object, blocks)?;
            let edges = records.written_in_part(object, write.offset, data.len() as u64)?;
            let record = record.unwrap_or_default();
            Ok(Before { size: record.size, reserved: record.reserved, address_before, states, edges })
        };
        let access = (SERVICE_IO, Access::Exclusive);
        let (_guard, before) = self.lock_and_look(access, (object, blocks.clone()), loading, look).await?;
        let use_reserve = match space {
            WriteSpace::Granted(_) => false,
            WriteSpace::ToOverwrite(..) if before.states.iter().all(|state| *state != BlockState::Absent) => false,
            WriteSpace::ToOverwrite(..) | WriteSpace::None if before.ends_in(blocks) => true,
            WriteSpace::ToOverwrite(..) | WriteSpace::None => return Err(FsError::NoSpace),
        };
        let _promise = self.promise(if use_reserve { 0 } else { before.new_blocks(blocks) })?;
        let mut in_progress = InProgress::new(self);
        let freed: Vec<u64> = before.states.iter().filter_map(BlockState::address).collect();
        let places = self.place_on_device(loading, write, (data, end), &before, &mut in_progress).await?;
        let contents = self.new_contents(write, data, before, &places).await?;
        let inline = contents.iter().filter(|new| expects_places && new.place == Place::Inline).count();
        let _more = self.reserve_inline(inline).await?;
        let bytes_without_record = BytesWithoutRecord::of(self, &contents);
        self.write_in_place(loading, object, write.offset, data, &contents).await?;
        self.write_contents_to_device(&mut in_progress, write.offset, data, &contents).await?;
        in_progress.end_writes();
        let by = (ObjectOrigin { layout_generation: write.layout_generation, owner: write.owner }, origin);
        if !freed.is_empty() {
            // Here no request waits for them.
            self.load_groups(freed.into_iter()).await?;
        }
        let space = (use_reserve, expects_places);
        let recorded = self.record_write(loading, (object, end), contents, space, by, &mut in_progress).await?;
        bytes_without_record.recorded();
        Ok(recorded)
    }

    /// Whether whole blocks of a write may go to the device at once: those of a large write, and of
    /// a short one those that are there already. A short write that is to be durable goes inline:
    /// that takes one flush, of the journal, and not a second one of the device. So do those to
    /// objects that are synced again and again.
    fn may_go_to_device(&self, write: &Write, bytes: u64) -> bool {
        let overwrites = || !write.sync && bytes >= self.options.lock().overwrite_bytes_min;
        self.has_device() && (bytes >= IN_PLACE_BYTES_MIN || overwrites())
    }

    /// States of blocks, and where the block before them is on the device; mostly of one record,
    /// which is decoded once.
    pub(super) fn states_with_address_before(
        &self,
        records: &Records<'_>,
        object: ObjectId,
        blocks: &Range<u64>,
    ) -> FsResult<(Option<u64>, Vec<BlockState>)> {
        let has_before = self.has_device() && blocks.start > 0;
        let from = blocks.start - u64::from(has_before);
        let mut states = records.block_states(object, from..blocks.end)?;
        let before = if has_before { states.remove(0).address() } else { None };
        Ok((before, states))
    }

    /// Places on the device for the blocks that are to get new ones, by their numbers; none if it
    /// is full.
    async fn place_on_device(
        &self,
        loading: &mut Loading,
        write: &Write,
        (data, end): (&Bytes, u64),
        before: &Before,
        in_progress: &mut InProgress,
    ) -> FsResult<BTreeMap<u64, u64>> {
        let mut places = BTreeMap::new();
        if !self.may_go_to_device(write, data.len() as u64) {
            return Ok(places);
        }
        let is_large = data.len() as u64 >= IN_PLACE_BYTES_MIN;
        let blocks = blocks_of(write.offset, data.len() as u64);
        let first = blocks.start;
        let may_be_replaced = {
            let volatile = self.volatile.lock();
            // The next sync would have to flush the device, too.
            if !is_large && volatile.is_synced(write.object) {
                return Ok(places);
            }
            let (flushed, present) = (volatile.flushed_epoch(write.object), volatile.epoch);
            move |state: &BlockState| {
                (is_large || state.address().is_some()) && may_be_replaced(state, flushed, present)
            }
        };
        let wanted: Vec<u64> = blocks
            .zip(&before.states)
            .zip(pieces(write.offset, data.len()))
            .filter_map(|((block, state), piece)| (piece.len() == BLOCK && may_be_replaced(state)).then_some(block))
            .collect();
        if !is_large && !wanted.is_empty() {
            if let Some(taken) = self.take_of_area(loading, wanted.len() as u64).await? {
                places.extend(wanted.into_iter().zip(taken.blocks.clone()));
                in_progress.take(taken);
            }
            return Ok(places);
        }
        for run in wanted.chunk_by(|a, b| a + 1 == *b) {
            let index = (run[0] - first) as usize;
            let old = index.checked_sub(1).map(|index| before.states[index].address());
            let new = run[0].checked_sub(1).and_then(|block| places.get(&block).copied());
            let unplaced = Unplaced {
                object: write.object,
                blocks: run[0]..run[0] + run.len() as u64,
                size: before.size.max(end),
                after: new.or(old.unwrap_or(before.address_before)),
            };
            match self.allocate_on_device(loading, &unplaced, in_progress).await {
                Ok(addresses) => places.extend(run.iter().copied().zip(addresses)),
                // Retired blocks become free with the next commit.
                Err(FsError::NoSpace) => self.wanted.notify_one(),
                Err(error) => return Err(error),
            }
        }
        Ok(places)
    }

    /// Contents and place of every block the write touches.
    async fn new_contents(
        &self,
        write: &Write,
        data: &Bytes,
        before: Before,
        places: &BTreeMap<u64, u64>,
    ) -> FsResult<Vec<NewBlock>> {
        let (object, blocks) = (write.object, blocks_of(write.offset, data.len() as u64));
        let Before { states, edges, .. } = before;
        assert_eq!(states.len() as u64, blocks.end - blocks.start, "each block that is written has a state");
        assert_eq!(states.len(), write.checksums.len(), "the target has compared a checksum for each block");
        let large = data.len() as u64 >= IN_PLACE_BYTES_MIN;
        let taints = if large { self.volatile.lock().taints.get(&object).cloned() } else { None };
        let tainted = |block: u64| taints.as_ref().is_some_and(|taints| taints.contains_key(&block));
        let mut contents = Vec::with_capacity(states.len());
        let mut edges = edges.into_iter();
        let mut waits_for_commit = false;
        for (((block, state), piece), &sum) in
            blocks.zip(states).zip(pieces(write.offset, data.len())).zip(&write.checksums)
        {
            if piece.len() == BLOCK {
                let free = large && state == BlockState::Absent && !self.has_device();
                let place = match places.get(&block) {
                    Some(address) => Place::Device(*address),
                    None if free && !tainted(block) => Place::HostFile,
                    None => Place::Inline,
                };
                waits_for_commit |= free && place == Place::Inline;
                let is_inline = place == Place::Inline;
                let data = if is_inline { without_zeros(data.slice(piece)) } else { data.slice(piece) };
                contents.push(NewBlock { block, checksum: sum, data, place });
            } else {
                let edge = edges.next().expect("an edge for each block that is written in part");
                let mut merged = self.load_block(object, block, state, &edge.stored).await?;
                merged[edge.bytes].copy_from_slice(&data[piece]);
                contents.push(NewBlock::inline(block, merged));
            }
        }
        assert!(edges.next().is_none(), "only blocks that are written in part have edges");
        if waits_for_commit {
            self.wanted.notify_one();
        }
        Ok(contents)
    }

    /// Writes what goes to the host file, one write per run of blocks. If that fails, the space of
    /// what was written is given back: no record will name it.
    async fn write_in_place(
        &self,
        loading: &mut Loading,
        object: ObjectId,
        offset: u64,
        data: &Bytes,
        contents: &[NewBlock],
    ) -> FsResult<()> {
        let in_file = |new: &NewBlock| new.place == Place::HostFile;
        let runs = || contents.chunk_by(|a, b| in_file(a) == in_file(b)).filter(|run| in_file(&run[0]));
        for (number, run) in runs().enumerate() {
            let start = run[0].block * BLOCK_BYTES;
            assert!(start >= offset, "only whole blocks of a write go in place");
            let within = (start - offset) as usize;
            let piece = data.slice(within..within + run.len() * BLOCK);
            let written = self.device.write(&host_file(object), start, vec![piece]).await;
            let Err(error) = written else { continue };
            for run in runs().take(number + 1) {
                let (start, bytes) = (run[0].block * BLOCK_BYTES, run.len() as u64 * BLOCK_BYTES);
                if let Err(error) = self.device.punch(&host_file(object), start, bytes).await {
                    tracing::warn!(target = %self.target, %object, %error, "cannot free space");
                    continue;
                }
                let blocks = blocks_of(start, bytes);
                self.update(loading, object, |transaction| {
                    transaction.use_reserve();
                    transaction.no_longer_reserved(&blocks)
                })
                .await?;
            }
            return Err(self.device_error("writing an object", &error));
        }
        Ok(())
    }

    /// Writes what goes to the device, one write for each run of its blocks.
    async fn write_contents_to_device(
        &self,
        in_progress: &mut InProgress,
        offset: u64,
        data: &Bytes,
        contents: &[NewBlock],
    ) -> FsResult<()> {
        let follows = |a: &NewBlock, b: &NewBlock| a.place.address().is_some_and(|at| b.place == Place::Device(at + 1));
        for run in contents.chunk_by(follows) {
            let Some(address) = run[0].place.address() else { continue };
            let within = (run[0].block * BLOCK_BYTES - offset) as usize;
            let piece = data.slice(within..within + run.len() * BLOCK);
            self.write_to_device(in_progress, address, vec![piece]).await?;
        }
        Ok(())
    }

    /// Records the new blocks: all at once, or in parts if there is more inline than one batch
    /// takes.
    async fn record_write(
        &self,
        loading: &mut Loading,
        (object, end): (ObjectId, u64),
        mut contents: Vec<NewBlock>,
        (use_reserve, expects_places): (bool, bool),
        (file, origin): (ObjectOrigin, Option<Origin>),
        in_progress: &mut InProgress,
    ) -> FsResult<Applied> {
        let mut outcome: Option<Applied> = None;
        let mut in_place = contents.iter().filter(|new| new.place != Place::Inline).map(|new| new.block);
        let in_place = in_place.next().map(|first| first..in_place.next_back().unwrap_or(first) + 1);
        let (mut at, mut grants) = (0, Vec::new());
        while at < contents.len() {
            let part = &contents[at..at + self.part_length(&contents[at..])];
            let part_end = part.last().map_or(0, |last| (last.block + 1) * BLOCK_BYTES);
            let (begun, is_last) = (outcome.is_some(), at + part.len() == contents.len());
            let mut being_flushed = BTreeSet::new();
            let applied = self
                .update(loading, object, |transaction| {
                    if begun || use_reserve {
                        transaction.use_reserve();
                    }
                    transaction.need(part.iter().map(|new| new.block))?;
                    being_flushed = Self::being_flushed(transaction, part)?;
                    if !being_flushed.is_empty() {
                        return Ok(());
                    }
                    for new in part {
                        match new.place {
                            Place::Inline => transaction.put_inline(new.block, new.checksum, new.data.clone())?,
                            Place::HostFile => transaction.put_in_place(new.block, new.checksum)?,
                            Place::Device(address) => transaction.put_on_device(new.block, new.checksum, address)?,
                        }
                    }
                    transaction.extend_size(end.min(part_end));
                    transaction.change_by(file, self.seams.clock.wall());
                    if is_last {
                        transaction.answer_write(origin, outcome.as_ref(), in_place.clone());
                    }
                    Ok(())
                })
                .await
                .map_err(|error| if begun { self.torn(error) } else { error })?;
            if !being_flushed.is_empty() {
                if expects_places {
                    let more = self.reserve(being_flushed.len() as u64 * BLOCK_BYTES).await;
                    grants.push(more.map_err(|error| if begun { self.torn(error) } else { error })?);
                }
                let changed = contents.iter_mut().filter(|new| being_flushed.contains(&new.block));
                changed.for_each(NewBlock::make_inline);
                continue;
            }
            in_progress.recorded(part.iter().filter_map(|new| new.place.address()));
            at += part.len();
            outcome = Some(outcome.map_or(applied, |earlier| earlier.and(applied)));
        }
        self.want_write_back();
        Ok(outcome.expect("a write touches at least one block"))
    }

    /// Those of these blocks that cannot go to the device after all: since they got places there,
    /// a flush of what they replace has begun.
    fn being_flushed(transaction: &mut Transaction<'_>, part: &[NewBlock]) -> FsResult<BTreeSet<u64>> {
        let mut blocks = BTreeSet::new();
        for new in part.iter().filter(|new| new.place.address().is_some()) {
            if !transaction.may_be_replaced(new.block)? {
                blocks.insert(new.block);
            }
        }
        Ok(blocks)
    }

    /// The error of a write of which a part was done: `NoSpace` would say that nothing was.
    fn torn(&self, error: FsError) -> FsError {
        match error {
            FsError::NoSpace => FsError::Device {
                target: self.target.clone(),
                detail: "there was space for only a part of a write".to_owned(),
            },
            error => error,
        }
    }

    /// How many of these blocks one batch takes; at least one.
    fn part_length(&self, contents: &[NewBlock]) -> usize {
        let mut bytes = 0;
        let fits = contents.iter().take_while(|new| {
            bytes += if new.place == Place::Inline { new.data.len() + 64 } else { 8 };
            bytes <= self.batch_bytes
        });
        fits.count().max(1)
    }
}

impl Place {
    /// The block of the device.
    fn address(self) -> Option<u64> {
        match self {
            Place::Device(address) => Some(address),
            Place::Inline | Place::HostFile => None,
        }
    }
}

impl NewBlock {
    /// Its bytes go into the table after all.
    fn make_inline(&mut self) {
        self.place = Place::Inline;
        self.data = without_zeros(std::mem::take(&mut self.data));
    }

    /// A block whose bytes go into the table.
    pub fn inline(block: u64, contents: Vec<u8>) -> Self {
        assert_eq!(contents.len(), BLOCK, "the checksum of a block is that of all its bytes");
        let checksum = crc32c(&contents);
        Self { block, checksum, data: without_zeros(contents.into()), place: Place::Inline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        directory::test_store::{TestStore, quiet},
        store::ObjectStore,
        superblock::CLEAN_KEY,
        tables::META,
    };

    /// The sweep may have gone by already: then only the next one finds the file.
    #[tokio::test]
    async fn a_write_that_fails_while_the_sweep_is_under_way_is_not_forgotten_at_its_end() {
        for has_unreferenced in [true, false] {
            let test = TestStore::new(quiet()).await;
            let store = test.store();
            let bytes = BytesWithoutRecord(Some(store));
            if has_unreferenced {
                drop(bytes);
            } else {
                bytes.recorded();
            }
            store.swept.store(true, Ordering::Release);
            store.stop().await.unwrap();
            assert_eq!(store.kv.get(META, CLEAN_KEY).unwrap().is_none(), has_unreferenced);
        }
    }
}
