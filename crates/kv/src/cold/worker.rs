//! A thread that executes what came, in order, and waiting on a thread.
//!
//! Life cycle: the thread starts with the handle; the drop of the handle waits for its end.

use std::{
    io,
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{JoinHandle, Thread},
};

/// See the module documentation.
pub(super) struct Worker {
    /// `None` only while it is dropped.
    wake: Option<mpsc::Sender<()>>,
    /// Likewise.
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// `work` executes all that came, whenever the thread is woken.
    pub fn start(work: impl Fn() + Send + 'static) -> io::Result<Worker> {
        let (wake, woken) = mpsc::channel();
        let thread = std::thread::Builder::new().name("kv_cold".to_owned());
        let thread = thread.spawn(move || {
            while woken.recv().is_ok() {
                work();
            }
        })?;
        Ok(Worker { wake: Some(wake), thread: Some(thread) })
    }

    /// Something came. False: the thread is gone, as a panic has ended it.
    pub fn wake(&self) -> bool {
        self.wake.as_ref().is_some_and(|wake| wake.send(()).is_ok())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            // A panic of it was told to those that waited.
            let _ = thread.join();
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for something on this thread.
pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
