//! The lock manager: which access to a file is granted, and which request is next. Pure state
//! machines: time and events come in as arguments, decisions and wake-ups come out; no clock, no
//! task, no message.
//!
//! - [`advisory`]: fcntl record locks and flock locks of all clients, with queues and deadlock
//!   detection.
//! - [`exclusive`]: one exclusive lock per file in order of arrival, for appends and truncations.
//! - [`inode_locks`]: the locks under which clients cache parts of inodes, and the changes that
//!   wait until these are given back.
//!
//! There is no polling. A queued request for an advisory lock is granted by the event that makes
//! this possible, and its client is told; the exclusive data lock is reserved for the first client
//! in its queue, which is told to ask again. A request for an advisory lock keeps its place until
//! it is cancelled or the session of its client ends: a client that falls silent delays the queue
//! no longer than it would as a holder.

pub mod advisory;
pub mod exclusive;
mod file;
mod inode_bits;
pub mod inode_locks;
mod segments;
mod vocabulary;

pub use advisory::{AdvisoryLocks, LockAnswer, LockRequest};
pub use exclusive::{ExclusiveAnswer, ExclusiveLocks};
pub use inode_bits::{InodeBits, inode_bit};
pub use inode_locks::{ChangeId, GrantedBits, InodeLocks, LockLimits, Prepared, Revocation};
pub use vocabulary::{
    Completion, HeldLock, LAST_BYTE, LockError, LockFamily, LockMode, LockOwner, LockRange, WaitTicket,
};
