//! Advisory locks: fcntl and flock, decided by the MDT that holds the file.
//!
//! A request that has to wait is in the queue of the MDT, under a ticket, and the MDT calls back
//! when it is granted or refused. An interrupted caller gets its error only when nothing of the
//! request is left at the MDT, because the kernel may repeat the same call at once. So the MDT is
//! asked to take the request out of the queue. If it is not there any more, it was completed, and
//! the completion decides: if the lock was granted at that moment, the caller has it. While the MDT
//! does not answer, this takes as long as any other call. After a restart of the MDT the request is
//! sent again, and goes to the end of the queue.
//!
//! A caller that drops the future does not come back. If the lock is granted nevertheless, the
//! state that the owner had before is restored, since no caller knows of the new lock and would
//! release it. If the owner's file was closed meanwhile, as happens when a process is killed,
//! nothing is restored: the MDT may execute the release first.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use rpc::{
    Answered, ImportState, LateOutcome, Question,
    message::{
        MdtReply, MdtRequest, Reply,
        mdt::{CancelLock, GetLock, HeldLock, LockFamily, LockMode, LockRange, SetLock, WaitTicket},
    },
};
use rt::clock;
use types::{FsError, FsResult, InodeNumber};

use crate::{
    FileSystem, LockRequest, OpenFile,
    cancellation::finish::{Abandoned, finish},
    locks::{
        held_locks::Released,
        lock_waits::{LockWait, WaitEvent},
    },
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
    /// In the queue: a callback follows.
    Queued,
    /// The MDT recovers; nothing has happened.
    Waiting,
}

/// Between two attempts to reach the MDT, each of which takes as long as callers wait.
const INTERVAL: Duration = Duration::from_millis(100);

/// A request whose caller was told that the MDT does not answer, and that may be queued there.
struct GivenUpLock {
    inode: InodeNumber,
    request: LockRequest,
    wait: LockWait,
    late_outcome: Option<LateOutcome>,
    restoring: Vec<LockRequest>,
    released: Released,
}

impl FileSystem {
    /// Sets or releases an advisory lock on an open file. Through a stale one nothing can be
    /// locked: its close would not release it. Dropping the future of a request for a lock undoes
    /// it: afterwards the owner holds what it held before (nothing, if that was a flock lock to be
    /// converted, or if all its locks were released meanwhile).
    ///
    /// ```
    /// # mod cluster { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/cluster.rs")); }
    /// # use cluster::with_file_system;
    ///
    /// use client::LockRequest;
    /// use rpc::message::mdt::{LockFamily, LockMode, LockRange, OpenFlags, open_flag};
    /// use types::{Credentials, FsError, InodeNumber};
    ///
    /// # with_file_system(async |file_system| {
    /// let (root, flags) = (Credentials::root(), OpenFlags(open_flag::READ | open_flag::WRITE));
    /// let made = file_system.create_open(&root, InodeNumber::ROOT, b"log", 0o600, 0, flags).await?;
    /// let lock = |owner, mode| {
    ///     let range = LockRange { start: 0, end: 99 };
    ///     LockRequest { family: LockFamily::Posix, owner, pid: 1, range, mode, wait: false }
    /// };
    /// file_system.set_lock(&made.file, lock(1, LockMode::Exclusive)).await?;
    /// let second = file_system.set_lock(&made.file, lock(2, LockMode::Shared)).await;
    /// assert_eq!(second, Err(FsError::WouldBlock));
    /// file_system.set_lock(&made.file, lock(1, LockMode::Unlock)).await?;
    /// file_system.set_lock(&made.file, lock(2, LockMode::Shared)).await?;
    /// file_system.close(made.file, None).await
    /// # });
    /// ```
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
        self: &Arc<Self>,
        open: &OpenInode,
        request: LockRequest,
        abandoned: Abandoned,
        interrupted: impl Future<Output = ()>,
    ) -> FsResult<()> {
        let inode = open.inode();
        let locks = request.mode != LockMode::Unlock;
        let released = match locks {
            true => self.client_state.locks.asking(inode, &request),
            false => Released::default(),
        };
        let restoring = self.client_state.locks.restoring(inode, &request);
        let mut wait = (request.wait && locks).then(|| self.client_state.lock_waits.begin(inode, &request));
        let mut late_outcome = None;
        let waits = wait.is_some();
        let ended = async {
            match waits {
                true => tokio::select! { () = interrupted => {}, () = abandoned.set() => {} },
                false => std::future::pending().await,
            }
        };
        let outcome = self.wait_for_lock(open, request, wait.as_mut(), &mut late_outcome, ended, &restoring).await;
        match outcome {
            Ok(()) if locks && open.check().is_err() => {
                // It became stale meanwhile: this may be a lock of the next incarnation.
                self.unlock(inode, request).await?;
                Err(FsError::Stale)
            }
            Ok(()) if locks && abandoned.is_set() => {
                self.undo(inode, &request, restoring, released).await?;
                Err(FsError::Interrupted)
            }
            Ok(()) => Ok(()),
            Err(error) => {
                if let Some(wait) = wait.filter(|wait| wait.may_be_queued) {
                    let given_up = GivenUpLock { inode, request, wait, late_outcome, restoring, released };
                    let (this, incarnation) = (self.clone(), self.client_state.opens.incarnation());
                    let end = async move { this.end_wait(given_up, incarnation).await };
                    self.seams.spawn.spawn("client given up", Box::pin(end));
                }
                Err(error)
            }
        }
    }

    /// Asks until the lock is granted or refused, or until `ended` completes while the request
    /// waits: then it is `Interrupted`, unless it was granted meanwhile.
    async fn wait_for_lock(
        &self,
        open: &OpenInode,
        request: LockRequest,
        mut wait: Option<&mut LockWait>,
        late_outcome: &mut Option<LateOutcome>,
        ended: impl Future<Output = ()>,
        restoring: &[LockRequest],
    ) -> FsResult<()> {
        let inode = open.inode();
        let target = self.targets.mdt_of(inode)?;
        let mut ended = pin!(ended);
        let mut has_ended = false;
        loop {
            if request.mode != LockMode::Unlock {
                open.check()?;
            }
            let restarts = target.restarts();
            let listening = target.repetitions().listen(Some(inode));
            let asked = self.lock_once(inode, request, wait.as_deref_mut(), late_outcome).await?;
            let granted = match (asked, wait.as_deref_mut()) {
                (Asked::Granted, _) => return Ok(()),
                (Asked::Doubtful, _) => false,
                (Asked::Waiting, _) => {
                    tokio::select! {
                        biased;
                        () = listening.heard() => {}
                        () = &mut ended, if !has_ended => return Err(FsError::Interrupted),
                    }
                    continue;
                }
                (Asked::Queued, None) => return Err(unexpected(MdtReply::Queued)),
                (Asked::Queued, Some(wait)) => {
                    let event = tokio::select! {
                        biased;
                        event = wait.next() => Some(event),
                        () = &mut ended, if !has_ended => None,
                        () = std::future::ready(()), if has_ended => None,
                    };
                    let event = match event {
                        Some(event) => event,
                        None => {
                            has_ended = true;
                            if self.cancel_lock(inode, request.family, wait.ticket()).await? {
                                wait.may_be_queued = false;
                                return Err(FsError::Interrupted);
                            }
                            wait.next().await
                        }
                    };
                    match event {
                        WaitEvent::Completed(outcome) => {
                            wait.may_be_queued = false;
                            outcome?;
                            true
                        }
                        WaitEvent::Restarted if has_ended => {
                            wait.may_be_queued = false;
                            return Err(FsError::Interrupted);
                        }
                        WaitEvent::Restarted => continue,
                    }
                }
            };
            if granted && target.restarts() == restarts {
                return Ok(());
            }
            // Granted before a restart: until it is granted for sure, what was held before counts.
            restoring.iter().for_each(|step| self.client_state.locks.granted(inode, step));
        }
    }

    /// Ends a wait whose caller has been told that the MDT does not answer: no lock is granted to
    /// nobody.
    async fn end_wait(self: &Arc<Self>, given_up: GivenUpLock, incarnation: u64) {
        let GivenUpLock { inode, request, mut wait, late_outcome, restoring, released } = given_up;
        let late = match late_outcome {
            Some(late_outcome) => late_outcome.known().await.map(|answer| answer.map(|answered| answered.reply)),
            None => Some(Ok(Reply::Mdt(MdtReply::Queued))),
        };
        let is_granted = match late {
            Some(Ok(Reply::Mdt(MdtReply::Done))) => true,
            Some(Ok(Reply::Mdt(MdtReply::Queued))) => {
                let cancelled = loop {
                    if self.client_state.opens.incarnation() != incarnation {
                        return;
                    }
                    match self.cancel_lock(inode, request.family, wait.ticket()).await {
                        Ok(cancelled) => break cancelled,
                        Err(FsError::Unreachable { .. }) if self.is_open(inode) => {
                            clock::sleep(&*self.seams.clock, INTERVAL).await;
                        }
                        // It ends with the session.
                        Err(_) => return,
                    }
                };
                !cancelled && wait.next().await == WaitEvent::Completed(Ok(()))
            }
            // It never came to the queue.
            _ => false,
        };
        if is_granted && let Err(error) = self.undo(inode, &request, restoring, released).await {
            tracing::warn!(%inode, %error, "a lock whose caller has given up stays until its file is closed");
        }
    }

    /// Whether the connection to the MDT of an inode is not closed.
    fn is_open(&self, inode: InodeNumber) -> bool {
        self.targets.mdt_of(inode).is_ok_and(|target| target.import().state() != ImportState::Closed)
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
            if !released.is_set() {
                self.set_without_waiting(inode, step).await?;
            }
        }
        // Last: what was restored a moment ago may have come after the release.
        if released.is_set() {
            self.unlock_all(inode, request.family, request.owner).await?;
        }
        Ok(())
    }

    /// One request, under the ticket of `wait`.
    async fn lock_once(
        &self,
        inode: InodeNumber,
        request: LockRequest,
        wait: Option<&mut LockWait>,
        late_outcome: &mut Option<LateOutcome>,
    ) -> FsResult<Asked> {
        let LockRequest { family, owner, pid, range, mode, .. } = request;
        let target = self.targets.mdt_of(inode)?;
        let restarts = target.restarts();
        let ticket = wait.as_ref().map(|wait| wait.ticket());
        let before = self.client_state.locks.giving_up(inode, &request);
        let set = MdtRequest::SetLock(SetLock { inode, family, owner, pid, range, mode, ticket });
        let answered = match wait {
            None => self.call(inode, set).await,
            Some(wait) => {
                let answered = self.call(inode, Question::with_late_outcome(set, late_outcome)).await;
                let reply = answered.as_ref().map(|answered| &answered.reply);
                wait.may_be_queued = matches!(reply, Ok(MdtReply::Queued) | Err(FsError::Unreachable { .. }));
                answered
            }
        };
        if matches!(answered, Err(FsError::NoLocks) | Ok(Answered { reply: MdtReply::Waiting, .. })) {
            before.iter().for_each(|step| self.client_state.locks.granted(inode, step));
        }
        match answered?.reply {
            MdtReply::Done => {
                self.client_state.locks.granted(inode, &request);
                Ok(if target.restarts() == restarts { Asked::Granted } else { Asked::Doubtful })
            }
            MdtReply::Queued => Ok(Asked::Queued),
            MdtReply::Waiting => Ok(Asked::Waiting),
            reply => Err(unexpected(reply)),
        }
    }

    /// Sets or releases a lock of an owner that nothing can be in the way of.
    async fn set_without_waiting(&self, inode: InodeNumber, request: LockRequest) -> FsResult<()> {
        let target = self.targets.mdt_of(inode)?;
        loop {
            let listening = target.repetitions().listen(Some(inode));
            match self.lock_once(inode, request, None, &mut None).await? {
                Asked::Granted => return Ok(()),
                Asked::Waiting => listening.heard().await,
                Asked::Doubtful => {}
                Asked::Queued => return Err(unexpected(MdtReply::Queued)),
            }
        }
    }

    /// Takes a request out of the queue. False: it was completed, of which the MDT tells.
    async fn cancel_lock(&self, inode: InodeNumber, family: LockFamily, ticket: WaitTicket) -> FsResult<bool> {
        let cancel = MdtRequest::CancelLock(CancelLock { inode, family, ticket });
        match self.call(inode, cancel).await.and_then(done) {
            Ok(()) => Ok(true),
            Err(FsError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
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
        self.set_without_waiting(inode, LockRequest { mode: LockMode::Unlock, wait: false, ..request }).await
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
        match self.ask_open(inode, MdtRequest::GetLock(GetLock { inode, owner, range, mode })).await? {
            MdtReply::Lock(lock) => Ok(lock),
            reply => Err(unexpected(reply)),
        }
    }
}
