//! Objects on a device: where new data go, and how they get there.
//!
//! Data of large writes go to blocks that nothing refers to, as do blocks that are written back.
//! These are *in progress* ([`InProgress`]) from their allocation until a record names them. If it
//! never comes to that they are given back, but not before what was begun to be written to them has
//! ended: a request may be given up while the device still works on it.
//!
//! If the device has no free blocks, data that overwrite others go inline: by this their old blocks
//! become free with the next commit, and they are written back to some of these later.

use std::{
    collections::BTreeSet,
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use blocks::{Inconsistent, Refusal, Request, Summary};
use bytes::Bytes;
use kv::Loading;
use parking_lot::{Mutex, MutexGuard};
use rangemap::RangeSet;
use rt::{BoxFuture, Device, Spawn};
use types::{Damage, FsError, FsResult, ObjectId, RecordDamage, limits::BLOCK_BYTES};

use super::{
    BLOCK, DirectoryStore,
    areas::{Area, TakenBlocks, Unnamed},
    device_space::DeviceSpace,
    host_file_state::HostFileState,
    records::{Records, all},
};
use crate::{
    device_label::DeviceLabel,
    group_record::decode_summary,
    superblock::{Engine, RESERVED_KEY, Superblock, device_geometry},
    tables::{GROUPS, parse_group_key},
};

/// Name of the device, among the files of the target: a file, or a link to a block device.
pub const DEVICE_FILE: &str = "device";

/// Groups that are loaded in one hold of the store's mutex: each has a bitmap of 4 KiB.
const GROUPS_AT_A_TIME: usize = 16;

/// Objects of this many inodes, made one after the other, are kept together while they are small.
const LOCALITY_INODES: u64 = 64;

/// Blocks of the device that no record names yet. See the module documentation.
pub(super) struct InProgress {
    state: Arc<Mutex<HostFileState>>,
    spawn: Arc<dyn Spawn>,
    blocks: RangeSet<u64>,
    /// A write to some of them that has begun.
    under_way: Option<BoxFuture<'static, io::Result<()>>>,
    /// Blocks of an area that are to be written.
    taken: Option<TakenBlocks>,
    /// The area that has them in progress, when they are written.
    area: Option<Arc<Area>>,
}

impl InProgress {
    /// None yet.
    pub fn new(store: &DirectoryStore) -> Self {
        let (state, spawn) = (store.volatile.clone(), store.seams.spawn.clone());
        Self { state, spawn, blocks: RangeSet::new(), under_way: None, taken: None, area: None }
    }

    /// Writes to some of them.
    async fn write(&mut self, device: &dyn Device, address: u64, pieces: Vec<Bytes>) -> io::Result<()> {
        let offset = address * BLOCK_BYTES;
        let Some(taken) = &self.taken else {
            return self.finish(device.write(DEVICE_FILE, offset, pieces)).await;
        };
        let (open, write) = (taken.open.clone(), device.write_cached(DEVICE_FILE, offset, pieces));
        let operation = async move {
            // The area stays open as long as something is written to it.
            let _open = open;
            write.await
        };
        self.finish(Box::pin(operation)).await
    }

    /// Waits for an operation on some of them, which is executed to its end even if nothing waits
    /// for it.
    pub async fn finish(&mut self, operation: BoxFuture<'static, io::Result<()>>) -> io::Result<()> {
        let under_way = self.under_way.insert(operation);
        let ended = under_way.await;
        self.under_way = None;
        ended
    }

    /// Takes blocks that are in progress.
    pub fn add(&mut self, blocks: Range<u64>) {
        self.blocks.insert(blocks);
    }

    /// Takes blocks of an area, which are written there.
    pub fn take(&mut self, taken: TakenBlocks) {
        self.taken = Some(taken);
    }

    /// All is written: nothing keeps an area open any more.
    pub fn end_writes(&mut self) {
        self.area = self.taken.take().map(|taken| taken.area).or(self.area.take());
    }

    /// Those of these blocks that are in progress, to be kept apart.
    pub fn split(&mut self, blocks: Range<u64>) -> Self {
        let (state, spawn) = (self.state.clone(), self.spawn.clone());
        let kept = self.blocks.overlapping(&blocks).map(|one| one.start.max(blocks.start)..one.end.min(blocks.end));
        let kept = kept.collect();
        self.blocks.remove(blocks);
        Self { state, spawn, blocks: kept, under_way: None, taken: None, area: None }
    }

    /// Records name these blocks.
    pub fn recorded(&mut self, addresses: impl Iterator<Item = u64>) {
        for address in addresses {
            self.blocks.remove(address..address + 1);
            if let Some(area) = &self.area {
                area.recorded(address);
            }
        }
    }
}

impl Unnamed for InProgress {
    fn recorded(&mut self, block: u64) {
        self.blocks.remove(block..block + 1);
    }
}

/// Gives blocks back.
fn abandon(state: &Mutex<HostFileState>, blocks: &RangeSet<u64>) {
    let mut state = state.lock();
    let Some(device) = &mut state.device else { return };
    if let Err(wrong) = blocks.iter().try_for_each(|blocks| device.abandon(blocks)) {
        state.failure.get_or_insert_with(|| format!("the free space of the device: {wrong}"));
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let blocks = std::mem::take(&mut self.blocks);
        match self.under_way.take() {
            None if blocks.is_empty() => {}
            None => abandon(&self.state, &blocks),
            Some(writing) => {
                let state = self.state.clone();
                let task = async move {
                    // Whether it succeeds does not matter: nobody will read it.
                    let _ = writing.await;
                    abandon(&state, &blocks);
                };
                self.spawn.spawn("ost-abandoned-write", Box::pin(task));
            }
        }
    }
}

/// Blocks of the device that a write in progress may still record.
pub(super) struct Promise {
    state: Arc<Mutex<HostFileState>>,
    blocks: u64,
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(device) = &mut self.state.lock().device {
            device.end_promise(self.blocks);
        }
    }
}

/// A run of blocks of an object that is to get a place.
#[derive(Clone, Debug)]
pub(super) struct Unplaced {
    pub object: ObjectId,
    /// Blocks of the object.
    pub blocks: Range<u64>,
    /// Bytes of the object.
    pub size: u64,
    /// Where the block before them is.
    pub after: Option<u64>,
}

impl Unplaced {
    fn request(&self) -> Request {
        Request {
            object: self.object,
            write_start: self.blocks.start,
            logical: self.blocks.start,
            blocks: (self.blocks.end - self.blocks.start) as u32,
            size: self.size.div_ceil(BLOCK_BYTES),
            goal: self.after.map(|before| before + 1),
            locality: self.object.inode.0 / LOCALITY_INODES,
            may_use_reserve: true,
        }
    }
}

impl DirectoryStore {
    /// Whether objects are on a device.
    pub(super) fn has_device(&self) -> bool {
        matches!(self.superblock.engine, Engine::Blocks { .. })
    }

    /// Promises blocks for new data, or `NoSpace`.
    pub(super) fn promise(&self, blocks: u64) -> FsResult<Option<Promise>> {
        let mut volatile = self.volatile.lock();
        let backlog = volatile.backlog_blocks;
        let Some(device) = volatile.device.as_mut().filter(|_| blocks > 0) else { return Ok(None) };
        if blocks > device.available(backlog) {
            return Err(FsError::NoSpace);
        }
        device.promise(blocks);
        Ok(Some(Promise { state: self.volatile.clone(), blocks }))
    }

    /// Finds places for blocks, in order. `NoSpace` if there are not enough free ones.
    pub(super) async fn allocate_on_device(
        &self,
        loading: &mut Loading,
        unplaced: &Unplaced,
        in_progress: &mut InProgress,
    ) -> FsResult<Vec<u64>> {
        let request = unplaced.request();
        let parts = self.ask_allocator(loading, |device| device.allocate(&request)).await?;
        parts.iter().for_each(|part| in_progress.add(part.clone()));
        Ok(parts.into_iter().flatten().collect())
    }

    /// An object may be removed after places were looked for without its range lock: then it has
    /// windows that nothing gives up with it. The caller has the lock of some of its blocks.
    pub(super) async fn drop_windows_if_removed(&self, object: ObjectId) -> FsResult<()> {
        let found = self.look(&mut Loading::default(), |records| records.object(object)).await?;
        if found.is_none()
            && let Some(device) = &mut self.volatile.lock().device
        {
            device.drop_windows(object).map_err(|wrong| self.inconsistent(&wrong))?;
        }
        Ok(())
    }

    /// Asks the allocator for blocks; groups that it needs for the answer are loaded.
    pub(super) async fn ask_allocator<T>(
        &self,
        loading: &mut Loading,
        ask: impl Fn(&mut DeviceSpace) -> Result<T, Refusal>,
    ) -> FsResult<T> {
        loop {
            let outcome = self.try_to_ask_allocator(loading, &ask);
            if outcome.is_ok() || !loading.is_given_up() {
                return outcome;
            }
            self.load_missed(loading).await?;
        }
    }

    fn try_to_ask_allocator<T>(
        &self,
        loading: &Loading,
        ask: impl Fn(&mut DeviceSpace) -> Result<T, Refusal>,
    ) -> FsResult<T> {
        let mut volatile = self.volatile.lock();
        self.check_usable(&volatile)?;
        let device = volatile.device.as_mut().expect("only a store with a device allocates on it");
        loop {
            match ask(device) {
                Ok(answer) => return Ok(answer),
                Err(Refusal::NoSpace) => return Err(FsError::NoSpace),
                Err(Refusal::Inconsistent(wrong)) => return Err(self.inconsistent(&wrong)),
                Err(Refusal::Load(group)) => self.load_group(device, &self.records(Some(loading)), group)?,
            }
        }
    }

    /// Loads the groups of these blocks together, for what would load one after the other. They
    /// stay loaded until the next commit.
    pub(super) async fn load_groups(&self, addresses: impl Iterator<Item = u64>) -> FsResult<()> {
        let missing: Vec<u32> = {
            let mut volatile = self.volatile.lock();
            let Some(device) = &mut volatile.device else { return Ok(()) };
            let groups: BTreeSet<u32> = addresses.filter_map(|address| device.group_of(address)).collect();
            groups.into_iter().filter(|group| !device.is_loaded(*group)).collect()
        };
        for part in missing.chunks(GROUPS_AT_A_TIME) {
            let load = |records: &Records<'_>| {
                let mut volatile = self.volatile.lock();
                let Some(device) = &mut volatile.device else { return Ok(()) };
                let missing = part.iter().filter(|group| !device.is_loaded(**group)).copied().collect::<Vec<_>>();
                all(missing.into_iter().map(|group| self.load_group(device, records, group))).map(drop)
            };
            self.look(&mut Loading::default(), load).await?;
        }
        Ok(())
    }

    /// Writes the data of blocks that follow each other on the device.
    pub(super) async fn write_to_device(
        &self,
        in_progress: &mut InProgress,
        address: u64,
        pieces: Vec<Bytes>,
    ) -> FsResult<()> {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        let counter = if in_progress.taken.is_some() { &self.written.short } else { &self.written.direct };
        counter.fetch_add(bytes, Ordering::Relaxed);
        let written = in_progress.write(&*self.device, address, pieces).await;
        written.map_err(|error| self.device_error("writing an object", &error))
    }

    /// Bytes of blocks of the device that follow each other, unverified; after its end zeros.
    pub(super) async fn read_device(&self, address: u64, blocks: usize) -> FsResult<Bytes> {
        let bytes = blocks * BLOCK;
        let read = self.device.read_bytes(DEVICE_FILE, address.saturating_mul(BLOCK_BYTES), bytes).await;
        let data = read.map_err(|error| self.device_error("reading an object", &error))?;
        if data.len() >= bytes {
            return Ok(data.slice(..bytes));
        }
        let mut data = data.to_vec();
        data.resize(bytes, 0);
        Ok(data.into())
    }

    /// The batches up to this one are durable, and so is what they name: what they freed may be
    /// used again, or waits for its discard.
    pub(super) fn release_freed(&self, lsn: kv::Lsn) {
        let discards = self.discards();
        self.in_turns(|device| device.durable(lsn.0, discards).map(|is_done| !is_done));
    }

    /// Does something with the free space of the device, again as long as it says that there is
    /// more to do: others have the store's mutex between two turns.
    pub(super) fn in_turns(&self, turn: impl Fn(&mut DeviceSpace) -> Result<bool, Inconsistent>) {
        loop {
            let mut volatile = self.volatile.lock();
            let Some(device) = &mut volatile.device else { return };
            match turn(device) {
                Ok(false) => return,
                Ok(true) => MutexGuard::unlock_fair(volatile),
                Err(wrong) => {
                    volatile.failure.get_or_insert_with(|| format!("the free space of the device: {wrong}"));
                    return;
                }
            }
        }
    }

    /// Rebuilds the free space from the tables, without groups that are out of use.
    pub(super) fn open_device_space(&self, out_of_use: &BTreeSet<u32>) -> FsResult<Option<DeviceSpace>> {
        let Engine::Blocks { blocks, .. } = self.superblock.engine else { return Ok(None) };
        let damaged = |damage| Damage::new(format!("record of the device of {}", self.target), damage);
        let geometry =
            device_geometry(blocks).ok_or_else(|| damaged(RecordDamage::OutOfRange("blocks of the device")))?;
        let summaries = self.entries(GROUPS, |key, value| {
            let group = parse_group_key(key)?;
            let is_out = out_of_use.contains(&group);
            Some((group, if is_out { Summary::default() } else { decode_summary(value).ok()? }))
        })?;
        let reserved = match self.meta(RESERVED_KEY)? {
            None => 0,
            Some(bytes) => {
                let bytes = bytes[..].try_into().map_err(|_| damaged(RecordDamage::OutOfRange("reserved blocks")))?;
                u64::from_le_bytes(bytes)
            }
        };
        if reserved > blocks {
            return Err(damaged(RecordDamage::OutOfRange("reserved blocks")).into());
        }
        let space = DeviceSpace::open(geometry, &summaries.into_iter().collect(), reserved);
        let mut space = space.map_err(|wrong| self.inconsistent(&wrong))?;
        out_of_use.iter().for_each(|group| space.put_out_of_use(*group));
        Ok(Some(space))
    }

    /// Makes sure that the device is that of this target, whole, and used by nothing else; then
    /// writes a damaged copy of its label again.
    pub(super) async fn check_label(&self) -> FsResult<()> {
        let Engine::Blocks { blocks, .. } = self.superblock.engine else { return Ok(()) };
        let refused = |detail: String| {
            let detail = format!("the device in {DEVICE_FILE}{detail}");
            FsError::Device { target: self.target.clone(), detail }
        };
        let held = self.device.hold(DEVICE_FILE).await;
        held.map_err(|error| refused(format!(": it cannot be read and written by this process alone: {error}")))?;
        let takes_discards = self.device.takes_discards(DEVICE_FILE).await;
        self.takes_discards.store(takes_discards.unwrap_or(false), Ordering::Relaxed);
        let (mut intact, mut damaged) = (None, Vec::new());
        let places = DeviceLabel::places(blocks);
        for place in places {
            match self.read_label(place).await {
                LabelCopy::Intact(label) if label.is_of(&self.superblock, blocks) => intact = Some(label),
                LabelCopy::Intact(other) => {
                    let owner = crate::superblock::target_name(&other.fsname, other.index);
                    return Err(refused(format!(" belongs to {owner}, a target with {} blocks", other.blocks)));
                }
                LabelCopy::Damaged(error) => damaged.push((place, error)),
                LabelCopy::Missing => {
                    return Err(refused(format!(
                        " is smaller than it was formatted, or another one: it has no block {place}, where a label \
                         of a device was"
                    )));
                }
            }
        }
        let Some(label) = intact else {
            return Err(refused(damaged.into_iter().map(|(_, error)| format!(": {error}")).collect()));
        };
        for (place, error) in damaged {
            tracing::error!(target = %self.target, %error, place, "writing a copy of the device's label again");
            write_label(&*self.device, &label, place).await.map_err(|error| self.device_error("the label", &error))?;
        }
        Ok(())
    }

    async fn read_label(&self, place: u64) -> LabelCopy {
        match self.device.read(DEVICE_FILE, place * BLOCK_BYTES, vec![0; BLOCK]).await {
            Ok((_, filled)) if filled < BLOCK => LabelCopy::Missing,
            Ok((block, _)) => match DeviceLabel::decode(&block) {
                Ok(label) => LabelCopy::Intact(label),
                Err(error) => LabelCopy::Damaged(error.to_string()),
            },
            Err(error) => LabelCopy::Damaged(format!("label of a device: {error}")),
        }
    }
}

/// What is in a place for a copy of the label.
enum LabelCopy {
    Intact(DeviceLabel),
    /// It cannot be read, or something else is there.
    Damaged(String),
    /// The device ends before it.
    Missing,
}

async fn write_label(device: &dyn Device, label: &DeviceLabel, place: u64) -> io::Result<()> {
    device.write(DEVICE_FILE, place * BLOCK_BYTES, vec![label.encode().into()]).await?;
    device.flush(DEVICE_FILE).await
}

/// Labels the device of a new target, which has been made; returns the changes of the tables that
/// go with it.
pub async fn format_device(device: &dyn Device, superblock: &Superblock, blocks: u64) -> io::Result<kv::Batch> {
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
    let geometry =
        device_geometry(blocks).ok_or_else(|| wrong("a device has at least 16 MiB, and less than 512 PiB"))?;
    device.hold(DEVICE_FILE).await?;
    write_labels(device, &DeviceLabel::of(superblock, blocks)).await?;
    DeviceSpace::batch_of_new(geometry, &superblock.engine.own_blocks()).map_err(io::Error::other)
}

/// Writes both copies of a label, durably.
pub async fn write_labels(device: &dyn Device, label: &DeviceLabel) -> io::Result<()> {
    for place in DeviceLabel::places(label.blocks) {
        write_label(device, label, place).await?;
    }
    Ok(())
}
