//! Opens for reading that are decided here, under a lock on the opens of the inode.
//!
//! Permission is decided as the MDT does. An open that changes the access time is noted
//! (`own_accesses`). The layout is known under a lock of its own.

use rpc::message::{
    lock::inode_bit,
    mdt::{Entry, OpenFlags, Opened, open_flag},
};
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, LockHandle, Timestamp, permission};

use super::InodeCache;
use crate::cache::connection_id::ConnectionId;

impl InodeCache {
    /// The connection whose locks are held.
    pub fn connection(&self) -> Option<ConnectionId> {
        self.connection
    }

    /// Whether a lock on the opens of an inode is held.
    pub fn may_open_by(&self, inode: InodeNumber, handle: LockHandle) -> bool {
        let Some(cached) = self.inodes.get(&inode).filter(|_| self.connection.is_some()) else { return false };
        cached.locks().any(|(held, bits)| held == handle && bits.0 & inode_bit::OPEN != 0)
    }

    /// The answer to an open for reading, if it is known. `written` as in [`InodeCache::ask`].
    pub fn open(
        &mut self,
        who: &Credentials,
        number: InodeNumber,
        flags: OpenFlags,
        wall: Timestamp,
        written: impl Fn(InodeNumber) -> bool,
    ) -> Option<FsResult<Opened>> {
        let wanted = wanted(flags)?;
        if self.inodes.get(&number)?.bits().0 & inode_bit::OPEN == 0 {
            return None;
        }
        let known = self.permissions(number)?;
        let (mut attributes, layout) = match known.permissions().kind {
            FileKind::Directory if !flags.has(open_flag::EXECUTE) => (*known.permissions(), None),
            FileKind::Regular => (self.attributes(number, written)?, Some(self.layout(number)?)),
            _ => return None,
        };
        if let Err(error) = known.access(who, wanted)?.or(FsError::AccessDenied) {
            return Some(Err(error));
        }
        let changes_access_time = layout.is_some() && !flags.has(open_flag::NO_ACCESS_TIME);
        if changes_access_time && !self.accessed(number, &mut attributes, wall) {
            return None;
        }
        self.used(number);
        let layout = layout.map(|layout| layout.as_ref().clone());
        Some(Ok(Opened { entry: Entry::of(attributes), layout, epoch: 0, truncate: false, capabilities: false }))
    }
}

/// The permissions that an open needs; `None`: the MDT is to be asked.
fn wanted(OpenFlags(flags): OpenFlags) -> Option<u32> {
    let bit = |flag: u32, permission: u32| if flags & flag != 0 { permission } else { 0 };
    let wanted = bit(open_flag::READ, permission::READ) | bit(open_flag::EXECUTE, permission::EXECUTE);
    (flags & !open_flag::UNASKED == 0 && wanted != 0).then_some(wanted)
}
