//! Requests that the kernel may interrupt, by the kernel's number of the request.
//!
//! A mount has two registries. One has requests that any signal ends: waiting locks, reservations
//! that look for space, opens, and truncations by path, which can wait as long as a migration
//! takes. The other has every pending request: it is ended by a signal that kills the caller
//! (module [`super::attend`]), and by no other, as on a local file system, since programs do not
//! expect EINTR from reads or writes of a regular file.

use std::{
    collections::{BTreeMap, VecDeque},
    pin::pin,
    sync::Arc,
};

use client::Interruption;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// INTERRUPT requests remembered because their target is not (yet, or no longer) registered.
/// Workers read the device concurrently, so an INTERRUPT can overtake its target; not by more than
/// the workers there are.
const EARLY_MAX: usize = 256;

/// A registry.
#[derive(Default)]
pub struct Interrupts {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    early: VecDeque<u64>,
}

impl Interrupts {
    /// Registers a request that is about to wait, until the registration is dropped.
    pub fn register(&self, unique: u64) -> Registration {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        if let Some(position) = state.early.iter().position(|early| *early == unique) {
            state.early.remove(position);
            // The receiver is in our hands, so this cannot fail.
            let _ = sender.send(());
        } else {
            state.waiting.insert(unique, sender);
        }
        Registration { state: self.state.clone(), unique, receiver }
    }

    /// Runs an operation whose waiting for others ends when the kernel interrupts the request.
    pub async fn unless_interrupted<T, F>(&self, unique: u64, operation: impl FnOnce(Interruption) -> F) -> T
    where
        F: Future<Output = T>,
    {
        let interruption = Interruption::default();
        let mut registration = self.register(unique);
        let mut operation = pin!(operation(interruption.clone()));
        tokio::select! {
            biased;
            output = &mut operation => output,
            () = registration.interrupted() => {
                interruption.raise();
                operation.await
            }
        }
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

/// A request that waits, until this is dropped.
pub struct Registration {
    state: Arc<Mutex<State>>,
    unique: u64,
    receiver: oneshot::Receiver<()>,
}

impl Registration {
    /// Completes when the kernel interrupts the request, at once if it already has. Not to be
    /// called again then.
    pub async fn interrupted(&mut self) {
        // The other end is in the registry until it has told.
        let _ = (&mut self.receiver).await;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.state.lock().waiting.remove(&self.unique);
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
        assert_eq!(receiver.receiver.try_recv(), Err(TryRecvError::Empty));
        interrupts.interrupt(2);
        assert_eq!(receiver.receiver.try_recv(), Ok(()));
        assert_eq!(other.receiver.try_recv(), Err(TryRecvError::Empty));
        drop((receiver, other));
        assert!(interrupts.state.lock().waiting.is_empty());
    }

    #[test]
    fn an_interrupt_that_overtakes_its_request_is_not_lost() {
        let interrupts = Interrupts::default();
        interrupts.interrupt(6);
        assert_eq!(interrupts.register(6).receiver.try_recv(), Ok(()));
        assert_eq!(interrupts.register(6).receiver.try_recv(), Err(TryRecvError::Empty), "it counts once");
    }

    #[test]
    fn interrupts_of_finished_requests_do_not_pile_up() {
        let interrupts = Interrupts::default();
        (0..10 * EARLY_MAX as u64).for_each(|unique| interrupts.interrupt(unique));
        assert_eq!(interrupts.state.lock().early.len(), EARLY_MAX);
    }
}
