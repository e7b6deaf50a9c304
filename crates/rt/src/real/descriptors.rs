//! A bounded cache of open files of one directory, by name.
//!
//! The caches of a process share a part of the descriptors it may have; the rest is for
//! connections, tables, and files that are in use without being cached. The share of a cache
//! shrinks when other caches are created, at its next addition.
//!
//! When the cache is full, a file is chosen for eviction by second chance (Corbató 1969): a file
//! used since the hand last passed stays. A file in use stays open through its `Arc`, wherever the
//! hand is.
//!
//! Invariant: a cached file is the one to which its name refers. To remove a file, remove it first
//! and then call [`Descriptors::forget`]; a file opened before that and offered after it is not
//! kept.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files that a cache holds however many caches there are: all segments of a journal, which is
/// never to miss one.
const FILES_MIN: usize = 32;
/// Files that a cache holds at most: more saves nothing that can be measured.
const FILES_MAX: usize = 512;
/// All caches together hold one of so many descriptors.
const DESCRIPTORS_PER_CACHED: usize = 4;

/// The caches of this process.
static CACHES: AtomicUsize = AtomicUsize::new(0);

/// Lets this process open as many files as its user may (the hard limit): the usual soft one of
/// 1024 is for programs that use select(2).
pub fn raise_open_files_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// An open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub file: File,
    /// Whether it may be written: on a read-only file system files are opened for reading.
    pub writable: bool,
}

/// The cache.
pub(super) struct Descriptors {
    files_min: usize,
    files_max: usize,
    /// Descriptors that the process may have.
    descriptors_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: HashMap<Arc<str>, Cached>,
    /// Every name in `files`, once, in the order the hand visits them.
    ring: VecDeque<Arc<str>>,
    /// Counts what was forgotten.
    removals: u64,
}

struct Cached {
    file: Arc<OpenFile>,
    used: bool,
}

/// What a look-up saw; needed to add what it missed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen(u64);

impl Descriptors {
    pub fn new() -> Self {
        Self::bounded(FILES_MIN, FILES_MAX)
    }

    fn bounded(files_min: usize, files_max: usize) -> Self {
        CACHES.fetch_add(1, Ordering::Relaxed);
        let limit = getrlimit(Resource::Nofile).current;
        let descriptors_max = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self { files_min, files_max, descriptors_max, state: Mutex::default() }
    }

    fn capacity(&self) -> usize {
        let share = self.descriptors_max / DESCRIPTORS_PER_CACHED / CACHES.load(Ordering::Relaxed).max(1);
        share.clamp(self.files_min, self.files_max)
    }

    /// The open file of this name.
    pub fn get(&self, name: &str) -> Result<Arc<OpenFile>, Seen> {
        let mut state = self.state.lock();
        match state.files.get_mut(name) {
            Some(cached) => {
                cached.used = true;
                Ok(cached.file.clone())
            }
            None => Err(Seen(state.removals)),
        }
    }

    /// Keeps a file that was opened after the look-up that returned `seen`.
    pub fn add(&self, name: &str, file: Arc<OpenFile>, seen: Seen) {
        let mut state = self.state.lock();
        if state.removals != seen.0 {
            return;
        }
        let name: Arc<str> = name.into();
        if state.files.insert(name.clone(), Cached { file, used: false }).is_none() {
            state.ring.push_back(name);
        }
        let evicted = state.evict_above(self.capacity());
        drop(state);
        // Closing may take long; not under the lock.
        drop(evicted);
    }

    /// Closes what it can do without, because the process has no descriptors left.
    pub fn shed(&self) {
        let evicted = self.state.lock().evict_above(self.files_min);
        drop(evicted);
    }

    /// Closes the file of this name, which was removed or is to be opened again.
    pub fn forget(&self, name: &str) {
        let mut state = self.state.lock();
        state.removals += 1;
        let forgotten = state.files.remove(name);
        if forgotten.is_some() {
            state.ring.retain(|other| &**other != name);
        }
        drop(state);
        drop(forgotten);
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        CACHES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    fn evict_above(&mut self, files: usize) -> Vec<Cached> {
        let surplus = self.files.len().saturating_sub(files);
        (0..surplus).filter_map(|_| self.evict()).collect()
    }

    fn evict(&mut self) -> Option<Cached> {
        loop {
            let name = self.ring.pop_front()?;
            let cached = self.files.get_mut(&name).expect("the ring holds the names of all files");
            if !std::mem::take(&mut cached.used) {
                return self.files.remove(&name);
            }
            self.ring.push_back(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Arc<OpenFile> {
        Arc::new(OpenFile { file: File::open("/dev/null").unwrap(), writable: false })
    }

    fn miss(cache: &Descriptors, name: &str) -> Seen {
        cache.get(name).expect_err("not cached")
    }

    #[test]
    fn holds_no_more_than_its_capacity_and_keeps_what_is_used() {
        let cache = Descriptors::bounded(3, 3);
        for number in 0..100 {
            let name = format!("f{number}");
            let seen = miss(&cache, &name);
            cache.add(&name, open(), seen);
            if number >= 1 {
                cache.get("f0").expect("used between any two evictions");
            }
            let state = cache.state.lock();
            assert!(state.files.len() <= 3);
            assert_eq!(state.files.len(), state.ring.len());
        }
    }

    #[test]
    fn a_file_opened_before_its_removal_is_not_kept() {
        let cache = Descriptors::bounded(3, 3);
        let seen = miss(&cache, "a");
        let old = open();
        cache.forget("a");
        cache.add("a", old, seen);
        let seen = miss(&cache, "a");
        let new = open();
        cache.add("a", new.clone(), seen);
        assert!(Arc::ptr_eq(&cache.get("a").unwrap(), &new));
    }
}
