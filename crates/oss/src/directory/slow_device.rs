//! A device in memory whose reads take time, for tests.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use rt::{BoxFuture, Device, memory::MemoryDevice};
use types::SpaceUsage;

/// See the module documentation.
pub struct SlowDevice {
    pub inner: MemoryDevice,
    /// By how much a test's time is ahead.
    pub ahead_ns: Arc<AtomicU64>,
    /// What each read adds to it.
    pub read_ns: Arc<AtomicU64>,
}

impl Device for SlowDevice {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        self.ahead_ns.fetch_add(self.read_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        self.inner.read(file, offset, buffer)
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.inner.write(file, offset, pieces)
    }

    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.inner.write_cached(file, offset, pieces)
    }

    fn cached_area_bytes(&self) -> u64 {
        self.inner.cached_area_bytes()
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.inner.flush(file)
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        self.inner.length(file)
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.truncate(file, length)
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.punch(file, offset, bytes)
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.allocate(file, offset, bytes)
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.inner.remove(file)
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        self.inner.list(prefix)
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        self.inner.space()
    }
}
