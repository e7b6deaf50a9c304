//! The words of advisory locks. The first four are also what requests to a metadata target carry.

use serde::{Deserialize, Serialize};
use types::{ClientId, FsError, InodeNumber};

/// The last byte a lock can cover: the largest `off_t`. A range that ends here or beyond means "to
/// the end of the file, however far it grows".
pub const LAST_BYTE: u64 = i64::MAX as u64;

/// A range of an advisory lock, both ends inclusive, as FUSE and fcntl give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockRange {
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` (or `i64::MAX`) means to the end of any file.
    pub end: u64,
}

impl LockRange {
    /// All of a file.
    pub const WHOLE: LockRange = LockRange { start: 0, end: LAST_BYTE };

    /// The range with every end at or beyond [`LAST_BYTE`] made equal to it.
    pub fn normalised(self) -> Result<LockRange, LockError> {
        let range = LockRange { start: self.start, end: self.end.min(LAST_BYTE) };
        if range.start > range.end { Err(LockError::Invalid) } else { Ok(range) }
    }

    /// Whether both have a byte in common.
    pub fn overlaps(self, other: LockRange) -> bool {
        self.start <= other.end && other.start <= self.end
    }
}

/// Families of advisory locks; they do not conflict with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockFamily {
    /// fcntl(2) record locks.
    Posix,
    /// flock(2) whole-file locks.
    Flock,
}

/// State a lock request leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum LockMode {
    /// Shared (read) lock.
    Shared,
    /// Exclusive (write) lock.
    Exclusive,
    /// No lock.
    Unlock,
}

impl LockMode {
    /// Whether two owners cannot have these on one byte.
    pub fn conflicts(self, other: LockMode) -> bool {
        match (self, other) {
            (LockMode::Unlock, _) | (_, LockMode::Unlock) | (LockMode::Shared, LockMode::Shared) => false,
            (LockMode::Exclusive, _) | (_, LockMode::Exclusive) => true,
        }
    }

    /// Whether holding this is at least as much as holding `other`.
    pub fn includes(self, other: LockMode) -> bool {
        self == other || other == LockMode::Unlock || self == LockMode::Exclusive
    }
}

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// The file.
    pub inode: InodeNumber,
    /// Family.
    pub family: LockFamily,
    /// The client.
    pub client: ClientId,
    /// Owner within the client.
    pub owner: u64,
    /// Process.
    pub pid: u32,
    /// Range.
    pub range: LockRange,
    /// Shared or Exclusive.
    pub mode: LockMode,
}

/// The holder or requester of a lock: a process (fcntl) or an open file description (flock) of a
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockOwner {
    /// The client.
    pub client: ClientId,
    /// The kernel's lock owner within it.
    pub owner: u64,
}

/// A client's name for one request that may wait: unique among all of its requests at an MDT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WaitTicket(pub u64);

/// A queued request has left its queue: its client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The client that waits.
    pub client: ClientId,
    /// For which of its requests.
    pub ticket: WaitTicket,
    /// Its owner holds the lock from now on, or why it does not.
    pub outcome: Result<(), LockError>,
}

/// Why a lock was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Another owner holds a conflicting lock, or waits for one and came first.
    Conflict,
    /// Waiting would never end: the holder waits, directly or through others, for this owner.
    Deadlock,
    /// The client has as many locks as it may have, or the file as many owners and waiters.
    NoLocks,
    /// The range is empty or begins beyond the largest offset.
    Invalid,
    /// The request left the queue because all locks of its owner on the file were released.
    Released,
}

impl From<LockError> for FsError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Conflict => FsError::WouldBlock,
            LockError::Deadlock => FsError::Deadlock,
            LockError::NoLocks => FsError::NoLocks,
            LockError::Invalid => FsError::Invalid,
            LockError::Released => FsError::Interrupted,
        }
    }
}
