//! The state of one MDT: its tables, its volatile state, and the only way to change both.
//!
//! Held in one mutex by [`crate::Mdt`]. Nothing here waits, except for reads of the cold store,
//! which operations avoid by giving up their attempt ([`Namespace::attempt`]). A change is visible
//! as soon as [`Namespace::transact`] returns. Before a reply is sent, even to a reader, `written`
//! of [`Namespace::last`] is awaited, so that no reply shows a change that a killed process could
//! forget.

use std::{collections::BTreeMap, sync::Arc};

use kv::{Batch, Loading, Lsn, Store};
use rpc::stored_reply;
use tokio::sync::{Notify, futures::OwnedNotified};
use types::{ClientId, FsError, FsResult, InodeNumber, MdtIndex, OstIndex, Timestamp};

use crate::{
    audit::Touched,
    error::store_error,
    invariants,
    options::ProcessId,
    tables::{
        COUNTERS, DEFERRED_LOG, INODES, REPLIES, SESSIONS,
        codec::client_of_key,
        counter::{self, Counters},
        deferred_log::{self, DeferredOperation},
        inode::{Brief, Inode},
        session::SessionRecord,
    },
    transaction::{Changes, Context, Transaction, versions::Change},
    volatile::{Recovery, Volatile},
};

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
    audits: bool,
    last: Lsn,
    change: Change,
}

/// How an attempt of an operation ended.
pub(crate) enum Attempt<T> {
    /// It is done, or failed; with it what an operation that could not continue waits for.
    Done(FsResult<(T, Option<OwnedNotified>)>),
    /// It needs what is not in memory: nothing has happened, and it is to be tried again once
    /// [`Loading`] has what it missed.
    GivenUp,
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
        let mut deferred_log_next = BTreeMap::new();
        scan(&store, &target, COUNTERS, |key, value| {
            if let Some(ost) = counter::parse_delivered_key(key) {
                deferred_log_next.insert(ost, counter::decode_delivered(value)?.saturating_add(1));
            }
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

    /// An inode as the tables have it.
    fn brief(&self, inode: InodeNumber) -> Option<Brief> {
        self.store.get(INODES, &Inode::key(inode)).ok()?.and_then(|value| Brief::of(&value).ok())
    }

    /// Name of this target.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Inodes in use.
    pub fn inodes(&self) -> u64 {
        self.counters.inodes
    }

    /// Rung when an OST has something to be told.
    pub fn wakeup(&mut self, ost: OstIndex) -> Arc<Notify> {
        self.wakeups.entry(ost).or_default().clone()
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
        self.transact_or_wait(context, operate).map(|(value, _)| value)
    }

    /// As [`Namespace::transact`]; with it, what an operation that could not continue waits for.
    pub fn transact_or_wait<T>(
        &mut self,
        context: &Context,
        operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<(T, Option<OwnedNotified>)> {
        match self.attempt(context, None, operate) {
            Attempt::Done(outcome) => outcome,
            Attempt::GivenUp => unreachable!("without a limit to its reads no attempt is given up"),
        }
    }

    /// As [`Namespace::transact_or_wait`], but reads only what is in memory or was loaded; without
    /// `loading`: everything.
    pub fn attempt<T>(
        &mut self,
        context: &Context,
        loading: Option<&Loading>,
        operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<T>,
    ) -> Attempt<T> {
        if let Err(error) = self.check_session(context.client) {
            return Attempt::Done(Err(error));
        }
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
        let mut changes = txn.into_changes();
        self.change = Change::default();
        let (exclusive, waiter) = (changes.exclusive.take(), changes.waiter.take());
        let touched = (self.audits && !changes.operations.is_empty()).then(|| Touched::by(&changes));
        if let (Some(touched), Ok(_)) = (&touched, &outcome) {
            touched.assert_versions(|inode| self.brief(inode));
        }
        let outcome = outcome.and_then(|value| self.commit(changes, context.now).map(|()| (value, waiter)));
        if let Some(touched) = touched.filter(|_| outcome.is_ok()) {
            let (volatile, counters) = (&mut self.volatile, self.counters);
            let mut txn = Transaction::new(volatile, *context, self.mdt, &self.store, &self.target, counters, None);
            touched.assert_sound(&mut txn);
        }
        if outcome.is_err()
            && let Some(inode) = exclusive
            && self.volatile.exclusive.end(inode, context.client).is_ok()
        {
            self.volatile.waiters.wake(inode);
        }
        Attempt::Done(outcome)
    }

    fn commit(&mut self, changes: Changes, now: Timestamp) -> FsResult<()> {
        invariants::assert_batch(&changes, self.counters, &self.volatile.opens, |inode| self.brief(inode));
        let Changes { operations, versions, counters, deferred_operations, .. } = changes;
        let Changes { open, early_opens, removed, releases, lengthened, .. } = changes;
        let mut batch = Batch { operations };
        for (ost, deferred_operation) in &deferred_operations {
            let sequence = self.deferred_log_next.entry(*ost).or_insert(1);
            batch.put(DEFERRED_LOG, deferred_log::key(*ost, *sequence), deferred_operation.encode());
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
                    early_opens.into_iter().rev().for_each(|early| early.take_back(&mut self.volatile.opens));
                    return Err(store_error(&self.target, &error));
                }
            };
            self.change = Change::applied(applied, versions.into_stored(), now);
            assert!(applied > self.last, "batch {applied:?} is applied after batch {:?}", self.last);
            self.last = applied;
        }
        self.counters = counters;
        if let Some(inode) = lengthened {
            self.volatile.lengthened.insert(inode, self.last);
        }
        for (ost, _) in deferred_operations {
            self.wakeup(ost).notify_one();
        }
        if let Some((key, file)) = open {
            self.volatile.opens.insert(key, file);
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
