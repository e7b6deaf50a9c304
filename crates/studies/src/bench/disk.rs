//! What disks write, as the kernel counts it: for the write amplification of what is measured.
//!
//! Downside: the counters are those of whole disks. What other programs write to the same disk
//! counts too, and so does what others wrote before and the kernel writes only now.

use std::{
    collections::BTreeSet,
    fs::{metadata, read_to_string},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};

/// The kernel counts in sectors of this many bytes, whatever those of the disk are.
const SECTOR_BYTES: u64 = 512;
/// Of the numbers in a disk's `stat`, that of the sectors written (Linux,
/// Documentation/block/stat.rst).
const SECTORS_WRITTEN: usize = 6;

/// Disks, each once.
#[derive(Clone, Debug)]
pub struct Disks {
    counters: BTreeSet<PathBuf>,
}

impl Disks {
    /// Those that the files, directories and block devices in these paths are on, or are. That of a
    /// loop device is the one that its file is on.
    pub fn of(paths: &[&Path]) -> std::io::Result<Self> {
        Ok(Self { counters: paths.iter().map(|path| counters_of(path)).collect::<std::io::Result<_>>()? })
    }

    /// Bytes that they have written so far; `None` if the kernel does not count those of one, as on
    /// file systems that span several disks.
    pub fn written(&self) -> Option<u64> {
        self.counters
            .iter()
            .map(|path| sectors_written(&read_to_string(path).ok()?))
            .sum::<Option<u64>>()?
            .checked_mul(SECTOR_BYTES)
    }
}

/// The counters of the disk that a path is on, or is.
fn counters_of(path: &Path) -> std::io::Result<PathBuf> {
    let found = metadata(path)?;
    let device = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let known = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    match read_to_string(known.join("loop/backing_file")) {
        Ok(file) => counters_of(Path::new(file.trim_end_matches('\n'))),
        Err(_) => Ok(known.join("stat")),
    }
}

fn sectors_written(stat: &str) -> Option<u64> {
    stat.split_ascii_whitespace().nth(SECTORS_WRITTEN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seventh_number_is_that_of_the_sectors_written() {
        assert_eq!(sectors_written("    1   2   3  4   5  6  4096  8  9 10 11\n"), Some(4096));
        for damaged in ["", "1 2 3 4 5 6", "1 2 3 4 5 6 x"] {
            assert_eq!(sectors_written(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn a_disk_counts_once_and_one_that_is_not_counted_is_not_guessed() {
        let place = tempfile::tempdir().unwrap();
        let disks = Disks::of(&[place.path(), place.path()]).unwrap();
        assert_eq!(disks.counters.len(), 1);
        // That of processes is on no disk.
        assert_eq!(Disks::of(&["/proc".as_ref()]).unwrap().written(), None);
        assert!(Disks::of(&["/no/such/path".as_ref()]).is_err());
    }
}
