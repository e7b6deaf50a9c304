//! How locks are given back to an MDT, in the background: first the cache above drops what is under
//! them, then they are sent along with the next request, or with a request of their own
//! (`cache::cancels`).
//!
//! If a lock that the MDT asked for is held up for a second, the log says by what: others may wait
//! for it. A mount logs one such line a second.

use std::{pin::pin, sync::Arc, time::Duration};

use rpc::{
    Answered, Import, ImportState, Question,
    message::{
        ClientReply, MdtReply, MdtRequest,
        lock::{InodeBits, inode_bit},
    },
};
use rt::{BoxFuture, Clock, Seams, clock};
use types::{FsError, FsResult, InodeNumber, LockHandle, limits::VERSIONS_PER_CHANGE_MAX};

use crate::{
    cache::{cancels::Withdrawn, leaving::Parting, released::Released},
    join::join_all,
    targets::connection::TargetConnection,
};

/// Between two attempts to give locks back, each of which takes as long as callers wait.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long locks wait for a request that takes them along; at most twice as long. The kernel has
/// dropped a name that it removed by then, and need not be asked to.
const ROUND: Duration = Duration::from_millis(500);
/// After so long, the log says what holds up locks that the MDT asked for.
const SLOW: Duration = Duration::from_secs(1);
/// The same of the cache above, which gives up after [`SLOW`] and says so itself.
const ABOVE_SLOW: Duration = Duration::from_secs(2);

impl TargetConnection {
    /// The MDT asks for a lock.
    pub(super) fn withdraw(self: &Arc<Self>, seams: &Seams, handle: LockHandle) -> ClientReply {
        let released = match self.cache().withdraw(&self.import(), handle, self.opens(), self.above().is_there()) {
            Withdrawn::Already => return ClientReply::StillBusy,
            Withdrawn::Now(released) => released,
        };
        let withdraw =
            |released: Released| Some((released.inode, self.above().withdraw(released.inode, released.parts)?));
        match released.and_then(withdraw) {
            Some((inode, withdrawn)) => {
                let (this, seams) = (self.clone(), seams.clone());
                let spawn = seams.spawn.clone();
                let work = async move {
                    let locks = [(handle, Some(inode))];
                    this.before_return(&*seams.clock, "the cache above", ABOVE_SLOW, &locks, withdrawn).await;
                    this.asked_back(&seams, handle);
                };
                spawn.spawn("lock withdrawal", Box::pin(work));
            }
            None => self.asked_back(seams, handle),
        }
        ClientReply::Done
    }

    /// A change of this client concerned an inode that could not be named before: the cache above
    /// drops the attributes of those that it changed, or of everything.
    pub(super) async fn withdraw_doubtful(&self, answered: Option<&Answered<MdtReply>>) {
        if !self.above().is_there() {
            return;
        }
        // Only compounds can change more inodes than their replies name.
        let is_told = |answered: &&Answered<MdtReply>| {
            let change = answered.extension.change.as_ref();
            let told = change.is_some_and(|change| change.versions.len() < VERSIONS_PER_CHANGE_MAX);
            told || !matches!(answered.reply, MdtReply::Compound(_))
        };
        match answered.filter(is_told).and_then(|answered| answered.extension.change.as_ref()) {
            Some(change) => {
                let attributes = InodeBits(inode_bit::ATTRIBUTES);
                let inodes = change.versions.iter().map(|version| version.inode);
                let withdrawn = inodes.filter_map(|inode| self.above().withdraw(inode, attributes)).collect();
                join_all::<BoxFuture<'static, ()>>(withdrawn).await;
            }
            _ => {
                if let Some(withdrawn) = self.above().withdraw_all() {
                    withdrawn.await;
                }
            }
        }
    }

    fn asked_back(self: &Arc<Self>, seams: &Seams, handle: LockHandle) {
        self.cache().cancels().asked_back(handle);
        self.give_locks_back(seams);
    }

    /// Changes how many locks are kept at most; 0: nothing is cached.
    pub fn set_locks_max(self: &Arc<Self>, seams: &Seams, locks_max: usize) {
        self.cache().set_locks_max(locks_max, self.above().is_there());
        self.give_locks_back_now(seams);
    }

    /// Gives all of them back; the limit stays as it is.
    pub fn clear_locks(self: &Arc<Self>, seams: &Seams) {
        self.cache().give_up_all(self.above().is_there());
        self.give_locks_back_now(seams);
    }

    fn give_locks_back_now(self: &Arc<Self>, seams: &Seams) {
        self.cache().cancels().hurry();
        self.give_locks_back(seams);
    }

    /// Gives back the locks that are not used any more, in the background.
    pub fn give_locks_back(self: &Arc<Self>, seams: &Seams) {
        let (sends, gathers) = {
            let mut cancels = self.cache().cancels();
            (cancels.begin_to_send(), cancels.begin_to_gather())
        };
        if sends {
            let (this, seams) = (self.clone(), seams.clone());
            let spawn = seams.spawn.clone();
            spawn.spawn("lock cancels", Box::pin(async move { this.send_cancels(&seams).await }));
        }
        if gathers {
            let (this, seams) = (self.clone(), seams.clone());
            let spawn = seams.spawn.clone();
            spawn.spawn("idle locks", Box::pin(async move { this.gather_cancels(&seams).await }));
        }
    }

    /// The MDT does not count these inodes as open any more once their locks are given back, so
    /// nothing may be read through opens that it does not know.
    fn lose_untold(&self, inodes: &[InodeNumber], error: &FsError) {
        for inode in inodes.iter().filter(|inode| self.opens().has_untold(**inode)) {
            tracing::warn!(%inode, %error, "cannot tell the MDT that this inode is open: its opens are stale");
            self.client_state().lost_inode(*inode);
        }
    }

    async fn send_cancels(self: &Arc<Self>, seams: &Seams) {
        let clock = &*seams.clock;
        loop {
            let cancelled = self.cache().cancels().next_urgent();
            if cancelled.is_empty() {
                return;
            }
            let is_untold = |inode: &Option<InodeNumber>| inode.is_some_and(|inode| self.opens().has_untold(inode));
            let (accessed, others): (Vec<_>, Vec<_>) = {
                let cancels = self.cache().cancels();
                cancelled.into_iter().partition(|(handle, _)| cancels.is_accessed(*handle))
            };
            let (untold, first): (Vec<_>, Vec<_>) = others.into_iter().partition(|(_, inode)| is_untold(inode));
            self.send(seams, first).await;
            if !accessed.is_empty() {
                let told = self.tell_accesses_or_not();
                self.before_return(clock, "accesses that the MDT has to know", SLOW, &accessed, told).await;
            }
            let last: Vec<_> = untold.into_iter().chain(accessed).collect();
            let untold: Vec<InodeNumber> =
                last.iter().filter(|(_, inode)| is_untold(inode)).filter_map(|(_, inode)| *inode).collect();
            if !untold.is_empty() {
                let told = at_last(clock, || self.import(), |_| self.tell_opens(&untold));
                match self.before_return(clock, "opens that the MDT has to know", SLOW, &last, told).await {
                    Ok(()) | Err(FsError::Evicted) => {}
                    Err(error) => self.lose_untold(&untold, &error),
                }
            }
            self.send(seams, last).await;
        }
    }

    /// Waits for what comes before these locks are back. If that takes longer than `slow`, and the
    /// MDT asked for some of them, the log says so.
    async fn before_return<T>(
        &self,
        clock: &dyn Clock,
        held_up_by: &'static str,
        slow: Duration,
        locks: &[(LockHandle, Option<InodeNumber>)],
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        if let Some(done) = clock::timeout_at(clock, clock.now() + slow, &mut work).await {
            return done;
        }
        let (asked, inode) = {
            let cancels = self.cache().cancels();
            let asked: Vec<_> = locks.iter().filter(|(handle, _)| cancels.is_asked(*handle)).collect();
            let inode = asked.iter().find_map(|(handle, inode)| inode.or_else(|| cancels.inode_of(*handle)));
            (asked.len(), inode)
        };
        if asked > 0
            && let Some(left_out) = self.client_state().held_up.may_log(clock.now())
        {
            let inode = inode.map(|inode| inode.to_string());
            tracing::warn!(
                target = %self.import().target(), held_up_by, locks = asked, inode, left_out,
                "locks that the MDT asks for have not been given back for {} s. As many other lines were left out",
                slow.as_secs()
            );
        }
        work.await
    }

    /// Gives these back. Closes that wait go along: a client that waits for the lock on a file that
    /// this one has closed finds it closed.
    async fn send(self: &Arc<Self>, seams: &Seams, cancelled: Vec<(LockHandle, Option<InodeNumber>)>) {
        let handles: Vec<LockHandle> = cancelled.iter().map(|(handle, _)| *handle).collect();
        if handles.is_empty() {
            return;
        }
        let (clock, import) = (&*seams.clock, self.import());
        let carried = self.carry_closes(seams, &import);
        let closes = carried.as_ref().map_or(Vec::new(), |carried| carried.requests());
        let cancel = |import: Import| {
            let request = MdtRequest::CancelLocks(handles.clone());
            let question = Question { closes: closes.clone(), ..Question::from(request) };
            async move { import.call(question).await }
        };
        let sent = at_last(clock, || import.clone(), cancel);
        let outcome = self.before_return(clock, "the request to the MDT", SLOW, &cancelled, sent).await;
        if let Some(carried) = carried {
            carried.settle(outcome.as_ref().ok());
        }
        if let Err(error) = outcome {
            tracing::debug!(%error, "locks end with their session");
        }
        self.cache().cancels().sent(&handles);
    }

    /// The cache above drops what is under each of these locks when it can.
    async fn let_go(&self, leaving: Vec<Parting>) {
        let let_go = |parting: Parting| async move {
            let Released { inode, parts, .. } = parting.released;
            if let Some(gone) = self.above().let_go(inode, parts) {
                gone.await;
            }
            self.cache().cancels().left(&parting);
        };
        join_all(leaving.into_iter().map(let_go).collect()).await;
    }

    async fn gather_cancels(self: &Arc<Self>, seams: &Seams) {
        loop {
            clock::sleep(&*seams.clock, ROUND).await;
            let Some(leaving) = self.cache().cancels().next_round() else { return };
            if !leaving.is_empty() {
                let this = self.clone();
                seams.spawn.spawn("lock leaving", Box::pin(async move { this.let_go(leaving).await }));
            }
            self.give_locks_back(seams);
        }
    }
}

/// Repeats a request as long as the MDT may wait for it, and returns how it ended.
async fn at_last<T, F: Future<Output = FsResult<T>>>(
    clock: &dyn Clock,
    import: impl Fn() -> Import,
    request: impl Fn(Import) -> F,
) -> FsResult<T> {
    loop {
        let outcome = request(import()).await;
        let may_repeat = matches!(outcome, Err(FsError::Unreachable { .. }));
        if !may_repeat || import().state() == ImportState::Closed {
            return outcome;
        }
        clock::sleep(clock, INTERVAL).await;
    }
}
