//! Which programs look at the files that they list: pure.
//!
//! READDIRPLUS shows attributes with the names, because `ls -l` would ask for each of them
//! otherwise. `find` needs those of directories only, and for it they are the greater part of the
//! work, of the mount and of the kernel. Whether a program uses what it was shown cannot be seen:
//! the kernel answers. So now and then a program is shown a *bare* page: files without their
//! attributes. As long as nobody asks for attributes of these files, it gets bare pages for some
//! seconds, and is tried again later. If anybody does, it gets attributes again at once, and the
//! next trial comes after twice as many pages.
//!
//! Programs are told apart by their threads. The one that asks may be another: of a pool, or of a
//! program that reads the names from a pipe. So it is known for a while which thread was shown a
//! directory as a bare page.
//!
//! Downside: a trial costs a program that looks at files one request for each of up to
//! [`TRIAL_FILES_MAX`] of them. A program that first lists everything for seconds, and then looks
//! at files, asks for each file of the bare pages.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// Pages with attributes before the first trial, and after it if they are used.
const FIRST_PAGES: u32 = 8;
const AGAIN_PAGES: u32 = 32;
const AGAIN_PAGES_MAX: u32 = 1024;
/// No trial is made with a page of more files.
const TRIAL_FILES_MAX: usize = 32;
/// For how long a thread gets bare pages after a trial.
const BARE_TIME: Duration = Duration::from_secs(10);
/// Most threads and directories of which something is known. When there are more, all are new.
const THREADS_MAX: usize = 1024;
const DIRECTORIES_MAX: usize = 4096;

/// A thread of a program.
#[derive(Clone, Copy, Debug)]
struct Walker {
    shown: Shown,
    /// Pages after the next trial, if the attributes are used.
    again: u32,
}

/// What a thread is shown.
#[derive(Clone, Copy, Debug)]
enum Shown {
    /// Attributes, and so many pages until the next trial.
    Attributes(u32),
    /// Bare pages, until then.
    Bare(Instant),
}

impl Walker {
    const NEW: Self = Self { shown: Shown::Attributes(FIRST_PAGES), again: AGAIN_PAGES };

    fn is_bare(&self) -> bool {
        matches!(self.shown, Shown::Bare(_))
    }

    /// What a page with so many files shows.
    fn list(&mut self, files: usize, now: Instant) {
        self.shown = match self.shown {
            Shown::Bare(until) if now >= until => Self::NEW.shown,
            Shown::Attributes(0) if (1..=TRIAL_FILES_MAX).contains(&files) => Shown::Bare(now + BARE_TIME),
            Shown::Attributes(pages) if files > 0 => Shown::Attributes(pages.saturating_sub(1)),
            unchanged => unchanged,
        };
    }
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Walkers {
    known: Mutex<Known>,
    begun: Instant,
    /// Until when any thread gets bare pages, in milliseconds from then on.
    bare_until: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    threads: HashMap<u32, Walker>,
    /// Directories that were shown in bare pages, and to which thread.
    directories: HashMap<u64, u32>,
}

impl Walkers {
    /// Nothing is known yet.
    pub fn new(now: Instant) -> Self {
        Self { known: Mutex::default(), begun: now, bare_until: AtomicU64::new(0) }
    }

    fn milliseconds(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.begun).as_millis() as u64
    }

    /// Whether a thread is shown the attributes of files.
    pub fn is_shown(&self, thread: u32, now: Instant) -> bool {
        let known = self.known.lock();
        let shown = known.threads.get(&thread).map(|walker| walker.shown);
        !matches!(shown, Some(Shown::Bare(until)) if now < until)
    }

    /// A page of a directory with so many files is about to be shown. Whether with their
    /// attributes.
    pub fn lists(&self, thread: u32, directory: u64, files: usize, now: Instant) -> bool {
        let mut known = self.known.lock();
        let Known { threads, directories } = &mut *known;
        if threads.len() >= THREADS_MAX && !threads.contains_key(&thread) {
            threads.clear();
            directories.clear();
        }
        let walker = threads.entry(thread).or_insert(Walker::NEW);
        walker.list(files, now);
        let Shown::Bare(until) = walker.shown else { return true };
        self.bare_until.fetch_max(self.milliseconds(until), Ordering::Relaxed);
        if files > 0 {
            if directories.len() >= DIRECTORIES_MAX {
                directories.clear();
            }
            directories.insert(directory, thread);
        }
        false
    }

    /// Whether any thread may get bare pages: only then a look matters.
    pub fn tries(&self, now: Instant) -> bool {
        self.milliseconds(now) <= self.bare_until.load(Ordering::Relaxed)
    }

    /// A thread asks for the attributes of a file in these directories.
    pub fn looks(&self, thread: u32, parents: impl IntoIterator<Item = u64>) {
        let mut known = self.known.lock();
        let Known { threads, directories } = &mut *known;
        let others = parents.into_iter().filter_map(|parent| directories.get(&parent).copied());
        for thread in others.chain([thread]).collect::<Vec<_>>() {
            if let Some(walker) = threads.get_mut(&thread).filter(|walker| walker.is_bare()) {
                *walker =
                    Walker { shown: Shown::Attributes(walker.again), again: AGAIN_PAGES_MAX.min(2 * walker.again) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIND: u32 = 1;
    const LS: u32 = 2;
    const OTHER: u32 = 3;
    const DIRECTORY: u64 = 5;

    struct Table(Walkers, Instant);

    impl Table {
        fn new() -> Self {
            let now = Instant::now();
            Self(Walkers::new(now), now + Duration::from_secs(1))
        }

        fn lists(&self, thread: u32, files: usize) -> bool {
            self.0.lists(thread, DIRECTORY, files, self.1)
        }

        fn try_it(&self, thread: u32) {
            assert!((0..FIRST_PAGES).all(|_| self.lists(thread, 16)));
            assert!(!self.lists(thread, 16) && !self.0.is_shown(thread, self.1) && self.0.tries(self.1));
        }
    }

    #[test]
    fn a_program_that_looks_at_no_file_gets_bare_pages_for_some_time() {
        let mut table = Table::new();
        table.try_it(FIND);
        assert!((0..100).all(|_| !table.lists(FIND, 1000)));
        assert!(table.0.is_shown(LS, table.1) && table.lists(LS, 16));
        table.1 += BARE_TIME;
        assert!(table.0.is_shown(FIND, table.1));
        assert!(table.lists(FIND, 16));
        table.1 += Duration::from_millis(1);
        assert!(!table.0.tries(table.1));
        table.try_it(FIND);
    }

    #[test]
    fn a_look_by_anybody_ends_it() {
        for (thread, parents) in [(FIND, None), (FIND, Some(7)), (OTHER, Some(DIRECTORY))] {
            let table = Table::new();
            table.try_it(FIND);
            table.0.looks(OTHER, [7]);
            assert!(!table.0.is_shown(FIND, table.1), "at a file elsewhere");
            table.0.looks(thread, parents);
            assert!(table.0.is_shown(FIND, table.1) && table.lists(FIND, 16));
        }
    }

    #[test]
    fn a_program_that_looks_at_files_is_tried_less_and_less() {
        let table = Table::new();
        let mut trials = Vec::new();
        for page in 0..4000 {
            table.0.looks(LS, [DIRECTORY]);
            if !table.lists(LS, 16) {
                trials.push(page);
            }
        }
        assert_eq!(trials, [8, 41, 106, 235, 492, 1005, 2030, 3055]);
    }

    #[test]
    fn large_pages_and_directories_alone_are_no_trial() {
        let table = Table::new();
        assert!((0..100).all(|_| table.lists(LS, TRIAL_FILES_MAX + 1)));
        assert!((0..100).all(|_| table.lists(LS, 0)));
        assert!(!table.lists(LS, TRIAL_FILES_MAX));
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let walkers = Walkers::new(now);
        for thread in 0..10 * THREADS_MAX as u32 {
            for directory in 0..2 * u64::from(FIRST_PAGES) {
                walkers.lists(thread, u64::from(thread) << 8 | directory, 1, now);
            }
        }
        let known = walkers.known.lock();
        assert!(known.threads.len() <= THREADS_MAX && known.directories.len() <= DIRECTORIES_MAX);
        assert!(walkers.tries(now));
    }
}
