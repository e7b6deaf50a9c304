//! Simulated storage of one host: the disks to which processes write, and their state after the
//! death of a process or a power loss.
//!
//! A [`Disk`] holds the files of a target (journal and objects) and its cold store. A process gets
//! [`Devices`]: handles whose operations take virtual time. When the process dies, the next one
//! gets everything that was written; after a power loss, it gets everything that was flushed, while
//! the seed decides about the rest: unflushed writes are kept, lost or torn. Handles of dead
//! processes are fenced.
//!
//! Devices can hang: operations that are in progress or start during the hang end only after it.
//!
//! An operation takes effect in the middle of its time, so that a death can come before or after
//! it; a large write may take effect in two parts.
//!
//! The tables may be on the device of the objects: then journal, cold store and objects are in one
//! file, and the power takes parts of all of them.
//!
//! Downside: one operation does not slow another down; the disk has no queue. To predict
//! performance, objects can be on a device of [`crate::hardware`] instead, which may have one.

use std::{
    io,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use kv::{Checkpoint, ColdStore, MemoryCold, Operation, Table};
use oss::{directory::device::DEVICE_FILE, one_device::OneDevice, tables_part::TablesPart};
use rt::{
    BoxFuture, Device, Entropy,
    memory::{MemoryDevice, Unflushed},
};
use tokio::sync::watch;
use types::{SpaceUsage, limits::BLOCK_BYTES};

use crate::{Random, Simulation};

/// How long operations take.
#[derive(Clone, Copy, Debug)]
pub struct DiskModel {
    /// Every operation, and up to as much again.
    pub operation: Duration,
    /// Each byte read or written.
    pub byte: Duration,
    /// A flush, and up to as much again.
    pub flush: Duration,
}

impl DiskModel {
    /// Takes no time.
    pub const INSTANT: Self = Self { operation: Duration::ZERO, byte: Duration::ZERO, flush: Duration::ZERO };
}

impl Default for DiskModel {
    /// About a data-centre SSD behind the page cache: 1 GB/s, flushes of half a millisecond.
    fn default() -> Self {
        Self { operation: Duration::from_micros(5), byte: Duration::from_nanos(1), flush: Duration::from_micros(500) }
    }
}

/// What of a disk can hang by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskPart {
    /// The device of the journal, with the cold store.
    Tables,
    /// The device of objects' host files.
    Objects,
}

/// Whether a device hangs.
#[derive(Clone)]
struct Hang(watch::Sender<bool>);

impl Hang {
    fn none() -> Self {
        Self(watch::Sender::new(false))
    }

    async fn ended(&self) {
        // The sender is here: there is no other outcome.
        let _ = self.0.subscribe().wait_for(|hangs| !hangs).await;
    }
}

/// What one process has opened.
#[derive(Clone)]
pub struct Devices {
    /// The journal.
    pub journal: Arc<dyn Device>,
    /// Objects' host files.
    pub objects: Arc<dyn Device>,
    /// The cold store of the tables.
    pub cold: Arc<dyn ColdStore>,
}

/// The storage of one host.
pub struct Disk {
    simulation: Simulation,
    model: DiskModel,
    random: Arc<Random>,
    journal: MemoryDevice,
    objects: MemoryDevice,
    cold: MemoryCold,
    /// Where objects are instead of `objects`, in experiments.
    modelled: Option<Arc<dyn Device>>,
    /// The part of the objects' device that has the tables.
    tables: Option<TablesPart>,
    tables_hang: Hang,
    objects_hang: Hang,
}

/// Memory of the tables' tree: little, so that it is read.
const TREE_CACHE_BYTES: usize = 64 << 10;

/// The outcome of operations that take no time.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("devices in memory do not wait"),
    }
}

/// Bytes of a disk: enough for every workload.
const CAPACITY_BYTES: u64 = 1 << 40;

impl Disk {
    /// An empty disk of this name.
    pub fn new(simulation: &Simulation, name: &str, seed: u64, model: DiskModel) -> Self {
        Self {
            simulation: simulation.clone(),
            model,
            random: Arc::new(Random::for_purpose(seed, &format!("disk {name}"))),
            journal: MemoryDevice::with_capacity(CAPACITY_BYTES),
            objects: MemoryDevice::with_capacity(CAPACITY_BYTES),
            cold: MemoryCold::new(),
            modelled: None,
            tables: None,
            tables_hang: Hang::none(),
            objects_hang: Hang::none(),
        }
    }

    /// Operations on a part of the disk hang from now on, or continue.
    pub fn hang(&self, part: DiskPart, hangs: bool) {
        let hang = match part {
            DiskPart::Tables => &self.tables_hang,
            DiskPart::Objects => &self.objects_hang,
        };
        hang.0.send_replace(hangs);
    }

    /// The same disk with its objects on this device.
    pub fn with_objects_on(self, device: Arc<dyn Device>) -> Self {
        Self { modelled: Some(device), ..self }
    }

    /// The same disk with a device of so many blocks, and the tables in this part of it.
    pub fn with_tables_on_device(self, blocks: u64, tables: TablesPart) -> Self {
        let device: Arc<dyn Device> = Arc::new(self.objects.clone());
        let made = async {
            device.truncate(DEVICE_FILE, blocks * BLOCK_BYTES).await?;
            let one = OneDevice { at_once: device.clone(), tables: device.clone(), objects: device.clone() };
            one.format(&tables, self.random.next_u64()).await
        };
        at_once(made).expect("a device in memory takes its tables");
        Self { tables: Some(tables), ..self }
    }

    /// Handles for a process that starts now.
    pub fn open(&self) -> Devices {
        let timing = |hang: &Hang| {
            let (simulation, random) = (self.simulation.clone(), self.random.clone());
            Timing { simulation, model: self.model, random, hang: hang.clone() }
        };
        let device = |inner: &MemoryDevice, hang| Arc::new(TimedDevice { timing: timing(hang), inner: inner.clone() });
        if let Some(tables) = &self.tables {
            let one = OneDevice {
                at_once: Arc::new(self.objects.clone()),
                tables: device(&self.objects, &self.tables_hang),
                objects: device(&self.objects, &self.objects_hang),
            };
            let opened = one.open(tables, TREE_CACHE_BYTES, false, Arc::default());
            let opened = opened.expect("what a power loss left of the tables can be opened");
            return Devices { journal: opened.journal, objects: opened.objects, cold: opened.cold };
        }
        Devices {
            journal: device(&self.journal, &self.tables_hang),
            objects: match &self.modelled {
                Some(modelled) => modelled.clone(),
                None => device(&self.objects, &self.objects_hang),
            },
            cold: Arc::new(TimedCold { timing: timing(&self.tables_hang), inner: self.cold.clone() }),
        }
    }

    /// The process died. Everything it wrote is there; what it still holds open is fenced.
    pub fn process_died(&mut self) {
        self.journal = self.journal.crash();
        self.objects = self.objects.crash();
        self.cold = self.cold.crash();
    }

    /// The host lost power. Tells what became of unflushed writes.
    pub fn lose_power(&mut self) -> Unflushed {
        let unflushed = *self.random.pick(&[Unflushed::Lost, Unflushed::KeptOrLost, Unflushed::Torn, Unflushed::Torn]);
        self.journal = self.journal.power_loss(&*self.random, unflushed);
        self.objects = self.objects.power_loss(&*self.random, unflushed);
        self.cold = self.cold.power_loss(&*self.random);
        unflushed
    }

    /// Flips one bit of one of the objects' host files, chosen by the seed; tells where. `None` if
    /// there is no file.
    pub async fn rot(&self) -> Option<(String, u64)> {
        let files = self.objects.list("").await.ok().filter(|files| !files.is_empty())?;
        let file = self.random.pick(&files).clone();
        let length = self.objects.length(&file).await.ok().flatten().filter(|length| *length > 0)?;
        let offset = self.random.below(length);
        self.objects.flip_bit(&file, offset, self.random.below(8) as u8);
        Some((file, offset))
    }
}

/// Virtual time for operations.
#[derive(Clone)]
struct Timing {
    simulation: Simulation,
    model: DiskModel,
    random: Arc<Random>,
    hang: Hang,
}

impl Timing {
    /// `base` and up to as much again.
    fn jittered(&self, base: Duration) -> Duration {
        base + Duration::from_nanos(self.random.below(base.as_nanos() as u64 + 1))
    }

    /// Half the time that an operation on `bytes` takes: once before, once after its effect.
    async fn half(&self, bytes: u64) {
        let transfer = self.model.byte * u32::try_from(bytes).unwrap_or(u32::MAX);
        self.simulation.sleep((self.jittered(self.model.operation) + transfer) / 2).await;
        self.hang.ended().await;
    }

    async fn half_flush(&self) {
        self.simulation.sleep(self.jittered(self.model.flush) / 2).await;
        self.hang.ended().await;
    }

    async fn around<T>(&self, bytes: u64, operation: impl Future<Output = T>) -> T {
        self.half(bytes).await;
        let result = operation.await;
        self.half(0).await;
        result
    }

    async fn around_flush<T>(&self, operation: impl Future<Output = T>) -> T {
        self.half_flush().await;
        let result = operation.await;
        self.half_flush().await;
        result
    }
}

/// Files whose operations take time.
struct TimedDevice {
    timing: Timing,
    inner: MemoryDevice,
}

/// One large write in so many takes effect in two parts.
const SPLIT_ONE_IN: u64 = 4;

/// Cuts the pieces of a write at `at` bytes.
fn split(pieces: Vec<Bytes>, mut at: usize) -> (Vec<Bytes>, Vec<Bytes>) {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for mut piece in pieces {
        let first = piece.split_to(at.min(piece.len()));
        at -= first.len();
        head.push(first);
        tail.push(piece);
    }
    tail.retain(|piece| !piece.is_empty());
    (head, tail)
}

impl Device for TimedDevice {
    fn read(&self, file: &str, offset: u64, buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let timing = self.timing.clone();
        let bytes = buffer.len() as u64;
        let operation = self.inner.read(file, offset, buffer);
        Box::pin(async move { timing.around(bytes, operation).await })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let (timing, inner, file) = (self.timing.clone(), self.inner.clone(), file.to_owned());
        Box::pin(async move {
            let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
            let blocks = bytes / BLOCK_BYTES;
            if blocks < 2 || timing.random.below(SPLIT_ONE_IN) != 0 {
                return timing.around(bytes, inner.write(&file, offset, pieces)).await;
            }
            let first_bytes = timing.random.within(1..blocks) * BLOCK_BYTES;
            let (head, tail) = split(pieces, first_bytes as usize);
            timing.around(first_bytes, inner.write(&file, offset, head)).await?;
            timing.around(bytes - first_bytes, inner.write(&file, offset + first_bytes, tail)).await
        })
    }

    /// Into the host's memory, which takes no more time than a short write here.
    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        let (timing, operation) = (self.timing.clone(), self.inner.write_cached(file, offset, pieces));
        Box::pin(async move { timing.around(bytes, operation).await })
    }

    fn cached_area_bytes(&self) -> u64 {
        self.inner.cached_area_bytes()
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let (timing, operation) = (self.timing.clone(), self.inner.flush(file));
        Box::pin(async move { timing.around_flush(operation).await })
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        let (timing, operation) = (self.timing.clone(), self.inner.length(file));
        Box::pin(async move { timing.around(0, operation).await })
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        let (timing, operation) = (self.timing.clone(), self.inner.truncate(file, length));
        Box::pin(async move { timing.around(0, operation).await })
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        let (timing, operation) = (self.timing.clone(), self.inner.punch(file, offset, bytes));
        Box::pin(async move { timing.around(0, operation).await })
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        let (timing, operation) = (self.timing.clone(), self.inner.allocate(file, offset, bytes));
        Box::pin(async move { timing.around(0, operation).await })
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let (timing, operation) = (self.timing.clone(), self.inner.remove(file));
        Box::pin(async move { timing.around(0, operation).await })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        let (timing, operation) = (self.timing.clone(), self.inner.list(prefix));
        Box::pin(async move { timing.around(0, operation).await })
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        let (timing, operation) = (self.timing.clone(), self.inner.space());
        Box::pin(async move { timing.around(0, operation).await })
    }
}

/// A cold store whose writes take time. Reads block the core they run on, which takes no virtual
/// time.
struct TimedCold {
    timing: Timing,
    inner: MemoryCold,
}

impl ColdStore for TimedCold {
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
        let bytes = operations.iter().map(|operation| operation.bytes() as u64).sum();
        let (timing, operation) = (self.timing.clone(), self.inner.write(operations));
        Box::pin(async move { timing.around(bytes, operation).await })
    }

    fn commit(&self, checkpoint: Checkpoint) -> BoxFuture<'static, io::Result<()>> {
        let (timing, operation) = (self.timing.clone(), self.inner.commit(checkpoint));
        Box::pin(async move { timing.around_flush(operation).await })
    }

    fn checkpoint(&self) -> io::Result<Option<Checkpoint>> {
        self.inner.checkpoint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProcessId, executor::RunLimits};

    fn bytes(text: &'static str) -> Vec<Bytes> {
        vec![Bytes::from_static(text.as_bytes())]
    }

    #[test]
    fn a_split_write_is_the_whole_write() {
        let pieces = vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"defg")];
        for at in 0..=7 {
            let (head, tail) = split(pieces.clone(), at);
            assert_eq!((head.concat().len(), [head.concat(), tail.concat()].concat()), (at, b"abcdefg".to_vec()));
        }
    }

    /// Writes, and dies or loses power `after` this time; returns what is read afterwards.
    fn left(after: Duration, flush: bool, power: bool) -> Vec<u8> {
        let simulation = Simulation::new(1);
        let mut disk = Disk::new(&simulation, "d", 1, DiskModel::default());
        let (devices, world) = (disk.open(), simulation.clone());
        simulation.spawn(
            ProcessId(1),
            "writer",
            Box::pin(async move {
                devices.journal.write("f", 0, bytes("data")).await.unwrap();
                if flush {
                    devices.journal.flush("f").await.unwrap();
                }
                world.sleep(Duration::from_secs(1)).await;
                devices.journal.write("f", 0, bytes("late")).await.unwrap();
            }),
        );
        let world = simulation.clone();
        let run = simulation.run(RunLimits::default(), async move {
            world.sleep(after).await;
            world.kill(ProcessId(1));
            if power {
                disk.journal = disk.journal.power_loss(&*disk.random, Unflushed::Lost);
            } else {
                disk.process_died();
            }
            let (data, read) = disk.open().journal.read("f", 0, vec![0; 10]).await.unwrap();
            data[..read].to_vec()
        });
        run.unwrap()
    }

    #[test]
    fn death_keeps_what_was_written_and_power_loss_what_was_flushed() {
        let early = Duration::from_nanos(1);
        let later = Duration::from_millis(5);
        assert_eq!(left(early, false, false), b"", "an operation takes time");
        assert_eq!(left(later, false, false), b"data");
        assert_eq!(left(later, false, true), b"");
        assert_eq!(left(later, true, true), b"data");
    }
}
