//! Stops what runs in processes after so many steps: a step is one poll of a task.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use rt::BoxFuture;
use tokio::sync::Notify;

#[derive(Default)]
struct State {
    /// Steps that are left; `None`: as many as there are.
    left: Option<usize>,
    stopped: Vec<Waker>,
}

/// See the module documentation.
#[derive(Default)]
pub struct Steps {
    state: Mutex<State>,
    used_up: Notify,
}

impl Steps {
    /// Everything stops after so many more steps.
    pub fn allow(&self, steps: usize) {
        self.state.lock().left = Some(steps);
    }

    /// Waits until a task would have made one step more.
    pub async fn used_up(&self) {
        self.used_up.notified().await;
    }

    /// Everything goes on.
    pub fn go_on(&self) {
        let mut state = self.state.lock();
        state.left = None;
        state.stopped.drain(..).for_each(Waker::wake);
    }

    fn may_step(&self, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        match &mut state.left {
            None => true,
            Some(0) => {
                state.stopped.push(waker.clone());
                self.used_up.notify_one();
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

/// A task of a process.
pub struct Stepped {
    pub steps: Arc<Steps>,
    pub task: BoxFuture<'static, ()>,
}

impl Future for Stepped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.steps.may_step(context.waker()) {
            true => self.task.as_mut().poll(context),
            false => Poll::Pending,
        }
    }
}
