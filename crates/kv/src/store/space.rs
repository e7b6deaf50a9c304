//! Room on the device.
//!
//! The journal's segments have their space, but a checkpoint takes new space in the cold store, and a cold store that finds
//! none may not get up again. So free space is kept back for it: below that, only batches that free space are taken
//! ([`crate::Store::apply_reserved`]), no segment is added, and below what a checkpoint needs itself, none begins. When space
//! comes back, everything goes on where it was.
//!
//! The device is asked at every commit, before each checkpoint and each new segment, and after a refusal. Downside: what
//! others put on the device in between is seen late; the reserve absorbs it, or the cold store's own care does.

use super::{Shared, State};
use crate::error::{Error, Result};

/// What a checkpoint takes for each byte of changed entries: once in the cold store's own journal, once in a table.
const CHECKPOINT_FACTOR: u64 = 2;
/// Part of the reserve that a checkpoint leaves to the cold store's work behind it.
const RESERVE_LEFT: u64 = 4;

impl Shared {
    /// Asks the device. If it does not answer, its space is unknown, and nothing is refused for it.
    pub(super) async fn ask_space(&self) {
        if self.config.device_reserve_bytes == 0 {
            return;
        }
        let free = match self.device.space().await {
            Ok(space) => Some(space.bytes_available),
            Err(error) => {
                tracing::warn!(%error, "the journal's device does not tell its space");
                None
            }
        };
        self.state.lock().device_free = free;
    }

    fn checkpoint_bytes(state: &State) -> u64 {
        (state.tables.dirty_bytes() as u64).saturating_mul(CHECKPOINT_FACTOR)
    }

    /// Free space below which the device counts as full.
    pub(super) fn device_reserve(&self, state: &State) -> u64 {
        match self.config.device_reserve_bytes {
            0 => 0,
            reserve => reserve.saturating_add(Self::checkpoint_bytes(state)),
        }
    }

    /// Whether only what frees space is taken.
    pub(super) fn is_device_full(&self, state: &State) -> bool {
        state.device_free.is_some_and(|free| free < self.device_reserve(state))
    }

    /// Whether there is room for a checkpoint, as of now.
    pub(super) async fn check_room_for_checkpoint(&self) -> Result<()> {
        self.ask_space().await;
        let state = self.state.lock();
        let needed = self.config.device_reserve_bytes / RESERVE_LEFT + Self::checkpoint_bytes(&state);
        match state.device_free {
            Some(free) if free < needed => Err(Error::NoSpace),
            _ => Ok(()),
        }
    }

    /// Whether there is room for another journal segment, as of now.
    pub(super) async fn check_room_for_segment(&self) -> Result<()> {
        self.ask_space().await;
        let state = self.state.lock();
        let needed = self.device_reserve(&state).saturating_add(self.segment_bytes);
        match state.device_free {
            Some(free) if free < needed => Err(Error::NoSpace),
            _ => Ok(()),
        }
    }
}
