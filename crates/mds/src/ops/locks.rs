//! Advisory locks: fcntl and flock. Taking a lock requires an open by the caller's client;
//! releasing one, or asking for the holder of one, does not.

use lock::{HeldLock, LockAnswer, LockOwner, LockRequest};
use rpc::message::{
    MdtReply,
    mdt::{CancelLock, GetLock, LockMode, SetLock},
};
use types::{ClientId, FsError, FsResult};

use crate::transaction::Transaction;

pub(crate) fn set(txn: &mut Transaction<'_>, request: &SetLock) -> FsResult<MdtReply> {
    let owner = LockOwner { client: txn.context.client, owner: request.owner };
    if request.mode != LockMode::Unlock {
        txn.inode(request.inode)?;
        if txn.volatile.recovery.running() {
            // A client may still come back with a lock that conflicts.
            txn.wait_for_recovery();
            return Ok(MdtReply::Waiting);
        }
        txn.require_open(request.inode)?;
    }
    let wanted = LockRequest {
        inode: request.inode,
        family: request.family,
        owner,
        pid: request.pid,
        range: request.range,
        mode: request.mode,
        ticket: request.ticket,
    };
    let mut completed = Vec::new();
    let answer = txn.volatile.locks.set(&wanted, &mut completed);
    txn.volatile.waiters.complete(completed);
    match answer? {
        LockAnswer::Granted => Ok(MdtReply::Done),
        LockAnswer::Queued => Ok(MdtReply::Queued),
    }
}

pub(crate) fn cancel(txn: &mut Transaction<'_>, request: &CancelLock) -> FsResult<MdtReply> {
    let CancelLock { inode, family, ticket } = *request;
    let client = txn.context.client;
    if txn.volatile.cancel_wait(inode, family, client, ticket) { Ok(MdtReply::Done) } else { Err(FsError::NotFound) }
}

pub(crate) fn get(txn: &mut Transaction<'_>, request: &GetLock) -> FsResult<MdtReply> {
    if request.mode == LockMode::Unlock {
        return Err(FsError::Invalid);
    }
    if txn.volatile.recovery.running() {
        // As for a lock itself.
        txn.wait_for_recovery();
        return Ok(MdtReply::Waiting);
    }
    let owner = LockOwner { client: txn.context.client, owner: request.owner };
    let held = txn.volatile.locks.test(request.inode, owner, request.range, request.mode)?;
    // The name of another client's session is that client's secret.
    let is_own = |held: &HeldLock| held.client == owner.client;
    Ok(MdtReply::Lock(held.map(|held| if is_own(&held) { held } else { HeldLock { client: ClientId(0), ..held } })))
}
