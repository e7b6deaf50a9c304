//! Opening for reading without a request, under a lock on the opens of the inode; or with a request
//! that brings this lock, so that the MDT need not register the open.
//!
//! Such an open is registered here with the cache locked, so the lock cannot be given back before:
//! the task that gives it back finds the open and tells the MDT first
//! ([`crate::targets::told_opens`]).

use std::sync::Arc;

use rpc::message::{
    ReplyExtension,
    lock::{Resource, inode_bit},
    mdt::{OpenFlags, OpenId, Opened, open_flag},
};
use types::{Credentials, FsError, FsResult, InodeNumber, LockHandle};

use super::open::Before;
use crate::{
    FileSystem, OpenFile,
    cache::inode_cache::InodeCache,
    open_state::{open_table::OpenTable, registered_open::AtMdt},
    statistics::Operation,
};

/// The lock on opens of an inode that came beside a reply.
fn granted(beside: &ReplyExtension, inode: InodeNumber) -> Option<LockHandle> {
    let may_open = |resource: &Resource| matches!(resource, Resource::Inode(of, bits) if *of == inode && bits.0 & inode_bit::OPEN != 0);
    beside.granted.iter().find(|lock| may_open(&lock.resource)).map(|lock| lock.handle)
}

impl FileSystem {
    /// How an open is asked for: with leave not to register it, if the MDT takes it when it is
    /// registered later.
    pub(super) fn asked_flags(&self, flags: OpenFlags) -> OpenFlags {
        let may_be_unregistered = flags.0 & !open_flag::UNASKED == 0;
        match may_be_unregistered && self.client_state.opens.len() < self.unasked_opens_max {
            true => OpenFlags(flags.0 | open_flag::UNREGISTERED),
            false => flags,
        }
    }

    /// Opens a file or directory if the MDT need not be asked; `None`: it must be.
    pub(super) async fn open_unasked(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        flags: OpenFlags,
    ) -> Option<FsResult<Arc<OpenFile>>> {
        let before = self.before_open(inode).ok()?;
        let wall = self.seams.clock.wall();
        let open = |cache: &mut InodeCache, opens: &OpenTable| {
            if opens.len() >= self.unasked_opens_max {
                return None;
            }
            cache.open(credentials, inode, flags, wall, |inode| opens.is_written(inode))
        };
        let opened = self.open_under_lock(inode, (self.next_open_id(), flags), before, open).await?;
        self.count(Operation::CacheHits);
        Some(opened)
    }

    /// Takes over an open that the MDT granted and did not register; `None`: the lock that came
    /// with it has gone, so the MDT is to be asked again.
    pub(super) async fn opened_unregistered(
        self: &Arc<Self>,
        name: (OpenId, OpenFlags),
        opened: &Opened,
        beside: &ReplyExtension,
        before: Before,
    ) -> Option<FsResult<Arc<OpenFile>>> {
        let inode = opened.entry.attributes.inode;
        let handle = granted(beside, inode)?;
        let open = |cache: &mut InodeCache, _: &OpenTable| cache.may_open_by(inode, handle).then(|| Ok(opened.clone()));
        self.open_under_lock(inode, name, before, open).await
    }

    /// Registers what `open` decides with the cache locked.
    async fn open_under_lock(
        self: &Arc<Self>,
        inode: InodeNumber,
        (id, flags): (OpenId, OpenFlags),
        before: Before,
        open: impl FnOnce(&mut InodeCache, &OpenTable) -> Option<FsResult<Opened>>,
    ) -> Option<FsResult<Arc<OpenFile>>> {
        let target = self.targets.mdt_of(inode).ok()?;
        let opens = &self.client_state.opens;
        let found = target.serve(&self.seams, |cache| {
            let opened = match open(cache, opens)? {
                Ok(opened) => opened,
                Err(error) => return Some(Err(error)),
            };
            let current = || before.is_current(&target);
            let open = opens.register((id, flags), &opened, false, AtMdt::Unknown, before.incarnation(), current);
            Some(open.map(|open| (open, opened.entry.attributes, cache.connection())))
        });
        let (open, attributes, connection) = match found? {
            Ok(found) => found,
            // This incarnation of the mount ends: the next one asks the MDT.
            Err(FsError::Stale) => return None,
            Err(error) => return Some(Err(error)),
        };
        let file = Arc::new(OpenFile::new(open, &attributes, id, flags, Arc::downgrade(self)));
        if target.cache().connection(&target.import()) == connection && before.is_current(&target) {
            return Some(Ok(file));
        }
        // The locks ended meanwhile. Whether the MDT was told of this open then is unknown.
        self.client_state.opens.told(&[(inode, id, flags)]);
        Some(self.open_again(&file, &target).await.map(|()| file))
    }
}
