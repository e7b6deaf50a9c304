//! A mount: the entry in the system's mount table, and the session that serves it.
//!
//! Life cycle: [`Mount::new`] checks the mount point, removes a mount that a killed process left
//! there, mounts, and serves until [`Mount::unmount`], or until another program unmounts it (then
//! [`Mount::ended`] says so). Root mounts by mount(2); other users through `fusermount3`. A mount
//! dropped without `unmount` is unmounted lazily.
//!
//! Invariant: only mounts of type `fuse.stria` are ever removed, and by [`Mount::unmount`] only the
//! one it made. Downside: the checks and the mount are separate steps; a mount made between them is
//! mounted over.

pub mod fusermount;
pub mod helper;
pub mod options;
pub mod writability;

use std::{
    ffi::CString,
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use client::FileSystem;
use host::mount_table::{self, FILE_SYSTEM_TYPE, MountEntry, is_dead};
use rt::real::Cores;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::sync::watch;

use crate::protocol::flags::init::POSIX_ACL;
use crate::session::device::Device;
use crate::session::init::READ_AHEAD_BYTES;
use crate::session::{EntryBytes, Handler, Session, SessionError, SessionOptions, Transport, transfer_size};
use crate::{Adapter, KernelCache};
pub use options::{MountOptions, MountSource, ParseError};
use writability::Writability;

/// Why something could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "every variant has the mount point, and the text says the rest")]
pub enum MountError {
    #[error("mount point {point} does not exist")]
    NotFound { point: PathBuf },
    #[error("mount point {point} is not a directory")]
    NotDirectory { point: PathBuf },
    #[error("{mounted} is already mounted on {point}")]
    AlreadyMounted { point: PathBuf, mounted: String },
    #[error("{point} is busy")]
    Busy { point: PathBuf },
    #[error("{point} is not a StriaFS mount")]
    NotMounted { point: PathBuf },
    #[error("{point} is a dead {kind} mount of another program; unmount it first")]
    DeadForeign { point: PathBuf, kind: String },
    #[error("mounting on {point} is not permitted: {error}")]
    NotPermitted { point: PathBuf, error: io::Error },
    #[error("/dev/fuse cannot be opened: {0}; is the kernel module fuse loaded?")]
    NoDevice(io::Error),
    #[error("cannot {doing} {point}: {error}")]
    System { doing: &'static str, point: PathBuf, error: io::Error },
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl MountError {
    fn system(doing: &'static str, point: &Path, error: impl Into<io::Error>) -> Self {
        let (point, error) = (point.to_owned(), error.into());
        match error.kind() {
            io::ErrorKind::NotFound => MountError::NotFound { point },
            io::ErrorKind::NotADirectory => MountError::NotDirectory { point },
            io::ErrorKind::ResourceBusy => MountError::Busy { point },
            io::ErrorKind::PermissionDenied => MountError::NotPermitted { point, error },
            _ => MountError::System { doing, point, error },
        }
    }
}

/// How an unmount went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It was not in use.
    Clean,
    /// It was in use: it has left the name space, and programs that still have files open get
    /// ENOTCONN.
    Detached,
    /// It had been unmounted before.
    Before,
}

/// A mounted and served file system.
pub struct Mount {
    point: PathBuf,
    device_number: String,
    session: Option<Session>,
    kernel_cache: Option<Arc<KernelCache>>,
}

impl Mount {
    /// Mounts `file_system` on the directory `point`. `source` is what `df` and `mount` show, as
    /// `mgs:9800:/stria`.
    pub fn new(
        file_system: Arc<FileSystem>,
        source: &str,
        point: &Path,
        options: &MountOptions,
        cores: Cores,
    ) -> Result<Mount, MountError> {
        let writability = Arc::new(Writability::new(options));
        let adapter = Adapter::new(file_system, options, writability.clone());
        let kernel_cache = adapter.kernel_cache().clone();
        let mut mount = Self::with_handler(adapter, source, point, options, cores)?;
        mount.kernel_cache = Some(kernel_cache);
        writability.mounted(&mount.device_number);
        Ok(mount)
    }

    /// As [`Mount::new`], with anything that answers requests.
    pub fn with_handler(
        handler: Arc<dyn Handler>,
        source: &str,
        point: &Path,
        options: &MountOptions,
        cores: Cores,
    ) -> Result<Mount, MountError> {
        let point = prepare(point)?;
        let data_bytes = transfer_size::of_host();
        let device = attach(source, &point, data_bytes, options)?;
        let threads = options.threads.unwrap_or_else(|| cores.count());
        let features = if options.default_permissions { POSIX_ACL } else { 0 };
        let (io_uring, entry_bytes) = (options.io_uring, EntryBytes::of_each(data_bytes));
        let options = SessionOptions { threads, features, io_uring, data_bytes, entry_bytes };
        let session = Session::start(device, options, handler, cores).inspect_err(|_| drop(detach(&point, true)))?;
        let entry = mount_table::find(&point).map_err(|error| MountError::system("find", &point, error))?;
        let device_number = entry.map(|entry| entry.device).unwrap_or_default();
        raise_read_ahead(&device_number);
        Ok(Mount { point, device_number, session: Some(session), kernel_cache: None })
    }

    /// The mount point, absolute and without symbolic links.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Number of its connection to the kernel, in /sys/fs/fuse/connections.
    pub fn connection(&self) -> Option<u32> {
        self.device_number.split_once(':')?.1.parse().ok()
    }

    /// What the kernel caches of it; `None` if it does not serve a [`FileSystem`].
    pub fn kernel_cache(&self) -> Option<&Arc<KernelCache>> {
        self.kernel_cache.as_ref()
    }

    /// How requests come from the kernel.
    pub fn transport(&self) -> Transport {
        self.session.as_ref().expect("the session lives until the mount is consumed").transport()
    }

    /// Counts entries of io_uring that the kernel gave back without a request.
    pub fn ring_entries_refused(&self) -> &Arc<AtomicU64> {
        self.session.as_ref().expect("the session lives until the mount is consumed").entries_refused()
    }

    /// Becomes true when the mount is gone, whichever program unmounted it.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.session.as_ref().expect("the session lives until the mount is consumed").ended()
    }

    /// Unmounts and ends the workers; of a busy mount, the rest of its users see errors.
    pub fn unmount(mut self) -> Result<Unmounted, MountError> {
        self.end()
    }

    fn end(&mut self) -> Result<Unmounted, MountError> {
        let Some(session) = self.session.take() else { return Ok(Unmounted::Before) };
        let result = self.remove(&session);
        session.stop();
        result
    }

    /// Takes it out of the name space. Device numbers are reused, so a session that has ended is
    /// the first sign that the mount is gone, and another number the second.
    fn remove(&self, session: &Session) -> Result<Unmounted, MountError> {
        if *session.ended().borrow() {
            return Ok(Unmounted::Before);
        }
        let entry = mount_table::find(&self.point).map_err(|error| MountError::system("find", &self.point, error))?;
        if entry.is_none_or(|entry| entry.device != self.device_number) {
            return Ok(Unmounted::Before);
        }
        match detach(&self.point, false) {
            Ok(()) => Ok(Unmounted::Clean),
            Err(MountError::Busy { .. }) => detach(&self.point, true).map(|()| Unmounted::Detached),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "unmounting failed");
        }
    }
}

/// Changes the flags of a StriaFS mount of any process, as `mount -o remount,ro` does. Everything
/// but the flags stays as it is, and so do restrictions (`nodev`) that the options do not name.
pub fn remount(point: &Path, options: &MountOptions) -> Result<(), MountError> {
    let point = resolve(point)?;
    let restrictions = expect_ours(&point)?.restrictions;
    rustix::mount::mount_remount(&point, options.flags_of_remount(restrictions), c"")
        .map_err(|error| MountError::system("remount", &point, error))
}

/// Unmounts a StriaFS mount of any process by its path (`stria umount`). `lazy`: also if it is in
/// use.
pub fn unmount(point: &Path, lazy: bool) -> Result<(), MountError> {
    let point = resolve(point)?;
    expect_ours(&point)?;
    detach(&point, lazy)
}

/// The mount on `point`; refuses what is not a StriaFS mount.
fn expect_ours(point: &Path) -> Result<MountEntry, MountError> {
    let entry = mount_table::find(point).map_err(|error| MountError::system("find", point, error))?;
    let ours = entry.filter(|entry| entry.kind == FILE_SYSTEM_TYPE);
    ours.ok_or_else(|| MountError::NotMounted { point: point.to_owned() })
}

/// The absolute path of a mount point, also of one whose server is dead.
fn resolve(point: &Path) -> Result<PathBuf, MountError> {
    match std::fs::canonicalize(point) {
        Err(error) if is_dead(&error) => {
            let absolute = std::path::absolute(point).map_err(|error| MountError::system("find", point, error))?;
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
                return Err(MountError::system("find", point, error));
            };
            let parent = std::fs::canonicalize(parent).map_err(|error| MountError::system("find", point, error))?;
            Ok(parent.join(name))
        }
        other => other.map_err(|error| MountError::system("find", point, error)),
    }
}

/// Whether something can be mounted on `point`, as far as that is known before: it exists, is a
/// directory, has no StriaFS mount that works, and root finds the device. Changes nothing.
pub fn check(point: &Path) -> Result<(), MountError> {
    examine(&resolve(point)?)?;
    if rustix::process::geteuid().is_root() {
        Device::open().map_err(MountError::NoDevice)?;
    }
    Ok(())
}

/// What is on a possible mount point.
enum Condition {
    /// Nothing of ours.
    Free,
    /// A mount of ours whose process was killed.
    Dead(MountEntry),
}

/// Looks at an absolute path; an error if nothing can be mounted there.
fn examine(point: &Path) -> Result<Condition, MountError> {
    let entry = mount_table::find(point).map_err(|error| MountError::system("find", point, error))?;
    let owned = || point.to_owned();
    match (std::fs::metadata(point), entry) {
        (Ok(_), Some(entry)) if entry.kind == FILE_SYSTEM_TYPE => {
            Err(MountError::AlreadyMounted { point: owned(), mounted: entry.source })
        }
        (Ok(metadata), _) if !metadata.is_dir() => Err(MountError::NotDirectory { point: owned() }),
        (Ok(_), _) => Ok(Condition::Free),
        (Err(error), Some(entry)) if is_dead(&error) => match entry.kind == FILE_SYSTEM_TYPE {
            true => Ok(Condition::Dead(entry)),
            false => Err(MountError::DeadForeign { point: owned(), kind: entry.kind }),
        },
        (Err(error), _) => Err(MountError::system("examine", point, error)),
    }
}

/// Checks the mount point and removes dead mounts of ours from it; returns its absolute path.
fn prepare(point: &Path) -> Result<PathBuf, MountError> {
    let point = resolve(point)?;
    while let Condition::Dead(entry) = examine(&point)? {
        tracing::warn!(point = %point.display(), source = entry.source,
            "the process that served this mount was killed; removing what it left behind");
        detach(&point, true)?;
    }
    Ok(point)
}

/// Mounts, for requests with up to `data_bytes`; returns the device to be served.
fn attach(source: &str, point: &Path, data_bytes: usize, options: &MountOptions) -> Result<Device, MountError> {
    if rustix::process::geteuid().is_root() {
        attach_as_root(source, point, data_bytes, options)
    } else {
        attach_through_helper(source, point, data_bytes, options)
    }
}

fn attach_as_root(source: &str, point: &Path, data_bytes: usize, options: &MountOptions) -> Result<Device, MountError> {
    let device = Device::open().map_err(MountError::NoDevice)?;
    let mode = std::fs::metadata(point).map_err(|error| MountError::system("examine", point, error))?.mode();
    let allow_other = if options.allow_other.unwrap_or(true) { ",allow_other" } else { "" };
    let default_permissions = if options.default_permissions { ",default_permissions" } else { "" };
    let data = format!(
        "fd={},rootmode={:o},user_id=0,group_id=0,max_read={data_bytes}{allow_other}{default_permissions}",
        device.descriptor(),
        mode & libc::S_IFMT,
    );
    let data = CString::new(data).expect("numbers and words contain no NUL");
    rustix::mount::mount(source, point, FILE_SYSTEM_TYPE, options.flags_of_mount(), data.as_c_str())
        .map_err(|error| MountError::system("mount on", point, error))?;
    Ok(device)
}

fn attach_through_helper(
    source: &str,
    point: &Path,
    data_bytes: usize,
    options: &MountOptions,
) -> Result<Device, MountError> {
    let source = fusermount::escape(source);
    let mut text = format!("fsname={source},subtype=stria,max_read={data_bytes}");
    // The helper adds nosuid and nodev by itself, whatever is asked for.
    let flags = [
        (MountFlags::RDONLY, "ro"),
        (MountFlags::NOEXEC, "noexec"),
        (MountFlags::SYNCHRONOUS, "sync"),
        (MountFlags::DIRSYNC, "dirsync"),
        (MountFlags::NOATIME, "noatime"),
    ];
    let words = flags.iter().filter(|(flag, _)| options.flags.contains(*flag)).map(|(_, word)| *word);
    let allow_other = options.allow_other.unwrap_or(false).then_some("allow_other");
    let default_permissions = options.default_permissions.then_some("default_permissions");
    for word in words.chain(allow_other).chain(default_permissions) {
        text.push(',');
        text.push_str(word);
    }
    fusermount::mount(point, &text).map_err(|error| MountError::system("mount on", point, error))
}

/// Takes a mount out of the name space.
fn detach(point: &Path, lazy: bool) -> Result<(), MountError> {
    let result = if rustix::process::geteuid().is_root() {
        let lazy = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match rustix::mount::unmount(point, lazy | UnmountFlags::NOFOLLOW) {
            // Gone in the meantime.
            Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            other => other.map_err(io::Error::from),
        }
    } else {
        fusermount::unmount(point, lazy)
    };
    result.map_err(|error| MountError::system("unmount", point, error))
}

/// The kernel reads mapped files ahead by 128 KiB whatever INIT says; only root can raise it.
/// Without it, mapped reads are slower, nothing else.
fn raise_read_ahead(device_number: &str) {
    let path = format!("/sys/class/bdi/{device_number}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (READ_AHEAD_BYTES / 1024).to_string()) {
        tracing::debug!(path, %error, "cannot raise the read-ahead");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_that_cannot_be_are_refused_by_cause() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(matches!(prepare(&file), Err(MountError::NotDirectory { .. })));
        assert!(matches!(prepare(&directory.path().join("absent")), Err(MountError::NotFound { .. })));
        assert!(matches!(prepare(&file.join("below")), Err(MountError::NotDirectory { .. })));
        assert_eq!(prepare(directory.path()).unwrap(), directory.path().canonicalize().unwrap());
    }

    #[test]
    fn only_our_mounts_are_touched() {
        let directory = tempfile::tempdir().unwrap();
        assert!(matches!(unmount(directory.path(), true), Err(MountError::NotMounted { .. })));
        assert!(matches!(unmount(Path::new("/"), true), Err(MountError::NotMounted { .. })));
        assert!(matches!(remount(Path::new("/"), &MountOptions::default()), Err(MountError::NotMounted { .. })));
    }
}
