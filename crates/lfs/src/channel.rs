//! The connection from a path to its mount: opens the file for the control ioctl and converts its
//! errors to errno values.

use std::{
    fs::File,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use host::mount_table::{self, FILE_SYSTEM_TYPE, MountEntry};
use rpc::message::control::{ControlReply, ControlRequest, Subject, TargetStatus};
use rpc::message::mgs::Pool;
use types::{FsError, InodeNumber};

/// The C library's words for an errno value, as Lustre's tools print them.
pub fn strerror(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Why a request through a mount failed, as an errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// Why a request through a mount failed, with the server's own words if it has some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// It was not executed.
    System(Errno),
    /// The file system refused it.
    Refused(FsError),
}

impl CallError {
    /// As an errno value.
    pub fn errno(&self) -> Errno {
        match self {
            CallError::System(errno) => *errno,
            CallError::Refused(error) => Errno(host::errno::of(error).0),
        }
    }
}

impl From<Errno> for CallError {
    fn from(errno: Errno) -> Self {
        CallError::System(errno)
    }
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> Self {
        CallError::System(error.into())
    }
}

/// Sends `request` through the file or directory at `path`.
pub fn ask(path: &Path, request: &ControlRequest) -> Result<ControlReply, CallError> {
    let file = File::open(path)?;
    match host::ioctl::call(&file, request)? {
        ControlReply::Error(error) => Err(CallError::Refused(error)),
        reply => Ok(reply),
    }
}

/// [`ask`], for callers that need only the errno value.
pub fn call(path: &Path, request: &ControlRequest) -> Result<ControlReply, Errno> {
    ask(path, request).map_err(|error| error.errno())
}

/// Splits `path` into a directory to open and the subject there, so that a file need not be
/// readable to be asked about. Symbolic links at the end are not followed unless they lead to a
/// directory.
pub fn subject(path: &Path) -> Result<(PathBuf, Subject), Errno> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok((path.to_owned(), Subject::This));
    }
    std::fs::symlink_metadata(path)?;
    let name = path.file_name().ok_or(Errno(libc::EINVAL))?;
    Ok((parent(path), Subject::Name(name.as_bytes().to_vec())))
}

/// The directory that holds `path`'s last name.
pub fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Inode number of what is at `path`.
pub fn inode(path: &Path) -> Result<InodeNumber, Errno> {
    let (directory, subject) = subject(path)?;
    match call(&directory, &ControlRequest::GetInode(subject))? {
        ControlReply::Inode(inode) => Ok(inode),
        _ => Err(Errno(libc::EPROTO)),
    }
}

/// All targets of the file system `path` is on.
pub fn targets(path: &Path) -> Result<Vec<TargetStatus>, Errno> {
    match call(path, &ControlRequest::Targets)? {
        ControlReply::Targets(targets) => Ok(targets),
        _ => Err(Errno(libc::EPROTO)),
    }
}

/// All pools of the file system `path` is on.
pub fn pools(path: &Path) -> Result<Vec<Pool>, Errno> {
    match call(path, &ControlRequest::Pools)? {
        ControlReply::Pools(pools) => Ok(pools),
        _ => Err(Errno(libc::EPROTO)),
    }
}

/// Names of the file system and of the client at `path`.
pub fn name(path: &Path) -> Result<(String, String), Errno> {
    match call(path, &ControlRequest::Name)? {
        ControlReply::Name(fsname, client) => Ok((fsname, client)),
        _ => Err(Errno(libc::EPROTO)),
    }
}

/// Makes everything acknowledged so far durable on the file system `path` is on.
pub fn sync(path: &Path) -> Result<(), Errno> {
    match call(path, &ControlRequest::SyncAll)? {
        ControlReply::Done => Ok(()),
        _ => Err(Errno(libc::EPROTO)),
    }
}

/// A mount of a StriaFS file system on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub point: PathBuf,
}

/// All StriaFS mounts, in the order they were made.
pub fn mounts() -> io::Result<Vec<Mount>> {
    let ours = |entry: MountEntry| (entry.kind == FILE_SYSTEM_TYPE).then_some(Mount { point: entry.point });
    Ok(mount_table::read()?.into_iter().filter_map(ours).collect())
}

/// The mount that `path` is on, if it is one of StriaFS.
pub fn mount_of(path: &Path) -> Result<Option<Mount>, Errno> {
    let absolute = std::fs::canonicalize(path)?;
    let inside = mounts()?.into_iter().filter(|mount| absolute.starts_with(&mount.point));
    Ok(inside.max_by_key(|mount| mount.point.as_os_str().len()))
}

/// How long a file that is in use is looked at again, where the user does not want to wait: the
/// kernel tells of the last close of a file a moment later than the program that closed it
/// continues.
const MOMENT: Duration = Duration::from_secs(1);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Waits for the next look at a file that is in use, after so many; false: enough of that.
pub fn pause_while_in_use(looks: u32) -> bool {
    let is_worth_it = PAUSE * looks <= MOMENT;
    if is_worth_it {
        std::thread::sleep(PAUSE);
    }
    is_worth_it
}

/// Tries until the file is not in use (EBUSY) any more: for a moment only, unless `wait`.
pub fn when_free<T>(wait: bool, attempt: impl Fn() -> Result<T, CallError>) -> Result<T, CallError> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if error.errno() == Errno(libc::EBUSY) && (wait || begun.elapsed() < MOMENT) => {
                std::thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_worded_as_in_c() {
        assert_eq!(strerror(libc::ENOTTY), "Inappropriate ioctl for device");
    }
}
