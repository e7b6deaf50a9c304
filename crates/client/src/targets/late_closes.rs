//! Closes that nobody waits for: they go along with the next request to their MDT about a name, an
//! inode or locks, and are executed before it; or, after some milliseconds, by themselves, all that
//! wait with one request. (StatFs, Commit, RegisterOpens and NoteAccesses take nothing along.)
//!
//! To the MDT such a close is one that took longer to arrive. As long as it is not confirmed, the
//! open is registered like any other: it is claimed again when the MDT has restarted, and is stale
//! when this incarnation of the mount ends, which drops the close. A close that went along with a
//! request whose outcome does not say what became of it is repeated by itself; that does no harm.
//!
//! All that wait fit into one message, so such a request that is sent after a close began to wait
//! comes after that close: with it, or after a request that took it along.
//!
//! Which closes may wait is decided in `operations::close`.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::{
    Answered, Import,
    message::{
        MdtReply, MdtRequest, ReplyExtension,
        extension::{Change, ClosedBeside},
        mdt::{Close, Closed},
        session::feature,
    },
};
use rt::{BoxFuture, Instant, Seams, clock};
use tokio::sync::watch;
use types::{FsError, InodeNumber, limits::CLOSES_PER_MESSAGE_MAX};

use crate::{
    cache::inode_cache::Pending, cancellation::finish::finish, open_state::open_inode::OpenInode,
    targets::connection::TargetConnection,
};

/// How long after one of them is sent the others that are due wait for being taken along.
const NEXT: Duration = Duration::from_millis(1);
/// The most that a sync and an unmount wait for closes.
const SETTLING_MAX: Duration = Duration::from_secs(2);

/// What ends opens by requests of their own.
pub(crate) trait Closer: Send + Sync {
    /// Ends an open whose close has waited; completes when nothing is left to be done.
    fn close_now(self: Arc<Self>, open: Arc<OpenInode>, close: Close) -> BoxFuture<'static, ()>;

    /// Looks at a file whose last writer has closed it, and reports its size, in the background.
    fn report_wanted(self: Arc<Self>, inode: InodeNumber);
}

/// A close that nobody waits for.
pub(crate) struct LateClose {
    pub closer: Weak<dyn Closer>,
    pub open: Arc<OpenInode>,
    pub close: Close,
    /// When it is sent by itself.
    pub due: Instant,
}

#[derive(Default)]
struct Waiting {
    closes: Vec<LateClose>,
    /// A task looks after them.
    is_watched: bool,
}

/// The closes of one MDT that wait, in the order in which they began to.
#[derive(Default)]
pub(crate) struct LateCloses {
    waiting: Mutex<Waiting>,
    /// How many are on their way.
    under_way: watch::Sender<usize>,
}

impl LateCloses {
    /// Adds one, unless there are too many. Whether a task has to begin that looks after them.
    fn add(&self, close: LateClose) -> Result<bool, LateClose> {
        let mut waiting = self.waiting.lock();
        if waiting.closes.len() >= CLOSES_PER_MESSAGE_MAX {
            return Err(close);
        }
        waiting.closes.push(close);
        Ok(!std::mem::replace(&mut waiting.is_watched, true))
    }

    /// Those that go along with a request.
    fn take_along(&self) -> Vec<LateClose> {
        let taken = std::mem::take(&mut self.waiting.lock().closes);
        assert!(taken.len() <= CLOSES_PER_MESSAGE_MAX, "{} closes in one message", taken.len());
        self.begin(taken.len());
        taken
    }

    /// The first of those that are due, which takes the others along. `all`: all are due.
    fn take_due(&self, now: Instant, all: bool) -> Option<LateClose> {
        let mut waiting = self.waiting.lock();
        let first = waiting.closes.iter().position(|close| all || close.due <= now)?;
        let taken = waiting.closes.remove(first);
        for close in waiting.closes.iter_mut().filter(|close| close.due <= now) {
            close.due = now + NEXT;
        }
        self.begin(1);
        Some(taken)
    }

    /// When the next one is due; `None`: there is none, and the task that asks ends.
    fn next_due(&self) -> Option<Instant> {
        let mut waiting = self.waiting.lock();
        let due = waiting.closes.iter().map(|close| close.due).min();
        waiting.is_watched = due.is_some();
        due
    }

    fn count(&self) -> usize {
        self.waiting.lock().closes.len()
    }

    fn begin(&self, count: usize) {
        if count > 0 {
            self.under_way.send_modify(|under_way| *under_way += count);
        }
    }

    fn end(&self, count: usize) {
        if count > 0 {
            self.under_way.send_modify(|under_way| {
                assert!(*under_way >= count, "a close that ends was under way");
                *under_way -= count;
            });
        }
    }
}

/// Closes on their way along with a request.
pub(crate) struct Carried {
    target: Arc<TargetConnection>,
    seams: Seams,
    import: Import,
    /// Restarts of the MDT when they were sent.
    restarts: u64,
    closes: Vec<(LateClose, Pending)>,
}

impl Carried {
    /// As they are sent.
    pub fn requests(&self) -> Vec<Close> {
        self.closes.iter().map(|(late, _)| late.close.clone()).collect()
    }

    /// Their request was answered, or will not be. `answered`: the reply, if it tells of them.
    pub fn settle<R>(mut self, answered: Option<&Answered<R>>) {
        let closes = std::mem::take(&mut self.closes);
        let count = closes.len();
        let mut again = Vec::new();
        for (place, (late, pending)) in closes.into_iter().enumerate() {
            let told = answered.and_then(|answered| {
                let closed = answered.extension.closed.get(place)?.as_ref()?;
                Some((closed, answered.era, answered.connection))
            });
            let (is_done, size_wanted) =
                (told.is_some(), told.is_some_and(|(closed, ..)| closed.size_wanted.is_some()));
            let mut outcome = match told {
                Some((closed, era, connection)) => {
                    let (reply, bulk) = (MdtReply::Closed(Closed { size_wanted: None }), Bytes::new());
                    Ok(Answered { reply, bulk, extension: beside(closed), era, connection })
                }
                None => Err(FsError::Stale),
            };
            self.target.cache().answer(&self.import, pending, &mut outcome, self.target.above().is_there());
            if !is_done {
                again.push(late);
                continue;
            }
            // Before the restarts are compared: see `operations::close`.
            self.target.opens().unregister(&late.open, late.close.open);
            if let (true, Some(closer)) = (size_wanted, late.closer.upgrade()) {
                closer.report_wanted(late.open.inode());
            }
            if self.target.restarts() != self.restarts {
                again.push(late);
            }
        }
        self.repeat(again, count);
    }

    /// Closes some of them by requests of their own; the others are done.
    fn repeat(&self, again: Vec<LateClose>, count: usize) {
        self.target.closes().end(count - again.len());
        for late in again {
            self.target.spawn_close(&self.seams, late);
        }
    }
}

impl Drop for Carried {
    /// What became of them will not be known.
    fn drop(&mut self) {
        let closes = std::mem::take(&mut self.closes);
        let count = closes.len();
        let mut again = Vec::new();
        for (late, pending) in closes {
            self.target.cache().abandon(pending);
            again.push(late);
        }
        self.repeat(again, count);
    }
}

/// What is told of a close, as it would come beside its own reply.
fn beside(closed: &ClosedBeside) -> ReplyExtension {
    let change = closed.version.map(|version| Change { versions: vec![version], ..Change::default() });
    ReplyExtension { change, changed: closed.entry.iter().cloned().collect(), ..ReplyExtension::default() }
}

impl TargetConnection {
    /// A close that may wait; it is returned if it is to be sent at once.
    pub fn close_later(self: &Arc<Self>, seams: &Seams, late: LateClose) -> Result<(), LateClose> {
        if !self.is_active() || !self.import().supports(feature::CLOSES_BESIDE) {
            return Err(late);
        }
        if self.closes().add(late)? {
            self.watch_closes(seams);
        }
        Ok(())
    }

    /// The closes that go along with a request that is about to be sent, which is asked after them.
    pub(super) fn carry_closes(self: &Arc<Self>, seams: &Seams, import: &Import) -> Option<Box<Carried>> {
        if self.closes().count() == 0 || !import.supports(feature::CLOSES_BESIDE) {
            return None;
        }
        let restarts = self.restarts();
        let taken = self.closes().take_along();
        let count = taken.len();
        let (live, ended): (Vec<_>, Vec<_>) = taken.into_iter().partition(|late| late.open.check().is_ok());
        // The MDT closed those when it evicted this client.
        ended.iter().for_each(|late| self.opens().unregister(&late.open, late.close.open));
        self.closes().end(count - live.len());
        // Of an incarnation that has ended: the MDT would look for their opens among those of
        // another client.
        if self.is_of_former_session(import) {
            live.into_iter().for_each(|late| self.spawn_close(seams, late));
            return None;
        }
        let ask = |mut late: LateClose| {
            late.close.update = late.open.still(late.close.update.take());
            let request = MdtRequest::Close(late.close.clone());
            let pending = self.cache().ask(import, &request, &*seams.clock, self.opens());
            (late, pending)
        };
        let closes: Vec<_> = live.into_iter().map(ask).collect();
        let (target, seams, import) = (self.clone(), seams.clone(), import.clone());
        (!closes.is_empty()).then(|| Box::new(Carried { target, seams, import, restarts, closes }))
    }

    /// Sends those that no request has taken along in time.
    fn watch_closes(self: &Arc<Self>, seams: &Seams) {
        let (this, seams) = (self.clone(), seams.clone());
        let spawn = seams.spawn.clone();
        let watch = async move {
            while let Some(due) = this.closes().next_due() {
                seams.clock.sleep_until(due).await;
                if let Some(late) = this.closes().take_due(seams.clock.now(), false) {
                    this.spawn_close(&seams, late);
                }
            }
        };
        spawn.spawn("late closes", Box::pin(watch));
    }

    fn spawn_close(self: &Arc<Self>, seams: &Seams, late: LateClose) {
        let this = self.clone();
        seams.spawn.spawn("late close", Box::pin(async move { this.close_now(late).await }));
    }

    async fn close_now(&self, late: LateClose) {
        if let Some(closer) = late.closer.upgrade() {
            closer.close_now(late.open, late.close).await;
        }
        self.closes().end(1);
    }

    /// Nothing waits afterwards that waits now.
    async fn send_closes(self: &Arc<Self>, seams: &Seams) {
        for _ in 0..self.closes().count() {
            let Some(late) = self.closes().take_due(seams.clock.now(), true) else { break };
            let this = self.clone();
            // Rare: the futures of those who sync stay small.
            Box::pin(finish(&seams.spawn, |_| async move { this.close_now(late).await })).await;
        }
    }

    /// Somebody wants all that was done to be at the MDT: no close waits or is under way, unless
    /// the MDT does not answer soon.
    pub async fn settle_closes(self: &Arc<Self>, seams: &Seams) {
        let mut under_way = self.closes().under_way.subscribe();
        let ended = async {
            self.send_closes(seams).await;
            drop(under_way.wait_for(|under_way| *under_way == 0).await);
        };
        clock::timeout_at(&*seams.clock, seams.clock.now() + SETTLING_MAX, ended).await;
    }
}
