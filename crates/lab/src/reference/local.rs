//! Operations on a directory of a mounted file system, by system calls.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, XattrFlags},
    io::Errno,
};
use types::{FileKind, FsError};

use super::operation::{Facts, Operation, Outcome, RenameFlag, Subject, pattern};

/// A directory that operations happen below. The process must be root and its umask 0.
pub struct Local {
    root: PathBuf,
}

type Fallible<T> = Result<T, Errno>;

impl Local {
    /// Operations below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Does one operation.
    pub fn apply(&self, operation: &Operation) -> Outcome {
        self.execute(operation).unwrap_or_else(|errno| Outcome::Failed(fs_error(errno)))
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn execute(&self, operation: &Operation) -> Fallible<Outcome> {
        match operation.subject() {
            Subject::Entries | Subject::Mode => self.change_names(operation)?,
            Subject::Data => return self.use_data(operation),
            Subject::Xattrs => return self.use_xattr(operation),
            Subject::Looks => return self.look(operation),
        }
        Ok(Outcome::Done)
    }

    fn look(&self, operation: &Operation) -> Fallible<Outcome> {
        match operation {
            Operation::ReadLink { path } => {
                let target = rustix::fs::readlink(self.at(path), Vec::new())?;
                Ok(Outcome::Target(target.to_string_lossy().into_owned()))
            }
            // Nothing that a file system on one device could do.
            Operation::Split { path } | Operation::Move { path } => {
                errno(fs::symlink_metadata(self.at(path))).map(|_| Outcome::Done)
            }
            Operation::Stat { path } => Ok(Outcome::Facts(facts(&errno(fs::symlink_metadata(self.at(path)))?))),
            Operation::List { path } => self.list(path),
            _ => unreachable!("dispatched by subject"),
        }
    }

    fn use_xattr(&self, operation: &Operation) -> Fallible<Outcome> {
        match operation {
            Operation::SetXattr { path, name, value } => {
                rustix::fs::setxattr(self.at(path), name.as_str(), value, XattrFlags::empty())?;
            }
            Operation::GetXattr { path, name } => {
                let mut value = vec![0u8; 65536];
                let count = rustix::fs::getxattr(self.at(path), name.as_str(), value.as_mut_slice())?;
                value.truncate(count);
                return Ok(Outcome::Data(value));
            }
            Operation::RemoveXattr { path, name } => rustix::fs::removexattr(self.at(path), name.as_str())?,
            _ => unreachable!("dispatched by subject"),
        }
        Ok(Outcome::Done)
    }

    fn change_names(&self, operation: &Operation) -> Fallible<()> {
        match operation {
            Operation::Create { path, mode, exclusive } => {
                let exclusive = if *exclusive { OFlags::EXCL } else { OFlags::empty() };
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NONBLOCK | exclusive;
                drop(rustix::fs::open(self.at(path), flags, Mode::from_bits_truncate(*mode))?);
            }
            Operation::MakeDirectory { path, mode } => {
                rustix::fs::mkdir(self.at(path), Mode::from_bits_truncate(*mode))?;
            }
            Operation::Symlink { path, target } => rustix::fs::symlink(target.as_str(), self.at(path))?,
            Operation::MakeFifo { path, mode } => {
                rustix::fs::mknodat(CWD, self.at(path), FileType::Fifo, Mode::from_bits_truncate(*mode), 0)?;
            }
            Operation::Unlink { path } => rustix::fs::unlink(self.at(path))?,
            Operation::RemoveDirectory { path } => rustix::fs::rmdir(self.at(path))?,
            Operation::Rename { from, to, flag } => {
                let flags = match flag {
                    RenameFlag::Replace => RenameFlags::empty(),
                    RenameFlag::NoReplace => RenameFlags::NOREPLACE,
                    RenameFlag::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)?;
            }
            Operation::Link { from, to } => {
                rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty())?;
            }
            Operation::SetMode { path, mode } => {
                rustix::fs::chmod(self.at(path), Mode::from_bits_truncate(*mode))?;
            }
            _ => unreachable!("dispatched by subject"),
        }
        Ok(())
    }

    fn use_data(&self, operation: &Operation) -> Fallible<Outcome> {
        match operation {
            Operation::Read { path, offset, bytes } => self.read(path, *offset, *bytes).map(Outcome::Data),
            _ => self.change_data(operation).map(|()| Outcome::Done),
        }
    }

    fn read(&self, path: &str, offset: u64, bytes: usize) -> Fallible<Vec<u8>> {
        let mut data = vec![0; bytes];
        let file = open(&self.at(path), OFlags::RDONLY | OFlags::NONBLOCK)?;
        if errno(file.metadata())?.permissions().mode() & 0o170000 == 0o010000 {
            return Err(Errno::NXIO);
        }
        let count = read_fully(&file, &mut data, offset)?;
        data.truncate(count);
        Ok(data)
    }

    fn change_data(&self, operation: &Operation) -> Fallible<()> {
        let write_only = OFlags::WRONLY | OFlags::NONBLOCK;
        match operation {
            Operation::Write { path, offset, bytes, seed } => {
                let file = open(&self.at(path), write_only)?;
                errno(file.write_all_at(&pattern(*seed, *offset, *bytes), *offset))
            }
            Operation::Append { path, bytes, seed } => {
                let path = self.at(path);
                let mut file =
                    errno(OpenOptions::new().append(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&path))?;
                let offset = errno(file.metadata())?.len();
                errno(file.write_all(&pattern(*seed, offset, *bytes)))
            }
            Operation::Truncate { path, size } => {
                use std::os::unix::ffi::OsStrExt;
                let path = std::ffi::CString::new(self.at(path).as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
                let size = i64::try_from(*size).map_err(|_| Errno::INVAL)?;
                // SAFETY: `path` is a NUL-terminated string that outlives the call.
                match unsafe { libc::truncate(path.as_ptr(), size) } {
                    0 => Ok(()),
                    _ => errno(Err(io::Error::last_os_error())),
                }
            }
            Operation::Allocate { path, offset, bytes } => {
                self.allocate(path, FallocateFlags::empty(), *offset, *bytes)
            }
            Operation::Punch { path, offset, bytes } => {
                self.allocate(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, *offset, *bytes)
            }
            Operation::Zero { path, offset, bytes } => self.allocate(path, FallocateFlags::ZERO_RANGE, *offset, *bytes),
            Operation::Sync { path } => errno(open(&self.at(path), write_only)?.sync_all()),
            // Only of a file, and nothing that a file system without layouts could show.
            Operation::Migrate { path, .. } => open(&self.at(path), write_only).map(drop),
            _ => unreachable!("dispatched by subject"),
        }
    }

    fn allocate(&self, path: &str, flags: FallocateFlags, offset: u64, bytes: u64) -> Fallible<()> {
        let file = open(&self.at(path), OFlags::WRONLY | OFlags::NONBLOCK)?;
        rustix::fs::fallocate(&file, flags, offset, bytes)
    }

    fn list(&self, path: &str) -> Fallible<Outcome> {
        let mut names = Vec::new();
        for entry in errno(fs::read_dir(self.at(path)))? {
            names.push(errno(entry)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(Outcome::Names(names))
    }
}

fn open(path: &Path, flags: OFlags) -> Fallible<File> {
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

fn read_fully(file: &File, buffer: &mut [u8], offset: u64) -> Fallible<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match errno(file.read_at(&mut buffer[done..], offset + done as u64))? {
            0 => break,
            count => done += count,
        }
    }
    // An empty read still tells a directory from a file.
    if buffer.is_empty() && errno(file.metadata())?.is_dir() {
        return Err(Errno::ISDIR);
    }
    Ok(done)
}

fn facts(metadata: &fs::Metadata) -> Facts {
    let kind = match metadata.mode() & 0o170000 {
        0o040000 => FileKind::Directory,
        0o120000 => FileKind::Symlink,
        0o010000 => FileKind::Fifo,
        0o140000 => FileKind::Socket,
        0o020000 => FileKind::CharacterDevice,
        0o060000 => FileKind::BlockDevice,
        _ => FileKind::Regular,
    };
    let size = if kind == FileKind::Directory { 0 } else { metadata.len() };
    Facts { kind, mode: metadata.mode() & 0o7777, links: metadata.nlink() as u32, size }
}

fn errno<T>(result: io::Result<T>) -> Fallible<T> {
    result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The cause of an errno, for the errors these operations can meet.
fn fs_error(errno: Errno) -> FsError {
    match errno {
        Errno::NOENT => FsError::NotFound,
        Errno::EXIST => FsError::Exists,
        Errno::NOTDIR => FsError::NotDirectory,
        Errno::ISDIR => FsError::IsDirectory,
        Errno::NOTEMPTY => FsError::NotEmpty,
        Errno::ACCESS => FsError::AccessDenied,
        Errno::PERM => FsError::NotPermitted,
        Errno::INVAL => FsError::Invalid,
        Errno::NODATA => FsError::NoData,
        Errno::NXIO => FsError::NoDeviceOrAddress,
        Errno::NOSPC => FsError::NoSpace,
        Errno::LOOP => FsError::Loop,
        other => FsError::Device { target: "local".to_owned(), detail: other.to_string() },
    }
}
