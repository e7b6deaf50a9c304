//! Requests that can be given up, by the kernel's request number: waiting locks, reservations that look for space, opens, and
//! truncations by path. An open can wait as long as a migration takes, and without this not even SIGKILL would end its process.
//!
//! Only these: a signal ends every other wait of this file system no sooner than its answer, as on a local one, since
//! programs do not expect EINTR from reading or writing a regular file.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;

use client::Interruption;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// INTERRUPT requests remembered because their target is not (yet, or no longer) registered. Workers read the device
/// concurrently, so an INTERRUPT can overtake its target; not by more than the workers there are.
const EARLY_MAX: usize = 256;

/// The registry.
#[derive(Default)]
pub struct Interrupts {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    early: VecDeque<u64>,
}

impl Interrupts {
    /// Registers a request that is about to wait. The receiver completes when the kernel interrupts it (at once if it
    /// already has); [`Interrupts::finish`] must follow.
    pub fn register(&self, unique: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        if let Some(position) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(position);
            // The receiver is in our hands, so this cannot fail.
            let _ = sender.send(());
        } else {
            state.waiting.insert(unique, sender);
        }
        receiver
    }

    /// Runs an operation whose waiting for others ends when the kernel interrupts the request.
    pub async fn unless_interrupted<T, F>(&self, unique: u64, operation: impl FnOnce(Interruption) -> F) -> T
    where
        F: Future<Output = T>,
    {
        let interruption = Interruption::default();
        let interrupted = self.register(unique);
        let mut operation = pin!(operation(interruption.clone()));
        let output = tokio::select! {
            biased;
            output = &mut operation => output,
            // The other end outlives this request.
            _ = interrupted => {
                interruption.raise();
                operation.await
            }
        };
        self.finish(unique);
        output
    }

    /// The request no longer waits.
    pub fn finish(&self, unique: u64) {
        self.state.lock().waiting.remove(&unique);
    }

    /// The kernel interrupts a request.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        if let Some(sender) = state.waiting.remove(&unique) {
            // If the receiver is gone, the request has just ended.
            let _ = sender.send(());
            return;
        }
        if state.early.len() == EARLY_MAX {
            state.early.pop_front();
        }
        state.early.push_back(unique);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn a_waiting_request_is_interrupted_once() {
        let interrupts = Interrupts::default();
        let mut receiver = interrupts.register(2);
        let mut other = interrupts.register(4);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        interrupts.interrupt(2);
        assert_eq!(receiver.try_recv(), Ok(()));
        assert_eq!(other.try_recv(), Err(TryRecvError::Empty));
        interrupts.finish(2);
        interrupts.finish(4);
        assert!(interrupts.state.lock().waiting.is_empty());
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_is_not_lost() {
        let interrupts = Interrupts::default();
        interrupts.interrupt(6);
        assert_eq!(interrupts.register(6).try_recv(), Ok(()));
        assert_eq!(interrupts.register(6).try_recv(), Err(TryRecvError::Empty), "it counts once");
    }

    #[test]
    fn interrupts_of_finished_requests_do_not_pile_up() {
        let interrupts = Interrupts::default();
        (0..10 * EARLY_MAX as u64).for_each(|unique| interrupts.interrupt(unique));
        assert_eq!(interrupts.state.lock().early.len(), EARLY_MAX);
    }
}
