//! Requests to an MDT, with what the cache has to know of them, and callbacks of the MDT.

use std::{sync::Arc, time::Duration};

use rpc::{
    Answered, Import, ImportState, Question,
    message::{ClientReply, ClientRequest, MdtReply, MdtRequest},
};
use rt::{Clock, Seams, clock};
use types::{FsError, FsResult};

use crate::{
    cache::inode_cache::{InodeCache, Pending},
    cancellation::finish::finish,
    open_state::open_table::OpenTable,
    targets::connection::TargetConnection,
};

/// Between two attempts to give locks back, each of which takes as long as callers wait.
const INTERVAL: Duration = Duration::from_millis(100);

/// A request on its way. Dropped before it is answered: nobody knows what has become of it.
struct Sent {
    target: Arc<TargetConnection>,
    import: Import,
    seams: Seams,
    /// `None` once it is answered.
    pending: Option<Pending>,
}

impl Sent {
    async fn call(mut self, question: Question<'_, MdtRequest>) -> FsResult<Answered<MdtReply>> {
        let Question { request, bulk, late_outcome, wanted } = question;
        let mut late = None;
        let matters = late_outcome.is_some() || self.pending.as_ref().is_some_and(Pending::is_change);
        let question = Question { request, bulk, late_outcome: matters.then_some(&mut late), wanted };
        let outcome = self.target.call_by(&self.import, question).await;
        let pending = self.pending.take().expect("a request is answered once");
        match late {
            // It may still be executed: what it changes is not served before that is known.
            Some(late) if pending.is_change() => {
                let (target, import, seams) = (self.target.clone(), self.import.clone(), self.seams.clone());
                let failed = outcome.clone();
                let late = late.after(&*self.seams.spawn, move || answered(&target, &import, &seams, pending, &failed));
                if let Some(wanted) = late_outcome {
                    *wanted = Some(late);
                }
            }
            late => {
                answered(&self.target, &self.import, &self.seams, pending, &outcome);
                if let Some(wanted) = late_outcome {
                    *wanted = late;
                }
            }
        }
        outcome
    }
}

/// Tells the cache what became of a request.
fn answered(
    target: &Arc<TargetConnection>,
    import: &Import,
    seams: &Seams,
    pending: Pending,
    outcome: &FsResult<Answered<MdtReply>>,
) {
    target.cache().answer(import, pending, outcome);
    target.give_locks_back(seams);
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.target.cache().abandon(pending);
        }
    }
}

impl TargetConnection {
    /// Asks this MDT, and keeps what the answer says. A change that was sent is waited for even if
    /// the caller drops it: what it changes is not served before its outcome is known.
    pub async fn ask_mdt<'a>(
        self: &Arc<Self>,
        seams: &Seams,
        opens: &OpenTable,
        question: impl Into<Question<'a, MdtRequest>>,
    ) -> FsResult<Answered<MdtReply>> {
        let Question { request, bulk, late_outcome, .. } = question.into();
        let import = self.import();
        self.check_active(&import)?;
        if late_outcome.is_none() {
            import.connected().await?;
        }
        let pending = self.cache().ask(&import, &request, &*seams.clock, opens);
        let (wanted, is_change) = (pending.wanted, pending.is_change());
        let sent = Sent { target: self.clone(), import, seams: seams.clone(), pending: Some(pending) };
        match late_outcome {
            // Its caller runs in a task that comes to its end.
            Some(_) => sent.call(Question { request, bulk, late_outcome, wanted }).await,
            None if is_change => {
                let question = Question { request, bulk, late_outcome: None, wanted };
                finish(&seams.spawn, move |_| sent.call(question)).await
            }
            None => sent.call(Question { request, bulk, late_outcome: None, wanted }).await,
        }
    }

    /// An answer from the cache, if there is one.
    pub fn serve<T>(&self, clock: &dyn Clock, query: impl FnOnce(&mut InodeCache) -> Option<T>) -> Option<T> {
        if !self.is_active() {
            return None;
        }
        self.cache().serve(&self.import(), clock, query)
    }

    /// Executes a callback of this MDT.
    pub fn called_back(self: &Arc<Self>, seams: &Seams, request: &ClientRequest) -> FsResult<ClientReply> {
        match request {
            ClientRequest::Ping => Ok(ClientReply::Done),
            ClientRequest::Blocking(blocking) => {
                self.cache().withdraw(&self.import(), blocking.handle);
                self.give_locks_back(seams);
                Ok(ClientReply::Done)
            }
            // This client waits for no lock, and has none of objects.
            ClientRequest::Completion(_) | ClientRequest::Glimpse(_) => Err(FsError::NotFound),
        }
    }

    /// Gives back the locks that are not used any more, in the background.
    pub fn give_locks_back(self: &Arc<Self>, seams: &Seams) {
        if self.cache().begin_to_cancel() {
            let (this, clock) = (self.clone(), seams.clock.clone());
            seams.spawn.spawn("lock cancels", Box::pin(async move { this.cancel_locks(&*clock).await }));
        }
    }

    async fn cancel_locks(&self, clock: &dyn Clock) {
        while let Some(handles) = self.cache().next_cancels() {
            let import = self.import();
            // As long as the MDT may wait for it. All other errors end the session, and the locks
            // with it.
            while let Err(FsError::Unreachable { .. }) = import.call(MdtRequest::CancelLocks(handles.clone())).await {
                if import.state() == ImportState::Closed {
                    break;
                }
                clock::sleep(clock, INTERVAL).await;
            }
        }
    }
}
