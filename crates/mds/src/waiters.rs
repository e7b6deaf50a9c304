//! Clients that wait for others, and what they are told: that they have a lock, or that they are to
//! ask again. There is no polling, and no request is kept in its handler: a request that cannot be
//! executed yet is answered at once, and its client is recorded here, or in the queues of the crate
//! `lock`.
//!
//! Invariant: whatever ends a wait adds a notice under the mutex under which the client began to
//! wait, so none is lost. A task of the MDT delivers them (`mdt/notices.rs`), in any order.
//!
//! Downside: a client is told about an inode, not about a request; its other waiting users of the
//! inode ask again too.

use std::collections::{BTreeMap, BTreeSet};

use lock::Completion;
use rpc::message::{ClientRequest, client::LockCompleted};
use tokio::sync::mpsc;
use types::{ClientId, FsError, InodeNumber};

/// What a client is to be told.
#[derive(Debug)]
pub(crate) struct Notice {
    pub client: ClientId,
    pub request: ClientRequest,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Clients that wait for another state of an inode.
    inodes: BTreeMap<InodeNumber, BTreeSet<ClientId>>,
    /// Clients that wait for recovery to end, or for the first map.
    start: BTreeSet<ClientId>,
    notices: mpsc::UnboundedSender<Notice>,
    /// `None`: a task has it.
    delivery: Option<mpsc::UnboundedReceiver<Notice>>,
}

impl Default for Waiters {
    fn default() -> Self {
        let (notices, delivery) = mpsc::unbounded_channel();
        Self { inodes: BTreeMap::new(), start: BTreeSet::new(), notices, delivery: Some(delivery) }
    }
}

impl Waiters {
    /// Where notices come out; once.
    pub fn take_delivery(&mut self) -> mpsc::UnboundedReceiver<Notice> {
        self.delivery.take().expect("one task delivers notices")
    }

    /// The client is told at the next change of this inode's locks, opens or layout.
    pub fn wait(&mut self, inode: InodeNumber, client: ClientId) {
        self.inodes.entry(inode).or_default().insert(client);
    }

    /// The client is told when recovery has ended, and when the first map is known.
    pub fn wait_for_start(&mut self, client: ClientId) {
        self.start.insert(client);
    }

    /// Those that wait for this inode ask again.
    pub fn wake(&mut self, inode: InodeNumber) {
        for client in self.inodes.remove(&inode).into_iter().flatten() {
            self.wake_client(inode, client);
        }
    }

    /// This client asks again for what it wants of an inode.
    pub fn wake_client(&self, inode: InodeNumber, client: ClientId) {
        self.tell(client, ClientRequest::AskAgain(Some(inode)));
    }

    /// Recovery has ended, or the first map is known.
    pub fn wake_start(&mut self) {
        for client in std::mem::take(&mut self.start) {
            self.tell(client, ClientRequest::AskAgain(None));
        }
    }

    /// Requests for advisory locks were granted or refused.
    pub fn complete(&self, completed: Vec<Completion>) {
        for Completion { client, ticket, outcome } in completed {
            let outcome = outcome.map_err(FsError::from);
            self.tell(client, ClientRequest::LockCompleted(LockCompleted { ticket, outcome }));
        }
    }

    /// The session of a client ended.
    pub fn forget(&mut self, client: ClientId) {
        self.start.remove(&client);
        self.inodes.retain(|_, clients| {
            clients.remove(&client);
            !clients.is_empty()
        });
    }

    fn tell(&self, client: ClientId, request: ClientRequest) {
        // No client is called back when the MDT stops: clients ask its next start.
        let _ = self.notices.send(Notice { client, request });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_ends_with_one_notice() {
        let mut waiters = Waiters::default();
        let mut delivery = waiters.take_delivery();
        let (file, other) = (InodeNumber(1), InodeNumber(2));
        waiters.wait(file, ClientId(1));
        waiters.wait(file, ClientId(1));
        waiters.wait(file, ClientId(2));
        waiters.wait(other, ClientId(3));
        waiters.wait_for_start(ClientId(3));
        waiters.forget(ClientId(2));
        waiters.wake(file);
        waiters.wake(file);
        waiters.wake_start();
        let mut told = Vec::new();
        while let Ok(Notice { client, request }) = delivery.try_recv() {
            told.push((client, request));
        }
        let expected =
            [(ClientId(1), ClientRequest::AskAgain(Some(file))), (ClientId(3), ClientRequest::AskAgain(None))];
        assert_eq!(told, expected);
    }
}
