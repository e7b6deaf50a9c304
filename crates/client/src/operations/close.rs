//! Closing.
//!
//! An open whose handle is dropped is closed in the background. At the close of a file's last
//! writer the MDT learns the size: from what this client knows, or, if the MDT asks for it, from a
//! glimpse.
//!
//! The close of a new file, or of one that was added to, waits for the next request to the MDT
//! (`targets::late_closes`). It is sent at once if anything depends on it: if it ends a flock, if
//! the client does not know the size for sure, if it has the file open more than once, if the file
//! was truncated or has lost its name, or if the client is about to leave
//! (docs/decisions/0059-late-closes.md).

use std::sync::{Arc, Weak};

use layout::Layout;
use rpc::{
    Question,
    message::{
        MdtReply, MdtRequest,
        mdt::{Close, LockFamily, OpenId},
    },
};
use rt::BoxFuture;
use types::{FileKind, FsError, FsResult, InodeNumber};

use crate::{
    FileSystem, OpenFile,
    cancellation::finish::finish,
    open_state::{
        open_inode::{OpenInode, verified},
        registered_open::AtMdt,
    },
    statistics::Operation,
    targets::{
        connection::{done, entry, unexpected},
        late_closes::{Closer, LateClose},
    },
};

impl FileSystem {
    /// Closes. `flock_owner`: the owner whose flock locks end with this close.
    pub async fn close(self: &Arc<Self>, file: Arc<OpenFile>, flock_owner: Option<u64>) -> FsResult<()> {
        if !file.begin_close() {
            return Err(FsError::BadHandle);
        }
        let this = self.clone();
        finish(&self.seams.spawn, move |_| async move {
            let (open, id) = (file.open.clone(), file.id());
            let _completed = file.changes_completed().await;
            this.close_open(&open, id, flock_owner).await
        })
        .await
    }

    /// Closes an open whose handle was dropped.
    pub(crate) fn close_forgotten(self: Arc<Self>, open: Arc<OpenInode>, id: OpenId) {
        let spawn = self.seams.spawn.clone();
        let close = async move {
            if let Err(error) = self.close_open(&open, id, None).await {
                tracing::debug!(inode = %open.inode(), %error, "cannot close an open that was dropped");
            }
        };
        spawn.spawn("client close", Box::pin(close));
    }

    async fn close_open(self: &Arc<Self>, open: &Arc<OpenInode>, id: OpenId, flock_owner: Option<u64>) -> FsResult<()> {
        self.count(Operation::Close);
        let inode = open.inode();
        let update = open.closing(id);
        if open.check().is_err() {
            // The server closed it when it evicted this client.
            self.client_state.opens.unregister(open, id);
            return match flock_owner {
                Some(owner) => self.unlock_all(inode, LockFamily::Flock, owner).await,
                None => Ok(()),
            };
        }
        let target = self.targets.mdt_of(inode)?;
        let was_unasked = open.was_unasked(id);
        let at_mdt = self.client_state.opens.end_untold(open, id);
        if at_mdt == AtMdt::Unknown {
            return Ok(());
        }
        let given_up = self.given_up(inode)?;
        let mut close = Close { inode, open: id, update, flock_owner };
        // Also if it is known by now: another request that tells it may be under way.
        if was_unasked && !target.told_in_time(&self.seams, self.targets.timeout_of_callers()).await {
            if let Some(owner) = flock_owner {
                self.client_state.locks.released(inode, LockFamily::Flock, owner);
            }
            self.client_state.opens.unregister(open, id);
            given_up.close_once_told(close);
            // Nothing that was opened for reading is lost.
            return Ok(());
        }
        let delay = self.close_delay();
        if !delay.is_zero() && flock_owner.is_none() && close.update.is_some() && !was_unasked && open.may_close_late()
        {
            let closer: Weak<FileSystem> = Arc::downgrade(self);
            let due = self.seams.clock.now() + delay;
            let late = LateClose { closer, open: open.clone(), close, due };
            match target.close_later(&self.seams, late) {
                Ok(()) => return Ok(()),
                Err(late) => close = late.close,
            }
        }
        self.close_known(open, close).await
    }

    /// Ends an open that the MDT knows.
    async fn close_known(&self, open: &Arc<OpenInode>, close: Close) -> FsResult<()> {
        let Close { inode, open: id, flock_owner, .. } = close;
        let target = self.targets.mdt_of(inode)?;
        let given_up = self.given_up(inode)?;
        let close = MdtRequest::Close(close);
        let outcome = loop {
            let restarts = target.restarts();
            let mut late_outcome = None;
            let reply = self
                .call(inode, Question::with_late_outcome(close.clone(), &mut late_outcome))
                .await
                .map(|answered| answered.reply);
            if let Some(owner) = flock_owner {
                self.client_state.locks.released(inode, LockFamily::Flock, owner);
            }
            // Before anything else: a restarted MDT must not be told again of an open that it has
            // closed.
            self.client_state.opens.unregister(open, id);
            match reply {
                // It may have been told since it answered: the recovery counts the restart first,
                // then looks which files are open.
                Ok(MdtReply::Closed(_)) if target.restarts() != restarts => {}
                Ok(MdtReply::Closed(closed)) => break Ok(closed),
                Ok(reply) => break Err(unexpected(reply)),
                Err(error) => {
                    if matches!(error, FsError::Unreachable { .. }) {
                        given_up.close(late_outcome, inode, id);
                    }
                    break Err(error);
                }
            }
        };
        let size_wanted = outcome.as_ref().ok().and_then(|closed| closed.size_wanted.as_ref());
        if let Some((epoch, layout)) = size_wanted {
            self.report_size_or_not(open, *epoch, layout).await;
        }
        outcome.map(|_| ())
    }

    async fn report_size_or_not(&self, open: &OpenInode, epoch: u64, layout: &Layout) {
        if let Err(error) = self.report_size(open, epoch, layout).await {
            // The size stays unknown: the next client that looks at the file reports it.
            tracing::debug!(inode = %open.inode(), %error, "cannot report the size to the MDT");
        }
    }

    /// The last writer of a file is gone: reports the size that a glimpse finds.
    async fn report_size(&self, open: &OpenInode, epoch: u64, layout: &Layout) -> FsResult<()> {
        let inode = open.inode();
        let data_attributes = self.glimpse(inode, verified(layout)?).await?;
        self.call(inode, data_attributes.report(inode, epoch)).await.and_then(done)
    }

    /// One descriptor of an open file was closed (FUSE FLUSH): its owner's fcntl locks on the file
    /// end.
    pub async fn flush(self: &Arc<Self>, file: &OpenFile, lock_owner: u64) -> FsResult<()> {
        let (inode, family) = (file.inode(), LockFamily::Posix);
        if file.kind() == FileKind::Regular {
            let this = self.clone();
            finish(&self.seams.spawn, move |_| async move { this.unlock_all(inode, family, lock_owner).await }).await?;
        }
        file.open.check()
    }
}

impl Closer for FileSystem {
    fn close_now(self: Arc<Self>, open: Arc<OpenInode>, mut close: Close) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            if open.check().is_err() {
                return self.client_state.opens.unregister(&open, close.open);
            }
            close.update = open.still(close.update.take());
            if let Err(error) = self.close_known(&open, close).await {
                tracing::debug!(inode = %open.inode(), %error, "cannot close");
            }
        })
    }

    fn report_wanted(self: Arc<Self>, inode: InodeNumber) {
        let spawn = self.seams.spawn.clone();
        // By the layout that the MDT shows: this client may know an earlier one.
        let look = async move {
            let found = self.call(inode, MdtRequest::GetAttributes(inode)).await.and_then(entry);
            let looked = match &found {
                Ok(entry) => self.complete(entry).await.map(drop),
                Err(error) => Err(error.clone()),
            };
            if let Err(error) = looked {
                // The next client that looks at the file reports its size.
                tracing::debug!(%inode, %error, "cannot report the size to the MDT");
            }
        };
        spawn.spawn("late size", Box::pin(look));
    }
}
