//! Files and directories that all workers move at the same time, into each other too: whichever
//! rename comes first, each name and each inode is there exactly once.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};

use crate::common::load::Random;

/// Tokens of each kind.
const COUNT: usize = 5;
/// How their names begin.
const DIRECTORY: &str = "directory";
const FILE: &str = "file";
/// What keeps the directories among them from being empty.
const INSIDE: &str = "inside";
/// A walk ends after so many directories.
const DEPTH_MAX: u64 = 4;

/// See the module documentation.
pub struct Tokens {
    homes: Vec<String>,
    /// Inodes, and whether they are directories.
    inodes: BTreeMap<u64, bool>,
    names: Vec<String>,
}

impl Tokens {
    /// Makes them below a mount, in its directories in turn.
    pub fn make(root: &Path, homes: &[String]) -> Self {
        let (mut inodes, mut names) = (BTreeMap::new(), Vec::new());
        for number in 0..2 * COUNT {
            let name = format!("{}{number}", if number < COUNT { DIRECTORY } else { FILE });
            let path = root.join(&homes[number % homes.len()]).join(&name);
            match number < COUNT {
                true => {
                    fs::create_dir(&path).and_then(|()| fs::write(path.join(INSIDE), b"")).expect("a new directory")
                }
                false => fs::write(&path, b"").expect("a new file"),
            }
            inodes.insert(fs::symlink_metadata(&path).expect("stat").ino(), number < COUNT);
            names.push(name);
        }
        names.sort();
        Self { homes: homes.to_vec(), inodes, names }
    }

    /// Moves them until it is over; counts the moves.
    pub fn work(&self, root: &Path, seed: u64, is_over: &AtomicBool, moves: &AtomicU64) {
        let mut random = Random(seed);
        while !is_over.load(Ordering::SeqCst) {
            let (from, to) = (self.walk(root, &mut random), self.walk(root, &mut random));
            let Some(from) = self.pick(&from, &mut random) else { continue };
            let there = self.pick(&to, &mut random).filter(|there| is_directory(there) == is_directory(&from));
            let free = to.join(from.file_name().expect("it has a name"));
            let outcome = match (random.below(10), there) {
                // What is not empty is not removed. (Replacing it would give another name where it
                // has just left.)
                (0, Some(there)) if is_directory(&there) => rustix::fs::rmdir(&there),
                (1..=3, Some(there)) => rustix::fs::renameat_with(CWD, &from, CWD, &there, RenameFlags::EXCHANGE),
                _ => rustix::fs::renameat_with(CWD, &from, CWD, &free, RenameFlags::NOREPLACE),
            };
            match outcome {
                Ok(()) => drop(moves.fetch_add(1, Ordering::SeqCst)),
                // Another worker was faster, a directory would come below itself, or is not empty.
                Err(Errno::NOENT | Errno::EXIST | Errno::INVAL | Errno::NOTEMPTY | Errno::STALE | Errno::NOTDIR) => {}
                Err(error) => panic!("{} to {}: {error}", from.display(), to.display()),
            }
        }
    }

    /// A directory that is there, or was a moment ago.
    fn walk(&self, root: &Path, random: &mut Random) -> PathBuf {
        let mut path = root.join(&self.homes[random.below(self.homes.len() as u64) as usize]);
        for _ in 0..random.below(DEPTH_MAX) {
            match self.pick(&path, random) {
                Some(next) if next.is_dir() => path = next,
                _ => break,
            }
        }
        path
    }

    /// One of the tokens in a directory.
    fn pick(&self, directory: &Path, random: &mut Random) -> Option<PathBuf> {
        let mut names = self.names_in(directory);
        if names.is_empty() {
            return None;
        }
        Some(directory.join(names.swap_remove(random.below(names.len() as u64) as usize)))
    }

    fn names_in(&self, directory: &Path) -> Vec<String> {
        // It may have moved.
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| self.names.contains(name)).collect()
    }

    /// Each name and each inode is there once, and what they contain, on a mount where nothing
    /// happens any more.
    pub fn expect_all(&self, root: &Path) {
        let (mut names, mut inodes, mut links) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut pending: Vec<PathBuf> = self.homes.iter().map(|home| root.join(home)).collect();
        while let Some(directory) = pending.pop() {
            let found = self.names_in(&directory);
            for name in &found {
                let path = directory.join(name);
                let stat = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                assert_eq!(inodes.insert(stat.ino(), stat.is_dir()), None, "{} is there twice", path.display());
                if stat.is_dir() {
                    assert!(path.join(INSIDE).is_file(), "{}", path.display());
                    pending.push(path.clone());
                }
                links.push((path, stat));
            }
            names.extend(found);
        }
        names.sort();
        assert_eq!((&names, &inodes), (&self.names, &self.inodes), "{}", root.display());
        for (path, stat) in links {
            let directories = self.names_in(&path).iter().filter(|name| path.join(name).is_dir()).count() as u64;
            let expected = if stat.is_dir() { 2 + directories } else { 1 };
            assert_eq!(stat.nlink(), expected, "links of {}", path.display());
        }
    }
}

/// Names stay with their kind: they are exchanged with others of the same kind only.
fn is_directory(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(DIRECTORY))
}
