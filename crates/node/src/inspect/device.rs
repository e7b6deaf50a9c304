//! A directory, or a single file, as a read-only device: operations that would change it are
//! refused.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rt::{BoxFuture, Device};
use types::SpaceUsage;

/// Files directly in a directory, read only.
pub struct ReadOnlyDirectory {
    root: PathBuf,
    /// The only name there is; it is that of `root`.
    only: Option<&'static str>,
}

impl ReadOnlyDirectory {
    /// The device on an existing directory.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), only: None }
    }

    /// A device with an existing file, or block device, under this name.
    pub fn of_file(file: &Path, name: &'static str) -> Self {
        Self { root: file.to_owned(), only: Some(name) }
    }

    fn path(&self, file: &str) -> PathBuf {
        if self.only == Some(file) { self.root.clone() } else { self.root.join(file) }
    }

    fn open(&self, file: &str) -> io::Result<Option<File>> {
        match File::open(self.path(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    fn read_now(&self, file: &str, offset: u64, mut buffer: Vec<u8>) -> io::Result<(Vec<u8>, usize)> {
        let mut filled = 0;
        if let Some(file) = self.open(file)? {
            while filled < buffer.len() {
                match file.read_at(&mut buffer[filled..], offset + filled as u64)? {
                    0 => break,
                    bytes => filled += bytes,
                }
            }
        }
        Ok((buffer, filled))
    }

    fn list_now(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type()?.is_file() && name.starts_with(prefix) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

fn ready<T: Send + 'static>(result: io::Result<T>) -> BoxFuture<'static, io::Result<T>> {
    Box::pin(std::future::ready(result))
}

fn refused() -> BoxFuture<'static, io::Result<()>> {
    ready(Err(io::ErrorKind::ReadOnlyFilesystem.into()))
}

impl Device for ReadOnlyDirectory {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        ready(self.read_now(file, offset, buffer))
    }

    fn write(&self, _file: &str, _offset: u64, _pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        refused()
    }

    fn flush(&self, _file: &str) -> BoxFuture<'static, io::Result<()>> {
        refused()
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        let length = || self.open(file)?.map(|file| Ok(file.metadata()?.len())).transpose();
        ready(length())
    }

    fn truncate(&self, _file: &str, _length: u64) -> BoxFuture<'static, io::Result<()>> {
        refused()
    }

    fn punch(&self, _file: &str, _offset: u64, _bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        refused()
    }

    fn allocate(&self, _file: &str, _offset: u64, _bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        refused()
    }

    fn remove(&self, _file: &str) -> BoxFuture<'static, io::Result<()>> {
        refused()
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        ready(self.list_now(prefix))
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
