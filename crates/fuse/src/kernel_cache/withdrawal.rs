//! The completion of withdrawals.

use rt::BoxFuture;
use tokio::sync::oneshot;

/// Tells that one part of a withdrawal is complete. Dropped without that only when the session has
/// ended, and the kernel serves nothing any more.
#[derive(Debug)]
pub struct Finished(oneshot::Sender<()>);

impl Finished {
    pub fn tell(self) {
        // The connection may have been given up meanwhile.
        let _ = self.0.send(());
    }
}

/// The parts of a withdrawal.
#[derive(Debug, Default)]
pub struct Parts(Vec<oneshot::Receiver<()>>);

impl Parts {
    /// Another part.
    pub fn add(&mut self) -> Finished {
        let (sender, receiver) = oneshot::channel();
        self.0.push(receiver);
        Finished(sender)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Completes when all of them have.
    pub fn complete(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for part in self.0 {
                let _ = part.await;
            }
        })
    }
}
