//! From a decoded request to the handler: common to both transports.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use host::errno::Errno;
use parking_lot::{Condvar, Mutex};
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
    pending: Arc<Pending>,
}

/// Requests whose work has not ended.
#[derive(Default)]
struct Pending {
    count: AtomicUsize,
    awaited: Mutex<()>,
    none: Condvar,
}

impl Pending {
    fn begin(self: &Arc<Self>) -> PendingWork {
        self.count.fetch_add(1, Ordering::Relaxed);
        PendingWork(self.clone())
    }
}

/// One of them, until it is dropped.
struct PendingWork(Arc<Pending>);

impl Drop for PendingWork {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _awaited = self.0.awaited.lock();
            self.0.none.notify_all();
        }
    }
}

impl Dispatcher {
    /// For requests of one mount.
    pub fn new(handler: Arc<dyn Handler>, cores: Cores) -> Arc<Self> {
        Arc::new(Self { handler, cores, pending: Arc::default() })
    }

    /// The cores on which pending work continues.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Waits on a thread that is not a core until no work is pending, but no longer than that.
    pub fn rest(&self, longest: Duration) {
        let deadline = Instant::now() + longest;
        let mut awaited = self.pending.awaited.lock();
        while self.pending.count.load(Ordering::Acquire) > 0 {
            if self.pending.none.wait_until(&mut awaited, deadline).timed_out() {
                return;
            }
        }
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
        let pending = self.pending.begin();
        let work = async move {
            let _pending = pending;
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
