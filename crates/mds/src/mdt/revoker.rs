//! How an MDT reaches its clients to ask for locks: through the server that serves it, a bounded
//! number of callbacks to each client at a time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rpc::Clients;
use rt::Instant;
use tokio::sync::Semaphore;
use types::{ClientId, limits::CALLBACK_SLOTS};

/// Callbacks to one client at a time. Others of its callbacks find slots.
pub(super) const CALLBACKS_PER_CLIENT: usize = CALLBACK_SLOTS as usize / 2;

/// Between two lines in the log about changes that wait for locks.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// What the log said of changes that wait for locks.
#[derive(Default)]
struct Reports {
    last: Option<Instant>,
    /// Waits since then of which it said nothing.
    left_out: u64,
}

impl Reports {
    /// Whether another line may be written; with the number of those that were left out.
    fn begin(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.since(last) < REPORT_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// See the module documentation.
#[derive(Default)]
pub(super) struct Revoker {
    clients: Mutex<Option<Arc<dyn Clients>>>,
    /// Permits for callbacks, by client.
    turns: Mutex<BTreeMap<ClientId, Arc<Semaphore>>>,
    reports: Mutex<Reports>,
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
        self.reports.lock().begin(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wait_a_second_is_logged_and_the_others_are_counted() {
        let (mut reports, begin) = (Reports::default(), Instant::default());
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let logged = [0, 1, 999, 1000, 1500, 5000].map(|milliseconds| reports.begin(at(milliseconds)));
        assert_eq!(logged, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
