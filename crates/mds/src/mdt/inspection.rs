//! What simulations see of an MDT without a request: its tables and the volatile state that
//! concerns other servers, as they are now. Read only.
//!
//! Nothing is kept in memory for having been read.
//!
//! Downside: a table is read at once, under the namespace's lock.

use std::collections::{BTreeMap, BTreeSet};

use kv::Table;
use lock::InodeBits;
use rpc::message::ost::ObjectAttributes;
use types::{ClientId, FsResult, InodeNumber, LockHandle, ObjectId, OstIndex, limits::BLOCK_BYTES};

use super::Mdt;
use crate::{
    error::store_error,
    tables::{
        DATA, INODES,
        data::{self, BLOCK, DataKey, ObjectRecord, blocks_of},
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

    /// All bytes of an object on this MDT; none if there is no such object.
    pub fn data_of(&self, object: ObjectId) -> FsResult<Vec<u8>> {
        let Some(attributes) = self.data_attributes(object)? else { return Ok(Vec::new()) };
        let mut bytes = vec![0; attributes.size.next_multiple_of(BLOCK_BYTES) as usize];
        let range = blocks_of(0, attributes.size);
        let (from, to) = (data::block_key(object, range.start), data::block_key(object, range.end));
        self.scan_range(DATA, &from, Some(&to), |key, value| {
            if let DataKey::Block(_, block) = data::decode_key(key)? {
                let start = block as usize * BLOCK;
                data::load_block(value, &mut bytes[start..start + BLOCK])?;
            }
            Ok(())
        })?;
        bytes.truncate(attributes.size as usize);
        Ok(bytes)
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

    /// Whether this start changes nothing that the client may have cached in a former one, because
    /// the client may still come back, or was evicted there and its lease may not have ended.
    pub fn spares(&self, client: ClientId) -> bool {
        let recovery = &self.namespace().volatile.recovery;
        recovery.expected.contains(&client) || recovery.leased.contains(&client)
    }

    /// What a client may cache of an inode by this lock; nothing if this MDT does not know the
    /// lock.
    pub fn cached_by_lock(&self, client: ClientId, inode: InodeNumber, handle: LockHandle) -> InodeBits {
        self.namespace().volatile.cache.lock().held_by_lock(inode, client, handle)
    }

    /// What a client may cache of an inode.
    pub fn cached_by(&self, client: ClientId, inode: InodeNumber) -> InodeBits {
        self.namespace().volatile.cache.lock().held_by(inode, client)
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
