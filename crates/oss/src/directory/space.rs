//! Space on the device: a write is refused before any part of it is written if the space that it
//! and all other writes in progress need would reduce the reserve for the journal, the tables and
//! deletions.
//!
//! Asking the device costs a system call, so its answer is used for a while: until it is old, or a
//! good part of the reported space was granted. Downside: space taken by other programs on the same
//! device is noticed late, which the reserve absorbs.

use std::time::Duration;

use parking_lot::Mutex;
use rt::Instant;
use types::{FsError, FsResult, SpaceUsage, limits::BLOCK_BYTES};

use super::DirectoryStore;
use crate::superblock::Engine;

/// Age at which the device is asked again.
const ANSWER_AGE_MAX: Duration = Duration::from_millis(500);
/// Objects a target may hold where the device does not say: keys are 96 bits, so this is for statfs
/// only.
const OBJECTS_MAX: u64 = 1 << 40;

/// Of the part of a device that has the tables, not more than this is kept free.
const RESERVE_SHARE: u64 = 8;

#[derive(Debug, Default)]
struct State {
    /// Free bytes by the last answer, `None` before the first.
    available: Option<u64>,
    answered: Instant,
    /// Granted since that answer.
    granted: u64,
    /// Bytes of grants that are not written yet.
    in_flight: u64,
}

/// Bookkeeping of free space.
#[derive(Debug, Default)]
pub(super) struct SpaceGuard {
    state: Mutex<State>,
}

/// Space for some bytes until dropped; by then they are written, and the device knows.
#[derive(Debug)]
pub(super) struct Grant<'a> {
    guard: &'a SpaceGuard,
    bytes: u64,
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let mut state = self.guard.state.lock();
        assert!(self.bytes <= state.in_flight, "a grant that ends was in flight");
        state.in_flight -= self.bytes;
    }
}

impl SpaceGuard {
    /// Grants from the last answer, if it is young and generous enough.
    fn grant(&self, bytes: u64, reserve: u64, now: Instant) -> Option<Grant<'_>> {
        let mut state = self.state.lock();
        let available = state.available?;
        // A quarter is left to the error of the bookkeeping; then the device is asked again.
        let generous = (state.granted + bytes).saturating_add(reserve) <= available - available / 4;
        if !generous || now.since(state.answered) > ANSWER_AGE_MAX {
            return None;
        }
        Some(state.take(self, bytes))
    }

    /// Takes a fresh answer and grants from it.
    fn grant_fresh(&self, available: u64, bytes: u64, reserve: u64, now: Instant) -> Option<Grant<'_>> {
        let mut state = self.state.lock();
        state.available = Some(available);
        state.answered = now;
        assert!(state.in_flight <= state.granted, "what is in flight was granted");
        state.granted = state.in_flight;
        ((state.granted + bytes).saturating_add(reserve) <= available).then(|| state.take(self, bytes))
    }

    /// Bytes of grants that are not written yet.
    fn in_flight(&self) -> u64 {
        self.state.lock().in_flight
    }

    /// Forgets the answer, after space was given back.
    pub fn forget(&self) {
        self.state.lock().available = None;
    }
}

impl State {
    fn take<'a>(&mut self, guard: &'a SpaceGuard, bytes: u64) -> Grant<'a> {
        self.granted += bytes;
        self.in_flight += bytes;
        Grant { guard, bytes }
    }
}

impl DirectoryStore {
    /// Free space that is kept: what the administrator wants, and what the tables need to take
    /// anything.
    fn reserve_bytes(&self) -> u64 {
        let wanted = self.options.lock().reserve_bytes;
        let possible = match self.superblock.engine {
            // Of the part of a small device the usual reserve would leave nothing.
            Engine::Blocks { tables: Some(tables), .. } => tables.bytes() / RESERVE_SHARE,
            Engine::Blocks { tables: None, .. } | Engine::Directory => u64::MAX,
        };
        wanted.min(possible).max(self.kv.device_reserve())
    }

    /// Space for `bytes` more, or `NoSpace`.
    pub(super) async fn reserve(&self, bytes: u64) -> FsResult<Grant<'_>> {
        self.reserve_above(self.reserve_bytes(), bytes).await
    }

    /// Space for `bytes` more that leaves `reserve` free, or `NoSpace`.
    pub(super) async fn reserve_above(&self, reserve: u64, bytes: u64) -> FsResult<Grant<'_>> {
        if let Some(grant) = self.space.grant(bytes, reserve, self.seams.clock.now()) {
            return Ok(grant);
        }
        let space = self.device.space().await.map_err(|error| self.device_error("statfs", &error))?;
        let now = self.seams.clock.now();
        self.space.grant_fresh(space.bytes_available, bytes, reserve, now).ok_or(FsError::NoSpace)
    }

    /// Space as clients may use it: the reserve counts as used, and so does what was granted and is
    /// not written yet.
    pub(super) async fn space_usage(&self) -> FsResult<SpaceUsage> {
        let space = self.device.space().await.map_err(|error| self.device_error("statfs", &error))?;
        let reserve = self.reserve_bytes().saturating_add(self.space.in_flight());
        if self.has_device() {
            return Ok(self.device_usage(space));
        }
        let objects = self.volatile.lock().totals.objects;
        let bytes_available = space.bytes_available.saturating_sub(reserve);
        // An object may cost a host file; small ones share the tables, so free blocks bound them as
        // well.
        let inodes_free = space.inodes_free.min(bytes_available / BLOCK_BYTES).min(OBJECTS_MAX);
        let usage = SpaceUsage {
            bytes_total: space.bytes_total,
            bytes_free: space.bytes_free.saturating_sub(reserve),
            bytes_available,
            inodes_total: objects + inodes_free,
            inodes_free,
            device: space.device,
        };
        self.volatile.lock().last_space = usage;
        Ok(usage)
    }

    /// Space of the target's own device for objects; `tables`: that for the tables, which are on
    /// another device, or in a part of this one. If these take nothing
    /// more, nothing can be written, however many blocks are free.
    fn device_usage(&self, tables: SpaceUsage) -> SpaceUsage {
        let mut volatile = self.volatile.lock();
        let (backlog, objects) = (volatile.backlog_blocks, volatile.totals.objects);
        let (blocks, available) =
            volatile.device.as_ref().map_or((0, 0), |device| (device.blocks(), device.available(backlog)));
        let of_tables = match self.superblock.engine {
            Engine::Blocks { tables: Some(tables), .. } => tables.blocks,
            Engine::Blocks { tables: None, .. } | Engine::Directory => 0,
        };
        // An object is a record, and small ones share the tables.
        let for_tables = tables.bytes_available.saturating_sub(self.reserve_bytes());
        let inodes_free = (for_tables / BLOCK_BYTES).min(OBJECTS_MAX);
        let usage = SpaceUsage {
            bytes_total: blocks.saturating_sub(of_tables) * BLOCK_BYTES,
            bytes_free: available * BLOCK_BYTES,
            bytes_available: if for_tables == 0 { 0 } else { available * BLOCK_BYTES },
            inodes_total: objects + inodes_free,
            inodes_free,
            device: None,
        };
        volatile.last_space = usage;
        usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_end_where_the_reserve_begins_and_the_device_is_asked_near_it() {
        let guard = SpaceGuard::default();
        let now = Instant(1);
        assert!(guard.grant(1, 0, now).is_none(), "nothing is known yet");
        let first = guard.grant_fresh(1000, 400, 100, now).expect("fits");
        assert!(guard.grant(300, 100, now).is_none(), "too near to the end: ask again");
        assert!(guard.grant(200, 100, now).is_some());
        assert!(guard.grant_fresh(1000, 600, 100, now).is_none(), "what is in flight counts");
        drop(first);
        assert!(guard.grant_fresh(1000, 900, 100, now).is_some());
        assert!(guard.grant_fresh(1000, 901, 100, now).is_none());
        assert!(guard.grant(1, 0, now + ANSWER_AGE_MAX + ANSWER_AGE_MAX).is_none(), "the answer is old");
    }
}
