//! A device that watches, delays and fails operations on another one.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use rt::{BoxFuture, Device, memory::MemoryDevice};
use tokio::sync::Semaphore;
use types::SpaceUsage;

#[derive(Clone)]
pub struct Probe {
    pub inner: MemoryDevice,
    /// Flushes per file.
    pub flushes: Arc<Mutex<BTreeMap<String, usize>>>,
    pub fail_flushes: Arc<AtomicBool>,
    pub fail_removals: Arc<AtomicBool>,
    /// Reads of this byte of a file fail.
    pub unreadable: Arc<Mutex<Option<(String, u64)>>>,
    /// All reads fail, after a while.
    pub fail_reads: Arc<AtomicBool>,
    /// Reads that have failed so.
    pub failed_reads: Arc<AtomicUsize>,
    /// Others run in the middle of every write, before every read, every flush and every
    /// allocation, and after every look at a length.
    pub slow: Arc<AtomicBool>,
    /// An allocation was begun.
    pub allocating: Arc<AtomicBool>,
    /// Flushes wait, while there is one, until it has a permit.
    held_flushes: Arc<Mutex<Option<Arc<Semaphore>>>>,
    /// Discards wait, while there is one, until it has a permit.
    held_discards: Arc<Mutex<Option<Arc<Semaphore>>>>,
    /// Writes to these files wait until there is a permit.
    held: Arc<Mutex<BTreeMap<String, Arc<Semaphore>>>>,
    /// Reads wait, while there is one, until it has a permit.
    held_reads: Arc<Mutex<Option<Arc<Semaphore>>>>,
    /// A read waits.
    pub reading: Arc<AtomicBool>,
}

impl Probe {
    pub fn new(inner: MemoryDevice) -> Self {
        Self {
            inner,
            flushes: Default::default(),
            fail_flushes: Default::default(),
            fail_removals: Default::default(),
            unreadable: Default::default(),
            fail_reads: Default::default(),
            failed_reads: Default::default(),
            slow: Default::default(),
            allocating: Default::default(),
            held_flushes: Default::default(),
            held_discards: Default::default(),
            held: Default::default(),
            held_reads: Default::default(),
            reading: Default::default(),
        }
    }

    /// Flushes wait from now on.
    pub fn hold_flushes(&self) {
        *self.held_flushes.lock() = Some(Arc::new(Semaphore::new(0)));
    }

    /// No flush waits any more.
    pub fn release_flushes(&self) {
        self.held_flushes.lock().take().into_iter().for_each(|held| held.close());
    }

    /// Discards wait from now on.
    pub fn hold_discards(&self) {
        *self.held_discards.lock() = Some(Arc::new(Semaphore::new(0)));
    }

    /// No discard waits any more.
    pub fn release_discards(&self) {
        self.held_discards.lock().take().into_iter().for_each(|held| held.close());
    }

    /// Writes to this file wait from now on.
    pub fn hold_writes(&self, file: &str) {
        self.held.lock().insert(file.to_owned(), Arc::new(Semaphore::new(0)));
    }

    /// Later writes to this file wait no more; those that do, until what is returned is closed.
    pub fn hold_no_more_writes(&self, file: &str) -> Arc<Semaphore> {
        self.held.lock().remove(file).expect("writes to it were held")
    }

    /// No write waits any more.
    pub fn release_writes(&self) {
        std::mem::take(&mut *self.held.lock()).into_values().for_each(|held| held.close());
    }

    /// Reads wait from now on.
    pub fn hold_reads(&self) {
        *self.held_reads.lock() = Some(Arc::new(Semaphore::new(0)));
    }

    /// No read waits any more.
    pub fn release_reads(&self) {
        self.held_reads.lock().take().into_iter().for_each(|held| held.close());
    }

    pub fn take_flushes(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.flushes.lock())
    }
}

async fn others_run(slow: bool) {
    for _ in 0..if slow { 3 } else { 0 } {
        tokio::task::yield_now().await;
    }
}

impl Probe {
    fn write_by(
        &self,
        file: &str,
        offset: u64,
        pieces: Vec<Bytes>,
        write: impl Fn(&str, u64, Vec<Bytes>) -> BoxFuture<'static, io::Result<()>>,
    ) -> BoxFuture<'static, io::Result<()>> {
        if let Some(held) = self.held.lock().get(file).cloned() {
            let write = write(file, offset, pieces);
            return Box::pin(async move {
                // An error means that it is held no more.
                let _ = held.acquire().await;
                write.await
            });
        }
        if !self.slow.load(Ordering::Relaxed) {
            return write(file, offset, pieces);
        }
        let data: Vec<u8> = pieces.iter().flatten().copied().collect();
        let half = data.len() / 2;
        let first = write(file, offset, vec![Bytes::copy_from_slice(&data[..half])]);
        let second = write(file, offset + half as u64, vec![Bytes::copy_from_slice(&data[half..])]);
        Box::pin(async move {
            first.await?;
            others_run(true).await;
            second.await
        })
    }
}

impl Device for Probe {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let range = offset..offset + buffer.len() as u64;
        if self.unreadable.lock().as_ref().is_some_and(|(name, at)| name == file && range.contains(at)) {
            return Box::pin(async { Err(io::Error::other("a bad sector")) });
        }
        if self.fail_reads.load(Ordering::Relaxed) {
            let failed = self.failed_reads.clone();
            return Box::pin(async move {
                others_run(true).await;
                failed.fetch_add(1, Ordering::Relaxed);
                Err(io::Error::other("a bad sector"))
            });
        }
        let (slow, held) = (self.slow.load(Ordering::Relaxed), self.held_reads.lock().clone());
        let (inner, file, reading) = (self.inner.clone(), file.to_owned(), self.reading.clone());
        Box::pin(async move {
            others_run(slow).await;
            if let Some(held) = held {
                reading.store(true, Ordering::Relaxed);
                // An error means that it is held no more.
                let _ = held.acquire().await;
            }
            inner.read(&file, offset, buffer).await
        })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.write_by(file, offset, pieces, |file, offset, pieces| self.inner.write(file, offset, pieces))
    }

    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.write_by(file, offset, pieces, |file, offset, pieces| self.inner.write_cached(file, offset, pieces))
    }

    fn cached_area_bytes(&self) -> u64 {
        self.inner.cached_area_bytes()
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let slow = self.slow.load(Ordering::Relaxed);
        *self.flushes.lock().entry(file.to_owned()).or_default() += 1;
        if self.fail_flushes.load(Ordering::Relaxed) {
            return Box::pin(async { Err(io::Error::other("the disk is gone")) });
        }
        if let Some(held) = self.held_flushes.lock().clone() {
            let flush = self.inner.flush(file);
            return Box::pin(async move {
                // An error means that it is held no more.
                let _ = held.acquire().await;
                flush.await
            });
        }
        let flush = self.inner.flush(file);
        Box::pin(async move {
            others_run(slow).await;
            flush.await
        })
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        let (slow, length) = (self.slow.load(Ordering::Relaxed), self.inner.length(file));
        Box::pin(async move {
            let length = length.await;
            others_run(slow).await;
            length
        })
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.truncate(file, length)
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.punch(file, offset, bytes)
    }

    fn discard(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        let (held, punch) = (self.held_discards.lock().clone(), self.inner.punch(file, offset, bytes));
        Box::pin(async move {
            if let Some(held) = held {
                // An error means that it is held no more.
                let _ = held.acquire().await;
            }
            punch.await
        })
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        let (slow, allocate) = (self.slow.load(Ordering::Relaxed), self.inner.allocate(file, offset, bytes));
        let allocating = self.allocating.clone();
        Box::pin(async move {
            allocating.store(true, Ordering::Relaxed);
            others_run(slow).await;
            allocate.await
        })
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        if self.fail_removals.load(Ordering::Relaxed) {
            return Box::pin(async { Err(io::Error::other("the file stays")) });
        }
        self.inner.remove(file)
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        self.inner.list(prefix)
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        self.inner.space()
    }
}
