//! The state of one MDT: its tables, what it keeps in memory, and the one way to change both.
//!
//! Held in one mutex by [`crate::Mdt`]; nothing here waits. A change is visible as soon as [`Namespace::transact`] returns;
//! whoever answers for it awaits `written` of [`Namespace::last`] first, readers included: nobody is told of a change that a
//! killed process could forget.

use std::{collections::BTreeMap, sync::Arc};

use kv::{Batch, Lsn, Store};
use rpc::stored_reply;
use tokio::sync::{Notify, futures::OwnedNotified};
use types::{FsResult, MdtIndex, OstIndex};

use crate::{
    error::store_error,
    options::ProcessId,
    tables::{
        COUNTERS, OUTBOX, REPLIES, SESSIONS,
        codec::client_of_key,
        counter::{self, Counters},
        outbox::{self, Errand},
        session::SessionRecord,
    },
    transaction::{Changes, Context, Transaction},
    volatile::Volatile,
};

/// See the module documentation.
pub(crate) struct Namespace {
    /// What is forgotten when the MDT stops.
    pub volatile: Volatile,
    store: Arc<Store>,
    mdt: MdtIndex,
    target: String,
    counters: Counters,
    outbox_next: BTreeMap<OstIndex, u64>,
    bells: BTreeMap<OstIndex, Arc<Notify>>,
    last: Lsn,
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
        let mut outbox_next = BTreeMap::new();
        scan(&store, &target, OUTBOX, |key, value| {
            let (ost, sequence) = outbox::decode_key(key)?;
            outbox_next.insert(ost, sequence + 1);
            if let Errand::Evict(client) = Errand::decode(value)? {
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
        let last = store.last();
        Ok(Self { volatile, store, mdt, target, counters, outbox_next, bells: BTreeMap::new(), last })
    }

    /// The last change, which answers must wait for.
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// Inodes in use.
    pub fn inodes(&self) -> u64 {
        self.counters.inodes
    }

    /// Rung when an OST has something to be told.
    pub fn bell(&mut self, ost: OstIndex) -> Arc<Notify> {
        self.bells.entry(ost).or_default().clone()
    }

    /// Runs an operation; its changes happen together if it succeeds and the store takes them, else none does.
    pub fn transact<T>(
        &mut self,
        context: &Context,
        operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.transact_or_wait(context, operate).map(|(value, _)| value)
    }

    /// As [`Namespace::transact`]; with it, what an operation that could not go on waits for.
    pub fn transact_or_wait<T>(
        &mut self,
        context: &Context,
        operate: impl FnOnce(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<(T, Option<OwnedNotified>)> {
        let mut txn =
            Transaction::new(&mut self.volatile, *context, self.mdt, &self.store, &self.target, self.counters);
        let outcome = operate(&mut txn);
        let mut changes = txn.into_changes();
        let (exclusive, waiter) = (changes.exclusive.take(), changes.waiter.take());
        let outcome = outcome.and_then(|value| self.commit(changes).map(|()| (value, waiter)));
        if outcome.is_err()
            && let Some(inode) = exclusive
            && self.volatile.exclusive.end(inode, context.client).is_ok()
        {
            self.volatile.waiters.wake(inode);
        }
        outcome
    }

    fn commit(&mut self, changes: Changes) -> FsResult<()> {
        let Changes { operations, counters, errands, open, removed, releases, lengthened, .. } = changes;
        let mut batch = Batch { operations };
        // A number that is skipped because the batch fails does no harm.
        for (ost, errand) in &errands {
            let sequence = self.outbox_next.entry(*ost).or_insert(1);
            batch.put(OUTBOX, outbox::key(*ost, *sequence), errand.encode());
            *sequence += 1;
        }
        if counters != self.counters {
            batch.put(COUNTERS, counter::COUNTERS.to_vec(), counters.encode());
        }
        if !batch.operations.is_empty() {
            let applied = if releases { self.store.apply_reserved(batch) } else { self.store.apply(batch) };
            self.last = applied.map_err(|error| store_error(&self.target, &error))?;
        }
        self.counters = counters;
        if let Some(inode) = lengthened {
            self.volatile.lengthened.insert(inode, self.last);
        }
        for (ost, _) in errands {
            self.bell(ost).notify_one();
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
