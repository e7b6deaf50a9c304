//! From a decoded request to the handler: common to both transports.

use std::sync::Arc;

use bytes::Bytes;
use host::errno::Errno;
use rt::{
    contain::{self, Contained, Panicked},
    real::Cores,
};

use super::handler::Handler;
use super::responder::Responder;
use crate::protocol::{Incoming, RequestDecodeError};

/// Polls the work of each request once, immediately; work that is pending continues on a core: this
/// one, if the thread is a core, else the one the thread keeps to.
pub struct Dispatcher {
    handler: Arc<dyn Handler>,
    cores: Cores,
}

impl Dispatcher {
    /// For requests of one mount.
    pub fn new(handler: Arc<dyn Handler>, cores: Cores) -> Arc<Self> {
        Arc::new(Self { handler, cores })
    }

    /// The cores on which pending work continues.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Serves a request; `data` as in [`Handler::handle`]. A defect in one operation must not take
    /// the mount down: its request is answered with EIO by the responder's drop. State is behind
    /// locks that do not poison.
    pub fn serve(&self, incoming: Incoming<'_>, data: Bytes, responder: Responder) {
        rt::real::message_came();
        if let Err(panicked) = contain::catch(None, || self.begin(incoming, data, responder)) {
            report(&panicked);
        }
    }

    fn begin(&self, incoming: Incoming<'_>, data: Bytes, responder: Responder) {
        let Some(work) = self.handler.clone().handle(incoming, data, responder) else { return };
        let contained = Contained::new(None, work);
        let work = async move {
            if let Err(panicked) = contained.await {
                report(&panicked);
            }
        };
        self.cores.run_inline_or_spawn("fuse", work);
    }
}

/// The request is answered by the drop of its responder.
fn report(panicked: &Panicked) {
    tracing::error!(trace = panicked.trace, what = panicked.what, "a request of the mount panicked; it fails with EIO");
}

/// Answers what could not be decoded.
pub fn refuse(error: &RequestDecodeError, responder: Responder) {
    let errno = match error {
        RequestDecodeError::UnknownOpcode { .. } => Errno::NO_SUCH_OPERATION,
        RequestDecodeError::NoHeader { .. }
        | RequestDecodeError::Length { .. }
        | RequestDecodeError::Malformed { .. } => {
            tracing::error!(%error, "malformed request");
            Errno::INVALID
        }
    };
    responder.refuse(errno);
}
