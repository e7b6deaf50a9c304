//! Extended attributes. Access lists are ordinary attributes here; the MDT interprets them.

use std::{path::Path, sync::LazyLock};

use client::CAPABILITIES_NAME;
use rpc::message::mdt::XattrMode;
use types::{Credentials, FsError, FsResult};

use super::call::Call;
use crate::protocol::reply::GetXattrOut;
use crate::protocol::request::{GetXattrIn, SetXattrIn};
use crate::session::Answer;

/// Access lists.
const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";
/// The label of a file for SELinux.
const LABEL_NAME: &[u8] = b"security.selinux";
/// Whether the kernel has SELinux switched on.
static HAS_LABELS: LazyLock<bool> = LazyLock::new(|| Path::new("/sys/fs/selinux").exists());

/// SETXATTR.
pub async fn set(call: Call, set: SetXattrIn, name: Vec<u8>, value: Vec<u8>) -> FsResult<Answer> {
    let (call, name, value) = (&call, &name, &value);
    let mode = match set.flags.cast_signed() {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return Err(FsError::Invalid),
    };
    let set =
        |credentials| async move { call.file_system().set_xattr(&credentials, call.inode, name, value, mode).await };
    call.caller.run(set).await?;
    Ok(Answer::done())
}

/// GETXATTR.
pub async fn get(call: Call, get: GetXattrIn, name: Vec<u8>) -> FsResult<Answer> {
    let (call, name) = (&call, &name);
    let (kernel, is_list) = (&call.adapter.kernel, matches!(name.as_slice(), ACCESS_NAME | DEFAULT_NAME));
    // The kernel keeps access lists, and that there are none.
    let was_locked = is_list && kernel.asks_for_list(call.file_system(), call.inode);
    let value = |credentials| async move { call.file_system().get_xattr(&credentials, call.inode, name).await };
    let value = call.caller.run(value).await;
    if is_list {
        kernel.gives_list(call.file_system(), call.inode, was_locked);
    }
    sized(value.map_err(|error| without_label(error, name, *HAS_LABELS))?, get.size)
}

/// `ls -l` asks for the label of each file, unless it is told once that there are none: a file
/// without a label has none that is supported, where SELinux is switched off.
fn without_label(error: FsError, name: &[u8], has_labels: bool) -> FsError {
    match error {
        FsError::NoData if name == LABEL_NAME && !has_labels => FsError::NotSupported,
        error => error,
    }
}

/// LISTXATTR: names, each with its NUL.
pub async fn list(call: Call, get: GetXattrIn) -> FsResult<Answer> {
    let call = &call;
    let names = |credentials| async move { call.file_system().list_xattr(&credentials, call.inode).await };
    let mut joined = Vec::new();
    for name in call.caller.run(names).await? {
        joined.extend_from_slice(&name);
        joined.push(0);
    }
    sized(joined, get.size)
}

/// REMOVEXATTR. Linux asks for no capability where it takes a file's capabilities away itself,
/// because a user without privileges changes the file (`fallocate`); from a program it would have
/// asked before it called.
pub async fn remove(call: Call, name: Vec<u8>) -> FsResult<Answer> {
    let (call, name) = (&call, &name);
    if name == CAPABILITIES_NAME {
        call.file_system().remove_xattr(&Credentials::root(), call.inode, name).await?;
        return Ok(Answer::done());
    }
    let remove = |credentials| async move { call.file_system().remove_xattr(&credentials, call.inode, name).await };
    call.caller.run(remove).await?;
    Ok(Answer::done())
}

/// The value if it fits the caller's buffer; its size if the buffer has 0 bytes.
fn sized(value: Vec<u8>, capacity: u32) -> FsResult<Answer> {
    if capacity == 0 {
        return Ok(Answer::of(&GetXattrOut { size: value.len() as u32, padding: 0 }));
    }
    if value.len() > capacity as usize {
        return Err(FsError::Range);
    }
    Ok(Answer::bytes(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_label_is_not_supported_without_selinux() {
        assert_eq!(without_label(FsError::NoData, LABEL_NAME, false), FsError::NotSupported);
        assert_eq!(without_label(FsError::NoData, LABEL_NAME, true), FsError::NoData);
        assert_eq!(without_label(FsError::NoData, b"security.other", false), FsError::NoData);
        assert_eq!(without_label(FsError::Stale, LABEL_NAME, false), FsError::Stale);
    }

    #[test]
    fn values_are_sized_fitted_or_refused() {
        assert_eq!(sized(vec![7; 3], 0), Ok(Answer::of(&GetXattrOut { size: 3, padding: 0 })));
        assert_eq!(sized(vec![7; 3], 3), Ok(Answer::bytes(vec![7; 3])));
        assert_eq!(sized(vec![7; 3], 2), Err(FsError::Range));
    }
}
