//! The attributes that are layouts: `lustre.lov` and `trusted.lov` in Lustre's binary form,
//! `stria.layout` as YAML.
//!
//! They are not stored: reading one shows the layout (for a directory, its default), setting one
//! changes it. So tools that copy attributes copy layouts. As in Lustre, a file's layout can be set
//! until the file is first opened for writing; afterwards setting is ignored, because rsync and cp
//! set attributes when the data are there and would fail otherwise. Only callers that ask for it
//! (XATTR_CREATE) get an error. Removing is ignored for the same reason: a file always has a
//! layout.
//!
//! `stria.layout` is not listed, so that programs that copy the listed attributes copy the layout
//! once.

use layout::{LayoutSpec, lov, text};
use rpc::message::{
    MdtReply,
    mdt::{LayoutChange, SetXattr, XattrMode},
};
use types::{Credentials, FileKind, FsError, FsResult, limits};

use super::{layout_changes, layouts};
use crate::{
    tables::inode::{Inode, InodeData},
    transaction::{Transaction, creation::own_default},
};

const LUSTRE: &[u8] = b"lustre.lov";
const TRUSTED: &[u8] = b"trusted.lov";
const READABLE: &[u8] = b"stria.layout";
/// What the names of [`names`] take in a list, each with its NUL.
pub(crate) const LISTED_BYTES_MAX: usize = LUSTRE.len() + 1 + TRUSTED.len() + 1;

/// Whether the attribute is a layout.
pub(crate) fn is_layout(name: &[u8]) -> bool {
    [LUSTRE, TRUSTED, READABLE].contains(&name)
}

/// The value; `NoData` if there is no layout to show.
pub(crate) fn get(who: &Credentials, inode: &Inode, name: &[u8]) -> FsResult<MdtReply> {
    if name == TRUSTED && !who.is_root() {
        return Err(FsError::NoData);
    }
    let value = match name {
        READABLE => readable(inode),
        _ => binary(inode),
    };
    let value = value.ok_or(FsError::NoData)?;
    if value.len() > limits::XATTR_VALUE_BYTES_MAX { Err(FsError::TooBig) } else { Ok(MdtReply::Value(value)) }
}

fn binary(inode: &Inode) -> Option<Vec<u8>> {
    match &inode.data {
        InodeData::Regular(layout) => Some(lov::encode(inode.number(), layout)),
        _ => own_default(inode).map(lov::encode_default),
    }
}

fn readable(inode: &Inode) -> Option<Vec<u8>> {
    let style = text::Style { yaml: true, ..text::Style::default() };
    let text = match &inode.data {
        InodeData::Regular(layout) => text::file(inode.number(), layout, style),
        _ => text::default_yaml(own_default(inode)?),
    };
    Some(text.into_bytes())
}

/// The names that `who` sees in a list.
pub(crate) fn names(who: &Credentials, inode: &Inode) -> Vec<Vec<u8>> {
    let fits = binary(inode).is_some_and(|value| value.len() <= limits::XATTR_VALUE_BYTES_MAX);
    let listed: &[&[u8]] = match (fits, who.is_root()) {
        (false, _) => &[],
        (true, false) => &[LUSTRE],
        (true, true) => &[LUSTRE, TRUSTED],
    };
    listed.iter().map(|name| name.to_vec()).collect()
}

/// Sets the layout of a file without data, or the default of a directory; an empty value removes as
/// [`remove`] does.
pub(crate) fn set(txn: &mut Transaction<'_>, who: &Credentials, request: &SetXattr) -> FsResult<MdtReply> {
    let SetXattr { inode, name, value, mode } = request;
    let found = txn.inode(*inode)?;
    if value.is_empty() {
        return remove(txn, who, &found, name);
    }
    if name == TRUSTED && !who.is_root() {
        return Err(FsError::NotPermitted);
    }
    let spec = decode(name, value)?;
    match found.kind() {
        FileKind::Directory => layouts::set_default(txn, who, *inode, Some(&spec)),
        FileKind::Regular => match layout_changes::run(txn, who, *inode, &LayoutChange::Replace(spec)) {
            Err(FsError::Exists | FsError::Busy) if *mode != XattrMode::Create => Ok(MdtReply::Done),
            outcome => outcome,
        },
        _ => Err(FsError::NotSupported),
    }
}

fn decode(name: &[u8], value: &[u8]) -> FsResult<LayoutSpec> {
    if name != READABLE {
        return lov::decode(value).map_err(|_| FsError::Invalid);
    }
    let text = std::str::from_utf8(value).map_err(|_| FsError::Invalid)?;
    text::yaml::parse(text).map_err(|_| FsError::Invalid)
}

/// Clears the default of a directory; leaves a file as it is.
pub(crate) fn remove(txn: &mut Transaction<'_>, who: &Credentials, inode: &Inode, name: &[u8]) -> FsResult<MdtReply> {
    if name == TRUSTED && !who.is_root() {
        return Err(FsError::NotPermitted);
    }
    match inode.kind() {
        FileKind::Directory => layouts::set_default(txn, who, inode.number(), None),
        FileKind::Regular => Ok(MdtReply::Done),
        _ => Err(FsError::NoData),
    }
}
