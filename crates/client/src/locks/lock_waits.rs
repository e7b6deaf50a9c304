//! Requests of this client for advisory locks that wait at MDTs, by ticket.
//!
//! A request is entered before it is sent, because the callback that completes it may overtake its
//! answer. A grant is noted among the locks that are held when the callback arrives, not when the
//! waiting task continues: what is claimed again after a restart of the MDT includes it.
//!
//! A restart of the MDT ends all waits there. Their tasks ask again under the same tickets, because
//! their requests may have been repeated at the new start.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use rpc::message::mdt::WaitTicket;
use tokio::sync::mpsc;
use types::{FsResult, InodeNumber, MdtIndex};

use super::{held_locks::HeldLocks, lock_request::LockRequest};

/// What happened to a request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitEvent {
    /// It is granted, or refused; it is not in the queue any more.
    Completed(FsResult<()>),
    /// The MDT restarted, or the session ended: it is to be asked again.
    Restarted,
}

#[derive(Debug)]
struct Waiting {
    inode: InodeNumber,
    request: LockRequest,
    events: mpsc::UnboundedSender<WaitEvent>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct LockWaits {
    waiting: Mutex<BTreeMap<WaitTicket, Waiting>>,
    last: AtomicU64,
}

/// A request that may wait, until this is dropped.
pub(crate) struct LockWait {
    waits: Arc<LockWaits>,
    ticket: WaitTicket,
    events: mpsc::UnboundedReceiver<WaitEvent>,
    /// Whether the MDT may have it in the queue.
    pub may_be_queued: bool,
}

impl LockWaits {
    /// A request is about to be sent.
    pub fn begin(self: &Arc<Self>, inode: InodeNumber, request: &LockRequest) -> LockWait {
        let ticket = WaitTicket(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, events) = mpsc::unbounded_channel();
        let before = self.waiting.lock().insert(ticket, Waiting { inode, request: *request, events: sender });
        assert!(before.is_none(), "each request has its own ticket");
        LockWait { waits: self.clone(), ticket, events, may_be_queued: false }
    }

    /// The MDT has completed a request. False if no caller waits for it.
    pub fn completed(&self, held: &HeldLocks, ticket: WaitTicket, outcome: FsResult<()>) -> bool {
        let waiting = self.waiting.lock();
        let Some(Waiting { inode, request, events }) = waiting.get(&ticket) else { return false };
        if outcome.is_ok() {
            held.granted(*inode, request);
        }
        // The other end is in the table as long as its task has it.
        let _ = events.send(WaitEvent::Completed(outcome));
        true
    }

    /// This MDT has restarted; `None`: all sessions ended.
    pub fn restarted(&self, mdt: Option<MdtIndex>) {
        for waiting in self.waiting.lock().values().filter(|waiting| mdt.is_none_or(|mdt| mdt == waiting.inode.mdt())) {
            // As above.
            let _ = waiting.events.send(WaitEvent::Restarted);
        }
    }
}

impl LockWait {
    /// The name of the request.
    pub fn ticket(&self) -> WaitTicket {
        self.ticket
    }

    /// Waits for what happens next to the request.
    pub async fn next(&mut self) -> WaitEvent {
        self.events.recv().await.expect("the sender is in the table until this is dropped")
    }
}

impl Drop for LockWait {
    fn drop(&mut self) {
        let waiting = self.waits.waiting.lock().remove(&self.ticket);
        assert!(waiting.is_some(), "a request is in the table until it is dropped");
    }
}

#[cfg(test)]
mod tests {
    use rpc::message::mdt::{LockFamily, LockMode, LockRange};
    use types::{ClientId, FsError};

    use super::*;

    const FILE: InodeNumber = InodeNumber(9);

    #[tokio::test]
    async fn a_grant_is_noted_when_it_is_heard_and_only_for_those_that_wait() {
        let (waits, held) = (Arc::new(LockWaits::default()), HeldLocks::default());
        let range = LockRange { start: 0, end: 9 };
        let request =
            LockRequest { family: LockFamily::Posix, owner: 1, pid: 2, range, mode: LockMode::Shared, wait: true };
        let (mut first, mut second) = (waits.begin(FILE, &request), waits.begin(FILE, &request));
        assert_ne!(first.ticket(), second.ticket());
        assert!(waits.completed(&held, second.ticket(), Err(FsError::Deadlock)));
        assert!(held.at(FILE.mdt(), ClientId(1)).is_empty());
        assert!(waits.completed(&held, first.ticket(), Ok(())));
        assert_eq!(held.at(FILE.mdt(), ClientId(1)).len(), 1);
        waits.restarted(Some(FILE.mdt()));
        waits.restarted(Some(MdtIndex(7)));
        assert_eq!(first.next().await, WaitEvent::Completed(Ok(())));
        assert_eq!(first.next().await, WaitEvent::Restarted);
        assert_eq!(second.next().await, WaitEvent::Completed(Err(FsError::Deadlock)));
        let ticket = first.ticket();
        drop((first, second));
        assert!(!waits.completed(&held, ticket, Ok(())));
        assert!(waits.waiting.lock().is_empty());
    }
}
