//! Running a [`Job`] on a directory of a mounted file system: real files with their layouts, or the
//! emulation.
//!
//! Life cycle: [`Files::create`] creates the files, tasks open them, [`Files::remove`] removes
//! them. Writing ends with fsync, which is part of the time; before reading, the page cache is
//! dropped if the process may do so.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use layout::LayoutSpec;
use lfs::channel::{self, Errno};
use rpc::message::control::ControlRequest;

use super::{
    interposed::{Interposed, Part},
    segments::Segments,
};
use crate::{
    bench::{
        caches::{CacheKind, drop_caches},
        target::{BenchTarget, PosixTarget, TargetFile},
        workers,
    },
    study::{Job, Outcome, Pattern, Segment, Striping},
};

/// Where the files of a job are.
#[derive(Clone, Debug)]
pub enum Files {
    /// In one directory, of this job, with layouts.
    Real {
        /// The directory.
        directory: PathBuf,
    },
    /// In parts, in existing directories; where each part ends.
    Parts(Vec<(PathBuf, u64)>),
    /// In parts, in directories of this job, which go with it.
    OwnParts(Vec<(PathBuf, u64)>),
}

/// An error of the control channel as one of a system call.
pub fn io_error(Errno(errno): Errno) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Name of a file of a job.
fn name(file: u32) -> String {
    format!("stria-bench.{file}")
}

impl Files {
    /// Makes the files of `job` in a directory below `root`, each with its layout. The directory is
    /// new, so that automatic layouts know nothing of the files of other jobs.
    pub fn create(root: &Path, job: &Job) -> io::Result<Self> {
        let spec = job.striping.spec();
        let directory = root.join("stria-bench.files");
        std::fs::create_dir(&directory)?;
        let files = Files::Real { directory: directory.clone() };
        let created = (0..job.files()).try_for_each(|file| {
            let request =
                ControlRequest::CreateWithLayout { name: name(file).into_bytes(), mode: 0o600, spec: spec.clone() };
            channel::call(&directory, &request).map(drop).map_err(io_error)
        });
        match created {
            Ok(()) => Ok(files),
            Err(error) => files.remove(job).and(Err(error)),
        }
    }

    /// Makes a directory per segment below `root`, with the segment's layout as its default.
    pub fn emulate(root: &Path, striping: &Striping) -> io::Result<Self> {
        let Striping::Segments(segments) = striping else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an emulation needs segments"));
        };
        let mut made = Vec::new();
        let mut make = |(index, segment): (usize, &Segment)| {
            let directory = root.join(format!("segment.{index}"));
            std::fs::create_dir(&directory)?;
            made.push((directory.clone(), segment.end));
            let default = LayoutSpec::Plain(segment.stripes());
            channel::call(&directory, &ControlRequest::SetDefaultLayout(Some(default))).map(drop).map_err(io_error)
        };
        match segments.iter().enumerate().try_for_each(&mut make) {
            Ok(()) => Ok(Files::OwnParts(made)),
            Err(error) => {
                made.iter().try_for_each(|(directory, _)| std::fs::remove_dir(directory))?;
                let advice = "cannot set layouts of directories here (existing directories, as DIR:SIZE, need none)";
                Err(io::Error::new(error.kind(), format!("{advice}: {error}")))
            }
        }
    }

    /// For segments as a user gave them; `emulate` turns layouts into directories.
    pub fn for_segments(root: &Path, job: &Job, segments: &Segments, emulate: bool) -> io::Result<Self> {
        match segments {
            Segments::Directories(directories) => {
                for (directory, _) in directories {
                    let name =
                        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
                    std::fs::read_dir(directory).map_err(name)?;
                }
                Ok(Files::Parts(directories.clone()))
            }
            Segments::Layouts(_) if emulate => Self::emulate(root, &job.striping),
            Segments::Layouts(_) => Self::create(root, job),
        }
    }

    /// Opens file `file` of a job.
    pub fn open(&self, file: u32) -> io::Result<Box<dyn TargetFile>> {
        // A file that has a layout exists, and opening it for creation leaves it as it is.
        let open = |directory: &Path| PosixTarget::new(directory, false).create(&name(file));
        match self {
            Files::Real { directory } => open(directory),
            Files::Parts(parts) | Files::OwnParts(parts) => {
                let part = |(directory, end): &(PathBuf, u64)| Ok(Part { end: *end, file: open(directory)? });
                Ok(Box::new(Interposed::new(parts.iter().map(part).collect::<io::Result<_>>()?)))
            }
        }
    }

    /// Gives a shared file its length before any task writes. Linux lets writes that make a file
    /// longer pass one by one through a mount, and here all tasks share one, which on the studies'
    /// testbeds have hosts of their own.
    fn set_length(&self, job: &Job) -> io::Result<()> {
        let set = |directory: &Path, bytes: u64| {
            let file = File::options().write(true).create(true).truncate(false).open(directory.join(name(0)))?;
            file.set_len(bytes)
        };
        match self {
            Files::Real { directory } => set(directory, job.bytes()),
            Files::Parts(parts) | Files::OwnParts(parts) => {
                let mut start = 0;
                for (directory, end) in parts {
                    set(directory, job.bytes().min(*end).saturating_sub(start))?;
                    start = *end;
                }
                Ok(())
            }
        }
    }

    /// Removes the files of `job`, and the directories that were made for it.
    pub fn remove(self, job: &Job) -> io::Result<()> {
        let of_parts = |parts: Vec<(PathBuf, u64)>| parts.into_iter().map(|(directory, _)| directory).collect();
        let (directories, own): (Vec<PathBuf>, bool) = match self {
            Files::Real { directory } => (vec![directory], true),
            Files::Parts(parts) => (of_parts(parts), false),
            Files::OwnParts(parts) => (of_parts(parts), true),
        };
        for directory in directories {
            for file in 0..job.files() {
                match std::fs::remove_file(directory.join(name(file))) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            if own {
                std::fs::remove_dir(directory)?;
            }
        }
        Ok(())
    }
}

/// Makes the files, does `work` on them, and removes them, whatever came of it.
pub fn measure<T>(
    job: &Job,
    make: impl FnOnce() -> io::Result<Files>,
    work: impl FnOnce(&Files) -> io::Result<T>,
) -> io::Result<T> {
    let files = make()?;
    let outcomes = work(&files);
    let removed = files.remove(job);
    outcomes.and_then(|outcomes| removed.map(|()| outcomes))
}

/// Writes, then reads everything. All have written before the first syncs: for an fsync Linux waits
/// until no write to the file is in progress through its mount, and holds others back meanwhile,
/// and here all tasks share a mount.
pub fn run(job: &Job, files: &Files) -> io::Result<Vec<Outcome>> {
    let pattern = |index: usize| (index % 251) as u8 | 1;
    let data = Bytes::from_iter((0..job.transfer_bytes as usize).map(pattern));
    if job.pattern == Pattern::Shared {
        files.set_length(job)?;
    }
    let opened = open_all(job, files)?;
    let written = at_once(&opened, |file, rank| {
        job.transfers(rank).try_for_each(|(offset, bytes)| file.write_at(&data.slice(..bytes as usize), offset))
    })?;
    let synced = at_once(&opened, |file, _| file.sync())?;
    close_all(opened)?;
    drop_caches(CacheKind::Pages);
    let opened = open_all(job, files)?;
    let read = at_once(&opened, |file, rank| {
        let mut buffer = vec![0; job.transfer_bytes as usize];
        job.transfers(rank).try_for_each(|(offset, bytes)| {
            let buffer = &mut buffer[..bytes as usize];
            file.read_at(buffer, offset)?;
            if *buffer == data[..bytes as usize] {
                Ok(())
            } else {
                Err(io::Error::other("the data read differ from the data written"))
            }
        })
    })?;
    close_all(opened)?;
    let outcome = |phase, time: Duration| {
        let operations = (0..job.tasks).map(|rank| job.transfers(rank).count() as u64).sum();
        Outcome { job: job.name.clone(), phase, bytes: job.bytes(), operations, seconds: time.as_secs_f64() }
    };
    Ok(vec![outcome("write", written + synced), outcome("read", read)])
}

/// Opens its file for each task, before any begins, as with MPI and in virtual time: opening is not
/// timed.
pub(super) fn open_all(job: &Job, files: &Files) -> io::Result<Vec<Box<dyn TargetFile>>> {
    (0..job.tasks).map(|rank| files.open(job.place(rank).0)).collect()
}

/// Lets all tasks work at once, each with its file.
pub(super) fn at_once(
    opened: &[Box<dyn TargetFile>],
    work: impl Fn(&dyn TargetFile, u32) -> io::Result<()> + Sync,
) -> io::Result<Duration> {
    workers::run(opened.len(), |rank| work(&*opened[rank], rank as u32))
}

/// Closes the files of all tasks.
pub(super) fn close_all(opened: Vec<Box<dyn TargetFile>>) -> io::Result<()> {
    opened.into_iter().try_for_each(|file| file.close())
}

#[cfg(test)]
mod tests {
    use layout::{END_OF_FILE, StripeCount};

    use super::*;

    #[test]
    fn an_emulation_runs_on_any_file_system() {
        let place = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let directory = place.path().join(name);
            std::fs::create_dir(&directory).unwrap();
            directory
        };
        let files = Files::Parts(vec![(directory("a"), 100_000), (directory("b"), END_OF_FILE)]);
        let job = Job {
            name: "j".to_owned(),
            setting: String::new(),
            striping: Striping::plain(StripeCount::Default, 1 << 20),
            pattern: Pattern::Shared,
            tasks: 3,
            task_bytes: 70_000,
            transfer_bytes: 4096,
        };
        let outcomes = run(&job, &files).unwrap();
        assert_eq!(std::fs::metadata(place.path().join("a").join(name(0))).unwrap().len(), 100_000);
        assert_eq!(
            outcomes.iter().map(|one| (one.phase, one.bytes)).collect::<Vec<_>>(),
            [("write", 210_000), ("read", 210_000)]
        );
        assert_eq!(std::fs::metadata(place.path().join("b").join(name(0))).unwrap().len(), 110_000);
        files.remove(&job).unwrap();
        let left = |name: &str| std::fs::read_dir(place.path().join(name)).unwrap().count();
        assert_eq!((left("a"), left("b")), (0, 0), "the files go, the user's directories stay");
    }

    #[test]
    fn a_file_system_without_layouts_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let striping = Striping::plain(StripeCount::Exactly(2), 1 << 20);
        let error = Files::emulate(place.path(), &striping).unwrap_err();
        assert!(error.to_string().starts_with("cannot set layouts of directories"), "{error}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
