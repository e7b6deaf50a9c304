//! The walk: directories still to be read, by one or several threads, depth first.
//!
//! Every thread takes the directory that was found last, tests its entries, and puts the
//! directories among them back. The walk is over when none is left and no thread has one. Files
//! that pass go through a bounded channel to the one thread that writes, so a slow reader of the
//! output slows the walk down. Errors go to standard error; the walk continues.
//!
//! Downside: attributes are requested entry by entry, so a single thread waits for each.

use std::{
    collections::hash_map::RandomState,
    fs::File,
    hash::BuildHasher,
    io::Write,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, AtomicI32, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
};

use parking_lot::{Condvar, Mutex};

use super::{Action, Search, candidate::Candidate};
use crate::{
    Failure,
    channel::{Errno, strerror},
    outcome::{Outcome, write_failure},
};

/// Lines that threads may be ahead of the output.
const LINES_AHEAD: usize = 4096;

/// A directory to be read, or an operand to begin with.
struct Place {
    path: PathBuf,
    depth: usize,
    /// An operand is tested itself before it is read.
    operand: bool,
}

#[derive(Default)]
struct Pending {
    /// The last one is taken next.
    places: Vec<Place>,
    /// Threads that have one.
    busy: usize,
}

/// See the module documentation.
pub struct Walk<'a> {
    search: &'a Search,
    pending: Mutex<Pending>,
    changed: Condvar,
    /// The reader of the output is gone.
    stopped: AtomicBool,
    /// The last error.
    errno: AtomicI32,
    /// For `--skip`.
    chance: RandomState,
}

impl<'a> Walk<'a> {
    /// A walk of these operands, one after the other.
    pub fn new(search: &'a Search, operands: Vec<PathBuf>) -> Self {
        let places = operands.into_iter().rev().map(|path| Place { path, depth: 0, operand: true }).collect();
        Self {
            search,
            pending: Mutex::new(Pending { places, busy: 0 }),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            errno: AtomicI32::new(0),
            chance: RandomState::new(),
        }
    }

    /// Walks with so many threads.
    pub fn run(&self, threads: usize, output: &mut dyn Write) -> Outcome {
        let written = std::thread::scope(|scope| {
            let (lines, found) = sync_channel::<Vec<u8>>(LINES_AHEAD);
            for _ in 0..threads {
                let lines = lines.clone();
                scope.spawn(move || self.work(&lines));
            }
            drop(lines);
            let written = found.iter().try_for_each(|line| output.write_all(&line));
            self.stopped.store(true, Ordering::Release);
            written
        });
        written.map_err(write_failure)?;
        match self.errno.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(Failure::new(errno, format!("lfs find: the result is incomplete: {}", strerror(errno)))),
        }
    }

    fn work(&self, lines: &SyncSender<Vec<u8>>) {
        while let Some(place) = self.take() {
            // A send fails when the output is gone; then all threads stop.
            let found = if place.operand { self.begin(&place, lines) } else { self.read(&place, lines) };
            if let Err(error) = found {
                self.report(&place.path, error);
            }
            let mut pending = self.pending.lock();
            pending.busy -= 1;
            drop(pending);
            self.changed.notify_all();
        }
    }

    /// The next place; `None` when the walk is over.
    fn take(&self) -> Option<Place> {
        let mut pending = self.pending.lock();
        loop {
            if self.stopped.load(Ordering::Acquire) {
                return None;
            }
            if let Some(place) = pending.places.pop() {
                pending.busy += 1;
                return Some(place);
            }
            if pending.busy == 0 {
                return None;
            }
            self.changed.wait(&mut pending);
        }
    }

    fn report(&self, path: &Path, Errno(errno): Errno) {
        eprintln!("lfs find: '{}': {}", path.display(), strerror(errno));
        self.errno.store(errno, Ordering::Release);
    }

    fn begin(&self, place: &Place, lines: &SyncSender<Vec<u8>>) -> Result<(), Errno> {
        let candidate = Candidate::new(&place.path, 0, None)?;
        let is_directory = candidate.metadata.is_dir();
        self.test(&candidate, lines)?;
        if is_directory && *self.search.depth.end() > 0 {
            self.read(place, lines)?;
        }
        Ok(())
    }

    /// Tests everything in a directory.
    fn read(&self, place: &Place, lines: &SyncSender<Vec<u8>>) -> Result<(), Errno> {
        let depth = place.depth + 1;
        let directory = File::open(&place.path)?;
        let mut below = Vec::new();
        for entry in std::fs::read_dir(&place.path)? {
            let path = place.path.join(entry?.file_name());
            let candidate = match Candidate::new(&path, depth, Some(&directory)) {
                Ok(candidate) => candidate,
                // Removed meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
                Err(error) => {
                    self.report(&path, error.into());
                    continue;
                }
            };
            match self.test(&candidate, lines) {
                Ok(()) => {}
                Err(Errno(libc::ENOENT)) => continue,
                Err(errno) => self.report(&path, errno),
            }
            if self.stopped.load(Ordering::Acquire) {
                return Ok(());
            }
            if candidate.metadata.is_dir() && depth < *self.search.depth.end() {
                below.push(Place { path: path.clone(), depth, operand: false });
            }
        }
        below.reverse();
        self.pending.lock().places.append(&mut below);
        Ok(())
    }

    /// Shows a candidate if it passes.
    fn test(&self, candidate: &Candidate<'_>, lines: &SyncSender<Vec<u8>>) -> Result<(), Errno> {
        if candidate.depth < *self.search.depth.start()
            || self.skips(candidate)
            || !self.search.tests.pass(candidate)?
        {
            return Ok(());
        }
        let line = match &self.search.action {
            Action::Path(end) => [candidate.path.as_os_str().as_bytes(), &[*end]].concat(),
            Action::Formatted(format) => format.apply(candidate)?,
        };
        if lines.send(line).is_err() {
            self.stopped.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Leaves out some, another choice at each run.
    fn skips(&self, candidate: &Candidate<'_>) -> bool {
        let percent = self.search.skip_percent;
        percent > 0 && !candidate.metadata.is_dir() && self.chance.hash_one(candidate.metadata.ino()) % 100 < percent
    }
}
