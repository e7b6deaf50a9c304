//! How an MDT reaches its clients to ask for locks: through the server that serves it.

use std::sync::Arc;

use rpc::Clients;
use rt::{Instant, LogLimit, ReadMostly};

/// See the module documentation.
pub(super) struct Revoker {
    clients: ReadMostly<Option<Arc<dyn Clients>>>,
    /// What the log says of changes that wait for locks.
    reports: LogLimit,
}

impl Default for Revoker {
    fn default() -> Self {
        Self { clients: ReadMostly::new(None), reports: LogLimit::new(LogLimit::ONE_A_SECOND) }
    }
}

impl Revoker {
    /// `None` as long as no server serves this MDT.
    pub fn clients(&self) -> Option<Arc<dyn Clients>> {
        self.clients.read().clone()
    }

    /// Whether a server serves this MDT.
    pub fn is_served(&self) -> bool {
        self.clients.read().is_some()
    }

    /// A server serves this MDT.
    pub fn set_clients(&self, clients: Arc<dyn Clients>) {
        *self.clients.write() = Some(clients);
    }

    /// A change waits for locks. `Some`: the log is to say so, and that as many others were left
    /// out.
    pub fn begin_report(&self, now: Instant) -> Option<u64> {
        self.reports.may_log(now)
    }
}
