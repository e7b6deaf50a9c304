//! A server that restarts, with the clients of its former start: all orders of messages of two or
//! three clients, one crash of the server, and a client that claims a lock that it never had,
//! explored exhaustively. The model does with the lock tables what an MDT does: clients claim locks
//! on attributes by the version of the inode, after the exclusive lock on the data of the first of
//! two inodes, and changes wait until all clients are back.
//!
//! In every state no client serves from its cache what differs from what is visible, or under a
//! lock that the server does not know; and no client believes that it has the exclusive lock while
//! another one serves the attributes. In every state from which nothing follows all clients are
//! back, and no request waits.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use lock::{
    ChangeId, ExclusiveAnswer, ExclusiveLocks, InodeBits, InodeLocks, LockLimits, Prepared, Revocation, inode_bit,
};
use types::{ClientId, InodeNumber, LockHandle};

const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
const LIMITS: LockLimits = LockLimits { per_client: 1000, total: 1000 };
const INODES: [InodeNumber; 2] = [InodeNumber(1), InodeNumber(2)];
/// The inode whose data are locked.
const DATA: usize = 0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Inode {
    version: u8,
    /// What is to be seen of it.
    attributes: u8,
}

impl Inode {
    fn change(&mut self) {
        self.version += 1;
        self.attributes += 1;
    }
}

/// What a client asks for while it is connected. Inodes by their number in [`INODES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Request {
    Read(usize),
    Change(usize),
    /// The exclusive lock.
    Begin,
    End,
}

/// In the order in which a client sends them when it comes back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Return {
    /// Whether it has the exclusive lock.
    Reclaim(bool),
    /// Its former locks, the inodes and the versions that it knows.
    Claim(Vec<(LockHandle, usize, u8)>),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ToServer {
    Request(Request),
    Return(Return),
    Cancel(LockHandle),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum ToClient {
    /// Of a read and a change: the inode as it is.
    Answer(Request, Inode, Option<LockHandle>),
    /// Whether it is granted.
    Begun(bool),
    Reclaimed,
    Claimed(Vec<Option<LockHandle>>),
    Recovered,
    Callback(LockHandle),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Connected,
    Reclaiming,
    Claiming,
    Finishing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cached {
    handle: LockHandle,
    /// As it was told last.
    inode: Inode,
    /// Not while it changes the inode itself.
    is_served: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// It has begun something.
    is_used: bool,
    /// It is connected with the server after the crash.
    is_back: bool,
    phase: Phase,
    cache: BTreeMap<usize, Cached>,
    pending: Option<Request>,
    /// It believes that it has the exclusive lock.
    writes: bool,
    /// It never had it.
    lied: bool,
    /// Locks asked back before their grant arrived.
    cancelled: BTreeSet<LockHandle>,
    /// What it has claimed and was not answered.
    claimed: Vec<(LockHandle, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    client: ClientId,
    asked: ToServer,
    /// `None`: for clients that are not back.
    change: Option<ChangeId>,
}

#[derive(Clone, Copy, Debug)]
struct Budget {
    clients: u64,
    reads: u8,
    changes: u8,
    /// Exclusive locks.
    begins: u8,
    /// Claims of an exclusive lock that the client never had.
    lies: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// On disk.
    inodes: [Inode; INODES.len()],
    /// On disk: whether the size is known of the inode whose data are locked.
    size_known: bool,
    /// Whether the holder of the exclusive lock has claimed it although it never had it.
    is_doubted: bool,
    locks: InodeLocks,
    exclusive: ExclusiveLocks,
    /// Clients of the former start that are not back.
    expected: BTreeSet<ClientId>,
    waiting: Vec<Waiting>,
    has_crashed: bool,
    clients: Vec<Client>,
    to_server: BTreeSet<(ClientId, ToServer)>,
    to_clients: BTreeSet<(ClientId, ToClient)>,
    reads_left: u8,
    changes_left: u8,
    begins_left: u8,
    lies_left: u8,
}

impl State {
    fn new(budget: Budget) -> Self {
        Self {
            inodes: [Inode::default(); INODES.len()],
            size_known: true,
            is_doubted: false,
            locks: InodeLocks::new(LockHandle(1), LIMITS),
            exclusive: ExclusiveLocks::default(),
            expected: BTreeSet::new(),
            waiting: Vec::new(),
            has_crashed: false,
            clients: vec![Client::default(); budget.clients as usize],
            to_server: BTreeSet::new(),
            to_clients: BTreeSet::new(),
            reads_left: budget.reads,
            changes_left: budget.changes,
            begins_left: budget.begins,
            lies_left: budget.lies,
        }
    }

    fn client(&mut self, id: ClientId) -> &mut Client {
        &mut self.clients[id.0 as usize]
    }

    /// A client that does not know of the crash yet talks to nobody.
    fn send(&mut self, id: ClientId, message: ToServer) {
        if self.client(id).is_back == self.has_crashed {
            self.to_server.insert((id, message));
        }
    }

    fn ask(&mut self, id: ClientId, request: Request) {
        let client = self.client(id);
        (client.is_used, client.pending) = (true, Some(request));
        // What is being given back is not claimed: others may have had it since.
        client.writes &= request != Request::End;
        let changed = match request {
            Request::Change(inode) => Some(inode),
            Request::Begin => Some(DATA),
            Request::Read(_) | Request::End => None,
        };
        if let Some(cached) = changed.and_then(|inode| client.cache.get_mut(&inode)) {
            cached.is_served = false;
        }
        self.send(id, ToServer::Request(request));
    }

    /// What the server had in memory is gone, and what was under way to it. What it sent may arrive
    /// until its client notices.
    fn crash(&mut self) {
        self.has_crashed = true;
        self.locks = InodeLocks::new(LockHandle(100), LIMITS);
        self.exclusive = ExclusiveLocks::default();
        self.expected = (0..self.clients.len() as u64).map(ClientId).collect();
        self.waiting.clear();
        self.to_server.clear();
    }

    /// A client connects with the new start: it serves nothing from now on until its locks are
    /// granted again.
    fn come_back(&mut self, id: ClientId, lies: bool) {
        self.to_clients.retain(|(client, _)| *client != id);
        self.lies_left -= u8::from(lies);
        let client = self.client(id);
        (client.is_used, client.is_back, client.phase) = (true, true, Phase::Reclaiming);
        client.cancelled.clear();
        (client.writes, client.lied) = (client.writes || lies, lies);
        let writes = client.writes;
        self.send(id, ToServer::Return(Return::Reclaim(writes)));
    }

    /// A message arrives at the server, or what it asked for is tried again.
    fn serve(&mut self, id: ClientId, message: &ToServer, change: Option<ChangeId>) {
        match message {
            ToServer::Cancel(handle) => {
                let mut ready = Vec::new();
                self.locks.cancel(id, *handle, &mut ready);
                self.go_on(&ready);
            }
            ToServer::Request(Request::Read(inode)) => self.read(id, *inode),
            ToServer::Request(Request::End) => {
                // It does not wait. Without the lock it changes nothing.
                if self.exclusive.holder(INODES[DATA]) == Some(id) {
                    self.exclusive.end(INODES[DATA], id).expect("it is the holder");
                    self.size_known = self.expected.is_empty();
                    self.inodes[DATA].version += 1;
                    self.inodes[DATA].attributes += u8::from(!self.is_doubted);
                }
                self.to_clients.insert((id, ToClient::Answer(Request::End, self.inodes[DATA], None)));
            }
            ToServer::Request(request) => self.change(id, *request, change),
            ToServer::Return(Return::Reclaim(writes)) => self.reclaim(id, *writes, change),
            ToServer::Return(Return::Claim(claims)) => {
                let granted = claims.iter().map(|(_, inode, version)| self.claim(id, *inode, *version)).collect();
                self.to_clients.insert((id, ToClient::Claimed(granted)));
            }
            ToServer::Return(Return::Done) => {
                assert!(self.expected.remove(&id), "a client is done once");
                self.to_clients.insert((id, ToClient::Recovered));
                let waiting = std::mem::take(&mut self.waiting).into_iter();
                let (again, rest): (Vec<Waiting>, _) = waiting.partition(|waiting| waiting.change.is_none());
                self.waiting = rest;
                again.into_iter().for_each(|Waiting { client, asked, .. }| self.serve(client, &asked, None));
            }
        }
    }

    fn go_on(&mut self, ready: &[ChangeId]) {
        for id in ready {
            let at = self.waiting.iter().position(|waiting| waiting.change == Some(*id)).expect("a change that waits");
            let Waiting { client, asked, change } = self.waiting.remove(at);
            self.serve(client, &asked, change);
        }
    }

    /// Whether the server may grant the attributes.
    fn is_still(&self, id: ClientId, inode: usize) -> bool {
        let is_written = self.exclusive.holder(INODES[inode]).is_some_and(|holder| holder != id);
        !is_written && (inode != DATA || self.size_known)
    }

    fn read(&mut self, id: ClientId, inode: usize) {
        assert!(!self.expected.contains(&id), "requests come after all claims");
        let may_grant = self.expected.is_empty() && self.is_still(id, inode);
        let granted = if may_grant { self.locks.grant(id, INODES[inode], ATTRIBUTES, &mut Vec::new()) } else { None };
        let handle = granted.map(|granted| granted.handle);
        self.to_clients.insert((id, ToClient::Answer(Request::Read(inode), self.inodes[inode], handle)));
    }

    fn claim(&mut self, id: ClientId, inode: usize, version: u8) -> Option<LockHandle> {
        assert!(self.expected.contains(&id), "claims come first");
        if self.inodes[inode].version != version || !self.is_still(id, inode) {
            return None;
        }
        self.locks.grant(id, INODES[inode], ATTRIBUTES, &mut Vec::new()).map(|granted| granted.handle)
    }

    /// Whether what others have cached of an inode is gone; if not, the request waits.
    fn is_withdrawn(&mut self, id: ClientId, inode: usize, asked: ToServer, change: Option<ChangeId>) -> bool {
        match self.locks.prepare(change, id, &[(INODES[inode], ATTRIBUTES)]) {
            Prepared::Ready => {
                change.into_iter().for_each(|change| self.locks.end(change));
                true
            }
            Prepared::Blocked(change, ask) => {
                let callback = |Revocation { client, handle, .. }: Revocation| (client, ToClient::Callback(handle));
                self.to_clients.extend(ask.into_iter().map(callback));
                self.waiting.push(Waiting { client: id, asked, change: Some(change) });
                false
            }
        }
    }

    fn change(&mut self, id: ClientId, request: Request, change: Option<ChangeId>) {
        assert!(!self.expected.contains(&id), "requests come after all claims");
        let asked = ToServer::Request(request);
        if !self.expected.is_empty() {
            self.waiting.push(Waiting { client: id, asked, change });
            return;
        }
        let inode = if let Request::Change(inode) = request { inode } else { DATA };
        if !self.is_withdrawn(id, inode, asked, change) {
            return;
        }
        if request == Request::Begin {
            let is_free = self.exclusive.holder(INODES[DATA]).is_none_or(|holder| holder == id);
            if is_free {
                assert_eq!(self.exclusive.begin(INODES[DATA], id), Ok(ExclusiveAnswer::Granted));
                (self.size_known, self.is_doubted) = (false, false);
                self.inodes[DATA].change();
            }
            self.to_clients.insert((id, ToClient::Begun(is_free)));
        } else {
            self.inodes[inode].change();
            self.to_clients.insert((id, ToClient::Answer(request, self.inodes[inode], None)));
        }
    }

    /// The exclusive lock is claimed: if others know the attributes, or the size, it is not told
    /// apart whether the lock ended before the crash. They give the attributes back first.
    fn reclaim(&mut self, id: ClientId, writes: bool, change: Option<ChangeId>) {
        if writes {
            let is_cached = self.locks.held_by_others(INODES[DATA], id).meets(ATTRIBUTES);
            let is_doubtful = self.size_known || is_cached;
            // A failure is a lie: two have the lock.
            let _ = self.exclusive.try_begin(INODES[DATA], id);
            let asked = ToServer::Return(Return::Reclaim(true));
            if is_doubtful && !self.is_withdrawn(id, DATA, asked, change) {
                return;
            }
            change.into_iter().for_each(|change| self.locks.end(change));
            if is_doubtful {
                // The objects are asked from now on, and have what they had.
                (self.size_known, self.is_doubted) = (false, true);
                self.inodes[DATA].version += 1;
            }
        }
        self.to_clients.insert((id, ToClient::Reclaimed));
    }

    /// A message arrives at a client.
    fn tell(&mut self, id: ClientId, message: &ToClient) {
        let client = &mut self.clients[id.0 as usize];
        let mut reply = None;
        match message {
            ToClient::Answer(request, answer, handle) => {
                assert_eq!(client.pending.take(), Some(*request), "one request at a time");
                match request {
                    Request::Read(inode) => {
                        let kept = handle.filter(|handle| !client.cancelled.contains(handle));
                        let cached = |handle| Cached { handle, inode: *answer, is_served: true };
                        client.cache.extend(kept.map(|handle| (*inode, cached(handle))));
                    }
                    Request::Change(inode) => {
                        if let Some(cached) = client.cache.get_mut(inode) {
                            (cached.inode, cached.is_served) = (*answer, true);
                        }
                    }
                    Request::Begin => unreachable!("it has an answer of its own"),
                    Request::End => {}
                }
            }
            ToClient::Begun(is_granted) => {
                client.pending = None;
                client.writes |= is_granted;
                if !is_granted && let Some(cached) = client.cache.get_mut(&DATA) {
                    cached.is_served = true;
                }
                // Its own writes change the attributes.
                if *is_granted && let Some(cached) = client.cache.remove(&DATA) {
                    reply = Some(ToServer::Cancel(cached.handle));
                }
            }
            ToClient::Reclaimed => {
                client.phase = Phase::Claiming;
                let claims: Vec<_> =
                    client.cache.iter().map(|(inode, cached)| (cached.handle, *inode, cached.inode.version)).collect();
                client.claimed = claims.iter().map(|(handle, inode, _)| (*handle, *inode)).collect();
                reply = Some(ToServer::Return(Return::Claim(claims)));
            }
            ToClient::Claimed(granted) => {
                client.phase = Phase::Finishing;
                for ((_, inode), granted) in std::mem::take(&mut client.claimed).into_iter().zip(granted) {
                    match granted.filter(|handle| !client.cancelled.contains(handle)) {
                        Some(handle) => client.cache.get_mut(&inode).expect("it was claimed").handle = handle,
                        None => drop(client.cache.remove(&inode)),
                    }
                }
                reply = Some(ToServer::Return(Return::Done));
            }
            ToClient::Recovered => {
                client.phase = Phase::Connected;
                reply = client.pending.map(ToServer::Request);
            }
            ToClient::Callback(handle) => {
                let before = client.cache.len();
                client.cache.retain(|_, cached| cached.handle != *handle);
                if client.cache.len() == before {
                    client.cancelled.insert(*handle);
                }
                reply = Some(ToServer::Cancel(*handle));
            }
        }
        if let Some(reply) = reply {
            self.send(id, reply);
        }
    }
}

impl Client {
    /// Whether it answers from its cache.
    fn serves(&self) -> bool {
        matches!(self.phase, Phase::Connected | Phase::Finishing)
    }

    /// Whether it may write data.
    fn writes_now(&self) -> bool {
        self.writes && self.phase != Phase::Reclaiming
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
        for (client, message) in &self.to_server {
            step(&|state| {
                state.to_server.remove(&(*client, message.clone()));
                state.serve(*client, message, None);
            });
        }
        for (client, message) in &self.to_clients {
            step(&|state| {
                state.to_clients.remove(&(*client, message.clone()));
                state.tell(*client, message);
            });
        }
        if !self.has_crashed {
            step(&|state| state.crash());
        }
        // Clients that have not done anything are alike: the first of them acts for all.
        let idle = self.clients.iter().position(|client| !client.is_used);
        for (number, client) in self.clients.iter().enumerate() {
            let id = ClientId(number as u64);
            if !client.is_used && idle != Some(number) {
                continue;
            }
            if client.is_back != self.has_crashed {
                step(&|state| state.come_back(id, false));
                if self.lies_left > 0 && !client.writes {
                    step(&|state| state.come_back(id, true));
                }
            }
            if client.phase != Phase::Connected || client.pending.is_some() {
                continue;
            }
            for inode in 0..INODES.len() {
                if self.reads_left > 0 && !client.cache.contains_key(&inode) {
                    step(&|state| {
                        state.reads_left -= 1;
                        state.ask(id, Request::Read(inode));
                    });
                }
                if self.changes_left > 0 {
                    step(&|state| {
                        state.changes_left -= 1;
                        state.ask(id, Request::Change(inode));
                    });
                }
            }
            if client.writes {
                step(&|state| state.ask(id, Request::End));
            } else if self.begins_left > 0 {
                step(&|state| {
                    state.begins_left -= 1;
                    state.ask(id, Request::Begin);
                });
            }
        }
        next
    }

    fn check(&self) {
        self.locks.check();
        for (number, client) in self.clients.iter().enumerate().filter(|(_, client)| client.serves()) {
            let id = ClientId(number as u64);
            for (inode, cached) in &client.cache {
                if client.is_back == self.has_crashed {
                    let held = self.locks.held_by_lock(INODES[*inode], id, cached.handle);
                    assert_eq!(held, ATTRIBUTES, "{id} serves under a lock that nobody knows: {self:#?}");
                } else {
                    assert!(self.expected.contains(&id), "{id} serves, and is not waited for: {self:#?}");
                }
                assert!(
                    !cached.is_served || cached.inode.attributes == self.inodes[*inode].attributes,
                    "{id} serves from its cache: {self:#?}"
                );
            }
            // Nobody can keep a liar from writing before others notice the crash.
            let knows = client.is_back == self.has_crashed;
            let writes =
                |(other, writer): (usize, &Client)| other != number && writer.writes_now() && (knows || !writer.lied);
            assert!(
                !client.cache.contains_key(&DATA) || !self.clients.iter().enumerate().any(writes),
                "{id} serves attributes of what another client writes: {self:#?}"
            );
        }
    }

    fn goes_on(&self) -> bool {
        !self.to_server.is_empty()
            || !self.to_clients.is_empty()
            || self.clients.iter().any(|client| client.is_back != self.has_crashed)
    }

    fn check_end(&self) {
        let is_idle = |client: &Client| client.phase == Phase::Connected && client.pending.is_none();
        assert!(
            self.waiting.is_empty() && self.expected.is_empty() && self.clients.iter().all(is_idle),
            "something waits though all clients answered: {self:#?}"
        );
        assert_eq!(self.locks.changes(), 0);
    }
}

/// Explores all that this can lead to: at least so many states.
fn explore(budget: Budget, least: usize) {
    let states = common::explore(State::new(budget));
    println!("{budget:?}: {states} states");
    assert!(states >= least, "{states} states");
}

#[test]
fn nobody_serves_what_was_changed_before_or_after_a_restart() {
    explore(Budget { clients: 2, reads: 2, changes: 2, begins: 0, lies: 0 }, 10_000);
    explore(Budget { clients: 3, reads: 2, changes: 1, begins: 0, lies: 0 }, 10_000);
}

#[test]
fn an_exclusive_lock_survives_a_restart_and_no_attributes_beside_it() {
    explore(Budget { clients: 2, reads: 2, changes: 0, begins: 2, lies: 0 }, 10_000);
    explore(Budget { clients: 3, reads: 2, changes: 0, begins: 1, lies: 0 }, 10_000);
}

#[test]
fn a_claim_of_an_exclusive_lock_that_nobody_granted_waits_for_the_attributes() {
    explore(Budget { clients: 2, reads: 2, changes: 1, begins: 0, lies: 1 }, 10_000);
    explore(Budget { clients: 3, reads: 2, changes: 0, begins: 0, lies: 1 }, 10_000);
}
