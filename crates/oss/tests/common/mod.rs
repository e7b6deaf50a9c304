//! A target on devices in memory, driven through its request handler, that can crash and lose
//! power.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod probe;
pub mod virtual_clock;

use std::{sync::Arc, time::Duration};

use self::probe::Probe;
use bytes::Bytes;
use kv::{Config, MemoryCold};
use oss::{
    Engine, Ost, OstDevices, OstOptions, directory::device::DEVICE_FILE, one_device::OneDevice,
    options::IN_PLACE_BYTES_MIN, tables_part::TablesPart,
};
use rpc::{
    Answer, Call, Handler,
    checksum::{checksums, verify},
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{Changed, ExtentsQuery, ObjectAttributes, Read, SpaceChange, Write},
    },
};
use rt::{
    Clock, Device, Seams,
    memory::{HostClock, MemoryDevice, MemoryTransport, SeededEntropy, Unflushed, seams},
    parameters::ParameterTree,
};
use types::{ClientId, FsResult, InodeNumber, ObjectId, OstIndex, Owner, Slot, Xid, limits::BULK_BYTES_MAX};

/// That of the first client of a test ([`rpc::Principal::of_test`]).
pub const CLIENT: ClientId = ClientId(0xa6c8_9977_db6f_261f);
pub const INDEX: OstIndex = OstIndex(3);
pub const KIB: u64 = 1024;
pub const MIB: u64 = 1024 * 1024;
pub const BLOCK: u64 = 4096;

pub fn object(number: u64) -> ObjectId {
    ObjectId::new(InodeNumber(0x100 + number), 0)
}

/// Small enough that blocks are used again and again.
pub const DEVICE: Engine = Engine::on_device(4096);

/// Of the tables of [`ONE_DEVICE`], in the configurations here.
pub const TABLES: TablesPart =
    TablesPart { blocks: 8192, segment_bytes: 256 << 10, segments: 16, node_bytes: 4096, alignment: 4096 };

/// As many blocks for objects, and the tables beside them.
pub const ONE_DEVICE: Engine = Engine::Blocks { blocks: 4096 + 8192, tables: Some(TABLES) };

/// Nothing happens by itself; what is inline is written back whenever the test lets the target
/// work.
pub fn quiet_options() -> OstOptions {
    OstOptions {
        commit_interval: Duration::from_secs(3600),
        write_back_bytes: u64::MAX,
        write_back_idle: Duration::ZERO,
        overwrite_bytes_min: IN_PLACE_BYTES_MIN,
        reserve_bytes: 0,
        discard: false,
        defrag_bytes_per_second: 0,
        defrag_busy_percent: 100,
        scrub_bytes_per_second: 0,
        auto_scrub: Duration::ZERO,
        audits: true,
    }
}

pub fn quiet_config() -> Config {
    let hour = Duration::from_secs(3600);
    Config { commit_interval: hour, checkpoint_interval: hour, ..Config::small() }
}

/// Tables of which next to nothing is in memory.
pub fn cold_config() -> Config {
    Config { memory_bytes: 16 << 10, dirty_bytes: 64 << 10, ..quiet_config() }
}

pub struct TestOst {
    pub seams: Seams,
    pub objects: MemoryDevice,
    pub probe: Probe,
    pub journal: MemoryDevice,
    pub cold: MemoryCold,
    pub options: OstOptions,
    pub config: Config,
    pub engine: Engine,
    pub ost: Arc<Ost>,
}

impl TestOst {
    pub async fn new(seed: u64) -> Self {
        Self::with(seed, MemoryDevice::new(), quiet_options()).await
    }

    /// On a device, where overwrites of whole blocks get new places at once.
    pub async fn overwriting_at_once(seed: u64) -> Self {
        let options = OstOptions { overwrite_bytes_min: BLOCK, ..quiet_options() };
        Self::with_all(DEVICE, seed, MemoryDevice::new(), options, quiet_config()).await
    }

    /// With objects in host files, or on a device.
    pub async fn on(engine: Engine, seed: u64) -> Self {
        Self::with_all(engine, seed, MemoryDevice::new(), quiet_options(), quiet_config()).await
    }

    pub async fn with(seed: u64, objects: MemoryDevice, options: OstOptions) -> Self {
        Self::with_tables(seed, objects, options, quiet_config()).await
    }

    /// With tables of this configuration.
    pub async fn with_tables(seed: u64, objects: MemoryDevice, options: OstOptions, config: Config) -> Self {
        Self::with_all(Engine::Directory, seed, objects, options, config).await
    }

    pub async fn with_all(
        engine: Engine,
        seed: u64,
        objects: MemoryDevice,
        options: OstOptions,
        config: Config,
    ) -> Self {
        Self::with_clock(Arc::new(HostClock { boot: 1 }), engine, seed, objects, options, config).await
    }

    /// As with everything else, on a host with this clock.
    pub async fn with_clock(
        clock: Arc<dyn Clock>,
        engine: Engine,
        seed: u64,
        objects: MemoryDevice,
        options: OstOptions,
        config: Config,
    ) -> Self {
        let seams = Seams { clock, ..seams(&MemoryTransport::new(), seed) };
        let (journal, cold) = (MemoryDevice::new(), MemoryCold::new());
        let probe = Probe::new(objects.clone());
        if let Engine::Blocks { blocks, tables } = engine {
            objects.truncate(DEVICE_FILE, blocks * 4096).await.unwrap();
            if let Some(tables) = tables {
                one_device(&probe, &objects).format(&tables, seed).await.unwrap();
            }
        }
        let devices = devices_of(engine, &objects, &probe, &journal, &cold);
        Ost::format_with(&seams, &devices, "stria", INDEX, engine, config.clone()).await.unwrap();
        // The tables in a part of a device are closed now.
        let devices = devices_of(engine, &objects, &probe, &journal, &cold);
        let ost = open(&seams, devices, options.clone(), config.clone()).await;
        Self { seams, objects, probe, journal, cold, options, config, engine, ost }
    }

    /// The process dies; the target is opened again on what the kernel has.
    pub async fn crash(self) -> Self {
        self.reopen_on(|target| (target.objects.crash(), target.journal.crash(), target.cold.crash())).await
    }

    /// The host loses power; the target is opened again on what the devices have.
    pub async fn power_loss(self, seed: u64) -> Self {
        let clock = Arc::new(HostClock { boot: self.seams.clock.boot() + 1 });
        self.power_loss_until(clock, seed).await
    }

    /// As [`Self::power_loss`]; the host has this clock from its next start on.
    pub async fn power_loss_until(mut self, clock: Arc<dyn Clock>, seed: u64) -> Self {
        self.seams.clock = clock;
        let entropy = SeededEntropy::new(seed);
        self.reopen_on(|target| {
            let objects = target.objects.power_loss(&entropy, Unflushed::Torn);
            let journal = target.journal.power_loss(&entropy, Unflushed::Torn);
            (objects, journal, target.cold.power_loss(&entropy))
        })
        .await
    }

    /// The target is stopped and opened again.
    pub async fn restart(self) -> Self {
        self.ost.stop().await.unwrap();
        self.reopened().await
    }

    /// A target that was stopped is opened again.
    pub async fn reopened(self) -> Self {
        self.reopen_on(|target| (target.objects.clone(), target.journal.clone(), target.cold.clone())).await
    }

    async fn reopen_on(self, late_outcome: impl FnOnce(&Self) -> (MemoryDevice, MemoryDevice, MemoryCold)) -> Self {
        let (objects, journal, cold) = late_outcome(&self);
        let Self { seams, options, config, engine, ost, .. } = self;
        drop(ost);
        let probe = Probe::new(objects.clone());
        let devices = devices_of(engine, &objects, &probe, &journal, &cold);
        let ost = open(&seams, devices, options.clone(), config.clone()).await;
        Self { seams, objects, probe, journal, cold, options, config, engine, ost }
    }

    pub async fn answer(&self, client: ClientId, request: OstRequest, bulk: Bytes) -> Answer {
        let request = Request::Ost(request);
        self.ost.clone().handle(Call::plain(client, Slot(0), Xid(1), request, bulk)).await
    }

    pub async fn ask(&self, request: OstRequest) -> FsResult<OstReply> {
        match self.answer(CLIENT, request, Bytes::new()).await.reply? {
            Reply::Ost(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    pub async fn write_with(&self, object: ObjectId, offset: u64, data: &[u8], sync: bool) -> FsResult<Changed> {
        let (request, bulk) = write_request(object, offset, data, sync);
        let answer = self.answer(CLIENT, request, bulk).await;
        match answer.reply? {
            Reply::Ost(OstReply::Changed(changed)) => Ok(changed),
            other => panic!("{other:?}"),
        }
    }

    pub async fn write(&self, object: ObjectId, offset: u64, data: &[u8]) -> Changed {
        self.write_with(object, offset, data, false).await.unwrap()
    }

    /// Reads and checks the checksums that came along.
    pub async fn try_read(&self, object: ObjectId, offset: u64, bytes: u64) -> FsResult<Vec<u8>> {
        let read = Read { object, offset, bytes: bytes as u32, layout_generation: 0 };
        let answer = self.answer(CLIENT, OstRequest::Read(read), Bytes::new()).await;
        match answer.reply? {
            Reply::Ost(OstReply::Read(done)) => {
                verify(offset, &answer.bulk, &done.checksums).expect("checksums fit the data");
                let end = offset.saturating_add(bytes).min(done.size).max(offset);
                assert_eq!(answer.bulk.len() as u64, end - offset, "short only at the object's end");
                Ok(answer.bulk.to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    pub async fn read(&self, object: ObjectId, offset: u64, bytes: u64) -> Vec<u8> {
        self.try_read(object, offset, bytes).await.unwrap()
    }

    pub async fn space(&self, object: ObjectId, change: SpaceChange) -> FsResult<Changed> {
        match self.ask(OstRequest::Space(object, change, 0, Owner::default())).await? {
            OstReply::Changed(changed) => Ok(changed),
            other => panic!("{other:?}"),
        }
    }

    pub async fn truncate(&self, object: ObjectId, size: u64) -> Changed {
        self.space(object, SpaceChange::Truncate { size }).await.unwrap()
    }

    pub async fn attributes(&self, object: ObjectId) -> ObjectAttributes {
        match self.ask(OstRequest::Glimpse(vec![object])).await.unwrap() {
            OstReply::Attributes(attributes) => attributes[0],
            other => panic!("{other:?}"),
        }
    }

    pub async fn seek(&self, object: ObjectId, offset: u64, data: bool) -> Option<u64> {
        match self.ask(OstRequest::Seek(object, offset, data)).await.unwrap() {
            OstReply::Found(found) => found,
            other => panic!("{other:?}"),
        }
    }

    pub async fn done(&self, request: OstRequest) {
        assert_eq!(self.ask(request).await.unwrap(), OstReply::Done);
    }

    pub async fn sync(&self) {
        self.done(OstRequest::Sync(Vec::new())).await;
    }
}

/// A device in memory with everything on it; what becomes of objects is seen by the probe.
fn one_device(probe: &Probe, objects: &MemoryDevice) -> OneDevice {
    let device: Arc<dyn Device> = Arc::new(objects.clone());
    OneDevice { at_once: device.clone(), tables: device, objects: Arc::new(probe.clone()) }
}

/// What a target with this engine opens.
fn devices_of(
    engine: Engine,
    objects: &MemoryDevice,
    probe: &Probe,
    journal: &MemoryDevice,
    cold: &MemoryCold,
) -> OstDevices {
    match engine {
        Engine::Blocks { tables: Some(tables), .. } => {
            one_device(probe, objects).open(&tables, 0, false, Arc::default()).expect("the tables open")
        }
        Engine::Blocks { .. } | Engine::Directory => devices(probe, journal, cold),
    }
}

pub fn devices(objects: &Probe, journal: &MemoryDevice, cold: &MemoryCold) -> OstDevices {
    OstDevices {
        objects: Arc::new(objects.clone()),
        journal: Arc::new(journal.clone()),
        cold: Arc::new(cold.clone()),
        throughput: Arc::default(),
    }
}

pub async fn open(seams: &Seams, devices: OstDevices, options: OstOptions, config: Config) -> Arc<Ost> {
    let ost = Ost::open(seams.clone(), devices, "stria", INDEX, options, config).await.expect("the target opens");
    assert_eq!(ost.check_device(), Ok(Vec::new()), "bitmaps and extents agree");
    ost
}

/// A write of data with their checksums, and the data.
pub fn write_request(object: ObjectId, offset: u64, data: &[u8], sync: bool) -> (OstRequest, Bytes) {
    let write = Write {
        object,
        offset,
        checksums: checksums(offset, data),
        sync,
        layout_generation: 0,
        owner: Owner::default(),
    };
    (OstRequest::Write(write), Bytes::copy_from_slice(data))
}

/// Data that differ from block to block and from version to version, without zeros.
pub fn pattern(version: u64, offset: u64, bytes: u64) -> Vec<u8> {
    (offset..offset + bytes)
        .map(|at| {
            let mixed = (at ^ version.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed >> 56) as u8 | 1
        })
        .collect()
}

/// Runs a test on all kinds of stores, each in a runtime of its own.
pub fn on_all(mut test: impl AsyncFnMut(Engine)) {
    for engine in [Engine::Directory, DEVICE, ONE_DEVICE] {
        println!("on {engine:?}");
        run(test(engine));
    }
}

/// Runs a test in a runtime of its own.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Writes a pattern, in requests as large as they may be.
pub async fn fill(target: &TestOst, number: u64, version: u64, range: std::ops::Range<u64>) {
    for offset in range.clone().step_by(BULK_BYTES_MAX) {
        let bytes = (range.end - offset).min(BULK_BYTES_MAX as u64);
        target.write(object(number), offset, &pattern(version, offset, bytes)).await;
    }
}

/// Whether an object has what [`fill`] wrote.
pub async fn is_filled(target: &TestOst, number: u64, version: u64, range: std::ops::Range<u64>) -> bool {
    for offset in range.clone().step_by(BULK_BYTES_MAX) {
        let bytes = (range.end - offset).min(BULK_BYTES_MAX as u64);
        if target.read(object(number), offset, bytes).await != pattern(version, offset, bytes) {
            return false;
        }
    }
    true
}

/// How many extents an object has.
pub async fn extents(target: &TestOst, number: u64) -> usize {
    let query = ExtentsQuery { object: object(number), offset: 0, bytes: u64::MAX, extents_max: 10_000 };
    match target.ask(OstRequest::Extents(query)).await.unwrap() {
        OstReply::Extents(found) => found.extents.len(),
        other => panic!("{other:?}"),
    }
}

/// Blocks of the device that new data may take.
pub async fn free(target: &TestOst) -> u64 {
    target.ost.space().await.unwrap().bytes_available / BLOCK
}

/// The target's parameters.
pub fn parameters(target: &TestOst) -> ParameterTree {
    let tree = ParameterTree::new();
    target.ost.register_parameters(&tree).unwrap();
    tree
}

pub fn parameter(target: &TestOst, name: &str) -> String {
    parameters(target).get(&format!("obdfilter.*.{name}")).unwrap().remove(0).1
}

/// A line of `mb_stats`.
pub fn statistic(target: &TestOst, name: &str) -> u64 {
    statistic_of(target, "mb_stats", name)
}

/// A line of a parameter that has a number in each.
pub fn statistic_of(target: &TestOst, table: &str, name: &str) -> u64 {
    let stats = parameter(target, table);
    let mut lines = stats.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.find(|line| line[0] == name).unwrap_or_else(|| panic!("no {name} in {stats}"));
    line[1].parse().unwrap()
}

/// Changes the tables of a stopped target.
pub async fn change_tables(target: &TestOst, change: impl FnOnce(&kv::Store) -> kv::Batch) {
    let devices = devices_of(target.engine, &target.objects, &target.probe, &target.journal, &target.cold);
    let (journal, cold) = (devices.journal, devices.cold);
    let mut replay = |_, _: &kv::Batch| {};
    let kv = kv::Store::open(target.seams.clone(), journal, cold, quiet_config(), &mut replay).await.unwrap();
    kv.durable(kv.apply(change(&kv)).unwrap()).await.unwrap();
    kv.close().await.unwrap();
}
