//! Truncating, allocating, punching, zeroing and destroying. All of them change records; the host
//! file is changed when the change is durable (`commit`).
//!
//! If there are more blocks to remove than fit into one batch, or one load, they are removed in
//! parts, from the front; the size and the object itself are changed last. A crash between the
//! parts leaves holes in an object whose truncation was never acknowledged.

use std::ops::Range;

use kv::Loading;
use rpc::message::ost::{Changed, ObjectAttributes, SpaceChange};
use types::{FsError, FsResult, ObjectId, Timestamp, limits::BLOCK_BYTES, limits::FILE_BYTES_MAX};

use super::{
    DirectoryStore, blocks_of, host_file,
    host_file_state::HostWork,
    records::{Access, Edge, Records},
    transaction::Applied,
    write::NewBlock,
};
use crate::{
    chunk_record::{BlockState, ChunkRecord},
    object_record::{ObjectOrigin, ObjectRecord},
    options::IN_PLACE_BYTES_MIN,
    replies::Origin,
    service_threads::{SERVICE, SERVICE_IO},
    tables::{BITMAPS, CHUNKS, part_key, piece_key},
};

/// Commits that a reservation waits for before it gives up on what others keep removing.
const KEEP_COMMITS_MAX: usize = 3;

/// Of a device, so much of a batch at a time is removed: 256 MiB, if they are in one piece. Freeing
/// them takes milliseconds.
const DEVICE_PART_BYTES: usize = 16 << 10;

/// Answer for an object that does not exist and is not made.
const UNCHANGED: Changed = Changed { before: MISSING, after: MISSING };
const MISSING: ObjectAttributes =
    ObjectAttributes { size: 0, blocks: 0, mtime: Timestamp { seconds: 0, nanoseconds: 0 }, changes: 0 };

/// The object whose space is changed, what the request says of its file, and the request.
#[derive(Clone, Copy, Debug)]
struct By {
    object: ObjectId,
    file: ObjectOrigin,
    origin: Option<Origin>,
}

/// What ends a removal.
#[derive(Clone, Copy, Debug)]
enum Finish {
    SetSize(u64),
    ExtendSize(u64),
    Destroy,
}

/// What is to be removed of an object.
struct Removal {
    blocks: Range<u64>,
    /// Blocks that stay, and become zeros in part.
    edges: Vec<NewBlock>,
    work: HostWork,
    finish: Finish,
}

impl Removal {
    /// All of it.
    fn of_object() -> Self {
        Self { blocks: 0..u64::MAX, edges: Vec::new(), work: HostWork::GiveBack, finish: Finish::Destroy }
    }
}

fn checked_end(offset: u64, bytes: u64) -> FsResult<u64> {
    if bytes == 0 {
        return Err(FsError::Invalid);
    }
    offset.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX).ok_or(FsError::FileTooLarge)
}

impl DirectoryStore {
    pub(super) async fn change_object(
        &self,
        object: ObjectId,
        change: SpaceChange,
        file: ObjectOrigin,
        origin: Option<Origin>,
    ) -> FsResult<Changed> {
        let by = By { object, file, origin };
        match change {
            SpaceChange::Truncate { size } => self.truncate(by, size).await,
            SpaceChange::Allocate { offset, bytes, extend } => self.allocate(by, offset, bytes, extend).await,
            SpaceChange::Punch { offset, bytes } => self.make_zeros(by, offset, bytes, HostWork::GiveBack, false).await,
            // What the host file has of the range stays reserved there; nothing more is reserved.
            SpaceChange::Zero { offset, bytes, extend } => {
                self.make_zeros(by, offset, bytes, HostWork::Keep, extend).await
            }
        }
    }

    async fn truncate(&self, by: By, size: u64) -> FsResult<Changed> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        let (object, loading) = (by.object, &mut Loading::default());
        let gone = size.div_ceil(BLOCK_BYTES)..u64::MAX;
        let look = |records: &Records<'_>| {
            let record = records.object(object)?;
            records.check_change(object, record.as_ref(), by.file.layout_generation)?;
            let Some(record) = record else { return Ok(None) };
            // Reserved space after the object's end goes with a truncation to the size it has, too,
            // as on ext4.
            let gives_back = size == record.size && !record.reserved.ends_before(gone.start);
            let removes = size < record.size || gives_back;
            let cut = size..u64::MAX;
            Ok(Some(if removes { Some(records.removal(object, &gone, std::slice::from_ref(&cut))?) } else { None }))
        };
        let tail = (object, size / BLOCK_BYTES..u64::MAX);
        let (guard, found) = self.lock_and_look((SERVICE_IO, Access::Exclusive), tail, loading, look).await?;
        let edges = match found {
            None if size == 0 => return Ok(UNCHANGED),
            None | Some(None) => return self.grow(loading, by, size).await,
            Some(Some(edges)) => self.zeroed(object, edges).await?,
        };
        let removal = Removal { blocks: gone, edges, work: HostWork::GiveBack, finish: Finish::SetSize(size) };
        let applied = self.remove(loading, object, removal, by.origin).await?;
        drop(guard);
        self.written(applied).await?;
        Ok(applied.changed())
    }

    /// Sets a size that is not smaller than the present one.
    async fn grow(&self, loading: &mut Loading, by: By, size: u64) -> FsResult<Changed> {
        let applied = self
            .update(loading, by.object, |transaction| {
                transaction.extend_size(size);
                transaction.change_by(by.file, self.seams.clock.wall());
                transaction.answer(by.origin, None);
                Ok(())
            })
            .await?;
        self.written(applied).await?;
        Ok(applied.changed())
    }

    /// Makes a range read as zeros.
    async fn make_zeros(&self, by: By, offset: u64, bytes: u64, work: HostWork, extend: bool) -> FsResult<Changed> {
        let (end, object) = (checked_end(offset, bytes)?, by.object);
        if work == HostWork::Keep {
            self.give_back_before(object, &blocks_of(offset, bytes)).await?;
        }
        let loading = &mut Loading::default();
        let look = |records: &Records<'_>| {
            let record = records.object(object)?;
            records.check_change(object, record.as_ref(), by.file.layout_generation)?;
            let Some(record) = record else { return Ok(None) };
            // What follows the object's end in its last block is zeros already: the whole block may
            // go.
            let last = if end >= record.size { end.div_ceil(BLOCK_BYTES) } else { end / BLOCK_BYTES };
            let gone = offset.div_ceil(BLOCK_BYTES)..last;
            let is_in_two = end < record.size && end / BLOCK_BYTES != offset / BLOCK_BYTES;
            let second = is_in_two.then_some(end / BLOCK_BYTES * BLOCK_BYTES..end);
            let ranges = std::iter::once(offset..end).chain(second);
            let kept = ranges.filter(|range| !gone.contains(&(range.start / BLOCK_BYTES)));
            let edges = records.removal(object, &gone, &kept.collect::<Vec<_>>())?;
            Ok(Some((gone, edges)))
        };
        let range = (object, blocks_of(offset, bytes));
        let (guard, found) = self.lock_and_look((SERVICE_IO, Access::Exclusive), range, loading, look).await?;
        let Some((gone, edges)) = found else {
            return if extend { self.grow(loading, by, end).await } else { Ok(UNCHANGED) };
        };
        let edges = self.zeroed(object, edges).await?;
        let finish = Finish::ExtendSize(if extend { end } else { 0 });
        let applied = self.remove(loading, object, Removal { blocks: gone, edges, work, finish }, by.origin).await?;
        drop(guard);
        self.written(applied).await?;
        Ok(applied.changed())
    }

    /// New contents of blocks that become zeros in part; none for those that are zeros there
    /// anyway.
    async fn zeroed(&self, object: ObjectId, edges: Vec<Edge>) -> FsResult<Vec<NewBlock>> {
        let mut blocks = Vec::with_capacity(edges.len());
        for Edge { block, bytes, state, stored } in edges {
            if state == BlockState::Absent {
                continue;
            }
            let mut contents = self.load_block(object, block, state, &stored).await?;
            if contents[bytes.clone()].iter().any(|byte| *byte != 0) {
                contents[bytes].fill(0);
                blocks.push(NewBlock::inline(block, contents));
            }
        }
        Ok(blocks)
    }

    /// Replaces the edges, makes the blocks absent, in parts if need be, and finishes.
    async fn remove(
        &self,
        loading: &mut Loading,
        object: ObjectId,
        removal: Removal,
        origin: Option<Origin>,
    ) -> FsResult<Applied> {
        let Removal { blocks, edges, work, finish } = removal;
        let mut next = Some(blocks.start);
        let mut outcome: Option<Applied> = None;
        let bytes_max = if self.has_device() { self.batch_bytes.min(DEVICE_PART_BYTES) } else { self.batch_bytes };
        while let Some(start) = next {
            loading.forget_before(CHUNKS, &part_key(object, ChunkRecord::of_block(start)));
            loading.forget_before(BITMAPS, &piece_key(u32::MAX, u8::MAX));
            let applied = self
                .update(loading, object, |transaction| {
                    transaction.use_reserve();
                    if start == blocks.start {
                        for edge in &edges {
                            transaction.put_inline(edge.block, edge.checksum, edge.data.clone())?;
                        }
                    }
                    next = transaction.remove(start..blocks.end, work, bytes_max)?;
                    transaction.change(self.seams.clock.wall());
                    if next.is_none() {
                        transaction.answer(origin, outcome.as_ref());
                    }
                    match finish {
                        _ if next.is_some() => {}
                        Finish::SetSize(size) => transaction.set_size(size),
                        Finish::ExtendSize(size) => transaction.extend_size(size),
                        Finish::Destroy => transaction.destroy(),
                    }
                    Ok(())
                })
                .await?;
            outcome = Some(outcome.map_or(applied, |earlier| earlier.and(applied)));
        }
        self.space.forget();
        Ok(outcome.expect("at least one part"))
    }

    /// Space of the range that is still to be given back must be gone before the range is reserved,
    /// or it would take the reservation with it: now, or after a power loss.
    async fn give_back_before(&self, object: ObjectId, blocks: &Range<u64>) -> FsResult<()> {
        for _ in 0..KEEP_COMMITS_MAX {
            if !self.volatile.lock().is_given_back(object, blocks) {
                break;
            }
            self.commit().await?;
        }
        Ok(())
    }

    /// Reserves space. Small ranges are not worth a host file: what is written there goes inline,
    /// into space that the target reserves as a whole, and that counts for no object.
    async fn allocate(&self, by: By, offset: u64, bytes: u64, extend: bool) -> FsResult<Changed> {
        let (end, object) = (checked_end(offset, bytes)?, by.object);
        let blocks = blocks_of(offset, bytes);
        if self.has_device() {
            return self.reserve_space_on_device(by, (offset, bytes), extend.then_some(end)).await;
        }
        let in_file = bytes >= IN_PLACE_BYTES_MIN;
        if in_file {
            self.give_back_before(object, &blocks).await?;
        }
        let _grant = self.reserve_or_write_back(bytes).await?;
        let loading = &mut Loading::default();
        let is_missing = |records: &Records<'_>| Ok(records.object(object)?.is_none());
        // An object that is made for this goes again if it fails, before any other request can make
        // use of it.
        let may_make = in_file && self.look(loading, is_missing).await?;
        let range = (object, if may_make { 0..u64::MAX } else { blocks.clone() });
        let look = |records: &Records<'_>| {
            records.check_change(object, records.object(object)?.as_ref(), by.file.layout_generation)
        };
        let (guard, ()) = self.lock_and_look((SERVICE_IO, Access::Exclusive), range, loading, look).await?;
        let mut noted = None;
        if in_file {
            let made = self
                .update(loading, object, |transaction| {
                    transaction.make(self.seams.clock.wall());
                    transaction.originate(by.file);
                    transaction.note_host_file();
                    Ok(())
                })
                .await?;
            noted = Some(made);
            if let Err(error) = self.device.allocate(&host_file(object), offset, bytes).await {
                if may_make && made.before == ObjectRecord::default() {
                    self.remove(loading, object, Removal::of_object(), None).await?;
                }
                return Err(self.device_error("reserving space", &error));
            }
        }
        let last = self
            .update(loading, object, |transaction| {
                if in_file {
                    transaction.reserve(&blocks)?;
                }
                if extend && transaction.record().size < end {
                    transaction.extend_size(end);
                    transaction.change_by(by.file, self.seams.clock.wall());
                }
                transaction.answer(by.origin, noted.as_ref());
                Ok(())
            })
            .await?;
        drop(guard);
        self.written(last).await?;
        Ok(noted.map_or(last, |earlier| earlier.and(last)).changed())
    }

    /// Reserves space on the device: a number of blocks, whichever these will be.
    async fn reserve_space_on_device(
        &self,
        by: By,
        (offset, bytes): (u64, u64),
        extend_to: Option<u64>,
    ) -> FsResult<Changed> {
        let (object, loading) = (by.object, &mut Loading::default());
        let (blocks, reserves) = (blocks_of(offset, bytes), bytes >= IN_PLACE_BYTES_MIN);
        let look = |records: &Records<'_>| {
            records.check_change(object, records.object(object)?.as_ref(), by.file.layout_generation)
        };
        let access = (SERVICE_IO, Access::Exclusive);
        let (guard, ()) = self.lock_and_look(access, (object, blocks.clone()), loading, look).await?;
        let applied = self
            .update(loading, object, |transaction| {
                if reserves {
                    transaction.make(self.seams.clock.wall());
                    transaction.originate(by.file);
                    transaction.reserve_on_device(&blocks)?;
                }
                if let Some(end) = extend_to.filter(|end| transaction.record().size < *end) {
                    transaction.extend_size(end);
                    transaction.change_by(by.file, self.seams.clock.wall());
                }
                transaction.answer(by.origin, None);
                Ok(())
            })
            .await?;
        drop(guard);
        self.written(applied).await?;
        Ok(applied.changed())
    }

    pub(super) async fn destroy_objects(&self, objects: &[ObjectId]) -> FsResult<()> {
        let mut destroyed = None;
        for &object in objects {
            let (loading, removal) = (&mut Loading::default(), Removal::of_object());
            let look = |records: &Records<'_>| {
                let record = records.object(object);
                // Together with the record.
                let edges = records.removal(object, &removal.blocks, &[]);
                Ok(record?.is_some() && edges?.is_empty())
            };
            let whole = (object, removal.blocks.clone());
            let (_guard, exists) = self.lock_and_look((SERVICE, Access::Exclusive), whole, loading, look).await?;
            if exists {
                destroyed = Some(self.remove(loading, object, removal, None).await?.lsn);
            }
        }
        // Also if nothing was left to destroy: an earlier, repeated request may have done it
        // without becoming durable.
        let lsn = destroyed.unwrap_or_else(|| self.volatile.lock().last_lsn);
        self.kv.durable(lsn).await.map_err(|error| self.kv_error(error))
    }
}

#[cfg(test)]
mod tests {
    use rt::Device;

    use super::*;
    use crate::{
        chunk_record::CHUNK_BLOCKS,
        directory::test_store::{OBJECT, TestStore, quiet},
    };

    const CHUNK_BYTES: usize = (CHUNK_BLOCKS * BLOCK_BYTES) as usize;

    /// Between the parts of a large removal a commit may run, or the host may lose power.
    #[tokio::test]
    async fn a_part_of_a_removal_gives_back_what_it_removed_and_no_more() {
        let test = TestStore::new(quiet()).await;
        let store = test.store();
        test.write(OBJECT, 0, vec![7; 3 * CHUNK_BYTES]).await;
        let remove = async |from: u64, destroy: bool| {
            let mut next = None;
            let change = |transaction: &mut super::super::Transaction<'_>| {
                next = transaction.remove(from..u64::MAX, HostWork::GiveBack, if destroy { usize::MAX } else { 1 })?;
                if destroy {
                    transaction.destroy();
                }
                Ok(())
            };
            store.update(&mut Loading::default(), OBJECT, change).await.unwrap();
            store.commit().await.unwrap();
            next
        };
        assert_eq!(remove(0, false).await, Some(CHUNK_BLOCKS));
        let read =
            rpc::message::ost::Read { object: OBJECT, offset: 0, bytes: 3 * CHUNK_BYTES as u32, layout_generation: 0 };
        let (_, left) = store.read_object(read).await.unwrap();
        assert!(left[..CHUNK_BYTES].iter().all(|byte| *byte == 0), "removed");
        assert!(left[CHUNK_BYTES..].iter().all(|byte| *byte == 7), "not yet removed");
        assert_eq!(remove(CHUNK_BLOCKS, true).await, None);
        assert_eq!(
            test.objects.list("objects/").await.unwrap(),
            Vec::<String>::new(),
            "the file goes with the last part"
        );
    }

    /// Else a power loss would bring the removal back, and with it take what was reserved since.
    #[tokio::test]
    async fn what_is_reserved_waits_for_what_is_given_back() {
        let test = TestStore::new(quiet()).await;
        let store = test.store();
        test.write(OBJECT, 0, vec![7; CHUNK_BYTES]).await;
        store.commit().await.unwrap();
        let bytes = CHUNK_BYTES as u64 / 2;
        let punch = SpaceChange::Punch { offset: 0, bytes };
        for keep in [
            SpaceChange::Zero { offset: 0, bytes, extend: false },
            SpaceChange::Allocate { offset: 0, bytes, extend: false },
        ] {
            store.change_object(OBJECT, punch, ObjectOrigin::default(), None).await.unwrap();
            assert!(!store.volatile.lock().pending.is_empty());
            store.change_object(OBJECT, keep, ObjectOrigin::default(), None).await.unwrap();
            assert!(store.volatile.lock().pending.is_empty(), "{keep:?}");
        }
    }
}
