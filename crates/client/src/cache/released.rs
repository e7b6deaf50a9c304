//! Locks that are to be given back.

use rpc::message::lock::InodeBits;
use types::{InodeNumber, LockHandle};

use super::own_changes::Moment;

/// A lock that was given up, and what it was about: what is not covered by any lock any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub handle: LockHandle,
    pub inode: InodeNumber,
    pub parts: InodeBits,
    /// Questions that were asked later were answered while it was held.
    pub since: Moment,
}
