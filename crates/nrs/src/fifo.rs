//! First in, first out: the policy of a service unless another one is chosen.

use std::collections::VecDeque;

use crate::{Entry, Facts, Next, Policy, Settings};

/// The policy. Promises: a request waits for no later one.
#[derive(Debug)]
pub struct Fifo<T>(VecDeque<Entry<T>>);

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Fifo<T> {
    /// Queues a request.
    pub fn append(&mut self, entry: Entry<T>) {
        debug_assert!(self.0.back().is_none_or(|last| last.ticket < entry.ticket), "tickets grow");
        self.0.push_back(entry);
    }

    /// The first request, which leaves the queue.
    pub fn take_first(&mut self) -> Option<Entry<T>> {
        self.0.pop_front()
    }

    /// From now on no policy may hold back the requests of which this is true.
    pub fn free(&mut self, is_wanted: &dyn Fn(&Facts) -> bool) {
        for entry in self.0.iter_mut().filter(|entry| is_wanted(&entry.facts)) {
            entry.is_free = true;
        }
    }

    /// Queues requests that arrived before some that are here: these stay first in order of
    /// arrival.
    pub fn merge(&mut self, entries: Vec<Entry<T>>) {
        self.0.extend(entries);
        self.0.make_contiguous().sort_unstable_by_key(|entry| entry.ticket);
    }
}

impl<T: Send> Policy<T> for Fifo<T> {
    fn push(&mut self, _now_ns: u64, entry: Entry<T>) -> Option<Entry<T>> {
        self.append(entry);
        None
    }

    fn pop(&mut self, _now_ns: u64) -> Next<T> {
        self.take_first().map_or(Next::Nothing, Next::Request)
    }

    fn remove(&mut self, ticket: u64) -> Option<Entry<T>> {
        let place = self.0.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
        self.0.remove(place)
    }

    fn take(&mut self, is_wanted: &dyn Fn(&Facts) -> bool) -> Vec<Entry<T>> {
        let (taken, kept): (Vec<_>, Vec<_>) = self.0.drain(..).partition(|entry| is_wanted(&entry.facts));
        self.0.extend(kept);
        taken
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn configure(&mut self, _settings: &Settings) {}
}
