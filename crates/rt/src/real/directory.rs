//! A device that is a directory of the host: every file of the device is a file below its root;
//! directories are created as names need them.
//!
//! There are two ways to execute the same operations: *inline*, within the poll that requests them
//! (for journals: a write(2) into the page cache is cheaper than a thread switch), or *pooled*, on
//! [`IoThreads`] (for objects, whose reads may wait for the disk; one that need not wait is
//! executed inline, see `present`). Flushes always go to a pool, which may be a separate one.
//!
//! Durability: a flush is fdatasync(2) of the file, then fsync(2) of every directory in which names
//! were added or removed since that directory was last synced, including those above a root that
//! was created for the device. After a failed flush of a file or a directory, all later flushes of
//! the device fail: Linux reports a failed write to one fdatasync per open file, forgets it, and
//! treats the unwritten data as clean. So flushes of one file take turns: a flush after a failed
//! one must not succeed.
//!
//! A flush that finds no free descriptor has done nothing yet, and waits for one. All other
//! operations fail in this case, with `ResourceBusy`.
//!
//! Downside: in the first flush after many creations one caller waits for the directories of all.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    io::{self, ErrorKind, IoSlice},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, Bytes};
use parking_lot::{Mutex, RwLock};
use rustix::{
    fs::{FallocateFlags, OFlags, fallocate, statvfs},
    io::Errno,
};
use types::{DeviceId, SpaceUsage};

use super::{
    IoThreads,
    descriptors::{Descriptors, OpenFile, Seen},
    device_identity, discard,
    held::HeldFiles,
    present::PresentReads,
};
use crate::{
    BoxFuture, Device,
    buffer::BufferPool,
    device::{check_file_name, check_range},
};

/// Turns at flushing, which files share by their names: more than there are threads that flush.
const FLUSH_TURNS: usize = 64;
/// How often a flush looks for a descriptor when there is none.
const DESCRIPTOR_POLL: Duration = Duration::from_millis(20);
/// Idle memory kept for direct transfers.
const DIRECT_BUFFERS_BYTES_MAX: usize = 64 << 20;
/// Pieces of one vectored write (Linux UIO_MAXIOV).
const PIECES_MAX: usize = 1024;

/// Where operations other than flushes are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Within the poll of the operation's future.
    Inline,
    /// On a thread of the pool.
    Pooled,
}

/// A directory as a device. Clones are the same device.
#[derive(Clone)]
pub struct LocalDirectory {
    root: Arc<Root>,
    threads: Arc<IoThreads>,
    /// Those that flush, which may be others.
    flushers: Arc<IoThreads>,
    execution: Execution,
}

/// The directory and what is known of it.
struct Root {
    path: PathBuf,
    /// The device it is on.
    identity: Option<DeviceId>,
    open: Descriptors,
    held: HeldFiles,
    /// Directories in which names were added or removed since they were last synced.
    changed: Mutex<BTreeSet<PathBuf>>,
    /// Held for reading from before a name is made until it is noted. Others may write to a file as
    /// soon as it has its name: their flush must not miss the note.
    naming: RwLock<()>,
    /// Held while a file is flushed, by its name. (Not by its open file: there may be two of a
    /// name.)
    flushing: [Mutex<()>; FLUSH_TURNS],
    /// Held while directories are synced, so that no caller's flush returns while another's still
    /// syncs what both need.
    syncing: Mutex<()>,
    /// A flush failed. Set before its turn ends, looked at within a turn.
    failed: AtomicBool,
    present: PresentReads,
    /// Memory of direct transfers.
    buffers: BufferPool,
}

impl LocalDirectory {
    /// The device below `root`, which is created if missing.
    pub fn open(root: impl Into<PathBuf>, execution: Execution, threads: Arc<IoThreads>) -> io::Result<Self> {
        let path: PathBuf = root.into();
        let changed = create_directories(&path)?;
        let root = Root::new(path);
        *root.changed.lock() = changed;
        Ok(Self { root: Arc::new(root), flushers: threads.clone(), threads, execution })
    }

    /// A device with a single file of this name, which exists, or is a block device: it is held,
    /// see [`Device::hold`].
    pub fn of_file(path: &Path, name: &str, execution: Execution, threads: Arc<IoThreads>) -> io::Result<Self> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let root = Root::new(directory.unwrap_or(Path::new(".")).to_owned());
        root.held.hold(name, path)?;
        Ok(Self { root: Arc::new(root), flushers: threads.clone(), threads, execution })
    }

    /// The device it is on, if the system reports it.
    pub fn identity(&self) -> Option<DeviceId> {
        self.root.identity
    }

    /// The same device with operations executed elsewhere.
    pub fn with_execution(&self, execution: Execution) -> Self {
        Self { execution, ..self.clone() }
    }

    /// The same device whose flushes are executed by threads of their own: then no read or
    /// write waits for them.
    pub fn with_flushers(&self, flushers: Arc<IoThreads>) -> Self {
        Self { flushers, ..self.clone() }
    }

    fn run<T: Send + 'static>(
        &self,
        file: &str,
        operate: impl FnOnce(&Root, &str) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let (root, file) = (self.root.clone(), file.to_owned());
        let job = move || {
            check_file_name(&file)?;
            operate(&root, &file)
        };
        match self.execution {
            Execution::Inline => Box::pin(async move { job() }),
            Execution::Pooled => self.threads.run(job),
        }
    }
}

impl Device for LocalDirectory {
    fn read(&self, file: &str, offset: u64, mut buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let (this, file) = (self.clone(), file.to_owned());
        Box::pin(async move {
            if this.execution == Execution::Pooled && this.root.read_present(&file, offset, &mut buffer) {
                let bytes = buffer.len();
                return Ok((buffer, bytes));
            }
            let read = this.run(&file, move |root, name| {
                let bytes = root.read(name, offset, &mut buffer)?;
                Ok((buffer, bytes))
            });
            read.await
        })
    }

    fn read_bytes(&self, file: &str, offset: u64, bytes: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        let (this, file) = (self.clone(), file.to_owned());
        Box::pin(async move {
            let direct = this.root.held.direct(&file).filter(|direct| direct.takes_read(offset, bytes));
            if let Some(direct) = direct {
                let read = this.run(&file, move |root, _| direct.read_from(offset, root.buffers.take(bytes)));
                if let Some(found) = read.await? {
                    return Ok(found);
                }
            }
            let (mut buffer, filled) = this.read(&file, offset, vec![0; bytes]).await?;
            buffer.truncate(filled);
            Ok(buffer.into())
        })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.run(file, move |root, name| root.write(name, offset, pieces))
    }

    /// Within the poll: a few pages of memory take less time than a thread switch.
    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.with_execution(Execution::Inline)
            .run(file, move |root, name| root.write_through_memory(name, offset, pieces))
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let (root, file) = (self.root.clone(), file.to_owned());
        self.flushers.run(move || {
            check_file_name(&file)?;
            root.flush(&file, File::sync_data)
        })
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        self.run(file, |root, name| match root.open_existing(name)? {
            Some(open) => Ok(Some(open.file.metadata()?.len())),
            None => Ok(None),
        })
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.run(file, move |root, name| {
            check_range(length, 0)?;
            root.open_or_create(name)?.file.set_len(length)
        })
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.run(file, move |root, name| root.punch(name, offset, bytes))
    }

    fn discard(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.run(file, move |root, name| match root.open_existing(name)?.filter(|_| bytes > 0) {
            Some(open) => discard::discard(&open.file, offset, bytes),
            None => Ok(()),
        })
    }

    fn takes_discards(&self, file: &str) -> BoxFuture<'static, io::Result<bool>> {
        self.run(file, |root, name| root.open_existing(name)?.map_or(Ok(false), |open| discard::has_effect(&open.file)))
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.run(file, move |root, name| {
            check_range(offset, bytes)?;
            let open = root.open_or_create(name)?;
            if bytes > 0 {
                fallocate(&open.file, FallocateFlags::KEEP_SIZE, offset, bytes)?;
            }
            Ok(())
        })
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.run(file, |root, name| root.remove(name))
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        let (root, prefix) = (self.root.clone(), prefix.to_owned());
        let job = move || root.list(&prefix);
        match self.execution {
            Execution::Inline => Box::pin(async move { job() }),
            Execution::Pooled => self.threads.run(job),
        }
    }

    fn hold(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.run(file, |root, name| root.with_descriptor(|| root.held.hold(name, &root.path.join(name))))
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        let root = self.root.clone();
        Box::pin(async move {
            let usage = statvfs(&root.path)?;
            Ok(SpaceUsage {
                bytes_total: usage.f_blocks.saturating_mul(usage.f_frsize),
                bytes_free: usage.f_bfree.saturating_mul(usage.f_frsize),
                bytes_available: usage.f_bavail.saturating_mul(usage.f_frsize),
                inodes_total: usage.f_files,
                // File systems that make inodes as they need them say 0 of 0 (btrfs).
                inodes_free: if usage.f_files == 0 { u64::MAX } else { usage.f_ffree },
                device: root.identity,
            })
        })
    }
}

impl Root {
    fn new(path: PathBuf) -> Self {
        Self {
            identity: device_identity::of(&path),
            path,
            open: Descriptors::new(),
            held: HeldFiles::default(),
            changed: Mutex::default(),
            naming: RwLock::default(),
            flushing: std::array::from_fn(|_| Mutex::default()),
            syncing: Mutex::default(),
            failed: false.into(),
            present: PresentReads::default(),
            buffers: BufferPool::new(DIRECT_BUFFERS_BYTES_MAX),
        }
    }

    /// Makes a file durable by `sync`, and names.
    fn flush(&self, name: &str, sync: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let turn = self.flushing[hasher.finish() as usize % FLUSH_TURNS].lock();
        self.check_flushes()?;
        match self.once_there_are_descriptors(|| self.open_existing(name))? {
            Some(open) => self.noting_failure(sync(&open.file))?,
            // What it led to may have unflushed data.
            None if self.path.join(name).is_symlink() => return Err(ErrorKind::NotFound.into()),
            None => {}
        }
        drop(turn);
        self.sync_directories()
    }

    /// Refuses to flush after a failure.
    fn check_flushes(&self) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier flush failed; it is not known what it made durable"));
        }
        Ok(())
    }

    /// Opens something; without a descriptor left, once more after closing idle files.
    fn with_descriptor<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let first = open();
        if !first.as_ref().is_err_and(is_without_descriptor) {
            return first;
        }
        self.open.shed();
        open().map_err(|error| match is_without_descriptor(&error) {
            true => io::Error::new(ErrorKind::ResourceBusy, error),
            false => error,
        })
    }

    fn once_there_are_descriptors<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut told = false;
        loop {
            match self.with_descriptor(&open) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(directory = %self.path.display(), %error, "a flush waits for file descriptors");
                    }
                    std::thread::sleep(DESCRIPTOR_POLL);
                }
                opened => return opened,
            }
        }
    }

    fn noting_failure(&self, synced: io::Result<()>) -> io::Result<()> {
        synced.inspect_err(|_| self.failed.store(true, Ordering::Release))
    }

    /// Fills `buffer` if that needs no waiting: the file is open, and the host has the bytes in
    /// memory.
    fn read_present(&self, name: &str, offset: u64, buffer: &mut [u8]) -> bool {
        check_range(offset, buffer.len() as u64).is_ok()
            && self.known(name).is_ok_and(|open| self.present.fill(&open.file, offset, buffer))
    }

    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(open) = self.open_existing(name)? else { return Ok(0) };
        if check_range(offset, buffer.len() as u64).is_err() {
            return Ok(0);
        }
        let mut done = 0;
        while done < buffer.len() {
            match open.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write(&self, name: &str, offset: u64, pieces: Vec<Bytes>) -> io::Result<()> {
        let bytes = pieces.iter().map(Bytes::len).sum();
        check_range(offset, bytes as u64)?;
        if let Some(direct) = self.held.direct(name).filter(|direct| direct.takes_write(offset, bytes))
            && direct.write(&self.buffers, offset, &pieces)?
        {
            return Ok(());
        }
        self.write_through_memory(name, offset, pieces)
    }

    /// Writes through the page cache.
    fn write_through_memory(&self, name: &str, mut offset: u64, mut pieces: Vec<Bytes>) -> io::Result<()> {
        check_range(offset, pieces.iter().map(Bytes::len).sum::<usize>() as u64)?;
        let open = self.open_or_create(name)?;
        let mut first = 0;
        loop {
            while pieces.get(first).is_some_and(Bytes::is_empty) {
                first += 1;
            }
            if first == pieces.len() {
                return Ok(());
            }
            let slices: Vec<IoSlice<'_>> = pieces[first..].iter().take(PIECES_MAX).map(|p| IoSlice::new(p)).collect();
            let mut written = match rustix::io::pwritev(&open.file, &slices, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => bytes,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            offset += written as u64;
            while written > 0 {
                let part = written.min(pieces[first].len());
                pieces[first].advance(part);
                written -= part;
                first += usize::from(pieces[first].is_empty());
            }
        }
    }

    fn punch(&self, name: &str, offset: u64, bytes: u64) -> io::Result<()> {
        match self.open_existing(name)?.filter(|_| bytes > 0) {
            Some(open) => discard::punch(&open.file, offset, bytes),
            None => Ok(()),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path.join(name);
        let result = fs::remove_file(&path);
        self.open.forget(name);
        self.held.forget(name);
        match result {
            Ok(()) => {
                self.note_change(&path);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The file of this name, if it is open.
    fn known(&self, name: &str) -> Result<Arc<OpenFile>, Seen> {
        self.held.get(name).map_or_else(|| self.open.get(name), Ok)
    }

    fn open_existing(&self, name: &str) -> io::Result<Option<Arc<OpenFile>>> {
        let seen = match self.known(name) {
            Ok(open) => return Ok(Some(open)),
            Err(seen) => seen,
        };
        match self.with_descriptor(|| open_file(&self.path.join(name))) {
            Ok(open) => {
                let open = Arc::new(open);
                self.open.add(name, open.clone(), seen);
                Ok(Some(open))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a link leads to is opened, but not made.
    fn open_or_create(&self, name: &str) -> io::Result<Arc<OpenFile>> {
        let existing = self.open_existing(name)?;
        let (exists, mut options) = (existing.is_some(), OpenOptions::new());
        options.read(true).write(true).create(!exists).truncate(false);
        if !exists {
            options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
        }
        if let Some(open) = existing {
            if open.writable {
                return Ok(open);
            }
            // It was opened for reading when nothing else was possible; perhaps it is by now.
            self.open.forget(name);
        }
        let Err(seen) = self.open.get(name) else { return self.open_or_create(name) };
        let path = self.path.join(name);
        let naming = self.naming.read();
        let file = match self.with_descriptor(|| options.open(&path)) {
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && exists => {
                drop(naming);
                return self.open_or_create(name);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.create_directories(name)?;
                self.with_descriptor(|| options.open(&path))?
            }
            result => result?,
        };
        self.note_change(&path);
        drop(naming);
        let open = Arc::new(OpenFile { file, writable: true });
        self.open.add(name, open.clone(), seen);
        Ok(open)
    }

    /// Makes the directories that `name` needs.
    fn create_directories(&self, name: &str) -> io::Result<()> {
        let mut path = self.path.clone();
        for part in Path::new(name).parent().into_iter().flatten() {
            path.push(part);
            match fs::create_dir(&path) {
                Ok(()) => self.note_change(&path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The name of `path` was added or removed.
    fn note_change(&self, path: &Path) {
        let parent = path.parent().expect("a path below the root has a parent");
        let mut changed = self.changed.lock();
        if !changed.contains(parent) {
            changed.insert(parent.to_owned());
        }
    }

    fn sync_directories(&self) -> io::Result<()> {
        let _turn = self.syncing.lock();
        self.check_flushes()?;
        let mut changed = {
            let _named = self.naming.write();
            std::mem::take(&mut *self.changed.lock())
        };
        while let Some(path) = changed.first() {
            match self.once_there_are_descriptors(|| File::open(path)) {
                Ok(directory) => self.noting_failure(directory.sync_all())?,
                Err(error) => {
                    // Nothing was tried: the names are still to be synced.
                    self.changed.lock().append(&mut changed);
                    return Err(error);
                }
            }
            changed.pop_first();
        }
        Ok(())
    }

    /// Names below the root that start with `prefix`; directories and whatever else is not a file
    /// of a device are skipped.
    fn list(&self, prefix: &str) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let start = prefix.rfind('/').map_or("", |slash| &prefix[..slash]);
        if !start.is_empty() {
            check_file_name(start)?;
        }
        let mut directories = vec![start.to_owned()];
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(self.path.join(&directory)) {
                Ok(entries) => entries,
                Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let entry = entry?;
                let Ok(part) = entry.file_name().into_string() else { continue };
                let name = if directory.is_empty() { part } else { format!("{directory}/{part}") };
                let kind = entry.file_type()?;
                if kind.is_dir() && (name.starts_with(prefix) || prefix.starts_with(&name)) {
                    directories.push(name);
                } else if kind.is_file() && name.starts_with(prefix) && check_file_name(&name).is_ok() {
                    found.push(name);
                }
            }
        }
        found.sort_unstable();
        Ok(found)
    }
}

/// Makes `path` and the directories above it that are missing. Returns those in which names were
/// made: what is below is there after power loss only if they are synced.
pub fn create_directories(path: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.is_dir()).collect();
    let mut changed = BTreeSet::new();
    for directory in missing.into_iter().rev() {
        match fs::create_dir(directory) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => {}
            made => made?,
        }
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        changed.insert(parent.unwrap_or(Path::new(".")).to_owned());
    }
    Ok(changed)
}

/// Opens a file for writing, or for reading only where that is all the file system allows.
fn open_file(path: &Path) -> io::Result<OpenFile> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok(OpenFile { file, writable: true }),
        Err(error) if [ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied].contains(&error.kind()) => {
            Ok(OpenFile { file: File::open(path)?, writable: false })
        }
        Err(error) => Err(error),
    }
}

fn is_without_descriptor(error: &io::Error) -> bool {
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_made_and_those_to_be_synced_are_known() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let made = create_directories(&path("a/b/c")).unwrap();
        assert_eq!(made, [place.path().to_owned(), path("a"), path("a/b")].into());
        assert!(path("a/b/c").is_dir());
        assert_eq!(create_directories(&path("a/b/c")).unwrap(), BTreeSet::new());
        assert_eq!(create_directories(&path("a/d")).unwrap(), [path("a")].into());
        fs::write(path("file"), b"").unwrap();
        assert_eq!(create_directories(&path("file")).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert!(create_directories(&path("file/below")).is_err());
    }

    /// Else a journal could be gone after power loss together with the directory it is in, whatever
    /// was flushed.
    #[test]
    fn the_first_flush_syncs_what_is_above_a_new_root() {
        let place = tempfile::tempdir().unwrap();
        let threads = Arc::new(IoThreads::new("test", 1).unwrap());
        let open = || LocalDirectory::open(place.path().join("a/b"), Execution::Inline, threads.clone()).unwrap();
        let device = open();
        assert_eq!(*device.root.changed.lock(), [place.path().to_owned(), place.path().join("a")].into());
        device.root.sync_directories().unwrap();
        assert!(device.root.changed.lock().is_empty());
        assert!(open().root.changed.lock().is_empty(), "nothing was made");
    }

    /// One thread has made a file and not noted its name yet; another has found it, written to it,
    /// and flushes.
    #[test]
    fn a_flush_waits_for_names_that_are_being_made() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path().to_owned());
        std::thread::scope(|scope| {
            let naming = root.naming.read();
            let flush = scope.spawn(|| root.sync_directories());
            while !root.syncing.is_locked() && !flush.is_finished() {
                std::thread::yield_now();
            }
            // Time for the flush to go wrong; a right one waits.
            (0..1000).for_each(|_| std::thread::yield_now());
            root.note_change(&directory.path().join("file"));
            drop(naming);
            flush.join().unwrap().unwrap();
        });
        assert!(root.changed.lock().is_empty(), "the flush covered the new name");
    }

    /// As Linux does: the first fdatasync on an open file is told that writing failed, every other
    /// that all is well.
    #[test]
    fn a_failed_flush_is_reported_to_everybody() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path().to_owned());
        root.write("file", 0, vec![Bytes::from_static(b"lost")]).unwrap();
        let under_way = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                root.flush("file", |_| {
                    under_way.store(true, Ordering::Release);
                    // Time for the second to go wrong; a right one waits.
                    (0..1000).for_each(|_| std::thread::yield_now());
                    Err(ErrorKind::Other.into())
                })
            });
            while !under_way.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| root.flush("file", |_| Ok(())));
            assert!(first.join().unwrap().is_err());
            assert!(second.join().unwrap().is_err(), "it was in flight when the first one failed");
        });
        assert!(root.flush("file", |_| Ok(())).is_err(), "the data are lost permanently");
        assert!(root.flush("other", |_| Ok(())).is_err(), "nobody knows what else is");
    }
}
