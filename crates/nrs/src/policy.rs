//! The trait of a policy.

use crate::{Entry, Facts, Settings};

/// What a queue says when it is asked for the next request.
#[derive(Debug)]
pub enum Next<T> {
    /// This one.
    Request(Entry<T>),
    /// None before this time, in nanoseconds.
    NotBefore(u64),
    /// None: the queue is empty.
    Nothing,
}

/// An order of requests. Times are nanoseconds of one clock and never go back.
pub trait Policy<T>: Send {
    /// Queues a request, whose ticket is higher than that of all others. Gives it back if the
    /// policy is not for such requests.
    fn push(&mut self, now_ns: u64, entry: Entry<T>) -> Option<Entry<T>>;

    /// The next request, which leaves the queue.
    fn pop(&mut self, now_ns: u64) -> Next<T>;

    /// Takes out the request with this ticket, if it is here.
    fn remove(&mut self, ticket: u64) -> Option<Entry<T>>;

    /// Takes out all requests of which this is true, in any order.
    fn take(&mut self, is_wanted: &dyn Fn(&Facts) -> bool) -> Vec<Entry<T>>;

    /// How many requests would be held back in front of such a request, whatever the number of
    /// threads; `None` if it need not be held back itself.
    fn held_before(&self, now_ns: u64, facts: &Facts) -> Option<usize> {
        let _ = (now_ns, facts);
        None
    }

    /// Number of requests here.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Other settings hold from now on.
    fn configure(&mut self, settings: &Settings);
}
