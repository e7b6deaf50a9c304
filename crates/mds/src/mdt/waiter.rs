//! A request as it waits for clients or for other MDTs.

use rpc::Call;
use types::ClientId;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    /// Whose request it is.
    pub client: ClientId,
    /// The service whose thread it has; it waits as none of them.
    pub service: &'static str,
}

impl Waiter {
    pub fn of(call: &Call, service: &'static str) -> Self {
        Self { client: call.client, service }
    }
}
