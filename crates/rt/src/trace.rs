//! Trace ids: which user's request the code now running works for.
//!
//! The entrance (a mount, a tool) wraps its future in [`scoped`]; whoever sends something on for it reads [`current`]. The
//! id is set around every poll of that future and of nothing else, so it follows the work from thread to thread without
//! standing in every argument list. Downside: a task spawned for a request carries no id unless wrapped again.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::BoxFuture;

thread_local! {
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// The id of the request being worked for; 0 if there is none.
pub fn current() -> u64 {
    CURRENT.get()
}

/// Runs `future` under `trace`.
pub fn scoped<'a, T>(trace: u64, future: BoxFuture<'a, T>) -> Traced<'a, T> {
    Traced { trace, future }
}

/// A future under a trace id.
pub struct Traced<'a, T> {
    trace: u64,
    future: BoxFuture<'a, T>,
}

impl<T> Future for Traced<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let _restore = Restore(CURRENT.replace(self.trace));
        self.future.as_mut().poll(context)
    }
}

/// Puts the former id back, also when the poll panics.
struct Restore(u64);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn scopes_nest_and_end() {
        let inner = scoped(2, Box::pin(async { current() }));
        let mut outer = scoped(1, Box::pin(async move { (current(), inner.await, current()) }));
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut outer).poll(&mut context), Poll::Ready((1, 2, 1)));
        assert_eq!(current(), 0);
    }
}
