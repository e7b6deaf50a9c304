//! Operations on names and inodes that need no open file.

use std::sync::Arc;

use client::{Interruption, NewNode, OpenFile};
use rpc::message::mdt::RenameMode;
use types::{Attributes, FsError, FsResult, InodeNumber, NodeKind, SetAttributes};

use super::call::Call;
use super::convert::{attributes_out, changes, node_kind, statfs_out, statx_out};
use crate::kernel_cache::{Shown, Validity};
use crate::protocol::flags::{get_attributes as get_flag, set_attributes as valid};
use crate::protocol::request::{
    AccessIn, GetAttributesIn, LinkIn, MakeDirectoryIn, MakeNodeIn, Rename2In, SetAttributesIn, StatxIn,
};
use crate::session::Answer;

/// LOOKUP.
pub async fn lookup(call: Call, name: Vec<u8>) -> FsResult<Answer> {
    let (call, name) = (&call, &name);
    let look = |credentials| async move { call.file_system().lookup(&credentials, call.inode, name).await };
    let found = call.caller.run(look).await?;
    call.looks_at(&found, Some(call.inode));
    // Of file handles: the name is not one of a directory.
    let is_special = matches!(name.as_slice(), b"." | b"..");
    let shown = if is_special { Shown::Inode } else { Shown::Found(call.inode, name) };
    Ok(Answer::deciding(|| Answer::of(&call.entry(&found, shown))))
}

/// GETATTR.
pub async fn get_attributes(call: Call, get: GetAttributesIn) -> FsResult<Answer> {
    let found = attributes(&call, get.flags, get.handle).await?;
    Ok(Answer::deciding(|| {
        let (attributes, validity) = call.given(&found);
        Answer::of(&attributes_out(&attributes, validity))
    }))
}

/// STATX: GETATTR with the time of creation.
pub async fn statx(call: Call, get: StatxIn) -> FsResult<Answer> {
    let found = attributes(&call, get.flags, get.handle).await?;
    Ok(Answer::deciding(|| {
        let (attributes, validity) = call.given(&found);
        Answer::of(&statx_out(&attributes, validity))
    }))
}

async fn attributes(call: &Call, flags: u32, handle: u64) -> FsResult<Attributes> {
    let file = if flags & get_flag::HANDLE != 0 { Some(call.adapter.handles.get(handle)?) } else { None };
    let name = || if file.is_none() { call.adapter.kernel.name_of(call.inode) } else { None };
    let found = call.file_system().get_attributes_named(call.inode, file.as_deref(), name).await?;
    // Through an open file it tells nothing of the names that are listed.
    if file.is_none() {
        call.looks_at(&found, None);
    }
    Ok(found)
}

/// SETATTR: chmod, chown, utimensat and truncate, in any combination. The size comes first: if it
/// fails, nothing changed. Set-id bits need no care here: the MDT clears them with every change of
/// owner, and with a truncation according to the caller's credentials.
pub async fn set_attributes(call: Call, set: SetAttributesIn) -> FsResult<Answer> {
    let call = &call;
    let file = if set.valid & valid::HANDLE != 0 { Some(call.adapter.handles.get(set.handle)?) } else { None };
    let mut after = None;
    if set.valid & valid::SIZE != 0 {
        after = Some(truncate(call, file.as_ref(), set.size).await?);
    }
    let changes = changes(&set);
    if changes != SetAttributes::default() {
        let file = file.as_deref();
        let change = |credentials| async move {
            call.file_system().set_attributes(&credentials, call.inode, changes, file).await
        };
        after = Some(call.caller.run(change).await?);
    }
    let after = match after {
        Some(after) => after,
        None => call.file_system().get_attributes(call.inode, file.as_deref()).await?,
    };
    // Valid for no time: the kernel applies the reply even if it has been told meanwhile that the
    // attributes are outdated.
    Ok(Answer::of(&attributes_out(&after, Validity::default())))
}

/// Through an open file it waits only for truncations and appends that are in progress.
async fn truncate(call: &Call, file: Option<&Arc<OpenFile>>, size: u64) -> FsResult<Attributes> {
    let truncate = |interruption: Interruption| {
        let truncate = move |credentials| {
            let interruption = interruption.clone();
            async move { call.file_system().truncate_unless(&credentials, call.inode, file, size, interruption).await }
        };
        async move { call.caller.run(truncate).await }
    };
    match file {
        Some(_) => truncate(Interruption::default()).await,
        None => call.adapter.interrupts.unless_interrupted(call.unique, truncate).await,
    }
}

/// READLINK.
pub async fn read_link(call: Call) -> FsResult<Answer> {
    Ok(Answer::bytes(call.file_system().read_link(call.inode).await?))
}

/// SYMLINK. Permission bits of a symbolic link mean nothing; Linux shows all of them.
pub async fn symlink(call: Call, name: Vec<u8>, target: Vec<u8>) -> FsResult<Answer> {
    create(call, name, NodeKind::Symlink(target), 0o777, 0).await
}

/// MKNOD.
pub async fn make_node(call: Call, node: MakeNodeIn, name: Vec<u8>) -> FsResult<Answer> {
    let kind = node_kind(node.mode, node.device)?;
    create(call, name, kind, node.mode, node.umask).await
}

/// MKDIR.
pub async fn make_directory(call: Call, directory: MakeDirectoryIn, name: Vec<u8>) -> FsResult<Answer> {
    create(call, name, NodeKind::Directory, directory.mode, directory.umask).await
}

async fn create(call: Call, name: Vec<u8>, kind: NodeKind, mode: u32, umask: u32) -> FsResult<Answer> {
    let call = &call;
    let mode = mode & types::mode::PERMISSIONS;
    let node = &NewNode { parent: call.inode, name, kind, mode, umask, layout: None };
    let create = |credentials| async move { call.file_system().create(&credentials, node.clone()).await };
    let made = call.caller.run(create).await?;
    Ok(Answer::deciding(|| Answer::of(&call.entry(&made, Shown::Made(call.inode, &node.name)))))
}

/// UNLINK.
pub async fn unlink(call: Call, name: Vec<u8>) -> FsResult<Answer> {
    let (call, name) = (&call, &name);
    let unlink = |credentials| async move { call.file_system().unlink(&credentials, call.inode, name).await };
    call.certain(call.caller.run(unlink).await)?;
    Ok(Answer::done())
}

/// RMDIR.
pub async fn remove_directory(call: Call, name: Vec<u8>) -> FsResult<Answer> {
    let (call, name) = (&call, &name);
    let remove = |credentials| async move { call.file_system().remove_directory(&credentials, call.inode, name).await };
    call.certain(call.caller.run(remove).await)?;
    Ok(Answer::done())
}

/// RENAME and RENAME2.
pub async fn rename(call: Call, rename: Rename2In, name: Vec<u8>, new_name: Vec<u8>) -> FsResult<Answer> {
    let mode = match rename.flags {
        0 => RenameMode::Replace,
        libc::RENAME_NOREPLACE => RenameMode::NoReplace,
        libc::RENAME_EXCHANGE => RenameMode::Exchange,
        _ => return Err(FsError::Invalid),
    };
    let new_parent = InodeNumber(rename.new_parent);
    let (call, name, new_name) = (&call, &name, &new_name);
    let rename = |credentials| async move {
        call.file_system().rename(&credentials, (call.inode, name), (new_parent, new_name), mode).await
    };
    call.certain(call.caller.run(rename).await)?;
    let exchanged = mode == RenameMode::Exchange;
    call.adapter.kernel.renamed((call.inode.0, name), (new_parent.0, new_name), exchanged);
    Ok(Answer::done())
}

/// LINK. The header's inode is the directory of the new name.
pub async fn link(call: Call, link: LinkIn, name: Vec<u8>) -> FsResult<Answer> {
    let target = InodeNumber(link.node);
    let (call, name) = (&call, &name);
    let link = |credentials| async move { call.file_system().link(&credentials, target, call.inode, name).await };
    let linked = call.caller.run(link).await?;
    Ok(Answer::deciding(|| Answer::of(&call.entry(&linked, Shown::Made(call.inode, name)))))
}

/// ACCESS: access(2), chdir(2) and the like.
pub async fn access(call: Call, access: AccessIn) -> FsResult<Answer> {
    let call = &call;
    let check = |credentials| async move { call.file_system().access(&credentials, call.inode, access.mask).await };
    call.caller.run(check).await?;
    Ok(Answer::done())
}

/// STATFS.
pub async fn stat_fs(call: Call) -> FsResult<Answer> {
    Ok(Answer::of(&statfs_out(&call.file_system().statfs().await?)))
}

/// SYNCFS.
pub async fn sync_fs(call: Call) -> FsResult<Answer> {
    call.file_system().sync_all().await?;
    Ok(Answer::done())
}
