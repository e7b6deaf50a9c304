//! Bounds of the bytes queued in one direction of a connection: one for urgent frames, one for all
//! others, so that an urgent frame never waits for room that others have taken.

use std::io::{self, ErrorKind};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    Frame,
    transport::{QUEUED_BYTES_MAX, URGENT_QUEUED_BYTES_MAX},
};

/// Bytes that may still be queued.
pub(crate) struct Space {
    urgent: Semaphore,
    rest: Semaphore,
}

impl Default for Space {
    fn default() -> Self {
        Self { urgent: Semaphore::new(URGENT_QUEUED_BYTES_MAX), rest: Semaphore::new(QUEUED_BYTES_MAX) }
    }
}

impl Space {
    /// Room for a frame within the limits, when there is some. `BrokenPipe` after the close.
    pub async fn acquire(&self, frame: &Frame) -> io::Result<SemaphorePermit<'_>> {
        let permits = u32::try_from(frame.wire_bytes()).expect("a frame within its limits is below 4 GiB");
        self.of(frame.is_urgent()).acquire_many(permits).await.map_err(|_| ErrorKind::BrokenPipe.into())
    }

    /// A frame of so many bytes is not queued any more.
    pub fn release(&self, is_urgent: bool, bytes: usize) {
        self.of(is_urgent).add_permits(bytes);
    }

    /// Nothing is accepted any more.
    pub fn close(&self) {
        self.urgent.close();
        self.rest.close();
    }

    fn of(&self, is_urgent: bool) -> &Semaphore {
        if is_urgent { &self.urgent } else { &self.rest }
    }
}
