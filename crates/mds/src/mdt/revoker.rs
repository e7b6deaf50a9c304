//! How an MDT reaches its clients to ask for locks: through the server that serves it, a bounded
//! number of callbacks to each client at a time.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use rpc::Clients;
use tokio::sync::Semaphore;
use types::{ClientId, limits::CALLBACK_SLOTS};

/// Callbacks to one client at a time. Others of its callbacks find slots.
pub(super) const CALLBACKS_PER_CLIENT: usize = CALLBACK_SLOTS as usize / 2;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Revoker {
    clients: Mutex<Option<Arc<dyn Clients>>>,
    /// Permits for callbacks, by client.
    turns: Mutex<BTreeMap<ClientId, Arc<Semaphore>>>,
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
}
