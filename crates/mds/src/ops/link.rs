//! Link: another name for an inode, or the first of an unnamed file.

use rpc::message::{
    MdtReply, mdt,
    mdt_peer::{AddLink, Part},
};
use types::{Credentials, FsError, FsResult, limits, permission};

use crate::{
    protection,
    tables::{
        ORPHANS,
        decision::{DecidedPart, Decision},
        entry::NamedInode,
        inode::{Inode, Link},
        orphan,
    },
    transaction::{Transaction, entries::is_dots},
};

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &mdt::Link) -> FsResult<MdtReply> {
    let mut directory = txn.searchable(who, request.parent)?;
    if !txn.is_here(request.inode) {
        return link_elsewhere(txn, who, request, directory);
    }
    let mut inode = txn.inode(request.inode)?;
    if is_dots(&request.name) || txn.find_entry(request.parent, &request.name)?.is_some() {
        return Err(FsError::Exists);
    }
    if directory.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    txn.require(who, &directory, permission::WRITE | permission::EXECUTE)?;
    protection::check_change(&inode.attributes)?;
    if inode.is_directory() {
        return Err(FsError::NotPermitted);
    }
    if inode.attributes.links == 0 {
        if inode.not_linkable {
            // A caller that did not open it has a name for it that leads elsewhere by now, or
            // nowhere: it looks again.
            let passed_by = txn.volatile.removed.contains(inode.number()) && !txn.is_open(inode.number());
            return Err(if passed_by { FsError::Stale } else { FsError::NotFound });
        }
        txn.delete(ORPHANS, orphan::key(inode.number()));
    }
    if inode.attributes.links >= limits::LINKS_MAX {
        return Err(FsError::TooManyLinks);
    }
    inode.attributes.links += 1;
    inode.change(txn.now());
    txn.add_link(&mut inode, Link { parent: request.parent, name: request.name.clone() });
    txn.put_inode(&inode);
    let target = NamedInode { name: request.name.clone(), inode: inode.number(), kind: inode.kind() };
    txn.insert_entry(request.parent, target)?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    Ok(MdtReply::Entry(inode.entry()))
}

/// Gives a file on another MDT a name, which it has to promise to take. The name is here: this MDT
/// decides. The client asks the other one for the attributes.
fn link_elsewhere(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    request: &mdt::Link,
    mut directory: Inode,
) -> FsResult<MdtReply> {
    let mdt::Link { inode, parent, name } = request.clone();
    if is_dots(&name) || txn.find_entry(parent, &name)?.is_some() {
        return Err(FsError::Exists);
    }
    if directory.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    txn.require(who, &directory, permission::WRITE | permission::EXECUTE)?;
    let part = Part::AddLink(AddLink { inode, parent, name: name.clone() });
    let (operation, prepared) = txn.prepared(inode.mdt(), part)?;
    txn.insert_entry(parent, NamedInode { name: name.clone(), inode, kind: prepared.kind })?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    let part = DecidedPart::AddLink(Link { parent, name });
    txn.decide(inode.mdt(), Decision { operation, inode, part });
    Ok(MdtReply::Remote(inode))
}
