//! Requests of a target to a client: callbacks.
//!
//! They go through the connection that the client made, marked with
//! [`frame_flag::CALLBACK`](super::session::frame_flag::CALLBACK), with slots of their own. A
//! client answers at once; what a callback asks for (writing cached data, giving a lock back) is
//! done by requests of the client, in its urgent slots.

use lock::WaitTicket;
use serde::{Deserialize, Serialize};
use types::{FsResult, InodeNumber, LockHandle, Timestamp};

use super::lock::{CacheMode, Granted, Resource};

/// A callback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientRequest {
    /// Does the client answer? -> Done
    Ping,
    /// Another client wants something that this lock forbids: give all of it back, even if it is
    /// not known, because the reply that grants it is under way. -> Done; `NotFound` gives it back,
    /// too; StillBusy
    Blocking(Blocking),
    /// A lock that the client waits for is granted. -> Done
    Completion(Granted),
    /// What does the holder of this lock know of the object's data? The lock stays. -> Glimpse
    Glimpse(LockHandle),
    /// A request for an advisory lock that was answered [`Queued`](super::MdtReply::Queued) is
    /// granted or refused. May overtake that answer. -> Done; `NotFound`: the client does not wait
    /// for it
    LockCompleted(LockCompleted),
    /// Requests about this inode that were answered [`Waiting`](super::MdtReply::Waiting) are to be
    /// sent again; `None`: all that were. May overtake that answer. -> Done
    AskAgain(Option<InodeNumber>),
}

/// See [`ClientRequest::LockCompleted`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockCompleted {
    /// The request's name.
    pub ticket: WaitTicket,
    /// Its owner holds the lock from now on, or why it does not.
    pub outcome: FsResult<()>,
}

/// See [`ClientRequest::Blocking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocking {
    /// The lock.
    pub handle: LockHandle,
    /// What the other client wants, so that only as much as needed is given back.
    pub resource: Resource,
    /// How.
    pub mode: CacheMode,
}

/// The answer to a [`ClientRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientReply {
    /// It was understood.
    Done,
    /// What the client knows.
    Glimpse(Glimpsed),
    /// The client was asked for this lock before and is about to give it back, but a cache above it
    /// still holds what the lock protects. It is asked again, and gets more time.
    StillBusy,
}

/// See [`ClientRequest::Glimpse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glimpsed {
    /// Size of the object with what is cached.
    pub size: u64,
    /// Time of the last change, if something is cached.
    pub mtime: Option<Timestamp>,
}
