//! Create: a new node with a name (open with O_CREAT, mkdir, mknod, symlink), or an unnamed file
//! (O_TMPFILE).

use rpc::message::{
    MdtReply,
    mdt::{Create, CreateUnnamed, Created, OpenFlags, OpenId, Opened, open_flag},
    mdt_peer::{Decided, MakeDirectory},
    session::feature,
};
use types::{Credentials, DirectoryPlace, FileKind, FsError, FsResult, NodeKind, permission};

use super::{
    open::{self, Opening},
    root_only::require_root,
    split,
};
use crate::{
    known_size,
    opens::{OpenFile, OpenKey},
    tables::{
        ORPHANS,
        entry::NamedInode,
        inode::{Inode, Link},
        orphan,
    },
    transaction::{
        Transaction,
        creation::{NewInode, check_kind},
        entries::{FoundEntry, is_dots},
    },
};

pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, request: &Create) -> FsResult<MdtReply> {
    create(txn, who, request, true)
}

/// `by_default`: a directory is made where the default of the one above says.
fn create(txn: &mut Transaction<'_>, who: &Credentials, request: &Create, by_default: bool) -> FsResult<MdtReply> {
    let mut directory = txn.searchable(who, request.parent, &request.name)?;
    if is_dots(&request.name) {
        return Err(if request.open.is_some() { FsError::IsDirectory } else { FsError::Exists });
    }
    if let Some(found) = txn.find_entry(request.parent, &request.name)? {
        return existing(txn, who, request, &found);
    }
    if directory.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    txn.require(who, &directory, permission::WRITE | permission::EXECUTE)?;
    check_kind(who, &request.kind)?;
    let kind = request.kind.file_kind();
    if request.open.is_some() && kind != FileKind::Regular {
        return Err(FsError::Invalid);
    }
    if kind == FileKind::Directory {
        if by_default && let Some(DirectoryPlace { mdt, stripes }) = txn.default_place(&directory)? {
            let Create { parent, name, mode, umask, .. } = request.clone();
            let made = spread(txn, who, directory, &MakeDirectory { parent, name, mode, umask, mdt, stripes })?;
            let entry = made.entry();
            return Ok(match txn.is_here(made.number()) {
                _ if txn.context.knows(feature::DECIDED_INODES) => {
                    MdtReply::Decided(Box::new(Decided { entry, map: made.map() }))
                }
                true => MdtReply::Created(Box::new(Created { entry, created: true, opened: None })),
                false => MdtReply::Remote(made.number()),
            });
        }
        txn.count_subdirectory(&mut directory)?;
    }
    let new = NewInode {
        who,
        kind: &request.kind,
        mode: request.mode,
        umask: request.umask,
        layout: request.layout.as_ref(),
        link: Some(Link { parent: request.parent, name: request.name.clone() }),
    };
    if let Some((open, _)) = request.open {
        txn.check_open_limit(OpenKey { client: txn.context.client, open }, None)?;
    }
    let mut inode = txn.make_inode(&directory, new)?;
    let target = NamedInode { name: request.name.clone(), inode: inode.number(), kind };
    txn.insert_entry(request.parent, target)?;
    split::note_growth(txn, &directory);
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    let opened = request.open.map(|open| open_new(txn, &mut inode, open));
    txn.put_inode(&inode);
    let entry = opened.as_ref().map_or_else(|| inode.entry(), |opened| opened.entry.clone());
    Ok(MdtReply::Created(Box::new(Created { entry, created: true, opened })))
}

/// Makes a directory on MDTs of the caller's choice. Its name is here: this MDT decides.
pub(crate) fn make_directory(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    request: &MakeDirectory,
) -> FsResult<MdtReply> {
    let MakeDirectory { parent, name, mode, umask, mdt, stripes } = request.clone();
    if mdt == txn.mdt && stripes.mdts.is_empty() {
        let create = Create { parent, name, kind: NodeKind::Directory, mode, umask, layout: None, open: None };
        return self::create(txn, who, &create, false);
    }
    let directory = txn.searchable(who, parent, &name)?;
    if is_dots(&name) || txn.find_entry(parent, &name)?.is_some() {
        return Err(FsError::Exists);
    }
    if directory.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    txn.require(who, &directory, permission::WRITE | permission::EXECUTE)?;
    require_root(who)?;
    let inode = spread(txn, who, directory, request)?;
    Ok(MdtReply::Created(Box::new(Created { entry: inode.entry(), created: true, opened: None })))
}

/// Makes a directory with its name, on MDTs that were chosen; all is permitted.
fn spread(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    mut directory: Inode,
    request: &MakeDirectory,
) -> FsResult<Inode> {
    txn.count_subdirectory(&mut directory)?;
    let inode = txn.make_spread(who, &directory, request)?;
    let (name, kind) = (request.name.clone(), FileKind::Directory);
    txn.insert_entry(request.parent, NamedInode { name, inode: inode.number(), kind })?;
    split::note_growth(txn, &directory);
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    Ok(inode)
}

/// The name exists: an error, or an open of what is there.
fn existing(txn: &mut Transaction<'_>, who: &Credentials, request: &Create, found: &FoundEntry) -> FsResult<MdtReply> {
    let Some((open, flags)) = request.open else { return Err(FsError::Exists) };
    if flags.has(open_flag::EXCLUSIVE) {
        return Err(FsError::Exists);
    }
    match found.target.kind {
        FileKind::Directory => return Err(FsError::IsDirectory),
        // The caller looked before and found nothing: it looks again and follows the link.
        FileKind::Symlink => return Err(FsError::Stale),
        _ => {}
    }
    if !txn.is_here(found.target.inode) {
        // The caller opens it there.
        return Ok(MdtReply::Remote(found.target.inode));
    }
    let inode = txn.inode(found.target.inode)?;
    match open::open_inode(txn, who, inode, open, flags)? {
        Opening::Waiting => Ok(MdtReply::Waiting),
        Opening::Opened(opened) => {
            let entry = opened.entry.clone();
            Ok(MdtReply::Created(Box::new(Created { entry, created: false, opened: Some(*opened) })))
        }
    }
}

/// Opens what was just made, whatever its mode says. The caller stores the inode.
fn open_new(txn: &mut Transaction<'_>, inode: &mut Inode, (open, flags): (OpenId, OpenFlags)) -> Opened {
    open::register(txn, inode, open, OpenFlags(flags.0 & !open_flag::TRUNCATE), false)
}

/// In a directory; or beside a file, if it is to stay without a name: none of the directories of a
/// file may be on its MDT.
pub(crate) fn unnamed(txn: &mut Transaction<'_>, who: &Credentials, request: &CreateUnnamed) -> FsResult<MdtReply> {
    let beside = txn.inode(request.parent)?;
    let is_beside_file = beside.kind() == FileKind::Regular && request.open.1.has(open_flag::EXCLUSIVE);
    let directory = if is_beside_file { beside } else { txn.enterable(who, request.parent)? };
    if directory.attributes.links == 0 {
        return Err(FsError::NotFound);
    }
    let execute = if is_beside_file { 0 } else { permission::EXECUTE };
    txn.require(who, &directory, permission::WRITE | execute)?;
    txn.check_open_limit(OpenKey { client: txn.context.client, open: request.open.0 }, None)?;
    let (mode, umask) = (request.mode, request.umask);
    let new = NewInode { who, kind: &NodeKind::Regular, mode, umask, layout: None, link: None };
    let mut inode = txn.make_inode(&directory, new)?;
    inode.not_linkable = request.open.1.has(open_flag::EXCLUSIVE);
    txn.put(ORPHANS, orphan::key(inode.number()), orphan::value());
    let opened = open_new(txn, &mut inode, request.open);
    txn.put_inode(&inode);
    let entry = opened.entry.clone();
    Ok(MdtReply::Created(Box::new(Created { entry, created: true, opened: Some(opened) })))
}

/// The repetition of a creation whose reply a former start of this MDT stored: its open is entered
/// again. If others have looked at the file meanwhile, and reported its size, a client begins to
/// write again.
pub(crate) fn enter_again(
    txn: &mut Transaction<'_>,
    (open, flags): (OpenId, OpenFlags),
    opened: &Opened,
) -> FsResult<()> {
    let mut inode = txn.inode(opened.entry.attributes.inode)?;
    if flags.has(open_flag::WRITE) && inode.kind() == FileKind::Regular && inode.epoch != opened.epoch {
        known_size::open_for_write(&mut inode, false);
        txn.put_inode(&inode);
    }
    let key = OpenKey { client: txn.context.client, open };
    txn.check_limit_of_claimed_opens(key, inode.number())?;
    let file = OpenFile { inode: inode.number(), flags, epoch: Some(opened.epoch), began: false };
    txn.open_at_commit(key, file);
    Ok(())
}
