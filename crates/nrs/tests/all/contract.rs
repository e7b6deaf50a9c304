//! What holds for every policy, whatever happens in whatever order, also when policies change.

use std::collections::BTreeMap;

use nrs::{
    ClassBy, Entry, Facts, Field, Next, Policy, Scheduled, Scheduler, Selection, Settings,
    delay::Delay,
    fifo::Fifo,
    tbf::Tbf,
    turns::{GroupBy, Turns},
};
use proptest::prelude::*;

use crate::requests::{all_selections, statfs, write};

/// What happens to a queue.
#[derive(Clone, Debug)]
enum Event {
    Arrive(Facts),
    /// A thread is free.
    Pop,
    /// The caller of one of those that wait gives up.
    Remove(usize),
    /// A client's session ends.
    Release(u64),
    Pass(u64),
    Select(Selection),
    Configure(&'static str, u16),
    Rule(&'static str),
}

const OPCODES: &[&str] = &["ost_write", "ost_read", "ost_statfs"];

fn requests() -> impl Strategy<Value = Facts> {
    prop_oneof![
        8 => (0..4_u64, 0..5_u64, 0..1000_u64).prop_map(|(client, object, offset)| write(client, object, offset)),
        1 => (0..4_u64).prop_map(statfs),
    ]
}

fn events(with_changes: bool) -> impl Strategy<Value = Vec<Event>> {
    let changes = if with_changes { 1 } else { 0 };
    let settings = [
        ("nrs_crrn_quantum", 1..20),
        ("nrs_orr_quantum", 1..20),
        ("nrs_trr_quantum", 1..20),
        ("nrs_delay_pct", 0..101_u16),
        ("nrs_delay_min", 0..5),
    ];
    let configure = prop::sample::select(settings.to_vec())
        .prop_flat_map(|(name, values)| values.prop_map(move |value| Event::Configure(name, value)));
    let rules = prop::sample::select(vec![
        "start one jobid={dd.1} rate=2",
        "start two uid={0-2},opcode={ost_statfs} rate=5",
        "change default rate=7",
        "stop one",
        "stop two",
    ]);
    let event = prop_oneof![
        8 => requests().prop_map(Event::Arrive),
        6 => Just(Event::Pop),
        1 => any::<usize>().prop_map(Event::Remove),
        1 => (0..4_u64).prop_map(Event::Release),
        2 => (0..2_000_000_000_u64).prop_map(Event::Pass),
        changes => prop::sample::select(all_selections()).prop_map(Event::Select),
        changes => configure,
        changes => rules.prop_map(Event::Rule),
    ];
    prop::collection::vec(event, 1..200)
}

/// A queue, and what must be in it.
struct Watched {
    queue: Scheduler<u64>,
    now_ns: u64,
    waiting: BTreeMap<u64, Facts>,
}

impl Watched {
    fn new(selection: Selection) -> Self {
        let mut queue = Scheduler::default();
        queue.select(0, selection, 7);
        Self { queue, now_ns: 0, waiting: BTreeMap::new() }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Arrive(facts) => {
                let ticket = self.queue.push(self.now_ns, facts.clone(), 0);
                assert!(self.waiting.last_key_value().is_none_or(|(last, _)| *last < ticket));
                self.waiting.insert(ticket, facts);
            }
            Event::Pop => drop(self.pop()),
            Event::Remove(number) => {
                let ticket = match self.waiting.len() {
                    0 => number as u64,
                    count => *self.waiting.keys().nth(number % count).unwrap(),
                };
                let removed = self.queue.remove(ticket).map(|entry| (entry.ticket, entry.facts));
                assert_eq!(removed, self.waiting.remove(&ticket).map(|facts| (ticket, facts)));
                assert!(self.queue.remove(ticket).is_none(), "removed once");
            }
            Event::Release(client) => self.queue.release(&|facts| facts.client.0 == client),
            Event::Pass(ns) => self.now_ns += ns,
            Event::Select(selection) => {
                self.queue.select(self.now_ns, selection, self.now_ns);
                assert_eq!(self.queue.selection(), selection);
            }
            Event::Configure(name, value) => {
                let settings = self.queue.settings().with(name, &value.to_string()).unwrap();
                self.queue.configure(settings);
            }
            // Those that are not for the policy are refused, and change nothing.
            Event::Rule(text) => drop(self.queue.change_rules(self.now_ns, text, OPCODES)),
        }
        assert_eq!(self.queue.len(), self.waiting.len());
        let queued: usize = self.queue.states().iter().map(|state| state.queued).sum();
        assert_eq!(queued, self.waiting.len(), "the states of all policies show everything");
    }

    /// The next request must be one that waits; if there is none, either none waits, or it is known
    /// when one will come.
    fn pop(&mut self) -> Option<u64> {
        match self.queue.pop(self.now_ns) {
            Scheduled::Request(_, entry) => {
                assert_eq!(self.waiting.remove(&entry.ticket), Some(entry.facts), "it waited, and comes out once");
                None
            }
            Scheduled::NotBefore(time_ns) => {
                assert!(time_ns > self.now_ns && !self.waiting.is_empty());
                Some(time_ns)
            }
            Scheduled::Nothing => {
                assert!(self.waiting.is_empty(), "lost: {:?}", self.waiting);
                None
            }
        }
    }

    /// Everything comes out, at the times that the queue names.
    fn drain(mut self) {
        let mut waits = 0;
        while !self.waiting.is_empty() {
            if let Some(time_ns) = self.pop() {
                self.now_ns = time_ns;
                waits += 1;
                assert!(waits < 10_000, "held back forever: {:?}", self.waiting);
            }
        }
        assert!(self.queue.is_empty() && matches!(self.queue.pop(self.now_ns), Scheduled::Nothing));
    }
}

/// Every policy by itself, also the fallback, which a scheduler reaches without the trait.
fn policies() -> Vec<Box<dyn Policy<()>>> {
    let settings = Settings::default();
    let mut policies: Vec<Box<dyn Policy<()>>> = vec![Box::new(Fifo::default()), Box::new(Delay::new(&settings, 7))];
    for group_by in [GroupBy::Client, GroupBy::Object, GroupBy::Target] {
        policies.push(Box::new(Turns::new(group_by, &settings)));
    }
    for class_by in [ClassBy::EVERYTHING, ClassBy::of(Field::Job)] {
        policies.push(Box::new(Tbf::new(class_by)));
    }
    policies
}

/// What the trait promises, of a policy without a scheduler around it.
fn drive(policy: &mut dyn Policy<()>, events: &[Event]) {
    let (mut now_ns, mut settings, mut waiting) = (0, Settings::default(), BTreeMap::new());
    for (ticket, event) in (0..).zip(events) {
        match event.clone() {
            Event::Arrive(facts) => {
                let entry = Entry { ticket, is_free: false, facts: facts.clone(), waiter: () };
                match policy.push(now_ns, entry) {
                    None => drop(waiting.insert(ticket, facts)),
                    Some(entry) => assert_eq!((entry.ticket, entry.facts), (ticket, facts), "given back as it is"),
                }
            }
            Event::Pop => match policy.pop(now_ns) {
                Next::Request(entry) => assert_eq!(waiting.remove(&entry.ticket), Some(entry.facts)),
                Next::NotBefore(time_ns) => assert!(time_ns > now_ns && !waiting.is_empty()),
                Next::Nothing => assert!(waiting.is_empty(), "lost: {waiting:?}"),
            },
            Event::Remove(number) => {
                let chosen = waiting.keys().nth(number % waiting.len().max(1)).copied().unwrap_or(ticket);
                let removed = policy.remove(chosen).map(|entry| entry.facts);
                assert_eq!(removed, waiting.remove(&chosen));
            }
            Event::Release(client) => {
                let mut taken: Vec<_> = policy.take(&|facts| facts.client.0 == client).into_iter().collect();
                taken.sort_by_key(|entry| entry.ticket);
                let wanted = waiting.extract_if(.., |_, facts| facts.client.0 == client);
                assert!(taken.into_iter().map(|entry| (entry.ticket, entry.facts)).eq(wanted), "all of them");
            }
            Event::Pass(ns) => now_ns += ns,
            Event::Configure(name, value) => {
                settings = settings.with(name, &value.to_string()).unwrap();
                policy.configure(&settings);
            }
            // A policy knows of no other one.
            Event::Select(_) | Event::Rule(_) => {}
        }
        assert_eq!(policy.len(), waiting.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_comes_twice(
        selection in prop::sample::select(all_selections()),
        events in events(false),
    ) {
        let mut watched = Watched::new(selection);
        events.into_iter().for_each(|event| watched.apply(event));
        watched.drain();
    }

    #[test]
    fn changes_of_policies_settings_and_rules_lose_nothing(
        selection in prop::sample::select(all_selections()),
        events in events(true),
    ) {
        let mut watched = Watched::new(selection);
        events.into_iter().for_each(|event| watched.apply(event));
        watched.drain();
    }

    #[test]
    fn every_policy_keeps_what_its_trait_promises(events in events(true)) {
        for mut policy in policies() {
            drive(&mut *policy, &events);
        }
    }

    /// One client's requests on one object keep their order, except where offsets or delays decide.
    #[test]
    fn equal_requests_keep_their_order(
        selection in prop::sample::select(all_selections()),
        clients in prop::collection::vec(0..3_u64, 1..60),
    ) {
        if selection.name == nrs::PolicyName::Delay {
            return Ok(());
        }
        let mut queue = Scheduler::default();
        queue.select(0, selection, 7);
        for client in clients {
            queue.push(0, write(client, client, 0), ());
        }
        let (mut now_ns, mut last) = (0, BTreeMap::new());
        loop {
            match queue.pop(now_ns) {
                Scheduled::Request(_, entry) => {
                    let before = last.insert(entry.facts.client, entry.ticket);
                    prop_assert!(before.is_none_or(|before| before < entry.ticket));
                }
                Scheduled::NotBefore(time_ns) => now_ns = time_ns,
                Scheduled::Nothing => break,
            }
        }
    }

    /// What is released waits for no token and no delay.
    #[test]
    fn what_is_released_is_not_held_back(
        selection in prop::sample::select(all_selections()),
        requests in prop::collection::vec(requests(), 1..60),
    ) {
        let mut queue = Scheduler::default();
        queue.select(0, selection, 7);
        if selection.name == nrs::PolicyName::Tbf {
            queue.change_rules(0, "change default rate=1", OPCODES).unwrap();
        }
        let of_client = requests.iter().filter(|facts| facts.client.0 == 1).count();
        for facts in requests {
            queue.push(0, facts, ());
        }
        queue.release(&|facts| facts.client.0 == 1);
        let mut seen = 0;
        while let Scheduled::Request(_, entry) = queue.pop(0) {
            seen += usize::from(entry.facts.client.0 == 1);
        }
        prop_assert_eq!(seen, of_client);
    }
}
