//! Round robin among groups of requests: crrn (clients), orr (objects), trr (targets).
//!
//! Groups with requests stand in a ring. When it is a group's turn, its oldest requests, at most
//! `quantum`, are its batch; then it goes to the end of the ring, if it has more. The batches of
//! orr and trr are sorted by offset, so that a disk sees ascending offsets; that of crrn keeps the
//! order of arrival.
//!
//! Invariants: every group in the ring has a request; a group that has requests is in the ring
//! once, whether or not it has a batch.
//!
//! Promises: with `n` earlier requests of its group, and at most `g` other groups at any time, a
//! request waits for at most `(n / quantum + 1) * (g + 1) * quantum + quantum` others. A batch is
//! fixed when its turn begins, so later requests with lower offsets cannot delay it.
//!
//! Downside: orr and trr order by offset in the object, not by place on the device.

use std::collections::{BTreeMap, VecDeque};

use types::{ClientId, ObjectId};

use crate::{Entry, Facts, Next, Policy, Settings, Supported};

/// What requests of one group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// crrn: the client.
    Client,
    /// orr: the object.
    Object,
    /// trr: the target.
    Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Client(ClientId),
    Object(u32, ObjectId),
    Target(u32),
}

/// The policy.
#[derive(Debug)]
pub struct Turns<T> {
    group_by: GroupBy,
    quantum: usize,
    /// Which requests for data orr and trr are for.
    supported: Supported,
    ring: VecDeque<Group>,
    groups: BTreeMap<Group, VecDeque<Entry<T>>>,
    /// What is left of the batch of the group whose turn it is.
    batch: VecDeque<Entry<T>>,
    count: usize,
}

impl<T> Turns<T> {
    /// Without requests.
    pub fn new(group_by: GroupBy, settings: &Settings) -> Self {
        let (quantum, supported) = of(group_by, settings);
        let (ring, groups, batch) = (VecDeque::new(), BTreeMap::new(), VecDeque::new());
        Self { group_by, quantum, supported, ring, groups, batch, count: 0 }
    }

    fn group(&self, facts: &Facts) -> Option<Group> {
        let data = facts.data.filter(|data| self.supported.has(data.direction));
        match self.group_by {
            GroupBy::Client => Some(Group::Client(facts.client)),
            GroupBy::Object => data.map(|data| Group::Object(facts.target, data.object)),
            GroupBy::Target => data.map(|_| Group::Target(facts.target)),
        }
    }

    /// The next group's turn begins.
    fn begin_turn(&mut self) {
        let Some(group) = self.ring.pop_front() else { return };
        let waiting = self.groups.get_mut(&group).expect("a group in the ring has requests");
        let count = self.quantum.min(waiting.len());
        self.batch.extend(waiting.drain(..count));
        if waiting.is_empty() {
            self.groups.remove(&group);
        } else {
            self.ring.push_back(group);
        }
        if self.group_by != GroupBy::Client {
            let offset = |entry: &Entry<T>| entry.facts.data.map(|data| data.offset);
            self.batch.make_contiguous().sort_by_key(|entry| (offset(entry), entry.ticket));
        }
    }
}

/// Quantum, and requests the policy is for.
fn of(group_by: GroupBy, settings: &Settings) -> (usize, Supported) {
    let (quantum, supported) = match group_by {
        GroupBy::Client => (settings.crrn_quantum, Supported::ReadsAndWrites),
        GroupBy::Object => (settings.orr.quantum, settings.orr.supported),
        GroupBy::Target => (settings.trr.quantum, settings.trr.supported),
    };
    (usize::from(quantum.max(1)), supported)
}

impl<T: Send> Policy<T> for Turns<T> {
    fn push(&mut self, _now_ns: u64, entry: Entry<T>) -> Option<Entry<T>> {
        let Some(group) = self.group(&entry.facts) else { return Some(entry) };
        let waiting = self.groups.entry(group).or_default();
        if waiting.is_empty() {
            self.ring.push_back(group);
        }
        waiting.push_back(entry);
        self.count += 1;
        None
    }

    fn pop(&mut self, _now_ns: u64) -> Next<T> {
        if self.batch.is_empty() {
            self.begin_turn();
        }
        let Some(entry) = self.batch.pop_front() else { return Next::Nothing };
        self.count -= 1;
        Next::Request(entry)
    }

    fn remove(&mut self, ticket: u64) -> Option<Entry<T>> {
        let removed = match self.batch.iter().position(|entry| entry.ticket == ticket) {
            Some(place) => self.batch.remove(place),
            None => {
                let find = |(group, waiting): (&Group, &VecDeque<Entry<T>>)| {
                    let place = waiting.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
                    Some((*group, place))
                };
                let (group, place) = self.groups.iter().find_map(find)?;
                let waiting = self.groups.get_mut(&group)?;
                let removed = waiting.remove(place);
                if waiting.is_empty() {
                    self.groups.remove(&group);
                    self.ring.retain(|other| *other != group);
                }
                removed
            }
        };
        self.count -= usize::from(removed.is_some());
        removed
    }

    fn take(&mut self, is_wanted: &dyn Fn(&Facts) -> bool) -> Vec<Entry<T>> {
        let mut taken = Vec::new();
        for waiting in self.groups.values_mut().chain([&mut self.batch]) {
            if !waiting.iter().any(|entry| is_wanted(&entry.facts)) {
                continue;
            }
            let (wanted, kept): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|entry| is_wanted(&entry.facts));
            waiting.extend(kept);
            taken.extend(wanted);
        }
        self.groups.retain(|_, waiting| !waiting.is_empty());
        self.ring.retain(|group| self.groups.contains_key(group));
        self.count -= taken.len();
        taken
    }

    fn len(&self) -> usize {
        self.count
    }

    /// From the next turn on; requests that the policy is not for any more stay where they are.
    fn configure(&mut self, settings: &Settings) {
        (self.quantum, self.supported) = of(self.group_by, settings);
    }
}
