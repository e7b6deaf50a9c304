//! The exclusive data lock of a file: appends and truncations of all clients happen one after the
//! other.
//!
//! The MDT grants the lock to a client, at most once at a time, whichever of its users asks. Within
//! a client a queue per file lets one user at a time ask, in order of arrival. An open that
//! truncates is granted the lock with the open, so it takes its turn in the queue before it opens;
//! where it cannot (a creation that finds the name taken does not know the file), it takes its turn
//! afterwards and asks again, because another user of this client may have released the lock
//! meanwhile.
//!
//! Life cycle of a section: own queue, MDT's queue (`ExclusiveBegin`, asked again when the MDT
//! calls back if the answer is `Waiting`), data requests, `ExclusiveEnd`. A section is always
//! completed (see [`crate::cancellation::finish`]); if the MDT restarts meanwhile, the lock is
//! reclaimed (see [`crate::targets::recovery`]). If the MDT does not answer, the turn is kept until
//! the MDT has confirmed the release (see [`crate::cancellation::given_up`]), because a late
//! release would also release the lock of the next user. Waiting for such a turn takes no longer
//! than waiting for the MDT itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rpc::{
    Question,
    message::{
        MdtReply, MdtRequest,
        mdt::{ExclusiveBegin, ExclusiveEnd, ExclusiveGranted, ExclusivePurpose, SizeUpdate, open_flag},
    },
};
use rt::clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::{Credentials, FsError, FsResult, InodeNumber, Owner};

use crate::{FileSystem, Interruption, OpenFile, client_state::HeldExclusive, targets::connection::unexpected};

type Queues = Arc<Mutex<BTreeMap<InodeNumber, Arc<Queue>>>>;

/// One queue for each file with a section in this client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExclusiveQueues {
    queues: Queues,
}

/// The queue of one file.
#[derive(Debug)]
struct Queue {
    turn: Arc<Semaphore>,
    /// Its present turn lasts until the MDT has learned of its end.
    is_owed: AtomicBool,
}

/// A turn in a file's queue.
pub(crate) struct Turn {
    queues: Queues,
    inode: InodeNumber,
    queue: Arc<Queue>,
    /// `None` once given back.
    permit: Option<OwnedSemaphorePermit>,
}

impl ExclusiveQueues {
    /// Waits for a turn.
    pub async fn enter(&self, inode: InodeNumber) -> Turn {
        let mut turn = self.line_up(inode);
        let permit = turn.queue.turn.clone().acquire_owned().await;
        assert_eq!(turn.queue.turn.available_permits(), 0, "a file has one turn at a time");
        turn.permit = Some(permit.expect("the semaphore is never closed"));
        turn
    }

    fn line_up(&self, inode: InodeNumber) -> Turn {
        let new = || Arc::new(Queue { turn: Arc::new(Semaphore::new(1)), is_owed: AtomicBool::new(false) });
        let queue = self.queues.lock().entry(inode).or_insert_with(new).clone();
        Turn { queues: self.queues.clone(), inode, queue, permit: None }
    }

    /// Whether the present turn of a file lasts until the MDT has learned of its end.
    fn is_owed(&self, inode: InodeNumber) -> bool {
        self.queues.lock().get(&inode).is_some_and(|queue| queue.is_owed.load(Ordering::Acquire))
    }
}

impl Turn {
    /// It lasts until the MDT has learned of its end.
    pub fn owe(&self) {
        assert!(self.permit.is_some(), "only a turn that has come is owed");
        self.queue.is_owed.store(true, Ordering::Release);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.permit.take().is_some() {
            self.queue.is_owed.store(false, Ordering::Release);
        }
        let mut queues = self.queues.lock();
        let is_in_table = queues.get(&self.inode).is_some_and(|queue| Arc::ptr_eq(queue, &self.queue));
        assert!(is_in_table, "a queue is in the table as long as somebody is in it");
        // The table's reference and this one: no other user is in the queue.
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
    /// Owner of the file, if the MDT told it with the lock.
    pub owner: Option<Owner>,
    /// The incarnation of the mount in which it was asked for: the lock ends with it.
    pub incarnation: u64,
    /// Lets the next user of this client ask when dropped.
    turn: Turn,
}

fn owner_of(granted: &ExclusiveGranted) -> Option<Owner> {
    Some(granted.entry.attributes.owner())
}

impl FileSystem {
    /// Takes the exclusive data lock, or ends to wait for it with `Interrupted`.
    pub(crate) async fn begin_exclusive(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
        interruption: &Interruption,
    ) -> FsResult<(Section, ExclusiveGranted)> {
        let turn = self.take_turn(begin.inode, interruption).await?;
        let incarnation = self.client_state.opens.incarnation();
        let (turn, granted) =
            self.ask_exclusive(credentials, begin, interruption, turn).await.map_err(|(error, _)| error)?;
        Ok((
            Section { inode: begin.inode, epoch: granted.epoch, owner: owner_of(&granted), incarnation, turn },
            granted,
        ))
    }

    /// Waits for a turn; for one that is kept until the MDT answers, no longer than for that.
    pub(crate) async fn take_turn(&self, inode: InodeNumber, interruption: &Interruption) -> FsResult<Turn> {
        let mut enter = std::pin::pin!(self.exclusive.enter(inode));
        loop {
            let (clock, timeout) = (&*self.seams.clock, self.targets.timeout_of_callers());
            let turn = clock::timeout_at(clock, clock.now() + timeout, enter.as_mut());
            if let Some(turn) = interruption.ends(turn).await? {
                return Ok(turn);
            }
            if self.exclusive.is_owed(inode) {
                let target = self.targets.mdt_of(inode)?.import().target().to_owned();
                return Err(FsError::Unreachable { target, seconds: timeout.as_secs() as u32, cause: None });
            }
        }
    }

    /// Asks the MDT for the lock in this turn; with an error the turn comes back, unless it is kept
    /// until the MDT has heard that the lock is free.
    async fn ask_exclusive(
        &self,
        credentials: &Credentials,
        begin: &ExclusiveBegin,
        interruption: &Interruption,
        mut turn: Turn,
    ) -> Result<(Turn, ExclusiveGranted), (FsError, Option<Turn>)> {
        let inode = begin.inode;
        let target = match self.targets.mdt_of(inode) {
            Ok(target) => target,
            Err(error) => return Err((error, Some(turn))),
        };
        loop {
            let restarts = target.restarts();
            let listening = target.repetitions().listen(Some(inode));
            let request = MdtRequest::ExclusiveBegin(credentials.clone(), begin.clone());
            let (given_up, mut late_outcome) = (self.given_up(inode), None);
            let question = Question::with_late_outcome(request, &mut late_outcome);
            let answered = self.call_unless(inode, question, interruption).await;
            let answer = match (given_up, late_outcome, answered) {
                (_, _, Ok(answered)) => Ok(answered.reply),
                (Ok(given_up), Some(late_outcome), Err(error)) => {
                    given_up.exclusive(Some(late_outcome), inode, turn);
                    return Err((error, None));
                }
                (_, _, Err(error)) => Err(error),
            };
            let granted = match answer {
                Ok(MdtReply::ExclusiveGranted(granted)) => granted,
                Ok(MdtReply::Waiting) => match interruption.ends(listening.heard()).await {
                    Ok(()) => continue,
                    Err(error) => {
                        // Others may have its place.
                        let turn = self.give_back_exclusive(inode, None, turn).await.map_err(|error| (error, None))?;
                        return Err((error, Some(turn)));
                    }
                },
                Ok(reply) => return Err((unexpected(reply), Some(turn))),
                Err(error) => return Err((error, Some(turn))),
            };
            let held = HeldExclusive { open: begin.open, layout: Some(granted.layout.clone()) };
            self.note_exclusive(inode, held);
            if target.restarts() == restarts {
                return Ok((turn, *granted));
            }
            // The new start may know of the lock or not.
            turn = self.give_back_exclusive(inode, None, turn).await.map_err(|error| (error, None))?;
        }
    }

    /// The MDT granted the lock, in a turn of this client.
    fn note_exclusive(&self, inode: InodeNumber, held: HeldExclusive) {
        let before = self.client_state.exclusives.lock().insert(inode, held);
        assert!(before.is_none(), "a turn ends with its exclusive data lock: inode {inode}");
    }

    /// Takes over the lock that the MDT granted with an open that truncates. `turn`: taken before
    /// that open. `restarts`: of the MDT before it.
    pub(crate) async fn adopt_exclusive(
        &self,
        file: &OpenFile,
        epoch: u64,
        restarts: u64,
        turn: Option<Turn>,
    ) -> FsResult<Section> {
        let inode = file.inode();
        // The open itself knows whether it was granted in a former incarnation.
        let incarnation = self.client_state.opens.incarnation();
        let target = self.targets.mdt_of(inode)?;
        let turn = match turn {
            Some(turn) => {
                let held = HeldExclusive { open: Some(file.id()), layout: None };
                self.note_exclusive(inode, held);
                if target.restarts() == restarts {
                    return Ok(Section { inode, epoch, owner: None, incarnation, turn });
                }
                self.give_back_exclusive(inode, None, turn).await?
            }
            None => self.exclusive.enter(inode).await,
        };
        // What is open for reading only was checked when it was opened.
        let open = file.flags().has(open_flag::WRITE).then(|| file.id());
        let begin = ExclusiveBegin { inode, open, purpose: ExclusivePurpose::Truncate(0) };
        match self.ask_exclusive(&Credentials::root(), &begin, &Interruption::default(), turn).await {
            Ok((turn, granted)) => {
                Ok(Section { inode, epoch: granted.epoch, owner: owner_of(&granted), incarnation, turn })
            }
            Err((error, turn)) => {
                if let Some(turn) = turn {
                    self.decline_exclusive(inode, Some(turn)).await;
                }
                Err(error)
            }
        }
    }

    /// Gives back the lock that the MDT granted with an open that comes to nothing. In its turn:
    /// the MDT knows one holder in this client, who may be another user by now.
    pub(crate) async fn decline_exclusive(&self, inode: InodeNumber, turn: Option<Turn>) {
        let turn = match turn {
            Some(turn) => turn,
            None => self.exclusive.enter(inode).await,
        };
        // Without it: the lock is given back later.
        drop(self.give_back_exclusive(inode, None, turn).await);
    }

    /// Gives the exclusive data lock back: at once, or as soon as the MDT answers again. The data
    /// are in place in any case.
    pub(crate) async fn end_exclusive(&self, section: Section, update: Option<SizeUpdate>) {
        drop(self.give_back_exclusive(section.inode, update, section.turn).await);
    }

    /// With the error of an MDT that does not answer the turn is kept until it has learned of this.
    async fn give_back_exclusive(&self, inode: InodeNumber, update: Option<SizeUpdate>, turn: Turn) -> FsResult<Turn> {
        self.client_state.exclusives.lock().remove(&inode);
        let given_up = self.given_up(inode)?;
        let end = MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update });
        let mut late_outcome = None;
        match self.call(inode, Question::with_late_outcome(end, &mut late_outcome)).await {
            Ok(_) => Ok(turn),
            Err(error @ FsError::Unreachable { .. }) => {
                tracing::warn!(%inode, %error, "the exclusive data lock will be released later");
                given_up.exclusive(late_outcome, inode, turn);
                Err(error)
            }
            Err(error) => {
                // It ends with the session.
                tracing::warn!(%inode, %error, "cannot release the exclusive data lock");
                Ok(turn)
            }
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
