//! Advisory locks: fcntl and flock, decided by the MDT that holds the file.
//!
//! A waiting request is repeated while the MDT answers `Waiting` (it keeps its place in the queue). If the caller gives
//! up meanwhile, the request leaves the queue; if it was granted at that very moment, the owner gets back what it held
//! before, since nobody will ever release what nobody knows of.

use std::sync::Arc;

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{CancelLock, GetLock, HeldLock, LockFamily, LockMode, LockRange, SetLock},
};
use types::{FsError, FsResult, InodeNumber};

use crate::{
    FileSystem, LockRequest,
    finish::{Abandoned, finish},
    statistics::Operation,
    target::unexpected,
};

impl FileSystem {
    /// Sets or releases an advisory lock. Dropping the future of a waiting request gives up: afterwards the owner holds
    /// what it held before.
    pub async fn set_lock(self: &Arc<Self>, inode: InodeNumber, request: LockRequest) -> FsResult<()> {
        self.count(Operation::Flock);
        let range = request.range.normalised().map_err(|_| FsError::Invalid)?;
        let (this, request) = (self.clone(), LockRequest { range, ..request });
        finish(
            &self.seams.spawn,
            move |abandoned| async move { this.lock_until_granted(inode, request, abandoned).await },
        )
        .await
    }

    async fn lock_until_granted(&self, inode: InodeNumber, request: LockRequest, abandoned: Abandoned) -> FsResult<()> {
        let restoring = self.volatile.locks.restoring(inode, &request);
        let gave_up = || request.wait && request.mode != LockMode::Unlock && abandoned.is_set();
        loop {
            let granted = self.lock_once(inode, request).await?;
            match (granted, gave_up()) {
                (true, false) => return Ok(()),
                (true, true) => {
                    for step in restoring {
                        while !self.lock_once(inode, step).await? {}
                    }
                    return Err(FsError::Interrupted);
                }
                (false, true) => {
                    let (family, owner) = (request.family, request.owner);
                    self.mdt_done(inode, MdtRequest::CancelLock(CancelLock { inode, family, owner })).await?;
                    return Err(FsError::Interrupted);
                }
                (false, false) => {}
            }
        }
    }

    /// One request; true if it was granted, false if it waits (for others, or for the MDT to recover).
    async fn lock_once(&self, inode: InodeNumber, request: LockRequest) -> FsResult<bool> {
        let LockRequest { family, owner, pid, range, mode, wait } = request;
        let target = self.targets.mdt_of(inode)?;
        let restarts = target.restarts();
        let set = SetLock { inode, family, owner, pid, range, mode, wait };
        match target.mdt(MdtRequest::SetLock(set)).await? {
            MdtReply::Done => {
                self.volatile.locks.granted(inode, &request);
                // Granted before a restart, noted after what was held was claimed again: ask again.
                Ok(target.restarts() == restarts)
            }
            MdtReply::Waiting => Ok(false),
            reply => Err(unexpected(reply)),
        }
    }

    /// Releases all fcntl locks of an owner.
    pub(crate) async fn unlock_all(self: &Arc<Self>, inode: InodeNumber, owner: u64) -> FsResult<()> {
        let (family, mode) = (LockFamily::Posix, LockMode::Unlock);
        self.set_lock(inode, LockRequest { family, owner, pid: 0, range: LockRange::WHOLE, mode, wait: false }).await
    }

    /// F_GETLK: a lock that conflicts.
    pub async fn get_lock(
        &self,
        inode: InodeNumber,
        owner: u64,
        range: LockRange,
        mode: LockMode,
    ) -> FsResult<Option<HeldLock>> {
        self.count(Operation::Flock);
        match self.mdt(inode, MdtRequest::GetLock(GetLock { inode, owner, range, mode })).await? {
            MdtReply::Lock(lock) => Ok(lock),
            reply => Err(unexpected(reply)),
        }
    }
}
