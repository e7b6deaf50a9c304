//! What a migration of directories asks of the file system, by paths.

use std::{
    collections::BTreeSet,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use host::mount_table;
use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::{DirectoryMap, InodeNumber, MdtIndex, Stripes};

use crate::{
    channel::{self, CallError, Errno},
    dirstripe,
};

/// How often a name is looked up again that led elsewhere in the meantime.
const TRIES_MAX: u32 = 4;

/// A file system with directories over several MDTs.
pub trait Tree {
    /// Whether something is mounted on this path, rather than in the directory above.
    fn is_mount_point(&self, path: &Path) -> bool;

    /// Number and map of the directory with this name, which is not opened; of the root, which has
    /// none.
    fn layout_of(&self, path: &Path) -> Result<Place, CallError>;

    /// What is in a directory, and which of it are directories. The directory is not open
    /// afterwards: it would stay where it is.
    fn list(&self, path: &Path) -> Result<Vec<(PathBuf, bool)>, CallError>;

    /// Moves what has this name; false if it is there already.
    fn move_one(&self, path: &Path, to: MdtIndex) -> Result<bool, CallError>;

    /// Moves the names of a directory, and returns when all have moved.
    fn split(&self, path: &Path, stripes: Stripes) -> Result<(), CallError>;
}

/// Number and map of a directory.
pub type Place = (InodeNumber, Option<DirectoryMap>);

/// The mounts of this host, as they are when a migration begins.
#[derive(Debug)]
pub struct Mounts {
    points: BTreeSet<PathBuf>,
}

impl Mounts {
    /// Those that there are now.
    pub fn read() -> Result<Self, CallError> {
        Ok(Self { points: mount_table::read()?.into_iter().map(|entry| entry.point).collect() })
    }

    /// What to open to be asked about a path without opening what is there, unless it is a root,
    /// and its name there.
    pub fn subject(&self, path: &Path) -> (PathBuf, Subject) {
        match path.file_name() {
            // The directory above a mount is on another file system.
            Some(name) if !self.is_mount_point(path) => {
                (channel::parent(path), Subject::Name(name.as_bytes().to_vec()))
            }
            _ => (path.to_owned(), Subject::This),
        }
    }
}

impl Tree for Mounts {
    fn is_mount_point(&self, path: &Path) -> bool {
        self.points.contains(path)
    }

    fn layout_of(&self, path: &Path) -> Result<Place, CallError> {
        let (at, subject) = self.subject(path);
        dirstripe::map_of(&at, subject)
    }

    fn list(&self, path: &Path) -> Result<Vec<(PathBuf, bool)>, CallError> {
        let entries = std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
        let of = |entry: std::fs::DirEntry| (entry.path(), entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Ok(entries.into_iter().map(of).collect())
    }

    fn move_one(&self, path: &Path, to: MdtIndex) -> Result<bool, CallError> {
        let name = path.file_name().ok_or(Errno(libc::EINVAL))?;
        let (above, subject) = (channel::parent(path), Subject::Name(name.as_bytes().to_vec()));
        // Where the name leads may have changed a moment ago.
        let inode = || -> Result<InodeNumber, CallError> {
            match channel::ask(&above, &ControlRequest::GetInode(subject.clone()))? {
                ControlReply::Inode(inode) => Ok(inode),
                _ => Err(Errno(libc::EPROTO).into()),
            }
        };
        let mut tries = 0;
        loop {
            tries += 1;
            if inode()?.mdt() == to {
                return Ok(false);
            }
            match channel::ask(&above, &ControlRequest::MoveInode(subject.clone(), to)) {
                Ok(_) => return Ok(true),
                Err(error) if error.errno() == Errno(libc::ESTALE) && tries < TRIES_MAX => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn split(&self, path: &Path, stripes: Stripes) -> Result<(), CallError> {
        channel::ask(path, &ControlRequest::SplitDirectory(stripes)).map(drop)
    }
}

/// The path by a name, also of a directory that is given as `.`. A symbolic link is not followed.
pub fn named(path: &Path) -> Result<PathBuf, CallError> {
    match path.file_name() {
        Some(name) => Ok(std::fs::canonicalize(channel::parent(path))?.join(name)),
        None => Ok(std::fs::canonicalize(path)?),
    }
}
