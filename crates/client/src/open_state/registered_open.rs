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
    /// It was made without a request to the MDT: a request that reports it may be under way.
    pub unasked: bool,
}

impl RegisteredOpen {
    /// Whether the MDT is to be told, if it is told of anything: not of what is being closed, since
    /// it must not receive an open after its end.
    pub fn is_untold(&self) -> bool {
        self.at_mdt != AtMdt::Known && !self.closing
    }
}

/// An open as an MDT is told of it.
pub(crate) type Told = (InodeNumber, OpenId, OpenFlags);
