//! The exclusive data lock of a file: appends and truncations of all clients happen one after the other.
//!
//! The MDT grants the lock to a client, once at a time, whoever of its users asks. Within a client a queue per file lets
//! one user at a time ask, in order of arrival; opens that truncate are granted the lock with the open and ask beside it.
//!
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
    /// Lets the next user of this client ask when dropped. `None` if it was granted with an open.
    _turn: Option<Turn>,
}

impl FileSystem {
    /// Takes the exclusive data lock.
    pub(crate) async fn begin_exclusive(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
    ) -> FsResult<(Section, ExclusiveGranted)> {
        let turn = self.exclusive.enter(begin.inode).await;
        self.begin_in_turn(credentials, begin, Some(turn)).await
    }

    async fn begin_in_turn(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
        turn: Option<Turn>,
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
            let section = Section { inode, epoch: granted.epoch, _turn: None };
            if target.restarts() == restarts {
                return Ok((Section { _turn: turn, ..section }, granted));
            }
            // The new start may know of the lock or not.
            self.end_exclusive(section, None).await;
        }
    }

    /// Takes over the lock that the MDT granted with an open that truncates. `restarts`: of the MDT before that open.
    pub(crate) async fn adopt_exclusive(
        &self,
        inode: InodeNumber,
        open: OpenId,
        epoch: u64,
        restarts: u64,
    ) -> FsResult<Section> {
        self.volatile.exclusives.lock().insert(inode, Some(open));
        let section = Section { inode, epoch, _turn: None };
        if self.targets.mdt_of(inode)?.restarts() == restarts {
            return Ok(section);
        }
        self.end_exclusive(section, None).await;
        let begin = ExclusiveBegin { inode, open: Some(open), purpose: ExclusivePurpose::Truncate(0) };
        Ok(self.begin_in_turn(&Credentials::root(), &begin, None).await?.0)
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
        let _elsewhere = queues.enter(other).await;
        let mut second = Box::pin(queues.enter(file));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(first);
        drop(second.await);
        assert_eq!(queues.queues.lock().keys().copied().collect::<Vec<_>>(), [other]);
    }
}
