//! Lookup: a name to an inode.
//!
//! `.` and `..` are not used to walk a path: clients resolve these themselves, after a lookup that
//! needed search permission. They look them up to get back to an inode of which they know only the
//! number, from a file handle (open_by_handle_at, NFS). So `.` is accepted for every kind of inode,
//! and neither needs a permission: the code that decodes handles has already checked it.

use rpc::message::{MdtReply, mdt::Lookup};
use types::{Credentials, Damage, FsError, FsResult, InodeNumber};

use super::attributes;
use crate::{tables::inode::Inode, transaction::Transaction};

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Lookup) -> FsResult<MdtReply> {
    find(txn, who, request.parent, &request.name).map(|inode| MdtReply::Entry(attributes::entry(txn, &inode)))
}

/// The inode that a name in a directory leads to.
pub(crate) fn find(txn: &Transaction<'_>, who: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<Inode> {
    let number = match name {
        b"." => return by_number(txn, parent),
        b".." => match txn.directory(parent)? {
            // Its parent may be gone too.
            directory if directory.attributes.links == 0 => return Err(FsError::Stale),
            directory => txn.parent_of(&directory),
        },
        name => {
            txn.searchable(who, parent)?;
            txn.entry(parent, name)?.target.inode
        }
    };
    let missing = || Damage::MissingInode { directory: parent, inode: number }.into();
    txn.find_inode(number)?.ok_or_else(missing)
}

/// An inode that has a name or is open. One that was just unlinked is stale, although
/// clients that have looked it up before may open it for a moment (module [`crate::removed`]).
fn by_number(txn: &Transaction<'_>, number: InodeNumber) -> FsResult<Inode> {
    let inode = txn.inode(number)?;
    if inode.attributes.links == 0 && !txn.is_open(number) { Err(FsError::Stale) } else { Ok(inode) }
}
