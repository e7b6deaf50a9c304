//! Tells the kernel to drop what it has cached. Notifications go through `/dev/fuse`, whichever way
//! requests come.

use std::{
    io,
    sync::{Arc, Weak},
};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::device::Device;
use crate::protocol::notify::{
    EXPIRE_ONLY, INCREMENT_EPOCH, INVALIDATE_ENTRY, INVALIDATE_INODE, InvalidateEntry, InvalidateInode, MINOR_OF_EPOCHS,
};

/// What the kernel answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// It has dropped it, or the session has ended.
    Done,
    /// It does not know the inode, or the name.
    Unknown,
}

/// The kernel's side of a session. Does not keep the session open.
#[derive(Clone, Debug)]
pub struct Notifications {
    device: Weak<Device>,
    minor: u32,
}

impl Notifications {
    /// Of a session that speaks this minor version of the protocol.
    pub(crate) fn new(device: &Arc<Device>, minor: u32) -> Self {
        Self { device: Arc::downgrade(device), minor }
    }

    /// Whether the kernel can be told that all names are outdated ([`Notifications::epoch`]). The
    /// same kernels apply no attributes that are older than the eviction of their inode.
    pub fn has_epochs(&self) -> bool {
        self.minor >= MINOR_OF_EPOCHS
    }

    /// The attributes and access lists of an inode are outdated, and so are those in replies to
    /// requests that the kernel has sent before. Takes no lock that is ever held for long.
    pub fn attributes(&self, node: u64) -> Notified {
        let body = InvalidateInode { node, offset: -1, length: 0 };
        self.send(INVALIDATE_INODE, &[body.as_bytes()])
    }

    /// The names of a directory that are kept are outdated, and its attributes. Waits until none is
    /// being copied to a program, whose memory may be a file of any file system.
    pub fn listing(&self, node: u64) -> Notified {
        let body = InvalidateInode { node, offset: 0, length: 0 };
        self.send(INVALIDATE_INODE, &[body.as_bytes()])
    }

    /// A name is outdated, or is only to be looked up again (`expires`). Waits for the lock of the
    /// directory, which changes in it and of it hold until they are answered, and lookups too.
    pub fn name(&self, parent: u64, name: &[u8], expires: bool) -> Notified {
        let head =
            InvalidateEntry { parent, name_bytes: name.len() as u32, flags: if expires { EXPIRE_ONLY } else { 0 } };
        self.send(INVALIDATE_ENTRY, &[head.as_bytes(), name, &[0]])
    }

    /// All names are outdated, but for those in replies to READDIRPLUS that the kernel has not
    /// processed yet. Takes no lock.
    pub fn epoch(&self) -> Notified {
        self.send(INCREMENT_EPOCH, &[])
    }

    fn send(&self, code: i32, body: &[&[u8]]) -> Notified {
        let Some(device) = self.device.upgrade() else { return Notified::Done };
        match device.notify(code, body) {
            Ok(()) => Notified::Done,
            Err(Errno::NOENT) => Notified::Unknown,
            // Nothing is mounted any more.
            Err(Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => Notified::Done,
            // The parent is not a directory any more, or no name is as long.
            Err(Errno::NOTDIR | Errno::NAMETOOLONG) => Notified::Unknown,
            Err(error) => {
                let error = io::Error::from(error);
                tracing::error!(code, %error, "the kernel refused a notification");
                Notified::Unknown
            }
        }
    }
}
