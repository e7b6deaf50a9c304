//! Opening: the state after a crash is verified and completed before the first request.
//!
//! No request waits for a lock yet, so entries in the cold store are read at once.
//!
//! 0. A device is flushed, so that nothing of an earlier process is on its way there.
//! 1. The records of damaged groups of the device are made anew (`damaged_groups`). Volatile state
//!    is rebuilt from META, DIRTY, FLUSHED, PENDING and BACKLOG.
//! 2. In-place blocks with an epoch above the mark (and above their object's FLUSHED) are compared
//!    with their checksums. Those whose bytes arrived are written again, because an earlier failed
//!    flush may have left them in the kernel's cache as clean; those whose bytes never arrived
//!    become absent, their last durable state, and count as a loss. On a device they go back to
//!    where they were before, if that is known: nothing else has been written there since.
//! 3. The files of all dirty objects are flushed, the mark is made, and everything recovered
//!    becomes durable.
//! 4. The task starts; after an unclean shutdown another task removes host files without a record.
//!    Such files are left when a process dies between an object's first bytes and its record.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use kv::{Batch, Loading, PowerLossEra, Store, Table};
use parking_lot::Mutex;
use rpc::checksum::crc32c;
use rt::{Device, Seams};
use tokio::sync::{Notify, watch};
use types::{Damage, FsError, FsResult, ObjectId, RecordDamage, limits::BLOCK_BYTES, record::DecodeError};

use super::{
    BLOCK, DirectoryStore, OBJECT_DIRECTORY,
    commit::DELETES_PER_BATCH,
    device::DEVICE_FILE,
    host_file,
    host_file_state::{DirtyFile, HostFileState, HostWork, Taint},
    overlap::overlap,
    parse_host_file,
    records::Records,
};
use crate::{
    chunk_record::{BlockState, CHUNK_BLOCKS},
    options::OstOptions,
    pending_record::PendingRecord,
    replies,
    service_threads::ServiceThreads,
    superblock::{CLEAN_KEY, ERA_KEY, MARK_KEY, Mark, Superblock, TOTALS_KEY, Totals},
    tables::{BACKLOG, DIRTY, FLUSHED, META, PENDING, REPLIES, parse_object_key, parse_part_key},
    throughput::Throughput,
};

/// Chunks whose unflushed blocks are compared at a time: each by itself may be one request for each
/// block.
const CHUNKS_AT_A_TIME: usize = 16;
/// Chunks for which this is prepared at a time.
const CHUNKS_PER_LIST: usize = 1024;

/// More epochs than there ever are: about one per commit.
const EPOCH_MAX: u64 = 1 << 62;

/// A name that no host file has: a flush of it is one of removals alone.
const OBJECTS_UNUSED: &str = "objects/unused";
/// Host files looked at before the sweep lets others work.
const SWEEP_FILES_MAX: usize = 256;
/// Its pause then.
const SWEEP_PAUSE: Duration = Duration::from_millis(1);

/// What a store consists of.
pub struct Parts {
    /// Host files.
    pub device: Arc<dyn Device>,
    /// Tables.
    pub kv: Arc<Store>,
    /// The target that they belong to.
    pub superblock: Superblock,
    /// The target's power-loss era if blocks are found missing.
    pub if_missing: PowerLossEra,
    /// Of the device.
    pub throughput: Arc<Throughput>,
    /// Of the target's requests.
    pub service_threads: Arc<ServiceThreads>,
}

/// What opening found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The last user of the store did not close it, or did so before the sweep after such an end
    /// was through.
    pub unclean: bool,
    /// In-place blocks compared with their checksums.
    pub blocks_verified: u64,
    /// Blocks whose bytes never arrived: unsynced writes of the last moments before the crash.
    pub blocks_reset: u64,
    /// Ranges of host files still to be given back.
    pub removals_pending: u64,
}

impl DirectoryStore {
    /// Opens the store of `superblock` and starts its task.
    pub async fn open(
        seams: Seams,
        parts: Parts,
        options: Arc<Mutex<OstOptions>>,
        batch_bytes: usize,
    ) -> FsResult<(Arc<Self>, Recovery)> {
        let Parts { device, kv, superblock, if_missing, throughput, service_threads } = parts;
        let target = superblock.target();
        let audits = options.lock().audits;
        let store = Arc::new(Self {
            seams,
            device,
            throughput,
            kv,
            superblock,
            target,
            options,
            audits,
            locks: Default::default(),
            service_threads,
            volatile: Arc::default(),
            committing: Default::default(),
            areas: Default::default(),
            written: Default::default(),
            chunk_cache: Default::default(),
            overwriting: Default::default(),
            wanted: Arc::new(Notify::new()),
            space: Default::default(),
            buffers: Default::default(),
            defrag: Default::default(),
            scrub: Default::default(),
            scrub_wanted: Arc::new(Notify::new()),
            batch_bytes,
            stopping: false.into(),
            tasks: watch::Sender::new(()),
            swept: false.into(),
            has_unreferenced: false.into(),
            takes_discards: false.into(),
        });
        store.check_label().await?;
        if store.has_device() {
            // Short overwrites of a process that died may be with the kernel still, and it may
            // write their neighbours with them (`areas`): nothing is written before.
            let flushed = store.device.flush(DEVICE_FILE).await;
            flushed.map_err(|error| store.device_error("flushing what an earlier process wrote", &error))?;
        }
        let unclean = store.meta(CLEAN_KEY)?.is_none();
        // Without host files there is nothing to sweep.
        store.swept.store(!unclean || store.has_device(), Ordering::Release);
        let mut recovery = Recovery { unclean, ..Recovery::default() };
        let out_of_use = store.mend_groups(unclean).await?;
        let dirty = store.rebuild(&mut recovery, &out_of_use)?;
        let missing = store.find_missing(&dirty, &mut recovery).await?;
        store.reset_missing(missing, if_missing).await?;
        store.commit_recovered().await?;
        if unclean {
            tracing::info!(target = %store.target, ?recovery, "recovered after an unclean shutdown");
            if !store.has_device() {
                Self::start_sweep(&store);
            }
        }
        store.space_usage().await?;
        Self::start_task(&store);
        Self::resume_scrub(&store)?;
        Ok((store, recovery))
    }

    /// Writes down that the store ended well and has no unreferenced files. The last change before
    /// the journal is closed.
    pub(super) async fn mark_clean(&self) -> FsResult<()> {
        if !self.swept.load(Ordering::Acquire) || self.has_unreferenced.load(Ordering::Acquire) {
            return Ok(());
        }
        // The next start finds damaged groups by their notes, or because it looks at all of them.
        self.note_out_of_use().await;
        if self.volatile.lock().device.as_ref().is_some_and(|device| !device.unnoted(1).is_empty()) {
            return Ok(());
        }
        // Removals by the last commit are to stay: nobody looks for unreferenced files after a
        // clean end. Any name does.
        let flushed = self.device.flush(OBJECTS_UNUSED).await;
        flushed.map_err(|error| self.poison("flushing removals", &error))?;
        let lsn = self.apply_marked(|_| {
            let mut batch = Batch::default();
            batch.put(META, Bytes::from_static(CLEAN_KEY), Bytes::new());
            batch
        });
        self.durable(lsn.await?).await
    }

    pub(super) fn meta(&self, key: &'static [u8]) -> FsResult<Option<Bytes>> {
        self.kv.get(META, key).map_err(|error| self.kv_error(error))
    }

    fn meta_record<T>(
        &self,
        key: &'static [u8],
        decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> FsResult<Option<T>> {
        let damaged = |error: DecodeError| {
            let name = String::from_utf8_lossy(key);
            Damage::new(format!("record '{name}' of {}", self.target), error.damage).into()
        };
        self.meta(key)?.map(|bytes| decode(&bytes).map_err(damaged)).transpose()
    }

    /// All entries of a (small) table, decoded; one that does not decode is damage.
    pub(super) fn entries<T>(&self, table: Table, decode: impl Fn(&[u8], &[u8]) -> Option<T>) -> FsResult<Vec<T>> {
        let mut entries = Vec::new();
        let mut damaged = None;
        self.kv
            .scan(table, &[], None, &mut |key, value| {
                match decode(key, value) {
                    Some(entry) => entries.push(entry),
                    None => damaged = Some(key.to_vec()),
                }
                damaged.is_none()
            })
            .map_err(|error| self.kv_error(error))?;
        match damaged {
            None => Ok(entries),
            Some(key) => {
                let what = format!("table {} of {}", table.0, self.target);
                Err(Damage::new(what, format!("malformed entry {key:02x?}")).into())
            }
        }
    }

    /// Rebuilds the volatile state; returns the chunks to verify.
    fn rebuild(&self, recovery: &mut Recovery, out_of_use: &BTreeSet<u32>) -> FsResult<Vec<(ObjectId, u64)>> {
        let mark = self.meta_record(MARK_KEY, Mark::decode)?.unwrap_or_default();
        let totals = self.meta_record(TOTALS_KEY, Totals::decode)?.unwrap_or_default();
        let flushed = self.entries(FLUSHED, |key, value| {
            Some((parse_object_key(key)?, u64::from_be_bytes(value.try_into().ok()?)))
        })?;
        let dirty = self.entries(DIRTY, |key, _| parse_part_key(key))?;
        let number = |key: &[u8]| Some(u64::from_be_bytes(key.try_into().ok()?));
        let pending = self.entries(PENDING, |key, value| Some((number(key)?, PendingRecord::decode(value).ok()?)))?;
        let backlog = self.entries(BACKLOG, |key, _| parse_object_key(key))?;

        let space = self.open_device_space(out_of_use)?;

        let mut epoch = flushed.iter().map(|(_, epoch)| *epoch).fold(mark.epoch, u64::max);
        for (object, chunk) in &dirty {
            let record = self.records(None).chunk(*object, *chunk)?.unwrap_or_default();
            epoch = record.states().iter().map(BlockState::epoch).fold(epoch, u64::max);
        }
        if epoch > EPOCH_MAX {
            return Err(Damage::new(self.target.clone(), RecordDamage::OutOfRange("epoch")).into());
        }
        let mut volatile = self.volatile.lock();
        *volatile = HostFileState {
            epoch: epoch + 1,
            marked: mark.epoch,
            flushed: flushed.into_iter().collect(),
            totals,
            device: space,
            last_change: self.seams.clock.now(),
            ..HostFileState::default()
        };
        assert!(volatile.epoch > volatile.marked, "the present epoch is not flushed");
        for (object, chunk) in &dirty {
            let file: &mut DirtyFile = volatile.dirty.entry(*object).or_default();
            file.chunks.insert(*chunk);
            file.written = epoch;
        }
        if volatile.has_unmarked() {
            volatile.unmarked_since = Some(volatile.last_change);
        }
        recovery.removals_pending = pending.len() as u64;
        for (number, PendingRecord { object, blocks }) in pending {
            let taint = Taint { epoch: volatile.epoch, work: HostWork::GiveBack };
            volatile.taints.entry(object).or_default().insert(blocks, taint);
            let present = volatile.epoch;
            volatile.pending.insert(number, present);
            volatile.pending_next = volatile.pending_next.max(number.saturating_add(1));
        }
        for object in backlog {
            let blocks = self.records(None).object(object)?.map_or(0, |record| record.inline_blocks);
            volatile.set_backlog(object, Some(blocks));
        }
        Ok(dirty)
    }

    /// Compares the unflushed blocks of dirty chunks with their checksums; writes again what
    /// arrived, returns what did not.
    async fn find_missing(
        &self,
        dirty: &[(ObjectId, u64)],
        recovery: &mut Recovery,
    ) -> FsResult<Vec<(ObjectId, BTreeSet<u64>)>> {
        let found = Mutex::new((Vec::new(), recovery));
        let note = |object: ObjectId, verified: u64, missing: BTreeSet<u64>| {
            let (all, recovery) = &mut *found.lock();
            recovery.blocks_verified += verified;
            recovery.blocks_reset += missing.len() as u64;
            if !missing.is_empty() {
                all.push((object, missing));
            }
        };
        let note = &note;
        for part in dirty.chunks(CHUNKS_PER_LIST) {
            let mut chunks = Vec::with_capacity(part.len());
            for &(object, chunk) in part {
                chunks.push(async move {
                    let (verified, missing) = self.find_missing_of(object, chunk).await?;
                    note(object, verified, missing);
                    Ok::<(), FsError>(())
                });
            }
            overlap(chunks, CHUNKS_AT_A_TIME).await?;
        }
        let (mut missing, _) = found.into_inner();
        missing.sort();
        Ok(missing)
    }

    /// The same of one chunk: how many of its blocks were compared, and which of them are missing.
    async fn find_missing_of(&self, object: ObjectId, chunk: u64) -> FsResult<(u64, BTreeSet<u64>)> {
        let mut missing = BTreeSet::new();
        let Some(record) = self.records(None).chunk(object, chunk)? else { return Ok((0, missing)) };
        let flushed = self.volatile.lock().flushed_epoch(object);
        let doubtful: Vec<(u64, BlockState)> = (chunk * CHUNK_BLOCKS..)
            .zip(record.states().iter().copied())
            .filter(|(_, state)| state.epoch() > flushed)
            .collect();
        for run in doubtful.chunk_by(|a, b| a.0 + 1 == b.0 && a.1.is_followed_by(&b.1)) {
            missing.extend(self.write_again(object, run).await?);
        }
        Ok((doubtful.len() as u64, missing))
    }

    /// Writes those of adjacent blocks that have their checksums to where they are, so that the
    /// next flush covers them. Returns the others. What cannot be read keeps its record: reading it
    /// will say so.
    async fn write_again(&self, object: ObjectId, run: &[(u64, BlockState)]) -> FsResult<Vec<u64>> {
        let (first, state) = run[0];
        let read = match state.address() {
            Some(address) => self.read_device(address, run.len()).await,
            None => self.read_host_file(object, first..first + run.len() as u64).await,
        };
        let data = match read {
            Ok(data) => data,
            Err(error) if run.len() == 1 => {
                tracing::error!(target = %self.target, %object, block = run[0].0, %error, "an unflushed block cannot be read");
                return Ok(Vec::new());
            }
            Err(_) => {
                let mut missing = Vec::new();
                for block in run {
                    missing.extend(Box::pin(self.write_again(object, std::slice::from_ref(block))).await?);
                }
                return Ok(missing);
            }
        };
        let arrived: Vec<bool> =
            run.iter().zip(data.chunks_exact(BLOCK)).map(|(new, at)| Some(crc32c(at)) == new.1.checksum()).collect();
        assert_eq!(arrived.len(), run.len(), "each doubtful block is compared");
        let mut missing = Vec::new();
        let mut start = 0;
        for part in arrived.chunk_by(|a, b| a == b) {
            let (blocks, bytes) = (&run[start..start + part.len()], start * BLOCK..(start + part.len()) * BLOCK);
            start += part.len();
            if !part[0] {
                missing.extend(blocks.iter().map(|(block, _)| *block));
                continue;
            }
            let (file, block) = match blocks[0].1.address() {
                Some(address) => (DEVICE_FILE.to_owned(), address),
                None => (host_file(object), blocks[0].0),
            };
            let written = self.device.write(&file, block * BLOCK_BYTES, vec![data.slice(bytes)]).await;
            match written.map_err(|error| self.device_error("writing an object again", &error)) {
                Ok(()) => {}
                // The device has no room for what only seemed to have a place there.
                Err(FsError::NoSpace) => missing.extend(blocks.iter().map(|(block, _)| *block)),
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Makes blocks absent whose bytes never arrived, once the loss is durable: clients are to hear
    /// of it.
    async fn reset_missing(&self, missing: Vec<(ObjectId, BTreeSet<u64>)>, era: PowerLossEra) -> FsResult<()> {
        if missing.is_empty() {
            return Ok(());
        }
        era.save(&self.kv, META, ERA_KEY).await.map_err(|error| self.kv_error(error))?;
        // A repeated request for one of these changes executes it again.
        let answered = replies::whose_blocks(&self.kv, &missing).map_err(|error| self.kv_error(error))?;
        for part in answered.chunks(DELETES_PER_BATCH) {
            self.apply_marked(|_| {
                let mut batch = Batch::default();
                part.iter().for_each(|key| batch.delete(REPLIES, key.clone()));
                batch
            })
            .await?;
        }
        for (object, blocks) in missing {
            let reset = |transaction: &mut super::Transaction<'_>| {
                // On a full device the target must open as well.
                transaction.use_reserve();
                blocks.iter().try_for_each(|block| transaction.reset(*block))
            };
            self.update(&mut Loading::default(), object, reset).await?;
        }
        Ok(())
    }

    /// Makes everything recovered durable, and takes the note of a clean end away.
    async fn commit_recovered(&self) -> FsResult<()> {
        let lsn = self
            .apply_marked(|_| {
                let mut batch = Batch::default();
                batch.delete(META, Bytes::from_static(CLEAN_KEY));
                batch
            })
            .await?;
        self.durable(lsn).await?;
        // Also gives back what was pending.
        self.commit().await
    }

    /// Removes host files that belong to nothing, in the background.
    pub(super) fn start_sweep(store: &Arc<Self>) {
        let weak = Arc::downgrade(store);
        let clock = store.seams.clock.clone();
        let running = store.tasks.subscribe();
        let task = async move {
            let _running = running;
            for directory in 0..=0xffu8 {
                let Some(store) = weak.upgrade() else { return };
                let prefix = format!("{OBJECT_DIRECTORY}{directory:02x}/");
                let files = match store.device.list(&prefix).await {
                    Ok(files) => files,
                    Err(error) => {
                        return tracing::warn!(target = %store.target, %error, "the sweep of host files stopped early");
                    }
                };
                for (number, file) in files.iter().enumerate() {
                    if store.is_stopping() {
                        return;
                    }
                    if let Some(object) = parse_host_file(file)
                        && let Err(error) = store.sweep(object).await
                    {
                        store.has_unreferenced.store(true, Ordering::Release);
                        tracing::warn!(target = %store.target, %object, %error, "host file not swept");
                    }
                    if number % SWEEP_FILES_MAX == SWEEP_FILES_MAX - 1 {
                        rt::clock::sleep(&*clock, SWEEP_PAUSE).await;
                    }
                }
            }
            if let Some(store) = weak.upgrade() {
                store.swept.store(true, Ordering::Release);
            }
        };
        store.seams.spawn.spawn("ost-sweep", Box::pin(task));
    }

    /// Removes the host file of an object that has none by its record.
    pub(super) async fn sweep(&self, object: ObjectId) -> FsResult<()> {
        if !self.is_unreferenced(object).await? {
            return Ok(());
        }
        // Under the lock: a first write that is in progress has its bytes there before its record.
        let _guard = self.locks.exclusive(object, 0..u64::MAX).await;
        if !self.is_unreferenced(object).await? {
            return Ok(());
        }
        self.device.remove(&host_file(object)).await.map_err(|error| self.device_error("removing an object", &error))
    }

    /// Whether no record, present or durable, knows of the object's host file. (After a destroy the
    /// range is tainted until the commit that removes the file.)
    pub(super) async fn is_unreferenced(&self, object: ObjectId) -> FsResult<bool> {
        let look = |records: &Records<'_>| {
            let volatile = self.volatile.lock();
            let known = records.object(object)?.is_some_and(|record| record.host_file);
            Ok(!known && !volatile.taints.contains_key(&object))
        };
        self.look(&mut Loading::default(), look).await
    }
}
