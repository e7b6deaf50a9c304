//! Advisory locks: fcntl and flock, decided by the MDT that holds the file.
//!
//! A waiting request is repeated while the MDT answers `Waiting` (it keeps its place in the queue).
//! An interrupted caller is told so only when nothing of the request is left at the MDT: the kernel
//! may repeat the same call at once, and undoing the first call in the background would undo the
//! repetition. So the MDT is asked to end the wait, and its answer decides: if it granted the lock
//! at that moment, the caller has it. While the MDT does not answer, this takes as long as any
//! other call.
//!
//! A caller that drops the future does not come back. If the lock is granted nevertheless, the
//! state that the owner had before is restored, since no caller knows of the new lock and would
//! release it. If the owner's file was closed meanwhile, as happens when a process is killed,
//! nothing is restored: the MDT may execute the release first.

use std::{future::Future, pin::pin, sync::Arc};

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{CancelLock, GetLock, HeldLock, LockFamily, LockMode, LockRange, SetLock},
};
use types::{FsError, FsResult, InodeNumber};

use crate::{
    FileSystem, LockRequest, OpenFile,
    cancellation::finish::{Abandoned, finish},
    locks::held_locks::Released,
    open_state::open_inode::OpenInode,
    statistics::Operation,
    targets::connection::{done, unexpected},
};

/// How the MDT answered one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Granted,
    /// Granted before a restart, noted after what was held was claimed again: to be asked again.
    Doubtful,
    /// For others, or for the MDT to recover.
    Waiting,
}

impl FileSystem {
    /// Sets or releases an advisory lock on an open file. Through a stale one nothing can be
    /// locked: its close would not release it. Dropping the future of a request for a lock undoes
    /// it: afterwards the owner holds what it held before (nothing, if that was a flock lock to be
    /// converted, or if all its locks were released meanwhile).
    pub async fn set_lock(self: &Arc<Self>, file: &OpenFile, request: LockRequest) -> FsResult<()> {
        self.set_lock_unless(file, request, std::future::pending()).await
    }

    /// As [`FileSystem::set_lock`]; a request that waits when `interrupted` completes ends as soon
    /// as the MDT says how: granted, or `Interrupted`. Then nothing of it is left, and the owner
    /// may ask again.
    pub async fn set_lock_unless(
        self: &Arc<Self>,
        file: &OpenFile,
        request: LockRequest,
        interrupted: impl Future<Output = ()> + Send + 'static,
    ) -> FsResult<()> {
        self.count(Operation::Flock);
        let range = request.range.normalised().map_err(|_| FsError::Invalid)?;
        let (this, open, request) = (self.clone(), file.open.clone(), LockRequest { range, ..request });
        finish(&self.seams.spawn, move |abandoned| async move {
            this.lock_until_granted(&open, request, abandoned, interrupted).await
        })
        .await
    }

    async fn lock_until_granted(
        &self,
        open: &OpenInode,
        request: LockRequest,
        abandoned: Abandoned,
        interrupted: impl Future<Output = ()>,
    ) -> FsResult<()> {
        let inode = open.inode();
        let locks = request.mode != LockMode::Unlock;
        let waits = request.wait && locks;
        let released = locks.then(|| self.client_state.locks.asking(inode, &request));
        let restoring = self.client_state.locks.restoring(inode, &request);
        let mut interrupted = pin!(interrupted);
        let mut is_interrupted = false;
        loop {
            if locks {
                open.check()?;
            }
            let mut asking = pin!(self.lock_once(inode, request));
            let asked = tokio::select! {
                biased;
                asked = &mut asking => asked?,
                () = &mut interrupted, if waits && !is_interrupted => {
                    is_interrupted = true;
                    tokio::join!(biased; asking, self.cancel_lock(inode, &request)).0?
                }
            };
            match asked {
                Asked::Granted if locks && open.check().is_err() => {
                    // It became stale meanwhile: this may be a lock of the next life.
                    self.unlock(inode, request).await?;
                    return Err(FsError::Stale);
                }
                Asked::Granted if locks && abandoned.is_set() => {
                    self.undo(inode, &request, restoring, released.unwrap_or_default()).await?;
                    return Err(FsError::Interrupted);
                }
                Asked::Granted => return Ok(()),
                Asked::Waiting if is_interrupted || waits && abandoned.is_set() => {
                    // Again, if it was before: that one may have overtaken the request.
                    self.cancel_lock(inode, &request).await?;
                    return Err(FsError::Interrupted);
                }
                Asked::Waiting => {}
                // Until it is granted for sure, what was held before counts.
                Asked::Doubtful => restoring.iter().for_each(|step| self.client_state.locks.granted(inode, step)),
            }
        }
    }

    /// Releases a lock that is no longer wanted.
    async fn undo(
        &self,
        inode: InodeNumber,
        request: &LockRequest,
        restoring: Vec<LockRequest>,
        released: Released,
    ) -> FsResult<()> {
        for step in restoring {
            while !released.is_set() && self.lock_once(inode, step).await? != Asked::Granted {}
        }
        // Last: what was restored a moment ago may have come after the release.
        if released.is_set() {
            self.unlock_all(inode, request.family, request.owner).await?;
        }
        Ok(())
    }

    /// One request.
    async fn lock_once(&self, inode: InodeNumber, request: LockRequest) -> FsResult<Asked> {
        let LockRequest { family, owner, pid, range, mode, wait } = request;
        let target = self.targets.mdt_of(inode)?;
        let restarts = target.restarts();
        let set = SetLock { inode, family, owner, pid, range, mode, wait };
        match self.call(inode, MdtRequest::SetLock(set)).await?.reply {
            MdtReply::Done => {
                self.client_state.locks.granted(inode, &request);
                Ok(if target.restarts() == restarts { Asked::Granted } else { Asked::Doubtful })
            }
            MdtReply::Waiting => Ok(Asked::Waiting),
            reply => Err(unexpected(reply)),
        }
    }

    /// Ends the waits of an owner, also those within the MDT's handlers.
    async fn cancel_lock(&self, inode: InodeNumber, request: &LockRequest) -> FsResult<()> {
        let LockRequest { family, owner, .. } = *request;
        self.call(inode, MdtRequest::CancelLock(CancelLock { inode, family, owner })).await.and_then(done)
    }

    /// Releases all locks of an owner, if it may have any.
    pub(crate) async fn unlock_all(&self, inode: InodeNumber, family: LockFamily, owner: u64) -> FsResult<()> {
        if !self.client_state.locks.releasing(inode, family, owner) {
            return Ok(());
        }
        self.count(Operation::Flock);
        let (range, mode) = (LockRange::WHOLE, LockMode::Unlock);
        let unlocked = self.unlock(inode, LockRequest { family, owner, pid: 0, range, mode, wait: false }).await;
        if unlocked.is_err() {
            self.client_state.locks.not_released(inode, family, owner);
        }
        unlocked
    }

    /// Releases what a request asks for.
    async fn unlock(&self, inode: InodeNumber, request: LockRequest) -> FsResult<()> {
        let unlock = LockRequest { mode: LockMode::Unlock, wait: false, ..request };
        while self.lock_once(inode, unlock).await? != Asked::Granted {}
        Ok(())
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
        loop {
            match self.call(inode, MdtRequest::GetLock(GetLock { inode, owner, range, mode })).await?.reply {
                MdtReply::Lock(lock) => return Ok(lock),
                MdtReply::Waiting => {}
                reply => return Err(unexpected(reply)),
            }
        }
    }
}
