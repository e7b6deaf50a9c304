//! Migrations of directories in a tree that is kept here, with the limits that MDTs have.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, VecDeque},
    ffi::OsString,
    future::ready,
    path::{Path, PathBuf},
};

use client::migration::{Cause, Left, Place, Tree};
use types::{
    DirectoryMap, InodeNumber, MdtIndex, NameHash,
    limits::{FOLLOWING_MAX, GIVEN_NAMES_MAX, RETURNING_SHARDS_MAX},
};

use super::*;
use crate::{
    channel::{CallError, Errno},
    migrate::tree::{self, told},
};

/// What a name leads to.
#[derive(Clone, Debug, Default)]
struct Node {
    mdt: u16,
    is_directory: bool,
    /// MDTs of its shards.
    shards: Vec<u16>,
    /// How many names it has besides those that are kept here.
    names: usize,
    /// Its names are on their way back, and have come when it moves.
    returns: bool,
    is_mount_point: bool,
    /// What is asked of it that fails, and how.
    fails: Option<(Asked, i32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Layout,
    List,
    Move,
    End,
}

fn errno<T>(errno: i32) -> Result<T, CallError> {
    Err(Errno(errno).into())
}

#[derive(Default)]
struct Kept {
    nodes: RefCell<BTreeMap<PathBuf, Node>>,
    moves: RefCell<Vec<PathBuf>>,
    /// What was told of those that have moved.
    told: RefCell<Vec<PathBuf>>,
    /// What was told of those that are left.
    left: RefCell<Vec<String>>,
    /// Where all is to be.
    to: Cell<MdtIndex>,
    /// Directories that are being listed.
    listed: Cell<usize>,
    /// How often one was.
    listings: Cell<usize>,
}

impl Kept {
    fn of(nodes: impl IntoIterator<Item = (&'static str, Node)>) -> Self {
        let nodes = nodes.into_iter().map(|(path, node)| (PathBuf::from(path), node)).collect();
        Self { nodes: RefCell::new(nodes), ..Self::default() }
    }

    fn node(&self, path: &str) -> Node {
        self.nodes.borrow()[Path::new(path)].clone()
    }

    fn asked<T>(
        &self,
        path: &Path,
        asked: Asked,
        work: impl FnOnce(&mut Node) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let mut nodes = self.nodes.borrow_mut();
        let Some(node) = nodes.get_mut(path) else { return errno(libc::ENOENT) };
        match node.fails {
            Some((fails, error)) if fails == asked => errno(error),
            _ => work(node),
        }
    }

    /// Moves all of `/d`; what is left, in words.
    fn migrate(&self, mdts: &[u16]) -> Vec<String> {
        self.migrate_with(mdts, |migration| migration).expect("nothing ends the migration");
        self.left.take()
    }

    fn migrate_with<'t>(
        &'t self,
        mdts: &[u16],
        options: impl FnOnce(DirectoryMigration<'t, Self>) -> DirectoryMigration<'t, Self>,
    ) -> Result<(), String> {
        let stripes = Stripes { hash: NameHash::default(), mdts: mdts.iter().map(|mdt| MdtIndex(*mdt)).collect() };
        self.to.set(MdtIndex(mdts[0]));
        let migration = options(DirectoryMigration::new(self, stripes));
        done(migration.run(Path::new("/d"), true, false))
    }

    /// Moves what can move now of `/d`, in the background; how much is left.
    fn balance(&self, mdt: u16) -> usize {
        self.to.set(MdtIndex(mdt));
        let migration = DirectoryMigration::in_background(self, MdtIndex(mdt));
        done(migration.run(Path::new("/d"), true, false)).expect("nothing ends the migration");
        self.left.take().len()
    }
}

/// What names lead to that are listed two at a time.
struct Listing(VecDeque<(OsString, bool)>);

impl Tree for Kept {
    type Error = CallError;
    type Stop = String;
    type Listing = Listing;

    fn cause(error: &CallError) -> Cause {
        tree::cause(error)
    }

    fn refusal(cause: Cause) -> CallError {
        tree::refusal(cause)
    }

    fn left(&self, left: &Left<CallError>) -> impl Future<Output = Result<(), String>> + Send {
        let told = told(self, left, self.to.get());
        let ends = left.error.errno() == Errno(libc::EHOSTDOWN);
        ready(if ends {
            Err(told)
        } else {
            self.left.borrow_mut().push(told);
            Ok(())
        })
    }

    fn tried(&self, path: &Path, moved: bool) -> impl Future<Output = Result<(), String>> + Send {
        if moved {
            self.told.borrow_mut().push(path.to_owned());
        }
        ready(Ok(()))
    }

    fn pause(&self, tries: u32) -> impl Future<Output = bool> + Send {
        ready(tries < 3)
    }

    fn is_mount_point(&self, path: &Path) -> bool {
        self.nodes.borrow()[path].is_mount_point
    }

    fn layout_of(&self, path: &Path) -> impl Future<Output = Result<Place, CallError>> + Send {
        ready(self.asked(path, Asked::Layout, |node| {
            let master = InodeNumber::new(MdtIndex(node.mdt), 0x300);
            let shard = |mdt: &u16| InodeNumber::new(MdtIndex(*mdt), 0x300).as_shard();
            let shards = node.shards.iter().map(shard).collect();
            let map = DirectoryMap { master, hash: NameHash::default(), shards };
            Ok((master, (!node.shards.is_empty()).then_some(map)))
        }))
    }

    fn list(&self, path: &Path) -> impl Future<Output = Result<Listing, CallError>> + Send {
        let listed = self.asked(path, Asked::List, |_| Ok(()));
        let nodes = self.nodes.borrow();
        let below = nodes.iter().rev().filter(|(other, _)| other.parent() == Some(path));
        let name =
            |(path, node): (&PathBuf, &Node)| (path.file_name().unwrap_or_default().to_owned(), node.is_directory);
        ready(listed.map(|()| {
            assert_eq!(self.listed.replace(1), 0, "one directory at a time");
            self.listings.set(self.listings.get() + 1);
            Listing(below.map(name).collect())
        }))
    }

    fn next_names(
        &self,
        Listing(names): &mut Listing,
    ) -> impl Future<Output = Result<Vec<(OsString, bool)>, CallError>> + Send {
        ready(Ok(names.drain(..names.len().min(2)).collect()))
    }

    fn end_listing(&self, _listing: Listing) -> impl Future<Output = Result<(), CallError>> + Send {
        self.listed.set(0);
        ready(Ok(()))
    }

    fn move_one(&self, path: &Path, to: MdtIndex) -> impl Future<Output = Result<bool, CallError>> + Send {
        ready(self.asked(path, Asked::Move, |node| {
            if node.mdt == to.0 {
                return Ok(false);
            }
            if std::mem::take(&mut node.returns) {
                node.shards.clear();
            }
            let further = node.shards.iter().filter(|mdt| **mdt != node.mdt && **mdt != to.0).count();
            if further > FOLLOWING_MAX || node.shards.is_empty() && node.names > GIVEN_NAMES_MAX {
                return errno(libc::E2BIG);
            }
            node.mdt = to.0;
            self.moves.borrow_mut().push(path.to_owned());
            Ok(true)
        }))
    }

    fn split(&self, path: &Path, stripes: Stripes) -> impl Future<Output = Result<(), CallError>> + Send {
        let mdts: Vec<u16> = stripes.mdts.iter().map(|mdt| mdt.0).collect();
        let ends = mdts == [self.nodes.borrow()[path].mdt];
        let asked = if ends { Asked::End } else { Asked::List };
        ready(self.asked(path, asked, |node| {
            match (ends, node.shards.len()) {
                (true, count) if count > RETURNING_SHARDS_MAX => return errno(libc::E2BIG),
                (true, _) => node.shards.clear(),
                (false, 0) => node.shards = mdts,
                (false, _) if node.shards == mdts => {}
                (false, _) => return errno(libc::EOPNOTSUPP),
            }
            Ok(())
        }))
    }
}

fn directory(mdt: u16, shards: Vec<u16>, names: usize) -> Node {
    Node { mdt, is_directory: true, shards, names, ..Node::default() }
}

fn file(mdt: u16) -> Node {
    Node { mdt, ..Node::default() }
}

const MANY: usize = 5000;

fn many_mdts() -> Vec<u16> {
    (10..70).collect()
}

#[test]
fn directories_move_from_any_stripes_to_any_others() {
    let all = [vec![], vec![1], vec![3, 4], many_mdts()];
    for names in [3, MANY] {
        for shards in &all {
            for wanted in [vec![1], vec![1, 2], many_mdts()] {
                for mdt in [0, 1, 10] {
                    let case = format!("{names} names on {mdt} over {shards:?}, to {wanted:?}");
                    let tree = Kept::of([("/d", directory(mdt, shards.clone(), names)), ("/d/f", file(5))]);
                    assert_eq!(tree.migrate(&wanted), [""; 0], "{case}");
                    let moved = tree.node("/d");
                    let expected = if wanted.len() == 1 { vec![] } else { wanted.clone() };
                    assert_eq!((moved.mdt, moved.shards), (wanted[0], expected), "{case}");
                }
            }
        }
    }
}

/// The map that was seen is one of before: the directory has all its names by the time it moves.
#[test]
fn names_come_back_while_their_directory_is_to_move() {
    for wanted in [vec![1], vec![1, 2], many_mdts()] {
        let returning = Node { returns: true, ..directory(0, vec![3, 4], MANY) };
        let tree = Kept::of([("/d", returning)]);
        assert_eq!(tree.migrate(&wanted), [""; 0], "{wanted:?}");
        assert_eq!(tree.node("/d").mdt, wanted[0], "{wanted:?}");
    }
}

#[test]
fn what_fails_is_left_and_all_else_moves() {
    let failing = |asked, error| Node { fails: Some((asked, error)), ..directory(0, vec![0, 2], 0) };
    for (asked, told) in [
        (Asked::Layout, "/d/a stays on its MDT: Input/output error (5)"),
        (Asked::List, "/d/a cannot be listed, and what is in it stays: Input/output error (5)"),
        (Asked::Move, "/d/a stays on its MDT: Input/output error (5)"),
        (Asked::End, "/d/a is on MDT0001, but keeps its stripes: Input/output error (5)"),
    ] {
        let tree = Kept::of([
            ("/d", directory(0, vec![], 0)),
            ("/d/a", failing(asked, libc::EIO)),
            ("/d/a/f", file(0)),
            ("/d/b", directory(0, vec![], 0)),
            ("/d/b/f", file(0)),
        ]);
        let left = tree.migrate(&[1]);
        assert!(left.contains(&told.to_owned()), "{asked:?}: {left:?}");
        assert_eq!([tree.node("/d/b").mdt, tree.node("/d/b/f").mdt], [1, 1], "{asked:?}");
        // What is in it is another matter, if it can be found.
        let is_found = matches!(asked, Asked::Move | Asked::End);
        assert_eq!(tree.node("/d/a/f").mdt, u16::from(is_found), "{asked:?}");
        assert_eq!(left.len(), if asked == Asked::Layout { 2 } else { 1 }, "{left:?}");
    }
}

/// A directory has moved before its former stripes end and it gets the new ones.
#[test]
fn a_directory_that_has_moved_but_keeps_its_stripes_is_said_to_have_moved() {
    let stuck = Node { fails: Some((Asked::End, libc::ENOSPC)), ..directory(0, vec![0, 2], 0) };
    let tree = Kept::of([("/d", stuck)]);
    let told = "/d is on MDT0001, but keeps its stripes: more than 128 of its names have the same hash (28)";
    assert_eq!(tree.migrate(&[1, 2]), [told]);
    assert_eq!(tree.moves.take(), [Path::new("/d")]);
}

#[test]
fn a_limit_is_named_with_what_can_be_done() {
    let tree = Kept::of([("/d", directory(0, (10..210).collect(), 3))]);
    let told = "/d stays on its MDT: it has 200 stripes: with more than 48 on further metadata targets it moves without \
                them, and more than 128 cannot end: move what is in it to a new directory (7)";
    assert_eq!(tree.migrate(&[1]), [told]);
}

/// A directory that moves would lose what is mounted on it, and that is another file system.
#[test]
fn what_is_mounted_below_stays() {
    let mounted = Node { is_mount_point: true, ..directory(0, vec![], 0) };
    let tree = Kept::of([("/d", directory(0, vec![], 0)), ("/d/m", mounted), ("/d/m/f", file(0)), ("/d/n", file(0))]);
    let told = "/d/m stays on its MDT, and so does what is in it: something is mounted on it (16)";
    assert_eq!(tree.migrate(&[1]), [told]);
    assert_eq!(tree.moves.take(), ["/d", "/d/n"].map(PathBuf::from));
}

#[test]
fn the_root_keeps_its_place_and_what_is_below_it_moves() {
    let root = Node { is_mount_point: true, ..directory(0, vec![], 0) };
    let tree = Kept::of([("/d", root), ("/d/f", file(0))]);
    let left = tree.migrate(&[1]);
    assert!(left[0].starts_with("/d stays on its MDT: the root directory and lost+found do not move"), "{left:?}");
    assert_eq!((left.len(), tree.node("/d/f").mdt), (1, 1));
}

/// Nobody has asked for it: what is in use keeps what is in it, and all else goes on.
#[test]
fn in_the_background_what_is_in_a_directory_stays_with_it() {
    let busy = |mdt| Node { fails: Some((Asked::Move, libc::EBUSY)), ..directory(mdt, vec![], 0) };
    let tree = Kept::of([
        ("/d", directory(0, vec![], 0)),
        ("/d/a", busy(0)),
        ("/d/a/b", directory(0, vec![], 0)),
        ("/d/a/b/f", file(0)),
        ("/d/c", directory(0, vec![], 0)),
        ("/d/c/f", file(0)),
        ("/d/there", directory(1, vec![], 0)),
        ("/d/there/f", file(0)),
    ]);
    assert_eq!(tree.balance(1), 1);
    let moved = ["/d", "/d/c", "/d/c/f"].map(PathBuf::from);
    assert_eq!((tree.moves.take(), tree.told.take()), (moved.to_vec(), moved.to_vec()));
    let tree = Kept::of([("/d", busy(0)), ("/d/f", file(0))]);
    assert_eq!((tree.balance(1), tree.moves.take().len()), (1, 0));
}

/// However many there are in a directory, names of few are in memory.
#[test]
fn a_directory_with_many_others_is_listed_once_more_for_some_of_them() {
    let tree = Kept::default();
    let (many, mut nodes) = (10, BTreeMap::from([("/d".into(), directory(0, vec![], 0))]));
    for number in 0..many {
        nodes.insert(PathBuf::from(format!("/d/{number}")), directory(0, vec![], 0));
        nodes.insert(PathBuf::from(format!("/d/{number}/f")), file(0));
        nodes.insert(PathBuf::from(format!("/d/f{number}")), file(0));
    }
    nodes.insert("/d/7".into(), Node { is_mount_point: true, ..directory(0, vec![], 0) });
    let all: Vec<PathBuf> = nodes.keys().filter(|path| !path.starts_with("/d/7")).cloned().collect();
    tree.nodes.replace(nodes);
    assert_eq!(tree.migrate_with(&[1], |migration| migration.with_names_max(3)), Ok(()));
    assert_eq!(tree.left.take(), ["/d/7 stays on its MDT, and so does what is in it: something is mounted on it (16)"]);
    let mut moved = tree.moves.take();
    moved.sort();
    assert_eq!(moved, all, "each once");
    // Itself, for nine names three at a time, and each of the nine.
    assert_eq!(tree.listings.get(), 3 + 9);
}

/// Nothing else is tried, which would fail like that.
#[test]
fn an_error_that_all_else_would_have_ends_the_migration_and_it_goes_on_there() {
    let absent = |asked| Node { fails: Some((asked, libc::EHOSTDOWN)), ..directory(0, vec![0, 2], 0) };
    for asked in [Asked::Layout, Asked::List, Asked::Move, Asked::End] {
        let tree = Kept::of([
            ("/d", directory(0, vec![], 0)),
            ("/d/a", directory(0, vec![], 0)),
            ("/d/a/f", file(0)),
            ("/d/b", absent(asked)),
            ("/d/b/f", file(0)),
            ("/d/c", directory(0, vec![], 0)),
        ]);
        let told = tree.migrate_with(&[1], |migration| migration).expect_err("an MDT is absent");
        assert!(told.starts_with("/d/b ") && told.ends_with(": Host is down (112)"), "{told}");
        assert_eq!([tree.node("/d/a/f").mdt, tree.node("/d/b/f").mdt, tree.node("/d/c").mdt], [1, 0, 0], "{asked:?}");
        tree.moves.take();
        tree.nodes.borrow_mut().get_mut(Path::new("/d/b")).expect("it is there").fails = None;
        assert_eq!(tree.migrate(&[1]), [""; 0], "{asked:?}");
        let moved = tree.moves.take();
        assert!(moved.ends_with(&["/d/b/f", "/d/c"].map(PathBuf::from)) && moved.len() <= 3, "{moved:?}");
    }
}
