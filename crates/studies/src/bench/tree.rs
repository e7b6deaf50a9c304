//! A source tree, as people work with it: unpacked with tar, searched with find, listed with
//! `ls -lR`, removed with `rm -rf`. find and ls run twice: as after the unpacking, and with the
//! kernel's caches dropped.

use std::{
    io,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use super::{
    caches::{CacheKind, drop_caches},
    measurement::{Measurement, Run},
};

/// Runs all phases below `directory` with the archive of a tree of `entries` names.
pub fn run(run: &Run<'_>, directory: &Path, archive: &Path, entries: u64) -> io::Result<Vec<Measurement>> {
    // Deep, because each component of a path can cost a request.
    let place = directory.join("home/user/project/tree");
    std::fs::create_dir_all(&place)?;
    let place = place.canonicalize()?;
    let mut results = Vec::new();
    let mut phase = |name: &'static str, program: &str, arguments: &[&Path]| -> io::Result<()> {
        let (cpu, start) = (run.cpu(), Instant::now());
        // What find and ls print is not wanted.
        let output = if matches!(program, "find" | "ls") { Stdio::null() } else { Stdio::inherit() };
        let status = Command::new(program).args(arguments).stdout(output).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("{program}: {status}")));
        }
        results.push(run.measurement("tree", name, entries, 0, start.elapsed(), cpu));
        Ok(())
    };
    phase("untar", "tar", &[Path::new("-xf"), archive, Path::new("-C"), &place])?;
    phase("find", "find", &[&place])?;
    phase("ls -lR", "ls", &[Path::new("-lR"), &place])?;
    drop_caches(CacheKind::All);
    phase("find, cold", "find", &[&place])?;
    drop_caches(CacheKind::All);
    phase("ls -lR, cold", "ls", &[Path::new("-lR"), &place])?;
    phase("rm -rf", "rm", &[Path::new("-rf"), &place])?;
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
