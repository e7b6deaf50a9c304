//! Extended attributes and access lists (fs/xattr.c and fs/posix_acl.c of Linux).

use rpc::message::{
    MdtReply,
    mdt::{SetXattr, XattrMode},
};
use types::{
    Credentials, FileKind, FsError, FsResult, InodeNumber,
    access_list::{ACCESS_NAME, AccessList, DEFAULT_NAME},
    limits,
    mode::{S_ISGID, S_ISVTX},
    permission::{self, Decision},
};

use super::layout_xattrs;
use crate::{
    protection,
    tables::inode::Inode,
    transaction::{Transaction, xattrs::CAPABILITIES_NAME},
};

/// What a name takes in a list, with its NUL.
const fn listed_bytes(name: &[u8]) -> usize {
    name.len() + 1
}

/// Most bytes of the names that programs choose: with those that come otherwise, a list is as long
/// as Linux takes it. A longer one could never be shown again.
const NAMES_BYTES_MAX: usize = limits::XATTR_VALUE_BYTES_MAX
    - listed_bytes(ACCESS_NAME)
    - listed_bytes(DEFAULT_NAME)
    - layout_xattrs::LISTED_BYTES_MAX;

/// Namespaces of attributes, by the prefix of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    /// `user.`: by the file's permissions.
    User,
    /// `trusted.`: root only, invisible to others.
    Trusted,
    /// `security.`: all users may read, root may write.
    Security,
    /// The two access lists.
    List,
}

fn space_of(name: &[u8]) -> FsResult<Space> {
    if name.len() > limits::XATTR_NAME_BYTES_MAX {
        return Err(FsError::Range);
    }
    if name == ACCESS_NAME || name == DEFAULT_NAME {
        return Ok(Space::List);
    }
    let prefixes: [(&[u8], Space); 3] =
        [(b"user.", Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
    let known = prefixes.iter().find(|(prefix, _)| name.starts_with(prefix));
    let (prefix, space) = known.ok_or(FsError::NotSupported)?;
    if name.len() == prefix.len() || name.contains(&0) { Err(FsError::Invalid) } else { Ok(*space) }
}

/// Whether every user may read the attribute, so that its absence is the same for all.
pub(crate) fn is_public(name: &[u8]) -> bool {
    matches!(space_of(name), Ok(Space::List | Space::Security))
}

pub(crate) fn get(txn: &Transaction<'_>, who: &Credentials, inode: InodeNumber, name: &[u8]) -> FsResult<MdtReply> {
    let inode = txn.inode(inode)?;
    if layout_xattrs::is_layout(name) {
        return layout_xattrs::get(who, &inode, name);
    }
    match space_of(name)? {
        Space::List if inode.kind() == FileKind::Symlink => return Err(FsError::NotSupported),
        Space::List | Space::Security => {}
        Space::Trusted if !who.is_root() => return Err(FsError::NoData),
        Space::Trusted => {}
        Space::User if !takes_user_attributes(&inode) => return Err(FsError::NoData),
        Space::User => txn.require(who, &inode, permission::READ)?,
    }
    txn.xattr(inode.number(), name)?.map(MdtReply::Value).ok_or(FsError::NoData)
}

pub(crate) fn list(txn: &Transaction<'_>, who: &Credentials, inode: InodeNumber) -> FsResult<MdtReply> {
    let inode = txn.inode(inode)?;
    let mut names = txn.xattr_names(inode.number())?;
    names.retain(|name| who.is_root() || !name.starts_with(b"trusted."));
    names.extend(layout_xattrs::names(who, &inode));
    Ok(MdtReply::Names(names))
}

pub(crate) fn set(txn: &mut Transaction<'_>, who: &Credentials, request: &SetXattr) -> FsResult<MdtReply> {
    let mut inode = txn.inode(request.inode)?;
    protection::check_change(&inode.attributes)?;
    if layout_xattrs::is_layout(&request.name) {
        return layout_xattrs::set(txn, who, request);
    }
    let space = space_of(&request.name)?;
    if request.value.len() > limits::XATTR_VALUE_BYTES_MAX {
        return Err(FsError::TooBig);
    }
    may_write(txn, who, &inode, space)?;
    if space == Space::List {
        // The flags mean nothing here, as in Linux.
        let list = AccessList::decode(&request.value)?;
        set_list(txn, who, &mut inode, &request.name, list)?;
    } else {
        let exists = txn.xattr(request.inode, &request.name)?.is_some();
        match request.mode {
            XattrMode::Create if exists => return Err(FsError::Exists),
            XattrMode::Replace if !exists => return Err(FsError::NoData),
            _ => {}
        }
        if !exists {
            let mut names = txn.xattr_names(request.inode)?;
            names.retain(|name| name != ACCESS_NAME && name != DEFAULT_NAME);
            let names = names.iter().chain([&request.name]);
            let bytes: usize = names.map(|name| listed_bytes(name)).sum();
            if bytes > NAMES_BYTES_MAX {
                return Err(FsError::NoSpace);
            }
        }
        txn.put_xattr(request.inode, &request.name, &request.value);
        inode.xattrs = true;
    }
    inode.change(txn.now());
    txn.put_inode(&inode);
    Ok(MdtReply::Done)
}

pub(crate) fn remove(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    inode: InodeNumber,
    name: &[u8],
) -> FsResult<MdtReply> {
    let mut inode = txn.inode(inode)?;
    // Capabilities go with every write, also with one that appends to what can only be appended to.
    if name == CAPABILITIES_NAME && who.is_root() {
        protection::check_write(&inode.attributes)?;
    } else {
        protection::check_change(&inode.attributes)?;
    }
    if layout_xattrs::is_layout(name) {
        return layout_xattrs::remove(txn, who, &inode, name);
    }
    let space = space_of(name)?;
    may_write(txn, who, &inode, space)?;
    if space == Space::List {
        set_list(txn, who, &mut inode, name, None)?;
    } else if txn.xattr(inode.number(), name)?.is_some() {
        txn.delete_xattr(inode.number(), name);
    } else {
        return Err(FsError::NoData);
    }
    txn.release_space();
    inode.change(txn.now());
    txn.put_inode(&inode);
    Ok(MdtReply::Done)
}

/// Only regular files and directories take `user.` attributes: the modes of others mean something
/// else.
fn takes_user_attributes(inode: &Inode) -> bool {
    matches!(inode.kind(), FileKind::Regular | FileKind::Directory)
}

fn may_write(txn: &Transaction<'_>, who: &Credentials, inode: &Inode, space: Space) -> FsResult<()> {
    match space {
        Space::Trusted | Space::Security if !who.is_root() => Err(FsError::NotPermitted),
        Space::Trusted | Space::Security => Ok(()),
        Space::List if inode.kind() == FileKind::Symlink => Err(FsError::NotSupported),
        Space::List => Ok(()),
        Space::User if !takes_user_attributes(inode) => Err(FsError::NotPermitted),
        Space::User => {
            let sticky = inode.is_directory() && inode.attributes.mode & S_ISVTX != 0;
            if sticky && !permission::owns(who, &inode.attributes) {
                return Err(FsError::NotPermitted);
            }
            txn.require(who, inode, permission::WRITE)
        }
    }
}

/// Sets or removes an access list (set_posix_acl of Linux). An access list sets the mode; a member
/// of neither the group nor root loses set-group-id with it.
fn set_list(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    inode: &mut Inode,
    name: &[u8],
    list: Option<AccessList>,
) -> FsResult<()> {
    let default = name == DEFAULT_NAME;
    if default && !inode.is_directory() {
        return if list.is_some() { Err(FsError::AccessDenied) } else { Ok(()) };
    }
    if !permission::owns(who, &inode.attributes) {
        return Err(FsError::NotPermitted);
    }
    if default {
        txn.put_default_list(inode, list.as_ref());
        return Ok(());
    }
    if let Some(list) = &list {
        let mut mode = inode.attributes.mode & !0o777 | list.mode();
        if mode & S_ISGID != 0 {
            match permission::may_set_group_id(who, inode.attributes.gid) {
                Decision::Allow => {}
                Decision::Deny => mode &= !S_ISGID,
                Decision::GroupsNeeded => return Err(FsError::GroupsNeeded),
            }
        }
        inode.attributes.mode = mode;
    }
    txn.put_access_list(inode, list.as_ref());
    Ok(())
}
