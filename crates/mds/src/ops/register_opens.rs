//! RegisterOpens: opens for reading that a client made under locks on the opens of their inodes. It
//! may have such an open only as long as it has the lock, or as this MDT takes the inode to be open
//! for it (module `presumed_opens`).

use rpc::message::{
    MdtReply,
    mdt::{NotReclaimed, OpenFlags, RegisterOpens, open_flag},
};
use rt::Instant;
use types::{FsError, FsResult};

use crate::{
    opens::{OpenFile, OpenKey},
    transaction::Transaction,
};

/// What an open has that can be made without asking.
const READING: u32 = open_flag::READ | open_flag::EXECUTE | open_flag::NO_ACCESS_TIME | open_flag::UNCOUNTED;

pub(crate) fn run(txn: &mut Transaction<'_>, request: &RegisterOpens) -> FsResult<MdtReply> {
    let client = txn.context.client;
    if request.opens.iter().any(|(_, _, OpenFlags(flags))| flags & !READING != 0) {
        return Err(FsError::Invalid);
    }
    // Read before anything changes.
    txn.need_inodes(request.opens.iter().map(|(inode, ..)| *inode))?;
    txn.must_not_wait();
    let mut refused = NotReclaimed::default();
    for (inode, open, flags) in &request.opens {
        let key = OpenKey { client, open: *open };
        if txn.volatile.opens.get(key).is_some_and(|file| file.inode == *inode) {
            continue;
        }
        let may_be_open = txn.volatile.may_open_unasked(client, *inode);
        if !may_be_open || txn.find_inode(*inode)?.is_none() {
            tracing::warn!(%client, %inode, "rejected an open that the client made without a lock");
            refused.lost.push(*inode);
            continue;
        }
        txn.check_open_limit(key)?;
        txn.volatile.opens.insert(key, OpenFile { inode: *inode, flags: *flags, epoch: None, began: false });
    }
    if request.complete {
        txn.volatile.opens_registered(client, Instant(txn.context.now_ns));
    }
    Ok(if refused == NotReclaimed::default() { MdtReply::Done } else { MdtReply::NotReclaimed(refused) })
}
