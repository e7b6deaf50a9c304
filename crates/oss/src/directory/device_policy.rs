//! The allocator's tunables, as administrators read and change them, and windows that are given
//! back.

use std::time::Duration;

use blocks::Policy;

use super::{DirectoryStore, device_space::SpaceCounts, device_statistics::NO_DEVICE};

/// Windows of objects that were not written for so long are given back: a writer that pauses for
/// longer continues where it was if the blocks there are still free.
const WINDOW_IDLE: Duration = Duration::from_secs(30);

impl DirectoryStore {
    /// A tunable as it is.
    pub fn show_allocator(&self, show: impl FnOnce(&Policy) -> String) -> String {
        let volatile = self.volatile.lock();
        volatile.device.as_ref().map_or_else(|| NO_DEVICE.to_owned(), |device| show(device.policy()))
    }

    /// Changes tunables.
    pub fn change_allocator(&self, change: impl FnOnce(&mut Policy)) -> Result<(), String> {
        let mut volatile = self.volatile.lock();
        let device = volatile.device.as_mut().ok_or(NO_DEVICE)?;
        let mut policy = device.policy().clone();
        change(&mut policy);
        device.set_policy(policy);
        Ok(())
    }

    /// The group of the allocation pointer.
    pub fn show_last_group(&self) -> String {
        self.show_count(|counts| counts.last_group)
    }

    /// The block of the allocation pointer within its group.
    pub fn show_last_start(&self) -> String {
        self.show_count(|counts| counts.last_start)
    }

    fn show_count(&self, count: fn(&SpaceCounts) -> u32) -> String {
        let volatile = self.volatile.lock();
        let found = volatile.device.as_ref().map(|device| count(&device.counts()));
        found.map_or_else(|| NO_DEVICE.to_owned(), |number| number.to_string())
    }

    /// Sets the group of the allocation pointer.
    pub fn set_last_group(&self, group: u64) -> Result<(), String> {
        self.volatile.lock().device.as_mut().ok_or(NO_DEVICE)?.set_last_group(group)
    }

    /// Sets the block of the allocation pointer within its group.
    pub fn set_last_start(&self, block: u64) -> Result<(), String> {
        self.volatile.lock().device.as_mut().ok_or(NO_DEVICE)?.set_last_start(block)
    }

    /// Gives back windows of objects that were not written for a while.
    pub(super) fn give_back_idle_windows(&self) {
        let now = self.seams.clock.now();
        self.in_turns(|device| device.give_back_idle(now, WINDOW_IDLE).map(|blocks| blocks > 0));
    }
}
