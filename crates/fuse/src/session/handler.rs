//! What answers the requests of a session.

use std::sync::Arc;

use bytes::Bytes;
use rt::BoxFuture;

use super::notifications::Notifications;
use super::responder::Responder;
use crate::protocol::Incoming;

/// Answers requests. Implemented by the adapter; by tests too.
pub trait Handler: Send + Sync + 'static {
    /// The work that a request asks for, or `None` if it was done at once. The code that completes
    /// it uses `responder`. The data of a WRITE come in `data` (and are not valid in `incoming` any
    /// more); for all others it is empty.
    fn handle(
        self: Arc<Self>,
        incoming: Incoming<'_>,
        data: Bytes,
        responder: Responder,
    ) -> Option<BoxFuture<'static, ()>>;

    /// The kernel may keep what an answer said for longer than was decided: the process was stopped
    /// before the kernel got it. Called by a thread that must not wait.
    fn answered_late(&self) {}

    /// The session begins: from now on there are requests, and the kernel can be told what is
    /// outdated.
    fn begins(&self, _notifications: Notifications) {}
}
