//! mdtest: metadata rates, as defined by the tool of that name (as used by the IO500).
//!
//! easy: every worker has a directory of its own with empty files. hard: all share one directory
//! with files of 3901 bytes, written at creation and read in a phase of their own. Rates are
//! operations per second over all workers. Files are five names deep, because each component of a
//! path can cost a request. "stat again" finds what the phase before it has left in caches; before
//! "stat cold" those of the kernel are dropped.

use std::{fmt::Write, io};

use bytes::Bytes;

use super::{
    caches::{CacheKind, drop_caches},
    measurement::{Measurement, Run},
    target::BenchTarget,
    workers,
};

/// Bytes of a file of the hard variant.
const HARD_BYTES: usize = 3901;

/// Directory of the easy variant's own directories.
const EASY_DIRECTORY: &str = "mdtest/a/b";
/// The shared directory of the hard variant.
const HARD_DIRECTORY: &str = "mdtest/a/b/c";
/// What is made, in this order.
const DIRECTORIES: [&str; 4] = ["mdtest", "mdtest/a", EASY_DIRECTORY, HARD_DIRECTORY];

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Mdtest {
    /// One shared directory with small files, instead of own directories with empty ones.
    pub hard: bool,
    /// Files of each worker.
    pub files: usize,
    /// Bytes of each file of the hard variant that its layout puts on the MDT; files are then made
    /// and read whole, which the native client does in one request each.
    pub on_mdt: Option<u64>,
}

impl Mdtest {
    fn name(self) -> &'static str {
        match (self.hard, self.on_mdt) {
            (true, Some(_)) => "mdtest-hard-on-mdt",
            (true, None) => "mdtest-hard",
            (false, _) => "mdtest-easy",
        }
    }

    fn path(self, rank: usize, file: usize) -> String {
        let mut path = String::with_capacity(48);
        match self.hard {
            true => write!(path, "{HARD_DIRECTORY}/file.{rank}.{file}"),
            false => write!(path, "{EASY_DIRECTORY}/dir.{rank}/file.{file}"),
        }
        .expect("writing to a string");
        path
    }

    /// Runs all phases and removes everything again.
    pub fn run(self, run: &Run<'_>) -> io::Result<Vec<Measurement>> {
        for directory in DIRECTORIES {
            run.target.make_directory(directory)?;
        }
        if !self.hard {
            for rank in 0..run.workers {
                run.target.make_directory(&format!("{EASY_DIRECTORY}/dir.{rank}"))?;
            }
        }
        if let Some(bytes) = self.on_mdt.filter(|_| self.hard) {
            run.target.keep_on_mdt(HARD_DIRECTORY, bytes)?;
        }
        let contents = Bytes::from(vec![0x5a; HARD_BYTES]);
        let mut results = vec![self.phase(run, "create", |target, path| self.create(target, path, &contents))?];
        for phase in ["stat", "stat again", "stat cold"] {
            if phase == "stat cold" {
                drop_caches(CacheKind::All);
            }
            results.push(self.phase(run, phase, |target, path| target.stat(path).map(drop))?);
        }
        if self.hard {
            results.push(self.phase(run, "read", |target, path| self.read(target, path))?);
        }
        results.push(self.phase(run, "remove", |target, path| target.unlink(path))?);
        if !self.hard {
            for rank in 0..run.workers {
                run.target.remove_directory(&format!("{EASY_DIRECTORY}/dir.{rank}"))?;
            }
        }
        for directory in DIRECTORIES.into_iter().rev() {
            run.target.remove_directory(directory)?;
        }
        Ok(results)
    }

    fn create(self, target: &dyn BenchTarget, path: &str, contents: &Bytes) -> io::Result<()> {
        if self.hard && self.on_mdt.is_some() {
            return target.create_with(path, contents);
        }
        let file = target.create(path)?;
        if self.hard {
            file.write_at(contents, 0)?;
        }
        file.close()
    }

    fn read(self, target: &dyn BenchTarget, path: &str) -> io::Result<()> {
        let mut buffer = [0; HARD_BYTES];
        if self.on_mdt.is_some() {
            return target.read_whole(path, &mut buffer);
        }
        let file = target.open(path)?;
        file.read_at(&mut buffer, 0)?;
        file.close()
    }

    fn phase(
        self,
        run: &Run<'_>,
        phase: &'static str,
        operation: impl Fn(&dyn BenchTarget, &str) -> io::Result<()> + Sync,
    ) -> io::Result<Measurement> {
        let cpu = run.cpu();
        let wall = workers::run(run.workers, |rank| {
            (0..self.files).try_for_each(|file| operation(run.target, &self.path(rank, file)))
        })?;
        let operations = (self.files * run.workers) as u64;
        Ok(run.measurement(self.name(), phase, operations, 0, wall, cpu))
    }
}
