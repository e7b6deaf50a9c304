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
//! What is in use stays. It is tried once more at the end, then named, as is what fails otherwise:
//! all else moves. What others have mounted below it is passed by.

use std::{
    io::{IsTerminal, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
    time::{Duration, Instant},
};

use types::{DirectoryMap, InodeNumber, MdtIndex, NameHash, Stripes, limits::FOLLOWING_MAX};

use super::{
    copy::Stop,
    left::{Left, What},
    tree::{Place, Tree},
};
use crate::{
    channel::{CallError, Errno, when_free},
    outcome::print_path,
};

/// Between two reports of progress on a terminal.
const PROGRESS: Duration = Duration::from_secs(1);
/// How often a directory is tried with what keeps it from moving at once: its stripes end, its
/// names move first, and meanwhile somebody else may do the same.
const TRIES_MAX: u32 = 5;

/// A migration of directories.
pub struct Directories<'t, 'o> {
    tree: &'t dyn Tree,
    /// The MDTs of directories: of the names, and the first one of the directory itself.
    stripes: Stripes,
    /// The output, if each path is to be shown.
    shown: Option<&'o mut dyn Write>,
    moved: u64,
    left: Vec<Left>,
    reported: Option<Instant>,
}

impl<'t, 'o> Directories<'t, 'o> {
    /// To the first of these MDTs; with stripes if there are several. `shown`: where each path that
    /// moves is printed.
    pub fn new(tree: &'t dyn Tree, stripes: Stripes, shown: Option<&'o mut dyn Write>) -> Self {
        let reported = (shown.is_none() && std::io::stderr().is_terminal()).then(Instant::now);
        Self { tree, stripes, shown, moved: 0, left: Vec::new(), reported }
    }

    /// Moves what has this name; `is_directory`: it is one; `only`: without what is below it. Names
    /// what is left, and fails with the last error.
    pub fn run(mut self, path: &Path, is_directory: bool, only: bool) -> Result<(), Stop> {
        self.move_all(path, is_directory, only)?;
        self.end_progress();
        let Some(Left { error, .. }) = self.left.last() else { return Ok(()) };
        let error = error.clone();
        self.told().iter().for_each(|line| eprintln!("lfs migrate: {line}"));
        eprintln!("lfs migrate: {}: {} moved, {} left", path.display(), self.moved, self.left.len());
        Err(error.into())
    }

    fn move_all(&mut self, path: &Path, is_directory: bool, only: bool) -> Result<(), Stop> {
        let what = if is_directory { What::Directory } else { What::Other(self.first()) };
        let moved = match self.tree.is_mount_point(path) {
            // It has no name.
            true => {
                if self.tree.layout_of(path)?.0.mdt() != self.first() || self.has_stripes() {
                    self.leave(path, what, Errno(libc::EINVAL).into());
                }
                false
            }
            false => self.first_try(path, what)?,
        };
        match (is_directory, only) {
            (true, true) => self.end_names(path, moved)?,
            (true, false) => self.below(path, moved)?,
            (false, _) => {}
        }
        for Left { path, what, error } in std::mem::take(&mut self.left) {
            match error.errno() {
                Errno(libc::EBUSY | libc::ESTALE) if what != What::Mounted => self.last_try(&path, what)?,
                _ => self.leave(&path, what, error),
            }
        }
        Ok(())
    }

    /// What is left, in words, as it is now.
    fn told(&self) -> Vec<String> {
        let told = |left: &Left| {
            let is_directory = matches!(left.what, What::Directory | What::Names);
            let place = if is_directory { self.tree.layout_of(&left.path).ok() } else { None };
            left.told(place.as_ref(), self.first())
        };
        self.left.iter().map(told).collect()
    }

    fn first(&self) -> MdtIndex {
        self.stripes.mdts[0]
    }

    fn has_stripes(&self) -> bool {
        self.stripes.mdts.len() > 1
    }

    /// Everything below a directory, which may have moved right now. What disappears meanwhile is
    /// not missed; what fails is left, and the others go on.
    fn below(&mut self, directory: &Path, moved: bool) -> Result<(), Stop> {
        let mut directories = vec![(directory.to_owned(), moved)];
        while let Some((directory, moved)) = directories.pop() {
            let begun = self.begin_names(&directory, moved)?;
            let (map, entries) = match begun.and_then(|map| Ok((map, self.tree.list(&directory)?))) {
                Err(error) if is_gone(&error) => continue,
                Err(error) => {
                    self.leave(&directory, What::Below, error);
                    continue;
                }
                Ok(listed) => listed,
            };
            for (entry, is_directory) in entries {
                if self.tree.is_mount_point(&entry) {
                    // It would lead to another file system, and a directory that moves loses it.
                    self.leave(&entry, What::Mounted, Errno(libc::EBUSY).into());
                    continue;
                }
                if is_directory {
                    let moved = self.first_try(&entry, What::Directory)?;
                    directories.push((entry, moved));
                    continue;
                }
                // With its name, if that can be elsewhere.
                let name = entry.file_name().unwrap_or_default().as_bytes();
                let shard = map.as_ref().and_then(|map| map.shard_of(name));
                let to = shard.map_or(self.first(), |shard| shard.mdt());
                self.first_try(&entry, What::Other(to))?;
            }
            if !self.has_stripes() {
                self.end_names(&directory, true)?;
            }
        }
        Ok(())
    }

    /// Before what is in a directory moves: its names are where they are to be, or on the MDT of
    /// the directory. Its map then, if names are to be elsewhere.
    fn begin_names(&mut self, path: &Path, moved: bool) -> Result<Result<Option<DirectoryMap>, CallError>, Stop> {
        let place = match self.tree.layout_of(path) {
            Err(error) => return Ok(Err(error)),
            Ok(place) => place,
        };
        if self.has_stripes() {
            self.place_names(path, &place, moved)?;
            return Ok(self.tree.layout_of(path).map(|(_, map)| map));
        }
        let is_there = |map: &DirectoryMap| map.shards.iter().all(|shard| shard.mdt() == self.first());
        if !place.1.as_ref().is_none_or(is_there) {
            self.place_names(path, &place, moved)?;
        }
        Ok(Ok(None))
    }

    /// After what is in a directory: its names are where they are to be.
    fn end_names(&mut self, path: &Path, moved: bool) -> Result<(), Stop> {
        match self.tree.layout_of(path) {
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => {
                self.leave(path, What::Names, error);
                Ok(())
            }
            Ok(place) => self.place_names(path, &place, moved),
        }
    }

    /// The names of a directory that is where it is to be: in it, or in the stripes that are asked
    /// for. `moved`: it was counted.
    fn place_names(&mut self, path: &Path, (inode, map): &Place, moved: bool) -> Result<(), Stop> {
        if inode.mdt() != self.first() || *inode == InodeNumber::ROOT || self.is_wanted(map.as_ref()) {
            return Ok(());
        }
        let placed = self.place(path, What::Names).map(|_| self.has_stripes() && !moved);
        self.note(path, What::Names, placed).map(drop)
    }

    fn first_try(&mut self, path: &Path, what: What) -> Result<bool, Stop> {
        let moved = self.place(path, what);
        self.note(path, what, moved)
    }

    fn last_try(&mut self, path: &Path, what: What) -> Result<(), Stop> {
        if what == What::Below {
            return self.below(path, true);
        }
        let moved = when_free(false, || self.place(path, what));
        let moved = self.note(path, what, moved)?;
        if what == What::Directory { self.end_names(path, moved) } else { Ok(()) }
    }

    /// Returns whether it has moved.
    fn note(&mut self, path: &Path, what: What, moved: Result<bool, CallError>) -> Result<bool, Stop> {
        match moved {
            Ok(moved) => self.count(path, moved).map(|()| moved),
            Err(error) => {
                if !is_gone(&error) {
                    self.leave(path, what, error);
                }
                Ok(false)
            }
        }
    }

    fn leave(&mut self, path: &Path, what: What, error: CallError) {
        if what == What::Names {
            // They are tried before and after what is in the directory.
            self.left.retain(|left| left.what != what || left.path != path);
        }
        self.left.push(Left { path: path.to_owned(), what, error });
    }

    /// Moves what has this name; false if it was as it is to be.
    fn place(&self, path: &Path, what: What) -> Result<bool, CallError> {
        match what {
            What::Directory => self.place_directory(path),
            What::Other(to) => self.tree.move_one(path, to),
            What::Names => {
                if self.tree.layout_of(path)?.1.is_some() {
                    self.tree.split(path, alone(self.first()))?;
                }
                if self.has_stripes() {
                    self.tree.split(path, self.stripes.clone())?;
                }
                Ok(false)
            }
            What::Below | What::Mounted => Ok(false),
        }
    }

    /// A directory without stripes gets those that are asked for where it is, if they can follow
    /// it.
    fn place_directory(&self, path: &Path) -> Result<bool, CallError> {
        let (inode, map) = self.tree.layout_of(path)?;
        let (moves, mdts) = (inode.mdt() != self.first(), self.stripes.mdts.iter().copied());
        let gets_stripes = moves && map.is_none() && self.has_stripes() && self.can_follow(inode, mdts);
        if gets_stripes {
            self.tree.split(path, self.stripes.clone())?;
        }
        self.move_directory(path, gets_stripes)
    }

    /// Moves the directory itself. What is too much for that moves before, in batches: its names go
    /// ahead of it; shards on many MDTs give theirs back to it, so that it has names again. That
    /// others do the same meanwhile is found out by another try. `was_open`: a moment ago.
    fn move_directory(&self, path: &Path, was_open: bool) -> Result<bool, CallError> {
        let (to, mut was_open) = (self.first(), was_open);
        for _ in 1..TRIES_MAX {
            let once = || self.tree.move_one(path, to);
            let error = match if was_open { when_free(false, once) } else { once() } {
                Err(error) if error.errno() == Errno(libc::E2BIG) => error,
                moved => return moved,
            };
            let (inode, map) = self.tree.layout_of(path)?;
            match map {
                None => self.tree.split(path, alone(to))?,
                Some(map) if !self.can_follow(inode, map.shards.iter().map(|shard| shard.mdt())) => {
                    self.tree.split(path, alone(inode.mdt()))?;
                }
                // It is too much beside its names.
                Some(_) => return Err(error),
            }
            was_open = true;
        }
        when_free(false, || self.tree.move_one(path, to))
    }

    /// Whether shards on these MDTs can follow a directory in one move.
    fn can_follow(&self, inode: InodeNumber, mdts: impl Iterator<Item = MdtIndex>) -> bool {
        mdts.filter(|mdt| *mdt != inode.mdt() && *mdt != self.first()).count() <= FOLLOWING_MAX
    }

    fn is_wanted(&self, map: Option<&DirectoryMap>) -> bool {
        let Some(map) = map else { return !self.has_stripes() };
        map.hash == self.stripes.hash
            && self.has_stripes()
            && map.shards.iter().map(|shard| shard.mdt()).eq(self.stripes.mdts.iter().copied())
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

/// Whether there is no such name any more.
fn is_gone(error: &CallError) -> bool {
    error.errno() == Errno(libc::ENOENT)
}

/// Names on this MDT alone: those of a directory that is there are in the directory itself.
fn alone(mdt: MdtIndex) -> Stripes {
    Stripes { hash: NameHash::default(), mdts: vec![mdt] }
}

#[cfg(test)]
#[path = "directories_tests.rs"]
mod tests;
