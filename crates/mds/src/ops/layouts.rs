//! Layouts of files and default layouts of directories.

use layout::LayoutSpec;
use rpc::message::{
    MdtReply,
    mdt::{Instantiate, LayoutInfo},
};
use types::{Credentials, DirectoryDefault, FsError, FsResult, InodeNumber, limits::FILE_BYTES_MAX, permission};

use super::root_only::require_root;
use crate::{
    opens::OpenFile,
    protection,
    tables::inode::InodeData,
    transaction::{Transaction, creation::own_default},
};

pub(crate) fn get(txn: &mut Transaction<'_>, inode: InodeNumber) -> FsResult<MdtReply> {
    let inode = txn.inode(inode)?;
    if txn.volatile.is_layout_changing(inode.number()) {
        txn.wait_for(inode.number());
        return Ok(MdtReply::Waiting);
    }
    let effective_default = if inode.is_directory() {
        let default = txn.default_layout(&inode)?;
        Some(Box::new(txn.effective(None, default.as_ref())))
    } else {
        None
    };
    Ok(MdtReply::Layout(LayoutInfo {
        layout: inode.layout().cloned(),
        own_default: own_default(&inode).cloned().map(Box::new),
        effective_default,
        map: inode.map(),
        directory_default: inode.directory_default,
    }))
}

/// Makes a range writable; answers with the resulting layout, whichever client changed it. Nothing
/// is assigned while a client may come back that knows a newer layout than this MDT (see
/// `reclaim_layout`).
pub(crate) fn instantiate(txn: &mut Transaction<'_>, request: &Instantiate) -> FsResult<MdtReply> {
    if request.start >= request.end {
        return Err(FsError::Invalid);
    }
    if request.end > FILE_BYTES_MAX {
        return Err(FsError::FileTooLarge);
    }
    let mut inode = txn.inode(request.inode)?;
    let open = txn.own_open(request.inode, request.open)?;
    if !txn.volatile.opens.get(open).is_some_and(OpenFile::writes) {
        return Err(FsError::BadHandle);
    }
    if txn.volatile.recovery.running() {
        txn.wait_for_recovery();
        return Ok(MdtReply::Waiting);
    }
    if txn.volatile.is_layout_changing(request.inode) {
        txn.wait_for(request.inode);
        return Ok(MdtReply::Waiting);
    }
    let before = inode.layout().map(|layout| layout.generation);
    txn.instantiate(&mut inode, request.start, request.end)?;
    if inode.layout().map(|layout| layout.generation) != before {
        txn.put_inode(&inode);
    }
    Ok(MdtReply::Layout(LayoutInfo {
        layout: inode.layout().cloned(),
        own_default: None,
        effective_default: None,
        map: None,
        directory_default: None,
    }))
}

/// Sets or removes the default of a directory; what is in it already keeps its own.
pub(crate) fn set_default(
    txn: &mut Transaction<'_>,
    who: &Credentials,
    inode: InodeNumber,
    spec: Option<&LayoutSpec>,
) -> FsResult<MdtReply> {
    let mut directory = txn.directory(inode)?;
    protection::check_write(&directory.attributes)?;
    if !permission::owns(who, &directory.attributes) {
        return Err(FsError::NotPermitted);
    }
    if let Some(spec) = spec {
        spec.validate(txn.context.parameters.bytes_on_mdt_max)?;
        txn.check_named(spec)?;
    }
    let spec = match spec {
        // A default that leaves everything open is none.
        Some(spec) if spec.is_open() => None,
        Some(LayoutSpec::Composite(components)) => Some(LayoutSpec::Composite(txn.sized(components))),
        other => other.cloned(),
    };
    directory.data = InodeData::Directory(spec);
    directory.change(txn.now());
    txn.put_inode(&directory);
    Ok(MdtReply::Done)
}

/// Root may say on which MDTs directories are, and who made the file system may of its root, which
/// has a default from the start.
pub(crate) fn require_default_setter(txn: &Transaction<'_>, who: &Credentials, inode: InodeNumber) -> FsResult<()> {
    if inode == InodeNumber::ROOT && txn.directory(inode)?.attributes.uid == who.uid {
        return Ok(());
    }
    require_root(who)
}

/// Sets or removes what new directories in a directory get; those that there are stay as they are.
/// The caller may do so. `NoDeviceOrAddress`: there are fewer MDTs than it says, or not the first
/// one.
pub(crate) fn set_directory_default(
    txn: &mut Transaction<'_>,
    inode: InodeNumber,
    default: Option<DirectoryDefault>,
) -> FsResult<MdtReply> {
    let mut directory = txn.directory(inode)?;
    protection::check_write(&directory.attributes)?;
    if let Some(default) = default {
        if !default.is_possible() {
            return Err(FsError::Invalid);
        }
        if !default.is_fulfilled_by(&txn.mdts_in_use()?) {
            return Err(FsError::NoDeviceOrAddress);
        }
    }
    directory.directory_default = default;
    directory.change(txn.now());
    txn.put_inode(&directory);
    Ok(MdtReply::Done)
}
