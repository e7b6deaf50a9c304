//! Requests to an MDT, with what the cache must know about them, and callbacks of the MDT.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rpc::{
    Answered, Import, Question,
    message::{ClientReply, ClientRequest, MdtReply, MdtRequest, OstReply, OstRequest, client::LockCompleted},
};
use rt::{BoxFuture, Clock, Seams};
use types::{FsError, FsResult, LockHandle};

use crate::{
    cache::inode_cache::{InodeCache, Pending},
    cancellation::finish::finish,
    open_state::open_table::OpenTable,
    targets::{
        connection::{TargetConnection, unexpected},
        late_closes::Carried,
    },
    upper_cache::{Keepable, Known, Place},
};

/// A request on its way. If it is dropped before it is answered, its outcome is not known.
struct Sent {
    target: Arc<TargetConnection>,
    import: Import,
    seams: Seams,
    /// `None` once it is answered.
    pending: Option<Pending>,
    /// Locks that it gives back; none once it was executed.
    cancels: Vec<LockHandle>,
    /// Closes that it takes along; `None` once it is answered, too.
    carried: Option<Box<Carried>>,
}

impl Sent {
    async fn call(mut self, question: Question<'_, MdtRequest>) -> FsResult<Answered<MdtReply>> {
        let Question { request, bulk, late_outcome, wanted, .. } = question;
        let mut late = None;
        let is_change = self.pending.as_ref().is_some_and(Pending::is_change);
        let matters = late_outcome.is_some() || is_change || self.carried.is_some();
        let cancels = self.cancels.clone();
        let closes = self.carried.as_ref().map_or(Vec::new(), |carried| carried.requests());
        let question = Question { request, bulk, late_outcome: matters.then_some(&mut late), wanted, cancels, closes };
        let mut outcome = self.target.call_by(&self.import, question).await;
        // Otherwise the MDT may not have them. To give them back twice does no harm.
        if outcome.is_ok() {
            self.cancels.clear();
        }
        let pending = self.pending.take().expect("a request is answered once");
        let carried = self.carried.take();
        match late {
            // It may still be executed: what it changes is not served before that is known.
            Some(late) if pending.is_change() || carried.is_some() => {
                let (target, import, seams) = (self.target.clone(), self.import.clone(), self.seams.clone());
                let mut failed = outcome.clone();
                let late = late.after(&*self.seams.spawn, move || {
                    if let Some(carried) = carried {
                        carried.settle::<MdtReply>(None);
                    }
                    if answered(&target, &import, &seams, pending, &mut failed) {
                        let spawn = seams.spawn.clone();
                        let withdraw = async move { target.withdraw_doubtful(None).await };
                        spawn.spawn("doubtful attributes", Box::pin(withdraw));
                    }
                });
                if let Some(wanted) = late_outcome {
                    *wanted = Some(late);
                }
            }
            late => {
                // The MDT has executed them first.
                if let Some(carried) = carried {
                    carried.settle(outcome.as_ref().ok());
                }
                let has_doubts = answered(&self.target, &self.import, &self.seams, pending, &mut outcome);
                // What was answered with an error changed nothing.
                if has_doubts && matches!(outcome, Ok(_) | Err(FsError::Unreachable { .. })) {
                    self.target.withdraw_doubtful(outcome.as_ref().ok()).await;
                }
                if let Some(wanted) = late_outcome {
                    *wanted = late;
                }
            }
        }
        outcome
    }
}

/// Tells the cache what became of a request; see [`TargetCache::answer`].
///
/// [`TargetCache::answer`]: crate::cache::target_cache::TargetCache::answer
fn answered(
    target: &Arc<TargetConnection>,
    import: &Import,
    seams: &Seams,
    pending: Pending,
    outcome: &mut FsResult<Answered<MdtReply>>,
) -> bool {
    let (has_doubts, unnamed) = target.cache().answer(import, pending, outcome, target.above().is_there());
    for open in unnamed.iter().filter_map(|(inode, _)| target.opens().find(*inode)) {
        open.lost_name();
    }
    // As long as the MDT does not know of the opens, it takes the inode to be open.
    for (_, handle) in unnamed.into_iter().filter(|(inode, _)| target.opens().has_untold(*inode)) {
        target.withdraw(seams, handle);
    }
    target.give_locks_back(seams);
    target.watch_lock_ages(seams);
    has_doubts
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.target.cache().abandon(pending);
        }
        if !self.cancels.is_empty() {
            self.target.cache().cancels().give_back(std::mem::take(&mut self.cancels));
            self.target.give_locks_back(&self.seams);
        }
    }
}

/// The error that an answer of absence is for the caller.
fn absence(request: &MdtRequest) -> FsError {
    match request {
        MdtRequest::GetXattr(..) => FsError::NoData,
        _ => FsError::NotFound,
    }
}

impl TargetConnection {
    /// Asks this MDT, and keeps what the answer says. A change that was sent is waited for even if
    /// the caller drops it: what it changes is not served before its outcome is known.
    pub fn ask_mdt<'a>(
        self: &'a Arc<Self>,
        seams: &'a Seams,
        opens: &'a OpenTable,
        question: impl Into<Question<'a, MdtRequest>>,
    ) -> BoxFuture<'a, FsResult<Answered<MdtReply>>> {
        self.ask_mdt_boxed(seams, opens, None, question.into())
    }

    /// The same for data on this MDT, by a connection as in [`TargetConnection::call_by`].
    pub async fn ask_for_data(
        self: &Arc<Self>,
        seams: &Seams,
        opens: &OpenTable,
        import: Import,
        (request, bulk): (OstRequest, Bytes),
    ) -> FsResult<Answered<OstReply>> {
        let request = match request.row().changed_object() {
            Some(_) => MdtRequest::ChangeData(request),
            None => MdtRequest::ReadData(request),
        };
        let answered = self.ask_mdt_boxed(seams, opens, Some(import), Question::with_bulk(request, bulk)).await?;
        let Answered { reply, bulk, extension, era, connection } = answered;
        match reply {
            MdtReply::Data(reply) => Ok(Answered { reply, bulk, extension, era, connection }),
            reply => Err(unexpected(reply)),
        }
    }

    /// Not generic: compiled once, see [`BoxFuture`]. `by`: this connection; `None`: the present
    /// one.
    fn ask_mdt_boxed<'a>(
        self: &'a Arc<Self>,
        seams: &'a Seams,
        opens: &'a OpenTable,
        by: Option<Import>,
        question: Question<'a, MdtRequest>,
    ) -> BoxFuture<'a, FsResult<Answered<MdtReply>>> {
        Box::pin(self.ask_mdt_inner(seams, opens, by, question))
    }

    async fn ask_mdt_inner(
        self: &Arc<Self>,
        seams: &Seams,
        opens: &OpenTable,
        by: Option<Import>,
        question: Question<'_, MdtRequest>,
    ) -> FsResult<Answered<MdtReply>> {
        let Question { request, bulk, late_outcome, .. } = question;
        let absence = absence(&request);
        let is_bound = by.is_some();
        let mut import = by.unwrap_or_else(|| self.import());
        self.check_active(&import)?;
        match (late_outcome.is_none(), is_bound) {
            (true, true) => import.connected().await?,
            (true, false) => import = self.connected().await?,
            // The request itself waits.
            (false, _) => {}
        }
        let carried = self.carry_closes(seams, &import);
        let pending = self.cache().ask(&import, &request, &*seams.clock, opens);
        let (wanted, is_change) = (pending.wanted, pending.is_change() || carried.is_some());
        let cancels = match self.is_of_former_session(&import) {
            // The locks are those of the present one.
            true => Vec::new(),
            false => self.cache().cancels().take_along(|inode| self.opens().has_untold(inode)),
        };
        let sent =
            Sent { target: self.clone(), import, seams: seams.clone(), pending: Some(pending), cancels, carried };
        let question = Question { wanted, ..Question::with_bulk(request, bulk) };
        let answered = match late_outcome {
            // Its caller runs in a task that comes to its end.
            Some(_) => sent.call(Question { late_outcome, ..question }).await,
            None if is_change => finish(&seams.spawn, move |_| sent.call(question)).await,
            None => sent.call(question).await,
        }?;
        match answered.reply {
            MdtReply::Absent => Err(absence),
            _ => Ok(answered),
        }
    }

    /// An answer from the cache, if there is one.
    pub fn serve<T>(self: &Arc<Self>, seams: &Seams, query: impl FnOnce(&mut InodeCache) -> Option<T>) -> Option<T> {
        self.serve_for(seams, query).map(|(found, _)| found)
    }

    /// The same, and for how long others may serve it without asking. Has accesses sent, in the
    /// background, that `query` noted.
    pub fn serve_for<T>(
        self: &Arc<Self>,
        seams: &Seams,
        query: impl FnOnce(&mut InodeCache) -> Option<T>,
    ) -> Option<(T, Duration)> {
        if !self.is_active() {
            return None;
        }
        let found = self.cache().serve_for(&self.import(), &*seams.clock, query);
        self.send_accesses(seams);
        found
    }

    /// See [`crate::FileSystem::keepable`]. Of several inodes, in order, at one moment.
    pub fn keepable(&self, clock: &dyn Clock, opens: &OpenTable, shown: &[Place<'_>]) -> Vec<Option<Known>> {
        if !self.is_active() {
            return vec![None; shown.len()];
        }
        let known = self.cache().serve_for(&self.import(), clock, |cache| {
            let known = |(inode, name): &Place<'_>| {
                let attributes = cache.attributes(*inode, |inode| opens.is_written(inode));
                let is_striped = attributes.is_some_and(|found| cache.is_striped(&found));
                let name = name.is_some_and(|(parent, name)| cache.leads(parent, name, *inode));
                let permissions = cache.permissions_of(*inode);
                (permissions.is_some() || name).then_some((attributes, is_striped, permissions, name))
            };
            Some(shown.iter().map(known).collect::<Vec<_>>())
        });
        let Some((known, validity)) = known else { return vec![None; shown.len()] };
        let keepable = |(attributes, is_striped, permissions, name)| {
            let keepable = Keepable { attributes, permissions, name, validity };
            if is_striped { Known::WithoutShards(keepable) } else { Known::All(keepable) }
        };
        known.into_iter().map(|known| known.map(keepable)).collect()
    }

    /// Executes a callback of this MDT.
    pub fn called_back(self: &Arc<Self>, seams: &Seams, request: &ClientRequest) -> FsResult<ClientReply> {
        match request {
            ClientRequest::Ping => Ok(ClientReply::Done),
            ClientRequest::Blocking(blocking) => Ok(self.withdraw(seams, blocking.handle)),
            ClientRequest::LockCompleted(LockCompleted { ticket, outcome }) => {
                let state = self.client_state();
                match state.lock_waits.completed(&state.locks, *ticket, outcome.clone()) {
                    true => Ok(ClientReply::Done),
                    false => Err(FsError::NotFound),
                }
            }
            ClientRequest::AskAgain(inode) => {
                self.repetitions().ask_again(*inode);
                Ok(ClientReply::Done)
            }
            // This client waits for no lock of objects, and has none.
            ClientRequest::Completion(_) | ClientRequest::Glimpse(_) => Err(FsError::NotFound),
        }
    }
}
