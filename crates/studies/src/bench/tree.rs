//! A source tree: unpacked with tar, walked with attributes, removed; the work of every build and
//! check-out.

use std::{io, path::Path, process::Command, time::Instant};

use super::{Measurement, Run};

/// Runs the three phases below `directory` with the archive of a tree of `entries` names.
pub fn run(run: &Run<'_>, directory: &Path, archive: &Path, entries: u64) -> io::Result<Vec<Measurement>> {
    let place = directory.join("tree");
    std::fs::create_dir(&place)?;
    let mut results = Vec::new();
    let mut phase = |name: &'static str, work: &dyn Fn() -> io::Result<()>| -> io::Result<()> {
        let (cpu, start) = (run.cpu(), Instant::now());
        work()?;
        results.push(run.measurement("tree", name, entries, 0, start.elapsed(), cpu));
        Ok(())
    };
    phase("untar", &|| {
        let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&place).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("tar: {status}"))) }
    })?;
    phase("walk", &|| walk(&place).map(drop))?;
    phase("remove", &|| std::fs::remove_dir_all(&place))?;
    Ok(results)
}

/// Visits everything below `directory` with its attributes; returns how many names there are.
pub fn walk(directory: &Path) -> io::Result<u64> {
    let mut count = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        count += 1;
        if metadata.is_dir() {
            count += walk(&entry.path())?;
        }
    }
    Ok(count)
}
