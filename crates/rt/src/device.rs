//! Storage: named byte arrays on one device, nothing more.
//!
//! Assumptions about the media, which the fault-injecting implementations violate no further than
//! this: a flushed write survives power loss; an unflushed one may survive whole, in part (any
//! subset of its 512-byte sectors) or not at all, independently of others; length changes,
//! creations and removals behave likewise until the file is flushed; bits may rot. A file name is a
//! relative path of `[A-Za-z0-9._:-]` parts, none of them `.` or `..`; no name may be a directory
//! part of another.
//!
//! Errors keep the kind that the system gave them: `StorageFull`, `ReadOnlyFilesystem`; a bad name
//! is `InvalidInput`, a range that no file can hold is `FileTooLarge`, and `ResourceBusy` means
//! that nothing was tried and a later attempt may succeed. A failed write leaves the range
//! undefined. Nothing happens before a future's first poll.

use std::io;

use bytes::Bytes;
use types::SpaceUsage;

use crate::BoxFuture;

/// Pieces of a file that a host's memory keeps apart: the largest of Linux's *folios*, that is a
/// huge page of x86-64 and, with pages of 4 KiB, of AArch64.
pub const CACHED_AREA_BYTES: u64 = 2 << 20;

/// The seam for storage. All offsets and lengths are bytes. Futures own what they need.
pub trait Device: Send + Sync {
    /// Fills `buffer` from `offset`; returns it with the number of bytes read, short only at the
    /// file's end. A missing file is empty.
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>>;
    /// As [`Device::read`], of `bytes` bytes into memory that the device chooses, which suits large
    /// reads best.
    fn read_bytes(&self, file: &str, offset: u64, bytes: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        let read = self.read(file, offset, vec![0; bytes]);
        Box::pin(async move {
            let (mut buffer, filled) = read.await?;
            buffer.truncate(filled);
            Ok(buffer.into())
        })
    }
    /// Writes all pieces one after the other from `offset`, creating the file if missing. A gap
    /// reads as zeros. After completion the data survive the death of this process.
    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>>;
    /// As [`Device::write`], of little data: they may stay in the host's memory until the flush,
    /// and take their time only then. That memory may hold more than was written, and write back
    /// its neighbours as they were: so until a flush that begins afterwards has ended, nothing but
    /// this may write to the piece of the file, of [`Device::cached_area_bytes`] from a multiple of
    /// that on, in which they are.
    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.write(file, offset, pieces)
    }
    /// The pieces of a file that the memory of [`Device::write_cached`] keeps apart.
    fn cached_area_bytes(&self) -> u64 {
        CACHED_AREA_BYTES
    }
    /// Makes everything written to `file`, its length and its existence durable. A missing file is
    /// fine. After an error the file's unflushed data are undefined and the caller must not try
    /// again. Readable parts of them may be lost in a power loss, even if a later flush succeeds,
    /// unless they are written again: code that opens the device again after an error does so.
    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>>;
    /// Length, or `None` if the file does not exist.
    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>>;
    /// Sets the length, creating the file if missing.
    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Frees the space of a range, which then reads as zeros. The length does not change; a missing
    /// file stays missing.
    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Tells the device that nothing needs what a range holds. What is read there before it is
    /// written again may be anything. `Unsupported`: the device cannot make use of it.
    fn discard(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.punch(file, offset, bytes)
    }
    /// Whether [`Device::discard`] has an effect on a file, as far as the device says.
    fn takes_discards(&self, _file: &str) -> BoxFuture<'static, io::Result<bool>> {
        Box::pin(async { Ok(true) })
    }
    /// Reserves space for a range, so that writing it cannot fail for lack of space. Creates the
    /// file if missing; the length and the contents of the range do not change.
    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Removes the file; a missing one is fine. The removal is durable after the next flush of any
    /// file.
    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>>;
    /// Names of all files whose name starts with `prefix`, sorted.
    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>>;
    /// Takes an existing file, or what it links to, for this process alone, and keeps it open for
    /// reading and writing as long as the device is used: every later operation is on what was
    /// opened now. `NotFound` if there is none; `ResourceBusy` if another process, or another use
    /// of the device, has it. A device that only one process can know just looks whether it is
    /// there.
    fn hold(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let length = self.length(file);
        Box::pin(async move { length.await?.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
    /// Space of the device.
    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>>;
}

/// Longest part of a file name between slashes (Linux NAME_MAX).
const PART_BYTES_MAX: usize = 255;
/// Largest offset of a byte: what off_t holds.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// `InvalidInput` unless `file` is a name that devices accept: what every implementation checks
/// first.
pub fn check_file_name(file: &str) -> io::Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    let good = |part: &str| {
        !part.is_empty() && part.len() <= PART_BYTES_MAX && part != "." && part != ".." && part.bytes().all(allowed)
    };
    if file.split('/').all(good) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("'{}' is not a name of a device file", file.escape_debug()),
    ))
}

/// The end of a range, or `FileTooLarge` if no file can be that large.
pub fn check_range(offset: u64, bytes: u64) -> io::Result<u64> {
    match offset.checked_add(bytes) {
        Some(end) if end <= OFFSET_MAX => Ok(end),
        _ => Err(io::Error::from(io::ErrorKind::FileTooLarge)),
    }
}
