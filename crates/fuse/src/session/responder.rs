//! The obligation to answer one request.

use std::sync::Arc;

use bytes::Bytes;
use types::FsResult;
use zerocopy::{Immutable, IntoBytes};

use super::device::Device;
use host::errno::{self, Errno};

/// Body of a successful answer: structures, then data that are sent without a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Structures and small data.
    pub head: Vec<u8>,
    /// Data after them.
    pub pieces: Vec<Bytes>,
}

impl Answer {
    /// Success without a body.
    pub fn done() -> Self {
        Self::default()
    }

    /// One structure.
    pub fn of<T: IntoBytes + Immutable>(structure: &T) -> Self {
        Self { head: structure.as_bytes().to_vec(), pieces: Vec::new() }
    }

    /// Two structures, one after the other.
    pub fn pair<T: IntoBytes + Immutable, U: IntoBytes + Immutable>(first: &T, second: &U) -> Self {
        Self { head: [first.as_bytes(), second.as_bytes()].concat(), pieces: Vec::new() }
    }

    /// Bytes.
    pub fn bytes(head: Vec<u8>) -> Self {
        Self { head, pieces: Vec::new() }
    }
}

/// Answers one request exactly once. Dropped without an answer (the work panicked, or its core is
/// gone) it answers EIO, so that no process ever waits for nothing.
#[derive(Debug)]
#[must_use = "a request must be answered"]
pub struct Responder {
    /// `None` once the duty is done.
    device: Option<Arc<Device>>,
    unique: u64,
}

impl Responder {
    /// For the request `unique`, read from `device`.
    pub fn new(device: Arc<Device>, unique: u64) -> Self {
        Self { device: Some(device), unique }
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

    /// The request asks for no answer (FORGET, BATCH_FORGET, INTERRUPT).
    pub fn forget(mut self) {
        self.device = None;
    }

    fn answer(mut self, errno: Errno, answer: &Answer) {
        let Some(device) = self.device.take() else { return };
        if let Err(error) = device.send(self.unique, errno.0, &answer.head, &answer.pieces) {
            tracing::error!(unique = self.unique, ?errno, %error, "the kernel rejected a reply");
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(device) = self.device.take() {
            tracing::error!(unique = self.unique, "a request was dropped without a reply; it fails with EIO");
            let _ = device.send(self.unique, Errno::INPUT_OUTPUT.0, &[], &[]);
        }
    }
}
