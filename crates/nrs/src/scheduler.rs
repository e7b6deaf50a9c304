//! The queue of a service: a policy, and the fallback for what the policy is not for.
//!
//! With fifo, the usual policy, there is only the fallback: a queue in order of arrival, reached
//! without a call through the trait. Otherwise both take turns as long as both have a request that
//! may be executed, so neither can keep the other waiting.

use crate::{
    Entry, Facts, Next, Policy, PolicyName, Refused, Selection, Settings,
    delay::Delay,
    fifo::Fifo,
    tbf::{RuleCommand, Tbf},
    turns::{GroupBy, Turns},
};

/// One place of so many is kept for requests that need not be held back.
const KEPT_FREE: usize = 4;

/// See the module documentation.
pub struct Scheduler<T> {
    fallback: Fifo<T>,
    chosen: Chosen<T>,
    selection: Selection,
    settings: Settings,
    ticket_next: u64,
    /// It is the fallback's turn.
    fallback_next: bool,
}

/// The policy besides the fallback.
enum Chosen<T> {
    None,
    /// Known by its type, for its rules.
    Tbf(Box<Tbf<T>>),
    Other(Box<dyn Policy<T>>),
}

impl<T: Send> Chosen<T> {
    fn policy(&mut self) -> Option<&mut dyn Policy<T>> {
        match self {
            Chosen::None => None,
            Chosen::Tbf(tbf) => Some(&mut **tbf),
            Chosen::Other(policy) => Some(&mut **policy),
        }
    }

    fn held_before(&self, now_ns: u64, facts: &Facts) -> Option<usize> {
        match self {
            Chosen::None => None,
            Chosen::Tbf(tbf) => tbf.held_before(now_ns, facts),
            Chosen::Other(policy) => policy.held_before(now_ns, facts),
        }
    }

    fn len(&self) -> usize {
        match self {
            Chosen::None => 0,
            Chosen::Tbf(tbf) => tbf.len(),
            Chosen::Other(policy) => policy.len(),
        }
    }
}

/// What a scheduler says when it is asked for the next request.
#[derive(Debug)]
pub enum Scheduled<T> {
    /// This one, by this policy.
    Request(PolicyName, Entry<T>),
    /// None before this time, in nanoseconds.
    NotBefore(u64),
    /// None: the queue is empty.
    Nothing,
}

/// How it stands with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyState {
    /// Which one.
    pub name: PolicyName,
    /// Its name, with what it distinguishes if it is in use, as `tbf jobid`.
    pub title: String,
    /// Whether it is in use.
    pub is_started: bool,
    /// Requests that wait in it.
    pub queued: usize,
}

impl<T: Send + 'static> Default for Scheduler<T> {
    fn default() -> Self {
        Self {
            fallback: Fifo::default(),
            chosen: Chosen::None,
            selection: Selection::FIFO,
            settings: Settings::default(),
            ticket_next: 0,
            fallback_next: false,
        }
    }
}

impl<T: Send + 'static> Scheduler<T> {
    /// Whether requests are executed in order of arrival.
    pub fn is_fifo(&self) -> bool {
        matches!(self.chosen, Chosen::None)
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.fallback.len() + self.chosen.len()
    }

    /// Whether none wait.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether such a request may be queued where `most` wait at most. One that the policy would
    /// hold back may wait only behind fewer of its group than the queue has free places, of which a
    /// part is kept for requests that need not be held back (dynamic thresholds: A. K. Choudhury,
    /// E. L. Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). So one group leaves half of
    /// the places to others, and all of them together leave one of [`KEPT_FREE`].
    pub fn has_room(&self, now_ns: u64, facts: &Facts, most: usize) -> bool {
        let waiting = self.len();
        let for_held = (most - most / KEPT_FREE).saturating_sub(waiting);
        // Whatever group it is of.
        if waiting < for_held {
            return true;
        }
        waiting < most && self.chosen.held_before(now_ns, facts).is_none_or(|before| before < for_held)
    }

    /// Queues a request; returns its ticket.
    pub fn push(&mut self, now_ns: u64, facts: Facts, waiter: T) -> u64 {
        self.number_and_queue(now_ns, false, facts, waiter)
    }

    /// Queues a request that no policy may hold back, for as long as it waits; returns its ticket.
    pub fn push_free(&mut self, now_ns: u64, facts: Facts, waiter: T) -> u64 {
        self.number_and_queue(now_ns, true, facts, waiter)
    }

    fn number_and_queue(&mut self, now_ns: u64, is_free: bool, facts: Facts, waiter: T) -> u64 {
        let ticket = self.ticket_next;
        self.ticket_next += 1;
        self.queue(now_ns, Entry { ticket, is_free, facts, waiter });
        ticket
    }

    fn queue(&mut self, now_ns: u64, entry: Entry<T>) {
        let left = match self.chosen.policy() {
            Some(policy) if !entry.is_free => policy.push(now_ns, entry),
            Some(_) | None => Some(entry),
        };
        if let Some(entry) = left {
            self.fallback.append(entry);
        }
    }

    /// The next request, which leaves the queue.
    pub fn pop(&mut self, now_ns: u64) -> Scheduled<T> {
        let mut not_before = None;
        if let Some(policy) = self.chosen.policy() {
            let skipped = self.fallback_next && !self.fallback.is_empty();
            match if skipped { Next::Nothing } else { policy.pop(now_ns) } {
                Next::Request(entry) => {
                    self.fallback_next = true;
                    return Scheduled::Request(self.selection.name, entry);
                }
                Next::NotBefore(time_ns) => not_before = Some(time_ns),
                Next::Nothing => {}
            }
        }
        self.fallback_next = false;
        match (self.fallback.take_first(), not_before) {
            (Some(entry), _) => Scheduled::Request(PolicyName::Fifo, entry),
            (None, Some(time_ns)) => Scheduled::NotBefore(time_ns),
            (None, None) => Scheduled::Nothing,
        }
    }

    /// Takes out the request with this ticket, if it still waits.
    pub fn remove(&mut self, ticket: u64) -> Option<Entry<T>> {
        let removed = self.fallback.remove(ticket);
        removed.or_else(|| self.chosen.policy()?.remove(ticket))
    }

    /// Leaves the requests of which this is true to the fallback: nothing holds them back any more,
    /// nor does a policy that is chosen later.
    pub fn release(&mut self, is_wanted: &dyn Fn(&Facts) -> bool) {
        if let Some(policy) = self.chosen.policy() {
            let released = policy.take(is_wanted);
            self.fallback.merge(released);
        }
        self.fallback.free(is_wanted);
    }

    /// The policy in use.
    pub fn selection(&self) -> Selection {
        self.selection
    }

    /// Takes another policy into use, with all requests that wait. The one that is in use stays as
    /// it is, with its rules. `seed`: of the random numbers that the policy may need.
    pub fn select(&mut self, now_ns: u64, selection: Selection, seed: u64) {
        if selection == self.selection {
            return;
        }
        let mut waiting = self.fallback.take(&|_| true);
        if let Some(policy) = self.chosen.policy() {
            waiting.extend(policy.take(&|_| true));
        }
        waiting.sort_unstable_by_key(|entry| entry.ticket);
        self.selection = selection;
        self.chosen = match selection.name {
            PolicyName::Fifo => Chosen::None,
            PolicyName::Crrn => Chosen::Other(Box::new(Turns::new(GroupBy::Client, &self.settings))),
            PolicyName::Orr => Chosen::Other(Box::new(Turns::new(GroupBy::Object, &self.settings))),
            PolicyName::Trr => Chosen::Other(Box::new(Turns::new(GroupBy::Target, &self.settings))),
            PolicyName::Tbf => Chosen::Tbf(Box::new(Tbf::new(selection.class_by))),
            PolicyName::Delay => Chosen::Other(Box::new(Delay::new(&self.settings, seed))),
        };
        for entry in waiting {
            self.queue(now_ns, entry);
        }
    }

    /// The settings of all policies.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Changes the settings.
    pub fn configure(&mut self, settings: Settings) {
        self.settings = settings;
        if let Some(policy) = self.chosen.policy() {
            policy.configure(&settings);
        }
    }

    /// Changes the rules of tbf, which must be in use. `opcodes`: all there are.
    pub fn change_rules(&mut self, now_ns: u64, text: &str, opcodes: &[&'static str]) -> Result<(), Refused> {
        let Chosen::Tbf(tbf) = &mut self.chosen else {
            let used = self.selection.name;
            return Err(Refused::new(format!("the policy is {used}; rules are for tbf: set nrs_policies=tbf first")));
        };
        let command = RuleCommand::parse(text, tbf.class_by(), opcodes)?;
        tbf.change_rules(now_ns, command)
    }

    /// The rules of tbf, one a line; empty if it is not in use.
    pub fn rules(&self) -> String {
        match &self.chosen {
            Chosen::Tbf(tbf) => tbf.rules(),
            Chosen::None | Chosen::Other(_) => String::new(),
        }
    }

    /// All policies.
    pub fn states(&self) -> Vec<PolicyState> {
        let state = |name| {
            let is_chosen = name == self.selection.name;
            let queued = match (name, is_chosen) {
                (PolicyName::Fifo, _) => self.fallback.len(),
                (_, true) => self.chosen.len(),
                (_, false) => 0,
            };
            let title = if is_chosen { self.selection.to_string() } else { name.to_string() };
            PolicyState { name, title, is_started: is_chosen || name == PolicyName::Fifo, queued }
        };
        PolicyName::ALL.map(state).into()
    }
}
