//! Discards: the device is told which freed blocks it need not keep.
//!
//! The commit that makes freed blocks usable puts them into a queue instead
//! ([`super::discard_queue`]), and the store's task discards a bounded part of it in each turn.
//! Blocks are in progress until their discard has ended, also if what waits for it ends before: so
//! nothing new can be written under it.
//!
//! Downside: after a large removal, discards go on for some turns; what a restart finds waiting is
//! never discarded.

use std::{io, ops::Range, sync::atomic::Ordering, time::Duration};

use rt::Device;
use types::limits::BLOCK_BYTES;

use super::{DirectoryStore, device::DEVICE_FILE, device::InProgress, device_space::DeviceSpace};

/// Discards of a turn, at most.
const TURN_RANGES: usize = 1024;
/// Blocks of a turn, at most: 4 GiB.
const TURN_BLOCKS: u64 = 1 << 20;
/// Blocks of a discard, at most: 256 MiB.
const DISCARD_BLOCKS: u64 = 1 << 16;
/// How long a turn goes on with them: commits wait for it.
const TURN_TIME: Duration = Duration::from_millis(250);

impl InProgress {
    /// Discards some of them. As a write, one that has begun is executed even if nothing waits for
    /// it.
    async fn discard(&mut self, device: &dyn Device, blocks: &Range<u64>) -> io::Result<()> {
        let (offset, bytes) = (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
        self.finish(device.discard(DEVICE_FILE, offset, bytes)).await
    }
}

impl DirectoryStore {
    /// Whether freed blocks are discarded.
    pub fn discards(&self) -> bool {
        self.takes_discards.load(Ordering::Relaxed) && self.options.lock().discard
    }

    /// Why freed blocks cannot be discarded, if they cannot.
    pub fn refuses_discards(&self) -> Option<&'static str> {
        match (self.has_device(), self.takes_discards.load(Ordering::Relaxed)) {
            (true, true) => None,
            (true, false) => Some("the device reports no discard"),
            (false, _) => Some("there is no device: space of host files is given back to their file system"),
        }
    }

    /// A turn of discards.
    pub(super) async fn discard_due(&self) {
        if !self.discards() {
            return self.release_waiting();
        }
        let end = self.seams.clock.now() + TURN_TIME;
        let mut left = TURN_BLOCKS;
        for _ in 0..TURN_RANGES {
            if left == 0 || self.is_stopping() || self.seams.clock.now() >= end {
                return;
            }
            let mut in_progress = InProgress::new(self);
            let next = {
                let mut volatile = self.volatile.lock();
                volatile.device.as_mut().and_then(|device| device.next_discard(left.min(DISCARD_BLOCKS)))
            };
            let Some(blocks) = next else { return };
            let count = blocks.end - blocks.start;
            left -= count;
            in_progress.add(blocks.clone());
            let discarded = in_progress.discard(&*self.device, &blocks).await;
            if let Some(device) = &mut self.volatile.lock().device {
                device.discard_ended(count, discarded.is_ok());
            }
            let Err(error) = discarded else { continue };
            if error.kind() == io::ErrorKind::Unsupported {
                tracing::warn!(target = %self.target, %error, "freed blocks are not discarded from now on");
                self.takes_discards.store(false, Ordering::Relaxed);
                return;
            }
            if self.may_complain() {
                tracing::warn!(target = %self.target, %error, "the device does not discard freed blocks");
            }
        }
    }

    /// What waits is free without a discard.
    fn release_waiting(&self) {
        self.in_turns(DeviceSpace::has_released);
    }
}
