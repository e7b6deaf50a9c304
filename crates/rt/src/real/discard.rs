//! Giving space back: holes in files, and telling a block device, or the file system of a file,
//! which bytes nothing needs any more.
//!
//! A block device gets BLKDISCARD, which is TRIM or UNMAP for it. (PUNCH_HOLE would have it write
//! zeros.) A file gets a hole.
//!
//! Downside: parts of a range that are smaller than the device's granularity are ignored by it,
//! without a word.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, FileTypeExt, MetadataExt},
};

use rustix::{
    fs::{FallocateFlags, fallocate, major, minor},
    io::Errno,
    ioctl,
};

/// `BLKDISCARD` of linux/fs.h: takes offset and length, in bytes.
const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);

/// Whether discards have an effect on what is open: a block device says so, a file may have holes.
pub(super) fn has_effect(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    if !found.file_type().is_block_device() {
        return Ok(true);
    }
    let (major, minor) = (major(found.rdev()), minor(found.rdev()));
    // A partition has none of its own, but its disk.
    let queues = ["queue", "../queue"].map(|queue| format!("/sys/dev/block/{major}:{minor}/{queue}/discard_max_bytes"));
    let limit = queues.iter().find_map(|path| fs::read_to_string(path).ok());
    Ok(limit.is_some_and(|limit| is_positive(&limit)))
}

fn is_positive(number: &str) -> bool {
    number.trim().parse::<u64>().is_ok_and(|number| number > 0)
}

/// Discards a range that is not empty; `Unsupported` where that is not possible.
pub(super) fn discard(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let discarded = if file.metadata()?.file_type().is_block_device() {
        // SAFETY: BLKDISCARD reads two 64-bit numbers from the address that it is given, and writes
        // to no memory of this process.
        unsafe { ioctl::ioctl(file, ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, bytes])) }
    } else {
        fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
    };
    discarded.map_err(|error| match error {
        Errno::OPNOTSUPP | Errno::NOTTY => io::Error::new(ErrorKind::Unsupported, error),
        error => error.into(),
    })
}

/// Frees the space of a range that is not empty, which then reads as zeros. The length does not
/// change.
pub(super) fn punch(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let length = file.metadata()?.len();
    match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes) {
        // A file system without holes keeps the space; the contents must be zeros nevertheless.
        Err(Errno::OPNOTSUPP) => zero(file, offset, offset.saturating_add(bytes).min(length)),
        result => Ok(result?),
    }
}

/// Writes zeros from `offset` to `end`.
fn zero(file: &File, mut offset: u64, end: u64) -> io::Result<()> {
    let zeros = [0; 64 * 1024];
    while offset < end {
        let bytes = (end - offset).min(zeros.len() as u64);
        file.write_all_at(&zeros[..bytes as usize], offset)?;
        offset += bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_a_hole_and_keeps_its_length() {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = file.as_file();
        file.write_all_at(&[7; 64 << 10], 0).unwrap();
        assert!(has_effect(file).unwrap());
        discard(file, 4096, 8192).unwrap();
        let mut found = vec![1; 64 << 10];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found[4096..12_288].iter().all(|byte| *byte == 0));
        assert!(found[..4096].iter().chain(&found[12_288..]).all(|byte| *byte == 7));
        assert_eq!(file.metadata().unwrap().len(), 64 << 10);
    }

    #[test]
    fn a_device_with_a_limit_of_0_takes_none() {
        assert!(is_positive("2199023255040\n"));
        assert!(!is_positive("0\n") && !is_positive(""));
        let terminal = File::open("/dev/null").unwrap();
        assert!(discard(&terminal, 0, 4096).is_err(), "it is no place for data");
    }
}
