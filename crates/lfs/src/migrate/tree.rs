//! What a migration of directories asks of the mounts of this host, and what users see of it.
//!
//! Nothing here waits for others to run: each future is ready ([`done`]).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    ffi::OsString,
    fs::ReadDir,
    future::ready,
    io::{IsTerminal, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    pin::pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use client::migration::{Cause, Left, Place, Tree, What};
use host::mount_table;
use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::{InodeNumber, MdtIndex, Stripes};

use super::{absence::Absence, copy::Stop, left};
use crate::{
    channel::{self, CallError, Errno},
    dirstripe,
    outcome::print_path,
};

/// Between two reports of progress on a terminal.
const PROGRESS: Duration = Duration::from_secs(1);

/// Names of a directory that are in memory.
const NAMES_PER_PAGE: usize = 1024;

/// How often a name is looked up again that led elsewhere in the meantime.
const TRIES_MAX: u32 = 4;

/// The mounts of this host, as they are when a migration begins.
#[derive(Debug)]
pub struct Mounts {
    points: BTreeSet<PathBuf>,
}

impl Mounts {
    fn is_mount_point(&self, path: &Path) -> bool {
        self.points.contains(path)
    }

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

/// A migration that a user has asked for.
pub struct Asked<'o> {
    mounts: Mounts,
    absence: Absence,
    /// Where all is to be.
    to: MdtIndex,
    /// The output, if each path is to be shown.
    shown: Option<RefCell<&'o mut dyn Write>>,
    moved: Cell<u64>,
    left_count: Cell<u64>,
    last_error: RefCell<Option<CallError>>,
    reported: Cell<Option<Instant>>,
}

impl<'o> Asked<'o> {
    /// Of the file or directory at `path`; `shown`: where each path that moves is printed.
    pub fn new(mounts: Mounts, (path, to): (&Path, MdtIndex), shown: Option<&'o mut dyn Write>) -> Self {
        let reported = (shown.is_none() && std::io::stderr().is_terminal()).then(Instant::now);
        Self {
            mounts,
            absence: Absence::on(path),
            to,
            shown: shown.map(RefCell::new),
            moved: Cell::new(0),
            left_count: Cell::new(0),
            last_error: RefCell::default(),
            reported: Cell::new(reported),
        }
    }

    /// How many have moved.
    pub fn moved(&self) -> u64 {
        self.moved.get()
    }

    /// How many were named because they stay.
    pub fn left_count(&self) -> u64 {
        self.left_count.get()
    }

    /// Why the last one of these stays.
    pub fn last_error(&self) -> Option<CallError> {
        self.last_error.borrow().clone()
    }

    /// The line is free for something else.
    pub fn hide_progress(&self) {
        if self.reported.get().is_some() {
            eprint!("\r\x1b[K");
        }
    }

    fn show(&self, path: &Path) -> Result<(), Stop> {
        self.moved.set(self.moved.get() + 1);
        if let Some(output) = &self.shown {
            print_path(*output.borrow_mut(), path, format_args!("\n"))?;
        }
        if let Some(reported) = self.reported.get().filter(|reported| reported.elapsed() >= PROGRESS) {
            eprint!("\r{} moved", self.moved.get());
            self.reported.set(Some(reported + reported.elapsed()));
        }
        Ok(())
    }

    /// Names what stays; ends if that is because an MDT does not answer.
    fn tell(&self, left: &Left<CallError>) -> Result<(), Stop> {
        self.hide_progress();
        if let Some(end) = self.absence.end(&left.path, &left.error, self.moved.get()) {
            return Err(end);
        }
        eprintln!("lfs migrate: {}", told(self, left, self.to));
        self.left_count.set(self.left_count.get() + 1);
        self.last_error.replace(Some(left.error.clone()));
        Ok(())
    }

    fn move_to(&self, path: &Path, to: MdtIndex) -> Result<bool, CallError> {
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
}

impl Tree for Asked<'_> {
    type Error = CallError;
    type Stop = Stop;
    type Listing = ReadDir;

    fn cause(error: &CallError) -> Cause {
        cause(error)
    }

    fn refusal(cause: Cause) -> CallError {
        refusal(cause)
    }

    fn is_mount_point(&self, path: &Path) -> bool {
        self.mounts.is_mount_point(path)
    }

    fn layout_of(&self, path: &Path) -> impl Future<Output = Result<Place, CallError>> + Send {
        let (at, subject) = self.mounts.subject(path);
        ready(dirstripe::map_of(&at, subject))
    }

    fn list(&self, path: &Path) -> impl Future<Output = Result<ReadDir, CallError>> + Send {
        ready(std::fs::read_dir(path).map_err(CallError::from))
    }

    fn next_names(
        &self,
        listing: &mut ReadDir,
    ) -> impl Future<Output = Result<Vec<(OsString, bool)>, CallError>> + Send {
        let of = |entry: std::fs::DirEntry| (entry.file_name(), entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names: std::io::Result<_> = listing.take(NAMES_PER_PAGE).map(|entry| entry.map(of)).collect();
        ready(names.map_err(CallError::from))
    }

    fn end_listing(&self, listing: ReadDir) -> impl Future<Output = Result<(), CallError>> + Send {
        drop(listing);
        ready(Ok(()))
    }

    fn move_one(&self, path: &Path, to: MdtIndex) -> impl Future<Output = Result<bool, CallError>> + Send {
        ready(self.move_to(path, to))
    }

    fn split(&self, path: &Path, stripes: Stripes) -> impl Future<Output = Result<(), CallError>> + Send {
        ready(channel::ask(path, &ControlRequest::SplitDirectory(stripes)).map(drop))
    }

    fn tried(&self, path: &Path, moved: bool) -> impl Future<Output = Result<(), Stop>> + Send {
        ready(if moved { self.show(path) } else { Ok(()) })
    }

    fn left(&self, left: &Left<CallError>) -> impl Future<Output = Result<(), Stop>> + Send {
        ready(self.tell(left))
    }

    fn pause(&self, tries: u32) -> impl Future<Output = bool> + Send {
        ready(channel::pause_while_in_use(tries))
    }
}

/// What an errno value is to a migration.
pub fn cause(error: &CallError) -> Cause {
    match error.errno() {
        Errno(libc::EBUSY) => Cause::InUse,
        Errno(libc::ESTALE) => Cause::Stale,
        Errno(libc::ENOENT) => Cause::Gone,
        Errno(libc::E2BIG) => Cause::TooBig,
        Errno(libc::EINVAL) => Cause::Fixed,
        _ => Cause::Other,
    }
}

/// The errno value of a cause.
pub fn refusal(cause: Cause) -> CallError {
    let errno = match cause {
        Cause::InUse => libc::EBUSY,
        Cause::Stale => libc::ESTALE,
        Cause::Gone => libc::ENOENT,
        Cause::TooBig => libc::E2BIG,
        Cause::Fixed => libc::EINVAL,
        Cause::Other => libc::EIO,
    };
    Errno(errno).into()
}

/// What is left, in words, as it is now.
pub fn told<T: Tree<Error = CallError>>(tree: &T, left: &Left<CallError>, to: MdtIndex) -> String {
    let is_directory = matches!(left.what, What::Directory | What::Names);
    let place = if is_directory { done(tree.layout_of(&left.path)).ok() } else { None };
    left::told(left, place.as_ref(), to)
}

/// The outcome of a future that waits for nobody.
pub fn done<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("each step of a migration by paths is done when it returns"),
    }
}

/// The path by a name, also of a directory that is given as `.`. A symbolic link is not followed.
pub fn named(path: &Path) -> Result<PathBuf, CallError> {
    match path.file_name() {
        Some(name) => Ok(std::fs::canonicalize(channel::parent(path))?.join(name)),
        None => Ok(std::fs::canonicalize(path)?),
    }
}
