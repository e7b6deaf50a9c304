//! Link: another name for an inode, or the first of an unnamed file.

use rpc::message::{
    MdtReply,
    mdt::{self, Entry},
    mdt_peer::{AddLink, Decided, Part},
    session::feature,
};
use types::{Credentials, FsError, FsResult, Timestamp, limits, permission};

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
    let mut directory = txn.searchable(who, request.parent, &request.name)?;
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
/// decides. Clients that do not understand what is decided ask the other one for the attributes.
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
    if !txn.context.knows(feature::SEVERAL_MDTS) {
        // It could not read the answer.
        return Err(FsError::NotSupported);
    }
    let part = Part::AddLink(AddLink { inode, parent, name: name.clone() });
    let (operation, prepared) = txn.prepared(inode.mdt(), part)?;
    txn.insert_entry(parent, NamedInode { name: name.clone(), inode, kind: prepared.kind })?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    let part = DecidedPart::AddLink(Link { parent, name });
    txn.decide(inode.mdt(), Decision { operation, inode, part });
    Ok(match prepared.entry {
        Some(entry) if txn.context.knows(feature::DECIDED_INODES) && entry.attributes.inode == inode => {
            MdtReply::Decided(Box::new(Decided { entry: linked(*entry, txn.now()), map: None }))
        }
        // The other MDT is older, and did not say what it is.
        _ => MdtReply::Remote(inode),
    })
}

/// An inode of another MDT with one name more.
fn linked(mut entry: Entry, now: Timestamp) -> Entry {
    entry.attributes.links = entry.attributes.links.saturating_add(1);
    entry.attributes.ctime = now.max(entry.attributes.ctime.next());
    // Its MDT need not be there any more to take a report of the size.
    entry.quiet = None;
    entry
}
