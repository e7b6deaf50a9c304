//! Lookup: a name to an inode.

use rpc::message::{MdtReply, mdt::Lookup};
use types::{Credentials, FsError, FsResult};

use crate::transaction::Transaction;

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Lookup) -> FsResult<MdtReply> {
    let directory = txn.searchable(who, request.parent)?;
    let number = match &request.name[..] {
        b"." => return Ok(MdtReply::Entry(directory.entry())),
        b".." => txn.parent_of(&directory),
        name => txn.entry(request.parent, name)?.target.inode,
    };
    let missing =
        || FsError::Damaged(format!("a name in directory {} leads to missing inode {number}", request.parent));
    let inode = txn.find_inode(number)?.ok_or_else(missing)?;
    Ok(MdtReply::Entry(inode.entry()))
}
