//! Where the control sockets of this host's daemons are by default: one place for root, one for
//! each other user.
//!
//! Root's is `/run/stria`. Another user's is `stria` in `$XDG_RUNTIME_DIR`, which login creates for
//! that user alone; without one, `/tmp/stria-UID`. Any user can create a directory of that name, so
//! a place that does not belong to the user, or that others may write to, is refused: its owner
//! could answer in place of the daemon.
//!
//! A daemon whose socket is elsewhere (`stria up`, `run_dir` in a configuration) has a link here,
//! so that it is found too.

use std::{
    ffi::OsString,
    fs::DirBuilder,
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, symlink},
    path::{Path, PathBuf},
};

use rustix::process::{Uid, geteuid};

/// Directory of root's daemons.
const OF_ROOT: &str = "/run/stria";
/// Bits with which others may write.
const OTHERS_WRITE: u32 = 0o022;

/// The directory for this user.
pub fn default_path() -> PathBuf {
    place(geteuid(), std::env::var_os("XDG_RUNTIME_DIR"))
}

/// Where daemons of `user` have their sockets. A directory that is not absolute counts as none (XDG
/// Base Directory Specification).
fn place(user: Uid, runtime: Option<OsString>) -> PathBuf {
    let runtime = runtime.map(PathBuf::from).filter(|path| path.is_absolute());
    match (user.is_root(), runtime) {
        (true, _) => PathBuf::from(OF_ROOT),
        (false, Some(runtime)) => runtime.join("stria"),
        (false, None) => PathBuf::from(format!("/tmp/stria-{}", user.as_raw())),
    }
}

/// Makes a run directory if it is not there; refuses one that others control.
pub fn prepare(directory: &Path) -> io::Result<()> {
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => check(directory),
        made => made,
    }
}

/// Refuses a directory that others control. Root may look wherever it was told to.
pub fn check(directory: &Path) -> io::Result<()> {
    let metadata = std::fs::symlink_metadata(directory)?;
    let user = geteuid();
    if !user.is_root() && (metadata.uid() != user.as_raw() || metadata.mode() & OTHERS_WRITE != 0) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it belongs to another user, or others can write to it",
        ));
    }
    Ok(())
}

/// A daemon's link in the directory of its user. Dropping it removes the link.
#[derive(Debug)]
pub struct Registration {
    /// `None`: the socket itself is there.
    link: Option<PathBuf>,
}

impl Registration {
    /// Of a socket, which must exist.
    pub fn make(socket: &Path) -> io::Result<Self> {
        Self::within(&default_path(), socket)
    }

    /// The same, in `directory`.
    pub fn within(directory: &Path, socket: &Path) -> io::Result<Self> {
        prepare(directory)?;
        let name = socket.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = socket.parent().ok_or(io::ErrorKind::InvalidInput)?.canonicalize()?;
        if parent == directory.canonicalize()? {
            return Ok(Self { link: None });
        }
        let link = directory.join(name);
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(parent.join(name), &link)?;
        Ok(Self { link: Some(link) })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            let _ = std::fs::remove_file(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn every_user_has_a_place() {
        let user = Uid::from_raw(1000);
        let runtime = || Some(OsString::from("/run/user/1000"));
        assert_eq!(place(Uid::ROOT, runtime()), Path::new("/run/stria"));
        assert_eq!(place(user, runtime()), Path::new("/run/user/1000/stria"));
        assert_eq!(place(user, None), Path::new("/tmp/stria-1000"));
        assert_eq!(place(user, Some("relative".into())), Path::new("/tmp/stria-1000"));
        assert_eq!(place(user, Some("".into())), Path::new("/tmp/stria-1000"));
    }

    #[test]
    fn a_run_directory_is_made_for_its_user_alone() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("a/run");
        prepare(&directory).unwrap();
        assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        prepare(&directory).unwrap();
        assert_eq!(check(&place.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
