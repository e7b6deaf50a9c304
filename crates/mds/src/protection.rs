//! What the flags of a file or directory (chattr +i and +a) forbid to every user, including root:
//! the rules of Linux's VFS and of ext4, in their terms. Nothing here depends on who the caller is;
//! only root sets the flags.
//!
//! An immutable file cannot be changed, removed, renamed or linked, and in an immutable directory
//! no name can be created or removed. An append-only file can be opened for writing only with
//! O_APPEND, and in an append-only directory names can only be created. A file that was open before
//! a flag was set can still be used as before, as long as it is open.

use rpc::message::mdt::{OpenFlags, open_flag};
use types::{
    Attributes, FsError, FsResult, SetAttributes, SetTime,
    attributes::file_flag::{APPEND_ONLY, IMMUTABLE},
};

fn has(attributes: &Attributes, flag: u32) -> bool {
    attributes.flags & flag != 0
}

fn refuse(forbidden: bool) -> FsResult<()> {
    if forbidden { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// Changing contents: of a directory, making names too (inode_permission).
pub(crate) fn check_write(attributes: &Attributes) -> FsResult<()> {
    refuse(has(attributes, IMMUTABLE))
}

/// Changing or removing what is there: other names of it, extended attributes, truncation
/// (may_delete, vfs_link, xattr_permission, vfs_truncate).
pub(crate) fn check_change(attributes: &Attributes) -> FsResult<()> {
    refuse(has(attributes, IMMUTABLE | APPEND_ONLY))
}

/// Taking a name out of a directory (may_delete).
pub(crate) fn check_removal(directory: &Attributes, victim: &Attributes) -> FsResult<()> {
    check_change(directory)?;
    check_change(victim)
}

/// Opening (may_open).
pub(crate) fn check_open(attributes: &Attributes, flags: OpenFlags) -> FsResult<()> {
    let overwrites = flags.has(open_flag::WRITE) && !flags.has(open_flag::APPEND);
    let changes = overwrites || flags.has(open_flag::TRUNCATE);
    refuse(has(attributes, APPEND_ONLY) && changes || has(attributes, IMMUTABLE) && flags.has(open_flag::TRUNCATE))
}

/// Changing attributes (notify_change, ext4_setattr). The flags themselves can be changed.
pub(crate) fn check_attributes(attributes: &Attributes, changes: &SetAttributes) -> FsResult<()> {
    let set = |time: Option<SetTime>| matches!(time, Some(SetTime::To(_)));
    // FS_IOC_FSSETXATTR sets it whatever is to be changed.
    let project = changes.project.is_some_and(|project| project != attributes.project);
    let owner = changes.uid.is_some() || changes.gid.is_some() || project;
    let owner = owner || changes.mode.is_some();
    let fixed = owner || set(changes.atime) || set(changes.mtime);
    let any = fixed || changes.atime.is_some() || changes.mtime.is_some();
    refuse(has(attributes, IMMUTABLE) && any || has(attributes, APPEND_ONLY) && fixed)
}

#[cfg(test)]
mod tests {
    use types::FileKind;

    use super::*;
    use crate::tables::inode::tests::sample;

    fn with(flags: u32) -> Attributes {
        Attributes { flags, ..sample(FileKind::Regular).attributes }
    }

    #[test]
    fn files_without_flags_are_free_and_others_are_not() {
        let (free, fixed, grows) = (with(0), with(IMMUTABLE), with(APPEND_ONLY));
        assert_eq!([&free, &fixed, &grows].map(|file| check_write(file).is_ok()), [true, false, true]);
        assert_eq!([&free, &fixed, &grows].map(|file| check_change(file).is_ok()), [true, false, false]);
        for (directory, victim, allowed) in [(&free, &free, true), (&grows, &free, false), (&free, &fixed, false)] {
            assert_eq!(check_removal(directory, victim).is_ok(), allowed);
        }
    }

    #[test]
    fn what_can_only_be_appended_to_is_opened_for_that() {
        use open_flag::{APPEND, READ, TRUNCATE, WRITE};
        let opens = |flags: u32| check_open(&with(APPEND_ONLY), OpenFlags(flags)).is_ok();
        assert!(opens(READ) && opens(WRITE | APPEND) && opens(READ | WRITE | APPEND));
        assert!(!opens(WRITE) && !opens(WRITE | APPEND | TRUNCATE) && !opens(READ | TRUNCATE));
    }

    #[test]
    fn only_touching_is_left_to_what_can_only_be_appended_to() {
        let now = SetAttributes { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttributes::default() };
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let flags = SetAttributes { flags: Some(0), ..SetAttributes::default() };
        let allowed = |of: u32, changes: &SetAttributes| check_attributes(&with(of), changes).is_ok();
        assert!(allowed(APPEND_ONLY, &now) && !allowed(APPEND_ONLY, &mode) && allowed(APPEND_ONLY, &flags));
        assert!(!allowed(IMMUTABLE, &now) && !allowed(IMMUTABLE, &mode) && allowed(IMMUTABLE, &flags));
    }
}
