//! Files in memory, with the effects of a crash and of a power loss.
//!
//! Every file has two images: the live one, which operations see, and the durable one, which the
//! last flush left. Between them there is a list of the changes since. [`MemoryDevice::crash`]
//! keeps the live images (the kernel has the data); [`MemoryDevice::power_loss`] goes back to the
//! durable ones and applies each unflushed change as far as [`crate::device`] allows. Both fence
//! the old handle: tasks of the dead process that are still running get errors and change nothing.
//!
//! Downside: unflushed changes are kept in memory, so a test that never flushes keeps everything
//! that it wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, ErrorKind},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use types::SpaceUsage;

use super::image::{BLOCK_BYTES, Change, Image};
use crate::{
    BoxFuture, Device, Entropy,
    device::{check_file_name, check_range},
};

/// Space of a device without a limit: 1 PiB, more than any test fills.
const BYTES_UNLIMITED: u64 = 1 << 50;
/// Of simulated memory of a host: small, so that small devices have many.
const CACHED_AREA_BYTES: u64 = 64 << 10;
/// Files a device may hold, as statfs shows it.
const FILES_MAX: u64 = 1 << 32;

/// What power loss does to changes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unflushed {
    /// All are lost.
    Lost,
    /// Each is kept or lost, independently.
    KeptOrLost,
    /// Each is kept, lost, or kept in an arbitrary subset of its 512-byte sectors, independently.
    Torn,
}

/// Files in memory. Clones are the same handle to the same files.
#[derive(Clone)]
pub struct MemoryDevice {
    storage: Arc<Mutex<Storage>>,
    attached: Arc<AtomicBool>,
}

struct Storage {
    files: BTreeMap<String, File>,
    blocks_used: u64,
    bytes_max: u64,
    read_only: bool,
}

#[derive(Clone, Default)]
struct File {
    live: Option<Image>,
    durable: Option<Image>,
    unflushed: Vec<Change>,
    /// Pieces with unflushed writes of [`Device::write_cached`].
    cached: BTreeSet<u64>,
}

impl Default for MemoryDevice {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDevice {
    /// An empty device without a limit.
    pub fn new() -> Self {
        Self::with_capacity(BYTES_UNLIMITED)
    }

    /// An empty device that holds `bytes_max` bytes, in blocks of 4096.
    pub fn with_capacity(bytes_max: u64) -> Self {
        let storage = Storage { files: BTreeMap::new(), blocks_used: 0, bytes_max, read_only: false };
        Self { storage: Arc::new(Mutex::new(storage)), attached: Arc::new(AtomicBool::new(true)) }
    }

    /// Changes the capacity; what is stored stays, even if it is more.
    pub fn set_capacity(&self, bytes_max: u64) {
        self.storage.lock().bytes_max = bytes_max;
    }

    /// Makes the device refuse every change, or accept them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.storage.lock().read_only = read_only;
    }

    /// A device of its own with the same files: changes of one do not show on the other.
    pub fn copy(&self) -> MemoryDevice {
        let Storage { files, blocks_used, bytes_max, read_only } = &*self.storage.lock();
        let storage =
            Storage { files: files.clone(), blocks_used: *blocks_used, bytes_max: *bytes_max, read_only: *read_only };
        MemoryDevice { storage: Arc::new(Mutex::new(storage)), attached: Arc::new(AtomicBool::new(true)) }
    }

    /// The blocks of a file that have space, in order, by their numbers.
    pub fn blocks_with_space(&self, file: &str) -> Vec<u64> {
        let storage = self.storage.lock();
        let live = storage.files.get(file).and_then(|file| file.live.as_ref());
        live.map_or(Vec::new(), |image| image.blocks_with_space().collect())
    }

    /// Flips one bit of a file in both images, as bit rot does. Nothing happens beyond the file's
    /// data.
    pub fn flip_bit(&self, file: &str, offset: u64, bit: u8) {
        if let Some(file) = self.storage.lock().files.get_mut(file) {
            file.live.iter_mut().chain(&mut file.durable).for_each(|image| image.flip_bit(offset, bit));
        }
    }

    /// What Linux does when it cannot write data back: what was written and not flushed can still
    /// be read, but no flush makes it durable any more unless it is written again.
    pub fn fail_writeback(&self) {
        for file in self.storage.lock().files.values_mut() {
            file.unflushed.retain(|change| !matches!(change, Change::Write { .. }));
        }
    }

    /// The process dies, the host lives on: everything written is kept. This handle is dead, the
    /// new one sees the files.
    pub fn crash(&self) -> MemoryDevice {
        let _storage = self.storage.lock();
        self.attached.store(false, Ordering::Release);
        MemoryDevice { storage: self.storage.clone(), attached: Arc::new(AtomicBool::new(true)) }
    }

    /// The host loses power: flushed data are kept, of unflushed changes what `unflushed` says.
    /// This handle is dead, the new one sees the files.
    pub fn power_loss(&self, entropy: &dyn Entropy, unflushed: Unflushed) -> MemoryDevice {
        let next = self.crash();
        let mut storage = next.storage.lock();
        for file in storage.files.values_mut() {
            file.lose_power(entropy, unflushed);
        }
        storage.files.retain(|_, file| file.live.is_some());
        storage.blocks_used = storage.files.values().flat_map(|file| &file.live).map(Image::block_count).sum();
        drop(storage);
        next
    }

    /// Runs `operate` on the files at the future's first poll, unless this handle is dead.
    fn run<T: Send + 'static>(
        &self,
        operate: impl FnOnce(&mut Storage) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let device = self.clone();
        Box::pin(async move {
            let mut storage = device.storage.lock();
            if !device.attached.load(Ordering::Acquire) {
                return Err(io::Error::other("the process that opened this device is dead"));
            }
            operate(&mut storage)
        })
    }

    /// `note` looks at the pieces with cached writes.
    fn write_to(
        &self,
        file: &str,
        change: Change,
        note: impl FnOnce(&mut BTreeSet<u64>) + Send + 'static,
    ) -> BoxFuture<'static, io::Result<()>> {
        let file = file.to_owned();
        self.run(move |storage| {
            check_file_name(&file)?;
            storage.change(file.clone(), true, change)?;
            if let Some(file) = storage.files.get_mut(&file) {
                note(&mut file.cached);
            }
            Ok(())
        })
    }

    fn change(&self, file: &str, create: bool, change: Change) -> BoxFuture<'static, io::Result<()>> {
        let file = file.to_owned();
        self.run(move |storage| {
            check_file_name(&file)?;
            storage.change(file, create, change)
        })
    }
}

/// The pieces of a file that are written in part at least.
fn areas_of(offset: u64, pieces: &[Bytes]) -> Range<u64> {
    let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
    offset / CACHED_AREA_BYTES..offset.saturating_add(bytes).div_ceil(CACHED_AREA_BYTES)
}

impl Storage {
    fn change(&mut self, name: String, create: bool, change: Change) -> io::Result<()> {
        if self.read_only {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        let wanted = match &change {
            Change::Write { offset, pieces } => (*offset, pieces.iter().map(|piece| piece.len() as u64).sum()),
            Change::Allocate { offset, bytes } => (*offset, *bytes),
            Change::Truncate { length } => (*length, 0),
            Change::Create | Change::Remove | Change::Punch { .. } => (0, 0),
        };
        check_range(wanted.0, wanted.1)?;
        let live = self.files.get(&name).and_then(|file| file.live.as_ref());
        if live.is_none() && !create {
            return Ok(());
        }
        let (exists, before) = (live.is_some(), live.map_or(0, Image::block_count));
        let missing = live.unwrap_or(&Image::default()).missing_blocks(wanted.0, wanted.1);
        if missing > 0 && (self.blocks_used + missing).saturating_mul(BLOCK_BYTES) > self.bytes_max {
            return Err(ErrorKind::StorageFull.into());
        }
        let file = self.files.entry(name).or_default();
        if !exists {
            file.apply(Change::Create);
        }
        file.apply(change);
        let after = file.live.as_ref().map_or(0, Image::block_count);
        self.blocks_used = self.blocks_used + after - before;
        Ok(())
    }

    /// Makes one file durable, and every removal up to here.
    fn flush(&mut self, name: &str) {
        for (candidate, file) in &mut self.files {
            if candidate == name {
                file.flush();
            } else if let Some(last) = file.unflushed.iter().rposition(|change| matches!(change, Change::Remove)) {
                file.flush_through(last);
            }
        }
        self.files.retain(|_, file| file.live.is_some() || file.durable.is_some());
    }
}

impl File {
    fn apply(&mut self, change: Change) {
        change.apply(&mut self.live);
        self.unflushed.push(change);
    }

    fn flush(&mut self) {
        self.cached.clear();
        if let Some(last) = self.unflushed.len().checked_sub(1) {
            self.flush_through(last);
        }
    }

    fn flush_through(&mut self, last: usize) {
        for change in self.unflushed.drain(..=last) {
            change.apply(&mut self.durable);
        }
    }

    fn lose_power(&mut self, entropy: &dyn Entropy, unflushed: Unflushed) {
        self.cached.clear();
        let mut image = self.durable.take();
        for change in self.unflushed.drain(..) {
            let late_outcome = match unflushed {
                Unflushed::Lost => 0,
                Unflushed::KeptOrLost => entropy.below(2),
                Unflushed::Torn => entropy.below(3),
            };
            match (late_outcome, &change) {
                // The name still belongs to what was there before: later changes were made to a
                // file that is gone.
                (0, Change::Create | Change::Remove) => break,
                (0, _) => {}
                (1, _) => change.apply(&mut image),
                _ => change.apply_torn(&mut image, entropy),
            }
        }
        self.durable = image.clone();
        self.live = image;
    }
}

impl Device for MemoryDevice {
    fn read(&self, file: &str, offset: u64, mut buffer: Vec<u8>) -> BoxFuture<'static, io::Result<(Vec<u8>, usize)>> {
        let file = file.to_owned();
        self.run(move |storage| {
            check_file_name(&file)?;
            let live = storage.files.get(&file).and_then(|file| file.live.as_ref());
            let bytes = live.map_or(0, |image| image.read(offset, &mut buffer));
            Ok((buffer, bytes))
        })
    }

    fn write(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let areas = areas_of(offset, &pieces);
        self.write_to(file, Change::Write { offset, pieces }, move |cached| {
            assert!(cached.range(areas).next().is_none(), "written beside what is cached and not flushed");
        })
    }

    fn write_cached(&self, file: &str, offset: u64, pieces: Vec<Bytes>) -> BoxFuture<'static, io::Result<()>> {
        let areas = areas_of(offset, &pieces);
        self.write_to(file, Change::Write { offset, pieces }, move |cached| cached.extend(areas))
    }

    fn cached_area_bytes(&self) -> u64 {
        CACHED_AREA_BYTES
    }

    fn flush(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        let file = file.to_owned();
        self.run(move |storage| {
            check_file_name(&file)?;
            storage.flush(&file);
            Ok(())
        })
    }

    fn length(&self, file: &str) -> BoxFuture<'static, io::Result<Option<u64>>> {
        let file = file.to_owned();
        self.run(move |storage| {
            check_file_name(&file)?;
            Ok(storage.files.get(&file).and_then(|file| file.live.as_ref()).map(|image| image.length))
        })
    }

    fn truncate(&self, file: &str, length: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, true, Change::Truncate { length })
    }

    fn punch(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, false, Change::Punch { offset, bytes })
    }

    fn allocate(&self, file: &str, offset: u64, bytes: u64) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, true, Change::Allocate { offset, bytes })
    }

    fn remove(&self, file: &str) -> BoxFuture<'static, io::Result<()>> {
        self.change(file, false, Change::Remove)
    }

    fn list(&self, prefix: &str) -> BoxFuture<'static, io::Result<Vec<String>>> {
        let prefix = prefix.to_owned();
        self.run(move |storage| {
            let following = storage.files.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
            Ok(following.filter(|(_, file)| file.live.is_some()).map(|(name, _)| name.clone()).collect())
        })
    }

    fn space(&self) -> BoxFuture<'static, io::Result<SpaceUsage>> {
        self.run(|storage| {
            let bytes_free = storage.bytes_max.saturating_sub(storage.blocks_used * BLOCK_BYTES);
            Ok(SpaceUsage {
                bytes_total: storage.bytes_max,
                bytes_free,
                bytes_available: bytes_free,
                inodes_total: FILES_MAX,
                inodes_free: FILES_MAX.saturating_sub(storage.files.len() as u64),
                device: None,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;
    use crate::memory::SeededEntropy;

    /// Operations in memory complete at their first poll.
    fn now<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("an operation in memory waits for nothing"),
        }
    }

    fn contents(device: &MemoryDevice, file: &str) -> Option<Vec<u8>> {
        let length = now(device.length(file)).unwrap()?;
        let (mut data, bytes) = now(device.read(file, 0, vec![0; length as usize])).unwrap();
        data.truncate(bytes);
        Some(data)
    }

    fn write(device: &MemoryDevice, file: &str, offset: u64, data: &[u8]) -> io::Result<()> {
        now(device.write(file, offset, vec![Bytes::copy_from_slice(data)]))
    }

    #[test]
    fn a_crash_keeps_what_was_written_and_fences_the_dead() {
        let device = MemoryDevice::new();
        write(&device, "log", 0, b"written").unwrap();
        let in_flight = device.write("log", 0, vec![Bytes::from_static(b"too late")]);
        let next = device.crash();
        assert!(now(in_flight).is_err());
        assert!(write(&device, "log", 0, b"again").is_err());
        assert_eq!(contents(&next, "log").unwrap(), b"written");
    }

    #[test]
    fn power_loss_keeps_exactly_what_was_flushed_if_the_rest_is_lost() {
        let device = MemoryDevice::new();
        let entropy = SeededEntropy::new(1);
        write(&device, "a", 0, b"flushed").unwrap();
        now(device.flush("a")).unwrap();
        write(&device, "a", 0, b"FLUSHED and more").unwrap();
        write(&device, "b", 0, b"never flushed").unwrap();
        let device = device.power_loss(&entropy, Unflushed::Lost);
        assert_eq!(contents(&device, "a").unwrap(), b"flushed");
        assert_eq!(contents(&device, "b"), None);
        now(device.remove("a")).unwrap();
        let device = device.power_loss(&entropy, Unflushed::Lost);
        assert_eq!(contents(&device, "a").unwrap(), b"flushed", "the removal was not flushed");
        now(device.remove("a")).unwrap();
        write(&device, "b", 0, b"x").unwrap();
        now(device.flush("b")).unwrap();
        let device = device.power_loss(&entropy, Unflushed::Lost);
        assert_eq!(contents(&device, "a"), None, "a flush of any file makes removals durable");
        assert_eq!(now(device.list("")).unwrap(), ["b"]);
    }

    /// A file removed and made again under its name is the old one or the new one, never a mixture.
    #[test]
    fn a_lost_removal_brings_the_old_file_back_whole() {
        let mut seen = [false; 2];
        for seed in 0..64 {
            let device = MemoryDevice::new();
            write(&device, "a", 0, &[b'o'; 2000]).unwrap();
            now(device.flush("a")).unwrap();
            now(device.remove("a")).unwrap();
            write(&device, "a", 0, &[b'n'; 1000]).unwrap();
            let device = device.power_loss(&SeededEntropy::new(seed), Unflushed::Torn);
            match contents(&device, "a") {
                Some(data) if data.contains(&b'o') => {
                    seen[0] = true;
                    assert_eq!(data, [b'o'; 2000]);
                }
                other => {
                    seen[1] = true;
                    assert!(other.unwrap_or_default().iter().all(|byte| [b'n', 0].contains(byte)));
                }
            }
        }
        assert_eq!(seen, [true; 2]);
    }

    #[test]
    fn a_copy_has_the_same_files_and_goes_its_own_way() {
        let device = MemoryDevice::new();
        write(&device, "a", 8192, b"first").unwrap();
        let copy = device.copy();
        assert_eq!((copy.blocks_with_space("a"), copy.blocks_with_space("b")), (vec![2], vec![]));
        write(&device, "a", 8192, b"other").unwrap();
        now(copy.truncate("a", 0)).unwrap();
        assert_eq!(contents(&device, "a").unwrap()[8192..], *b"other");
        assert_eq!(contents(&copy, "a").unwrap(), b"");
        let crashed = device.crash();
        assert!(write(&copy, "b", 0, b"x").is_ok() && contents(&crashed, "b").is_none());
    }

    #[test]
    fn torn_writes_keep_whole_sectors_and_every_outcome_occurs() {
        let (mut all, mut none, mut mixed) = (0, 0, 0);
        for seed in 0..100 {
            let device = MemoryDevice::new();
            write(&device, "a", 0, &[1; 4096]).unwrap();
            now(device.flush("a")).unwrap();
            write(&device, "a", 256, &[2; 2048]).unwrap();
            let data = contents(&device.power_loss(&SeededEntropy::new(seed), Unflushed::Torn), "a").unwrap();
            assert_eq!(data.len(), 4096);
            assert!(data[..256].iter().chain(&data[2304..]).all(|byte| *byte == 1));
            for (from, to) in [(256, 512), (512, 1024), (1024, 1536), (1536, 2048), (2048, 2304)] {
                assert!(data[from..to].iter().all(|byte| *byte == data[from]), "sector at {from} is torn");
            }
            match data.iter().filter(|byte| **byte == 2).count() {
                2048 => all += 1,
                0 => none += 1,
                _ => mixed += 1,
            }
        }
        assert!(all > 10 && none > 10 && mixed > 10, "{all} {none} {mixed}");
    }

    #[test]
    fn a_full_device_refuses_new_blocks_only() {
        let device = MemoryDevice::with_capacity(3 * 4096);
        write(&device, "a", 0, &[1; 8192]).unwrap();
        now(device.allocate("b", 0, 4096)).unwrap();
        assert_eq!(write(&device, "a", 8192, b"x").unwrap_err().kind(), ErrorKind::StorageFull);
        write(&device, "b", 0, &[1; 4096]).expect("its space is reserved");
        write(&device, "a", 100, &[2; 100]).expect("its block exists");
        assert_eq!(now(device.space()).unwrap().bytes_free, 0);
        now(device.punch("a", 4096, 4096)).unwrap();
        write(&device, "c", 0, b"x").expect("punching gave space back");
        now(device.remove("b")).unwrap();
        assert_eq!(now(device.space()).unwrap().bytes_free, 4096);
    }

    #[test]
    fn a_read_only_device_refuses_changes_and_a_flipped_bit_is_read() {
        let device = MemoryDevice::new();
        write(&device, "a", 0, b"A").unwrap();
        device.set_read_only(true);
        assert_eq!(write(&device, "a", 0, b"B").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(now(device.remove("a")).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
        device.flip_bit("a", 0, 1);
        assert_eq!(contents(&device, "a").unwrap(), b"C");
    }
}
