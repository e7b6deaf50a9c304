//! For which user's request the current code is running: its trace id, the user, and the job.
//!
//! The entry point (a mount, a tool) wraps its future in [`scoped`]; code that sends a message for
//! it reads [`current`]. The id is set only around every poll of that future, so it follows the
//! work from thread to thread without being in every argument list. Downside: a task spawned for a
//! request carries no id unless wrapped again.

use std::{
    cell::Cell,
    fmt::{self, Display},
    future::Future,
    ops::Sub,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tracing::{Instrument, Span};
use types::JobName;

use crate::BoxFuture;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its trace id; 0: there is none.
    pub trace: u64,
    /// The user for whom it is made.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The job.
    pub job: JobName,
    /// The project of the file whose data it reads or changes; 0: none.
    pub project: u32,
}

impl Origin {
    const NONE: Self = Self { trace: 0, uid: 0, gid: 0, job: JobName::NONE, project: 0 };
}

impl From<u64> for Origin {
    /// A request of the file system itself, or of its administrator.
    fn from(trace: u64) -> Self {
        Self { trace, ..Self::NONE }
    }
}

thread_local! {
    static CURRENT: Cell<Origin> = const { Cell::new(Origin::NONE) };
}

/// The id of the request being worked for; 0 if there is none.
pub fn current() -> u64 {
    origin().trace
}

/// Where the request comes from that is being worked for.
pub fn origin() -> Origin {
    CURRENT.get()
}

/// Runs `future` for the request of this origin.
pub fn scoped<'a, T>(origin: impl Into<Origin>, future: BoxFuture<'a, T>) -> Traced<'a, T> {
    Traced { origin: origin.into(), future }
}

/// Runs `future` for the request of the present origin, which is about a file of this project.
pub async fn in_project<T: Send>(project: u32, future: impl Future<Output = T> + Send) -> T {
    match project == origin().project {
        true => future.await,
        false => scoped(Origin { project, ..origin() }, Box::pin(future)).await,
    }
}

/// A trace id as all logs show it.
pub fn shown(trace: u64) -> impl Display {
    fmt::from_fn(move |f| write!(f, "{trace:016x}"))
}

/// Does the work of a request in its span, with one event at the end that tells how long it took
/// and how it ended. If the span is not recorded, it is the work alone.
pub async fn observed<T, I: Sub<Output = Duration>>(
    span: Span,
    now: impl Fn() -> I,
    work: impl Future<Output = T>,
    error: fn(&T) -> Option<&dyn Display>,
) -> T {
    if span.is_disabled() {
        return work.await;
    }
    let begun = now();
    let outcome = work.instrument(span.clone()).await;
    let micros = (now() - begun).as_micros();
    span.in_scope(|| match error(&outcome) {
        None => tracing::debug!(micros, result = "ok", "done"),
        Some(error) => tracing::debug!(micros, result = %error, "done"),
    });
    outcome
}

/// A future that works for a request.
pub struct Traced<'a, T> {
    origin: Origin,
    future: BoxFuture<'a, T>,
}

impl<T> Future for Traced<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let _restore = Restore(CURRENT.replace(self.origin));
        self.future.as_mut().poll(context)
    }
}

/// Puts the former origin back, also when the poll panics.
struct Restore(Origin);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Nobody listens in this process: the work runs as it is, no field is written out, and no
    /// clock is read.
    #[test]
    fn spans_cost_nothing_while_nobody_listens() {
        let text = || -> &'static str { unreachable!("a field is written out") };
        let now = || -> Duration { unreachable!("a clock is read") };
        let span = tracing::debug_span!("request", operation = text());
        assert!(span.is_disabled());
        let mut work = std::pin::pin!(observed(span, now, async { current() }, |_| None));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(work.as_mut().poll(&mut context), Poll::Ready(0));
    }

    #[test]
    fn scopes_nest_and_end() {
        let inner = scoped(2, Box::pin(async { current() }));
        let mut outer = scoped(1, Box::pin(async move { (current(), inner.await, current()) }));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut outer).poll(&mut context), Poll::Ready((1, 2, 1)));
        assert_eq!(current(), 0);
    }
}
