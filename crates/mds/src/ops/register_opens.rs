//! RegisterOpens: opens for reading that a client made under locks on the opens of their inodes. It
//! can have such an open only while it has the lock, or while this MDT presumes that it has the
//! inode open (module `presumed_opens`).

use rpc::message::{
    MdtReply,
    mdt::{NotReclaimed, RegisterOpens, open_flag},
};
use types::FsResult;

use crate::{
    opens::{OpenFile, OpenKey},
    transaction::Transaction,
};

pub(crate) fn run(txn: &mut Transaction<'_>, request: &RegisterOpens) -> FsResult<MdtReply> {
    let client = txn.context.client;
    // Read before anything changes.
    txn.need_inodes(request.opens.iter().map(|(inode, ..)| *inode))?;
    txn.must_not_wait();
    let mut refused = NotReclaimed::default();
    for (inode, open, flags) in &request.opens {
        let key = OpenKey { client, open: *open };
        if txn.volatile.opens.get(key).is_some_and(|file| file.inode == *inode) {
            continue;
        }
        let is_unasked = flags.0 & !open_flag::UNASKED == 0;
        let may_be_open = is_unasked && txn.volatile.may_open_unasked(client, *inode);
        // One that cannot be taken must not fail the others: the client would never be done.
        let exists = matches!(txn.find_inode(*inode), Ok(Some(_)));
        if !may_be_open || !exists || txn.check_limit_of_claimed_opens(key, *inode).is_err() {
            tracing::warn!(%client, %inode, may_be_open, exists, "rejected an open made without a request");
            refused.lost.push(*inode);
            continue;
        }
        txn.volatile.opens.insert(key, OpenFile { inode: *inode, flags: *flags, epoch: None, began: false });
        if txn.volatile.opens.is_waited_for(*inode, client) {
            // Writers of this client that wait ask again: they must not wait for an open that waits
            // for the end of this one.
            txn.volatile.waiters.wake(*inode);
        }
    }
    if request.complete {
        txn.volatile.opens.presumed.registered(client);
    }
    Ok(if refused == NotReclaimed::default() { MdtReply::Done } else { MdtReply::NotReclaimed(refused) })
}
