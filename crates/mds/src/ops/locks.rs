//! Advisory locks: fcntl and flock.

use lock::{LockAnswer, LockOwner, LockRequest};
use rpc::message::{
    MdtReply,
    mdt::{CancelLock, GetLock, LockMode, SetLock},
};
use types::{FsError, FsResult};

use crate::transaction::Transaction;

pub(crate) fn set(txn: &mut Transaction<'_>, request: &SetLock) -> FsResult<MdtReply> {
    let owner = LockOwner { client: txn.context.client, owner: request.owner };
    if request.mode != LockMode::Unlock {
        txn.inode(request.inode)?;
        if txn.volatile.recovery.running() {
            // Somebody may still come back with a lock that conflicts.
            txn.wait_for(request.inode);
            return Ok(MdtReply::Waiting);
        }
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
    Ok(MdtReply::Done)
}

pub(crate) fn get(txn: &mut Transaction<'_>, request: &GetLock) -> FsResult<MdtReply> {
    if request.mode == LockMode::Unlock {
        return Err(FsError::Invalid);
    }
    let owner = LockOwner { client: txn.context.client, owner: request.owner };
    Ok(MdtReply::Lock(txn.volatile.locks.test(request.inode, owner, request.range, request.mode)?))
}
