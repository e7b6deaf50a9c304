//! The lock table together with clients that cache: all orders of messages of three clients and one
//! crash, explored exhaustively, for two inodes, and for two parts of one inode, which one lock may
//! cover. In every state no client may serve from its cache
//! what differs from what is visible; in every state from which nothing follows no change waits.
//! And: limits, counts, and what a lock takes.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use lock::{
    ChangeId, GrantedBits, InodeBits, InodeLocks, LockLimits, Prepared, Revocation, inode_bit,
    inode_locks::{LOCK_BYTES, LockCounters},
};
use types::{ClientId, InodeNumber, LockHandle};

const CLIENTS: u64 = 3;
/// Things that can be cached and changed.
const PARTS: usize = 2;
/// Two inodes, of which one part each is cached.
const TWO_INODES: [Part; PARTS] = [(InodeNumber(1), inode_bit::ATTRIBUTES), (InodeNumber(2), inode_bit::ATTRIBUTES)];
/// Two parts of one inode: a lock may be on both, or on one of them.
const TWO_BITS: [Part; PARTS] = [(InodeNumber(1), inode_bit::ATTRIBUTES), (InodeNumber(1), inode_bit::LOOKUP)];
const NO_LIMITS: LockLimits = LockLimits { per_client: 1000, total: 1000 };

type Part = (InodeNumber, u32);
type Values = [u8; PARTS];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Message {
    /// Of all parts of an inode. `sent`: the own changes that the client knew.
    Read {
        client: ClientId,
        inode: InodeNumber,
        sent: Values,
    },
    ReadReply {
        client: ClientId,
        inode: InodeNumber,
        sent: Values,
        values: Values,
        granted: Option<GrantedBits>,
    },
    /// Of parts, by their numbers.
    Change {
        client: ClientId,
        parts: Vec<usize>,
    },
    ChangeReply {
        client: ClientId,
        parts: Vec<usize>,
        values: Values,
    },
    Callback {
        client: ClientId,
        handle: LockHandle,
    },
    Cancel {
        client: ClientId,
        handle: LockHandle,
    },
}

impl Message {
    /// Whom it is from, or to.
    fn client(&self) -> ClientId {
        match self {
            Message::Read { client, .. }
            | Message::ReadReply { client, .. }
            | Message::Change { client, .. }
            | Message::ChangeReply { client, .. }
            | Message::Callback { client, .. }
            | Message::Cancel { client, .. } => *client,
        }
    }
}

/// What a client keeps of a part under a lock; the value is not known while the client itself
/// changes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cached {
    handle: LockHandle,
    value: Option<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    crashed: bool,
    evicted: bool,
    cache: BTreeMap<usize, Cached>,
    /// Changes of its own sent or answered, by part: what was read before or meanwhile is not kept.
    own_changes: Values,
    changing: BTreeSet<usize>,
    reading: BTreeSet<InodeNumber>,
    /// Locks asked back before their grant arrived.
    cancelled: BTreeSet<LockHandle>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    client: ClientId,
    parts: Vec<usize>,
    id: ChangeId,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    parts: [Part; PARTS],
    locks: InodeLocks,
    values: Values,
    waiting: Vec<Waiting>,
    clients: Vec<Client>,
    /// Clients that are gone, or have connected again: their locks up to these are removed one by
    /// one.
    dropping: BTreeMap<ClientId, LockHandle>,
    messages: BTreeSet<Message>,
    reads_left: u8,
    changes_left: u8,
    crashes_left: u8,
}

impl State {
    fn new(parts: [Part; PARTS], reads: u8, changes: u8, crashes: u8) -> Self {
        Self {
            parts,
            locks: InodeLocks::new(LockHandle(1), NO_LIMITS),
            values: [0; PARTS],
            waiting: Vec::new(),
            clients: vec![Client::default(); CLIENTS as usize],
            dropping: BTreeMap::new(),
            messages: BTreeSet::new(),
            reads_left: reads,
            changes_left: changes,
            crashes_left: crashes,
        }
    }

    /// The numbers of the parts of an inode that these bits are.
    fn numbers(&self, inode: InodeNumber, bits: InodeBits) -> Vec<usize> {
        let is_meant = |(of, bit): Part| of == inode && bits.meets(InodeBits(bit));
        (0..PARTS).filter(|number| is_meant(self.parts[*number])).collect()
    }

    fn client(&mut self, client: ClientId) -> &mut Client {
        &mut self.clients[client.0 as usize]
    }

    fn read(&mut self, id: ClientId, inode: InodeNumber) {
        self.reads_left -= 1;
        let client = self.client(id);
        client.reading.insert(inode);
        let sent = client.own_changes;
        self.messages.insert(Message::Read { client: id, inode, sent });
    }

    fn change(&mut self, id: ClientId, parts: Vec<usize>) {
        self.changes_left -= 1;
        let client = self.client(id);
        for part in &parts {
            client.changing.insert(*part);
            client.own_changes[*part] += 1;
            if let Some(cached) = client.cache.get_mut(part) {
                cached.value = None;
            }
        }
        self.messages.insert(Message::Change { client: id, parts });
    }

    fn crash(&mut self, id: ClientId) {
        self.crashes_left -= 1;
        *self.client(id) = Client { crashed: true, ..Client::default() };
    }

    /// Its session ends.
    fn evict(&mut self, id: ClientId) {
        self.client(id).evicted = true;
        self.dropping.insert(id, self.locks.last_handle());
    }

    /// It has lost its connection, and what it cached. What was under way on the old one is lost or
    /// was executed.
    fn connect_again(&mut self, id: ClientId) {
        *self.client(id) = Client::default();
        self.messages.retain(|message| message.client() != id);
        self.dropping.insert(id, self.locks.last_handle());
    }

    fn drop_one(&mut self, id: ClientId, last: LockHandle) {
        let mut ready = Vec::new();
        if !self.locks.drop_client(id, last, 1, &mut ready).has_more {
            self.dropping.remove(&id);
            assert!(!self.client(id).evicted || self.locks.count_of(id) == 0, "no lock survives its client");
        }
        self.go_on(ready);
    }

    fn deliver(&mut self, message: &Message) {
        self.messages.remove(message);
        match message {
            Message::Read { client, inode, sent } => self.serve_read(*client, *inode, *sent),
            Message::Change { client, parts } => {
                if !self.client(*client).evicted {
                    self.try_change(*client, parts.clone(), None);
                }
            }
            Message::Cancel { client, handle } => {
                let mut ready = Vec::new();
                self.locks.cancel(*client, *handle, &mut ready);
                self.go_on(ready);
            }
            Message::ReadReply { client, .. }
            | Message::ChangeReply { client, .. }
            | Message::Callback { client, .. } => {
                if !self.client(*client).crashed {
                    self.tell(*client, message);
                }
            }
        }
    }

    fn serve_read(&mut self, client: ClientId, inode: InodeNumber, sent: Values) {
        if self.client(client).evicted {
            return;
        }
        let all = self.parts.iter().filter(|(of, _)| *of == inode).fold(0, |all, (_, bit)| all | bit);
        let granted = self.locks.grant(client, inode, InodeBits(all), &mut Vec::new());
        let values = self.values;
        self.messages.insert(Message::ReadReply { client, inode, sent, values, granted });
    }

    /// A message arrives at a client.
    fn tell(&mut self, id: ClientId, message: &Message) {
        let mut cancelled = None;
        let of_granted = match message {
            Message::ReadReply { granted: Some(granted), .. } => self.numbers(granted.inode, granted.bits),
            _ => Vec::new(),
        };
        let client = &mut self.clients[id.0 as usize];
        match message {
            Message::ReadReply { inode, sent, values, granted: Some(GrantedBits { handle, .. }), .. } => {
                client.reading.remove(inode);
                let is_new = |part: &usize| sent[*part] == client.own_changes[*part] && !client.changing.contains(part);
                let kept: Vec<usize> = of_granted.into_iter().filter(is_new).collect();
                if client.cancelled.contains(handle) {
                    // It was given back before it came.
                } else if kept.is_empty() {
                    cancelled = Some(*handle);
                } else {
                    // Of the others the client has a lock, too, and keeps nothing.
                    let cached =
                        kept.into_iter().map(|part| (part, Cached { handle: *handle, value: Some(values[part]) }));
                    client.cache.extend(cached);
                }
            }
            Message::ReadReply { inode, .. } => {
                client.reading.remove(inode);
            }
            Message::ChangeReply { parts, values, .. } => {
                for part in parts {
                    client.changing.remove(part);
                    client.own_changes[*part] += 1;
                    if let Some(cached) = client.cache.get_mut(part) {
                        cached.value = Some(values[*part]);
                    }
                }
            }
            Message::Callback { handle, .. } => {
                let before = client.cache.len();
                client.cache.retain(|_, cached| cached.handle != *handle);
                if client.cache.len() == before {
                    client.cancelled.insert(*handle);
                }
                cancelled = Some(*handle);
            }
            Message::Read { .. } | Message::Change { .. } | Message::Cancel { .. } => unreachable!("for the server"),
        }
        self.messages.extend(cancelled.map(|handle| Message::Cancel { client: id, handle }));
    }

    fn go_on(&mut self, ready: Vec<ChangeId>) {
        for id in ready {
            assert!(self.locks.is_ready(id));
            let at = self.waiting.iter().position(|waiting| waiting.id == id).expect("a change that waits");
            let Waiting { client, parts, id } = self.waiting.remove(at);
            self.try_change(client, parts, Some(id));
        }
    }

    fn try_change(&mut self, client: ClientId, parts: Vec<usize>, before: Option<ChangeId>) {
        let mut bits: BTreeMap<InodeNumber, InodeBits> = BTreeMap::new();
        for part in &parts {
            let (inode, bit) = self.parts[*part];
            *bits.entry(inode).or_default() |= InodeBits(bit);
        }
        match self.locks.prepare(before, client, &bits.into_iter().collect::<Vec<_>>()) {
            Prepared::Ready => {
                before.into_iter().for_each(|id| self.locks.end(id));
                parts.iter().for_each(|part| self.values[*part] += 1);
                self.messages.insert(Message::ChangeReply { client, parts, values: self.values });
            }
            Prepared::Blocked(id, ask) => {
                self.waiting.push(Waiting { client, parts, id });
                let callback = |ask: Revocation| Message::Callback { client: ask.client, handle: ask.handle };
                self.messages.extend(ask.into_iter().map(callback));
            }
        }
    }
}

impl common::State for State {
    fn next(&self) -> Vec<Self> {
        let mut next = Vec::new();
        let mut step = |act: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            act(&mut state);
            next.push(state);
        };
        for message in &self.messages {
            step(&|state| state.deliver(message));
        }
        for (client, last) in &self.dropping {
            step(&|state| state.drop_one(*client, *last));
        }
        // Clients that have not done anything are alike: the first of them acts for all.
        let is_new = |(number, client): &(usize, &Client)| {
            **client == Client::default() && !self.dropping.contains_key(&ClientId(*number as u64))
        };
        let idle = self.clients.iter().enumerate().position(|client| is_new(&client));
        for number in 0..CLIENTS {
            let (id, client) = (ClientId(number), &self.clients[number as usize]);
            if is_new(&(number as usize, client)) && idle != Some(number as usize) {
                continue;
            }
            if client.crashed {
                if !client.evicted {
                    step(&|state| state.evict(id));
                    if !self.waiting.iter().any(|waiting| waiting.client == id) {
                        step(&|state| state.connect_again(id));
                    }
                }
                continue;
            }
            for inode in self.parts.iter().map(|(inode, _)| *inode).collect::<BTreeSet<_>>() {
                let lacks = |part: &usize| !client.cache.contains_key(part) && !client.changing.contains(part);
                let lacks_some = self.numbers(inode, InodeBits::ALL).iter().any(lacks);
                if self.reads_left > 0 && lacks_some && !client.reading.contains(&inode) {
                    step(&|state| state.read(id, inode));
                }
            }
            if self.changes_left > 0 && client.changing.is_empty() {
                step(&|state| state.change(id, vec![0]));
                step(&|state| state.change(id, vec![0, 1]));
            }
            if self.crashes_left > 0 {
                step(&|state| state.crash(id));
            }
        }
        next
    }

    fn check(&self) {
        self.locks.check();
        for (number, client) in self.clients.iter().enumerate() {
            for (part, cached) in &client.cache {
                if let Some(value) = cached.value {
                    assert_eq!(value, self.values[*part], "client {number} serves from its cache: {self:#?}");
                }
            }
        }
        assert_eq!(self.waiting.len(), self.locks.changes());
    }

    fn goes_on(&self) -> bool {
        !self.messages.is_empty()
            || !self.dropping.is_empty()
            || self.clients.iter().any(|client| client.crashed && !client.evicted)
    }

    fn check_end(&self) {
        assert!(self.waiting.is_empty(), "a change waits though all clients answered: {self:#?}");
    }
}

/// Explores all that so many reads, changes and crashes can lead to: at least so many states.
fn explore_all(histories: &[([Part; PARTS], u8, u8, u8, usize)]) {
    for (parts, reads, changes, crashes, least) in histories.iter().copied() {
        let states = common::explore(State::new(parts, reads, changes, crashes));
        println!("{parts:?}: {reads} reads, {changes} changes, {crashes} crashes: {states} states");
        assert!(states >= least, "{states} states");
    }
}

#[test]
fn nobody_serves_what_was_changed() {
    explore_all(&[(TWO_INODES, 3, 1, 0, 100_000), (TWO_BITS, 3, 1, 0, 30_000)]);
}

#[test]
fn two_changes_at_a_time_are_made() {
    explore_all(&[(TWO_INODES, 2, 2, 0, 100_000), (TWO_BITS, 2, 2, 0, 100_000)]);
}

#[test]
fn a_client_that_dies_holds_up_changes_until_its_session_ends_or_it_connects_again() {
    explore_all(&[
        (TWO_INODES, 2, 1, 1, 200_000),
        (TWO_INODES, 1, 2, 1, 100_000),
        (TWO_BITS, 2, 1, 1, 50_000),
        (TWO_BITS, 1, 2, 1, 80_000),
    ]);
}

const FILE: InodeNumber = InodeNumber(7);
const BITS: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
const LOOKUP: InodeBits = InodeBits(inode_bit::LOOKUP);
const BOTH: InodeBits = InodeBits(inode_bit::LOOKUP | inode_bit::ATTRIBUTES);

fn table(limits: LockLimits) -> InodeLocks {
    InodeLocks::new(LockHandle(100), limits)
}

fn grant(locks: &mut InodeLocks, client: u64, inode: InodeNumber, bits: InodeBits) -> Option<GrantedBits> {
    let mut ask = Vec::new();
    let granted = locks.grant(ClientId(client), inode, bits, &mut ask);
    assert_eq!(ask, []);
    locks.check();
    granted
}

#[test]
fn only_missing_bits_are_granted_and_none_in_preparation() {
    let mut locks = table(NO_LIMITS);
    let first = grant(&mut locks, 1, FILE, LOOKUP).unwrap();
    assert_eq!((first.handle, first.bits), (LockHandle(100), LOOKUP));
    let second = grant(&mut locks, 1, FILE, BOTH).unwrap();
    assert_eq!((second.handle, second.bits), (LockHandle(101), BITS), "it has the other");
    assert_eq!(grant(&mut locks, 1, FILE, BOTH), None);
    assert_eq!(grant(&mut locks, 2, FILE, BOTH).unwrap().bits, BOTH, "readers do not conflict");
    // Client 2 changes attributes: client 1 has to give them back, and keeps its name.
    let Prepared::Blocked(id, ask) = locks.prepare(None, ClientId(2), &[(FILE, BITS)]) else { panic!("1 has it") };
    let asked = Revocation { client: ClientId(1), handle: second.handle, inode: FILE, bits: BITS };
    assert_eq!(ask, [asked]);
    assert_eq!(locks.awaited(id), [asked]);
    assert_eq!(grant(&mut locks, 3, FILE, BOTH).unwrap().bits, LOOKUP, "attributes are in preparation");
    let again = locks.prepare(Some(id), ClientId(2), &[(FILE, BITS)]);
    assert_eq!(again, Prepared::Blocked(id, vec![]), "it was asked");
    let mut ready = Vec::new();
    locks.cancel(ClientId(3), second.handle, &mut ready);
    assert_eq!(ready, [], "not the lock of client 3");
    locks.cancel(ClientId(1), second.handle, &mut ready);
    assert_eq!((ready, locks.awaited(id)), (vec![id], vec![]));
    let mut ready = Vec::new();
    assert_eq!(locks.prepare(Some(id), ClientId(2), &[(FILE, BITS)]), Prepared::Ready);
    locks.end(id);
    assert_eq!(grant(&mut locks, 3, FILE, BOTH).unwrap().bits, BITS);
    assert_eq!(locks.held_by(FILE, ClientId(2)), BOTH, "the client that changes it keeps its locks");
    assert_eq!(locks.counters(), LockCounters { granted: 5, revoked: 1, blocked: 1 });
    assert_eq!((locks.len(), locks.inodes()), (4, 1));
    locks.drop_inode(FILE, &mut ready);
    locks.check();
    assert!(locks.is_empty());
}

#[test]
fn at_a_limit_the_oldest_are_asked_back() {
    let mut locks = table(LockLimits { per_client: 20, total: 30 });
    let inode = |number: u64| InodeNumber(1000 + number);
    for number in 0..20 {
        grant(&mut locks, 1, inode(number), BOTH).unwrap();
    }
    let mut ask = Vec::new();
    assert_eq!(locks.grant(ClientId(1), inode(20), BOTH, &mut ask), None);
    assert_eq!(ask.iter().map(|asked| asked.inode).collect::<Vec<_>>(), (0..16).map(inode).collect::<Vec<_>>());
    assert_eq!(locks.grant(ClientId(1), inode(20), BOTH, &mut ask), None);
    assert_eq!(ask.len(), 16, "each is asked once");
    assert_eq!((locks.locks_left(ClientId(1)), locks.locks_left(ClientId(2))), (0, 10), "20 of one client, 30 of all");
    for number in 0..10 {
        grant(&mut locks, 2, inode(number), BOTH).unwrap();
    }
    let mut ask = Vec::new();
    assert_eq!(locks.grant(ClientId(2), inode(20), BOTH, &mut ask), None);
    assert_eq!(locks.grant(ClientId(2), inode(20), BOTH, &mut ask), None);
    assert_eq!(ask.len(), 14, "4 of client 1 that were not asked, and 10 of client 2");
    let mut ready = Vec::new();
    let dropped = locks.drop_client(ClientId(1), LockHandle(104), usize::MAX, &mut ready);
    assert!(!dropped.has_more && dropped.locks.iter().all(|lock| lock.handle <= LockHandle(104) && lock.bits == BOTH));
    assert_eq!(dropped.locks.len(), 5, "as they were granted");
    assert_eq!((locks.count_of(ClientId(1)), locks.len()), (15, 25), "those up to this handle");
    assert_eq!(locks.locks_left(ClientId(2)), 5);
    assert!(grant(&mut locks, 2, inode(20), BOTH).is_some());
    locks.drop_client(ClientId(1), locks.last_handle(), usize::MAX, &mut ready);
    assert_eq!((locks.count_of(ClientId(1)), locks.len()), (0, 11));
    locks.check();
}

#[test]
fn a_million_locks_are_granted_and_go() {
    let mut locks = table(LockLimits { per_client: 1 << 20, total: 1 << 20 });
    let mut ask = Vec::new();
    for number in 0..1_000_000 {
        let granted = locks.grant(ClientId(number % 4), InodeNumber(number), BOTH, &mut ask);
        assert!(granted.is_some());
    }
    const { assert!(LOCK_BYTES <= 80, "bytes of a lock in keys and values") };
    assert_eq!((locks.len(), locks.count_of(ClientId(3))), (1_000_000, 250_000));
    let mut ready = Vec::new();
    for client in (0..4).map(ClientId) {
        let mut steps = 1;
        while locks.drop_client(client, locks.last_handle(), 1 << 14, &mut ready).has_more {
            steps += 1;
        }
        assert_eq!(steps, 16);
    }
    assert!(locks.is_empty() && ask.is_empty() && ready.is_empty());
}
