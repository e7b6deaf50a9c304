//! Advisory locks: fcntl and flock. Taking a lock requires an open by the caller's client;
//! releasing one, or asking who holds one, does not.

use lock::{HeldLock, LockAnswer, LockOwner, LockRequest};
use rpc::message::{
    MdtReply,
    mdt::{CancelLock, GetLock, LockMode, SetLock},
};
use types::{ClientId, FsError, FsResult};

use crate::{transaction::Transaction, volatile::Volatile};

pub(crate) fn set(txn: &mut Transaction<'_>, request: &SetLock) -> FsResult<MdtReply> {
    let owner = LockOwner { client: txn.context.client, owner: request.owner };
    if request.mode != LockMode::Unlock {
        txn.inode(request.inode)?;
        if txn.volatile.recovery.running() {
            // Somebody may still come back with a lock that conflicts.
            txn.wait_for(request.inode);
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
        wait: request.wait,
    };
    let mut wake = Vec::new();
    let answer = txn.volatile.locks.set(txn.context.now_ns, &wanted, &mut wake);
    txn.volatile.waiters.wake_granted(&wake);
    match answer? {
        LockAnswer::Granted => Ok(MdtReply::Done),
        LockAnswer::Waiting => {
            txn.wait_for(request.inode);
            Ok(MdtReply::Waiting)
        }
    }
}

pub(crate) fn cancel(txn: &mut Transaction<'_>, request: &CancelLock) -> FsResult<MdtReply> {
    let owner = LockOwner { client: txn.context.client, owner: request.owner };
    let mut wake = Vec::new();
    txn.volatile.locks.cancel(request.inode, request.family, owner, &mut wake);
    txn.volatile.waiters.wake_granted(&wake);
    // Cancelled requests are removed, too.
    txn.volatile.waiters.wake(request.inode);
    Ok(MdtReply::Done)
}

/// Whether a request that waited in its handler has no place in the queue any more: it was
/// cancelled. To run it again would queue it again, and nobody waits for it. (One that waits for
/// the end of recovery has no place either; it asks again.)
pub(crate) fn is_cancelled(volatile: &Volatile, client: ClientId, request: &SetLock) -> bool {
    let owner = LockOwner { client, owner: request.owner };
    request.queues() && !volatile.locks.is_queued(request.inode, request.family, owner)
}

pub(crate) fn get(txn: &mut Transaction<'_>, request: &GetLock) -> FsResult<MdtReply> {
    if request.mode == LockMode::Unlock {
        return Err(FsError::Invalid);
    }
    if txn.volatile.recovery.running() {
        // As for a lock itself.
        txn.wait_for(request.inode);
        return Ok(MdtReply::Waiting);
    }
    let owner = LockOwner { client: txn.context.client, owner: request.owner };
    let held = txn.volatile.locks.test(request.inode, owner, request.range, request.mode)?;
    // The name of another client's session is that client's secret.
    let is_own = |held: &HeldLock| held.client == owner.client;
    Ok(MdtReply::Lock(held.map(|held| if is_own(&held) { held } else { HeldLock { client: ClientId(0), ..held } })))
}
