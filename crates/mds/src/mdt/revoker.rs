//! How an MDT reaches its clients to ask for locks: through the server that serves it, a bounded
//! number of callbacks to each client at a time.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rpc::Clients;
use rt::{Instant, LogLimit};
use tokio::sync::Semaphore;
use types::{ClientId, limits::CALLBACK_SLOTS};

/// Callbacks to one client at a time. Others of its callbacks find slots.
pub(super) const CALLBACKS_PER_CLIENT: usize = CALLBACK_SLOTS as usize / 2;

/// See the module documentation.
pub(super) struct Revoker {
    clients: Mutex<Option<Arc<dyn Clients>>>,
    /// Permits for callbacks, by client.
    turns: Mutex<BTreeMap<ClientId, Arc<Semaphore>>>,
    /// What the log says of changes that wait for locks.
    reports: LogLimit,
}

impl Default for Revoker {
    fn default() -> Self {
        Self { clients: Mutex::default(), turns: Mutex::default(), reports: LogLimit::new(LogLimit::ONE_A_SECOND) }
    }
}

impl Revoker {
    /// `None` as long as no server serves this MDT.
    pub fn clients(&self) -> Option<Arc<dyn Clients>> {
        self.clients.lock().clone()
    }

    /// A server serves this MDT.
    pub fn set_clients(&self, clients: Arc<dyn Clients>) {
        *self.clients.lock() = Some(clients);
    }

    /// Permits for callbacks to a client.
    pub fn turns_of(&self, client: ClientId) -> Arc<Semaphore> {
        let new = || Arc::new(Semaphore::new(CALLBACKS_PER_CLIENT));
        self.turns.lock().entry(client).or_insert_with(new).clone()
    }

    /// The client is gone; callbacks that are under way keep what they need.
    pub fn forget(&self, client: ClientId) {
        self.turns.lock().remove(&client);
    }

    /// A change waits for locks. `Some`: the log is to say so, and that as many others were left
    /// out.
    pub fn begin_report(&self, now: Instant) -> Option<u64> {
        self.reports.may_log(now)
    }
}
