//! Token bucket filter: each class of requests (of a job, say) has a rate.
//!
//! A class is what requests have in common by [`ClassBy`]; the first rule that matches says at
//! which rate its bucket fills. A bucket holds up to [`TOKENS_MAX`] tokens, a request takes one.
//! Among classes with tokens the one goes first whose token is the oldest: Y. Qian and others, "A
//! Configurable Rule based Classful Token Bucket Filter Network Request Scheduler for the Lustre
//! File System", SC'17.
//!
//! Invariants: a class with requests is in `ready`, once, by the time of its next token; within any
//! time `t` at most `rate * t + TOKENS_MAX` requests of a class come out.
//!
//! Promises: requests of a class keep their order; a class whose token is due waits for no class
//! whose token is younger.
//!
//! Downside: classes are not told apart by what they have not got: requests without a job are one
//! class.

mod conditions;
mod pattern;
mod rule;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use types::JobName;

pub use conditions::Conditions;
use rule::Rules;
pub use rule::{RATES, RULES_MAX, RuleCommand};

use crate::{ClassBy, Entry, Facts, Field, Next, Policy, Refused, Settings};

/// Tokens of a full bucket (Lustre's `tbf_depth`).
pub const TOKENS_MAX: u64 = 3;

/// Classes from which on those are forgotten that have no request and a full bucket.
const CLASSES_SWEPT: usize = 64;

/// What the requests of a class have in common; `None` or 0 for what is not told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct ClassKey {
    nid: Option<Arc<str>>,
    job: JobName,
    opcode: &'static str,
    uid: u32,
    gid: u32,
    project: u32,
}

impl ClassKey {
    fn of(class_by: ClassBy, facts: &Facts) -> Self {
        let none = Self::default();
        Self {
            nid: class_by.has(Field::Nid).then(|| facts.nid.clone()),
            job: if class_by.has(Field::Job) { facts.job } else { none.job },
            opcode: if class_by.has(Field::Opcode) { facts.opcode } else { none.opcode },
            uid: if class_by.has(Field::Uid) { facts.uid } else { none.uid },
            gid: if class_by.has(Field::Gid) { facts.gid } else { none.gid },
            project: if class_by.has(Field::Project) { facts.project } else { none.project },
        }
    }
}

/// When requests of a class may be executed: the generic cell rate algorithm (ITU-T I.371), which
/// is a token bucket without a counter.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Between two tokens.
    interval_ns: u64,
    /// When the bucket will be full.
    full_ns: u64,
}

impl Bucket {
    /// How many there are.
    fn tokens(&self, now_ns: u64) -> u64 {
        match now_ns.checked_sub(self.token_ns()) {
            Some(since) => (since / self.interval_ns + 1).min(TOKENS_MAX),
            None => 0,
        }
    }

    /// From when on there is a token.
    fn token_ns(&self) -> u64 {
        self.full_ns.saturating_sub((TOKENS_MAX - 1) * self.interval_ns)
    }

    fn take_token(&mut self, now_ns: u64) {
        debug_assert!(self.token_ns() <= now_ns, "there is a token");
        self.full_ns = self.full_ns.max(now_ns) + self.interval_ns;
    }

    /// Another rate: the next token comes after one interval of it at the latest.
    fn change(&mut self, now_ns: u64, interval_ns: u64) {
        self.full_ns = self.full_ns.min(now_ns + TOKENS_MAX * interval_ns);
        self.interval_ns = interval_ns;
    }
}

#[derive(Debug)]
struct Class<T> {
    bucket: Bucket,
    /// Place of its rule among the rules.
    rule: usize,
    /// Among classes whose tokens are of the same age, the older class is the first.
    number: u64,
    /// Of a request of this class: what rules are compared with.
    example: Facts,
    waiting: VecDeque<Entry<T>>,
}

impl<T> Class<T> {
    fn place(&self) -> (u64, u64) {
        (self.bucket.token_ns(), self.number)
    }
}

/// The policy.
#[derive(Debug)]
pub struct Tbf<T> {
    class_by: ClassBy,
    rules: Rules,
    classes: BTreeMap<ClassKey, Class<T>>,
    /// Classes with requests, by [`Class::place`].
    ready: BTreeMap<(u64, u64), ClassKey>,
    number_next: u64,
    /// Number of classes at which the next sweep is due.
    sweep_at: usize,
    count: usize,
}

impl<T> Tbf<T> {
    /// Without requests, with the default rule.
    pub fn new(class_by: ClassBy) -> Self {
        let (classes, ready) = (BTreeMap::new(), BTreeMap::new());
        Self { class_by, rules: Rules::default(), classes, ready, number_next: 0, sweep_at: CLASSES_SWEPT, count: 0 }
    }

    /// What tells classes apart.
    pub fn class_by(&self) -> ClassBy {
        self.class_by
    }

    /// Changes the rules; what waits is executed by the new ones.
    pub fn change_rules(&mut self, now_ns: u64, command: RuleCommand) -> Result<(), Refused> {
        self.rules.change(command)?;
        self.ready.clear();
        for (key, class) in &mut self.classes {
            class.rule = self.rules.place_for(&class.example);
            class.bucket.change(now_ns, self.rules.interval_ns(class.rule));
            if !class.waiting.is_empty() {
                self.ready.insert(class.place(), key.clone());
            }
        }
        Ok(())
    }

    /// The rules in the order in which they are compared, one a line, with the number of classes
    /// that each has.
    pub fn rules(&self) -> String {
        let mut classes = vec![0; self.rules.len()];
        for class in self.classes.values() {
            classes[class.rule] += 1;
        }
        self.rules.show(self.class_by, &classes)
    }

    /// Forgets classes that are as new ones would be.
    fn sweep(&mut self, now_ns: u64) {
        self.classes.retain(|_, class| !class.waiting.is_empty() || class.bucket.full_ns > now_ns);
        self.sweep_at = 2 * self.classes.len() + CLASSES_SWEPT;
    }

    /// Changes what waits in all classes.
    fn retain(&mut self, mut take: impl FnMut(&mut VecDeque<Entry<T>>)) {
        for class in self.classes.values_mut().filter(|class| !class.waiting.is_empty()) {
            let place = class.place();
            let before = class.waiting.len();
            take(&mut class.waiting);
            self.count -= before - class.waiting.len();
            if class.waiting.is_empty() {
                self.ready.remove(&place);
            }
        }
    }
}

impl<T: Send> Policy<T> for Tbf<T> {
    fn push(&mut self, now_ns: u64, entry: Entry<T>) -> Option<Entry<T>> {
        if self.classes.len() >= self.sweep_at {
            self.sweep(now_ns);
        }
        let key = ClassKey::of(self.class_by, &entry.facts);
        let class = self.classes.entry(key.clone()).or_insert_with(|| {
            let rule = self.rules.place_for(&entry.facts);
            let bucket = Bucket { interval_ns: self.rules.interval_ns(rule), full_ns: now_ns };
            let (number, example) = (self.number_next, entry.facts.clone());
            self.number_next += 1;
            Class { bucket, rule, number, example, waiting: VecDeque::new() }
        });
        if class.waiting.is_empty() {
            // A bucket that has been full for a while is as one that is full now.
            class.bucket.full_ns = class.bucket.full_ns.max(now_ns);
            self.ready.insert(class.place(), key);
        }
        class.waiting.push_back(entry);
        self.count += 1;
        None
    }

    fn pop(&mut self, now_ns: u64) -> Next<T> {
        let Some(first) = self.ready.first_entry() else { return Next::Nothing };
        let token_ns = first.key().0;
        if token_ns > now_ns {
            return Next::NotBefore(token_ns);
        }
        let key = first.remove();
        let class = self.classes.get_mut(&key).expect("a class that is ready is known");
        let entry = class.waiting.pop_front().expect("a class that is ready has a request");
        class.bucket.take_token(now_ns);
        if !class.waiting.is_empty() {
            self.ready.insert(class.place(), key);
        }
        self.count -= 1;
        Next::Request(entry)
    }

    fn remove(&mut self, ticket: u64) -> Option<Entry<T>> {
        let mut removed = None;
        self.retain(|waiting| {
            if let Ok(place) = waiting.binary_search_by_key(&ticket, |entry| entry.ticket) {
                removed = waiting.remove(place);
            }
        });
        removed
    }

    fn take(&mut self, is_wanted: &dyn Fn(&Facts) -> bool) -> Vec<Entry<T>> {
        let mut taken = Vec::new();
        self.retain(|waiting| {
            if !waiting.iter().any(|entry| is_wanted(&entry.facts)) {
                return;
            }
            let (wanted, kept): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|entry| is_wanted(&entry.facts));
            waiting.extend(kept);
            taken.extend(wanted);
        });
        taken
    }

    /// Of its class, beyond the tokens that there are.
    fn held_before(&self, now_ns: u64, facts: &Facts) -> Option<usize> {
        let class = self.classes.get(&ClassKey::of(self.class_by, facts))?;
        let waiting = class.waiting.len();
        (waiting as u64 >= class.bucket.tokens(now_ns)).then_some(waiting)
    }

    fn len(&self) -> usize {
        self.count
    }

    fn configure(&mut self, _settings: &Settings) {}
}
