//! A cold store whose reads can be held up and counted, for the tests of MDTs and OSTs.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::ThreadId,
};

use bytes::Bytes;
use kv::{Checkpoint, ColdStore, MemoryCold, Operation, Table};
use rt::BoxFuture;

/// A cold store whose reads in the background wait for a gate, and that counts reads on the thread
/// of the requests.
#[derive(Clone)]
pub struct GatedCold {
    inner: MemoryCold,
    shared: Arc<Shared>,
}

struct Shared {
    open: Mutex<bool>,
    opened: Condvar,
    /// The thread on which requests run.
    core: ThreadId,
    reads_on_core: AtomicU64,
    loads: AtomicU64,
    /// Loads that wait for the gate.
    waiting: AtomicU64,
    /// Bytes of the longest scan in the background.
    longest_scan: AtomicU64,
    fails_gets: AtomicBool,
}

impl GatedCold {
    /// Open. Made on the thread of the requests.
    pub fn new(inner: MemoryCold) -> Self {
        let shared = Shared {
            open: Mutex::new(true),
            opened: Condvar::new(),
            core: std::thread::current().id(),
            reads_on_core: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            longest_scan: AtomicU64::new(0),
            fails_gets: AtomicBool::new(false),
        };
        Self { inner, shared: Arc::new(shared) }
    }

    pub fn set_open(&self, open: bool) {
        *self.shared.open.lock().unwrap() = open;
        self.shared.opened.notify_all();
    }

    /// Whether reads of single keys fail from now on.
    pub fn fail_gets(&self, fail: bool) {
        self.shared.fails_gets.store(fail, Ordering::Relaxed);
    }

    fn note_read(&self) {
        if std::thread::current().id() == self.shared.core {
            self.shared.reads_on_core.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Loads that wait for the gate.
    pub fn waiting(&self) -> u64 {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// Bytes of the longest scan in the background.
    pub fn longest_scan(&self) -> u64 {
        self.shared.longest_scan.load(Ordering::Relaxed)
    }

    /// Reads on the thread of the requests since the last time asked, and loads.
    pub fn take_counts(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        (take(&self.shared.reads_on_core), take(&self.shared.loads))
    }
}

impl ColdStore for GatedCold {
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>> {
        self.note_read();
        if self.shared.fails_gets.load(Ordering::Relaxed) {
            return Err(io::Error::other("a bad sector"));
        }
        self.inner.get(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        self.note_read();
        let mut bytes = 0;
        let outcome = self.inner.scan(table, from, to, &mut |key, value| {
            bytes += (key.len() + value.len()) as u64;
            visit(key, value)
        });
        if std::thread::current().id() != self.shared.core {
            self.shared.longest_scan.fetch_max(bytes, Ordering::Relaxed);
        }
        outcome
    }

    fn run_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        let shared = self.shared.clone();
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(move || {
            let open = shared.opened.wait_while(shared.open.lock().unwrap(), |open| !*open).unwrap();
            drop(open);
            shared.waiting.fetch_sub(1, Ordering::Relaxed);
            shared.loads.fetch_add(1, Ordering::Relaxed);
            work();
        });
    }

    fn write(&self, operations: Vec<Operation>) -> BoxFuture<'static, io::Result<()>> {
        self.inner.write(operations)
    }

    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>> {
        self.inner.commit(checkpoint)
    }

    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        self.inner.checkpoint()
    }
}
