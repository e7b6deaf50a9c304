//! Reading attributes, access(2), readlink, and which accesses update atime.

use rpc::message::{MdtReply, mdt::Entry};
use types::{Credentials, FsError, FsResult, InodeNumber, Timestamp, access_time, permission};

use super::open::is_quiet;
use crate::{
    tables::inode::{Inode, InodeData},
    transaction::Transaction,
};

pub(crate) fn get(txn: &Transaction<'_>, inode: InodeNumber) -> FsResult<MdtReply> {
    let inode = txn.inode(inode)?;
    Ok(MdtReply::Entry(entry(txn, &inode)))
}

/// The inode as a client sees it. If its size is not known and no client writes to it, its last
/// writer died, or never told how large the file is: the client asks the objects and tells, and
/// no client needs to ask them again.
pub(crate) fn entry(txn: &Transaction<'_>, inode: &Inode) -> Entry {
    let quiet = !inode.size_known && inode.attributes.links > 0 && is_quiet(txn, inode, None, false);
    Entry { quiet: quiet.then_some(inode.epoch), ..inode.entry() }
}

pub(crate) fn access(txn: &Transaction<'_>, who: &Credentials, inode: InodeNumber, mask: u32) -> FsResult<MdtReply> {
    if mask & !(permission::READ | permission::WRITE | permission::EXECUTE) != 0 {
        return Err(FsError::Invalid);
    }
    let inode = txn.inode(inode)?;
    txn.require(who, &inode, mask)?;
    Ok(MdtReply::Done)
}

pub(crate) fn read_link(txn: &mut Transaction<'_>, inode: InodeNumber) -> FsResult<MdtReply> {
    let mut inode = txn.inode(inode)?;
    let InodeData::Symlink(target) = &inode.data else { return Err(FsError::Invalid) };
    let reply = MdtReply::Target(target.clone());
    if note_access(txn, &mut inode) {
        txn.put_inode(&inode);
    }
    Ok(reply)
}

/// Sets atime as [`access_time`] says. True if the inode changed.
pub(crate) fn note_access(txn: &Transaction<'_>, inode: &mut Inode) -> bool {
    let now = txn.now();
    inode.attributes.atime != now && set_access_time(txn, inode, now)
}

/// The same of an access in the past that the client tells of now: atime does not go back.
pub(crate) fn note_late_access(txn: &Transaction<'_>, inode: &mut Inode, at: Timestamp) -> bool {
    let at = at.min(txn.now());
    inode.attributes.atime < at && set_access_time(txn, inode, at)
}

/// Where there is no space for it nothing is noted: reading continues, because users must be able
/// to read in order to find what to delete.
fn set_access_time(txn: &Transaction<'_>, inode: &mut Inode, at: Timestamp) -> bool {
    if access_time::is_fresh(&inode.attributes, at) || txn.context.supply.full {
        return false;
    }
    inode.attributes.atime = at;
    true
}
