//! Operations on names and inodes of several MDTs, within a transaction.

use std::mem;

use lock::InodeBits;
use rpc::message::mdt_peer::{OperationId, Part};
use types::{FsError, FsResult, InodeNumber, MdtIndex};

use super::Transaction;
use crate::{
    peers::{PeerChange, PreparedOperation},
    tables::decision::Decision,
};

impl Transaction<'_> {
    /// What another MDT has prepared for this operation.
    pub fn set_prepared(&mut self, prepared: Option<&PreparedOperation>) {
        self.prepared = prepared.cloned();
    }

    /// What another MDT has to prepare before this operation can succeed; it is to be asked once
    /// all that this MDT knows allows the operation.
    pub fn take_needs(&mut self) -> Option<(MdtIndex, Part)> {
        self.needs.take()
    }

    /// The operation and its inode, if another MDT has prepared this part. An error that is no
    /// answer otherwise: it is asked, and the operation is tried again.
    pub fn prepared(&mut self, peer: MdtIndex, part: Part) -> FsResult<(OperationId, InodeNumber)> {
        assert_ne!(peer, self.mdt, "other MDTs prepare their parts");
        if let Some(found) = &self.prepared
            && self.volatile.peers.can_decide(found, peer, &part)
        {
            return Ok((found.operation, found.prepared.inode));
        }
        self.needs = Some((peer, part));
        Err(FsError::Busy)
    }

    /// The batch decides an operation of this MDT, and another one carries this out.
    pub fn decide(&mut self, peer: MdtIndex, decision: Decision) {
        self.change_peers(PeerChange::Decided(decision.operation.number));
        self.changes.decisions.push((peer, decision));
    }

    /// To be done when the batch is applied.
    pub fn change_peers(&mut self, change: PeerChange) {
        self.changes.peers.push(change);
    }

    /// No client may have these parts of an inode cached when the batch is applied.
    pub fn withdraw(&mut self, inode: InodeNumber, bits: InodeBits) {
        self.changes.withdrawn.push((inode, bits));
    }

    /// The operation has come to what this other MDT has in doubt: it is tried again when that is
    /// known. One that cannot wait fails.
    pub fn wait_for_peer<T>(&self, mdt: MdtIndex) -> FsResult<T> {
        if self.loading.is_some() && !self.has_touched() {
            self.awaits_peer.set(Some(mdt));
        }
        Err(FsError::Busy)
    }

    /// The MDT for which it waits: what it fails with is no answer.
    pub fn awaits_peer(&self) -> Option<MdtIndex> {
        self.awaits_peer.get()
    }

    /// A number never used before, for an inode that another MDT may decide to make.
    pub fn reserve_number(&mut self) -> InodeNumber {
        let counters = &mut self.changes.counters;
        let number = InodeNumber::new(self.mdt, counters.next_inode);
        counters.next_inode += 1;
        self.changes.reserved += 1;
        number
    }

    /// An inode is made with a number that was reserved before.
    pub fn adopt_number(&mut self, number: InodeNumber) {
        let counters = &mut self.changes.counters;
        // Only a store that is older than its decisions has not given it yet.
        let next = counters.next_inode.max(number.counter() + 1);
        self.changes.reserved += next - mem::replace(&mut counters.next_inode, next);
        counters.inodes += 1;
        self.changes.adopted += 1;
    }
}
