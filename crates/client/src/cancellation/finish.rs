//! Operations that must not stop half-way.
//!
//! A caller may drop the future of any operation (a signal interrupted it). An operation that holds
//! something at a server between its steps, such as a file's exclusive data lock, must still be
//! completed then: [`finish`] moves the rest of it to a task of its own.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use rt::{BoxFuture, Spawn};

/// Tells an operation that its caller is gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    /// Whether the caller is gone.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Waits until the caller is gone. For operations that [`finish`] runs only: they are polled
    /// after that, in a task of their own.
    pub async fn set(&self) {
        std::future::poll_fn(|_| if self.is_set() { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// See [`finish`].
pub(crate) struct Finish<T: Send + 'static> {
    /// `None` once complete.
    operation: Option<BoxFuture<'static, T>>,
    abandoned: Abandoned,
    spawn: Arc<dyn Spawn>,
}

/// Runs an operation in the caller's task; if the caller drops it, its rest runs in a task of its
/// own and its output is dropped there.
pub(crate) fn finish<T, F>(spawn: &Arc<dyn Spawn>, operation: impl FnOnce(Abandoned) -> F) -> Finish<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let abandoned = Abandoned::default();
    let operation = Box::pin(operation(abandoned.clone()));
    Finish { operation: Some(operation), abandoned, spawn: spawn.clone() }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let operation = self.operation.as_mut().expect("a future is not polled after it completed");
        let output = std::task::ready!(operation.as_mut().poll(context));
        self.operation = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            self.abandoned.0.store(true, Ordering::Release);
            self.spawn.spawn("client finish", Box::pin(async move { drop(operation.await) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use rt::memory::RuntimeSpawn;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_dropped_operation_comes_to_its_end() {
        let spawn: Arc<dyn Spawn> = Arc::new(RuntimeSpawn);
        let (go, gate) = oneshot::channel::<()>();
        let (report, reported) = oneshot::channel::<bool>();
        let operation = finish(&spawn, |abandoned| async move {
            gate.await.unwrap();
            report.send(abandoned.is_set()).unwrap();
        });
        drop(operation);
        go.send(()).unwrap();
        assert!(reported.await.unwrap(), "the operation knows that nobody waits for it");
    }

    #[tokio::test]
    async fn an_awaited_operation_runs_here() {
        let spawn: Arc<dyn Spawn> = Arc::new(RuntimeSpawn);
        assert!(!finish(&spawn, |abandoned| async move { abandoned.is_set() }).await);
    }
}
