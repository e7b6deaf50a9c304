//! Lookup: a name to an inode.

use rpc::message::{MdtReply, mdt::Lookup};
use types::{Credentials, FsError, FsResult, InodeNumber};

use super::attributes;
use crate::{tables::inode::Inode, transaction::Transaction};

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Lookup) -> FsResult<MdtReply> {
    find(txn, who, request.parent, &request.name).map(|inode| MdtReply::Entry(attributes::entry(txn, &inode)))
}

/// The inode that a name in a directory leads to.
pub(crate) fn find(txn: &Transaction<'_>, who: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<Inode> {
    let directory = txn.searchable(who, parent)?;
    let number = match name {
        b"." => return Ok(directory),
        b".." => txn.parent_of(&directory),
        name => txn.entry(parent, name)?.target.inode,
    };
    let missing = || FsError::Damaged(format!("a name in directory {parent} leads to missing inode {number}"));
    txn.find_inode(number)?.ok_or_else(missing)
}
