//! The obligation to answer one request.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use types::FsResult;
use zerocopy::{Immutable, IntoBytes};

use super::device::Device;
use super::ring::held::HeldEntry;
use host::errno::{self, Errno};

/// Body of a successful answer: structures, then data that are sent without a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Structures and small data.
    pub head: Vec<u8>,
    /// Data after them.
    pub pieces: Vec<Bytes>,
    /// When it was decided what the kernel may keep of this, and for how long; `None`: nothing.
    pub decided: Option<Instant>,
}

impl Answer {
    /// Success without a body.
    pub fn done() -> Self {
        Self::default()
    }

    /// One structure.
    pub fn of<T: IntoBytes + Immutable>(structure: &T) -> Self {
        Self::bytes(structure.as_bytes().to_vec())
    }

    /// Two structures, one after the other.
    pub fn pair<T: IntoBytes + Immutable, U: IntoBytes + Immutable>(first: &T, second: &U) -> Self {
        Self::bytes([first.as_bytes(), second.as_bytes()].concat())
    }

    /// Bytes.
    pub fn bytes(head: Vec<u8>) -> Self {
        Self { head, ..Self::default() }
    }

    /// One of which it is decided while it is made what the kernel may keep.
    pub fn deciding(make: impl FnOnce() -> Self) -> Self {
        let decided = Some(Instant::now());
        Self { decided, ..make() }
    }
}

/// Answers one request exactly once. Dropped without an answer (the work panicked, or its core is
/// gone) it answers EIO, so that no process ever waits for nothing. Any thread may answer.
#[derive(Debug)]
#[must_use = "a request must be answered"]
pub struct Responder {
    /// `None` once the duty is done.
    destination: Option<Destination>,
    unique: u64,
}

/// Where the request came from.
#[derive(Debug)]
enum Destination {
    Device(Arc<Device>),
    Ring(HeldEntry),
}

impl Destination {
    fn send(self, unique: u64, errno: Errno, answer: &Answer) {
        match self {
            Destination::Device(device) => {
                if let Err(error) = device.send(unique, errno.0, &answer.head, &answer.pieces) {
                    tracing::error!(unique, ?errno, %error, "the kernel rejected a reply");
                }
                if let Some(decided) = answer.decided {
                    device.given(decided);
                }
            }
            Destination::Ring(held) => held.answer(unique, errno, answer),
        }
    }
}

impl Responder {
    /// For the request `unique`, read from `device`.
    pub fn over_device(device: Arc<Device>, unique: u64) -> Self {
        Self { destination: Some(Destination::Device(device)), unique }
    }

    /// For the request `unique` in an entry of a ring.
    pub fn over_ring(held: HeldEntry, unique: u64) -> Self {
        Self { destination: Some(Destination::Ring(held)), unique }
    }

    /// The request's number.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Answers.
    pub fn send(self, result: FsResult<Answer>) {
        match result {
            Ok(answer) => self.answer(Errno::NONE, &answer),
            Err(error) => {
                let errno = errno::of(&error);
                if errno == Errno::INPUT_OUTPUT {
                    tracing::warn!(%error, "a system call failed with an input/output error");
                }
                self.refuse(errno);
            }
        }
    }

    /// Answers with an errno for which there is no [`FsError`](types::FsError): what concerns only
    /// the kernel.
    pub fn refuse(self, errno: Errno) {
        self.answer(errno, &Answer::default());
    }

    /// The request asks for no answer (FORGET, BATCH_FORGET, INTERRUPT). The kernel sends such
    /// requests over `/dev/fuse` only; one that came over a ring is answered, which gives its entry
    /// back.
    pub fn forget(mut self) {
        if let Some(Destination::Ring(held)) = self.destination.take() {
            held.answer(self.unique, Errno::NONE, &Answer::default());
        }
    }

    fn answer(mut self, errno: Errno, answer: &Answer) {
        if let Some(destination) = self.destination.take() {
            destination.send(self.unique, errno, answer);
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(destination) = self.destination.take() {
            tracing::error!(unique = self.unique, "a request was dropped without a reply; it fails with EIO");
            destination.send(self.unique, Errno::INPUT_OUTPUT, &Answer::default());
        }
    }
}
