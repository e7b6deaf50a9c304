//! `lost+found` in the root directory, which gets inodes without a name.
//!
//! It is an ordinary directory of MDT 0 without stripes. It is made when it is first needed, and
//! users may remove or rename it. One that was made in another place or with stripes is not used:
//! a repair needs its names in the same batch.

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

/// Why nothing goes there, for people.
pub(super) const UNUSABLE: &str =
    "/lost+found is not a directory without stripes on MDT0000: rename it, and check again";

/// Whether it exists in a usable form, or can be made; `None`: the root is on another MDT.
pub(super) fn is_usable(txn: &Transaction<'_>) -> FsResult<Option<bool>> {
    if !txn.is_here(InodeNumber::ROOT) {
        return Ok(None);
    }
    let Some(found) = txn.find_entry(InodeNumber::ROOT, LOST_AND_FOUND)? else { return Ok(Some(true)) };
    let here = if txn.is_here(found.target.inode) { txn.find_inode(found.target.inode)? } else { None };
    Ok(Some(here.is_some_and(|inode| inode.is_directory() && inode.striping == Striping::None)))
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

/// A free name for an inode there.
pub(super) fn free_name(txn: &Transaction<'_>, directory: &Inode, inode: InodeNumber) -> FsResult<Link> {
    for number in 0..NAMES_MAX {
        let suffix = if number == 0 { String::new() } else { format!(".{number}") };
        let name = format!("#{:x}{suffix}", inode.0).into_bytes();
        if txn.find_entry(directory.number(), &name)?.is_none() {
            return Ok(Link { parent: directory.number(), name });
        }
    }
    Err(FsError::Exists)
}

/// The directory has this name from now on.
pub(super) fn add(txn: &mut Transaction<'_>, mut directory: Inode, target: NamedInode) -> FsResult<()> {
    directory.attributes.links += u32::from(target.kind == types::FileKind::Directory);
    txn.insert_entry(directory.number(), target)?;
    txn.touch_directory(&mut directory);
    txn.put_inode(&directory);
    Ok(())
}
