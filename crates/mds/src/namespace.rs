//! The state of one MDT: its tables, its volatile state, and the only way to change both.
//!
//! Held behind one lock by [`crate::Mdt`]: changes have it alone, requests that only read beside
//! each other ([`Namespace::look`]). Nothing here waits, except for reads of the cold store,
//! which operations avoid by giving up their attempt ([`Namespace::attempt`]). A change is visible
//! as soon as [`Namespace::transact`] returns. Before a reply is sent, even to a reader, `written`
//! of [`Namespace::last`] is awaited, so that no reply shows a change that a killed process could
//! forget.

use std::{collections::BTreeMap, sync::Arc};

use kv::{Batch, Loading, Lsn, Store};
use lock::{ChangeId, InodeBits, inode_bit};
use rpc::{
    message::{
        MdtReply, MdtRequest,
        lock::{Enqueue, Granted, Resource},
        mdt::{Entry, open_flag},
    },
    stored_reply,
};
use tokio::sync::{Notify, futures::OwnedNotified};
use types::{ClientId, FsError, FsResult, InodeNumber, MdtIndex, OstIndex, Timestamp};

use crate::{
    audit::Touched,
    cached_parts::CachedParts,
    error::store_error,
    grants, invariants, known_size,
    opens::{EarlyOpen, OpenKey},
    options::ProcessId,
    shown_changes,
    tables::{
        COUNTERS, DECISIONS, DEFERRED_LOG, EVICTED, INODES, PREPARED, REPLIES, SESSIONS,
        codec::client_of_key,
        counter::{self, Counters},
        decision,
        deferred_log::{self, DeferredOperation},
        evicted::EvictedRecord,
        inode::{Brief, Inode},
        prepared,
        session::SessionRecord,
    },
    transaction::{Changes, Context, Transaction, versions::Change},
    volatile::{Recovery, Volatile},
};

/// No client has this id.
const NOBODY: ClientId = ClientId(0);

/// See the module documentation.
pub(crate) struct Namespace {
    /// What is forgotten when the MDT stops.
    pub volatile: Volatile,
    store: Arc<Store>,
    mdt: MdtIndex,
    target: String,
    counters: Counters,
    deferred_log_next: BTreeMap<OstIndex, u64>,
    wakeups: BTreeMap<OstIndex, Arc<Notify>>,
    decisions_next: BTreeMap<MdtIndex, u64>,
    peer_wakeups: BTreeMap<MdtIndex, Arc<Notify>>,
    audits: bool,
    last: Lsn,
    change: Change,
}

/// How an attempt of an operation ended.
pub(crate) enum Attempt<T> {
    /// It is done, or failed.
    Done(T),
    /// It needs what is not in memory: nothing has happened, and it is to be tried again once
    /// [`Loading`] has what it missed.
    GivenUp,
    /// Clients cache under locks what it changes, or may: nothing has happened, and it is to be
    /// tried again later.
    Blocked(Obstacle),
}

/// What an operation waits for.
pub(crate) enum Obstacle {
    /// Locks that are asked back.
    Locks(ChangeId),
    /// Clients of the former start that did not come back yet, or that it evicted and whose leases
    /// may not have ended: it is not known what they cache. This tells when there is one less.
    FormerClients(OwnedNotified),
    /// What this other MDT decides, or what it has decided and this one does not know yet. This
    /// tells when something of that has become known.
    Peer(MdtIndex, OwnedNotified),
}

impl<T> Attempt<T> {
    /// With what follows from the outcome.
    pub fn map<U>(self, follow: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Attempt::Done(outcome) => Attempt::Done(follow(outcome)),
            Attempt::GivenUp => Attempt::GivenUp,
            Attempt::Blocked(obstacle) => Attempt::Blocked(obstacle),
        }
    }
}

/// What [`Namespace::prepare`] found.
enum Preparation {
    /// It can be made, and this is what it changes.
    Ready(CachedParts),
    /// It waits.
    Blocked(Obstacle),
}

/// An operation that is tried until it is done: what its attempts have in common.
#[derive(Default)]
pub(crate) struct Attempts {
    /// What is loaded for it.
    pub loading: Loading,
    /// Its change, once it had to wait for locks: until it is done, locks on these parts of inodes
    /// are not granted.
    pub change: Option<ChangeId>,
}

impl Namespace {
    /// Takes over a store that was formatted, and what its tables say of the former start.
    pub fn load(
        store: Arc<Store>,
        mdt: MdtIndex,
        process: ProcessId,
        target: String,
        mut volatile: Volatile,
    ) -> FsResult<Self> {
        let error = |error: kv::Error| store_error(&target, &error);
        let counters = Counters::found(store.get(COUNTERS, counter::COUNTERS).map_err(error)?)?;
        let (mut deferred_log_next, mut decisions_next) = (BTreeMap::new(), BTreeMap::new());
        scan(&store, &target, COUNTERS, |key, value| {
            if let Some(ost) = counter::parse_delivered_key(key) {
                deferred_log_next.insert(ost, counter::decode_number(value)?.saturating_add(1));
            } else if let Some(mdt) = counter::parse_decided_key(key) {
                decisions_next.insert(mdt, counter::decode_number(value)?.saturating_add(1));
            } else if key == counter::START {
                volatile.peers.began_before();
            }
            Ok(())
        })?;
        scan(&store, &target, DECISIONS, |key, _| {
            let (mdt, sequence) = decision::decode_key(key)?;
            decisions_next.insert(mdt, sequence.saturating_add(1));
            Ok(())
        })?;
        scan(&store, &target, PREPARED, |key, value| {
            volatile.peers.promised(prepared::decode_key(key)?, prepared::decode(value)?);
            Ok(())
        })?;
        scan(&store, &target, DEFERRED_LOG, |key, value| {
            let (ost, sequence) = deferred_log::decode_key(key)?;
            deferred_log_next.insert(ost, sequence.saturating_add(1));
            if let DeferredOperation::Evict(client) = DeferredOperation::decode(value)? {
                volatile.fences.raise(client, [ost]);
            }
            Ok(())
        })?;
        scan(&store, &target, SESSIONS, |key, value| {
            let client = client_of_key("session", key)?;
            let gone = SessionRecord::decode(value)?.process.is_some_and(|of| of != process);
            volatile.recovery.expected.insert(client);
            if gone {
                volatile.recovery.gone.insert(client);
            }
            Ok(())
        })?;
        scan(&store, &target, EVICTED, |key, value| {
            let client = client_of_key("evicted client", key)?;
            volatile.recovery.was_evicted(client, EvictedRecord::decode(value)?);
            Ok(())
        })?;
        scan(&store, &target, REPLIES, |key, value| {
            let key = stored_reply::parse_key(key)?;
            volatile.recovery.replies.insert(key, stored_reply::decode_xid(value)?);
            Ok(())
        })?;
        let Recovery { expected, gone, .. } = &volatile.recovery;
        assert!(gone.is_subset(expected), "only clients that are expected can be gone");
        let last = store.last();
        Ok(Self {
            volatile,
            store,
            mdt,
            target,
            counters,
            deferred_log_next,
            wakeups: BTreeMap::new(),
            decisions_next,
            peer_wakeups: BTreeMap::new(),
            audits: false,
            last,
            change: Change::default(),
        })
    }

    /// From now on what each commit leaves is checked, see module `audit`.
    pub fn audit(&mut self) {
        self.audits = true;
    }

    /// The last change, which answers must wait for.
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// What the last operation changed: nothing, unless it succeeded.
    pub fn take_change(&mut self) -> Change {
        std::mem::take(&mut self.change)
    }

    /// Grants a client locks with a reply, see [`grants::with_reply`].
    pub fn grant(&self, client: ClientId, wanted: Enqueue, request: &MdtRequest, reply: &mut MdtReply) -> Vec<Granted> {
        let stored = |number| {
            let value = self.store.get(INODES, &Inode::key(number)).ok()??;
            let brief = Brief::of(&value).ok()?;
            let may_move = brief.may_move && !Inode::decode(number, &value).is_ok_and(|inode| !inode.names_move());
            Some(Brief { may_move, ..brief })
        };
        grants::with_reply(&self.volatile, client, wanted, request, reply, stored)
    }

    /// Grants a client the lock on the data of a file, see [`grants::with_data`].
    pub fn grant_data(&self, client: ClientId, wanted: Enqueue, inode: InodeNumber) -> Option<Granted> {
        let stored = self.brief(inode);
        grants::with_data(&self.volatile, client, wanted, inode, stored)
    }

    /// Takes away an open that a client need not register, because it has just got the lock on
    /// opens of the inode. Returns whether it is gone.
    pub fn unregister(&mut self, client: ClientId, request: &MdtRequest, granted: &[Granted]) -> bool {
        let MdtRequest::Open(_, open) = request else { return false };
        let may_open = |lock: &Granted| {
            matches!(lock.resource, Resource::Inode(inode, bits)
                if inode == open.inode && bits.meets(InodeBits(inode_bit::OPEN)))
        };
        open.flags.has(open_flag::UNREGISTERED)
            && open.flags.0 & !(open_flag::UNASKED | open_flag::UNREGISTERED) == 0
            && granted.iter().any(may_open)
            && self.volatile.remove_open(OpenKey { client, open: open.open }).is_some()
    }

    /// Whether a client has the lock on the data of a file.
    pub fn may_keep_data(&self, client: ClientId, inode: InodeNumber) -> bool {
        self.volatile.cache.lock().holds(client, inode, InodeBits(inode_bit::DATA))
    }

    /// What a client is shown of its change with the reply, see [`shown_changes`]. Names that it
    /// is not told are taken from the change.
    pub fn shown_beside(&self, context: &Context, change: &mut Change, reply: Option<&MdtReply>) -> Vec<Entry> {
        shown_changes::retain_names(&self.volatile, context.client, &mut change.names);
        let stored = |number| {
            let value = self.store.get(INODES, &Inode::key(number)).ok()??;
            let mut inode = Inode::decode(number, &value).ok()?;
            known_size::doubt(&mut inode, context.era);
            Some(inode)
        };
        shown_changes::beside(&self.volatile, context.client, change, reply, stored)
    }

    /// An inode as the tables have it.
    fn brief(&self, inode: InodeNumber) -> Option<Brief> {
        self.store.get(INODES, &Inode::key(inode)).ok()?.and_then(|value| Brief::of(&value).ok())
    }

    /// Name of this target.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Inodes in use, and the number of the next one.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Signalled when there is something to tell an OST.
    pub fn wakeup(&mut self, ost: OstIndex) -> Arc<Notify> {
        self.wakeups.entry(ost).or_default().clone()
    }

    /// Signalled when there is something to tell another MDT.
    pub fn peer_wakeup(&mut self, mdt: MdtIndex) -> Arc<Notify> {
        self.peer_wakeups.entry(mdt).or_default().clone()
    }

    /// Refuses a client that was evicted while it had a connection.
    pub fn check_session(&self, client: ClientId) -> FsResult<()> {
        if self.volatile.recovery.evicted.contains(&client) { Err(FsError::Evicted) } else { Ok(()) }
    }

    /// Runs an operation; its changes happen together if it succeeds and the store takes them, else
    /// none does. An evicted client is refused here, under the same lock under which it was
    /// evicted.
    pub fn transact<T>(
        &mut self,
        context: &Context,
        operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        match self.attempt(context, None, operate) {
            Attempt::Done(outcome) => outcome,
            Attempt::GivenUp => unreachable!("without a limit to its reads no attempt is given up"),
            Attempt::Blocked(_) => unreachable!("what is not tried again waits for no locks"),
        }
    }

    /// Runs an operation that only reads, beside others that do. `None`: it is to be executed
    /// alone, because it changes something after all, waits for another MDT, or shows what must be
    /// durable first.
    pub fn look<T>(
        &self,
        context: &Context,
        loading: &Loading,
        operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<T>,
    ) -> Option<Attempt<FsResult<T>>> {
        if let Err(error) = self.check_session(context.client) {
            return Some(Attempt::Done(Err(error)));
        }
        let counters = self.counters;
        let mut txn =
            Transaction::beside(&self.volatile, *context, self.mdt, &self.store, &self.target, counters, loading);
        let outcome = operate(&mut txn);
        if loading.is_given_up() {
            debug_assert!(outcome.is_err(), "what an attempt missed is no answer");
            return Some(Attempt::GivenUp);
        }
        let is_alone = txn.awaits_peer().is_some() || txn.changes_tables() || txn.lengthened().is_some();
        (!is_alone).then_some(Attempt::Done(outcome))
    }

    /// As [`Namespace::transact`], but reads only what is in memory or was loaded, and
    /// changes nothing that others have cached; without `attempts` it reads everything, and what
    /// others have cached is asked back afterwards.
    pub fn attempt<T>(
        &mut self,
        context: &Context,
        mut attempts: Option<&mut Attempts>,
        operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<T>,
    ) -> Attempt<FsResult<T>> {
        if let Err(error) = self.check_session(context.client) {
            self.end_change(attempts);
            return Attempt::Done(Err(error));
        }
        let loading = attempts.as_deref().map(|attempts| &attempts.loading);
        let (volatile, counters) = (&mut self.volatile, self.counters);
        let mut txn = Transaction::new(volatile, *context, self.mdt, &self.store, &self.target, counters, loading);
        let outcome = operate(&mut txn).and_then(|value| txn.seal().map(|()| value));
        if outcome.is_err() {
            txn.take_back_opens();
        }
        if loading.is_some_and(Loading::is_given_up) {
            debug_assert!(outcome.is_err(), "what an attempt missed is no answer");
            debug_assert!(!txn.has_touched(), "an attempt that changed something goes on");
            return Attempt::GivenUp;
        }
        if let Some(mdt) = txn.awaits_peer() {
            debug_assert!(outcome.is_err(), "what waits for other MDTs is no answer");
            return Attempt::Blocked(Obstacle::Peer(mdt, txn.volatile.peers.progress()));
        }
        let mut changes = txn.into_changes();
        self.change = Change::default();
        let (exclusive, decided_layout) = (changes.exclusive.take(), changes.decided_layout.take());
        let ended_holds = std::mem::take(&mut changes.ended_holds);
        let waits = attempts.as_deref_mut().filter(|_| !changes.is_final);
        let outcome = outcome.and_then(|value| Ok((value, self.prepare(context, waits, &changes)?)));
        let (outcome, cached) = match outcome {
            Ok((_, Preparation::Blocked(obstacle))) => {
                self.take_back(&mut changes.early_opens);
                self.give_back(exclusive, context.client);
                return Attempt::Blocked(obstacle);
            }
            Ok((value, Preparation::Ready(cached))) => (Ok(value), cached),
            Err(error) => {
                self.take_back(&mut changes.early_opens);
                (Err(error), CachedParts::default())
            }
        };
        let touched = (self.audits && !changes.operations.is_empty()).then(|| Touched::by(&changes));
        if let (Some(touched), Ok(_)) = (&touched, &outcome) {
            touched.assert_versions(|inode| self.brief(inode));
        }
        let outcome = outcome.and_then(|value| self.commit(changes, context.now).map(|()| value));
        match &outcome {
            Ok(_) => {
                ended_holds.into_iter().for_each(|inode| self.volatile.end_hold(inode));
                self.volatile.cache.lock().revoke(context.client, &cached.accessed());
                cached.unnamed().iter().for_each(|inode| self.volatile.lost_name(context.client, *inode));
                cached.removed().iter().for_each(|inode| self.volatile.cache.lock().drop_inode(*inode));
            }
            Err(_) => self.give_back(exclusive, context.client),
        }
        if let Some(inode) = decided_layout {
            self.volatile.end_layout_change(inode, context.client);
        }
        if let Some(touched) = touched.filter(|_| outcome.is_ok()) {
            let (volatile, counters) = (&mut self.volatile, self.counters);
            let mut txn = Transaction::new(volatile, *context, self.mdt, &self.store, &self.target, counters, None);
            touched.assert_sound(&mut txn);
        }
        self.end_change(attempts);
        Attempt::Done(outcome)
    }

    /// What the steps of a compound opened is not open: it changed nothing.
    fn take_back(&mut self, opens: &mut Vec<EarlyOpen>) {
        while let Some(early) = opens.pop() {
            early.take_back(&mut self.volatile.opens);
        }
    }

    /// An exclusive data lock that an operation took is given back: it changed nothing.
    fn give_back(&mut self, exclusive: Option<InodeNumber>, client: ClientId) {
        if let Some(inode) = exclusive {
            self.volatile.end_exclusive(inode, client);
        }
    }

    /// Whether others have cached what an operation changes. If so they are asked for their locks,
    /// and the operation waits; one that cannot wait goes on. After a restart it is not known what
    /// the earlier clients have cached: until they are back, or their leases have ended with the
    /// recovery, it waits too, unless it is part of the return of a client.
    fn prepare(&mut self, context: &Context, waits: Option<&mut Attempts>, changes: &Changes) -> FsResult<Preparation> {
        let client = if changes.withdrawn.is_empty() { context.client } else { NOBODY };
        if changes.operations.is_empty() {
            return Ok(Preparation::Ready(CachedParts::default()));
        }
        if context.parameters.cache_locks
            && waits.is_some()
            && !changes.precedes_others
            && let Some(progress) = self.volatile.recovery.others_cache(context.client)
            && !self.cached_parts(changes, |_| true)?.changed().is_empty()
        {
            return Ok(Preparation::Blocked(Obstacle::FormerClients(progress)));
        }
        if self.volatile.cache.lock().is_empty() && self.volatile.opens.presumed.is_empty() {
            return Ok(Preparation::Ready(CachedParts::default()));
        }
        let cached = self.cached_parts(changes, |inode| self.volatile.cache.lock().others_hold(client, inode))?;
        let changed = cached.changed();
        if !self.volatile.cache.lock().others_hold_some(client, &changed) {
            return Ok(Preparation::Ready(cached));
        }
        let Some(attempts) = waits else {
            self.volatile.cache.lock().revoke(client, &changed);
            return Ok(Preparation::Ready(cached));
        };
        // Also what no client has cached yet: no lock on it is granted until the change is made.
        let changed = self.cached_parts(changes, |_| true)?.changed();
        Ok(match self.volatile.cache.lock().prepare(attempts.change, client, &changed) {
            Some(change) => {
                attempts.change = Some(change);
                Preparation::Blocked(Obstacle::Locks(change))
            }
            None => Preparation::Ready(cached),
        })
    }

    fn cached_parts(&self, changes: &Changes, is_cached: impl Fn(InodeNumber) -> bool) -> FsResult<CachedParts> {
        let stored = |table: kv::Table, key: &[u8]| {
            self.store.get(table, key).map_err(|error| store_error(&self.target, &error))
        };
        let mut parts = CachedParts::changed_by(&changes.operations, stored, is_cached)?;
        changes.withdrawn.iter().for_each(|(inode, bits)| parts.add(*inode, *bits));
        Ok(parts)
    }

    /// An operation is done: what it prepared to change can be granted again.
    fn end_change(&mut self, attempts: Option<&mut Attempts>) {
        if let Some(change) = attempts.and_then(|attempts| attempts.change.take()) {
            self.volatile.cache.lock().end(change);
        }
    }

    fn commit(&mut self, changes: Changes, now: Timestamp) -> FsResult<()> {
        invariants::assert_batch(&changes, self.counters, &self.volatile.opens, |inode| self.brief(inode));
        let Changes { operations, versions, names, counters, deferred_operations, .. } = changes;
        let Changes { open, mut early_opens, truncated, removed, releases, lengthened, .. } = changes;
        let Changes { decisions, peers, changed_directories, .. } = changes;
        let mut batch = Batch { operations };
        for (ost, deferred_operation) in &deferred_operations {
            let sequence = self.deferred_log_next.entry(*ost).or_insert(1);
            batch.put(DEFERRED_LOG, deferred_log::key(*ost, *sequence), deferred_operation.encode());
            *sequence += 1;
        }
        for (mdt, decision) in &decisions {
            let sequence = self.decisions_next.entry(*mdt).or_insert(1);
            batch.put(DECISIONS, decision::key(*mdt, *sequence), decision.encode());
            *sequence += 1;
        }
        if counters != self.counters {
            batch.put(COUNTERS, counter::COUNTERS.to_vec(), counters.encode());
        }
        if !batch.operations.is_empty() {
            let applied = if releases { self.store.apply_reserved(batch) } else { self.store.apply(batch) };
            let applied = match applied {
                Ok(applied) => applied,
                Err(error) => {
                    // These numbers were not used: the sequence of an OST has no gaps.
                    for (ost, _) in &deferred_operations {
                        *self.deferred_log_next.get_mut(ost).expect("just counted up") -= 1;
                    }
                    for (mdt, _) in &decisions {
                        *self.decisions_next.get_mut(mdt).expect("just counted up") -= 1;
                    }
                    self.take_back(&mut early_opens);
                    return Err(store_error(&self.target, &error));
                }
            };
            self.change = Change::applied(applied, versions.into_stored(), names, now);
            assert!(applied > self.last, "batch {applied:?} is applied after batch {:?}", self.last);
            self.last = applied;
        }
        self.counters = counters;
        changed_directories.into_iter().for_each(|change| self.volatile.hot.lock().changed(change));
        if let Some(inode) = lengthened {
            self.volatile.lengthened.insert(inode, self.last);
        }
        for (ost, _) in deferred_operations {
            self.wakeup(ost).notify_one();
        }
        for (mdt, _) in decisions {
            self.peer_wakeup(mdt).notify_one();
        }
        peers.into_iter().for_each(|change| self.volatile.peers.apply(change));
        if let Some((key, file)) = open {
            self.volatile.opens.insert(key, file);
        }
        if let Some((key, epoch)) = truncated {
            self.volatile.opens.truncates(key, epoch);
        }
        removed.into_iter().for_each(|(number, deadline)| self.volatile.removed.add(number, deadline));
        Ok(())
    }
}

fn scan(
    store: &Store,
    target: &str,
    table: kv::Table,
    mut visit: impl FnMut(&[u8], &[u8]) -> FsResult<()>,
) -> FsResult<()> {
    let mut outcome = Ok(());
    let scanned = store.scan(table, &[], None, &mut |key, value| {
        outcome = visit(key, value);
        outcome.is_ok()
    });
    scanned.map_err(|error| store_error(target, &error))?;
    outcome
}

#[cfg(test)]
mod tests {
    use kv::{MemoryCold, Supply};
    use rt::memory::{MemoryDevice, MemoryTransport, seams};
    use types::FileKind;

    use super::*;
    use crate::{options::Parameters, tables::inode::tests::sample};

    #[tokio::test]
    async fn what_reads_may_not_do_or_show_beside_others_is_done_alone() {
        let (device, cold) = (Arc::new(MemoryDevice::new()), Arc::new(MemoryCold::new()));
        let seams = seams(&MemoryTransport::new(), 1);
        let store = Store::open(seams, device, cold, kv::Config::small(), &mut |_, _| {}).await.unwrap();
        let inode = sample(FileKind::Regular);
        let mut batch = Batch::default();
        batch.put(COUNTERS, counter::COUNTERS, Counters { next_inode: 9, inodes: 1 }.encode());
        batch.put(INODES, Inode::key(inode.number()), inode.encode());
        let last = store.apply(batch).unwrap();
        let volatile = Volatile::new(Timestamp::default(), 0, 10);
        let store = Arc::new(store);
        let mut namespace = Namespace::load(store, MdtIndex(0), ProcessId::MIN, "test".into(), volatile).unwrap();
        let context = Context {
            client: ClientId(1),
            features: 0,
            now: Timestamp::default(),
            now_ns: 0,
            parameters: Parameters::default(),
            era: 0,
            moved_bytes_max: 0,
            supply: Supply::default(),
        };
        let loading = Loading::default();
        let read = |txn: &mut Transaction<'_>| txn.find_inode(inode.number());
        let change = |txn: &mut Transaction<'_>| {
            txn.put_inode(&inode);
            Ok(())
        };
        assert!(matches!(namespace.look(&context, &loading, read), Some(Attempt::Done(Ok(Some(_))))));
        assert!(namespace.look(&context, &loading, change).is_none(), "it changes something");
        namespace.volatile.lengthened.insert(inode.number(), last);
        assert!(namespace.look(&context, &loading, read).is_none(), "the change must be durable first");
        namespace.volatile.recovery.evicted.insert(context.client);
        let refused = namespace.look(&context, &loading, read);
        assert!(matches!(refused, Some(Attempt::Done(Err(FsError::Evicted)))));
    }
}
