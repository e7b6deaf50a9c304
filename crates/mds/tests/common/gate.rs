//! A device whose writes or flushes wait while a gate is closed, or whose writes panic.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use rt::{BoxFuture, Device, memory::MemoryDevice};
use tokio::sync::watch;
use types::SpaceUsage;

/// Open at first.
#[derive(Default)]
pub struct Gate {
    closed: watch::Sender<bool>,
    flushes_closed: watch::Sender<bool>,
    panics: AtomicBool,
}

impl Gate {
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    pub fn open(&self) {
        self.closed.send_replace(false);
    }

    /// Nothing becomes durable.
    pub fn close_flushes(&self) {
        self.flushes_closed.send_replace(true);
    }

    pub fn open_flushes(&self) {
        self.flushes_closed.send_replace(false);
    }

    /// The next write panics in the task that writes.
    pub fn panic_once(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }
}

pub struct Gated {
    pub device: MemoryDevice,
    pub gate: Arc<Gate>,
}

impl Device for Gated {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        self.device.read(file, offset, buffer)
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let (device, gate, file) = (self.device.clone(), self.gate.clone(), file.to_owned());
        Box::pin(async move {
            assert!(!gate.panics.swap(false, Ordering::SeqCst), "the panic of this test");
            gate.closed.subscribe().wait_for(|closed| !closed).await.expect("the gate is held here");
            // A device takes time: others go on, or die, before and after.
            tokio::task::yield_now().await;
            let written = device.write(&file, offset, pieces).await;
            tokio::task::yield_now().await;
            written
        })
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let (device, gate, file) = (self.device.clone(), self.gate.clone(), file.to_owned());
        Box::pin(async move {
            gate.flushes_closed.subscribe().wait_for(|closed| !closed).await.expect("the gate is held here");
            tokio::task::yield_now().await;
            let flushed = device.flush(&file).await;
            tokio::task::yield_now().await;
            flushed
        })
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        self.device.length(file)
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.device.truncate(file, length)
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.device.punch(file, offset, bytes)
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.device.allocate(file, offset, bytes)
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.device.remove(file)
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        self.device.list(prefix)
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        self.device.space()
    }
}
