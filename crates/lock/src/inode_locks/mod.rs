//! Locks on the parts of inodes under which clients cache what they have read: one table per MDT.
//!
//! A lock is a client's right to keep some parts ([`InodeBits`]) of one inode. All locks are for
//! reading, so they never conflict with each other. They conflict with *changes*: a change of some
//! parts of an inode may become visible only when no client but the one that makes it has a lock on
//! them. The owner of the table asks before each change ([`InodeLocks::prepare`]):
//!
//! | event | what happens |
//! |---|---|
//! | grant | the bits that were asked for, except those that the client has and those in preparation; if none is left: no lock |
//! | change, no other client has a lock on it | ready: it may be made |
//! | change, other clients have locks on it | it is *in preparation*: its bits are not granted, and these locks are asked back, each once |
//! | cancel, or end of a client | the locks are gone; changes that waited for the last of theirs are ready |
//! | change ended | it was made or given up: its bits can be granted again |
//!
//! Invariants: a client has no bit of an inode twice; no lock is granted on bits in preparation; a
//! change in preparation waits for exactly the locks of other clients on its bits; handles are
//! never reused. [`InodeLocks::check`] asserts them, and `tests/inode_locks.rs` explores all orders
//! of messages.
//!
//! Limits: locks per client and in total. At a limit nothing is granted, and the oldest locks are
//! asked back.
//!
//! Every operation takes O(log n) in the number of locks, for each lock that it concerns. A lock
//! takes about 140 bytes: [`LOCK_BYTES`] in the nodes of three trees, which are little more than
//! half full when handles and inode numbers only grow.
//!
//! Life cycle: volatile. Locks end with the connection of their client; a table begins empty.

mod changes;

use std::collections::{BTreeMap, BTreeSet};

use types::{ClientId, InodeNumber, LockHandle};

pub use self::changes::ChangeId;
use self::changes::Changes;
use crate::InodeBits;

/// Bytes of one lock in the keys and values of the table.
pub const LOCK_BYTES: usize = size_of::<(LockHandle, Lock)>()
    + size_of::<((InodeNumber, ClientId, LockHandle), Holding)>()
    + size_of::<(ClientId, LockHandle)>();

/// Locks asked back for one grant that a limit refused.
const ASKED_AT_LIMIT: usize = 16;

/// How many locks there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockLimits {
    /// Of one client.
    pub per_client: usize,
    /// Of all.
    pub total: usize,
}

/// A lock as it is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantedBits {
    /// Its name.
    pub handle: LockHandle,
    /// Parts of which inode.
    pub inode: InodeNumber,
    /// Which parts.
    pub bits: InodeBits,
}

/// A lock to be asked back from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revocation {
    /// The holder.
    pub client: ClientId,
    /// The lock.
    pub handle: LockHandle,
    /// What is wanted of which inode.
    pub inode: InodeNumber,
    /// See `inode`.
    pub bits: InodeBits,
}

/// Locks that [`InodeLocks::drop_client`] has removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// As they were granted.
    pub locks: Vec<GrantedBits>,
    /// There are more to remove.
    pub has_more: bool,
}

/// Outcome of [`InodeLocks::prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// It may be made now.
    Ready,
    /// It waits for locks; these of them are to be asked back, the others have been.
    Blocked(ChangeId, Vec<Revocation>),
}

/// What is known of a lock by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Lock {
    client: ClientId,
    inode: InodeNumber,
}

/// What is known of a lock at its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Holding {
    bits: InodeBits,
    /// Its holder has been asked to give it back.
    asked: bool,
}

/// Counts since the table was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockCounters {
    /// Locks granted.
    pub granted: u64,
    /// Locks asked back.
    pub revoked: u64,
    /// Changes that had to wait for locks.
    pub blocked: u64,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InodeLocks {
    limits: LockLimits,
    next: LockHandle,
    /// By age.
    locks: BTreeMap<LockHandle, Lock>,
    holdings: BTreeMap<(InodeNumber, ClientId, LockHandle), Holding>,
    of_clients: BTreeSet<(ClientId, LockHandle)>,
    /// Locks of each client that has some.
    counts: BTreeMap<ClientId, usize>,
    /// Inodes with locks.
    inodes: usize,
    /// Older locks were asked back at the total limit.
    asked_below: LockHandle,
    changes: Changes,
    counters: LockCounters,
}

const FIRST_CLIENT: ClientId = ClientId(0);
const LAST_CLIENT: ClientId = ClientId(u64::MAX);
const FIRST: LockHandle = LockHandle(0);
const LAST: LockHandle = LockHandle(u64::MAX);

impl InodeLocks {
    /// An empty table. `first`: the first handle, above all that were ever given.
    pub fn new(first: LockHandle, limits: LockLimits) -> Self {
        Self {
            limits,
            next: first,
            locks: BTreeMap::new(),
            holdings: BTreeMap::new(),
            of_clients: BTreeSet::new(),
            counts: BTreeMap::new(),
            inodes: 0,
            asked_below: FIRST,
            changes: Changes::default(),
            counters: LockCounters::default(),
        }
    }

    /// Grants what can be granted of `bits` without asking other clients. Locks that are added to
    /// `ask` are to be asked back, because there are too many.
    pub fn grant(
        &mut self,
        client: ClientId,
        inode: InodeNumber,
        bits: InodeBits,
        ask: &mut Vec<Revocation>,
    ) -> Option<GrantedBits> {
        let bits = bits & !self.held_by(inode, client) & !self.changes.preparing(inode) & InodeBits::ALL;
        if bits.is_empty() || !self.has_capacity(client, ask) {
            return None;
        }
        let handle = self.next;
        self.next = LockHandle(handle.0 + 1);
        self.inodes += usize::from(!self.has_locks(inode));
        self.locks.insert(handle, Lock { client, inode });
        self.holdings.insert((inode, client, handle), Holding { bits, asked: false });
        self.of_clients.insert((client, handle));
        *self.counts.entry(client).or_default() += 1;
        self.counters.granted += 1;
        Some(GrantedBits { handle, inode, bits })
    }

    /// How many more locks a client may have.
    pub fn locks_left(&self, client: ClientId) -> usize {
        let of_client = self.limits.per_client.saturating_sub(self.count_of(client));
        of_client.min(self.limits.total.saturating_sub(self.locks.len()))
    }

    /// Whether a client may have one more lock; if not, some are asked back.
    fn has_capacity(&mut self, client: ClientId, ask: &mut Vec<Revocation>) -> bool {
        let of_client = self.counts.get(&client).copied().unwrap_or(0);
        if of_client >= self.limits.per_client {
            let of_client = self.of_clients.range((client, FIRST)..=(client, LAST)).map(|(_, handle)| *handle);
            let oldest: Vec<LockHandle> = of_client.take(ASKED_AT_LIMIT).collect();
            self.ask_back(&oldest, ask);
            return false;
        }
        if self.locks.len() < self.limits.total {
            return true;
        }
        let oldest: Vec<LockHandle> =
            self.locks.range(self.asked_below..).take(ASKED_AT_LIMIT).map(|(handle, _)| *handle).collect();
        self.ask_back(&oldest, ask);
        // When all were asked and too few came back, they are looked at once more; none is asked
        // twice.
        self.asked_below = oldest.last().map_or(FIRST, |last| LockHandle(last.0 + 1));
        false
    }

    /// Asks for all of these locks, if they were not asked for yet.
    fn ask_back(&mut self, handles: &[LockHandle], ask: &mut Vec<Revocation>) {
        for handle in handles {
            let Lock { client, inode } = self.locks[handle];
            let holding = self.holdings.get_mut(&(inode, client, *handle)).expect("a lock is at its inode");
            if !std::mem::replace(&mut holding.asked, true) {
                self.counters.revoked += 1;
                ask.push(Revocation { client, handle: *handle, inode, bits: holding.bits });
            }
        }
    }

    /// Whether any client has a lock on an inode.
    fn has_locks(&self, inode: InodeNumber) -> bool {
        self.holdings.range((inode, FIRST_CLIENT, FIRST)..=(inode, LAST_CLIENT, LAST)).next().is_some()
    }

    /// Inodes with locks.
    pub fn inodes(&self) -> usize {
        self.inodes
    }

    /// What a client has of an inode.
    pub fn held_by(&self, inode: InodeNumber, client: ClientId) -> InodeBits {
        let holdings = self.holdings.range((inode, client, FIRST)..=(inode, client, LAST));
        holdings.fold(InodeBits::NONE, |bits, (_, holding)| bits | holding.bits)
    }

    /// What a client has of an inode by this lock.
    pub fn held_by_lock(&self, inode: InodeNumber, client: ClientId, handle: LockHandle) -> InodeBits {
        self.holdings.get(&(inode, client, handle)).map_or(InodeBits::NONE, |holding| holding.bits)
    }

    /// What clients other than this one have of an inode.
    pub fn held_by_others(&self, inode: InodeNumber, client: ClientId) -> InodeBits {
        self.of_others(inode, client).fold(InodeBits::NONE, |bits, (_, holding)| bits | holding.bits)
    }

    fn of_others(
        &self,
        inode: InodeNumber,
        client: ClientId,
    ) -> impl Iterator<Item = (&(InodeNumber, ClientId, LockHandle), &Holding)> {
        let of_inode = self.holdings.range((inode, FIRST_CLIENT, FIRST)..=(inode, LAST_CLIENT, LAST));
        of_inode.filter(move |((_, holder, _), _)| *holder != client)
    }

    /// A client is about to change these parts of inodes. `change`: the same change, blocked
    /// before; it may have grown. Without a conflicting lock nothing is recorded: the change is
    /// made before anything else happens to this table, and [`InodeLocks::end`] ends what was in
    /// preparation.
    pub fn prepare(
        &mut self,
        change: Option<ChangeId>,
        client: ClientId,
        parts: &[(InodeNumber, InodeBits)],
    ) -> Prepared {
        let in_the_way = |(inode, bits): &(InodeNumber, InodeBits)| {
            let of_others = self.of_others(*inode, client).filter(|(_, holding)| holding.bits.meets(*bits));
            of_others.map(|((_, _, handle), _)| (*handle, *bits)).collect::<Vec<_>>()
        };
        let blocking: BTreeMap<LockHandle, InodeBits> = parts.iter().flat_map(in_the_way).collect();
        if blocking.is_empty() {
            return Prepared::Ready;
        }
        let (id, is_new) = self.changes.begin(change, client, parts, blocking.keys().copied());
        self.counters.blocked += u64::from(is_new);
        let mut ask = Vec::new();
        for (handle, bits) in blocking {
            let at = ask.len();
            self.ask_back(&[handle], &mut ask);
            ask[at..].iter_mut().for_each(|revocation| revocation.bits = revocation.bits & bits);
        }
        Prepared::Blocked(id, ask)
    }

    /// Asks back what other clients have of these parts, for a change that does not wait.
    pub fn revoke(&mut self, client: ClientId, parts: &[(InodeNumber, InodeBits)]) -> Vec<Revocation> {
        let mut ask = Vec::new();
        for (inode, bits) in parts {
            let of_others = self.of_others(*inode, client).filter(|(_, holding)| holding.bits.meets(*bits));
            let handles: Vec<LockHandle> = of_others.map(|((_, _, handle), _)| *handle).collect();
            self.ask_back(&handles, &mut ask);
        }
        ask
    }

    /// Asks a client back what it has of these parts, without waiting for it.
    pub fn ask_holder(&mut self, client: ClientId, inode: InodeNumber, bits: InodeBits) -> Vec<Revocation> {
        let holdings = self.holdings.range((inode, client, FIRST)..=(inode, client, LAST));
        let held = holdings.filter(|(_, holding)| holding.bits.meets(bits)).map(|((.., handle), _)| *handle);
        let handles: Vec<LockHandle> = held.collect();
        let mut ask = Vec::new();
        self.ask_back(&handles, &mut ask);
        ask
    }

    /// Whether a change in preparation waits for no lock any more.
    pub fn is_ready(&self, change: ChangeId) -> bool {
        self.changes.waits_for(change).next().is_none()
    }

    /// The locks that a change waits for, with all that their holders have by them.
    pub fn awaited(&self, change: ChangeId) -> Vec<Revocation> {
        let held = |handle: LockHandle| {
            let Lock { client, inode } = *self.locks.get(&handle)?;
            Some(Revocation { client, handle, inode, bits: self.held_by_lock(inode, client, handle) })
        };
        self.changes.waits_for(change).filter_map(held).collect()
    }

    /// A change was made, or given up.
    pub fn end(&mut self, change: ChangeId) {
        self.changes.end(change);
    }

    /// A client gives a lock back, which is returned; one that it does not have is ignored. Adds
    /// the changes that need not wait any more to `ready`.
    pub fn cancel(&mut self, client: ClientId, handle: LockHandle, ready: &mut Vec<ChangeId>) -> Option<GrantedBits> {
        self.locks.get(&handle).filter(|lock| lock.client == client)?;
        self.remove(handle, ready)
    }

    /// Locks of a client with handles up to `last` are gone: removes `count` of them. The caller
    /// removes the rest later. Meanwhile they delay changes and prevent new locks on the same
    /// parts, which is safe: the client does not use them any more. Adds the changes that need not
    /// wait any more to `ready`.
    pub fn drop_client(
        &mut self,
        client: ClientId,
        last: LockHandle,
        count: usize,
        ready: &mut Vec<ChangeId>,
    ) -> Dropped {
        let of_client = self.of_clients.range((client, FIRST)..=(client, last));
        let handles: Vec<LockHandle> = of_client.take(count).map(|(_, handle)| *handle).collect();
        let locks = handles.into_iter().filter_map(|handle| self.remove(handle, ready)).collect();
        let has_more = self.of_clients.range((client, FIRST)..=(client, last)).next().is_some();
        Dropped { locks, has_more }
    }

    /// Whether a lock exists.
    pub fn exists(&self, handle: LockHandle) -> bool {
        self.locks.contains_key(&handle)
    }

    /// All locks on an inode that does not exist any more are gone; returns them, with their
    /// holders. Adds the changes that need not wait any more to `ready`.
    pub fn drop_inode(&mut self, inode: InodeNumber, ready: &mut Vec<ChangeId>) -> Vec<(ClientId, LockHandle)> {
        let of_inode = self.holdings.range((inode, FIRST_CLIENT, FIRST)..=(inode, LAST_CLIENT, LAST));
        let held: Vec<(ClientId, LockHandle)> = of_inode.map(|((_, client, handle), _)| (*client, *handle)).collect();
        for (_, handle) in &held {
            self.remove(*handle, ready);
        }
        held
    }

    /// Returns the lock as it was granted.
    fn remove(&mut self, handle: LockHandle, ready: &mut Vec<ChangeId>) -> Option<GrantedBits> {
        let Lock { client, inode } = self.locks.remove(&handle)?;
        let holding = self.holdings.remove(&(inode, client, handle)).expect("a lock is at its inode");
        self.inodes -= usize::from(!self.has_locks(inode));
        self.of_clients.remove(&(client, handle));
        let count = self.counts.get_mut(&client).expect("a client with a lock is counted");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&client);
        }
        self.changes.lock_gone(handle, ready);
        Some(GrantedBits { handle, inode, bits: holding.bits })
    }

    /// The last handle given, or the one before the first.
    pub fn last_handle(&self) -> LockHandle {
        LockHandle(self.next.0.saturating_sub(1))
    }

    /// Locks that exist.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether no lock exists.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Locks of a client.
    pub fn count_of(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// Changes in preparation.
    pub fn changes(&self) -> usize {
        self.changes.len()
    }

    /// Counts since the table was made.
    pub fn counters(&self) -> LockCounters {
        self.counters
    }

    /// Asserts the invariants: for tests and audits, since it looks at everything.
    pub fn check(&self) {
        assert_eq!(self.locks.len(), self.holdings.len(), "each lock is at its inode");
        assert_eq!(self.locks.len(), self.of_clients.len(), "each lock is at its client");
        assert_eq!(self.locks.len(), self.counts.values().sum(), "each lock is counted");
        let inodes: BTreeSet<InodeNumber> = self.holdings.keys().map(|(inode, ..)| *inode).collect();
        assert_eq!(self.inodes, inodes.len(), "each inode with locks is counted once");
        let mut held: BTreeMap<(InodeNumber, ClientId), InodeBits> = BTreeMap::new();
        for ((inode, client, handle), holding) in &self.holdings {
            assert_eq!(self.locks.get(handle), Some(&Lock { client: *client, inode: *inode }));
            assert!(self.of_clients.contains(&(*client, *handle)) && *handle < self.next);
            let bits = held.entry((*inode, *client)).or_default();
            assert!(!bits.meets(holding.bits), "{client} has bits of inode {inode} twice");
            *bits |= holding.bits;
        }
        self.changes.check(|client, inode, bits| {
            let of_others = self.of_others(inode, client).filter(|(_, holding)| holding.bits.meets(bits));
            of_others.map(|((_, _, handle), _)| *handle).collect()
        });
    }
}
