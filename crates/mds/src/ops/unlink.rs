//! Unlink and rmdir.

use rpc::message::{
    MdtReply,
    mdt::Unlink,
    mdt_peer::{DropLink, Part},
};
use types::{Credentials, FileKind, FsError, FsResult, permission};

use super::merge;
use crate::{
    protection,
    tables::{
        decision::{DecidedPart, Decision},
        inode::{Inode, Link},
    },
    transaction::{
        Transaction,
        entries::{FoundEntry, is_dots},
    },
};

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Unlink) -> FsResult<MdtReply> {
    let mut directory = txn.searchable(who, request.parent, &request.name)?;
    if is_dots(&request.name) {
        return Err(match (request.directory, &request.name[..]) {
            (false, _) => FsError::IsDirectory,
            (true, b".") => FsError::Invalid,
            (true, _) => FsError::NotEmpty,
        });
    }
    let found = txn.entry(request.parent, &request.name)?;
    if !txn.is_here(found.target.inode) {
        return remove_elsewhere(txn, who, request, directory, &found);
    }
    let mut victim = txn.inode(found.target.inode)?;
    may_remove(txn, who, &directory, &victim, request.directory)?;
    if request.directory {
        if !txn.is_empty_directory(victim.number())? {
            return Err(FsError::NotEmpty);
        }
        directory.attributes.links = directory.attributes.links.saturating_sub(1);
    }
    let shards = victim.map().map(|map| txn.promise_shards(map)).transpose()?;
    merge::note_shrinkage(txn, &directory);
    txn.remove_entry(request.parent, &found)?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    txn.drop_link(&mut victim, &Link { parent: request.parent, name: request.name.clone() })?;
    shards.map_or(Ok(()), |shards| txn.end_shards(shards))?;
    Ok(MdtReply::Done)
}

/// Removes the name of an inode on another MDT, which has to promise that it keeps it until then; a
/// directory, that it stays empty. The name is here: this MDT decides.
fn remove_elsewhere(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    request: &Unlink,
    mut directory: Inode,
    found: &FoundEntry,
) -> FsResult<MdtReply> {
    txn.require(who, &directory, permission::WRITE | permission::EXECUTE)?;
    protection::check_change(&directory.attributes)?;
    match (request.directory, found.target.kind == FileKind::Directory) {
        (true, false) => return Err(FsError::NotDirectory),
        (false, true) => return Err(FsError::IsDirectory),
        _ => {}
    }
    let (inode, name, parent) = (found.target.inode, request.name.clone(), directory.attributes);
    let part = DropLink { inode, parent, name: name.clone(), directory: request.directory, who: who.clone() };
    let (operation, prepared) = txn.prepared(inode.mdt(), Part::DropLink(part))?;
    let map = prepared.map.filter(|map| map.master == inode);
    let shards = map.map(|map| txn.promise_shards(map)).transpose()?;
    merge::note_shrinkage(txn, &directory);
    directory.attributes.links = parent.links.saturating_sub(u32::from(request.directory));
    txn.release_space();
    txn.remove_entry(request.parent, found)?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    let part = DecidedPart::DropLink(Link { parent: request.parent, name });
    txn.decide(inode.mdt(), Decision { operation, inode, part });
    shards.map_or(Ok(()), |shards| txn.end_shards(shards))?;
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
