//! An entry whose request has not been answered, and the way back to its ring.
//!
//! A request may be answered by any thread; only the core that has the ring talks to the kernel. So
//! the answering thread writes the answer into the entry's memory, and notes the entry in the
//! [`Answered`] of the ring, which wakes its core. (On the core itself this costs no system call.)

use std::{fmt, sync::Arc, time::Instant};

use bytes::Bytes;
use host::errno::Errno;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::memory::EntryMemory;
use crate::protocol::reply::OutHeader;
use crate::protocol::ring::EntryHeader;
use crate::session::responder::Answer;

/// An answered request, for the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The entry, by its number in the ring.
    pub entry: usize,
    /// The request, as the kernel calls it.
    pub commit_id: u64,
    /// As in [`Answer`].
    pub decided: Option<Instant>,
}

/// Answered requests that their ring has not yet passed on.
#[derive(Default)]
pub struct Answered {
    commits: Mutex<Vec<Commit>>,
    arrived: Notify,
}

impl Answered {
    fn push(&self, commit: Commit) {
        self.commits.lock().push(commit);
        self.arrived.notify_one();
    }

    /// Moves all to `to`, which is empty.
    pub fn take(&self, to: &mut Vec<Commit>) {
        debug_assert!(to.is_empty(), "what was taken before has been passed on");
        std::mem::swap(&mut *self.commits.lock(), to);
    }

    /// Completes when there may be some.
    pub async fn wait(&self) {
        self.arrived.notified().await;
    }
}

/// See the module documentation. Must be answered.
pub struct HeldEntry {
    memory: EntryMemory,
    entry: usize,
    answered: Arc<Answered>,
}

impl HeldEntry {
    /// # Safety
    /// The kernel has just passed this entry to us (its command completed with a request), and
    /// there is no other holder.
    pub unsafe fn new(memory: EntryMemory, entry: usize, answered: Arc<Answered>) -> Self {
        Self { memory, entry, answered }
    }

    /// A copy of the request's header.
    pub fn header(&self) -> EntryHeader {
        // SAFETY: we hold the entry.
        unsafe { self.memory.header() }
    }

    /// Payload of the request and old bytes.
    pub fn payload(&self) -> &[u8] {
        // SAFETY: we hold the entry; `answer`, which alone writes, consumes `self`.
        unsafe { self.memory.payload() }
    }

    /// Answers the request `unique`. A body without room is an input/output error.
    pub fn answer(self, unique: u64, errno: Errno, answer: &Answer) {
        let Answer { head, pieces, decided } = answer;
        let body = head.len() + pieces.iter().map(Bytes::len).sum::<usize>();
        if body > self.memory.payload_bytes() {
            tracing::error!(unique, body, "a reply is longer than the kernel accepts");
            return self.answer(unique, Errno::INPUT_OUTPUT, &Answer::default());
        }
        let body = if errno == Errno::NONE { body } else { 0 };
        let out = OutHeader { length: (size_of::<OutHeader>() + body) as u32, error: -errno.0, unique };
        let mut header = self.header();
        header.answer(&out, body as u32);
        // SAFETY: we hold the entry, and the slice that `payload` gives cannot outlive `self`'s
        // borrow.
        unsafe {
            if body > 0 {
                self.memory.set_payload(std::iter::once(head.as_slice()).chain(pieces.iter().map(Bytes::as_ref)));
            }
            self.memory.set_header(header);
        }
        self.answered.push(Commit { entry: self.entry, commit_id: header.state.commit_id, decided: *decided });
    }
}

impl fmt::Debug for HeldEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldEntry").field("entry", &self.entry).finish_non_exhaustive()
    }
}
