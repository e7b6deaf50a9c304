//! The exclusive data lock of a file: appends and truncations of all clients happen one after the other.
//!
//! The MDT grants the lock to a client, once at a time, whoever of its users asks. Within a client a queue per file lets
//! one user at a time ask, in order of arrival. An open that truncates is granted the lock with the open, so it takes its
//! turn before; where it cannot (a creation that finds the name taken does not know the file), it takes its turn afterwards
//! and asks again, because another user of this client may have given the lock back meanwhile.
//!
//! Life cycle of a section: own queue, MDT's queue (`ExclusiveBegin`, asked again while the answer is `Waiting`), data
//! requests, `ExclusiveEnd`. A section always comes to its end (see [`crate::finish`]); if the MDT restarts meanwhile, the
//! lock is claimed again (see [`crate::recovery`]).

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{ExclusiveBegin, ExclusiveEnd, ExclusiveGranted, ExclusivePurpose, SizeUpdate, open_flag},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::{Credentials, FsResult, InodeNumber};

use crate::{FileSystem, Interruption, OpenFile, recovery::HeldExclusive, target::unexpected};

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
    /// The life of the mount in which it was asked for: the lock ends with it.
    pub life: u64,
    /// Lets the next user of this client ask when dropped.
    _turn: Turn,
}

impl FileSystem {
    /// Takes the exclusive data lock, or ends to wait for it with `Interrupted`.
    pub(crate) async fn begin_exclusive(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
        interruption: &Interruption,
    ) -> FsResult<(Section, ExclusiveGranted)> {
        let turn = interruption.ends(self.exclusive.enter(begin.inode)).await?;
        let life = self.volatile.opens.life();
        let granted = self.ask_exclusive(credentials, begin, interruption).await?;
        Ok((Section { inode: begin.inode, epoch: granted.epoch, life, _turn: turn }, granted))
    }

    /// Asks the MDT for the lock; the caller has the turn.
    async fn ask_exclusive(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
        interruption: &Interruption,
    ) -> FsResult<ExclusiveGranted> {
        let inode = begin.inode;
        let target = self.targets.mdt_of(inode)?;
        loop {
            let restarts = target.restarts();
            let request = MdtRequest::ExclusiveBegin(credentials.clone(), begin.clone());
            let granted = match interruption.ends_at(target.mdt(request).await?)? {
                MdtReply::ExclusiveGranted(granted) => granted,
                MdtReply::Waiting => continue,
                reply => return Err(unexpected(reply)),
            };
            let held = HeldExclusive { open: begin.open, layout: Some(granted.layout.clone()) };
            self.volatile.exclusives.lock().insert(inode, held);
            if target.restarts() == restarts {
                return Ok(granted);
            }
            // The new start may know of the lock or not.
            self.give_back_exclusive(inode, None).await;
        }
    }

    /// Takes over the lock that the MDT granted with an open that truncates. `turn`: taken before that open. `restarts`: of
    /// the MDT before it.
    pub(crate) async fn adopt_exclusive(
        &self,
        file: &OpenFile,
        epoch: u64,
        restarts: u64,
        turn: Option<Turn>,
    ) -> FsResult<Section> {
        let inode = file.inode();
        // Of a former life, in which the open was granted, the open tells by itself.
        let life = self.volatile.opens.life();
        let target = self.targets.mdt_of(inode)?;
        let turn = match turn {
            Some(turn) => {
                let held = HeldExclusive { open: Some(file.id()), layout: None };
                self.volatile.exclusives.lock().insert(inode, held);
                if target.restarts() == restarts {
                    return Ok(Section { inode, epoch, life, _turn: turn });
                }
                self.give_back_exclusive(inode, None).await;
                turn
            }
            None => self.exclusive.enter(inode).await,
        };
        // What is open for reading only was checked when it was opened.
        let open = file.flags().has(open_flag::WRITE).then(|| file.id());
        let begin = ExclusiveBegin { inode, open, purpose: ExclusivePurpose::Truncate(0) };
        match self.ask_exclusive(&Credentials::root(), &begin, &Interruption::default()).await {
            Ok(granted) => Ok(Section { inode, epoch: granted.epoch, life, _turn: turn }),
            Err(error) => {
                self.decline_exclusive(inode, Some(turn)).await;
                Err(error)
            }
        }
    }

    /// Gives back the lock that the MDT granted with an open that comes to nothing. In its turn: the MDT knows one holder
    /// in this client, who may be another user by now.
    pub(crate) async fn decline_exclusive(&self, inode: InodeNumber, turn: Option<Turn>) {
        let _turn = match turn {
            Some(turn) => turn,
            None => self.exclusive.enter(inode).await,
        };
        self.give_back_exclusive(inode, None).await;
    }

    /// Gives the exclusive data lock back. If that fails, the data are in place nevertheless, and the lock ends with the
    /// session.
    pub(crate) async fn end_exclusive(&self, section: Section, update: Option<SizeUpdate>) {
        self.give_back_exclusive(section.inode, update).await;
    }

    async fn give_back_exclusive(&self, inode: InodeNumber, update: Option<SizeUpdate>) {
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
