//! Unlink and rmdir.

use rpc::message::{MdtReply, mdt::Unlink};
use types::{Credentials, FsError, FsResult, permission};

use crate::{
    protection,
    tables::inode::{Inode, Link},
    transaction::{Transaction, entries::is_dots},
};

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Unlink) -> FsResult<MdtReply> {
    let mut directory = txn.searchable(who, request.parent)?;
    if is_dots(&request.name) {
        return Err(match (request.directory, &request.name[..]) {
            (false, _) => FsError::IsDirectory,
            (true, b".") => FsError::Invalid,
            (true, _) => FsError::NotEmpty,
        });
    }
    let found = txn.entry(request.parent, &request.name)?;
    let mut victim = txn.inode(found.target.inode)?;
    may_remove(txn, who, &directory, &victim, request.directory)?;
    if request.directory {
        if !txn.is_empty_directory(victim.number())? {
            return Err(FsError::NotEmpty);
        }
        directory.attributes.links = directory.attributes.links.saturating_sub(1);
    }
    txn.remove_entry(request.parent, &found)?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    txn.drop_link(&mut victim, &Link { parent: request.parent, name: request.name.clone() })?;
    Ok(MdtReply::Done)
}

/// Whether a name may be taken out of a directory (may_delete of Linux). `as_directory`: the caller
/// expects one.
pub(crate) fn may_remove(
    txn: &Transaction<'_>,
    who: &Credentials,
    directory: &Inode,
    victim: &Inode,
    as_directory: bool,
) -> FsResult<()> {
    txn.require(who, directory, permission::WRITE | permission::EXECUTE)?;
    if permission::sticky_forbids(who, &directory.attributes, &victim.attributes) {
        return Err(FsError::NotPermitted);
    }
    protection::check_removal(&directory.attributes, &victim.attributes)?;
    match (as_directory, victim.is_directory()) {
        (true, false) => Err(FsError::NotDirectory),
        (false, true) => Err(FsError::IsDirectory),
        _ => Ok(()),
    }
}
