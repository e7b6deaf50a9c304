//! Overwriting on a full device.
//!
//! Overwritten data have their place in a host file, or in the table. New contents go to the
//! journal and the table first, so that a power loss tears nothing, and are then written back to
//! the place of the old ones. So overwriting needs space only temporarily, and where new data are
//! refused, it continues in the reserve: down to what the tables keep for themselves
//! ([`kv::Store::device_reserve`]), one write after the other, with little data waiting for
//! write-back. When even that is used up, everything is written back and the table's changes go to
//! the cold store, which frees the space; then the write is tried again.
//!
//! New data, too, are refused only after all waiting data were written back: until then these count
//! as used, and so does the space that a checkpoint of them may take.
//!
//! A write is an overwrite if all blocks that it touches hold data. A write that also touches other
//! blocks is refused, and their data go elsewhere (`client::leave_out`).
//!
//! Downside: this requires a device that overwrites in place. On a host file system that never
//! writes in place (btrfs), or if another program fills the device beyond the reserve, overwriting
//! is refused. It is also slow: every few megabytes wait for flushes.

use std::ops::Range;

use kv::Loading;
use tokio::sync::MutexGuard;
use types::{FsError, FsResult, ObjectId, limits::BLOCK_BYTES};

use super::{DirectoryStore, space::Grant};
use crate::service_threads::SERVICE_IO;

/// How often a write is tried.
pub(super) const OVERWRITE_ATTEMPTS: usize = 4;
/// Inline bytes that may wait for write-back while the reserve is used.
const BACKLOG_BYTES_MAX: u64 = 8 << 20;
/// So much must wait for write-back that it is done before new data are refused: a full device that
/// is written to all the time must not flush for every refusal.
const FREED_BYTES_MIN: u64 = 1 << 20;
/// What a checkpoint takes for each byte of changed contents.
const CHECKPOINT_FACTOR: u64 = 2;

/// What a write may use.
pub(super) enum WriteSpace<'a> {
    /// As any other.
    Granted(#[expect(dead_code, reason = "held until the write is done")] Grant<'a>),
    /// The reserve, if all its blocks hold data when it has their lock.
    ToOverwrite(
        #[expect(dead_code, reason = "held until the write is done")] Grant<'a>,
        #[expect(dead_code, reason = "held until the write is done")] MutexGuard<'a, ()>,
    ),
    /// None.
    None,
}

/// What the records of a block on the device may take in the tables: its place and its checksum,
/// with a former place, and its part of a bitmap.
const RECORD_BYTES: u64 = 64;
/// Blocks of a write that are written in part, at most: they go inline.
const EDGES_MAX: u64 = 2;

/// Bytes that a write of these blocks takes where the tables are. `expects_places`: whole blocks go
/// to the device.
pub(super) fn tables_bytes(blocks: &Range<u64>, expects_places: bool) -> u64 {
    let count = blocks.end - blocks.start;
    let inline = count * BLOCK_BYTES;
    if expects_places { inline.min(count * RECORD_BYTES + EDGES_MAX * BLOCK_BYTES) } else { inline }
}

impl DirectoryStore {
    /// Space for a write of these blocks that takes so many bytes where the tables are.
    pub(super) async fn space_for(
        &self,
        loading: &mut Loading,
        object: ObjectId,
        blocks: &Range<u64>,
        bytes: u64,
    ) -> FsResult<WriteSpace<'_>> {
        match self.reserve(bytes).await {
            Ok(grant) => return Ok(WriteSpace::Granted(grant)),
            Err(FsError::NoSpace) => {}
            Err(error) => return Err(error),
        }
        if !self.hold_data(loading, object, blocks).await? {
            return match self.reserve_or_write_back(bytes).await {
                Ok(grant) => Ok(WriteSpace::Granted(grant)),
                Err(FsError::NoSpace) => Ok(WriteSpace::None),
                Err(error) => Err(error),
            };
        }
        let turn = self.turn().await;
        if self.write_back_bytes() > BACKLOG_BYTES_MAX {
            return Ok(WriteSpace::None);
        }
        match self.reserve_above(self.kv.device_reserve(), bytes * CHECKPOINT_FACTOR).await {
            Ok(grant) => Ok(WriteSpace::ToOverwrite(grant, turn)),
            Err(FsError::NoSpace) => Ok(WriteSpace::None),
            Err(error) => Err(error),
        }
    }

    /// Space for blocks that go inline, of a write that reserved little because it expected places
    /// on the device for them. `NoSpace` if that would need more than a look: the write is then to
    /// be tried again with space for all of it.
    pub(super) async fn reserve_inline(&self, inline_blocks: usize) -> FsResult<Option<Grant<'_>>> {
        match (inline_blocks as u64).saturating_sub(EDGES_MAX) {
            0 => Ok(None),
            more => Ok(Some(self.reserve(more * BLOCK_BYTES).await?)),
        }
    }

    /// Whether all these blocks hold data.
    pub(super) async fn hold_data(
        &self,
        loading: &mut Loading,
        object: ObjectId,
        blocks: &Range<u64>,
    ) -> FsResult<bool> {
        self.look(loading, |records| records.hold_data(object, blocks)).await
    }

    /// Space for `bytes` more, if need be after writing back what waits. `NoSpace` if there is none
    /// then either.
    pub(super) async fn reserve_or_write_back(&self, bytes: u64) -> FsResult<Grant<'_>> {
        match self.reserve(bytes).await {
            Err(FsError::NoSpace) if self.write_back_frees_space() => {}
            outcome => return outcome,
        }
        let turn = self.turn().await;
        // Otherwise another write did it meanwhile.
        if self.write_back_frees_space() {
            self.make_space().await?;
        }
        drop(turn);
        self.reserve(bytes).await
    }

    /// Whether what waits for write-back is worth it.
    fn write_back_frees_space(&self) -> bool {
        self.write_back_bytes() >= FREED_BYTES_MIN
    }

    /// Gives back what overwriting took. Without success where there is no space for that either:
    /// then the next attempt is refused.
    pub(super) async fn make_space_to_overwrite(&self) -> FsResult<()> {
        let _turn = self.turn().await;
        self.make_space().await
    }

    /// Waits for the turn, without a service thread: the one that has it may wait for range locks
    /// and flushes.
    async fn turn(&self) -> MutexGuard<'_, ()> {
        self.overwriting.take(|| self.service_threads.park(SERVICE_IO)).await
    }

    /// Writes everything back, and the table's changes to their place. The caller has the turn.
    async fn make_space(&self) -> FsResult<()> {
        match self.write_back_all().await {
            Ok(()) | Err(FsError::NoSpace) => {}
            Err(error) => return Err(error),
        }
        match self.kv.checkpoint().await {
            Ok(_) | Err(kv::Error::NoSpace) => {}
            Err(error) => return Err(self.kv_error(error)),
        }
        self.space.forget();
        Ok(())
    }
}
