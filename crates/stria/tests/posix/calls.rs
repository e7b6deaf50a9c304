//! System calls that the standard library does not have, in the form the tests need them.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::Path,
};

/// Opens for reading and writing, creating if missing, with further flags.
pub fn open(path: &Path, flags: i32) -> File {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(path);
    opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The error number of a failure.
pub fn errno<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("this must fail").raw_os_error().expect("an error of the system")
}

/// 512-byte blocks a file takes.
pub fn blocks(path: &Path) -> u64 {
    std::fs::metadata(path).expect("stat").blocks()
}

/// lseek(2) with SEEK_DATA or SEEK_HOLE.
pub fn seek(file: &File, offset: i64, whence: i32) -> io::Result<i64> {
    // SAFETY: lseek takes no pointers.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, whence) } {
        -1 => Err(io::Error::last_os_error()),
        found => Ok(found),
    }
}

/// fcntl(2) with a lock over all bytes from `start` on (`bytes` 0: to the end).
pub fn lock(file: &File, command: i32, kind: i32, start: i64, bytes: i64) -> io::Result<libc::flock> {
    // SAFETY: all-zero bytes are a valid flock.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = bytes;
    // SAFETY: the structure lives through the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(lock),
    }
}

/// flock(2).
pub fn flock(file: &File, operation: i32) -> io::Result<()> {
    // SAFETY: flock takes no pointers.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// A mapping of the beginning of a file; unmapped when dropped.
pub struct Mapping {
    address: *mut libc::c_void,
    bytes: usize,
}

impl Mapping {
    /// Maps for reading and writing; `flags` are `MAP_SHARED` or `MAP_PRIVATE`.
    pub fn new(file: &File, bytes: usize, flags: i32) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an unused address.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { address, bytes }) }
    }

    /// Its bytes. Other mappings of the file may change them, as they do in every program that maps
    /// files.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is as long as that and lives as long as the slice; the file is not
        // cut meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }

    /// msync(2).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is mapped.
        match unsafe { libc::msync(self.address, self.bytes, libc::MS_SYNC) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is mapped, and nobody has a slice of it any more.
        unsafe { libc::munmap(self.address, self.bytes) };
    }
}
