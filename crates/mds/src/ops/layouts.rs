//! Layouts of files and default layouts of directories.

use layout::LayoutSpec;
use rpc::message::{MdtReply, mdt::LayoutInfo};
use types::{Credentials, FsError, FsResult, InodeNumber};

use crate::{
    permission,
    tables::inode::InodeData,
    transaction::{Transaction, own_default},
};

pub(crate) fn get(txn: &mut Transaction<'_>, inode: InodeNumber) -> FsResult<MdtReply> {
    let inode = txn.inode(inode)?;
    let effective_default = if inode.is_directory() {
        let default = txn.default_layout(&inode)?;
        let resolved = layout::resolve(None, default.as_ref(), &txn.context.parameters.default_layout)?;
        Some(LayoutSpec::from(resolved))
    } else {
        None
    };
    Ok(MdtReply::Layout(LayoutInfo {
        layout: inode.layout().cloned(),
        own_default: own_default(&inode).cloned(),
        effective_default,
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
    if !permission::owns(who, &directory.attributes) {
        return Err(FsError::NotPermitted);
    }
    if let Some(spec) = spec {
        spec.validate()?;
        if let Some(first) = spec.first_ost
            && !txn.volatile.targets.is_known(first)
        {
            return Err(FsError::Invalid);
        }
    }
    // A default that leaves everything open is none.
    let spec = spec.filter(|spec| **spec != LayoutSpec::default());
    directory.data = InodeData::Directory(spec.cloned());
    directory.attributes.ctime = txn.now();
    txn.put_inode(&directory);
    Ok(MdtReply::Done)
}
