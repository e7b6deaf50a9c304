//! A transaction: what one operation sees and changes. Reads see the store and the transaction's own changes; changes are
//! collected and become visible together at commit, or not at all. So an operation that fails leaves nothing behind.
//!
//! Life cycle: [`crate::namespace::Namespace::transact`] begins it under the namespace's mutex, runs the operation, and
//! commits if it succeeded. Volatile state that a success changes ([`Transaction::open_at_commit`]) changes then; what an
//! operation changes in `volatile` directly holds whatever becomes of the batch (a close closes).
//!
//! Downside: changes are searched one by one; a transaction is meant to hold tens of them, a few thousand at most.

mod creation;
mod data;
mod entries;
mod inodes;
mod layouts;
mod xattrs;

use std::cell::Cell;

use bytes::Bytes;
use kv::{Lsn, Operation, Store, Supply, Table};
use rpc::{Call, message::MdtReply, stored_reply};
use rt::Instant;
use tokio::sync::futures::OwnedNotified;
use types::{ClientId, FsResult, InodeNumber, MdtIndex, OstIndex, Timestamp};

pub(crate) use creation::{DIRECTORY_BYTES, NewInode, check_kind, own_default};
pub(crate) use data::blocks_of;
pub(crate) use entries::{FoundEntry, is_dots};

use crate::{
    error::store_error,
    opens::{OpenFile, OpenKey},
    options::Parameters,
    tables::{self, REPLIES, counter::Counters, outbox::Errand},
    volatile::Volatile,
};

/// Changes from which on a transaction is large: with the data of one more file, it is still a batch for any store.
const OPERATIONS_LARGE: usize = 1024;

/// Called with keys and values in order, until it returns false or an error.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> FsResult<bool>;

/// Who and when: what an operation does not take from the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// Who asks.
    pub client: ClientId,
    /// Wall-clock time of the operation: one for all its timestamps.
    pub now: Timestamp,
    /// Monotonic time in nanoseconds.
    pub now_ns: u64,
    /// Parameters.
    pub parameters: Parameters,
    /// How often this MDT lost power: see [`crate::settlement`].
    pub losses: u64,
    /// Most bytes of data that can be moved from file to file in one batch.
    pub moved_bytes_max: u64,
    /// What the store has room for. Where that is scarce, it is for names: new files that nobody asked to have data on the MDT get
    /// none there.
    pub supply: Supply,
}

impl Context {
    /// Most bytes that a new file gets on the MDT without anybody having asked for it now.
    pub fn bytes_on_mdt_by_default(&self) -> u64 {
        if self.supply.scarce { 0 } else { self.parameters.bytes_on_mdt_max }
    }
}

/// See the module documentation.
pub(crate) struct Transaction<'n> {
    /// Opens, locks and so on.
    pub volatile: &'n mut Volatile,
    /// Who and when.
    pub context: Context,
    /// This MDT.
    pub mdt: MdtIndex,
    store: &'n Store,
    target: &'n str,
    changes: Changes,
    /// The last change that lengthened objects of an inode that was looked at, see [`Volatile::lengthened`].
    lengthened_before: Cell<Option<Lsn>>,
    /// Placement found too few OSTs with room.
    lacks_osts: bool,
}

/// What a successful operation wants to be changed.
pub(crate) struct Changes {
    /// Tables.
    pub operations: Vec<Operation>,
    /// Counters, changed or not.
    pub counters: Counters,
    /// Work for OSTs.
    pub errands: Vec<(OstIndex, Errand)>,
    /// An open that exists once the batch does.
    pub open: Option<(OpenKey, OpenFile)>,
    /// Inodes that lost their last name, kept until then.
    pub removed: Vec<(InodeNumber, Instant)>,
    /// An exclusive data lock taken on the way, to be given back if the batch fails.
    pub exclusive: Option<InodeNumber>,
    /// The next change of the locks that this operation must wait for.
    pub waiter: Option<OwnedNotified>,
    /// Takes space away from the store rather than adding to it: may use the reserve of a full device.
    pub releases: bool,
    /// A file whose objects get bytes that they did not have.
    pub lengthened: Option<InodeNumber>,
}

impl<'n> Transaction<'n> {
    /// Begins with nothing changed.
    pub fn new(
        volatile: &'n mut Volatile,
        context: Context,
        mdt: MdtIndex,
        store: &'n Store,
        target: &'n str,
        counters: Counters,
    ) -> Self {
        let changes = Changes {
            operations: Vec::new(),
            counters,
            errands: Vec::new(),
            open: None,
            removed: Vec::new(),
            exclusive: None,
            waiter: None,
            releases: false,
            lengthened: None,
        };
        Self { volatile, context, mdt, store, target, changes, lengthened_before: Cell::new(None), lacks_osts: false }
    }

    /// Ends it; what was changed is the caller's to apply.
    pub fn into_changes(self) -> Changes {
        self.changes
    }

    /// Wall-clock time of the operation.
    pub fn now(&self) -> Timestamp {
        self.context.now
    }

    /// Whether any table changes.
    pub fn changes_tables(&self) -> bool {
        !self.changes.operations.is_empty() || !self.changes.errands.is_empty()
    }

    /// The reply of a change joins its batch, so that a repetition after a restart finds it. Nothing is kept for what changed
    /// nothing.
    pub fn keep_reply(&mut self, call: &Call, reply: &MdtReply) -> FsResult<()> {
        if self.changes_tables() {
            let key = stored_reply::key(call.client, call.slot).to_vec();
            self.put(REPLIES, key, stored_reply::encode(call.xid, reply)?);
        }
        Ok(())
    }

    /// Whether it changes so much that what can go into another transaction should.
    pub fn is_large(&self) -> bool {
        self.changes.operations.len() >= OPERATIONS_LARGE
    }

    /// The open exists once the batch is applied.
    pub fn open_at_commit(&mut self, key: OpenKey, file: OpenFile) {
        self.changes.open = Some((key, file));
    }

    /// The inode, which has no name any more, is kept for the grace once the batch is applied.
    pub fn keep_removed(&mut self, number: InodeNumber) {
        let deadline = Instant(self.context.now_ns) + self.context.parameters.removal_grace;
        self.changes.removed.push((number, deadline));
    }

    /// An exclusive data lock was taken: it is given back if the operation fails.
    pub fn took_exclusive(&mut self, inode: InodeNumber) {
        self.changes.exclusive = Some(inode);
    }

    /// The operation cannot go on before this inode's locks change.
    pub fn wait_for(&mut self, inode: InodeNumber) {
        self.changes.waiter = Some(self.volatile.waiters.wait(inode));
    }

    /// This operation gives space back: it may use the store's reserve.
    pub fn release_space(&mut self) {
        self.changes.releases = true;
    }

    /// Whether it failed, or got less than it asked for, because too few OSTs seem to have room.
    pub fn lacks_osts(&self) -> bool {
        self.lacks_osts
    }

    /// What must be durable before anybody is told of the layouts seen here: `Some(None)` if that is this transaction.
    pub fn lengthened(&self) -> Option<Option<Lsn>> {
        match self.changes.lengthened {
            Some(_) => Some(None),
            None => self.lengthened_before.get().map(Some),
        }
    }

    /// This inode is looked at.
    fn note_lengthened(&self, number: InodeNumber) {
        let of_inode = self.volatile.lengthened.get(&number).copied();
        self.lengthened_before.set(self.lengthened_before.get().max(of_inode));
    }

    /// Something an OST must be told.
    pub fn tell(&mut self, ost: OstIndex, errand: Errand) {
        self.changes.errands.push((ost, errand));
    }

    /// Value of a key.
    pub fn get(&self, table: Table, key: &[u8]) -> FsResult<Option<Bytes>> {
        match self.changed(table, key) {
            Some(Operation::Put(_, _, value)) => Ok(Some(value.clone())),
            Some(Operation::Delete(..)) => Ok(None),
            None => self.store.get(table, key).map_err(|error| store_error(self.target, &error)),
        }
    }

    /// Creates or replaces.
    pub fn put(&mut self, table: Table, key: Vec<u8>, value: impl Into<Bytes>) {
        self.changes.operations.push(Operation::Put(table, key.into(), value.into()));
    }

    /// Removes.
    pub fn delete(&mut self, table: Table, key: Vec<u8>) {
        self.changes.operations.push(Operation::Delete(table, key.into()));
    }

    /// Visits keys in `from..to` in order until `visit` returns false or an error. `to` of `None`: the table's end.
    pub fn scan(&self, table: Table, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> FsResult<()> {
        let mut own = self.own_puts(table, from, to).into_iter().peekable();
        let mut outcome = Ok(true);
        let scanned = self.store.scan(table, from, to, &mut |key, value| {
            while let Some((own_key, own_value)) = own.next_if(|(own_key, _)| *own_key < key) {
                outcome = visit(own_key, own_value);
                if !matches!(outcome, Ok(true)) {
                    return false;
                }
            }
            outcome = match self.changed(table, key) {
                Some(Operation::Delete(..)) => Ok(true),
                Some(Operation::Put(_, _, changed)) => {
                    own.next();
                    visit(key, changed)
                }
                None => visit(key, value),
            };
            matches!(outcome, Ok(true))
        });
        scanned.map_err(|error| store_error(self.target, &error))?;
        while outcome? {
            let Some((key, value)) = own.next() else { break };
            outcome = visit(key, value);
        }
        Ok(())
    }

    /// Visits keys that begin with `prefix`.
    pub fn scan_prefix(&self, table: Table, prefix: &[u8], visit: Visit<'_>) -> FsResult<()> {
        self.scan(table, prefix, tables::prefix_end(prefix).as_deref(), visit)
    }

    /// Removes all keys that begin with `prefix`.
    pub fn delete_prefix(&mut self, table: Table, prefix: &[u8]) -> FsResult<()> {
        let mut keys = Vec::new();
        self.scan_prefix(table, prefix, &mut |key, _| {
            keys.push(key.to_vec());
            Ok(true)
        })?;
        keys.into_iter().for_each(|key| self.delete(table, key));
        Ok(())
    }

    /// The last change of a key by this transaction.
    fn changed(&self, table: Table, key: &[u8]) -> Option<&Operation> {
        self.changes.operations.iter().rev().find(|operation| match operation {
            Operation::Put(of, changed, _) | Operation::Delete(of, changed) => *of == table && changed == key,
        })
    }

    /// Keys in a range that this transaction has put and not deleted again, in order.
    fn own_puts(&self, table: Table, from: &[u8], to: Option<&[u8]>) -> Vec<(&[u8], &[u8])> {
        let within = |key: &[u8]| key >= from && to.is_none_or(|to| key < to);
        let mut puts: Vec<(&[u8], &[u8])> = self
            .changes
            .operations
            .iter()
            .filter_map(|operation| match operation {
                Operation::Put(of, key, value) if *of == table && within(key) => Some((&key[..], &value[..])),
                _ => None,
            })
            .collect();
        puts.reverse();
        puts.sort_by_key(|(key, _)| *key);
        puts.dedup_by_key(|(key, _)| *key);
        puts.retain(|(key, _)| matches!(self.changed(table, key), Some(Operation::Put(..))));
        puts
    }
}
