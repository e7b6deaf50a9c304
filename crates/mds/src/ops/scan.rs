//! What fsck needs to compare files with their objects: all inodes in order, and setting a size it found.

use rpc::message::{
    MdtReply,
    mdt::{ScannedInode, SizeUpdate},
};
use types::{Credentials, FsError, FsResult, InodeNumber};

use super::{open::is_quiet, require_root};
use crate::{
    settlement,
    tables::{INODES, codec::inode_of_key, inode::Inode},
    transaction::Transaction,
};

/// Inodes in one answer: with the largest layouts (2000 OSTs, twice) it stays within a message.
const INODES_MAX: usize = 64;
const _: () = assert!(INODES_MAX * 2000 * 2 * 3 < types::limits::BODY_BYTES_MAX, "an answer fits a message");

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, after: InodeNumber, count: u32) -> FsResult<MdtReply> {
    require_root(who)?;
    let count = (count as usize).clamp(1, INODES_MAX);
    let page = txn.page(INODES, Some(&Inode::key(after)), count)?;
    let scanned = page.iter().map(|(key, value)| {
        let inode = txn.decode_inode(inode_of_key("inode", key)?, value)?;
        let busy = inode.attributes.links == 0 || txn.is_open(inode.number()) || txn.volatile.recovery.running();
        Ok(ScannedInode { entry: inode.entry(), layout: inode.layout().cloned(), busy })
    });
    scanned.collect::<FsResult<Vec<_>>>().map(MdtReply::Scanned)
}

/// Believed whatever its epoch, as long as nobody writes.
pub(crate) fn repair_size(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    inode: InodeNumber,
    update: &SizeUpdate,
) -> FsResult<MdtReply> {
    require_root(who)?;
    let mut inode = txn.inode(inode)?;
    if inode.layout().is_none() {
        return Err(FsError::Invalid);
    }
    if !is_quiet(txn, &inode, None, false) {
        return Err(FsError::Busy);
    }
    settlement::apply(&mut inode, update, txn.now());
    txn.put_inode(&inode);
    Ok(MdtReply::Done)
}
