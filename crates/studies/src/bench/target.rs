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
use client::{FileSystem, NewFile, NewNode, OpenFile, ReadData, WriteOptions};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use parking_lot::Mutex;
use rpc::message::{
    control::{ControlReply, ControlRequest},
    mdt::{OpenFlags, open_flag},
};
use rt::real::Cores;
use types::{Credentials, FsError, InodeNumber, MdtIndex, NodeKind};

/// A file system under measurement. Paths are relative and use existing directories made through
/// the same target.
pub trait BenchTarget: Send + Sync {
    /// mkdir
    fn make_directory(&self, path: &str) -> io::Result<()>;
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
    /// stat
    fn stat(&self, path: &str) -> io::Result<u64>;
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

    fn stat(&self, path: &str) -> io::Result<u64> {
        Ok(std::fs::metadata(self.root.join(path))?.len())
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
        let parent = self.directories.lock().get(Path::new(parent)).copied();
        parent.map(|parent| (parent, name.as_bytes())).ok_or_else(|| io::ErrorKind::NotFound.into())
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

    fn file(&self, file: Arc<OpenFile>) -> Box<dyn TargetFile> {
        Box::new(NativeFile { file, file_system: Arc::clone(&self.file_system), cores: self.cores.clone() })
    }
}

fn io_error(error: FsError) -> io::Error {
    io::Error::from_raw_os_error(host::errno::of(&error).0)
}

impl BenchTarget for NativeTarget {
    fn make_directory(&self, path: &str) -> io::Result<()> {
        let (parent, name) = self.split(path)?;
        let node =
            NewNode { parent, name: name.to_vec(), kind: NodeKind::Directory, mode: 0o755, umask: 0, layout: None };
        let made = self.cores.block_on(self.file_system.create(&self.credentials, node)).map_err(io_error)?;
        self.directories.lock().insert(PathBuf::from(path), made.inode);
        Ok(())
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

    fn stat(&self, path: &str) -> io::Result<u64> {
        let (parent, name) = self.split(path)?;
        let attributes = self.cores.block_on(self.file_system.lookup(&self.credentials, parent, name));
        Ok(attributes.map_err(io_error)?.size)
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
