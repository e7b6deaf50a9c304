//! Clients that wait for others, and what they are told: that they have a lock, or that they are to
//! ask again. There is no polling, and no request is kept in its handler: a request that cannot be
//! executed yet is answered at once, and its client is recorded here, or in the queues of the crate
//! `lock`.
//!
//! Invariant: whatever ends a wait adds a notice under the mutex under which the client began to
//! wait, so none is lost. Tasks of the MDT deliver them (`mdt/notices.rs`), in any order: a few for
//! each client that has some pending.
//!
//! A client that answers no callbacks does not fill the memory. To ask again for an inode is
//! pending once, whatever happens meanwhile; but if that is being delivered, it becomes pending
//! again, since the client may have asked before the latest change. A client with more notices
//! pending than a client can have waiting requests is evicted.
//!
//! Downside: a client is told about an inode, not about a request; its other waiting users of the
//! inode ask again too.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    sync::Arc,
};

use lock::{Completion, LockError, WaitTicket};
use rpc::message::{ClientRequest, client::LockCompleted};
use tokio::sync::Notify;
use types::{ClientId, FsError, InodeNumber, limits};

/// Notices delivered to one client at a time: as many as find slots beside its other callbacks.
pub(crate) const DELIVERIES_PER_CLIENT: usize = limits::CALLBACK_SLOTS as usize / 2;

/// What a client is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// See [`ClientRequest::AskAgain`].
    AskAgain(Option<InodeNumber>),
    /// See [`ClientRequest::LockCompleted`].
    Completed(WaitTicket, Result<(), LockError>),
}

impl Notice {
    /// The callback that tells it.
    pub fn request(self) -> ClientRequest {
        match self {
            Notice::AskAgain(inode) => ClientRequest::AskAgain(inode),
            Notice::Completed(ticket, outcome) => {
                ClientRequest::LockCompleted(LockCompleted { ticket, outcome: outcome.map_err(FsError::from) })
            }
        }
    }
}

/// What the MDT is to do for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// To begin a delivery: a task that delivers what [`Waiters::next`] returns, until that is
    /// `None`.
    Deliver(ClientId),
    /// To evict the client: it has too many notices pending.
    Evict(ClientId),
}

/// Where the notice is by which a client asks again for an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// In the queue.
    Pending,
    /// Being delivered.
    Outstanding,
    /// Being delivered, and to be delivered once more.
    OutstandingAndPending,
}

/// Notices of one client.
#[derive(Debug, Default)]
struct Notices {
    /// Pending, in the order in which they were added.
    queue: VecDeque<Notice>,
    /// Each `AskAgain` that is pending or being delivered.
    asks: BTreeMap<Option<InodeNumber>, Ask>,
    /// Deliveries that run, or are about to begin.
    deliveries: usize,
    /// Too many were pending: the client is evicted, and told nothing until its session has ended.
    is_evicted: bool,
}

impl Notices {
    /// Adds a notice; `max` may be pending. Returns whether it is in the queue, or the client is to
    /// be evicted, from now on.
    fn add(&mut self, notice: Notice, max: usize) -> bool {
        if self.is_evicted {
            return false;
        }
        if let Notice::AskAgain(inode) = notice {
            match self.asks.entry(inode) {
                Entry::Occupied(mut ask) => {
                    if *ask.get() == Ask::Outstanding {
                        ask.insert(Ask::OutstandingAndPending);
                    }
                    return false;
                }
                Entry::Vacant(ask) => {
                    ask.insert(Ask::Pending);
                }
            }
        }
        if self.queue.len() >= max {
            self.clear();
            self.is_evicted = true;
        } else {
            self.queue.push_back(notice);
        }
        true
    }

    /// The next notice to deliver.
    fn take(&mut self) -> Option<Notice> {
        let notice = self.queue.pop_front()?;
        if let Notice::AskAgain(inode) = notice {
            let before = self.asks.insert(inode, Ask::Outstanding);
            assert_eq!(before, Some(Ask::Pending), "the queue has what is pending, once");
        }
        Some(notice)
    }

    /// A notice was delivered, perhaps in an earlier session.
    fn delivered(&mut self, notice: Notice) {
        let Notice::AskAgain(inode) = notice else { return };
        match self.asks.get(&inode) {
            Some(Ask::Outstanding) => {
                self.asks.remove(&inode);
            }
            Some(Ask::OutstandingAndPending) => {
                self.asks.insert(inode, Ask::Pending);
                self.queue.push_back(notice);
            }
            Some(Ask::Pending) | None => {}
        }
    }

    /// Nothing is pending any more.
    fn clear(&mut self) {
        (self.queue, self.asks) = (VecDeque::new(), BTreeMap::new());
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Clients that wait for another state of an inode.
    inodes: BTreeMap<InodeNumber, BTreeSet<ClientId>>,
    /// Clients that wait for recovery to end, or for the first map.
    start: BTreeSet<ClientId>,
    /// Clients with notices that are not delivered yet, or that are evicted because of them.
    notices: BTreeMap<ClientId, Notices>,
    /// Notices that may be pending for one client.
    notices_max: usize,
    /// What the MDT has not begun.
    work: VecDeque<Work>,
    /// Rung when there is more.
    wakeup: Arc<Notify>,
}

impl Default for Waiters {
    fn default() -> Self {
        Self {
            inodes: BTreeMap::new(),
            start: BTreeSet::new(),
            notices: BTreeMap::new(),
            notices_max: limits::LOCKS_PER_CLIENT_MAX,
            work: VecDeque::new(),
            wakeup: Arc::default(),
        }
    }
}

impl Waiters {
    /// Sets how many notices may be pending for one client.
    pub fn set_notices_max(&mut self, notices_max: usize) {
        self.notices_max = notices_max;
    }

    /// Rung when there is work.
    pub fn wakeup(&self) -> Arc<Notify> {
        self.wakeup.clone()
    }

    /// What is to be done now.
    pub fn take_work(&mut self) -> VecDeque<Work> {
        std::mem::take(&mut self.work)
    }

    /// What one of a client's deliveries is to deliver next; it has delivered `done`. `None`: it
    /// ends.
    pub fn next(&mut self, client: ClientId, done: Option<Notice>) -> Option<Notice> {
        let notices = self.notices.get_mut(&client).expect("a client with a delivery is known");
        if let Some(done) = done {
            notices.delivered(done);
        }
        let next = notices.take();
        if next.is_none() {
            assert!(notices.deliveries > 0, "a delivery that ends was counted");
            notices.deliveries -= 1;
            self.drop_idle(client);
        }
        next
    }

    /// The session of a client ended, or it has none: nobody waits for its notices. Those of its
    /// next session are delivered.
    pub fn session_ended(&mut self, client: ClientId) {
        if let Some(notices) = self.notices.get_mut(&client) {
            notices.clear();
            notices.is_evicted = false;
            self.drop_idle(client);
        }
    }

    /// Forgets a client that has no notices.
    fn drop_idle(&mut self, client: ClientId) {
        if self.notices.get(&client).is_some_and(|notices| notices.deliveries == 0 && !notices.is_evicted) {
            let notices = self.notices.remove(&client).expect("found a moment ago");
            assert!(notices.queue.is_empty(), "what is pending has a delivery");
        }
    }

    /// The client is told at the next change of this inode's locks, opens or layout.
    pub fn wait(&mut self, inode: InodeNumber, client: ClientId) {
        self.inodes.entry(inode).or_default().insert(client);
    }

    /// The client is told when recovery has ended, and when the first map is known.
    pub fn wait_for_start(&mut self, client: ClientId) {
        self.start.insert(client);
    }

    /// Whether a client is told at the next change of this inode.
    pub fn is_awaited(&self, inode: InodeNumber) -> bool {
        self.inodes.contains_key(&inode)
    }

    /// Those that wait for this inode ask again.
    pub fn wake(&mut self, inode: InodeNumber) {
        for client in self.inodes.remove(&inode).into_iter().flatten() {
            self.wake_client(inode, client);
        }
    }

    /// This client asks again for what it wants of an inode.
    pub fn wake_client(&mut self, inode: InodeNumber, client: ClientId) {
        self.tell(client, Notice::AskAgain(Some(inode)));
    }

    /// Recovery has ended, or the first map is known.
    pub fn wake_start(&mut self) {
        for client in std::mem::take(&mut self.start) {
            self.tell(client, Notice::AskAgain(None));
        }
    }

    /// Requests for advisory locks were granted or refused.
    pub fn complete(&mut self, completed: Vec<Completion>) {
        for Completion { client, ticket, outcome } in completed {
            self.tell(client, Notice::Completed(ticket, outcome));
        }
    }

    /// A client waits for nothing any more.
    pub fn forget(&mut self, client: ClientId) {
        self.start.remove(&client);
        self.inodes.retain(|_, clients| {
            clients.remove(&client);
            !clients.is_empty()
        });
    }

    fn tell(&mut self, client: ClientId, notice: Notice) {
        let notices = self.notices.entry(client).or_default();
        if !notices.add(notice, self.notices_max) {
            return;
        }
        if notices.is_evicted {
            self.work.push_back(Work::Evict(client));
        } else if notices.deliveries < DELIVERIES_PER_CLIENT {
            notices.deliveries += 1;
            self.work.push_back(Work::Deliver(client));
        } else {
            return;
        }
        self.wakeup.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeNumber = InodeNumber(1);
    const OTHER: InodeNumber = InodeNumber(2);
    const CLIENT: ClientId = ClientId(1);

    fn again(inode: InodeNumber) -> Notice {
        Notice::AskAgain(Some(inode))
    }

    fn completion(ticket: u64) -> Completion {
        Completion { client: CLIENT, ticket: WaitTicket(ticket), outcome: Ok(()) }
    }

    /// Delivers everything.
    fn told(waiters: &mut Waiters) -> Vec<(ClientId, Notice)> {
        let mut told = Vec::new();
        for work in waiters.take_work() {
            let Work::Deliver(client) = work else { panic!("{work:?}") };
            let mut done = None;
            while let Some(notice) = waiters.next(client, done) {
                told.push((client, notice));
                done = Some(notice);
            }
        }
        told
    }

    #[test]
    fn each_wait_ends_with_one_notice() {
        let mut waiters = Waiters::default();
        waiters.wait(FILE, ClientId(1));
        waiters.wait(FILE, ClientId(1));
        waiters.wait(FILE, ClientId(2));
        waiters.wait(OTHER, ClientId(3));
        waiters.wait_for_start(ClientId(3));
        waiters.forget(ClientId(2));
        waiters.wake(FILE);
        waiters.wake(FILE);
        waiters.wake_start();
        assert_eq!(told(&mut waiters), [(ClientId(1), again(FILE)), (ClientId(3), Notice::AskAgain(None))]);
        assert!(waiters.notices.is_empty(), "nothing is left");
    }

    #[test]
    fn a_notice_that_comes_while_it_is_delivered_is_delivered_once_more() {
        let mut waiters = Waiters::default();
        waiters.wake_client(FILE, CLIENT);
        assert_eq!(waiters.take_work(), [Work::Deliver(CLIENT)]);
        assert_eq!(waiters.next(CLIENT, None), Some(again(FILE)));
        for _ in 0..1000 {
            waiters.wake_client(FILE, CLIENT);
        }
        assert_eq!(waiters.take_work(), [], "that delivery continues with it");
        assert_eq!(waiters.next(CLIENT, Some(again(FILE))), Some(again(FILE)));
        assert_eq!(waiters.next(CLIENT, Some(again(FILE))), None);
        waiters.wake_client(FILE, CLIENT);
        assert_eq!(told(&mut waiters), [(CLIENT, again(FILE))]);
    }

    #[test]
    fn what_one_client_does_not_hear_takes_limited_memory() {
        const MAX: usize = 100;
        let mut waiters = Waiters::default();
        waiters.set_notices_max(MAX);
        waiters.complete((0..MAX as u64).map(completion).collect());
        assert_eq!(waiters.take_work(), [Work::Deliver(CLIENT); DELIVERIES_PER_CLIENT]);
        waiters.wake_client(FILE, CLIENT);
        assert_eq!(waiters.take_work(), [Work::Evict(CLIENT)]);
        waiters.complete((0..MAX as u64).map(completion).collect());
        assert_eq!((waiters.take_work(), waiters.notices[&CLIENT].queue.len()), (VecDeque::new(), 0));
        waiters.wake_client(FILE, ClientId(2));
        assert_eq!(told(&mut waiters), [(ClientId(2), again(FILE))], "others are told");
        for _ in 0..DELIVERIES_PER_CLIENT {
            assert_eq!(waiters.next(CLIENT, None), None);
        }
        waiters.session_ended(CLIENT);
        assert!(waiters.notices.is_empty());
        waiters.wake_client(FILE, CLIENT);
        assert_eq!(told(&mut waiters), [(CLIENT, again(FILE))], "in its next session");
    }

    #[test]
    fn a_delivery_of_an_ended_session_takes_no_notice_of_the_next() {
        let mut waiters = Waiters::default();
        waiters.wake_client(FILE, CLIENT);
        assert_eq!(waiters.next(CLIENT, None), Some(again(FILE)));
        waiters.session_ended(CLIENT);
        waiters.wake_client(FILE, CLIENT);
        assert_eq!(waiters.next(CLIENT, Some(again(FILE))), Some(again(FILE)), "it is delivered by the same task");
        waiters.session_ended(CLIENT);
        waiters.complete(vec![completion(1)]);
        assert_eq!(waiters.next(CLIENT, Some(again(FILE))), Some(Notice::Completed(WaitTicket(1), Ok(()))));
        assert_eq!(waiters.next(CLIENT, None), None);
    }
}
