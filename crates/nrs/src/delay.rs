//! Delays a share of the requests, as a busy server would: for tests of clients.
//!
//! Promises: a request is held back for `nrs_delay_max` seconds at most; those that are not
//! delayed, `100 - nrs_delay_pct` of a hundred, are left to the fallback.

use std::collections::BTreeMap;

use types::SplitMix64;

use crate::{DelaySettings, Entry, Facts, Next, Policy, Settings};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// The policy.
#[derive(Debug)]
pub struct Delay<T> {
    settings: DelaySettings,
    random: SplitMix64,
    /// By the time until which they are held back, and ticket.
    held: BTreeMap<(u64, u64), Entry<T>>,
}

impl<T> Delay<T> {
    /// Without requests; which ones are delayed, and for how long, follows from the seed.
    pub fn new(settings: &Settings, seed: u64) -> Self {
        Self { settings: settings.delay, random: SplitMix64(seed), held: BTreeMap::new() }
    }

    /// A number below `limit`, which is not 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }
}

impl<T: Send> Policy<T> for Delay<T> {
    fn push(&mut self, now_ns: u64, entry: Entry<T>) -> Option<Entry<T>> {
        let DelaySettings { min_s, max_s, percent } = self.settings;
        if self.below(100) >= u64::from(percent) {
            return Some(entry);
        }
        let (least, most) = (u64::from(min_s) * NS_PER_SECOND, u64::from(max_s) * NS_PER_SECOND);
        let delay = least + self.below(most.saturating_sub(least) + 1);
        self.held.insert((now_ns.saturating_add(delay), entry.ticket), entry);
        None
    }

    fn pop(&mut self, now_ns: u64) -> Next<T> {
        match self.held.first_entry() {
            None => Next::Nothing,
            Some(first) if first.key().0 > now_ns => Next::NotBefore(first.key().0),
            Some(first) => Next::Request(first.remove()),
        }
    }

    fn remove(&mut self, ticket: u64) -> Option<Entry<T>> {
        let key = *self.held.keys().find(|(_, held)| *held == ticket)?;
        self.held.remove(&key)
    }

    fn take(&mut self, is_wanted: &dyn Fn(&Facts) -> bool) -> Vec<Entry<T>> {
        let wanted = |(key, entry): (&(u64, u64), &Entry<T>)| is_wanted(&entry.facts).then_some(*key);
        let keys: Vec<_> = self.held.iter().filter_map(wanted).collect();
        keys.iter().filter_map(|key| self.held.remove(key)).collect()
    }

    /// All are one group: which request is delayed is decided when it is queued. While none is, any
    /// may come.
    fn held_before(&self, _now_ns: u64, _facts: &Facts) -> Option<usize> {
        (!self.held.is_empty()).then_some(self.held.len())
    }

    fn len(&self) -> usize {
        self.held.len()
    }

    /// For requests that arrive from now on.
    fn configure(&mut self, settings: &Settings) {
        self.settings = settings.delay;
    }
}
