//! `lfs migrate -m`: moves a directory and everything below it to another MDT, one inode after the
//! other, the directory first: what programs make in it meanwhile is there already. Each inode has
//! moved or has not, so that the tool may end at any moment and go on where it ended.
//!
//! What is in use stays. It is tried once more at the end, then named.

use std::{
    io::{IsTerminal, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::{InodeNumber, MdtIndex};

use super::copy::Stop;
use crate::{
    channel::{self, CallError, Errno, strerror, when_free},
    dirstripe,
    outcome::print_path,
};

/// Between two reports of progress on a terminal.
const PROGRESS: Duration = Duration::from_secs(1);

/// A migration of directories.
pub struct Directories<'a> {
    to: MdtIndex,
    /// The output, if each path is to be shown.
    shown: Option<&'a mut dyn Write>,
    moved: u64,
    left: Vec<(PathBuf, CallError)>,
    reported: Option<Instant>,
}

impl<'a> Directories<'a> {
    /// To this MDT. `shown`: where each path that moves is printed.
    pub fn new(to: MdtIndex, shown: Option<&'a mut dyn Write>) -> Self {
        let reported = (shown.is_none() && std::io::stderr().is_terminal()).then(Instant::now);
        Self { to, shown, moved: 0, left: Vec::new(), reported }
    }

    /// Moves what is at `path`; `only`: without what is below it.
    pub fn run(mut self, path: &Path, only: bool) -> Result<(), Stop> {
        let is_directory = std::fs::symlink_metadata(path)?.is_dir();
        // What moves is not opened, except for the root.
        let there = dirstripe::mdts(&channel::parent(path)).or_else(|_| dirstripe::mdts(path))?;
        if !there.contains(&self.to) {
            return Err(Errno(libc::ENODEV).into());
        }
        let path = named(path)?;
        match channel::mount_of(&path)?.is_some_and(|mount| mount.point == path) {
            // It has no name.
            true if channel::inode(&path)?.mdt() != self.to => {
                self.left.push((path.clone(), Errno(libc::EINVAL).into()));
            }
            true => {}
            false => self.first_try(&path)?,
        }
        if is_directory && !only {
            self.below(&path)?;
        }
        for (path, error) in std::mem::take(&mut self.left) {
            match error.errno() {
                Errno(libc::EBUSY) => self.last_try(path)?,
                _ => self.left.push((path, error)),
            }
        }
        self.end_progress();
        let Some((_, error)) = self.left.last() else { return Ok(()) };
        for (left, error) in &self.left {
            eprintln!("lfs migrate: {} stays on its MDT: {}", left.display(), reason(error));
        }
        eprintln!("lfs migrate: {}: {} moved, {} left", path.display(), self.moved, self.left.len());
        Err(error.clone().into())
    }

    /// Everything below a directory. What disappears meanwhile is not missed.
    fn below(&mut self, directory: &Path) -> Result<(), Stop> {
        let mut directories = vec![directory.to_owned()];
        while let Some(directory) = directories.pop() {
            // Not open while its names move: an open directory stays.
            let listed = std::fs::read_dir(&directory).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            let entries = match listed.map_err(CallError::from) {
                Err(error) if is_gone(&error) => continue,
                entries => entries?,
            };
            for entry in entries {
                self.first_try(&entry.path())?;
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    directories.push(entry.path());
                }
            }
        }
        Ok(())
    }

    fn first_try(&mut self, path: &Path) -> Result<(), Stop> {
        match move_one(path, self.to) {
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => {
                self.left.push((path.to_owned(), error));
                Ok(())
            }
            Ok(moved) => self.count(path, moved),
        }
    }

    fn last_try(&mut self, path: PathBuf) -> Result<(), Stop> {
        match when_free(false, || move_one(&path, self.to)) {
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => {
                self.left.push((path, error));
                Ok(())
            }
            Ok(moved) => self.count(&path, moved),
        }
    }

    fn count(&mut self, path: &Path, moved: bool) -> Result<(), Stop> {
        if !moved {
            return Ok(());
        }
        self.moved += 1;
        if let Some(output) = &mut self.shown {
            print_path(*output, path, format_args!("\n"))?;
        }
        if let Some(reported) = self.reported.filter(|reported| reported.elapsed() >= PROGRESS) {
            eprint!("\r{} moved", self.moved);
            self.reported = Some(reported + reported.elapsed());
        }
        Ok(())
    }

    fn end_progress(&self) {
        if self.reported.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

/// The path by a name, also of a directory that is given as `.`. A symbolic link is not followed.
fn named(path: &Path) -> Result<PathBuf, CallError> {
    match path.file_name() {
        Some(name) => Ok(std::fs::canonicalize(channel::parent(path))?.join(name)),
        None => Ok(std::fs::canonicalize(path)?),
    }
}

/// Moves what has this name; false if it is there already.
fn move_one(path: &Path, to: MdtIndex) -> Result<bool, CallError> {
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

/// How often a name is looked up again that led elsewhere in the meantime.
const TRIES_MAX: u32 = 4;

/// Whether there is no such name any more.
fn is_gone(error: &CallError) -> bool {
    matches!(error.errno(), Errno(libc::ENOENT | libc::ESTALE))
}

fn reason(error: &CallError) -> String {
    match error.errno() {
        Errno(libc::EBUSY) => "it is in use (16)".to_owned(),
        Errno(libc::EINVAL) => "the root directory and lost+found do not move (22)".to_owned(),
        Errno(libc::E2BIG) => "it has more names, or data on its MDT, than can move at once (7)".to_owned(),
        Errno(libc::EOPNOTSUPP) => {
            "it is striped, has two names of one file on another metadata target, or a metadata target is of an earlier \
             release (95)"
                .to_owned()
        }
        Errno(errno) => format!("{} ({errno})", strerror(errno)),
    }
}
