//! Truncating, allocating, punching, zeroing and destroying. All of them change records; the host file follows when the
//! change is durable (`commit`).
//!
//! Removing more blocks than one batch takes happens in parts, from the front; the size and the object itself go last. A
//! crash between the parts leaves holes in an object whose truncation was never acknowledged.

use std::ops::Range;

use rpc::message::ost::{Changed, ObjectAttributes, SpaceChange};
use types::{FsError, FsResult, ObjectId, Timestamp, limits::BLOCK_BYTES, limits::FILE_BYTES_MAX};

use super::{DirectoryStore, blocks_of, host_file, host_file_state::HostWork, transaction::Applied, write::NewBlock};
use crate::{chunk_record::BlockState, object_record::ObjectRecord, options::IN_PLACE_BYTES_MIN, replies::Origin};

/// Commits that a reservation waits for before it gives up on what others keep removing.
const KEEP_COMMITS_MAX: usize = 3;

/// Answer for an object that does not exist and is not made.
const UNCHANGED: Changed = Changed { before: MISSING, after: MISSING };
const MISSING: ObjectAttributes =
    ObjectAttributes { size: 0, blocks: 0, mtime: Timestamp { seconds: 0, nanoseconds: 0 }, changes: 0 };

/// Whose space is changed, by what layout, and for whom.
#[derive(Clone, Copy, Debug)]
struct By {
    object: ObjectId,
    layout_generation: u64,
    origin: Option<Origin>,
}

/// What ends a removal.
#[derive(Clone, Copy, Debug)]
enum Finish {
    SetSize(u64),
    ExtendSize(u64),
    Destroy,
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
        layout_generation: u64,
        origin: Option<Origin>,
    ) -> FsResult<Changed> {
        let by = By { object, layout_generation, origin };
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
        let object = by.object;
        let guard = self.locks.exclusive(object, size / BLOCK_BYTES..u64::MAX).await;
        self.check_fence(object, by.layout_generation)?;
        let Some(record) = self.load_object(object)? else {
            return if size == 0 { Ok(UNCHANGED) } else { self.grow(by, size).await };
        };
        // Reserved space behind the object's end goes with a truncation to the size it has, too, as on ext4.
        let gives_back = size == record.size && !record.reserved.ends_before(size.div_ceil(BLOCK_BYTES));
        let applied = if size < record.size || gives_back {
            let edge = self.zeroed_edge(object, size..u64::MAX).await?;
            let gone = size.div_ceil(BLOCK_BYTES)..u64::MAX;
            self.remove(object, gone, edge, HostWork::GiveBack, Finish::SetSize(size), by.origin).await?
        } else {
            return self.grow(by, size).await;
        };
        drop(guard);
        self.written(applied).await?;
        Ok(applied.changed())
    }

    /// Sets a size that is not smaller than the present one.
    async fn grow(&self, by: By, size: u64) -> FsResult<Changed> {
        let now = self.seams.clock.wall();
        let applied = self
            .update(by.object, |transaction| {
                transaction.extend_size(size);
                transaction.change(now);
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
        let guard = self.locks.exclusive(object, blocks_of(offset, bytes)).await;
        self.check_fence(object, by.layout_generation)?;
        let finish = Finish::ExtendSize(if extend { end } else { 0 });
        let Some(record) = self.load_object(object)? else {
            return if extend { self.grow(by, end).await } else { Ok(UNCHANGED) };
        };
        let mut edges = self.zeroed_edge(object, offset..end).await?;
        // What lies behind the object's end in its last block is zeros already: the whole block may go.
        let last = if end >= record.size { end.div_ceil(BLOCK_BYTES) } else { end / BLOCK_BYTES };
        let gone = offset.div_ceil(BLOCK_BYTES)..last;
        if end < record.size && end / BLOCK_BYTES != offset / BLOCK_BYTES {
            edges.extend(self.zeroed_edge(object, end / BLOCK_BYTES * BLOCK_BYTES..end).await?);
        }
        edges.retain(|edge| !gone.contains(&edge.block));
        let applied = self.remove(object, gone, edges, work, finish, by.origin).await?;
        drop(guard);
        self.written(applied).await?;
        Ok(applied.changed())
    }

    /// The block in which `range` begins, with its part of the range zeroed; nothing if the range begins or covers it
    /// whole, or if it is zeros anyway.
    async fn zeroed_edge(&self, object: ObjectId, range: Range<u64>) -> FsResult<Vec<NewBlock>> {
        let block = range.start / BLOCK_BYTES;
        let start = (range.start % BLOCK_BYTES) as usize;
        let end = (range.end - block * BLOCK_BYTES).min(BLOCK_BYTES) as usize;
        if (start == 0 && end as u64 == BLOCK_BYTES) || start == end {
            return Ok(Vec::new());
        }
        let state = self.block_states(object, block..block + 1)?[0];
        if state == BlockState::Absent {
            return Ok(Vec::new());
        }
        let mut contents = self.load_block(object, block, state).await?;
        if contents[start..end].iter().all(|byte| *byte == 0) {
            return Ok(Vec::new());
        }
        contents[start..end].fill(0);
        Ok(vec![NewBlock::inline(block, contents)])
    }

    /// Replaces `edges`, makes the blocks absent, in parts if need be, and finishes.
    async fn remove(
        &self,
        object: ObjectId,
        blocks: Range<u64>,
        edges: Vec<NewBlock>,
        work: HostWork,
        finish: Finish,
        origin: Option<Origin>,
    ) -> FsResult<Applied> {
        let now = self.seams.clock.wall();
        let mut next = Some(blocks.start);
        let mut outcome: Option<Applied> = None;
        while let Some(start) = next {
            let applied = self
                .update(object, |transaction| {
                    transaction.use_reserve();
                    if start == blocks.start {
                        for edge in &edges {
                            transaction.put_inline(edge.block, edge.checksum, edge.data.clone())?;
                        }
                    }
                    next = transaction.remove(start..blocks.end, work, self.batch_bytes)?;
                    transaction.change(now);
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

    /// Space of the range that is still to be given back must be gone before the range is reserved, or it would take the
    /// reservation with it: now, or after a loss of power.
    async fn give_back_before(&self, object: ObjectId, blocks: &Range<u64>) -> FsResult<()> {
        for _ in 0..KEEP_COMMITS_MAX {
            if !self.volatile.lock().is_given_back(object, blocks) {
                break;
            }
            self.commit().await?;
        }
        Ok(())
    }

    /// Reserves space. Small ranges are not worth a host file: what is written there goes inline, into space that the
    /// target reserves as a whole, and that counts as nobody's.
    async fn allocate(&self, by: By, offset: u64, bytes: u64, extend: bool) -> FsResult<Changed> {
        let (end, object) = (checked_end(offset, bytes)?, by.object);
        let blocks = blocks_of(offset, bytes);
        let in_file = bytes >= IN_PLACE_BYTES_MIN;
        if in_file {
            self.give_back_before(object, &blocks).await?;
        }
        let _grant = self.reserve_or_write_back(bytes).await?;
        // An object that is made for this goes again if it fails, before anybody else can make use of it.
        let may_make = in_file && self.load_object(object)?.is_none();
        let guard = self.locks.exclusive(object, if may_make { 0..u64::MAX } else { blocks.clone() }).await;
        self.check_fence(object, by.layout_generation)?;
        let now = self.seams.clock.wall();
        let mut noted = None;
        if in_file {
            let made = self
                .update(object, |transaction| {
                    transaction.make(now);
                    transaction.note_host_file();
                    Ok(())
                })
                .await?;
            noted = Some(made);
            if let Err(error) = self.device.allocate(&host_file(object), offset, bytes).await {
                if may_make && made.before == ObjectRecord::default() {
                    self.remove(object, 0..u64::MAX, Vec::new(), HostWork::GiveBack, Finish::Destroy, None).await?;
                }
                return Err(self.device_error("reserving space", &error));
            }
        }
        let last = self
            .update(object, |transaction| {
                if in_file {
                    transaction.reserve(&blocks)?;
                }
                if extend && transaction.record().size < end {
                    transaction.extend_size(end);
                    transaction.change(now);
                }
                transaction.answer(by.origin, noted.as_ref());
                Ok(())
            })
            .await?;
        drop(guard);
        self.written(last).await?;
        Ok(noted.map_or(last, |earlier| earlier.and(last)).changed())
    }

    pub(super) async fn destroy_objects(&self, objects: &[ObjectId]) -> FsResult<()> {
        let mut destroyed = None;
        for &object in objects {
            let _guard = self.locks.exclusive(object, 0..u64::MAX).await;
            if self.load_object(object)?.is_some() {
                let removed =
                    self.remove(object, 0..u64::MAX, Vec::new(), HostWork::GiveBack, Finish::Destroy, None).await?;
                destroyed = Some(removed.lsn);
            }
        }
        // Also if nothing was left to destroy: an earlier, repeated request may have done it without becoming durable.
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
            store.update(OBJECT, change).await.unwrap();
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

    /// Else a loss of power would bring the removal back, and with it take what was reserved since.
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
            store.change_object(OBJECT, punch, 0, None).await.unwrap();
            assert!(!store.volatile.lock().pending.is_empty());
            store.change_object(OBJECT, keep, 0, None).await.unwrap();
            assert!(store.volatile.lock().pending.is_empty(), "{keep:?}");
        }
    }
}
