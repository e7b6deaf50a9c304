//! Shared by the tests of the store: a store on devices in memory that survive its process.

#![allow(dead_code, reason = "every test file uses another part")]

use std::{collections::BTreeMap, io, sync::Arc};

use bytes::Bytes;
use kv::{
    Batch, Checkpoint, ColdStore, Config, Lsn, MemoryCold, Operation, Store, Table, TreeCold,
    region::{RegionFiles, RegionLayout},
};
use rt::{
    BoxFuture, Device, Entropy, Seams,
    memory::{MemoryDevice, MemoryTransport, SeededEntropy, Unflushed, seams},
};
use types::SpaceUsage;

/// The contents of a store as a model.
pub type Model = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

pub fn test_seams() -> Seams {
    seams(&MemoryTransport::new(), 1)
}

/// A host: what outlives a store's process.
pub struct Host {
    pub device: MemoryDevice,
    pub cold: MemoryCold,
    pub config: Config,
    /// Operations take a while, from this seed.
    pub slow: Option<u64>,
    /// Everything is in one file of `device`, without `cold`.
    pub region: Option<RegionLayout>,
}

/// The only file of a device with a region.
pub const REGION_FILE: &str = "region";

impl Host {
    pub fn new() -> Host {
        Host { device: MemoryDevice::new(), cold: MemoryCold::new(), config: Config::small(), slow: None, region: None }
    }

    /// One with a store in a region of so many bytes.
    pub async fn with_region(config: Config, bytes: u64) -> Host {
        let host = Host::new();
        let (segment_bytes, segments) = (config.segment_bytes, config.segments_max);
        let layout = RegionLayout::new(4096..bytes, segment_bytes, segments, 4096).expect("a possible layout");
        host.device.truncate(REGION_FILE, bytes).await.unwrap();
        layout.format(Arc::new(host.device.clone()), REGION_FILE, 4096, 0x5eed).await.unwrap();
        Host { region: Some(layout), config: layout.configure(config), ..host }
    }

    pub async fn open(&self) -> Store {
        self.try_open().await.expect("the store opens")
    }

    pub async fn try_open(&self) -> kv::Result<Store> {
        self.replay().await.map(|(store, _)| store)
    }

    /// Opens, and returns the batches that were replayed.
    pub async fn replay(&self) -> kv::Result<(Store, Vec<(Lsn, Batch)>)> {
        let mut batches = Vec::new();
        let (device, cold): (Arc<dyn Device>, Arc<dyn ColdStore>) = match self.slow {
            _ if self.region.is_some() => self.open_region(),
            Some(seed) => (
                Arc::new(Slow::new(self.device.clone(), seed)),
                Arc::new(Slow::new(self.cold.clone(), seed.wrapping_add(1))),
            ),
            None => (Arc::new(self.device.clone()), Arc::new(self.cold.clone())),
        };
        let store = Store::open(test_seams(), device, cold, self.config.clone(), &mut |lsn, batch| {
            batches.push((lsn, batch.clone()))
        })
        .await?;
        Ok((store, batches))
    }

    fn open_region(&self) -> (Arc<dyn Device>, Arc<dyn ColdStore>) {
        let layout = self.region.expect("asked for");
        let at_once: Arc<dyn Device> = Arc::new(self.device.clone());
        let device: Arc<dyn Device> = match self.slow {
            Some(seed) => Arc::new(Slow::new(self.device.clone(), seed)),
            None => at_once.clone(),
        };
        let part = layout.tree(at_once, device.clone(), REGION_FILE);
        let tree = Arc::new(TreeCold::open(&part, 0).expect("the tree opens"));
        (Arc::new(RegionFiles::new(device, REGION_FILE, layout, Some(tree.clone()))), tree)
    }

    /// The process died: its handles are dead.
    pub fn crash(&mut self) {
        self.device = self.device.crash();
        self.cold = self.cold.crash();
    }

    pub fn power_loss(&mut self, seed: u64, unflushed: Unflushed) {
        let entropy = SeededEntropy::new(seed);
        self.device = self.device.power_loss(&entropy, unflushed);
        self.cold = self.cold.power_loss(&entropy);
    }
}

/// Everything a store shows.
pub fn contents(store: &Store) -> Model {
    let mut model = Model::new();
    for number in 0..=u8::MAX {
        store
            .scan(Table(number), &[], None, &mut |key, value| {
                model.insert((number, key.to_vec()), value.to_vec());
                true
            })
            .expect("scans succeed");
    }
    model
}

/// A device and a cold store whose operations take a while, measured in polls: what else happens
/// meanwhile is up to the executor, and a number from a seed.
pub struct Slow<T> {
    inner: T,
    entropy: SeededEntropy,
}

impl<T> Slow<T> {
    pub fn new(inner: T, seed: u64) -> Slow<T> {
        Slow { inner, entropy: SeededEntropy::new(seed) }
    }

    fn later<R: Send + 'static>(&self, future: BoxFuture<'static, R>) -> BoxFuture<'static, R> {
        let (before, after) = (self.entropy.below(4), self.entropy.below(4));
        Box::pin(async move {
            for _ in 0..before {
                tokio::task::yield_now().await;
            }
            let result = future.await;
            for _ in 0..after {
                tokio::task::yield_now().await;
            }
            result
        })
    }
}

impl Device for Slow<MemoryDevice> {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        self.inner.read(file, offset, buffer)
    }
    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.write(file, offset, pieces))
    }
    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.flush(file))
    }
    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        self.inner.length(file)
    }
    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.truncate(file, length))
    }
    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.punch(file, offset, bytes))
    }
    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.allocate(file, offset, bytes))
    }
    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.remove(file))
    }
    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        self.inner.list(prefix)
    }
    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        self.inner.space()
    }
}

impl ColdStore for Slow<MemoryCold> {
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Bytes>> {
        self.inner.get(table, key)
    }
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        to: Option<&[u8]>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        self.inner.scan(table, from, to, visit)
    }
    fn write(&self, operations: Vec<Operation>) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.write(operations))
    }
    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>> {
        self.later(self.inner.commit(checkpoint))
    }
    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        self.inner.checkpoint()
    }
}

/// One put.
pub fn put(table: u8, key: &[u8], value: &[u8]) -> Batch {
    let mut batch = Batch::default();
    batch.put(Table(table), key.to_vec(), value.to_vec());
    batch
}
