//! The migration of one file.
//!
//! A migration that holds writers off waits at the end for all others that have the file open. So
//! this code waits with the file open only while it is the one that holds them off, and closes it
//! to wait for another migration.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
    time::Duration,
};

use layout::LayoutSpec;
use rpc::message::{
    control::{ControlReply, ControlRequest, Subject},
    volatile_name,
};
use rustix::fs::SeekFrom;
use types::{FsError, InodeNumber, MdtIndex};

use super::pace::Pace;
use crate::{
    channel::{self, CallError, Errno, when_free},
    outcome::Failure,
};

/// How often the data are copied because they changed although writers were held off: the MDT
/// restarted, or one was let in that has the file open for reading too.
const COPIES_MAX: usize = 8;
/// Between two looks whether another migration of the file has ended: the first, and the longest.
/// Each look has the file open for an instant, which the other one waits for.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Why a migration ended.
#[derive(Debug)]
pub enum Stop {
    /// Because of the file: the next one may do better.
    File(CallError),
    /// All do: no program reads the output, or they would wait in vain for the same MDT.
    All(Failure),
}

impl From<CallError> for Stop {
    fn from(error: CallError) -> Self {
        Stop::File(error)
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::File(errno.into())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::File(error.into())
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::All(failure)
    }
}

/// The new layout of a file, and how to migrate it.
#[derive(Clone, Copy, Debug)]
pub struct Migration<'a> {
    /// The requested layout.
    pub spec: &'a LayoutSpec,
    /// Wait for others rather than fail.
    pub block: bool,
}

/// The outcome of an attempt.
enum Attempt {
    Done,
    /// The data changed under it.
    Changed,
    /// What became of a part of the copy is unknown.
    Doubtful,
    /// Another migration holds writers off by now, and waits until the file is closed here.
    Overtaken,
}

/// Where a file without a name is made.
enum Place {
    /// In the directory of the file, which is on its MDT.
    Directory,
    /// In the part of the directory there.
    Shard,
    /// There is none: beside the file. The layout of new files in the directory, which does not
    /// count there.
    Beside(Option<LayoutSpec>),
}

impl Place {
    /// For a file on this MDT with a name in this directory.
    fn of(directory: &Path, mdt: MdtIndex) -> Result<Self, CallError> {
        let request = ControlRequest::GetLayout(Subject::This);
        let ControlReply::Layout { inode, map, effective_default, .. } = channel::ask(directory, &request)? else {
            return Err(Errno(libc::EPROTO).into());
        };
        let mut shards = map.iter().flat_map(|map| &map.shards);
        Ok(match inode.mdt() == mdt {
            true => Self::Directory,
            false if shards.any(|shard| shard.mdt() == mdt) => Self::Shard,
            false => Self::Beside(effective_default),
        })
    }
}

impl Migration<'_> {
    /// Migrates a file.
    pub fn run(self, path: &Path, pace: &mut Pace, output: &mut dyn Write) -> Result<(), Stop> {
        let mut kept = None;
        for _ in 0..COPIES_MAX {
            let (file, inode, version) = self.begin(path, kept.take())?;
            match self.attempt(path, (&file, inode), version, pace, output)? {
                Attempt::Done => return Ok(()),
                Attempt::Changed if !self.block => break,
                Attempt::Changed | Attempt::Doubtful => kept = Some((file, inode)),
                Attempt::Overtaken => {}
            }
        }
        Err(CallError::from(Errno(libc::EBUSY)).into())
    }

    /// The file, open, and the version of its data, while no client writes. Waits until it is alone
    /// if it may, closing the file as long as another migration holds writers off.
    fn begin(self, path: &Path, mut kept: Option<(File, InodeNumber)>) -> Result<(File, InodeNumber, u64), CallError> {
        let mut pause = PAUSE_MIN;
        loop {
            let (file, inode) = match kept.take() {
                Some(kept) => kept,
                None => open_to_move(path)?,
            };
            match when_free(self.block, || self.version(&file)) {
                Err(error) if is_held_by_another(&error) => drop(file),
                version => return Ok((file, inode, version?)),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn attempt(
        self,
        path: &Path,
        (file, inode): (&File, InodeNumber),
        version: u64,
        pace: &mut Pace,
        output: &mut dyn Write,
    ) -> Result<Attempt, Stop> {
        let volatile = self.volatile(path, inode)?;
        let size = file.metadata()?.size();
        pace.begin();
        copy(file, &volatile, size, pace, output)?;
        pace.end(size, output)?;
        Ok(self.swap((file, inode), version, &volatile)?)
    }

    /// The version of the data, while no client writes.
    fn version(self, file: &File) -> Result<u64, CallError> {
        let request = ControlRequest::DataVersion { subject: Subject::This, hold_writers: self.block };
        match call(file, &request)? {
            ControlReply::Version(version) => Ok(version),
            _ => Err(Errno(libc::EPROTO).into()),
        }
    }

    /// A file without a name, with the layout, in the file's directory and on its MDT: layouts are
    /// swapped within one.
    fn volatile(self, path: &Path, inode: InodeNumber) -> Result<File, CallError> {
        // The directory of the file, not of a link to it.
        let directory = channel::parent(&std::fs::canonicalize(path)?);
        let place = Place::of(&directory, inode.mdt())?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let mut named = |name: Vec<u8>| match options.create_new(true).open(directory.join(OsStr::from_bytes(&name))) {
            // As a swap of two such files.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Err(CallError::from(Errno(libc::EXDEV))),
            opened => Ok(opened?),
        };
        let (volatile, default) = match place {
            Place::Directory => (options.custom_flags(libc::O_TMPFILE | libc::O_EXCL).open(&directory)?, None),
            Place::Shard => (named(volatile_name::of(inode.mdt(), std::process::id()))?, None),
            Place::Beside(default) => (named(volatile_name::beside(inode))?, default),
        };
        // Without a default it has that of the file system.
        let spec = if self.spec.is_open() { default.as_ref() } else { Some(self.spec) };
        if let Some(spec) = spec {
            let begin = ControlRequest::BeginLayout { spec: spec.clone(), like: inode };
            call(&volatile, &begin)?;
        }
        Ok(volatile)
    }

    /// Gives the file the layout of the other, if its data are still those that were copied.
    fn swap(self, (file, inode): (&File, InodeNumber), version: u64, volatile: &File) -> Result<Attempt, CallError> {
        let take = ControlRequest::TakeLayout { of: inode, version };
        when_free(self.block, || match call(volatile, &take) {
            Ok(_) => Ok(Attempt::Done),
            // The file is being read; or the data have changed, and it is of no use to wait.
            Err(error) if is_busy(&error) => match self.version(file) {
                Ok(now) if now == version => Err(error),
                Ok(_) => Ok(Attempt::Changed),
                Err(error) if is_held_by_another(&error) => Ok(Attempt::Overtaken),
                Err(error) => Err(error),
            },
            Err(error) if error.errno() == Errno(libc::EAGAIN) => Ok(Attempt::Doubtful),
            Err(error) => Err(error),
        })
    }
}

fn is_busy(error: &CallError) -> bool {
    error.errno() == Errno(libc::EBUSY)
}

/// Whether writers wait for the end of another open: the answer to [`ControlRequest::DataVersion`]
/// then.
fn is_held_by_another(error: &CallError) -> bool {
    *error == CallError::Refused(FsError::WouldBlock)
}

/// Opens what is to be moved, which must be no directory.
fn open_to_move(path: &Path) -> Result<(File, InodeNumber), CallError> {
    let file = open(path)?;
    if file.metadata()?.is_dir() {
        return Err(Errno(libc::EISDIR).into());
    }
    match call(&file, &ControlRequest::GetInode(Subject::This))? {
        ControlReply::Inode(inode) => Ok((file, inode)),
        _ => Err(Errno(libc::EPROTO).into()),
    }
}

/// Opens a file to copy it: without a trace in its time of access, where the caller may (its owner
/// and root).
fn open(path: &Path) -> io::Result<File> {
    let open = |flags: i32| OpenOptions::new().read(true).custom_flags(flags).open(path);
    // A pipe's other end is not waited for.
    match open(libc::O_NONBLOCK | libc::O_NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => open(libc::O_NONBLOCK),
        opened => opened,
    }
}

/// Asks through an open file.
fn call(file: &File, request: &ControlRequest) -> Result<ControlReply, CallError> {
    match host::ioctl::call(file, request)? {
        ControlReply::Error(error) => Err(CallError::Refused(error)),
        reply => Ok(reply),
    }
}

/// Copies the data, not the holes, which count as copied.
fn copy(from: &File, to: &File, size: u64, pace: &mut Pace, output: &mut dyn Write) -> Result<(), Stop> {
    // First: an automatic layout goes by it, and the end may be a hole.
    to.set_len(size)?;
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size)? {
        let mut hole = start - at;
        at = start;
        while at < end {
            let bytes = copy_piece(from, to, at, end.min(at + pace.piece_bytes()))?;
            if bytes == 0 {
                // Cut off meanwhile: the swap will not happen.
                return Ok(());
            }
            at += bytes;
            pace.copied(bytes, std::mem::take(&mut hole), size, output)?;
        }
    }
    Ok(())
}

/// The data at or after `offset`: start and end.
fn next_data(file: &File, offset: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if offset >= size {
        return Ok(None);
    }
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) if start >= size => Ok(None),
        Ok(start) => Ok(Some((start, rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size)))),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn copy_piece(from: &File, to: &File, at: u64, end: u64) -> io::Result<u64> {
    let (mut source, mut sink) = (at, at);
    let bytes = usize::try_from(end - at).unwrap_or(usize::MAX);
    let copied = rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut sink), bytes)?;
    Ok(copied as u64)
}
