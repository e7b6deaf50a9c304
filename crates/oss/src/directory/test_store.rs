//! A directory store on devices in memory, for tests of its parts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kv::{Config, MemoryCold};
use rpc::{
    checksum::checksums,
    message::ost::{Changed, Write},
};
use rt::{
    BoxFuture, Clock, Device, Instant,
    memory::{MemoryDevice, MemoryTransport, seams},
};
use types::{FsResult, InodeNumber, ObjectId, OstIndex, Owner, Timestamp, limits::BLOCK_BYTES};

use super::{DirectoryStore, device::DEVICE_FILE, slow_device::SlowDevice};
use crate::{Engine, Ost, OstDevices, OstOptions, options::IN_PLACE_BYTES_MIN};

/// The object of most tests.
pub const OBJECT: ObjectId = ObjectId::new(InodeNumber(9), 0);

/// Options under which nothing happens by itself, and all changes are audited.
pub fn quiet() -> OstOptions {
    let hour = Duration::from_secs(3600);
    OstOptions {
        reserve_bytes: 0,
        commit_interval: hour,
        write_back_idle: hour,
        write_back_bytes: u64::MAX,
        overwrite_bytes_min: IN_PLACE_BYTES_MIN,
        discard: false,
        defrag_bytes_per_second: 0,
        defrag_busy_percent: 100,
        scrub_bytes_per_second: 0,
        auto_scrub: Duration::ZERO,
        audits: true,
    }
}

/// Real time, ahead by what a test wants.
struct ShiftedClock {
    real: Arc<dyn Clock>,
    ahead_ns: Arc<AtomicU64>,
}

impl Clock for ShiftedClock {
    fn now(&self) -> Instant {
        self.real.now() + Duration::from_nanos(self.ahead_ns.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Timestamp {
        self.real.wall()
    }

    fn boot(&self) -> u64 {
        self.real.boot()
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.real.sleep_until(deadline)
    }
}

/// See the module documentation.
pub struct TestStore {
    pub ost: Arc<Ost>,
    pub objects: MemoryDevice,
    pub journal: MemoryDevice,
    ahead_ns: Arc<AtomicU64>,
    read_ns: Arc<AtomicU64>,
}

impl TestStore {
    pub async fn new(options: OstOptions) -> Self {
        Self::with_engine(Engine::Directory, options).await
    }

    /// Of an engine; a device has to be that large.
    pub async fn with_engine(engine: Engine, options: OstOptions) -> Self {
        let mut seams = seams(&MemoryTransport::new(), 1);
        let (ahead_ns, read_ns) = (Arc::default(), Arc::default());
        seams.clock = Arc::new(ShiftedClock { real: seams.clock.clone(), ahead_ns: Arc::clone(&ahead_ns) });
        let objects = MemoryDevice::new();
        let slow =
            SlowDevice { inner: objects.clone(), ahead_ns: Arc::clone(&ahead_ns), read_ns: Arc::clone(&read_ns) };
        let journal = MemoryDevice::new();
        let devices = OstDevices {
            objects: Arc::new(slow),
            journal: Arc::new(journal.clone()),
            cold: Arc::new(MemoryCold::new()),
            throughput: Arc::default(),
        };
        if let Engine::Blocks { blocks, .. } = engine {
            objects.truncate(DEVICE_FILE, blocks * BLOCK_BYTES).await.unwrap();
        }
        Ost::format_with(&seams, &devices, "stria", OstIndex(0), engine, Config::small()).await.unwrap();
        let ost = Ost::open(seams, devices, "stria", OstIndex(0), options, Config::small()).await.unwrap();
        Self { ost, objects, journal, ahead_ns, read_ns }
    }

    pub fn store(&self) -> &DirectoryStore {
        &self.ost.directory
    }

    /// Time continues.
    pub fn pass(&self, time: Duration) {
        self.ahead_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// From now on each read of the device takes so long.
    pub fn slow_down(&self, read: Duration) {
        self.read_ns.store(read.as_nanos() as u64, Ordering::Relaxed);
    }

    pub async fn write(&self, object: ObjectId, offset: u64, data: Vec<u8>) {
        self.try_write(object, offset, data, 0).await.unwrap();
    }

    /// Writes by a layout of this generation.
    pub async fn try_write(
        &self,
        object: ObjectId,
        offset: u64,
        data: Vec<u8>,
        layout_generation: u64,
    ) -> FsResult<Changed> {
        let checksums = checksums(offset, &data);
        let write = Write { object, offset, checksums, sync: false, layout_generation, owner: Owner::default() };
        self.store().write_object(&write, data.into(), None).await
    }

    /// Writes 32 KiB inline, and lets the object be a large one.
    pub async fn write_inline(&self, object: ObjectId, offset: u64) {
        self.write(object, offset, vec![7; 32 << 10]).await;
    }
}
