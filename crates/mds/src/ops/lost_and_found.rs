//! `lost+found` in the root directory, which gets inodes without a name.
//!
//! It is an ordinary directory of MDT 0 without stripes. It is made when it is first needed, and
//! users may remove or rename it. One that was made in another place or with stripes is not used:
//! a repair needs its names in the same batch. Nor is one that others than root can change: they
//! would get at the files of everybody.

use rpc::message::mdt_peer::MakeDirectory;
use types::{Credentials, FsError, FsResult, InodeNumber, Stripes};

use super::create;
use crate::{
    tables::{
        entry::NamedInode,
        inode::{Inode, Link, Striping},
    },
    transaction::Transaction,
};

/// The directory in the root that nameless inodes go to.
pub(crate) const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Names tried for an inode if users have taken the first one.
const NAMES_MAX: usize = 16;
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// Why nothing goes there, for people.
pub(super) const UNUSABLE: &str =
    "/lost+found is not a directory without stripes on MDT0000 that only root can change: rename it, and check again";
/// Why one inode does not go there.
pub(super) const FULL: &str = "all names for it in /lost+found are taken: rename what is there, and check again";

/// Whether it exists in a usable form, or can be made; `None`: the root is on another MDT.
pub(super) fn is_usable(txn: &Transaction<'_>) -> FsResult<Option<bool>> {
    if !txn.is_here(InodeNumber::ROOT) {
        return Ok(None);
    }
    let Some(found) = txn.find_entry(InodeNumber::ROOT, LOST_AND_FOUND)? else { return Ok(Some(true)) };
    let here = if txn.is_here(found.target.inode) { txn.find_inode(found.target.inode)? } else { None };
    let is_private = |inode: &Inode| inode.attributes.uid == 0 && inode.attributes.mode & OTHERS_WRITE == 0;
    let is_suitable = |inode: &Inode| inode.is_directory() && inode.striping == Striping::None && is_private(inode);
    Ok(Some(here.as_ref().is_some_and(is_suitable)))
}

/// Whether a usable one, which may not have been made yet, has a free name for an inode.
pub(super) fn has_name_for(txn: &Transaction<'_>, inode: InodeNumber) -> FsResult<bool> {
    match txn.find_entry(InodeNumber::ROOT, LOST_AND_FOUND)? {
        Some(found) => Ok(free_name(txn, found.target.inode, inode)?.is_some()),
        None => Ok(true),
    }
}

/// The directory, made if need be. `NotSupported`: it is unusable.
pub(super) fn open(txn: &mut Transaction<'_>) -> FsResult<Inode> {
    if is_usable(txn)? != Some(true) {
        return Err(FsError::NotSupported);
    }
    if txn.find_entry(InodeNumber::ROOT, LOST_AND_FOUND)?.is_none() {
        let make = MakeDirectory {
            parent: InodeNumber::ROOT,
            name: LOST_AND_FOUND.to_vec(),
            mode: 0o700,
            umask: 0,
            mdt: txn.mdt,
            stripes: Stripes::default(),
        };
        create::make_directory(txn, &Credentials::root(), &make)?;
    }
    txn.directory(txn.entry(InodeNumber::ROOT, LOST_AND_FOUND)?.target.inode)
}

/// A free name for an inode there; `None`: users have taken all of them.
pub(super) fn free_name(txn: &Transaction<'_>, directory: InodeNumber, inode: InodeNumber) -> FsResult<Option<Link>> {
    for number in 0..NAMES_MAX {
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        let name = format!("#{:x}{suffix}", inode.0).into_bytes();
        if txn.find_entry(directory, &name)?.is_none() {
            return Ok(Some(Link { parent: directory, name }));
        }
    }
    Ok(None)
}

/// The directory has this name from now on.
pub(super) fn add(txn: &mut Transaction<'_>, mut directory: Inode, target: NamedInode) -> FsResult<()> {
    directory.attributes.links += u32::from(target.kind == types::FileKind::Directory);
    txn.insert_entry(directory.number(), target)?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    Ok(())
}
