//! Existing files and block devices that are to hold a target: whose they are, and who can read
//! them.
//!
//! What a target writes there has the data of all files, and, without a directory, the file
//! system's server key. So a file gets mode 0600, and the user of the daemon as its owner. The
//! entry of a block device in `/dev` is made anew whenever the host starts: the administrator is
//! told what is missing instead.

use std::{
    fs::{File, Permissions},
    io::ErrorKind,
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::Path,
};

use anyhow::Context;

/// Permissions of users other than the owner.
const OTHERS: u32 = 0o077;
/// Permission to read, of users that are neither the owner nor in the group.
const READABLE_BY_ALL: u32 = 0o004;
const PRIVATE: u32 = 0o600;

/// Takes a file or block device for a target, whose daemon is run by `owner`; what the
/// administrator has to know, if anything.
pub(super) fn take_over(path: &Path, owner: Option<(u32, u32)>) -> anyhow::Result<Option<String>> {
    let shown = path.display();
    let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.with_context(|| format!("cannot read and write {shown}"))?;
    let found = file.metadata().with_context(|| format!("cannot access {shown}"))?;
    let mode = found.mode() & 0o7777;
    if found.file_type().is_block_device() {
        return Ok(about_device(path, mode, (found.uid(), found.gid()), owner));
    }
    let mut notice = None;
    if mode & OTHERS != 0 {
        notice = Some(match file.set_permissions(Permissions::from_mode(PRIVATE)) {
            Ok(()) => format!("{shown}: mode changed from {mode:o} to {PRIVATE:o}, because it will hold all data"),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                format!(
                    "{shown} has mode {mode:o} and will hold all data: take it from other users (chmod 600 {shown})"
                )
            }
            Err(error) => return Err(error).with_context(|| format!("cannot change the mode of {shown}")),
        });
    }
    if let Some((uid, gid)) = owner {
        fchown(&file, Some(uid), Some(gid)).with_context(|| format!("cannot change the owner of {shown}"))?;
    }
    Ok(notice)
}

fn about_device(path: &Path, mode: u32, found: (u32, u32), owner: Option<(u32, u32)>) -> Option<String> {
    let shown = path.display();
    let open = (mode & READABLE_BY_ALL != 0)
        .then(|| format!("every user can read {shown} (mode {mode:o}), which will hold all data"));
    let foreign = owner.filter(|(uid, gid)| *uid != found.0 && (*gid != found.1 || mode & 0o060 != 0o060));
    let foreign = foreign.map(|(uid, _)| format!("user {uid}, who is to serve it, may not own or use {shown}"));
    let problems: Vec<String> = open.into_iter().chain(foreign).collect();
    let remedy = "give it to the user of the daemon, with mode 600, by a udev rule (/dev is made anew at each start)";
    (!problems.is_empty()).then(|| format!("{}: {remedy}", problems.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_private_and_devices_are_reported() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("image");
        let file = File::create(&path).unwrap();
        for (mode, is_changed) in [(0o644, true), (0o640, true), (0o622, true), (0o600, false)] {
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            let notice = take_over(&path, None).unwrap();
            assert_eq!(notice.is_some_and(|notice| notice.contains("mode changed from")), is_changed, "{mode:o}");
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
        }
        let device = |mode, owner| about_device(Path::new("/dev/vdb"), mode, (0, 6), owner);
        assert_eq!((device(0o660, None), device(0o600, Some((0, 0))), device(0o660, Some((9, 6)))), (None, None, None));
        assert!(device(0o664, None).unwrap().contains("every user can read /dev/vdb (mode 664)"));
        assert!(device(0o660, Some((9, 9))).unwrap().contains("user 9"));
        assert!(device(0o600, Some((9, 6))).unwrap().contains("udev"));
    }
}
