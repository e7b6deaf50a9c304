//! Space on the device.
//!
//! The journal's segments have their space, but a checkpoint takes new space in the cold store,
//! which takes more by itself ([`crate::ColdStore::growth_bytes`]), and a cold store that finds no
//! space may not recover. So free space is reserved for all of this: below the reserve, only
//! batches that free space are accepted ([`crate::Store::apply_reserved`]), and no segment is
//! added. A checkpoint proceeds as long as there is space for its next step. Completed steps need
//! not be repeated, so the next checkpoint is smaller. If a checkpoint required space for
//! everything at once, each removal would increase what it requires. When space is available again,
//! everything continues where it stopped.
//!
//! The device is queried at every commit, before each checkpoint and each new segment, and after a
//! refusal. Downside: data that others write to the device in between are noticed late; the reserve
//! absorbs them, or else the cold store recovers by itself.
//!
//! The space of removed entries is freed only when the removal has reached the cold store, and the
//! cold store has been rewritten. So when space is short, a checkpoint soon follows removals, and
//! after each checkpoint the cold store may free space ([`crate::ColdStore::reclaim`]). Removals
//! take space themselves until then: on a full device, their checkpoints are small, so that there
//! is space for each.

use std::time::Duration;

use super::shared::{Shared, State};
use crate::error::{Error, Result};

/// What a checkpoint takes for each byte of changed entries: once in the cold store's own journal,
/// once in a table.
const CHECKPOINT_FACTOR: u64 = 2;
/// Changed entries that a checkpoint takes to the cold store in one step, in bytes: so much room it
/// needs at a time.
pub(super) const STEP_BYTES: usize = 1 << 20;
/// Part of the reserve that a checkpoint leaves to the cold store's work after it.
const RESERVE_LEFT: u64 = 8;
/// Part of the reserve that changes may need for their checkpoint on a full device before one is
/// due.
const RESERVE_DUE: u64 = 8;
/// Space is short when less than this part of the device is free, or less than this many reserves:
/// the store's user may keep back more.
const SHORT: u64 = 8;
const SHORT_RESERVES: u64 = 16;
/// Space is scarce when beyond the reserve less than this part of the device is free, or this many
/// bytes of a large one.
const SCARCE: u64 = 8;
const SCARCE_BYTES_MAX: u64 = 1 << 30;
/// Commit intervals until a checkpoint follows a removal when space is short.
const RECLAIM_INTERVALS: u32 = 10;

/// What the device says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceSpace {
    bytes_available: u64,
    bytes_total: u64,
    /// What the cold store may take of it by itself.
    growth_bytes: u64,
}

impl Shared {
    /// Asks the device. If it does not answer, its space is unknown, and nothing is refused for it.
    pub(super) async fn ask_space(&self) {
        if self.config.device_reserve_bytes == 0 {
            return;
        }
        let space = match self.device.space().await {
            Ok(space) => Some(DeviceSpace {
                bytes_available: space.bytes_available,
                bytes_total: space.bytes_total,
                growth_bytes: self.cold.growth_bytes(),
            }),
            Err(error) => {
                tracing::warn!(%error, "cannot query the free space of the journal's device");
                None
            }
        };
        self.state.lock().device_space = space;
    }

    /// Whether little of the device is free.
    pub(super) fn is_device_short(&self, state: &State) -> bool {
        let short = self.config.device_reserve_bytes.saturating_mul(SHORT_RESERVES);
        state.device_space.is_some_and(|space| space.bytes_available < short.max(space.bytes_total / SHORT))
    }

    /// Whether so little is free that data that can be stored elsewhere should be.
    pub(super) fn is_device_scarce(&self, state: &State) -> bool {
        state.device_space.is_some_and(|space| {
            let kept = (space.bytes_total / SCARCE).min(SCARCE_BYTES_MAX);
            space.bytes_available < self.device_reserve(state).saturating_add(kept)
        })
    }

    fn checkpoint_bytes(state: &State) -> u64 {
        (state.dirty.cold_bytes() as u64).saturating_mul(CHECKPOINT_FACTOR)
    }

    /// Whether changes on a full device are to go to the cold store before they need more room than
    /// there is.
    pub(super) fn is_checkpoint_urgent(&self, state: &State) -> bool {
        self.is_device_full(state) && Self::checkpoint_bytes(state) > self.config.device_reserve_bytes / RESERVE_DUE
    }

    /// Longest time until the changes there are go to the cold store.
    pub(super) fn checkpoint_interval(&self, state: &State) -> Duration {
        if self.is_device_short(state) && state.dirty.removals() > 0 {
            self.config.checkpoint_interval.min(self.config.commit_interval * RECLAIM_INTERVALS)
        } else {
            self.config.checkpoint_interval
        }
    }

    /// Free space below which the device counts as full.
    pub(super) fn device_reserve(&self, state: &State) -> u64 {
        match self.config.device_reserve_bytes {
            0 => 0,
            reserve => {
                let growth = state.device_space.map_or(0, |space| space.growth_bytes);
                reserve.saturating_add(growth).saturating_add(Self::checkpoint_bytes(state))
            }
        }
    }

    /// Whether only what frees space is taken.
    pub(super) fn is_device_full(&self, state: &State) -> bool {
        state.device_space.is_some_and(|space| space.bytes_available < self.device_reserve(state))
    }

    /// Whether there is room for the next step of a checkpoint, as of now.
    pub(super) async fn check_space_for_step(&self) -> Result<()> {
        self.ask_space().await;
        let state = self.state.lock();
        let step = Self::checkpoint_bytes(&state).min(STEP_BYTES as u64 * CHECKPOINT_FACTOR);
        let needed = self.config.device_reserve_bytes / RESERVE_LEFT + step;
        match state.device_space {
            Some(space) if space.bytes_available < needed => Err(Error::NoSpace),
            _ => Ok(()),
        }
    }

    /// Whether there is room for another journal segment, as of now.
    pub(super) async fn check_space_for_segment(&self) -> Result<()> {
        self.ask_space().await;
        let state = self.state.lock();
        let needed = self.device_reserve(&state).saturating_add(self.segment_bytes);
        match state.device_space {
            Some(space) if space.bytes_available < needed => Err(Error::NoSpace),
            _ => Ok(()),
        }
    }
}
