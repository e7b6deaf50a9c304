//! Operations that threads which are not cores begin: polled by the thread itself, then, when what
//! they wait for has come, by the core on which it came.
//!
//! ```text
//!   thread:  poll -> ready: done
//!                 -> pending: left here, no core is disturbed
//!   core:    a reply wakes the operation -> it becomes a task of this core
//! ```
//!
//! So a wait costs one wake-up: that of the core to which the reply comes.
//!
//! Life: [`begin`] polls; [`Waiting`] holds the operations that wait, to drop them when the cores
//! stop.

use std::{
    collections::BTreeMap,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use parking_lot::Mutex;

use super::Cores;
use crate::{BoxFuture, Spawn};

/// Polls of a thread while the operation is woken during each of them; then it moves to a core.
const POLLS_MAX: usize = 4;

/// The operations that wait, by address; `None` after the cores stopped.
pub(super) struct Waiting(Mutex<Option<BTreeMap<usize, Arc<Operation>>>>);

impl Default for Waiting {
    fn default() -> Self {
        Self(Mutex::new(Some(BTreeMap::new())))
    }
}

impl Waiting {
    /// Notes an operation, unless the cores have stopped.
    fn insert(&self, operation: &Arc<Operation>) -> bool {
        let mut waiting = self.0.lock();
        let Some(waiting) = waiting.as_mut() else { return false };
        waiting.insert(Arc::as_ptr(operation) as usize, operation.clone());
        true
    }

    fn remove(&self, operation: &Arc<Operation>) {
        if let Some(waiting) = self.0.lock().as_mut() {
            waiting.remove(&(Arc::as_ptr(operation) as usize));
        }
    }

    /// The cores stop: drops all, and those that come later.
    pub(super) fn stop(&self) {
        let waiting = self.0.lock().take();
        for operation in waiting.into_iter().flat_map(BTreeMap::into_values) {
            drop(operation.take());
        }
    }
}

/// An operation of a thread that is not a core.
pub(super) struct Operation {
    name: &'static str,
    cores: Cores,
    /// Where it continues if it is woken by a thread that is not a core.
    core: usize,
    state: Mutex<State>,
}

enum State {
    /// Its thread polls it. `woken`: since the poll began.
    Polled { woken: bool },
    /// No thread polls it.
    Waits(BoxFuture<'static, ()>),
    /// It ended, or is a task now.
    Gone,
}

/// Polls `future` on the calling thread, within the runtime of `core`.
pub(super) fn begin(cores: &Cores, core: usize, name: &'static str, mut future: BoxFuture<'static, ()>) {
    let state = Mutex::new(State::Polled { woken: false });
    let operation = Arc::new(Operation { name, cores: cores.clone(), core, state });
    let waker = Waker::from(operation.clone());
    for _ in 0..POLLS_MAX {
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            return;
        }
        let mut state = operation.state.lock();
        if let State::Polled { woken: woken @ true } = &mut *state {
            *woken = false;
            continue;
        }
        if cores.waiting().insert(&operation) {
            *state = State::Waits(future);
        }
        // Else it is dropped, without the lock.
        drop(state);
        return;
    }
    *operation.state.lock() = State::Gone;
    cores.spawn_on(core, name, future);
}

impl Operation {
    /// The operation itself, if it waits; it is gone then.
    fn take(&self) -> Option<BoxFuture<'static, ()>> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Waits(future) => Some(future),
            State::Polled { .. } => {
                *state = State::Polled { woken: true };
                None
            }
            State::Gone => None,
        }
    }
}

impl Wake for Operation {
    fn wake(self: Arc<Self>) {
        if let Some(future) = self.take() {
            self.cores.waiting().remove(&self);
            let core = self.cores.core_of_this_thread().unwrap_or(self.core);
            self.cores.spawn_on(core, self.name, future);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;

    fn thread_name() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    #[test]
    fn an_operation_continues_on_the_core_that_wakes_it() {
        let cores = Cores::start(2).unwrap();
        for core in [0, 1] {
            let (release, released) = oneshot::channel::<()>();
            let (tell, told) = mpsc::channel();
            cores.run_inline_or_spawn("waits", async move {
                released.await.unwrap();
                tell.send(thread_name()).unwrap();
            });
            cores.spawn_on(core, "wakes", Box::pin(async move { release.send(()).unwrap() }));
            assert_eq!(told.recv().unwrap(), format!("core-{core}"));
        }
        cores.shutdown();
    }

    #[test]
    fn one_that_is_woken_while_it_is_polled_is_polled_again_here() {
        let cores = Cores::start(1).unwrap();
        let (tell, told) = mpsc::channel();
        let operation = |yields: usize, tell: mpsc::Sender<String>| async move {
            let mut left = yields;
            std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                left = left.saturating_sub(1);
                if left == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            tell.send(thread_name()).unwrap();
        };
        cores.run_inline_or_spawn("soon ready", operation(POLLS_MAX, tell.clone()));
        assert_eq!(told.recv().unwrap(), thread_name());
        cores.run_inline_or_spawn("not soon ready", operation(POLLS_MAX + 10, tell));
        assert_eq!(told.recv().unwrap(), "core-0");
        cores.shutdown();
    }

    /// A mount answers its requests when they are dropped.
    #[test]
    fn operations_that_wait_are_dropped_when_the_cores_stop() {
        let cores = Cores::start(1).unwrap();
        let wait = |never: oneshot::Receiver<()>, tell: mpsc::Sender<()>| async move {
            let _ = never.await;
            tell.send(()).unwrap();
        };
        let (_keep, never) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        cores.run_inline_or_spawn("waits", wait(never, tell));
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty));
        cores.shutdown();
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected), "dropped");
        let (_keep, never) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        cores.run_inline_or_spawn("too late", wait(never, tell));
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected), "dropped at once");
    }
}
