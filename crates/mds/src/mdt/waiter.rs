//! A request as it waits for clients or for other MDTs.

use rpc::{
    Call,
    message::{MdtRequest, Request, session::feature},
};
use types::{ClientId, MdtIndex};

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    /// Whose request it is.
    pub client: ClientId,
    /// The service whose thread it has; it waits as none of them.
    pub service: &'static str,
    /// Whether its client asks again if it is told that another MDT has to answer first. Otherwise
    /// it waits here, and has a slot as long as it does. Tools that check do.
    pub asks_again: bool,
    /// Operations at other MDTs wait for this one, because of what is prepared for it, or because
    /// it prepares something for one that may have more prepared elsewhere. It waits for clients
    /// only for a moment.
    pub holds: bool,
}

impl Waiter {
    pub fn of(call: &Call, service: &'static str) -> Self {
        let checks = matches!(
            &call.request,
            Request::Mdt(MdtRequest::Check(..) | MdtRequest::RepairSize(..) | MdtRequest::RepairName(..))
        );
        let asks_again = call.features & feature::SEVERAL_MDTS != 0 && !checks;
        let holds = matches!(&call.request, Request::Mdt(MdtRequest::Prepare(_)));
        Self { client: call.client, service, asks_again, holds }
    }

    /// Whether it may wait here, at the MDT `me`, for an operation of another one while others hold
    /// what they have prepared for it. Operations of two MDTs that come to each other's parts would
    /// both wait, or both give way: so that of the MDT with the lower number waits. Such waits are
    /// short; others must not be.
    pub fn may_hold_for(&self, other: MdtIndex, me: MdtIndex) -> bool {
        self.asks_again && me < other
    }
}
