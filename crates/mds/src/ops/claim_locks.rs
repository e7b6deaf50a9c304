//! ClaimLocks: a client that has connected again, perhaps after a restart of this MDT, keeps the
//! locks under which it cached something that has not changed.
//!
//! The versions decide: an inode has the version that the client knows only if nothing of it was
//! changed since, no matter which clients had locks in between. Changes of names and attributes
//! wait until the clients of the former start are back, so after a restart nearly all claims are
//! granted.
//!
//! Data are not claimed: writing them changes no version.
//!
//! Version numbers are reused after a power loss, so claims from another power-loss era are
//! refused, and so are all claims until the client has reported its opens on this connection, and
//! those that come too late (module [`crate::claims`]).
//! Otherwise a claim is granted if the same lock would be granted with a reply, during a recovery
//! too: what other clients may still reclaim cannot conflict with it, because no client could have
//! this lock while they had theirs.

use lock::{InodeBits, inode_bit};
use rpc::message::{
    MdtReply,
    mdt::{ClaimLocks, LockClaim},
};
use types::FsResult;

use crate::{grants, transaction::Transaction};

const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
const OPEN: InodeBits = InodeBits(inode_bit::OPEN);
const DATA: InodeBits = InodeBits(inode_bit::DATA);

pub(crate) fn run(txn: &mut Transaction<'_>, request: &ClaimLocks) -> FsResult<MdtReply> {
    let client = txn.context.client;
    let is_comparable = request.era == txn.context.era && txn.context.parameters.cache_locks;
    if !is_comparable || txn.volatile.opens.presumed.awaits_registration(client) {
        return Ok(MdtReply::LocksClaimed(vec![None; request.locks.len()]));
    }
    txn.need_inodes(request.locks.iter().map(|claim| claim.inode))?;
    // All are read before the first is granted.
    let grantable: Vec<bool> = request.locks.iter().map(|claim| is_grantable(txn, claim)).collect();
    let claims = request.locks.iter().zip(grantable);
    let granted =
        claims.map(|(claim, is_grantable)| is_grantable.then(|| grants::claim(&txn.volatile, client, claim)).flatten());
    Ok(MdtReply::LocksClaimed(granted.collect()))
}

/// Whether an inode is as the client knows it, and such a lock may be granted of it.
fn is_grantable(txn: &Transaction<'_>, claim: &LockClaim) -> bool {
    // One that is damaged or missing must not fail the others.
    let Ok(Some(inode)) = txn.find_inode(claim.inode) else { return false };
    if txn.volatile.peers.locked_by(claim.inode).is_some() {
        return false;
    }
    let client = txn.context.client;
    let is_switched_off = claim.bits.meets(OPEN) && !txn.context.parameters.open_locks;
    let writes = txn.volatile.opens.of_inode(claim.inode, client).writers > 0;
    inode.version == claim.version
        && inode.attributes.links > 0
        && !is_switched_off
        && !claim.bits.meets(DATA)
        && (!claim.bits.meets(ATTRIBUTES) || inode.size_known || writes)
        && grants::exact(&txn.volatile, client, claim.inode, claim.bits) == claim.bits
}
