//! One open of this client as its table has it.

use rpc::message::mdt::{OpenFlags, OpenId};
use types::InodeNumber;

/// Whether the MDT knows an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtMdt {
    /// It does: it is told of the close.
    Known,
    /// A request may have told it.
    Telling,
    /// It has not been told: the open was made under a lock on the opens of its inode.
    Unknown,
}

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisteredOpen {
    pub flags: OpenFlags,
    /// A close is in progress.
    pub closing: bool,
    pub at_mdt: AtMdt,
}

/// An open as an MDT is told of it.
pub(crate) type Told = (InodeNumber, OpenId, OpenFlags);
