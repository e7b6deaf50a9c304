//! Changing attributes: chmod, chown, utimensat, and the removal of set-id bits by writes.

use rpc::message::MdtReply;
use types::{
    Credentials, FileKind, FsError, FsResult, InodeNumber, SetAttributes, SetTime,
    attributes::file_flag,
    mode::{PERMISSIONS, S_ISGID},
    permission::{self, Decision},
};

use crate::{known_size, protection, tables::inode::Inode, transaction::Transaction};

const NANOSECONDS: u32 = 1_000_000_000;

pub(crate) fn run(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    inode: InodeNumber,
    changes: &SetAttributes,
) -> FsResult<MdtReply> {
    let mut inode = txn.inode(inode)?;
    if *changes == SetAttributes::default() {
        return Ok(MdtReply::Entry(inode.entry()));
    }
    protection::check_attributes(&inode.attributes, changes)?;
    check_flags(who, &inode, changes)?;
    check_owner(who, &inode, changes)?;
    check_times(txn, who, &inode, changes)?;
    let mode = new_mode(who, &inode, changes)?;
    if changes.mtime.is_some()
        && !known_size::may_set_mtime(&inode, changes.seen.as_ref())
        && let Some(layout) = inode.layout()
    {
        return Ok(MdtReply::AskObjects(layout.clone()));
    }
    if changes.uid.is_some() || changes.gid.is_some() {
        txn.drop_capabilities(&inode)?;
    }
    let now = txn.now();
    inode.attributes.uid = changes.uid.unwrap_or(inode.attributes.uid);
    inode.attributes.gid = changes.gid.unwrap_or(inode.attributes.gid);
    if changes.mode.is_some() {
        txn.set_mode(&mut inode, mode)?;
    }
    inode.attributes.mode = mode;
    inode.attributes.flags = changes.flags.unwrap_or(inode.attributes.flags);
    inode.attributes.project = changes.project.unwrap_or(inode.attributes.project);
    match changes.atime {
        None => {}
        Some(SetTime::Now) => inode.attributes.atime = now,
        Some(SetTime::To(atime)) => inode.attributes.atime = atime,
    }
    match changes.mtime {
        None => inode.change(now),
        Some(mtime) => known_size::set_mtime(&mut inode, mtime, changes.seen.as_ref(), now),
    }
    txn.put_inode(&inode);
    Ok(MdtReply::Entry(inode.entry()))
}

/// Only root sets flags (CAP_LINUX_IMMUTABLE), and only root decides whom space is accounted to.
/// Only directories pass their project id on.
fn check_flags(who: &Credentials, inode: &Inode, changes: &SetAttributes) -> FsResult<()> {
    let possible = if inode.is_directory() { file_flag::ALL } else { file_flag::ALL & !file_flag::PROJECT_INHERIT };
    match (changes.flags, changes.project) {
        (None, None) => Ok(()),
        (Some(flags), _) if flags & !possible != 0 => Err(FsError::Invalid),
        _ if !who.is_root() => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

/// chown: only root changes owners; an owner may give a file to a group of which it is a member.
fn check_owner(who: &Credentials, inode: &Inode, changes: &SetAttributes) -> FsResult<()> {
    if who.is_root() {
        return Ok(());
    }
    let attributes = &inode.attributes;
    let owner = who.uid == attributes.uid;
    if changes.uid.is_some_and(|uid| !owner || uid != attributes.uid) {
        return Err(FsError::NotPermitted);
    }
    match changes.gid {
        None => Ok(()),
        Some(_) if !owner => Err(FsError::NotPermitted),
        Some(gid) if gid == attributes.gid => Ok(()),
        Some(gid) => Decision::of_membership(who.in_group(gid)).or(FsError::NotPermitted),
    }
}

/// utimensat: setting both to now needs ownership or write permission, anything else ownership.
fn check_times(txn: &Transaction<'_>, who: &Credentials, inode: &Inode, changes: &SetAttributes) -> FsResult<()> {
    let times = [changes.atime, changes.mtime];
    let malformed = |set: &SetTime| matches!(set, SetTime::To(time) if time.nanoseconds >= NANOSECONDS);
    if times.iter().flatten().any(malformed) {
        return Err(FsError::Invalid);
    }
    if times == [None, None] || permission::owns(who, &inode.attributes) {
        return Ok(());
    }
    if times == [Some(SetTime::Now), Some(SetTime::Now)] {
        return txn.require(who, inode, permission::WRITE);
    }
    Err(FsError::NotPermitted)
}

/// The mode after chmod and the side effects of chown.
fn new_mode(who: &Credentials, inode: &Inode, changes: &SetAttributes) -> FsResult<u32> {
    let attributes = &inode.attributes;
    let chowned = changes.uid.is_some() || changes.gid.is_some();
    let Some(mode) = changes.mode else {
        let keeps = !chowned || inode.is_directory();
        return Ok(if keeps { attributes.mode } else { permission::without_set_id(attributes.mode) });
    };
    if inode.kind() == FileKind::Symlink {
        return Err(FsError::NotSupported);
    }
    if !permission::owns(who, attributes) {
        return Err(FsError::NotPermitted);
    }
    let mode = mode & PERMISSIONS;
    if mode & S_ISGID == 0 {
        return Ok(mode);
    }
    match permission::may_set_group_id(who, changes.gid.unwrap_or(attributes.gid)) {
        Decision::Allow => Ok(mode),
        Decision::Deny => Ok(mode & !S_ISGID),
        Decision::GroupsNeeded => Err(FsError::GroupsNeeded),
    }
}

/// This user changes data through a file that the client has open for writing.
pub(crate) fn drop_privileges(txn: &mut Transaction<'_>, who: &Credentials, inode: InodeNumber) -> FsResult<MdtReply> {
    txn.require_writer(inode)?;
    let mut inode = txn.inode(inode)?;
    let before = inode.attributes.mode;
    if txn.drop_privileges(who, &mut inode)? || inode.attributes.mode != before {
        inode.change(txn.now());
        txn.put_inode(&inode);
    }
    Ok(MdtReply::Entry(inode.entry()))
}

/// A user without privileges wrote, through an open of the caller's client.
pub(crate) fn clear_privileges(txn: &mut Transaction<'_>, inode: InodeNumber) -> FsResult<MdtReply> {
    txn.require_writer(inode)?;
    let mut inode = txn.inode(inode)?;
    let mode = permission::without_set_id(inode.attributes.mode);
    if inode.is_directory() {
        return Ok(MdtReply::Done);
    }
    if txn.drop_capabilities(&inode)? || mode != inode.attributes.mode {
        inode.attributes.mode = mode;
        inode.change(txn.now());
        txn.put_inode(&inode);
    }
    Ok(MdtReply::Done)
}
