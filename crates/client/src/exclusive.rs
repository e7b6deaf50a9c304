//! The exclusive data lock of a file: appends and truncations of all clients happen one after the other.
//!
//! The MDT knows holders by client. So within a client a queue per file lets one section at a time ask for the lock.
//! Life cycle of a section: own queue, MDT's queue (`ExclusiveBegin`, asked again while the answer is `Waiting`), data
//! requests, `ExclusiveEnd`. A section always comes to its end (see [`crate::finish`]); if the MDT restarts meanwhile, the
//! lock is claimed again (see [`crate::recovery`]).

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{ExclusiveBegin, ExclusiveEnd, ExclusiveGranted, ExclusivePurpose, OpenId, SizeUpdate},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::{Credentials, FsResult, InodeNumber};

use crate::{FileSystem, target::unexpected};

/// One queue for each file with a section in this client.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveQueues {
    queues: Arc<Mutex<BTreeMap<InodeNumber, Arc<Semaphore>>>>,
}

/// A turn in a file's queue.
pub(crate) struct Turn {
    queues: Arc<Mutex<BTreeMap<InodeNumber, Arc<Semaphore>>>>,
    inode: InodeNumber,
    queue: Arc<Semaphore>,
    /// `None` once given back.
    permit: Option<OwnedSemaphorePermit>,
}

impl ExclusiveQueues {
    /// Waits for a turn.
    pub async fn enter(&self, inode: InodeNumber) -> Turn {
        let mut turn = self.line_up(inode);
        let permit = turn.queue.clone().acquire_owned().await;
        turn.permit = Some(permit.expect("the semaphore is never closed"));
        turn
    }

    /// A turn if nobody else has one.
    pub fn try_enter(&self, inode: InodeNumber) -> Option<Turn> {
        let mut turn = self.line_up(inode);
        turn.permit = Some(turn.queue.clone().try_acquire_owned().ok()?);
        Some(turn)
    }

    fn line_up(&self, inode: InodeNumber) -> Turn {
        let queue = self.queues.lock().entry(inode).or_insert_with(|| Arc::new(Semaphore::new(1))).clone();
        Turn { queues: self.queues.clone(), inode, queue, permit: None }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.permit = None;
        let mut queues = self.queues.lock();
        // The table's and this one: nobody else is in the queue.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.inode);
        }
    }
}

/// The lock, held.
pub(crate) struct Section {
    inode: InodeNumber,
    /// The write epoch it was granted under.
    pub epoch: u64,
    /// Lets the next section of this client follow when dropped.
    _turn: Turn,
}

impl FileSystem {
    /// Takes the exclusive data lock.
    pub(crate) async fn begin_exclusive(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
    ) -> FsResult<(Section, ExclusiveGranted)> {
        let turn = self.exclusive.enter(begin.inode).await;
        self.begin_in_turn(credentials, begin, turn).await
    }

    async fn begin_in_turn(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
        turn: Turn,
    ) -> FsResult<(Section, ExclusiveGranted)> {
        let inode = begin.inode;
        let target = self.targets.mdt_of(inode)?;
        loop {
            let restarts = target.restarts();
            let granted = match target.mdt(MdtRequest::ExclusiveBegin(credentials.clone(), begin.clone())).await? {
                MdtReply::ExclusiveGranted(granted) => granted,
                MdtReply::Waiting => continue,
                reply => return Err(unexpected(reply)),
            };
            self.volatile.exclusives.lock().insert(inode, begin.open);
            // Asking again while holding is granted again.
            if target.restarts() == restarts {
                return Ok((Section { inode, epoch: granted.epoch, _turn: turn }, granted));
            }
        }
    }

    /// Takes over the lock that the MDT granted with an open that truncates. `turn`: if the open waited for it; else this
    /// client may be in a section of its own, for which the MDT takes the open; after that one the lock is taken anew.
    pub(crate) async fn adopt_exclusive(
        &self,
        inode: InodeNumber,
        open: OpenId,
        epoch: u64,
        turn: Option<Turn>,
        restarts: u64,
    ) -> FsResult<Section> {
        let turn = turn.or_else(|| self.exclusive.try_enter(inode));
        let undisturbed = turn.is_some();
        let turn = match turn {
            Some(turn) => turn,
            None => self.exclusive.enter(inode).await,
        };
        self.volatile.exclusives.lock().insert(inode, Some(open));
        if undisturbed && self.targets.mdt_of(inode)?.restarts() == restarts {
            return Ok(Section { inode, epoch, _turn: turn });
        }
        let begin = ExclusiveBegin { inode, open: Some(open), purpose: ExclusivePurpose::Truncate(0) };
        let (section, _) = self.begin_in_turn(&Credentials::root(), &begin, turn).await?;
        Ok(section)
    }

    /// Gives the exclusive data lock back. If that fails, the data are in place nevertheless, and the lock ends with the
    /// session.
    pub(crate) async fn end_exclusive(&self, section: Section, update: Option<SizeUpdate>) {
        let inode = section.inode;
        self.volatile.exclusives.lock().remove(&inode);
        let end = MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update });
        if let Err(error) = self.mdt_done(inode, end).await {
            tracing::warn!(%inode, %error, "the exclusive data lock was not given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_turn_at_a_time_and_no_queue_left_behind() {
        let queues = ExclusiveQueues::default();
        let (file, other) = (InodeNumber(1), InodeNumber(2));
        let first = queues.enter(file).await;
        let _elsewhere = queues.try_enter(other).expect("files have queues of their own");
        assert!(queues.try_enter(file).is_none());
        let mut second = Box::pin(queues.enter(file));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(first);
        drop(second.await);
        assert_eq!(queues.queues.lock().keys().copied().collect::<Vec<_>>(), [other]);
    }
}
