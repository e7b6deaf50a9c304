//! What benchmarks run on: a directory of any mounted file system by system calls, or the native
//! client by function calls.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use client::{EntryAttributes, FileSystem, NewFile, NewNode, OpenFile, ReadData, WriteOptions};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use parking_lot::Mutex;
use rpc::message::{
    control::{ControlReply, ControlRequest},
    mdt::{OpenFlags, RenameMode, open_flag},
    mdt_peer::MakeDirectory,
};
use rt::real::Cores;
use types::{
    Attributes, Credentials, DirectoryPlace, FsError, InodeNumber, MdtIndex, NodeKind, SetAttributes, SetTime,
};

/// A file system under measurement. Paths are relative and use existing directories made through
/// the same target.
pub trait BenchTarget: Send + Sync {
    /// mkdir
    fn make_directory(&self, path: &str) -> io::Result<()>;
    /// mkdir at a place of the caller's choice. A file system without MDTs makes it where it has
    /// room.
    fn make_directory_at(&self, path: &str, place: &DirectoryPlace) -> io::Result<()>;
    /// mknod of a regular file, without opening it
    fn make_node(&self, path: &str) -> io::Result<()>;
    /// open(O_CREAT | O_RDWR)
    fn create(&self, path: &str) -> io::Result<Box<dyn TargetFile>>;
    /// open(O_RDWR)
    fn open(&self, path: &str) -> io::Result<Box<dyn TargetFile>>;
    /// From now on, files made in a directory have this many bytes on the MDT. A file system
    /// without MDTs is left as it is.
    fn keep_on_mdt(&self, directory: &str, bytes: u64) -> io::Result<()>;
    /// From now on, what can be a request is one. A file system without a client of ours is left as
    /// it is.
    fn cache_nothing(&self) -> io::Result<()> {
        Ok(())
    }
    /// Makes a file with these contents.
    fn create_with(&self, path: &str, contents: &Bytes) -> io::Result<()> {
        let file = self.create(path)?;
        file.write_at(contents, 0)?;
        file.close()
    }
    /// Fills `buffer` from the beginning of a file.
    fn read_whole(&self, path: &str, buffer: &mut [u8]) -> io::Result<()> {
        let file = self.open(path)?;
        file.read_at(buffer, 0)?;
        file.close()
    }
    /// Finds out that the name is there.
    fn lookup(&self, path: &str) -> io::Result<()>;
    /// stat
    fn stat(&self, path: &str) -> io::Result<u64>;
    /// utimensat: both times become the present one.
    fn set_times(&self, path: &str) -> io::Result<()>;
    /// Lists a directory; the number of names, without `.` and `..`.
    fn list(&self, directory: &str) -> io::Result<usize>;
    /// rename, to a name that is free
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// unlink
    fn unlink(&self, path: &str) -> io::Result<()>;
    /// rmdir
    fn remove_directory(&self, path: &str) -> io::Result<()>;
}

/// An open file.
pub trait TargetFile: Send + Sync {
    /// Writes all of `data`.
    fn write_at(&self, data: &Bytes, offset: u64) -> io::Result<()>;
    /// Fills `buffer`; an end before is an error.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// fsync
    fn sync(&self) -> io::Result<()>;
    /// close, with its error
    fn close(self: Box<Self>) -> io::Result<()>;
}

/// Layout of files whose first bytes are on the MDT.
fn on_mdt(bytes: u64) -> LayoutSpec {
    LayoutSpec::Composite(vec![
        ComponentSpec { end: bytes, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ])
}

/// A directory of a mounted file system.
pub struct PosixTarget {
    root: PathBuf,
    direct: bool,
}

impl PosixTarget {
    /// Everything below `root`; with O_DIRECT if `direct`.
    pub fn new(root: impl Into<PathBuf>, direct: bool) -> Self {
        Self { root: root.into(), direct }
    }

    fn options(&self) -> std::fs::OpenOptions {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(if self.direct { libc::O_DIRECT } else { 0 });
        options
    }
}

impl BenchTarget for PosixTarget {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        std::fs::create_dir(self.root.join(path))
    }

    fn make_directory_at(&self, path: &str, place: &DirectoryPlace) -> io::Result<()> {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let DirectoryPlace { mdt, stripes } = place.clone();
        let name = name.as_bytes().to_vec();
        let request = ControlRequest::MakeDirectory { name, mode: 0o755, umask: 0, mdt: Some(mdt), stripes };
        match host::ioctl::call(File::open(self.root.join(above))?, &request) {
            Ok(ControlReply::Created(_)) => Ok(()),
            Ok(ControlReply::Error(error)) => Err(io_error(error)),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            // Not ours.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.make_directory(path),
            Err(error) => Err(error),
        }
    }

    fn make_node(&self, path: &str) -> io::Result<()> {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        Ok(mknodat(CWD, self.root.join(path), FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn TargetFile>> {
        let file = self.options().create(true).truncate(false).open(self.root.join(path))?;
        Ok(Box::new(PosixFile { file }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn TargetFile>> {
        Ok(Box::new(PosixFile { file: self.options().open(self.root.join(path))? }))
    }

    fn keep_on_mdt(&self, directory: &str, bytes: u64) -> io::Result<()> {
        let request = ControlRequest::SetDefaultLayout(Some(on_mdt(bytes)));
        match host::ioctl::call(File::open(self.root.join(directory))?, &request) {
            Ok(ControlReply::Done) => Ok(()),
            Ok(ControlReply::Error(error)) => Err(io_error(error)),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            // Not ours.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn lookup(&self, path: &str) -> io::Result<()> {
        // Finds the inode and asks for nothing of it.
        use rustix::fs::{CWD, Mode, OFlags, openat};
        Ok(openat(CWD, self.root.join(path), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map(drop)?)
    }

    fn stat(&self, path: &str) -> io::Result<u64> {
        Ok(std::fs::metadata(self.root.join(path))?.len())
    }

    fn set_times(&self, path: &str) -> io::Result<()> {
        use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        Ok(utimensat(CWD, self.root.join(path), &times, AtFlags::empty())?)
    }

    fn list(&self, directory: &str) -> io::Result<usize> {
        std::fs::read_dir(self.root.join(directory))?.try_fold(0, |names, name| name.map(|_| names + 1))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.root.join(from), self.root.join(to))
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        std::fs::remove_file(self.root.join(path))
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        std::fs::remove_dir(self.root.join(path))
    }
}

struct PosixFile {
    file: File,
}

impl TargetFile for PosixFile {
    fn write_at(&self, data: &Bytes, offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        use std::os::fd::IntoRawFd;
        // SAFETY: the descriptor is owned and not used again.
        match unsafe { libc::close(self.file.into_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The native client. Directories made through it are remembered, as an application would keep them
/// open.
pub struct NativeTarget {
    file_system: Arc<FileSystem>,
    cores: Cores,
    directories: Mutex<BTreeMap<PathBuf, InodeNumber>>,
    credentials: Credentials,
}

impl NativeTarget {
    /// Everything below the file system's root.
    pub fn new(file_system: Arc<FileSystem>, cores: Cores) -> Self {
        let directories = Mutex::new(BTreeMap::from([(PathBuf::new(), InodeNumber::ROOT)]));
        Self { file_system, cores, directories, credentials: Credentials::root() }
    }

    fn split<'p>(&self, path: &'p str) -> io::Result<(InodeNumber, &'p [u8])> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.directory(parent)?, name.as_bytes()))
    }

    /// A directory that was made through this client, or is looked up once.
    fn directory(&self, path: &str) -> io::Result<InodeNumber> {
        if let Some(known) = self.directories.lock().get(Path::new(path)) {
            return Ok(*known);
        }
        let (parent, name) = self.split(path)?;
        let found = self.cores.block_on(self.file_system.lookup(&self.credentials, parent, name)).map_err(io_error)?;
        self.directories.lock().insert(PathBuf::from(path), found.inode);
        Ok(found.inode)
    }

    fn make(&self, path: &str, kind: NodeKind, mode: u32) -> io::Result<InodeNumber> {
        let (parent, name) = self.split(path)?;
        let node = NewNode { parent, name: name.to_vec(), kind, mode, umask: 0, layout: None };
        let made = self.cores.block_on(self.file_system.create(&self.credentials, node)).map_err(io_error)?;
        Ok(made.inode)
    }

    fn open_existing(&self, path: &str) -> Result<Arc<OpenFile>, io::Error> {
        let (parent, name) = self.split(path)?;
        let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
        self.cores
            .block_on(async {
                let attributes = self.file_system.lookup(&self.credentials, parent, name).await?;
                self.file_system.open(&self.credentials, attributes.inode, flags).await
            })
            .map_err(io_error)
    }

    fn find(&self, path: &str) -> io::Result<Attributes> {
        let (parent, name) = self.split(path)?;
        self.cores.block_on(self.file_system.lookup(&self.credentials, parent, name)).map_err(io_error)
    }

    fn file(&self, file: Arc<OpenFile>) -> Box<dyn TargetFile> {
        Box::new(NativeFile { file, file_system: Arc::clone(&self.file_system), cores: self.cores.clone() })
    }
}

fn io_error(error: FsError) -> io::Error {
    io::Error::from_raw_os_error(host::errno::of(&error).0)
}

impl BenchTarget for NativeTarget {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        let made = self.make(path, NodeKind::Directory, 0o755)?;
        self.directories.lock().insert(PathBuf::from(path), made);
        Ok(())
    }

    fn make_directory_at(&self, path: &str, place: &DirectoryPlace) -> io::Result<()> {
        let (parent, name) = self.split(path)?;
        let DirectoryPlace { mdt, stripes } = place.clone();
        let make = MakeDirectory { parent, name: name.to_vec(), mode: 0o755, umask: 0, mdt, stripes };
        let made = self.cores.block_on(self.file_system.make_directory(&self.credentials, make)).map_err(io_error)?;
        self.directories.lock().insert(PathBuf::from(path), made);
        Ok(())
    }

    fn make_node(&self, path: &str) -> io::Result<()> {
        self.make(path, NodeKind::Regular, 0o644).map(drop)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn TargetFile>> {
        let (parent, name) = self.split(path)?;
        let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
        let created =
            self.cores.block_on(self.file_system.create_open(&self.credentials, parent, name, 0o644, 0, flags));
        Ok(self.file(created.map_err(io_error)?.file))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn TargetFile>> {
        Ok(self.file(self.open_existing(path)?))
    }

    fn keep_on_mdt(&self, directory: &str, bytes: u64) -> io::Result<()> {
        let inode = self.directories.lock().get(Path::new(directory)).copied().ok_or(io::ErrorKind::NotFound)?;
        let request = ControlRequest::SetDefaultLayout(Some(on_mdt(bytes)));
        let execute = client::control::execute(&self.file_system, &self.credentials, (inode, None), request);
        match self.cores.block_on(execute) {
            ControlReply::Done => Ok(()),
            ControlReply::Error(error) => Err(io_error(error)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn cache_nothing(&self) -> io::Result<()> {
        self.file_system.set_cached_locks_max(MdtIndex(0), 0).map_err(io_error)
    }

    fn create_with(&self, path: &str, contents: &Bytes) -> io::Result<()> {
        let (parent, name) = self.split(path)?;
        let file = NewFile { parent, name: name.to_vec(), mode: 0o644, umask: 0 };
        let made = self.file_system.create_with_data(&self.credentials, file, contents.clone());
        self.cores.block_on(made).map(drop).map_err(io_error)
    }

    fn read_whole(&self, path: &str, buffer: &mut [u8]) -> io::Result<()> {
        let (parent, name) = self.split(path)?;
        let path = [name];
        let read = self.file_system.open_and_read(&self.credentials, parent, &path, buffer.len());
        fill(buffer, self.cores.block_on(read).map_err(io_error)?.1)
    }

    fn lookup(&self, path: &str) -> io::Result<()> {
        self.find(path).map(drop)
    }

    fn stat(&self, path: &str) -> io::Result<u64> {
        Ok(self.find(path)?.size)
    }

    fn set_times(&self, path: &str) -> io::Result<()> {
        let inode = self.find(path)?.inode;
        let changes =
            SetAttributes { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttributes::default() };
        let set = self.file_system.set_attributes(&self.credentials, inode, changes, None);
        self.cores.block_on(set).map(drop).map_err(io_error)
    }

    fn list(&self, directory: &str) -> io::Result<usize> {
        /// As many as a mount asks for.
        const PAGE: u32 = 1024;
        let inode = self.directory(directory)?;
        let listed = async {
            let open = self.file_system.open(&self.credentials, inode, OpenFlags(open_flag::READ)).await?;
            let (mut names, mut cookie) = (0, 0);
            loop {
                let page = self.file_system.read_directory(&open, cookie, PAGE, EntryAttributes::None).await?;
                names += page.items.iter().filter(|item| !matches!(&*item.name, b"." | b"..")).count();
                cookie = page.items.last().map_or(cookie, |item| item.cookie);
                if page.end || page.items.is_empty() {
                    break;
                }
            }
            self.file_system.close(open, None).await?;
            Ok(names)
        };
        self.cores.block_on(listed).map_err(io_error)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.split(from)?, self.split(to)?);
        let renamed = self.file_system.rename(&self.credentials, from, to, RenameMode::Replace);
        self.cores.block_on(renamed).map_err(io_error)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.split(path)?;
        self.cores.block_on(self.file_system.unlink(&self.credentials, parent, name)).map_err(io_error)
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.split(path)?;
        let removed = self.cores.block_on(self.file_system.remove_directory(&self.credentials, parent, name));
        self.directories.lock().remove(Path::new(path));
        removed.map_err(io_error)
    }
}

/// Fills `buffer` with what was read.
fn fill(buffer: &mut [u8], data: ReadData) -> io::Result<()> {
    let mut filled = 0;
    for piece in data.into_pieces() {
        buffer[filled..filled + piece.len()].copy_from_slice(&piece);
        filled += piece.len();
    }
    if filled == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

struct NativeFile {
    file: Arc<OpenFile>,
    file_system: Arc<FileSystem>,
    cores: Cores,
}

impl TargetFile for NativeFile {
    fn write_at(&self, data: &Bytes, offset: u64) -> io::Result<()> {
        let written =
            self.cores.block_on(self.file_system.write(&self.file, offset, data.clone(), WriteOptions::default()));
        match written.map_err(io_error)? {
            count if count == data.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let data = self.cores.block_on(self.file_system.read(&self.file, offset, buffer.len())).map_err(io_error)?;
        fill(buffer, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.cores.block_on(self.file_system.fsync(&self.file, false)).map_err(io_error)
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.cores.block_on(self.file_system.close(self.file, None)).map_err(io_error)
    }
}
