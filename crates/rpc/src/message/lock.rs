//! Locks under which clients cache: the types that requests, replies and callbacks have in common.
//!
//! A client asks for a lock with any request ([`RequestExtension::wanted`]); it gets it with the
//! reply ([`ReplyExtension::granted`]). The target withdraws it with a callback
//! ([`ClientRequest`]); the client gives it back with [`MdtRequest::CancelLocks`], or with any
//! request ([`RequestExtension::cancels`]). Giving back a lock that does not exist is not an error.
//!
//! A handle is granted once. Locks live as long as the connection through which they were granted:
//! on a new one the client holds only those that it claims there ([`MdtRequest::ClaimLocks`]), and
//! a reply that a target repeats grants none. Bits that a client holds are not granted to it again,
//! so it has several locks on one inode, with different bits. A client that is asked for a lock
//! that it does not know, because the reply that grants it is under way or lost, gives it back
//! nevertheless.
//!
//! What an MDT is asked for with a request: [`inode_bit::DIRECTORY`] concerns the directory that
//! the request names (the parent of a name, the directory that is read), all other bits concern the
//! inode that the reply shows. The number is that of the inode that the request names.
//!
//! [`RequestExtension::wanted`]: super::extension::RequestExtension::wanted
//! [`RequestExtension::cancels`]: super::extension::RequestExtension::cancels
//! [`ReplyExtension::granted`]: super::extension::ReplyExtension::granted
//! [`ClientRequest`]: super::client::ClientRequest
//! [`MdtRequest::CancelLocks`]: super::MdtRequest::CancelLocks
//! [`MdtRequest::ClaimLocks`]: super::MdtRequest::ClaimLocks

pub use lock::{InodeBits, inode_bit};
use serde::{Deserialize, Serialize};
use types::{InodeNumber, LockHandle, ObjectId};

use super::mdt::LockRange;

/// What a lock is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resource {
    /// Parts of an inode.
    Inode(InodeNumber, InodeBits),
    /// A range of an object.
    Object(ObjectId, LockRange),
}

/// What a lock allows its holder, and forbids others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheMode {
    /// To keep what it has read.
    Read,
    /// To keep what it has written, too.
    Write,
}

/// Ask for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueue {
    /// About what. The target may grant more.
    pub resource: Resource,
    /// How.
    pub mode: CacheMode,
    /// Without waiting: if another client's lock is in the way, nothing is granted and no client is
    /// asked to give it up.
    pub opportunistic: bool,
}

/// A lock that a client holds from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Its name.
    pub handle: LockHandle,
    /// About what: at least what was asked for.
    pub resource: Resource,
    /// How.
    pub mode: CacheMode,
    /// Of an inode: its version when the lock was granted; 0: unknown.
    #[serde(default)]
    pub version: u64,
}
