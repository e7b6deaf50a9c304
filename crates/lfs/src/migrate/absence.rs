//! Finds out which MDT does not answer, where something failed because of that.
//!
//! An error of the mount names it, or of another MDT. One of the kernel does not: then the mount is
//! asked, through its root, which is open from the beginning: nothing else may be opened by then.

use std::{fs::File, path::Path};

use rpc::message::{
    control::{ControlReply, ControlRequest, TargetStatus},
    mgs::TargetRole,
};
use types::FsError;

use super::copy::Stop;
use crate::{
    channel::{self, CallError, Errno},
    outcome::Failure,
};

/// The mount of what is migrated.
pub struct Absence {
    root: Option<File>,
}

impl Absence {
    /// Of the mount on which this path is. Nothing on the way is looked at: it may be there.
    pub fn on(path: &Path) -> Self {
        let (path, mounts) = (std::path::absolute(path).unwrap_or_default(), channel::mounts().unwrap_or_default());
        let above = mounts.into_iter().filter(|mount| path.starts_with(&mount.point));
        let mount = above.max_by_key(|mount| mount.point.as_os_str().len());
        Self { root: mount.and_then(|mount| File::open(mount.point).ok()) }
    }

    /// The end of a migration, if an MDT that does not answer is why it fails at a path. So many
    /// have moved.
    pub fn end(&self, path: &Path, error: &CallError, moved: u64) -> Option<Stop> {
        let absent = self.absent_mdt(error)?;
        let (Errno(errno), path) = (error.errno(), path.display());
        let rest = "run the command again when it is there: it goes on where it ended";
        let message = format!("lfs migrate: {path}: {absent}; {moved} moved, {rest} ({errno})");
        Some(Failure::new(errno, message).into())
    }

    /// Which MDT is absent, in words, if that is the reason of an error.
    fn absent_mdt(&self, error: &CallError) -> Option<String> {
        match error {
            CallError::Refused(error @ FsError::Unreachable { target, .. }) => {
                is_mdt(target).then(|| error.to_string())
            }
            CallError::System(Errno(libc::EIO)) => {
                let reply = host::ioctl::call(self.root.as_ref()?, &ControlRequest::Targets).ok()?;
                let ControlReply::Targets(targets) = reply else { return None };
                silent_mdt(&targets).map(|name| format!("{name} does not answer"))
            }
            _ => None,
        }
    }
}

/// Whether this is the name of an MDT (`stria-MDT0003`).
fn is_mdt(target: &str) -> bool {
    target.rsplit_once('-').is_some_and(|(_, target)| target.starts_with("MDT"))
}

/// The first MDT that is in use and has not answered.
fn silent_mdt(targets: &[TargetStatus]) -> Option<&str> {
    let is_silent =
        |target: &&TargetStatus| matches!(target.role, TargetRole::Mdt(_)) && target.active && !target.connected;
    targets.iter().find(is_silent).map(|target| target.uuid.trim_end_matches("_UUID"))
}

#[cfg(test)]
mod tests {
    use rpc::message::ost::TargetCondition;
    use types::{MdtIndex, OstIndex};

    use super::*;

    fn unreachable(target: &str) -> CallError {
        let cause = Some("connection refused".to_owned());
        CallError::Refused(FsError::Unreachable { target: target.to_owned(), seconds: 100, cause })
    }

    #[test]
    fn an_mdt_that_does_not_answer_is_named_by_the_error() {
        let nowhere = Absence { root: None };
        let told = "stria-MDT0001 did not answer for 100 s: connection refused";
        assert_eq!(nowhere.absent_mdt(&unreachable("stria-MDT0001")), Some(told.to_owned()));
        for other in [unreachable("stria-OST0001"), Errno(libc::EIO).into(), Errno(libc::EBUSY).into()] {
            assert_eq!(nowhere.absent_mdt(&other), None, "{other:?}");
        }
    }

    #[test]
    fn an_mdt_that_is_in_use_and_silent_is_found_among_the_targets() {
        let status = |role, uuid: &str, active, connected| TargetStatus {
            role,
            uuid: uuid.to_owned(),
            address: String::new(),
            active,
            connected,
            condition: TargetCondition::default(),
            space: None,
        };
        let mut targets = vec![
            status(TargetRole::Mdt(MdtIndex(0)), "stria-MDT0000_UUID", true, true),
            status(TargetRole::Mdt(MdtIndex(1)), "stria-MDT0001_UUID", false, false),
            status(TargetRole::Ost(OstIndex(0)), "stria-OST0000_UUID", true, false),
        ];
        assert_eq!(silent_mdt(&targets), None);
        targets.push(status(TargetRole::Mdt(MdtIndex(2)), "stria-MDT0002_UUID", true, false));
        assert_eq!(silent_mdt(&targets), Some("stria-MDT0002"));
    }
}
