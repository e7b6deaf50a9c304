//! What an MDT may keep for a caller that has given up: an open, the exclusive data lock of a file.
//!
//! The caller was told that the MDT does not answer, and uses nothing of it. But the MDT may have
//! granted it, or may not have received its release, and all other clients would wait for it as
//! long as this mount exists. So it is returned without the caller: once the outcome of the
//! caller's request is known (nothing may be granted after it was returned), and repeatedly until
//! the MDT has confirmed it or this incarnation of the mount ends, and with it all that it held.
//!
//! Downside: a creation that truncates may have taken a lock on a file whose inode number did not
//! reach this client. Such a lock stays until the mount ends.

use std::{sync::Arc, time::Duration};

use rpc::{
    Answered, ImportState, LateOutcome, Question,
    message::{
        MdtReply, MdtRequest, Reply, StepReply,
        mdt::{Close, ExclusiveEnd, OpenId},
    },
};
use rt::{Seams, clock};
use types::{FsError, FsResult, InodeNumber};

use crate::{
    FileSystem,
    client_state::ClientState,
    locks::exclusive::{ExclusiveQueues, Turn},
    targets::connection::TargetConnection,
};

/// Between two attempts to reach the MDT, each of which takes as long as callers wait.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is needed to give something back at an MDT.
pub(crate) struct GivenUp {
    target: Arc<TargetConnection>,
    client_state: Arc<ClientState>,
    /// The incarnation of the mount with which everything ends.
    incarnation: u64,
    queues: ExclusiveQueues,
    seams: Seams,
}

impl FileSystem {
    /// To be taken before the request that may be given up.
    pub(crate) fn given_up(&self, inode: InodeNumber) -> FsResult<GivenUp> {
        let target = self.targets.mdt_of(inode)?;
        let (client_state, queues, seams) = (self.client_state.clone(), self.exclusive.clone(), self.seams.clone());
        Ok(GivenUp { target, incarnation: client_state.opens.incarnation(), client_state, queues, seams })
    }
}

/// An end of an open from which nothing is to be learned of the file.
fn close(inode: InodeNumber, open: OpenId) -> MdtRequest {
    MdtRequest::Close(Close { inode, open, update: None, flock_owner: None })
}

impl GivenUp {
    /// An open or a creation with one. `turn`: if it truncates and the file is known, in which the
    /// exclusive data lock is granted.
    pub fn open(
        self,
        late_outcome: LateOutcome,
        (inode, open): (InodeNumber, OpenId),
        truncates: bool,
        turn: Option<Turn>,
    ) {
        self.in_background(move |this| async move {
            let (inode, truncates) = match late_outcome.known().await {
                Some(Ok(Answered { reply: Reply::Mdt(MdtReply::Opened(opened)), .. })) => {
                    (opened.entry.attributes.inode, opened.truncate)
                }
                Some(Ok(Answered { reply: Reply::Mdt(MdtReply::Created(created)), .. })) => {
                    (created.entry.attributes.inode, created.opened.is_some_and(|opened| opened.truncate))
                }
                Some(Ok(Answered { reply: Reply::Mdt(MdtReply::Compound(reply)), .. })) => {
                    match reply.replies.iter().find_map(StepReply::opened) {
                        Some(opened) => (opened.entry.attributes.inode, opened.truncate),
                        None => return,
                    }
                }
                // Nothing was granted.
                Some(_) => return,
                None => (inode, truncates && turn.is_some()),
            };
            this.tell(close(inode, open)).await;
            if truncates {
                let _turn = match turn {
                    Some(turn) => turn,
                    None => this.queues.enter(inode).await,
                };
                this.tell(MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update: None })).await;
            }
        });
    }

    /// The end of an open.
    pub fn close(self, late_outcome: Option<LateOutcome>, inode: InodeNumber, open: OpenId) {
        self.in_background(move |this| async move {
            if !this.has_ended(late_outcome).await {
                this.tell(close(inode, open)).await;
            }
        });
    }

    /// The end of an open of which a silent MDT may just be told.
    pub fn close_once_told(self, close: Close) {
        self.in_background(move |this| async move {
            this.target.told().await;
            this.tell(MdtRequest::Close(close)).await;
        });
    }

    /// The exclusive data lock, asked for or given back in this turn: no other user of this mount
    /// can take it before the MDT has heard that it is free.
    pub fn exclusive(self, late_outcome: Option<LateOutcome>, inode: InodeNumber, turn: Turn) {
        turn.owe();
        self.in_background(move |this| async move {
            if let Some(late_outcome) = late_outcome {
                late_outcome.known().await;
            }
            this.tell(MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update: None })).await;
            drop(turn);
        });
    }

    fn in_background<F>(self, work: impl FnOnce(Self) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let spawn = self.seams.spawn.clone();
        spawn.spawn("client given up", Box::pin(work(self)));
    }

    /// Whether what was said was heard after all.
    async fn has_ended(&self, late_outcome: Option<LateOutcome>) -> bool {
        match late_outcome {
            Some(late_outcome) => {
                late_outcome.known().await.is_some_and(|answer| !matches!(answer, Err(FsError::Unreachable { .. })))
            }
            None => false,
        }
    }

    /// Says this until the MDT has heard it.
    async fn tell(&self, request: MdtRequest) {
        while self.client_state.opens.incarnation() == self.incarnation
            && self.target.import().state() != ImportState::Closed
        {
            let mut late_outcome = None;
            let question = Question::with_late_outcome(request.clone(), &mut late_outcome);
            let outcome = self.target.ask_mdt(&self.seams, &self.client_state.opens, question).await;
            if !matches!(outcome, Err(FsError::Unreachable { .. })) {
                return;
            }
            if self.has_ended(late_outcome).await {
                return;
            }
            clock::sleep(&*self.seams.clock, INTERVAL).await;
        }
    }
}
