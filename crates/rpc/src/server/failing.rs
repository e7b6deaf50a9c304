//! A target whose code panics, in a request or in an event of a session.
//!
//! A panic is a bug, and the target's memory may contain half of a change. So from that moment,
//! before any lock is released, the target changes nothing more on its devices ([`Handler::halt`]),
//! and sends no answer except the error for the request that panicked: an answer could be based on
//! half a change. It is out of service, as if its process had died; the next process that opens it
//! continues from its journal. The other targets of the process continue. The request that panicked
//! is answered, because a repetition of it would bring the next start down, too.
//!
//! Downside: requests that are waiting in this target when it fails get no answer; their clients
//! wait for its next start.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use rt::{
    BoxFuture,
    contain::{Contained, OnPanic},
};

use crate::handler::{Answer, Handler};

/// Whether a target has failed.
pub(super) struct Failure {
    handler: Arc<dyn Handler>,
    has_failed: AtomicBool,
    panics: AtomicU64,
}

impl OnPanic for Failure {
    fn panicked(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
        self.handler.halt();
    }
}

impl Failure {
    /// Of a target that works.
    pub fn new(handler: Arc<dyn Handler>) -> Arc<Self> {
        Arc::new(Self { handler, has_failed: AtomicBool::new(false), panics: AtomicU64::new(0) })
    }

    /// Whether something of the target has panicked.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// How often.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Counts a panic; true for the first.
    pub fn note(&self) -> bool {
        self.panics.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Contains work of the target.
    pub fn contain<'a, T>(self: &Arc<Self>, work: BoxFuture<'a, T>) -> Contained<'a, T> {
        let owner: Arc<dyn OnPanic> = self.clone();
        Contained::new(Some(owner), work)
    }
}

/// What came of a request.
#[expect(
    clippy::large_enum_variant,
    reason = "the large one is the usual one; a box would cost each call an allocation"
)]
pub(super) enum Outcome {
    /// Its answer.
    Answered(Answer),
    /// It panicked.
    Panicked,
    /// It is not answered: the target has failed meanwhile, or stops.
    Unanswered,
}

impl Outcome {
    /// Of a request that was handled.
    pub fn of(answer: Answer) -> Self {
        if answer.is_withheld { Outcome::Unanswered } else { Outcome::Answered(answer) }
    }
}
