//! Locks under which clients cache: the words that requests, replies and callbacks have in common.
//!
//! A client asks for a lock beside any request ([`RequestExtension::wanted`]) or with a request of
//! its own; it gets it beside the reply ([`ReplyExtension::granted`]). The target withdraws it with a
//! callback ([`ClientRequest`]); the client gives it back with [`MdtRequest::CancelLocks`] or
//! [`OstRequest::CancelLocks`], or beside any request ([`RequestExtension::cancels`]).
//!
//! [`RequestExtension::wanted`]: super::extension::RequestExtension::wanted
//! [`RequestExtension::cancels`]: super::extension::RequestExtension::cancels
//! [`ReplyExtension::granted`]: super::extension::ReplyExtension::granted
//! [`ClientRequest`]: super::client::ClientRequest
//! [`MdtRequest::CancelLocks`]: super::MdtRequest::CancelLocks
//! [`OstRequest::CancelLocks`]: super::OstRequest::CancelLocks

use serde::{Deserialize, Serialize};
use types::{InodeNumber, LockHandle, ObjectId};

use super::mdt::LockRange;

/// What can be cached of an inode. Bits of [`InodeBits`], as in Lustre's inode bit locks.
pub mod inode_bit {
    /// The name leads to the inode.
    pub const LOOKUP: u32 = 1;
    /// Attributes, access lists, the target of a symbolic link.
    pub const ATTRIBUTES: u32 = 2;
    /// The file may be opened again without a request.
    pub const OPEN: u32 = 4;
    /// The layout.
    pub const LAYOUT: u32 = 8;
    /// The names in a directory, and that others do not exist.
    pub const DIRECTORY: u32 = 16;
    /// Extended attributes, and that others do not exist.
    pub const XATTRS: u32 = 32;
    /// Data on the MDT.
    pub const DATA: u32 = 64;
}

/// Set of [`inode_bit`] bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeBits(pub u32);

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
    /// Without waiting: if another client's lock is in the way, nothing is granted and nobody is
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
}
