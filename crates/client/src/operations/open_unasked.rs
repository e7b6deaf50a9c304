//! Opening for reading without a request, under a lock on the opens of the inode.
//!
//! Such an open is registered with the cache locked, so the lock cannot be given back before: the
//! task that gives it back finds the open and tells the MDT first ([`crate::targets::told_opens`]).

use std::sync::Arc;

use rpc::message::mdt::OpenFlags;
use types::{Credentials, FsError, FsResult, InodeNumber};

use crate::{FileSystem, OpenFile, open_state::registered_open::AtMdt};

impl FileSystem {
    /// Opens a file or directory if the MDT need not be asked; `None`: it must be.
    pub(super) async fn open_unasked(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        flags: OpenFlags,
    ) -> Option<FsResult<Arc<OpenFile>>> {
        let target = self.targets.mdt_of(inode).ok()?;
        let before = self.before_open(inode).ok()?;
        let wall = self.seams.clock.wall();
        let id = self.next_open_id();
        let found = self.cached(inode, |cache, opens| {
            if opens.len() >= self.unasked_opens_max {
                return None;
            }
            let opened = match cache.open(credentials, inode, flags, wall, |inode| opens.is_written(inode))? {
                Ok(opened) => opened,
                Err(error) => return Some(Err(error)),
            };
            let current = || before.is_current(&target);
            let open = opens.register((id, flags), &opened, false, AtMdt::Unknown, before.incarnation(), current);
            Some(open.map(|open| (open, opened.entry.attributes, cache.connection())))
        })?;
        let (open, attributes, connection) = match found {
            Ok(found) => found,
            // This incarnation of the mount ends: the next one asks the MDT.
            Err(FsError::Stale) => return None,
            Err(error) => return Some(Err(error)),
        };
        let file = Arc::new(OpenFile::new(open, &attributes, id, flags, Arc::downgrade(self)));
        if target.cache().connection(&target.import()) == connection {
            return Some(Ok(file));
        }
        // The locks ended meanwhile. Whether the MDT was told of this open then is unknown.
        self.client_state.opens.told(&[(inode, id, flags)]);
        Some(self.open_again(&file, &target).await.map(|()| file))
    }
}
