//! The lock manager: who may do what to a file, and who comes next. Pure state machines: time and
//! events come in as arguments, decisions and wake-ups come out; no clock, no task, no message.
//!
//! - [`advisory`]: fcntl record locks and flock locks of all clients, with queues and deadlock
//!   detection.
//! - [`exclusive`]: one exclusive lock per file in order of arrival, for appends and truncations.
//! - [`inode_locks`]: the locks under which clients cache parts of inodes, and the changes that wait
//!   until these are given back.
//!
//! The first two queue by *asking again*: a lock is granted only to a request that is present. When a queued
//! request becomes grantable the state machine returns a wake-up, the owner asks again, and gets
//! the lock then. A request that stops asking leaves the queue after [`TIMEOUT_NS`]. So no lock is
//! ever held by an owner that gave up or died while waiting; the price is one more step per
//! contended grant, and a queue that stands still for up to that time if the first waiter has died.

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
pub use vocabulary::{HeldLock, LAST_BYTE, LockError, LockFamily, LockMode, LockOwner, LockRange, Wake};

/// Nanoseconds after which a queued request that was not asked again leaves the queue: several
/// times the second within which a waiting client hears `Waiting` and asks again.
pub const TIMEOUT_NS: u64 = 5_000_000_000;
