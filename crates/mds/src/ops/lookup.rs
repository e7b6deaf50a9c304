//! Lookup: a name to an inode.
//!
//! `.` and `..` are not used to walk a path: clients resolve these themselves, after a lookup that
//! needed search permission. They look them up to get back to an inode of which they know only the
//! number, from a file handle (open_by_handle_at, NFS). So `.` is accepted for every kind of inode,
//! and neither needs a permission: the code that decodes handles has already checked it.
//!
//! Of a directory on another MDT only the number is known here.

use rpc::message::{MdtReply, mdt::Lookup};
use types::{Credentials, Damage, FsError, FsResult, InodeNumber};

use super::attributes;
use crate::{tables::inode::Inode, transaction::Transaction};

pub(crate) fn run(txn: &Transaction<'_>, who: &Credentials, request: &Lookup) -> FsResult<MdtReply> {
    let number = match &request.name[..] {
        // No program sees a shard.
        b"." if request.parent.is_shard() => return Err(FsError::Stale),
        b"." => return Ok(entry(txn, &by_number(txn, request.parent)?)),
        b".." => parent(txn, request.parent)?,
        name => {
            txn.searchable(who, request.parent, name)?;
            txn.entry(request.parent, name)?.target.inode
        }
    };
    if !txn.is_here(number) {
        return Ok(MdtReply::Remote(number));
    }
    if let Some(mdt) = txn.volatile.peers.locked_by(number) {
        return txn.wait_for_peer(mdt);
    }
    let missing = || FsError::from(Damage::MissingInode { directory: request.parent, inode: number });
    Ok(entry(txn, &txn.find_inode(number)?.ok_or_else(missing)?))
}

fn entry(txn: &Transaction<'_>, inode: &Inode) -> MdtReply {
    MdtReply::Entry(attributes::entry(txn, inode))
}

/// The directory that has the name of another one.
fn parent(txn: &Transaction<'_>, directory: InodeNumber) -> FsResult<InodeNumber> {
    match txn.directory(directory)? {
        // Its parent may be gone too.
        directory if directory.attributes.links == 0 => Err(FsError::Stale),
        directory => txn.visible_parent(&directory),
    }
}

/// An inode that has a name or is open. One that was just unlinked is stale, although
/// clients that have looked it up before may open it for a moment (module [`crate::removed`]).
fn by_number(txn: &Transaction<'_>, number: InodeNumber) -> FsResult<Inode> {
    let inode = txn.inode(number)?;
    if inode.attributes.links == 0 && !txn.is_open(number) { Err(FsError::Stale) } else { Ok(inode) }
}
