//! A target on devices in memory, asked through its request handler.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kv::{Config, MemoryCold, region::RegionFiles};
use oss::{
    Engine, Ost, OstDevices, OstOptions, device_label::DeviceLabel, directory::device::DEVICE_FILE,
    one_device::OneDevice, scrub_record::ScrubStatus, tables_part::TablesPart,
};
use parking_lot::Mutex;
use rpc::{
    Call, Handler,
    checksum::{checksums, verify},
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{Extent, ExtentsQuery, ObjectAttributes, Read, SpaceChange, Write},
    },
};
use rt::{
    BoxFuture, Clock, Device, Instant, Seams,
    memory::{MemoryDevice, MemoryTransport, seams},
    parameters::ParameterTree,
};
use types::{
    ClientId, FsResult, ObjectId, OstIndex, Owner, Slot, Timestamp, Xid,
    limits::{BLOCK_BYTES, BULK_BYTES_MAX},
};

use super::faults::ReadFault;

/// Name and number of the target.
pub const FSNAME: &str = "stria";
pub const INDEX: OstIndex = OstIndex(3);
/// More pauses than any work here takes.
const TURNS_MAX: usize = 100_000;

/// A clock on which short pauses are over at once, and long ones never end: nothing happens by
/// itself, and nothing waits.
struct ImpatientClock(Mutex<Instant>);

/// Longest short pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Clock for ImpatientClock {
    fn now(&self) -> Instant {
        *self.0.lock()
    }

    fn wall(&self) -> Timestamp {
        Timestamp { seconds: (self.now().0 / 1_000_000_000) as i64, nanoseconds: 0 }
    }

    fn boot(&self) -> u64 {
        1
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let mut now = self.0.lock();
        if deadline.since(*now) > PAUSE_MAX {
            return Box::pin(std::future::pending());
        }
        *now = deadline.max(*now);
        Box::pin(tokio::task::yield_now())
    }
}

/// What a target has its data on.
pub struct Parts {
    /// The device.
    pub device: MemoryDevice,
    /// The journal and the cold store, if the tables are not on the device.
    pub elsewhere: Option<(MemoryDevice, MemoryCold)>,
}

impl Parts {
    /// The same, apart.
    pub fn copy(&self) -> Parts {
        let elsewhere = self.elsewhere.as_ref().map(|(journal, cold)| (journal.copy(), cold.copy()));
        Parts { device: self.device.copy(), elsewhere }
    }

    /// As another process finds them after the death of the one that had them.
    pub fn after_crash(&self) -> Parts {
        let elsewhere = self.elsewhere.as_ref().map(|(journal, cold)| (journal.crash(), cold.crash()));
        Parts { device: self.device.crash(), elsewhere }
    }

    fn one_device(&self) -> OneDevice {
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        OneDevice { at_once: device.clone(), tables: device.clone(), objects: device }
    }

    /// Blocks of the device.
    pub async fn blocks(&self) -> u64 {
        self.device.length(DEVICE_FILE).await.expect("memory can be read").unwrap_or(0) / BLOCK_BYTES
    }

    /// A block of a file; zeros after its end.
    pub async fn block(device: &MemoryDevice, file: &str, block: u64) -> Vec<u8> {
        let (data, _) =
            device.read(file, block * BLOCK_BYTES, vec![0; BLOCK_BYTES as usize]).await.expect("memory can be read");
        data
    }

    /// The part of the device that has the tables, by its label.
    async fn tables(&self) -> Result<TablesPart, String> {
        let blocks = self.blocks().await;
        let copies = match blocks {
            0 | 1 => [Vec::new(), Vec::new()],
            _ => {
                let [first, last] = DeviceLabel::places(blocks);
                [
                    Self::block(&self.device, DEVICE_FILE, first).await,
                    Self::block(&self.device, DEVICE_FILE, last).await,
                ]
            }
        };
        let found = DeviceLabel::find(blocks, |place| Ok(copies[usize::from(place > 0)].clone()));
        let label = found.map_err(|error| error.to_string())?.ok_or("it is no target")?;
        label.tables.ok_or_else(|| "its tables are elsewhere".to_owned())
    }

    /// What is needed to look at the tables without changing anything: the journal's files and the
    /// cold store.
    pub async fn look(&self) -> Result<(Arc<dyn Device>, Box<dyn kv::ColdStore>), String> {
        if let Some((journal, cold)) = &self.elsewhere {
            return Ok((Arc::new(journal.clone()), Box::new(cold.clone())));
        }
        let (part, one) = (self.tables().await?, self.one_device());
        let layout = part.layout().ok_or("the tables are nowhere")?;
        let cold = one.look(&part, 0).map_err(|error| error.to_string())?;
        Ok((Arc::new(RegionFiles::new(one.tables, DEVICE_FILE, layout, None)), Box::new(cold)))
    }

    /// What a target opens, and the settings of its tables.
    pub async fn open(&self) -> Result<(OstDevices, Config), String> {
        let Some((journal, cold)) = &self.elsewhere else {
            let part = self.tables().await?;
            let opened = self.one_device().open(&part, 0, false, Arc::default()).map_err(|error| error.to_string())?;
            let layout = part.layout().ok_or("the tables are nowhere")?;
            return Ok((opened, layout.configure(config())));
        };
        let devices = OstDevices {
            objects: Arc::new(self.device.clone()),
            journal: Arc::new(journal.clone()),
            cold: Arc::new(cold.clone()),
            throughput: Arc::default(),
        };
        Ok((devices, config()))
    }

    /// Makes a target of an empty device of so many blocks.
    pub async fn format(&self, engine: Engine, blocks: u64) {
        self.device.truncate(DEVICE_FILE, blocks * BLOCK_BYTES).await.expect("memory has room");
        let seams = seams_in_memory();
        let (devices, config) = match engine {
            Engine::Blocks { tables: Some(part), .. } => {
                let one = self.one_device();
                one.format(&part, 7).await.expect("memory does not fail");
                let devices = one.open(&part, 0, false, Arc::default()).expect("it was made");
                (devices, part.layout().expect("the part is possible").configure(config()))
            }
            _ => self.open().await.expect("memory opens"),
        };
        Ost::format_with(&seams, &devices, FSNAME, INDEX, engine, config).await.expect("memory does not fail");
    }
}

/// Next to nothing of the tables is in memory, so that requests read what is damaged.
fn config() -> Config {
    let hour = Duration::from_secs(3600);
    Config {
        memory_bytes: 16 << 10,
        dirty_bytes: 64 << 10,
        commit_interval: hour,
        checkpoint_interval: hour,
        ..Config::small()
    }
}

fn seams_in_memory() -> Seams {
    let clock = ImpatientClock(Mutex::new(Instant(1_000_000_000)));
    Seams { clock: Arc::new(clock), ..seams(&MemoryTransport::new(), 1) }
}

/// Options of the targets here: nothing happens by itself, freed blocks are discarded, and what is
/// inline is written back in each turn.
fn options() -> OstOptions {
    OstOptions {
        commit_interval: Duration::from_secs(3600),
        write_back_idle: Duration::ZERO,
        reserve_bytes: 0,
        discard: true,
        defrag_busy_percent: 100,
        scrub_bytes_per_second: 0,
        ..OstOptions::default()
    }
}

/// A target that is open.
pub struct Session {
    ost: Arc<Ost>,
    device: MemoryDevice,
    /// What is wrong with its reads.
    fault: Option<ReadFault>,
}

impl Session {
    /// Opens it, or says why not.
    pub async fn open(parts: &Parts) -> Result<Session, String> {
        Session::open_with(parts, None).await
    }

    /// The same, with a fault built in.
    pub async fn open_with(parts: &Parts, fault: Option<ReadFault>) -> Result<Session, String> {
        let (devices, config) = parts.open().await?;
        let opened = Ost::open(seams_in_memory(), devices, FSNAME, INDEX, options(), config).await;
        let ost = opened.map_err(|error| error.to_string())?;
        Ok(Session { ost, device: parts.device.clone(), fault })
    }

    async fn ask(&self, request: OstRequest, bulk: Bytes) -> FsResult<(OstReply, Bytes)> {
        let call = Call::plain(ClientId(1), Slot(0), Xid(1), Request::Ost(request), bulk);
        let answer = self.ost.clone().handle(call).await;
        match answer.reply? {
            Reply::Ost(reply) => Ok((reply, answer.bulk)),
            other => panic!("an object storage target answers {other:?}"),
        }
    }

    pub async fn write(&self, object: ObjectId, offset: u64, data: &[u8], sync: bool) -> FsResult<()> {
        let checksums = checksums(offset, data);
        let write = Write { object, offset, checksums, sync, layout_generation: 0, owner: Owner::default() };
        self.ask(OstRequest::Write(write), Bytes::copy_from_slice(data)).await.map(drop)
    }

    /// Reads at most one request's bytes, from a block's beginning on; the object's size comes
    /// along. With the fault that is built in.
    pub async fn read(&self, object: ObjectId, offset: u64, bytes: usize) -> FsResult<(Vec<u8>, u64)> {
        let bytes = bytes.min(BULK_BYTES_MAX);
        let answer = self.read_right(object, offset, bytes).await;
        match self.fault {
            None => answer,
            Some(fault) => fault.spoil(self, (object, offset, bytes), answer).await,
        }
    }

    /// As [`Session::read`], without a fault.
    pub async fn read_right(&self, object: ObjectId, offset: u64, bytes: usize) -> FsResult<(Vec<u8>, u64)> {
        let bytes = bytes.min(BULK_BYTES_MAX) as u32;
        let read = Read { object, offset, bytes, layout_generation: 0 };
        let (reply, data) = self.ask(OstRequest::Read(read), Bytes::new()).await?;
        let OstReply::Read(done) = reply else { panic!("a read is answered by {reply:?}") };
        verify(offset, &data, &done.checksums).expect("checksums fit the data that they are sent with");
        Ok((data.to_vec(), done.size))
    }

    pub async fn change_space(&self, object: ObjectId, change: SpaceChange) -> FsResult<()> {
        self.ask(OstRequest::Space(object, change, 0, Owner::default()), Bytes::new()).await.map(drop)
    }

    pub async fn destroy(&self, object: ObjectId) -> FsResult<()> {
        self.ask(OstRequest::Destroy(vec![object], None), Bytes::new()).await.map(drop)
    }

    pub async fn sync(&self) -> FsResult<()> {
        self.ask(OstRequest::Sync(Vec::new()), Bytes::new()).await.map(drop)
    }

    /// All objects, as far as they can be listed.
    pub async fn list(&self) -> FsResult<Vec<(ObjectId, ObjectAttributes)>> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (reply, _) = self.ask(OstRequest::ListObjects(after, 5), Bytes::new()).await?;
            let OstReply::Objects(page) = reply else { panic!("a list is answered by {reply:?}") };
            let Some((last, _)) = page.last() else { return Ok(all) };
            assert!(after < Some(*last), "a list goes on after {after:?}, not at {last}");
            after = Some(*last);
            all.extend(page);
        }
    }

    /// Where an object's data are.
    pub async fn extents(&self, object: ObjectId) -> FsResult<Vec<Extent>> {
        let (mut all, mut offset) = (Vec::new(), 0);
        loop {
            let query = ExtentsQuery { object, offset, bytes: u64::MAX, extents_max: 7 };
            let (reply, _) = self.ask(OstRequest::Extents(query), Bytes::new()).await?;
            let OstReply::Extents(found) = reply else { panic!("a query is answered by {reply:?}") };
            all.extend(found.extents);
            let Some(next) = found.next else { return Ok(all) };
            assert!(next > offset, "extents go on after {offset}, not at {next}");
            offset = next;
        }
    }

    /// An object's size.
    pub async fn size(&self, object: ObjectId) -> FsResult<u64> {
        let (reply, _) = self.ask(OstRequest::Glimpse(vec![object]), Bytes::new()).await?;
        let OstReply::Attributes(attributes) = reply else { panic!("a glimpse is answered by {reply:?}") };
        Ok(attributes.first().map_or(0, |attributes| attributes.size))
    }

    /// What a block of the device has, right or not.
    pub async fn on_device(&self, block: u64) -> Vec<u8> {
        Parts::block(&self.device, DEVICE_FILE, block).await
    }

    /// What `stria fsck --data` asks of an object: its state by its records, and all of its data.
    pub async fn check(&self, object: ObjectId) -> FsResult<()> {
        self.ask(OstRequest::Check(vec![object]), Bytes::new()).await?;
        self.ask(OstRequest::Verify(object), Bytes::new()).await?;
        for data in [true, false] {
            self.ask(OstRequest::Seek(object, 0, data), Bytes::new()).await?;
        }
        Ok(())
    }

    /// Bitmaps against extents, in words.
    pub fn check_device(&self) -> FsResult<Vec<String>> {
        self.ost.check_device()
    }

    /// Compares all data with their checksums; blocks that differ, if it came to the end.
    pub async fn scrub(&self) -> Option<u64> {
        self.ost.scrub_once();
        for _ in 0..TURNS_MAX {
            match self.ost.last_scrub() {
                Some(scrub) if scrub.status == ScrubStatus::Completed => return Some(scrub.damaged_blocks),
                Some(scrub) if scrub.status == ScrubStatus::Failed => return None,
                _ => tokio::task::yield_now().await,
            }
        }
        panic!("the scrub does not end")
    }

    /// A turn of the target's task: commit, write-back, discards, merges.
    pub async fn work(&self) {
        self.ost.work().await;
    }

    /// Sets a parameter; what it was set to.
    pub fn set(&self, name: &str, value: &str) {
        let tree = ParameterTree::new();
        self.ost.register_parameters(&tree).expect("the names are good");
        tree.set(&format!("obdfilter.*.{name}"), value).expect("the value is good");
    }

    pub async fn stop(self) -> FsResult<()> {
        self.ost.stop().await
    }
}
