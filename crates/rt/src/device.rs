//! Storage: named byte arrays on one device, nothing more.
//!
//! Assumptions about the media, which the fault-injecting implementations violate no further than this:
//! a flushed write survives power loss; an unflushed one may survive whole, in part (any subset of its 512-byte sectors)
//! or not at all, independently of others; length changes, creations and removals behave likewise until the file is
//! flushed; bits may rot. A file name is a relative path of `[A-Za-z0-9._:-]` parts.

use std::io;

use bytes::Bytes;
use types::SpaceUsage;

use crate::BoxFuture;

/// The seam for storage. All offsets and lengths are bytes. Futures own what they need.
pub trait Device: Send + Sync {
    /// Fills `buffer` from `offset`; returns it with the number of bytes read, short only at the file's end. A missing
    /// file is empty.
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>>;
    /// Writes all pieces one behind the other from `offset`, creating the file if missing. A gap reads as zeros. After
    /// completion the data survive the death of this process.
    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>>;
    /// Makes everything written to `file`, its length and its existence durable. After an error the file's unflushed
    /// data are undefined and the caller must not try again.
    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>>;
    /// Length, or `None` if the file does not exist.
    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>>;
    /// Sets the length, creating the file if missing.
    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Gives a range's space back; it reads as zeros.
    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Reserves space for a range, so that writing it cannot fail for lack of space.
    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>>;
    /// Removes the file; a missing one is fine. The removal is durable after the next flush of any file.
    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>>;
    /// Names of all files whose name starts with `prefix`, sorted.
    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>>;
    /// Space of the device.
    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>>;
}
