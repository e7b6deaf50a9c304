//! Moves a directory and everything below it to another MDT, one inode after the other, the
//! directory first: what programs make in it meanwhile is there already. Each inode has moved or
//! has not, so that it may end at any moment and go on where it ended. `lfs migrate -m` asks a
//! mount for that; in the background ([`DirectoryMigration::in_background`]) an MDT asks a client
//! of its process.
//!
//! A directory with more names than move at once is spread over its new MDT alone: its MDT moves
//! the names there, batch after batch, and goes on if the caller ends. Then the directory itself
//! moves, which has no names any more, and the files in it; then it gets its names back, there. A
//! directory with other stripes gets its names back as soon as it has moved. If stripes are asked
//! for, it gets them before it moves.
//!
//! What is in use stays. It is tried once more at the end, then told. What fails otherwise is told
//! at once, and all else moves. What others have mounted below it is passed by.
//!
//! In memory are some names of each directory on the way to the one that is gone through, and what
//! is tried once more, up to a limit. A directory is listed page by page: first all moves that is
//! no directory, then one directory after the other moves, with what is below it.

use std::{
    collections::btree_set,
    ffi::OsString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use types::{DirectoryMap, InodeNumber, MdtIndex, NameHash, Stripes, limits::FOLLOWING_MAX};

use super::{
    first_names::FirstNames,
    tree::{Cause, Left, Place, Tree, What},
};

/// How often a directory is tried with what keeps it from moving at once: its stripes end, its
/// names move first, and meanwhile somebody else may do the same.
const TRIES_MAX: u32 = 5;

/// Names of subdirectories that are in memory of each directory on the way. One with more is listed
/// once more for each so many, which takes much less time than to move them.
const NAMES_MAX: usize = 1 << 14;

/// What is in use is tried once more if it is not more than this.
const LATER_MAX: usize = 1 << 14;

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    Moved,
    /// It was as it is to be.
    There,
    /// It stays, or is gone.
    Left,
}

/// A directory that was gone through, but for its subdirectories.
struct Visit {
    path: PathBuf,
    /// Those that are next.
    names: btree_set::IntoIter<OsString>,
    /// The last of these, if there are others.
    last: Option<OsString>,
}

/// What is done with the names of a directory that are none of directories.
#[derive(Clone, Copy)]
enum Pass<'a> {
    /// They move: with their names, if these are in shards that may be elsewhere.
    First(Option<&'a DirectoryMap>),
    /// They have moved.
    Further,
}

/// A migration of directories.
pub struct DirectoryMigration<'t, T: Tree> {
    tree: &'t T,
    /// The MDTs of directories: of the names, and the first one of the directory itself.
    stripes: Stripes,
    in_background: bool,
    names_max: usize,
    /// What was in use.
    later: Vec<Left<T::Error>>,
    /// Nothing is tried once more.
    is_last: bool,
    /// The directory whose names were left most recently.
    names_left: Option<PathBuf>,
}

impl<'t, T: Tree> DirectoryMigration<'t, T> {
    /// To the first of these MDTs; with stripes if there are several.
    pub fn new(tree: &'t T, stripes: Stripes) -> Self {
        Self {
            tree,
            stripes,
            in_background: false,
            names_max: NAMES_MAX,
            later: Vec::new(),
            is_last: false,
            names_left: None,
        }
    }

    /// To an MDT, as nobody has asked for it: what is in a directory that does not move now stays
    /// with it, and nothing is tried again.
    pub fn in_background(tree: &'t T, to: MdtIndex) -> Self {
        Self { in_background: true, is_last: true, ..Self::new(tree, alone(to)) }
    }

    /// The same with so many names of subdirectories in memory.
    pub fn with_names_max(self, names_max: usize) -> Self {
        Self { names_max, ..self }
    }

    /// Moves what has this name; `is_directory`: it is one; `only`: without what is below it.
    pub async fn run(mut self, path: &Path, is_directory: bool, only: bool) -> Result<(), T::Stop> {
        let what = if is_directory { What::Directory } else { What::Other(self.first()) };
        let tried = match self.tree.is_mount_point(path) {
            // It has no name.
            true => self.pass_root(path, what).await?,
            false => self.first_try(path, what).await?,
        };
        let moved = tried == Tried::Moved;
        match (is_directory, only) {
            (true, true) => self.end_names(path, moved).await?,
            (true, false) if self.enters(tried) => self.below(path, moved).await?,
            _ => {}
        }
        self.is_last = true;
        for Left { path, what, .. } in std::mem::take(&mut self.later) {
            self.last_try(&path, what).await?;
        }
        Ok(())
    }

    /// A root stays where it is.
    async fn pass_root(&mut self, path: &Path, what: What) -> Result<Tried, T::Stop> {
        match self.tree.layout_of(path).await {
            Ok((inode, _)) if inode.mdt() == self.first() && !self.has_stripes() => return Ok(Tried::There),
            Ok(_) => self.leave(path, what, T::refusal(Cause::Fixed)).await?,
            Err(error) => self.leave(path, what, error).await?,
        }
        Ok(Tried::Left)
    }

    /// Whether what is in a directory is to move, by what came of the directory.
    fn enters(&self, tried: Tried) -> bool {
        !self.in_background || tried == Tried::Moved
    }

    fn first(&self) -> MdtIndex {
        self.stripes.mdts[0]
    }

    fn has_stripes(&self) -> bool {
        self.stripes.mdts.len() > 1
    }

    /// Everything below a directory, which may have moved right now. What disappears meanwhile is
    /// not missed; what fails is left, and the others go on.
    async fn below(&mut self, directory: &Path, moved: bool) -> Result<(), T::Stop> {
        let mut visits: Vec<Visit> = self.visit(directory.to_owned(), moved).await?.into_iter().collect();
        while let Some(visit) = visits.last_mut() {
            if let Some(name) = visit.names.next() {
                let path = visit.path.join(name);
                let tried = self.first_try(&path, What::Directory).await?;
                if self.enters(tried) {
                    visits.extend(self.visit(path, tried == Tried::Moved).await?);
                }
            } else if let Some(last) = visit.last.take() {
                (visit.names, visit.last) = self.further(&visit.path, last).await?;
            } else {
                visits.pop();
            }
        }
        Ok(())
    }

    /// Moves what is in a directory and is none; its subdirectories are next. `None`: nothing is
    /// known of what is in it.
    async fn visit(&mut self, path: PathBuf, moved: bool) -> Result<Option<Visit>, T::Stop> {
        self.names_left = None;
        let map = match self.begin_names(&path, moved).await? {
            Ok(map) => map,
            Err(error) => return self.leave_below(&path, error).await.map(|()| None),
        };
        let mut directories = FirstNames::after(None, self.names_max);
        match self.pass(&path, Pass::First(map.as_ref()), &mut directories).await? {
            Err(error) => self.leave_below(&path, error).await?,
            Ok(()) if !self.has_stripes() => self.end_names(&path, true).await?,
            Ok(()) => {}
        }
        let (names, last) = directories.end();
        Ok(Some(Visit { path, names, last }))
    }

    /// The next subdirectories of a directory, after the one with this name.
    async fn further(
        &mut self,
        path: &Path,
        last: OsString,
    ) -> Result<(btree_set::IntoIter<OsString>, Option<OsString>), T::Stop> {
        let mut directories = FirstNames::after(Some(last), self.names_max);
        if let Err(error) = self.pass(path, Pass::Further, &mut directories).await? {
            self.leave_below(path, error).await?;
        }
        Ok(directories.end())
    }

    /// Goes through the names of a directory.
    async fn pass(
        &mut self,
        path: &Path,
        pass: Pass<'_>,
        directories: &mut FirstNames,
    ) -> Result<Result<(), T::Error>, T::Stop> {
        let mut listing = match self.tree.list(path).await {
            Ok(listing) => listing,
            Err(error) => return Ok(Err(error)),
        };
        let passed = loop {
            match self.tree.next_names(&mut listing).await {
                Ok(names) if names.is_empty() => break Ok(Ok(())),
                Ok(names) => {
                    if let Err(stop) = self.pass_names(path, names, pass, directories).await {
                        break Err(stop);
                    }
                }
                Err(error) => break Ok(Err(error)),
            }
        };
        let closed = self.tree.end_listing(listing).await;
        Ok(passed?.and(closed))
    }

    async fn pass_names(
        &mut self,
        directory: &Path,
        names: Vec<(OsString, bool)>,
        pass: Pass<'_>,
        directories: &mut FirstNames,
    ) -> Result<(), T::Stop> {
        for (name, is_directory) in names {
            let path = directory.join(&name);
            let is_mounted = self.tree.is_mount_point(&path);
            match pass {
                // It would lead to another file system, and a directory that moves loses it.
                Pass::First(_) if is_mounted => {
                    self.leave(&path, What::Mounted, T::refusal(Cause::InUse)).await?;
                }
                _ if is_directory && !is_mounted => directories.offer(&name),
                Pass::First(map) => {
                    // With its name, if that can be elsewhere.
                    let shard = map.and_then(|map| map.shard_of(name.as_bytes()));
                    let to = shard.map_or(self.first(), |shard| shard.mdt());
                    self.first_try(&path, What::Other(to)).await?;
                }
                Pass::Further => {}
            }
        }
        Ok(())
    }

    /// Before what is in a directory moves: its names are where they are to be, or on the MDT of
    /// the directory. Its map then, if names are to be elsewhere.
    async fn begin_names(
        &mut self,
        path: &Path,
        moved: bool,
    ) -> Result<Result<Option<DirectoryMap>, T::Error>, T::Stop> {
        let place = match self.tree.layout_of(path).await {
            Err(error) => return Ok(Err(error)),
            Ok(place) => place,
        };
        if self.has_stripes() {
            self.place_names(path, &place, moved).await?;
            return Ok(self.tree.layout_of(path).await.map(|(_, map)| map));
        }
        let first = self.first();
        let is_there = |map: &DirectoryMap| map.shards.iter().all(|shard| shard.mdt() == first);
        if !place.1.as_ref().is_none_or(is_there) {
            self.place_names(path, &place, moved).await?;
        }
        Ok(Ok(None))
    }

    /// After what is in a directory: its names are where they are to be.
    async fn end_names(&mut self, path: &Path, moved: bool) -> Result<(), T::Stop> {
        match self.tree.layout_of(path).await {
            Err(error) if is_gone::<T>(&error) => Ok(()),
            Err(error) => self.leave(path, What::Names, error).await,
            Ok(place) => self.place_names(path, &place, moved).await,
        }
    }

    /// The names of a directory that is where it is to be: in it, or in the stripes that are asked
    /// for. `moved`: it was counted.
    async fn place_names(&mut self, path: &Path, (inode, map): &Place, moved: bool) -> Result<(), T::Stop> {
        if inode.mdt() != self.first() || *inode == InodeNumber::ROOT || self.is_wanted(map.as_ref()) {
            return Ok(());
        }
        let placed = self.place(path, What::Names).await.map(|_| self.has_stripes() && !moved);
        self.note(path, What::Names, placed).await.map(drop)
    }

    async fn first_try(&mut self, path: &Path, what: What) -> Result<Tried, T::Stop> {
        let moved = self.place(path, what).await;
        self.note(path, what, moved).await
    }

    async fn last_try(&mut self, path: &Path, what: What) -> Result<(), T::Stop> {
        if what == What::Below {
            return self.below(path, true).await;
        }
        self.names_left = None;
        let mut tries = 0;
        let moved = loop {
            match self.place(path, what).await {
                Err(error) if self.may_be_free(&error, &mut tries).await => {}
                moved => break moved,
            }
        };
        let moved = self.note(path, what, moved).await? == Tried::Moved;
        if what == What::Directory { self.end_names(path, moved).await } else { Ok(()) }
    }

    async fn note(&mut self, path: &Path, what: What, moved: Result<bool, T::Error>) -> Result<Tried, T::Stop> {
        let tried = match moved {
            Ok(true) => Tried::Moved,
            Ok(false) => Tried::There,
            Err(error) => {
                if !is_gone::<T>(&error) {
                    self.leave(path, what, error).await?;
                }
                Tried::Left
            }
        };
        self.tree.tried(path, tried == Tried::Moved).await.map(|()| tried)
    }

    /// What is in a directory stays, unless that is gone.
    async fn leave_below(&mut self, path: &Path, error: T::Error) -> Result<(), T::Stop> {
        if is_gone::<T>(&error) { Ok(()) } else { self.leave(path, What::Below, error).await }
    }

    /// What was in use may move at the end.
    async fn leave(&mut self, path: &Path, what: What, error: T::Error) -> Result<(), T::Stop> {
        if what == What::Names && self.names_left.replace(path.to_owned()).is_some_and(|left| left == path) {
            // They are tried before and after what is in the directory.
            return Ok(());
        }
        let may_be_free = matches!(T::cause(&error), Cause::InUse | Cause::Stale) && what != What::Mounted;
        let left = Left { path: path.to_owned(), what, error };
        if may_be_free && !self.is_last && self.later.len() < LATER_MAX {
            self.later.push(left);
            return Ok(());
        }
        self.tree.left(&left).await
    }

    /// Moves what has this name; false if it was as it is to be.
    async fn place(&self, path: &Path, what: What) -> Result<bool, T::Error> {
        match what {
            What::Directory => self.place_directory(path).await,
            What::Other(to) => self.tree.move_one(path, to).await,
            What::Names => {
                if self.tree.layout_of(path).await?.1.is_some() {
                    self.tree.split(path, alone(self.first())).await?;
                }
                if self.has_stripes() {
                    self.tree.split(path, self.stripes.clone()).await?;
                }
                Ok(false)
            }
            What::Below | What::Mounted => Ok(false),
        }
    }

    /// A directory without stripes gets those that are asked for where it is, if they can follow
    /// it.
    async fn place_directory(&self, path: &Path) -> Result<bool, T::Error> {
        let (inode, map) = self.tree.layout_of(path).await?;
        let (moves, mdts) = (inode.mdt() != self.first(), self.stripes.mdts.iter().copied());
        let gets_stripes = moves && map.is_none() && self.has_stripes() && self.can_follow(inode, mdts);
        if gets_stripes {
            self.tree.split(path, self.stripes.clone()).await?;
        }
        self.move_directory(path, gets_stripes).await
    }

    /// Moves the directory itself. What is too much for that moves before, in batches: its names go
    /// ahead of it; shards on many MDTs give theirs back to it, so that it has names again. That
    /// others do the same meanwhile is found out by another try. `was_open`: a moment ago.
    async fn move_directory(&self, path: &Path, was_open: bool) -> Result<bool, T::Error> {
        let (to, mut was_open) = (self.first(), was_open);
        for _ in 1..TRIES_MAX {
            let error = match self.move_when_free(path, was_open).await {
                Err(error) if T::cause(&error) == Cause::TooBig => error,
                moved => return moved,
            };
            let (inode, map) = self.tree.layout_of(path).await?;
            match map {
                None => self.tree.split(path, alone(to)).await?,
                Some(map) if !self.can_follow(inode, map.shards.iter().map(|shard| shard.mdt())) => {
                    self.tree.split(path, alone(inode.mdt())).await?;
                }
                // It is too much beside its names.
                Some(_) => return Err(error),
            }
            was_open = true;
        }
        self.move_when_free(path, true).await
    }

    /// `waits`: until it is not in use, for a moment.
    async fn move_when_free(&self, path: &Path, waits: bool) -> Result<bool, T::Error> {
        let mut tries = 0;
        loop {
            match self.tree.move_one(path, self.first()).await {
                Err(error) if waits && self.may_be_free(&error, &mut tries).await => {}
                moved => return moved,
            }
        }
    }

    /// Whether what failed was in use, and is to be tried again now.
    async fn may_be_free(&self, error: &T::Error, tries: &mut u32) -> bool {
        *tries += 1;
        T::cause(error) == Cause::InUse && self.tree.pause(*tries).await
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
}

/// Whether there is no such name any more.
fn is_gone<T: Tree>(error: &T::Error) -> bool {
    T::cause(error) == Cause::Gone
}

/// Names on this MDT alone: those of a directory that is there are in the directory itself.
fn alone(mdt: MdtIndex) -> Stripes {
    Stripes { hash: NameHash::default(), mdts: vec![mdt] }
}
