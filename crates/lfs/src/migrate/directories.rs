//! `lfs migrate -m`: moves a directory and everything below it to another MDT, one inode after the
//! other, the directory first: what programs make in it meanwhile is there already. Each inode has
//! moved or has not, so that the tool may end at any moment and go on where it ended.
//!
//! A directory with more names than move at once is spread over its new MDT alone: its MDT moves
//! the names there, batch after batch, and goes on if the tool ends. Then the directory itself
//! moves, which has no names any more, and what is in it; then it gets its names back, there. A
//! directory with other stripes gets its names back as soon as it has moved. If stripes are asked
//! for, it gets them before it moves.
//!
//! What is in use stays. It is tried once more at the end, then named.

use std::{
    io::{IsTerminal, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rpc::message::control::{ControlReply, ControlRequest, Subject};
use types::{DirectoryMap, InodeNumber, MdtIndex, NameHash, Stripes, limits::SPLIT_NAMES_MAX};

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
    /// The MDTs of directories: of the names, and the first one of the directory itself.
    stripes: Stripes,
    /// The output, if each path is to be shown.
    shown: Option<&'a mut dyn Write>,
    moved: u64,
    left: Vec<Left>,
    reported: Option<Instant>,
}

/// What has a name, and where it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Directory,
    Other(MdtIndex),
    /// A directory that is there, but not its names.
    Names,
}

/// Something that is not where it is to be.
struct Left {
    path: PathBuf,
    what: What,
    error: CallError,
}

impl<'a> Directories<'a> {
    /// To the first of these MDTs; with stripes if there are several. `shown`: where each path that
    /// moves is printed.
    pub fn new(stripes: Stripes, shown: Option<&'a mut dyn Write>) -> Self {
        let reported = (shown.is_none() && std::io::stderr().is_terminal()).then(Instant::now);
        Self { stripes, shown, moved: 0, left: Vec::new(), reported }
    }

    /// Moves what is at `path`; `only`: without what is below it.
    pub fn run(mut self, path: &Path, only: bool) -> Result<(), Stop> {
        let is_directory = std::fs::symlink_metadata(path)?.is_dir();
        let path = named(path)?;
        let what = if is_directory { What::Directory } else { What::Other(self.first()) };
        match channel::mount_of(&path)?.is_some_and(|mount| mount.point == path) {
            // It has no name.
            true if channel::inode(&path)?.mdt() != self.first() || self.has_stripes() => {
                self.left.push(Left { path: path.clone(), what, error: Errno(libc::EINVAL).into() });
            }
            true => {}
            false => self.first_try(&path, what)?,
        }
        match (is_directory, only) {
            (true, true) => self.end_stripes(&path, false)?,
            (true, false) => self.below(&path)?,
            (false, _) => {}
        }
        for Left { path, what, error } in std::mem::take(&mut self.left) {
            match error.errno() {
                Errno(libc::EBUSY | libc::ESTALE) => self.last_try(path, what)?,
                _ => self.left.push(Left { path, what, error }),
            }
        }
        self.end_progress();
        let Some(Left { error, .. }) = self.left.last() else { return Ok(()) };
        for Left { path, what, error } in &self.left {
            let stays = if *what == What::Names { "keeps its stripes" } else { "stays on its MDT" };
            eprintln!("lfs migrate: {} {stays}: {}", path.display(), reason(error));
        }
        eprintln!("lfs migrate: {}: {} moved, {} left", path.display(), self.moved, self.left.len());
        Err(error.clone().into())
    }

    fn first(&self) -> MdtIndex {
        self.stripes.mdts[0]
    }

    fn has_stripes(&self) -> bool {
        self.stripes.mdts.len() > 1
    }

    /// Everything below a directory. What disappears meanwhile is not missed.
    fn below(&mut self, directory: &Path) -> Result<(), Stop> {
        let mut directories = vec![directory.to_owned()];
        while let Some(directory) = directories.pop() {
            self.end_stripes(&directory, true)?;
            // Not open while its names move: an open directory stays.
            let listed = std::fs::read_dir(&directory).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            let entries = match listed.map_err(CallError::from) {
                Err(error) if is_gone(&error) => continue,
                entries => entries?,
            };
            let map = match self.has_stripes() {
                true => layout_of(&directory).map_or(None, |(_, map)| map),
                false => None,
            };
            for entry in entries {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    self.first_try(&entry.path(), What::Directory)?;
                    directories.push(entry.path());
                    continue;
                }
                // With its name, if that can be elsewhere.
                let shard = map.as_ref().and_then(|map| map.shard_of(entry.file_name().as_bytes()));
                let to = shard.map_or(self.first(), |shard| shard.mdt());
                self.first_try(&entry.path(), What::Other(to))?;
            }
            self.end_stripes(&directory, false)?;
        }
        Ok(())
    }

    fn first_try(&mut self, path: &Path, what: What) -> Result<(), Stop> {
        let moved = self.place(path, what);
        self.note(path, what, moved)
    }

    fn last_try(&mut self, path: PathBuf, what: What) -> Result<(), Stop> {
        let moved = when_free(false, || self.place(&path, what));
        self.note(&path, what, moved)?;
        if what == What::Directory { self.end_stripes(&path, false) } else { Ok(()) }
    }

    fn note(&mut self, path: &Path, what: What, moved: Result<bool, CallError>) -> Result<(), Stop> {
        match moved {
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => {
                self.left.push(Left { path: path.to_owned(), what, error });
                Ok(())
            }
            Ok(moved) => self.count(path, moved),
        }
    }

    /// Moves what has this name; false if it was as it is to be.
    fn place(&self, path: &Path, what: What) -> Result<bool, CallError> {
        match what {
            What::Directory => self.place_directory(path),
            What::Other(to) => move_one(path, to),
            What::Names => split(path, alone(self.first())).map(|()| false),
        }
    }

    fn place_directory(&self, path: &Path) -> Result<bool, CallError> {
        let (to, (_, map)) = (self.first(), layout_of(path)?);
        match &map {
            None if self.has_stripes() => {
                split(path, self.stripes.clone())?;
                // It was open for that.
                when_free(false, || move_one(path, to))?;
                Ok(true)
            }
            Some(map) if self.has_stripes() && !self.is_wanted(map) => {
                move_one(path, to)?;
                split(path, alone(to))?;
                split(path, self.stripes.clone())?;
                Ok(true)
            }
            None => match move_one(path, to) {
                Err(error) if error.errno() == Errno(libc::E2BIG) => {
                    split(path, alone(to))?;
                    when_free(false, || move_one(path, to))
                }
                moved => moved,
            },
            Some(_) => move_one(path, to),
        }
    }

    fn is_wanted(&self, map: &DirectoryMap) -> bool {
        map.hash == self.stripes.hash
            && map.shards.iter().map(|shard| shard.mdt()).eq(self.stripes.mdts.iter().copied())
    }

    /// A directory that is where it is to be gets its names back, unless it is to have stripes.
    /// `others`: only if some are on other MDTs than that.
    fn end_stripes(&mut self, path: &Path, others: bool) -> Result<(), Stop> {
        if self.has_stripes() {
            return Ok(());
        }
        let to = self.first();
        let (inode, map) = match layout_of(path) {
            Err(error) if is_gone(&error) => return Ok(()),
            found => found?,
        };
        let Some(map) = map.filter(|_| inode.mdt() == to) else { return Ok(()) };
        if others && map.shards.iter().all(|shard| shard.mdt() == to) {
            return Ok(());
        }
        self.first_try(path, What::Names)
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
    error.errno() == Errno(libc::ENOENT)
}

/// Names on this MDT alone: those of a directory that is there are in the directory itself.
fn alone(mdt: MdtIndex) -> Stripes {
    Stripes { hash: NameHash::default(), mdts: vec![mdt] }
}

/// Number and map of the directory with this name, which is not opened; of the root, which has
/// none.
fn layout_of(path: &Path) -> Result<(InodeNumber, Option<DirectoryMap>), CallError> {
    match path.file_name() {
        Some(name) => match dirstripe::map_of(&channel::parent(path), Subject::Name(name.as_bytes().to_vec())) {
            // The parent of a mount is on another file system.
            Err(error) if error.errno() == Errno(libc::ENOTTY) => dirstripe::map_of(path, Subject::This),
            found => found,
        },
        None => dirstripe::map_of(path, Subject::This),
    }
}

/// Moves the names of a directory, and returns when all have moved.
fn split(path: &Path, stripes: Stripes) -> Result<(), CallError> {
    channel::ask(path, &ControlRequest::SplitDirectory(stripes)).map(drop)
}

fn reason(error: &CallError) -> String {
    match error.errno() {
        Errno(libc::EBUSY) => "it is in use (16)".to_owned(),
        Errno(libc::ESTALE) => "it was moved by somebody else meanwhile (116)".to_owned(),
        Errno(libc::EINVAL) => {
            "the root directory and lost+found do not move; nor does a directory of more than 1024 names if its \
             metadata target is of an earlier release (22)"
                .to_owned()
        }
        Errno(libc::E2BIG) => {
            format!("it has more than {SPLIT_NAMES_MAX} names, or data on its MDT or names than can move at once (7)")
        }
        Errno(libc::ENOSPC) => "more than 128 of its names have the same hash (28)".to_owned(),
        Errno(libc::EOPNOTSUPP) => {
            "it has two names of one file on another metadata target, or a metadata target is of an earlier release (95)"
                .to_owned()
        }
        Errno(errno) => format!("{} ({errno})", strerror(errno)),
    }
}
