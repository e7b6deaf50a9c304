//! A transaction: what one operation sees and changes. Reads see the store and the transaction's
//! own changes; changes are collected and become visible together at commit, or not at all. So an
//! operation that fails leaves nothing behind.
//!
//! Life cycle: [`crate::namespace::Namespace::transact`] begins it under the namespace's lock,
//! runs the operation, seals it (module [`versions`]), and commits if it succeeded. Volatile state
//! that a success changes ([`Transaction::open_at_commit`]) changes at commit; direct changes of
//! `volatile` by an operation persist whatever happens to the batch (a close closes).
//!
//! Downside: changes are searched one by one; a transaction is meant to have tens of them, a few
//! thousand at most.

pub(crate) mod creation;
mod data;
pub(crate) mod entries;
pub(crate) mod inodes;
mod layouts;
mod moving_names;
pub(crate) mod peers;
pub(crate) mod returning_names;
pub(crate) mod savepoint;
pub(crate) mod striping;
mod tracked;
pub(crate) mod versions;
pub(crate) mod xattrs;

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use kv::{Loading, Lsn, Operation, Reads, Store, Supply, Table};
use lock::InodeBits;
use rpc::{
    Call,
    message::{MdtReply, extension::ChangedName, mdt_peer::OperationId},
    stored_reply,
};
use rt::Instant;
use types::{ClientId, DirectoryMap, FsError, FsResult, InodeNumber, MdtIndex, OstIndex, ProtocolError, Timestamp};

use peers::{Need, OfOthers};
use tracked::Tracked;
use versions::Versions;

use crate::{
    error::store_error,
    hot_directories::NamesChange,
    opens::{EarlyOpen, OpenFile, OpenKey},
    options::Parameters,
    peers::PeerChange,
    tables::{self, REPLIES, counter::Counters, decision::Decision, deferred_log::DeferredOperation, inode::Inode},
    volatile::Volatile,
};

/// Changes from which on a transaction is large: with the data of one more file, it is still a
/// batch for any store.
const OPERATIONS_LARGE: usize = 1024;
/// The same of bytes: a part of what one batch can move. With as much as follows an inode
/// ([`Context::following_bytes_max`]), it is still a batch.
const LARGE_PART: u64 = 16;

/// Called with keys and values in order, until it returns false or an error.
pub(crate) type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> FsResult<bool>;

/// Caller and time: the inputs of an operation that are not in the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// The caller.
    pub client: ClientId,
    /// What it understands: bits of [`feature`](rpc::message::session::feature).
    pub features: u64,
    /// Wall-clock time of the operation: one for all its timestamps.
    pub now: Timestamp,
    /// Monotonic time in nanoseconds.
    pub now_ns: u64,
    /// Parameters.
    pub parameters: Parameters,
    /// How often this MDT lost power: see [`crate::known_size`].
    pub era: u64,
    /// Most bytes of data that can be moved from file to file in one batch.
    pub moved_bytes_max: u64,
    /// What the store has room for. Where that is scarce, it is for names: new files that nobody
    /// asked to have data on the MDT get none there.
    pub supply: Supply,
}

impl Context {
    /// Whether the caller understands all of these [`feature`](rpc::message::session::feature)s.
    pub fn knows(&self, features: u64) -> bool {
        self.features & features == features
    }

    /// Bytes of changes from which on a transaction is large.
    pub fn large_bytes(&self) -> u64 {
        self.moved_bytes_max / LARGE_PART
    }

    /// Most bytes of records of other inodes that change in the batch in which an inode moves.
    pub fn following_bytes_max(&self) -> u64 {
        self.moved_bytes_max - self.large_bytes()
    }

    /// The largest number of bytes that a new file gets on the MDT without an explicit request.
    pub fn bytes_on_mdt_by_default(&self) -> u64 {
        if self.supply.scarce { 0 } else { self.parameters.bytes_on_mdt_max }
    }
}

/// See the module documentation.
pub(crate) struct Transaction<'n> {
    /// Opens, locks and so on.
    pub volatile: Tracked<'n>,
    /// Caller and time.
    pub context: Context,
    /// This MDT.
    pub mdt: MdtIndex,
    store: &'n Store,
    target: &'n str,
    changes: Changes,
    /// Of an operation that can be given up; else everything is read at once.
    loading: Option<&'n Loading>,
    /// The last change that lengthened objects of an inode that was looked at, see
    /// [`Volatile::lengthened`].
    lengthened_before: Cell<Option<Lsn>>,
    /// Placement found too few OSTs with room.
    lacks_osts: bool,
    /// What other MDTs have done for this operation.
    others: OfOthers,
    /// Parts of that which were of use.
    used: Vec<OperationId>,
    /// How many of the first parts are not looked at for one more number.
    numbers_taken: usize,
    /// What MDTs have to know that are to prepare a part.
    of_peers: u64,
    /// The operation that holds the tree.
    tree: Option<OperationId>,
    /// What other MDTs have to do first.
    needs: Option<Need>,
    /// It came to what waits for other MDTs.
    awaits_peer: Cell<Option<MdtIndex>>,
    /// The MDT that was chosen for a directory which it makes: attempts of one request choose once,
    /// because others prepare their parts for it in between.
    chosen_mdt: Cell<Option<MdtIndex>>,
    /// It came to a directory that has its names in these shards.
    striped: RefCell<Option<DirectoryMap>>,
    /// The directory in which it looked for a name last, if its names move to shards.
    moving: Cell<Option<InodeNumber>>,
}

/// What a successful operation wants to be changed.
pub(crate) struct Changes {
    /// Tables.
    pub operations: Vec<Operation>,
    /// Versions of the inodes that are changed.
    pub versions: Versions,
    /// Counters, changed or not.
    pub counters: Counters,
    /// Names that it makes, removes, or lets lead elsewhere.
    pub names: Vec<ChangedName>,
    /// Work for OSTs.
    pub deferred_operations: Vec<(OstIndex, DeferredOperation)>,
    /// An open that exists once the batch does.
    pub open: Option<(OpenKey, OpenFile)>,
    /// Opens that exist already, for the later steps of a compound.
    pub early_opens: Vec<EarlyOpen>,
    /// Directories in which it makes or removes names, as far as that is counted.
    pub changed_directories: Vec<NamesChange>,
    /// Inodes that lost their last name, kept until then.
    pub removed: Vec<(InodeNumber, Instant)>,
    /// The epoch that an open is given that truncates.
    pub truncated: Option<(OpenKey, u64)>,
    /// What it has done to the volatile state cannot be done again: it waits for no locks.
    pub is_final: bool,
    /// It waits for locks, but not for clients of the former start that did not come back yet.
    pub precedes_others: bool,
    /// An exclusive data lock taken on the way, to be given back if the batch fails.
    pub exclusive: Option<InodeNumber>,
    /// Takes space away from the store rather than adding to it: may use the reserve of a full
    /// device.
    pub releases: bool,
    /// An inode whose layout its client does not change any more, whatever becomes of the
    /// operation.
    pub decided_layout: Option<InodeNumber>,
    /// Inodes whose writers continue once the batch exists, see [`Volatile::end_hold`].
    pub ended_holds: Vec<InodeNumber>,
    /// A file whose objects get bytes that they did not have.
    pub lengthened: Option<InodeNumber>,
    /// Numbers given to operations of other MDTs: no inode has them yet.
    pub reserved: u64,
    /// Inodes made with such a number.
    pub adopted: u64,
    /// What other MDTs are to carry out.
    pub decisions: Vec<(MdtIndex, Decision)>,
    /// What becomes of operations of several MDTs.
    pub peers: Vec<PeerChange>,
    /// Parts of inodes that no client may have cached when the batch exists, besides what it
    /// changes; not even the one that asks.
    pub withdrawn: Vec<(InodeNumber, InodeBits)>,
}

impl Changes {
    /// Nothing is changed yet.
    pub fn none(counters: Counters) -> Self {
        Changes {
            operations: Vec::new(),
            versions: Versions::default(),
            counters,
            names: Vec::new(),
            deferred_operations: Vec::new(),
            open: None,
            early_opens: Vec::new(),
            changed_directories: Vec::new(),
            removed: Vec::new(),
            truncated: None,
            is_final: false,
            precedes_others: false,
            exclusive: None,
            releases: false,
            decided_layout: None,
            ended_holds: Vec::new(),
            lengthened: None,
            reserved: 0,
            adopted: 0,
            decisions: Vec::new(),
            peers: Vec::new(),
            withdrawn: Vec::new(),
        }
    }
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
        loading: Option<&'n Loading>,
    ) -> Self {
        Self::with(Tracked::new(volatile), context, mdt, store, target, counters, loading)
    }

    /// The same of an operation that only reads, while others do.
    pub fn beside(
        volatile: &'n Volatile,
        context: Context,
        mdt: MdtIndex,
        store: &'n Store,
        target: &'n str,
        counters: Counters,
        loading: &'n Loading,
    ) -> Self {
        Self::with(Tracked::beside(volatile), context, mdt, store, target, counters, Some(loading))
    }

    fn with(
        volatile: Tracked<'n>,
        context: Context,
        mdt: MdtIndex,
        store: &'n Store,
        target: &'n str,
        counters: Counters,
        loading: Option<&'n Loading>,
    ) -> Self {
        Self {
            volatile,
            context,
            mdt,
            store,
            target,
            changes: Changes::none(counters),
            loading,
            lengthened_before: Cell::new(None),
            lacks_osts: false,
            others: OfOthers::default(),
            used: Vec::new(),
            numbers_taken: 0,
            of_peers: 0,
            tree: None,
            needs: None,
            awaits_peer: Cell::new(None),
            chosen_mdt: Cell::new(None),
            striped: RefCell::new(None),
            moving: Cell::new(None),
        }
    }

    /// Whether it may have changed volatile state.
    pub fn has_touched(&self) -> bool {
        self.volatile.touched
    }

    /// Ends it; what was changed is the caller's to apply.
    pub fn into_changes(self) -> Changes {
        self.changes
    }

    /// Wall-clock time of the operation.
    pub fn now(&self) -> Timestamp {
        self.context.now
    }

    /// What an operation fails with that relies on changes which a power loss may have taken.
    pub fn lost_changes(&self) -> FsError {
        let detail = "changes that were not synced may have been lost when its host lost power".to_owned();
        FsError::Device { target: self.target.to_owned(), detail }
    }

    /// What a request for data fails with that is none of `accepted`.
    pub fn misdirected(&self, accepted: &'static str) -> FsError {
        ProtocolError::misdirected(self.target, accepted).into()
    }

    /// Whether any table changes.
    pub fn changes_tables(&self) -> bool {
        !self.changes.operations.is_empty() || !self.changes.deferred_operations.is_empty()
    }

    /// The reply of a change joins its batch, so that a repetition after a restart finds it.
    /// Nothing is kept for what changed nothing.
    pub fn keep_reply(&mut self, call: &Call, reply: &MdtReply) -> FsResult<()> {
        if self.changes_tables() {
            let key = stored_reply::key(call.client, call.slot).to_vec();
            self.put(REPLIES, key, stored_reply::encode(call.xid, reply)?);
        }
        Ok(())
    }

    /// Whether it changes so much that what can go into another transaction should.
    pub fn is_large(&self) -> bool {
        let operations = &self.changes.operations;
        let bytes = || operations.iter().map(|operation| operation.bytes() as u64).sum::<u64>();
        operations.len() >= OPERATIONS_LARGE || bytes() >= self.context.large_bytes()
    }

    /// Fails if this open, of an inode or of a new one, would be one too many.
    pub fn check_open_limit(&self, key: OpenKey, inode: Option<InodeNumber>) -> FsResult<()> {
        self.volatile.opens.check_limit(self.target, key, inode)
    }

    /// The same for an open that the client has already.
    pub fn check_limit_of_claimed_opens(&self, key: OpenKey, inode: InodeNumber) -> FsResult<()> {
        self.volatile.opens.check_limit_of_claimed(self.target, key, inode)
    }

    /// The open exists once the batch is applied.
    pub fn open_at_commit(&mut self, key: OpenKey, file: OpenFile) {
        assert!(self.changes.open.is_none(), "an operation opens one file at most");
        self.changes.open = Some((key, file));
    }

    /// Ends an open, whether it is as old as this transaction or older.
    pub fn remove_open(&mut self, key: OpenKey) -> Option<OpenFile> {
        self.changes.early_opens.retain(|early| early.key != key);
        self.volatile.remove_open(key)
    }

    /// This is counted once the batch is applied.
    pub fn names_change_in(&mut self, change: NamesChange) {
        self.changes.changed_directories.push(change);
    }

    /// The inode, which has no name any more, is kept for the grace once the batch is applied.
    pub fn keep_removed(&mut self, number: InodeNumber) {
        let is_kept = self.changes.removed.iter().any(|(kept, _)| *kept == number);
        assert!(!is_kept, "inode {number} loses its last name once");
        let deadline = Instant(self.context.now_ns) + self.context.parameters.removal_grace;
        self.changes.removed.push((number, deadline));
    }

    /// The open is given this epoch, and truncates, once the batch is applied.
    pub fn truncate_at_commit(&mut self, key: OpenKey, epoch: u64) {
        assert!(self.changes.truncated.is_none(), "an operation truncates through one open at most");
        self.changes.truncated = Some((key, epoch));
    }

    /// From here on the operation changes the volatile state in a way that it cannot repeat, so it
    /// must not be tried again: it does not wait for locks under which others cache what it
    /// changes. There are none, since no client is granted the attributes of a file that is being
    /// written, or anything of one without a name; except of a client that is gone.
    pub fn must_not_wait(&mut self) {
        self.changes.is_final = true;
    }

    /// A client comes back with what it had: it waits for locks that others have claimed, and can
    /// be tried again, but it does not wait for clients that did not come back yet. They may wait
    /// for this one.
    pub fn must_not_wait_for_clients(&mut self) {
        self.changes.precedes_others = true;
    }

    /// An exclusive data lock was taken: it is given back if the operation fails.
    pub fn took_exclusive(&mut self, inode: InodeNumber) {
        assert!(self.changes.exclusive.is_none(), "an operation takes one exclusive data lock at most");
        self.changes.exclusive = Some(inode);
    }

    /// The change of this inode's layout that the client has begun ends with the operation.
    pub fn decide_layout(&mut self, inode: InodeNumber) {
        self.changes.decided_layout = Some(inode);
    }

    /// Writers of an inode continue if this succeeds. Not before: the change may still wait for
    /// locks of other clients.
    pub fn end_hold(&mut self, inode: InodeNumber) {
        self.changes.ended_holds.push(inode);
    }

    /// The operation is not possible before this inode's locks, opens or layout change: its client
    /// is told then.
    pub fn wait_for(&mut self, inode: InodeNumber) {
        let client = self.context.client;
        self.volatile.waiters.wait(inode, client);
    }

    /// The operation is not possible before recovery has ended: its client is told then.
    pub fn wait_for_recovery(&mut self) {
        let client = self.context.client;
        self.volatile.waiters.wait_for_start(client);
    }

    /// This operation gives space back: it may use the store's reserve.
    pub fn release_space(&mut self) {
        self.changes.releases = true;
    }

    /// Its changes also need space: it must not use the reserve.
    pub fn needs_space(&mut self) {
        self.changes.releases = false;
    }

    /// Whether it failed, or got less than it asked for, because too few OSTs seem to have room.
    pub fn lacks_osts(&self) -> bool {
        self.lacks_osts
    }

    /// What must be durable before any client is told of the layouts seen here: `Some(None)` if
    /// that is this transaction.
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
    pub fn tell(&mut self, ost: OstIndex, deferred_operation: DeferredOperation) {
        self.changes.deferred_operations.push((ost, deferred_operation));
    }

    /// Value of a key.
    pub fn get(&self, table: Table, key: &[u8]) -> FsResult<Option<Bytes>> {
        match self.changed(table, key) {
            Some(Operation::Put(_, _, value)) => Ok(Some(value.clone())),
            Some(Operation::Delete(..)) => Ok(None),
            None => self.stored(table, key),
        }
    }

    /// The store as this attempt reads it: it must not wait for the cold store while it can still
    /// be given up.
    fn reads(&self) -> Reads<'n> {
        let reads = self.store.reads(self.loading);
        if self.volatile.touched { reads.at_once() } else { reads }
    }

    /// Value of a key as the store has it.
    fn stored(&self, table: Table, key: &[u8]) -> FsResult<Option<Bytes>> {
        self.reads().get(table, key).map_err(|error| store_error(self.target, &error))
    }

    /// Makes sure that these keys can be read: what is missing is loaded together, not one by one.
    pub fn need(&self, table: Table, keys: impl Iterator<Item = Vec<u8>>) -> FsResult<()> {
        let (reads, mut outcome) = (self.reads(), Ok(()));
        for key in keys {
            if self.changed(table, &key).is_none() {
                outcome = reads.need(table, &key).map_err(|error| store_error(self.target, &error)).and(outcome);
            }
        }
        outcome
    }

    /// As [`Transaction::need`], of inodes.
    pub fn need_inodes(&self, numbers: impl Iterator<Item = InodeNumber>) -> FsResult<()> {
        self.need(tables::INODES, numbers.map(Inode::key))
    }

    /// Bytes of an inode's record; 0 if there is none.
    pub fn record_bytes(&self, number: InodeNumber) -> FsResult<u64> {
        Ok(self.get(tables::INODES, &Inode::key(number))?.map_or(0, |record| record.len() as u64))
    }

    /// Visits keys as the store has them.
    fn scan_stored(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &Bytes) -> bool,
    ) -> FsResult<()> {
        self.reads().scan(table, from, to, visit).map_err(|error| store_error(self.target, &error))
    }

    /// Creates or replaces.
    pub fn put(&mut self, table: Table, key: Vec<u8>, value: impl Into<Bytes>) {
        self.changes.versions.touch(table, &key);
        self.changes.operations.push(Operation::Put(table, key.into(), value.into()));
    }

    /// Removes.
    pub fn delete(&mut self, table: Table, key: Vec<u8>) {
        self.changes.versions.touch(table, &key);
        self.changes.operations.push(Operation::Delete(table, key.into()));
    }

    /// Visits keys in `from..to` in order until `visit` returns false or an error. `to` of `None`:
    /// the table's end.
    pub fn scan(&self, table: Table, from: &[u8], to: Option<&[u8]>, visit: Visit<'_>) -> FsResult<()> {
        let mut own = self.own_puts(table, from, to).into_iter().peekable();
        let mut outcome = Ok(true);
        let scanned = self.scan_stored(table, from, to, &mut |key, value| {
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
        scanned?;
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
