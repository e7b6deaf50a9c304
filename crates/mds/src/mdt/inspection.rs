//! What simulations see of an MDT without a request: its tables and the volatile state that
//! concerns other servers, as they are now. Read only.
//!
//! Nothing is kept in memory for having been read.
//!
//! Downside: a table is read at once, under the namespace's mutex.

use std::collections::{BTreeMap, BTreeSet};

use kv::Table;
use lock::InodeBits;
use rpc::message::ost::ObjectAttributes;
use types::{ClientId, FsResult, InodeNumber, LockHandle, ObjectId, OstIndex};

use super::Mdt;
use crate::{
    error::store_error,
    tables::{
        DATA, INODES,
        data::{self, ObjectRecord},
        inode::Inode,
    },
};

impl Mdt {
    /// Calls `visit` with the key and value of every record of a table, in order, until it returns
    /// an error. What is applied counts, whether or not a crash would take it.
    pub fn scan_table(&self, table: Table, visit: impl FnMut(&[u8], &[u8]) -> FsResult<()>) -> FsResult<()> {
        self.scan_range(table, &[], None, visit)
    }

    /// What the MDT holds of a file's data: size, blocks and changes of the object.
    pub fn data_attributes(&self, object: ObjectId) -> FsResult<Option<ObjectAttributes>> {
        let key = data::object_key(object);
        // Keys of its blocks begin with this one, and are longer.
        let after: Vec<u8> = key.iter().copied().chain([0]).collect();
        let mut found = None;
        self.scan_range(DATA, &key, Some(&after), |_, value| {
            found = Some(ObjectRecord::decode(value)?.attributes());
            Ok(())
        })?;
        Ok(found)
    }

    fn scan_range(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        mut visit: impl FnMut(&[u8], &[u8]) -> FsResult<()>,
    ) -> FsResult<()> {
        let _namespace = self.namespace();
        let mut outcome = Ok(());
        let scanned = self.store.scan(table, from, to, &mut |key, value| {
            outcome = visit(key, value);
            outcome.is_ok()
        });
        scanned.map_err(|error| store_error(&self.target, &error))?;
        outcome
    }

    /// What a client may cache of an inode by this lock; nothing if this MDT does not know the lock.
    pub fn cached_by_lock(&self, client: ClientId, inode: InodeNumber, handle: LockHandle) -> InodeBits {
        self.namespace().volatile.cache.held_by_lock(inode, client, handle)
    }

    /// Whether an inode exists. What is not in memory is read.
    pub fn has_inode(&self, inode: InodeNumber) -> bool {
        let key = Inode::key(inode);
        let after: Vec<u8> = key.iter().copied().chain([0]).collect();
        let mut found = false;
        let scanned = self.scan_range(INODES, &key, Some(&after), |_, _| {
            found = true;
            Ok(())
        });
        scanned.is_ok() && found
    }

    /// Evicted clients whose locks are kept, and the OSTs in use that may not refuse them yet.
    pub fn fences(&self) -> BTreeMap<ClientId, BTreeSet<OstIndex>> {
        self.namespace().volatile.fences.pending().clone()
    }

    /// Those of these inodes whose exclusive data lock is held, and by which client.
    pub fn exclusive_holders(&self, inodes: impl Iterator<Item = InodeNumber>) -> Vec<(InodeNumber, ClientId)> {
        let namespace = self.namespace();
        inodes.filter_map(|inode| Some((inode, namespace.volatile.exclusive.holder(inode)?))).collect()
    }
}
