//! The services that execute the requests of a target, and how a request that waits for another one
//! gives its service thread back.
//!
//! Life cycle: there are no services until a server serves the target; until then nothing is given
//! back.

use std::sync::Arc;

use parking_lot::Mutex;
use rpc::{Clients, Parked};

/// Service of requests that move data or space.
pub const SERVICE_IO: &str = "ost_io";
/// Service of all other requests.
pub const SERVICE: &str = "ost";

/// The service threads of a target's server.
#[derive(Default)]
pub struct ServiceThreads(Mutex<Option<Arc<dyn Clients>>>);

impl ServiceThreads {
    /// A server serves the target.
    pub fn set_server(&self, server: Arc<dyn Clients>) {
        *self.0.lock() = Some(server);
    }

    /// A request of this service waits for other requests: it counts as none of the service's
    /// threads until the answer is dropped. Then it goes on at once, and requests that have not
    /// begun wait until fewer execute than there are threads. If it waited for a thread, those that
    /// have one could wait for what it has locked.
    pub fn park(&self, service: &'static str) -> Option<Parked> {
        let server = self.0.lock().clone();
        server?.park(service)
    }
}
