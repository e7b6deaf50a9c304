//! Callbacks by which clients are asked for locks, and those that wait for an answer. Pure;
//! `mdt/lock_callbacks.rs` makes them.
//!
//! Each client has a queue, and at most [`CALLBACKS_PER_CLIENT`] tasks that make what is in it.
//! A lock is in the queue once, and once more as a reminder; it leaves the queue when it comes
//! back. So a client that answers no callbacks takes no more memory than its locks do, whatever it
//! does with them.
//!
//! A callback ends with an answer, or with the session. Its lock has a time of its own (module
//! [`crate::lock_deadlines`]); but a client may give the lock back and never answer. Nobody waits
//! for such an answer, so there is no hurry: its client is evicted after twice `ldlm_timeout`,
//! which by default is more than a lease, so one that is cut off loses its lease before. A client
//! that follows the protocol answers every callback, also for locks that it does not have.
//!
//! Downside: the oldest lock is asked for first, not the one that was wanted first.

use std::collections::{BTreeMap, BTreeSet};

use lock::Revocation;
use types::{ClientId, LockHandle, limits::CALLBACK_SLOTS};

use crate::{lock_deadlines::TICKS, waiters::DELIVERIES_PER_CLIENT};

/// Callbacks for locks that one client has to answer at a time.
const CALLBACKS_PER_CLIENT: usize = CALLBACK_SLOTS as usize / 2;
const _: () = assert!(
    CALLBACKS_PER_CLIENT + DELIVERIES_PER_CLIENT <= CALLBACK_SLOTS as usize,
    "neither callbacks for locks nor notices wait for a slot"
);
/// Ticks that a callback may be without an answer, whatever became of the lock. One more passes,
/// since it is made between two ticks.
const UNANSWERED_TICKS_MAX: u64 = 2 * TICKS as u64;

/// A callback for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockCallback {
    /// The lock, and what is wanted of it.
    pub revocation: Revocation,
    /// The client is reminded: it was asked before.
    pub again: bool,
}

/// A task that makes what [`LockCallbacks::next`] returns, until that is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Whose callbacks it makes.
    pub client: ClientId,
    number: usize,
}

/// Callbacks to one client.
#[derive(Debug, Default)]
struct Queue {
    /// To be made: the first for a lock before the reminder.
    pending: BTreeMap<(LockHandle, bool), Revocation>,
    /// The tasks, by number: the tick at which each made a callback that has no answer yet.
    callers: BTreeMap<usize, Option<u64>>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct LockCallbacks {
    now: u64,
    /// Clients that have tasks.
    queues: BTreeMap<ClientId, Queue>,
}

impl LockCallbacks {
    /// A client is to be asked for a lock that exists. `Some`: a task that is to begin.
    pub fn add(&mut self, callback: LockCallback) -> Option<Caller> {
        let LockCallback { revocation, again } = callback;
        let Revocation { client, handle, .. } = revocation;
        let queue = self.queues.entry(client).or_default();
        queue.pending.insert((handle, again), revocation);
        let number = (0..CALLBACKS_PER_CLIENT).find(|number| !queue.callers.contains_key(number))?;
        queue.callers.insert(number, None);
        Some(Caller { client, number })
    }

    /// What a task is to make next; what it made before is answered. `None`: it ends.
    pub fn next(&mut self, caller: Caller) -> Option<LockCallback> {
        let Caller { client, number } = caller;
        let queue = self.queues.get_mut(&client).expect("a client with a task is known");
        let since = queue.callers.get_mut(&number).expect("a task that runs is counted");
        if let Some(((_, again), revocation)) = queue.pending.pop_first() {
            *since = Some(self.now);
            return Some(LockCallback { revocation, again });
        }
        queue.callers.remove(&number);
        if queue.callers.is_empty() {
            self.queues.remove(&client);
        }
        None
    }

    /// A client does not have a lock any more: it need not be asked for it.
    pub fn lock_gone(&mut self, client: ClientId, handle: LockHandle) {
        if let Some(queue) = self.queues.get_mut(&client) {
            for again in [false, true] {
                queue.pending.remove(&(handle, again));
            }
        }
    }

    /// A tick: the clients that have left a callback without an answer for too long, each once for
    /// each of these.
    pub fn tick(&mut self) -> BTreeSet<ClientId> {
        self.now += 1;
        let mut deaf = BTreeSet::new();
        for (client, queue) in &mut self.queues {
            for since in queue.callers.values_mut() {
                if since.take_if(|since| self.now - *since > UNANSWERED_TICKS_MAX).is_some() {
                    deaf.insert(*client);
                }
            }
        }
        deaf
    }

    /// Whether no callback waits for an answer.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Asserts that only locks that exist are asked for, by as many tasks as there may be.
    pub fn check(&self, exists: impl Fn(LockHandle) -> bool) {
        for queue in self.queues.values() {
            assert!(queue.pending.keys().all(|(handle, _)| exists(*handle)), "a lock that is gone is asked for");
            assert!((1..=CALLBACKS_PER_CLIENT).contains(&queue.callers.len()), "{} tasks", queue.callers.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use lock::InodeBits;
    use types::InodeNumber;

    use super::*;

    const CLIENT: ClientId = ClientId(1);
    const ALL: usize = CALLBACKS_PER_CLIENT;

    fn callback(client: ClientId, handle: u64, again: bool) -> LockCallback {
        let revocation = Revocation { client, handle: LockHandle(handle), inode: InodeNumber(7), bits: InodeBits(1) };
        LockCallback { revocation, again }
    }

    fn add(callbacks: &mut LockCallbacks, client: ClientId, handle: u64) -> Option<Caller> {
        callbacks.add(callback(client, handle, false))
    }

    /// A client that answers nothing, with a callback in each task.
    fn deaf() -> (LockCallbacks, Vec<Caller>) {
        let mut callbacks = LockCallbacks::default();
        let callers: Vec<Caller> = (0..ALL as u64).filter_map(|handle| add(&mut callbacks, CLIENT, handle)).collect();
        assert_eq!(callers.len(), ALL);
        for (handle, caller) in callers.iter().enumerate() {
            assert_eq!(callbacks.next(*caller), Some(callback(CLIENT, handle as u64, false)));
        }
        (callbacks, callers)
    }

    #[test]
    fn a_client_that_answers_nothing_and_gives_back_takes_no_memory() {
        let (mut callbacks, callers) = deaf();
        for handle in 100..1100 {
            assert_eq!(add(&mut callbacks, CLIENT, handle), None, "all tasks wait");
            callbacks.lock_gone(CLIENT, LockHandle(handle));
        }
        assert!(callbacks.queues[&CLIENT].pending.is_empty());
        assert!(add(&mut callbacks, ClientId(2), 5).is_some(), "another client is asked");
        for caller in callers {
            assert_eq!(callbacks.next(caller), None);
        }
        assert_eq!(callbacks.queues.len(), 1);
    }

    #[test]
    fn a_lock_is_asked_for_by_the_next_task_that_is_free() {
        let (mut callbacks, callers) = deaf();
        callbacks.add(callback(CLIENT, 50, true));
        callbacks.add(callback(CLIENT, 50, false));
        callbacks.add(callback(CLIENT, 40, false));
        callbacks.add(callback(CLIENT, 50, false));
        callbacks.check(|_| true);
        assert_eq!(callbacks.next(callers[3]), Some(callback(CLIENT, 40, false)));
        assert_eq!(callbacks.next(callers[3]), Some(callback(CLIENT, 50, false)), "once");
        assert_eq!(callbacks.next(callers[3]), Some(callback(CLIENT, 50, true)), "a reminder comes after it");
        assert_eq!(callbacks.next(callers[3]), None);
        assert_eq!(add(&mut callbacks, CLIENT, 60), Some(callers[3]));
    }

    #[test]
    fn an_answer_that_does_not_come_is_noticed_once() {
        let (mut callbacks, callers) = deaf();
        for handle in 0..ALL as u64 {
            callbacks.lock_gone(CLIENT, LockHandle(handle));
        }
        assert_eq!(callbacks.next(callers[0]), None, "one has an answer");
        for _ in 0..UNANSWERED_TICKS_MAX {
            assert_eq!(callbacks.tick(), BTreeSet::new());
        }
        let late = add(&mut callbacks, CLIENT, 90).expect("a task is free");
        assert!(callbacks.next(late).is_some());
        assert_eq!(callbacks.tick(), BTreeSet::from([CLIENT]));
        assert_eq!(callbacks.tick(), BTreeSet::new());
        callers[1..].iter().for_each(|caller| assert_eq!(callbacks.next(*caller), None));
        assert!(!callbacks.is_empty());
        assert_eq!(callbacks.next(late), None);
        assert!(callbacks.is_empty());
        assert_eq!(callbacks.tick(), BTreeSet::new());
    }
}
