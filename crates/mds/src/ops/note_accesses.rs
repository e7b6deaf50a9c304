//! NoteAccesses: what a client opened for reading, or read, without asking, and which changed the
//! access time.
//!
//! An access counts under the lock on the attributes under which the client decided it. So no
//! other client has changed the inode since: an access time that another client set is never
//! replaced by that of an earlier access. A client that could not have opened the inode without
//! asking has not read it. What is refused is ignored: the lock may have ended with a connection.
//!
//! Others are asked for their locks on the attributes afterwards, as for every access.

use lock::{InodeBits, inode_bit};
use rpc::message::{
    MdtReply,
    mdt::{Access, NotedAccess},
};
use types::{FileKind, FsResult};

use super::attributes::note_late_access;
use crate::transaction::Transaction;

const ATTRIBUTES: InodeBits = InodeBits(inode_bit::ATTRIBUTES);
const OPEN: InodeBits = InodeBits(inode_bit::OPEN);

pub(crate) fn run(txn: &mut Transaction<'_>, accesses: &[Access]) -> FsResult<MdtReply> {
    // All are read before the first changes anything. What the client may not tell of costs no
    // read: this service is for what others wait for.
    let allowed = accesses.iter().filter(|access| is_under_lock(txn, access));
    txn.need_inodes(allowed.map(|access| access.inode))?;
    Ok(MdtReply::AccessesNoted(accesses.iter().map(|access| note(txn, access)).collect()))
}

/// Whether the client has the lock that it names, and on the attributes.
fn is_under_lock(txn: &Transaction<'_>, access: &Access) -> bool {
    txn.volatile.cache.lock().held_by_lock(access.inode, txn.context.client, access.lock).meets(ATTRIBUTES)
}

/// One access; `None`: it is ignored.
fn note(txn: &mut Transaction<'_>, access: &Access) -> Option<NotedAccess> {
    let (client, number) = (txn.context.client, access.inode);
    if !is_under_lock(txn, access) {
        return None;
    }
    // One that is damaged must not fail the others.
    let mut inode = txn.find_inode(number).ok()??;
    let may_read = match inode.attributes.kind {
        FileKind::Symlink => true,
        FileKind::Regular | FileKind::Directory => txn.volatile.cache.lock().holds(client, number, OPEN),
        FileKind::Fifo | FileKind::Socket | FileKind::CharacterDevice | FileKind::BlockDevice => false,
    };
    if !may_read {
        return None;
    }
    if note_late_access(txn, &mut inode, access.time) {
        txn.put_inode(&inode);
        inode = txn.find_inode(number).ok()??;
    }
    Some(NotedAccess { version: inode.version, time: inode.attributes.atime })
}
