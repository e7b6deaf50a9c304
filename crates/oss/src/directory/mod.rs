//! The store of a target's directory: objects as records in kv, and their data in host files on a
//! local file system, or on a device.
//!
//! The record is authoritative. For each block of 4096 bytes it says: absent (zeros), inline (the
//! bytes are in kv), in place (the bytes are in the host file at the same offset), or on the
//! device, and where; with the block's CRC-32C. A store has either host files or a device. One file
//! per concern:
//!
//! | file | concern |
//! |---|---|
//! | `records` | reading records: load first, then lock |
//! | `transaction` | one atomic change of an object's records |
//! | `audit`, `counts` | checking them after each change, in tests and simulations |
//! | `write`, `read`, `change`, `seek`, `extents` | the requests |
//! | `fence` | refusing requests under old layouts |
//! | `commit` | flushing, the mark, freeing space |
//! | `write_back` | inline blocks of large objects move to their files |
//! | `recovery` | opening, verifying the state after a crash |
//! | `host_files` | host files that are missing, too short, or unreferenced |
//! | `device`, `device_space` | places on the device: I/O, and the free space in the tables |
//! | `device_check` | comparing records of objects with the free space |
//! | `damaged_groups` | groups whose records are damaged |
//! | `defragment`, `defrag_state` | merging the pieces of objects that are read |
//! | `scrub`, `scrub_state` | comparing all data with their checksums |
//! | `discards`, `discard_queue` | telling the device which blocks became free |
//! | `device_policy` | tunables of the allocator, and windows that are idle |
//! | `device_statistics` | what administrators see of the free space |
//! | `host_file_state`, `space` | state in memory |
//!
//! # Rules
//!
//! 1. A block is written in place only while its state is absent and its range is not tainted. Then
//!    no record, present or durable, names the bytes that are overwritten. Everything else goes
//!    inline.
//! 2. The record of an in-place block is made after its bytes have been written to the kernel. It
//!    carries the present epoch.
//! 3. The mark of an epoch is made after every file with blocks of that epoch was flushed.
//! 4. Removing blocks of an object that has a host file taints the range until the removal is
//!    durable and the host file was punched.
//! 5. Write-back copies an inline block only after its record is durable, and only outside of
//!    tainted ranges; its record becomes in place, without an epoch, after the file was flushed.
//! 6. At open, before anything else, the recovered records are made durable.
//!
//! # States after a crash
//!
//! | moment | process killed | power lost |
//! |---|---|---|
//! | during an in-place write, before its record | block absent, bytes unused; not acknowledged | same |
//! | after its record, before the flush | record and bytes are with the kernel: kept | record may survive without bytes: epoch above the mark, so it is verified at open and becomes absent, which it was durably (rule 1) |
//! | after a flush by `sync`, before the mark | kept | kept: FLUSHED names the epoch, the block is not reset |
//! | after the mark | kept | kept; a mismatch is now damage, and reported |
//! | an in-place block is overwritten (inline) | old or new record, each with its own bytes | same: the file still has the old bytes |
//! | write-back is copying into the file | record still inline | same; the record is durable (rule 5) |
//! | after write-back changed the record | kept | old record (inline) or new one (file flushed before) |
//! | blocks removed, removal not durable | removed | may come back, with their bytes: the range was tainted, so nothing was written there |
//! | after the removal is durable, before the host file is punched | PENDING repeats the punch at the next open; the range is tainted until then | same |
//! | host file punched, not flushed | reads use the record: zeros | old bytes may come back under absent blocks; they are never read |
//! | a removal recovered by a restart was not durable, then power is lost | - | cannot happen: rule 6 |
//! | first write of an object, before its record | an empty or useless host file, removed by the sweep after the restart | same |
//! | a request too large for one batch | a part of its blocks, each whole; not acknowledged, the client repeats it | same |
//!
//! # On a device
//!
//! Rules 1 and 4 are needed because a block has one place in a host file. On a device, new data get
//! blocks that nothing refers to, so nothing is tainted. In their place:
//!
//! 1. A block of the device is given out only if no record, present or durable, names it, also not
//!    as a former place.
//! 2. The batch that begins or ceases to name a block changes the bitmaps.
//! 3. A record of a block that was overwritten, and is not known to be flushed, has its former
//!    place: that of the last flushed state. It is used at open if the bytes never arrived.
//! 4. What a batch freed is given out after the commit that ends its epoch.
//!
//! | moment | process killed | power lost |
//! |---|---|---|
//! | blocks are given out and written, before the record | free by the bitmaps; not acknowledged | same |
//! | after the record, before the flush | kept | the record may survive without bytes: verified at open; becomes what it was when it was flushed last |
//! | blocks were freed, before the commit | free | used again, with their bytes, as their object has them |
//! | after the commit | free, and perhaps used by others | same |
//!
//! Downside: overwritten data are written twice (on a device only small ones); a file that is
//! truncated and written again within a commit interval goes through the journal until the commit
//! that the first such write requests; bit rot in an unflushed block before a crash cannot be
//! distinguished from bytes that never arrived.

mod areas;
mod audit;
mod change;
mod chunk_cache;
pub mod commit;
mod counts;
mod damaged_groups;
mod defrag_state;
mod defragment;
pub mod device;
mod device_check;
mod device_policy;
mod device_space;
mod device_statistics;
mod discard_queue;
mod discards;
mod extents;
mod fence;
mod host_file_state;
pub mod host_files;
#[cfg(test)]
mod large_removal;
mod overlap;
mod overwrite;
mod read;
mod records;
pub mod recovery;
mod retired;
mod scrub;
mod scrub_state;
mod seek;
mod short_overwrites;
#[cfg(test)]
mod slow_device;
mod space;
#[cfg(test)]
pub(crate) mod test_store;
mod transaction;
mod write;
mod write_back;
mod written_statistics;

use std::{
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use kv::{Loading, Store};
use parking_lot::Mutex;
use rpc::message::ost::{Changed, ExtentsQuery, FoundExtents, ObjectAttributes, Read, ReadDone, SpaceChange, Write};
use rt::{BoxFuture, Cpu, Device, Seams};
use tokio::sync::{Notify, watch};
use types::{Damage, FsError, FsResult, ObjectId, RecordDamage, SpaceUsage, limits::BLOCK_BYTES};

use self::{
    areas::Areas,
    chunk_cache::ChunkCache,
    defrag_state::DefragState,
    host_file_state::HostFileState,
    records::Records,
    scrub_state::ScrubState,
    space::SpaceGuard,
    transaction::{Applied, Transaction},
    written_statistics::WrittenBytes,
};
use crate::{
    error::kv_error,
    object_record::{ObjectOrigin, ObjectRecord},
    options::OstOptions,
    range_lock::RangeLocks,
    read_buffers::ReadBuffers,
    replies::Origin,
    service_threads::ServiceThreads,
    store::ObjectStore,
    superblock::Superblock,
    tables::{OBJECTS, object_key, parse_object_key},
    throughput::Throughput,
    turn::Turn,
};

/// Directory of all host files.
pub const OBJECT_DIRECTORY: &str = "objects/";

/// Bytes of a block, for slices.
const BLOCK: usize = BLOCK_BYTES as usize;

/// The directory store of one target.
pub struct DirectoryStore {
    seams: Seams,
    device: Arc<dyn Device>,
    throughput: Arc<Throughput>,
    kv: Arc<Store>,
    superblock: Superblock,
    target: String,
    options: Arc<Mutex<OstOptions>>,
    /// [`OstOptions::audits`] as of the opening.
    audits: bool,
    locks: RangeLocks,
    service_threads: Arc<ServiceThreads>,
    volatile: Arc<Mutex<HostFileState>>,
    /// Held by a commit, by a round of write-back, and while blocks are moved on the device: all of
    /// them do what requests do not, and blocks that are freed meanwhile are not given out.
    committing: tokio::sync::Mutex<()>,
    /// Where short overwrites go.
    areas: Areas,
    written: WrittenBytes,
    chunk_cache: ChunkCache,
    /// Of writes that overwrite in the reserve, and while space is made for them.
    overwriting: Turn,
    /// Wakes the task before its interval ends.
    wanted: Arc<Notify>,
    space: SpaceGuard,
    buffers: ReadBuffers,
    /// What readers lose because objects are in pieces, and what is done about it.
    defrag: Mutex<DefragState>,
    scrub: Mutex<ScrubState>,
    /// Wakes the task of the scrub while it waits.
    scrub_wanted: Arc<Notify>,
    /// Most bytes of one batch, roughly.
    batch_bytes: usize,
    stopping: AtomicBool,
    /// Each task has a receiver, while it runs.
    tasks: watch::Sender<()>,
    /// Host files without a record from before the opening are gone.
    swept: AtomicBool,
    /// A host file may have been left without a record since, wherever the sweep is.
    has_unreferenced: AtomicBool,
    /// There is a device, and discards have an effect on it, as far as is known.
    takes_discards: AtomicBool,
}

/// Name of an object's host file. 256 directories keep each of them short.
pub fn host_file(object: ObjectId) -> String {
    let ObjectId { inode, slot, mirror } = object;
    format!("{OBJECT_DIRECTORY}{:02x}/{:016x}.{slot:08x}.{mirror:02x}", inode.0 & 0xff, inode.0)
}

/// The object of a host file's name, if it is one.
pub fn parse_host_file(name: &str) -> Option<ObjectId> {
    let (_, name) = name.strip_prefix(OBJECT_DIRECTORY)?.split_once('/')?;
    let (inode, name) = name.split_once('.')?;
    let (slot, mirror) = name.split_once('.')?;
    let inode = types::InodeNumber(u64::from_str_radix(inode, 16).ok()?);
    let slot = u32::from_str_radix(slot, 16).ok()?;
    Some(ObjectId { inode, slot, mirror: u8::from_str_radix(mirror, 16).ok()? })
}

/// The blocks that a byte range touches.
fn blocks_of(offset: u64, bytes: u64) -> Range<u64> {
    offset / BLOCK_BYTES..offset.saturating_add(bytes).div_ceil(BLOCK_BYTES)
}

impl DirectoryStore {
    /// Refuses changes after a failure.
    fn check_usable(&self, volatile: &HostFileState) -> FsResult<()> {
        match &volatile.failure {
            None => Ok(()),
            Some(first) => Err(FsError::Device {
                target: self.target.clone(),
                detail: format!("changes are refused since an earlier failure: {first}"),
            }),
        }
    }

    /// A failed flush: the state of the host files is unknown, so nothing is changed any more until
    /// the target is opened again, which verifies.
    fn poison(&self, what: &str, error: &io::Error) -> FsError {
        let detail = format!("{what}: {error}");
        tracing::error!(target = %self.target, %detail, "refusing changes from now on");
        self.volatile.lock().failure.get_or_insert_with(|| detail.clone());
        FsError::Device { target: self.target.clone(), detail }
    }

    /// Tables that take no changes are as bad as files that cannot be flushed.
    fn note_table_failure(&self) {
        let Some(failure) = self.kv.failure() else { return };
        let mut volatile = self.volatile.lock();
        if volatile.failure.is_none() {
            tracing::error!(target = %self.target, detail = %failure, "refusing changes from now on");
            volatile.failure = Some(failure.to_string());
        }
    }

    fn device_error(&self, what: &str, error: &io::Error) -> FsError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FsError::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => FsError::ReadOnly,
            io::ErrorKind::FileTooLarge => FsError::FileTooLarge,
            _ => FsError::Device { target: self.target.clone(), detail: format!("{what}: {error}") },
        }
    }

    fn kv_error(&self, error: kv::Error) -> FsError {
        kv_error(&self.target, error)
    }

    fn damaged(&self, object: ObjectId, damage: RecordDamage) -> FsError {
        Damage::new(format!("record of object {object} on {}", self.target), damage).into()
    }

    fn corrupt(&self, object: ObjectId, block: u64) -> FsError {
        tracing::error!(target = %self.target, %object, offset = block * BLOCK_BYTES, "checksum mismatch");
        FsError::Corrupt { object, ost: self.superblock.index, offset: block * BLOCK_BYTES }
    }

    /// Builds and applies one change: again if it missed what is to be loaded first, or if the
    /// journal was behind.
    async fn update(
        &self,
        loading: &mut Loading,
        object: ObjectId,
        mut build: impl FnMut(&mut Transaction<'_>) -> FsResult<()> + Send,
    ) -> FsResult<Applied> {
        loop {
            let outcome = {
                let mut transaction = Transaction::begin(self, object, loading);
                let built = transaction.as_mut().map_err(|error| error.clone()).and_then(&mut build);
                // Whatever it was built from.
                if loading.is_given_up() {
                    None
                } else {
                    Some(built.and(transaction).and_then(Transaction::prepared)?.commit())
                }
            };
            match outcome {
                None => self.load_missed(loading).await?,
                Some(Ok(applied)) => return Ok(applied),
                Some(Err(kv::Error::Overloaded)) => self.kv.ready().await.map_err(|error| self.kv_error(error))?,
                Some(Err(error)) => return Err(self.kv_error(error)),
            }
        }
    }

    /// Objects after this one, in order.
    async fn list_objects(
        &self,
        after: Option<ObjectId>,
        objects_max: usize,
    ) -> FsResult<Vec<(ObjectId, ObjectAttributes)>> {
        let mut from = after.map_or(Vec::new(), |after| object_key(after).to_vec());
        if after.is_some() {
            from.push(0);
        }
        if objects_max == 0 {
            return Ok(Vec::new());
        }
        let find = |records: &Records<'_>| {
            let mut found: Vec<(Vec<u8>, Bytes)> = Vec::new();
            records.scan(OBJECTS, &from, None, &mut |key, value| {
                found.push((key.to_vec(), value.clone()));
                found.len() < objects_max
            })?;
            Ok(found)
        };
        let found = self.look(&mut Loading::default(), find).await?;
        let parse = |(key, value): (Vec<u8>, Bytes)| {
            let malformed = || Damage::new(format!("object on {}", self.target), RecordDamage::Key(key.clone()));
            let object = parse_object_key(&key).ok_or_else(malformed)?;
            let record = ObjectRecord::decode(&value).map_err(|error| self.damaged(object, error.damage))?;
            Ok((object, record.attributes()))
        };
        found.into_iter().map(parse).collect()
    }

    /// Waits until a change survives the death of this process.
    async fn written(&self, applied: Applied) -> FsResult<()> {
        self.kv.written(applied.lsn).await.map_err(|error| self.kv_error(error))
    }

    /// The processors that its work takes time of.
    pub fn cpu(&self) -> &Cpu {
        &self.seams.cpu
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Inline bytes of large objects that wait for write-back.
    pub fn write_back_bytes(&self) -> u64 {
        self.volatile.lock().backlog_blocks.saturating_mul(BLOCK_BYTES)
    }

    /// Space as it was asked for last: by a request, or by the task.
    pub fn last_space(&self) -> SpaceUsage {
        self.volatile.lock().last_space
    }

    /// Age of the oldest change that a power loss could take; zero if there is none. (A change of a
    /// file that was synced by itself counts until the next commit.)
    pub fn undurable_age(&self) -> Duration {
        let files = {
            let volatile = self.volatile.lock();
            volatile.flushing_since.or(volatile.unmarked_since)
        };
        let oldest = [files, self.kv.oldest_unflushed()].into_iter().flatten().min();
        oldest.map_or(Duration::ZERO, |oldest| self.seams.clock.now().since(oldest))
    }

    /// Objects whose host files have unflushed blocks.
    pub fn dirty_files(&self) -> usize {
        let volatile = self.volatile.lock();
        volatile.dirty.len() + volatile.flushing.len()
    }
}

impl ObjectStore for DirectoryStore {
    fn write<'a>(&'a self, write: &'a Write, data: Bytes, origin: Option<Origin>) -> BoxFuture<'a, FsResult<Changed>> {
        Box::pin(self.write_object(write, data, origin))
    }

    fn read(&self, read: Read) -> BoxFuture<'_, FsResult<(ReadDone, Bytes)>> {
        Box::pin(self.read_object(read))
    }

    fn change_space(
        &self,
        object: ObjectId,
        change: SpaceChange,
        file: ObjectOrigin,
        origin: Option<Origin>,
    ) -> BoxFuture<'_, FsResult<Changed>> {
        Box::pin(self.change_object(object, change, file, origin))
    }

    fn fence<'a>(&'a self, objects: &'a [ObjectId], generation: u64) -> BoxFuture<'a, FsResult<()>> {
        Box::pin(self.fence_objects(objects, generation))
    }

    fn seek(&self, object: ObjectId, offset: u64, data: bool) -> BoxFuture<'_, FsResult<Option<u64>>> {
        Box::pin(self.seek_object(object, offset, data))
    }

    fn extents(&self, query: ExtentsQuery) -> BoxFuture<'_, FsResult<FoundExtents>> {
        Box::pin(self.object_extents(query))
    }

    fn attributes<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<Vec<ObjectAttributes>>> {
        Box::pin(async move {
            let records = self.look(&mut Loading::default(), |records| records.objects(objects)).await?;
            Ok(records.into_iter().map(|record| record.unwrap_or_default().attributes()).collect())
        })
    }

    fn sync<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<()>> {
        Box::pin(async move { if objects.is_empty() { self.commit().await } else { self.sync_objects(objects).await } })
    }

    fn retire(&self, objects: &[ObjectId]) {
        self.volatile.lock().retired.add(objects);
    }

    fn destroy<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<()>> {
        Box::pin(self.destroy_objects(objects))
    }

    fn list(
        &self,
        after: Option<ObjectId>,
        objects_max: usize,
    ) -> BoxFuture<'_, FsResult<Vec<(ObjectId, ObjectAttributes)>>> {
        Box::pin(self.list_objects(after, objects_max))
    }

    fn verify(&self, object: ObjectId) -> BoxFuture<'_, FsResult<()>> {
        Box::pin(self.verify_object(object))
    }

    fn check<'a>(&'a self, objects: &'a [ObjectId]) -> BoxFuture<'a, FsResult<Vec<(ObjectId, String)>>> {
        Box::pin(self.check_files(objects))
    }

    fn space(&self) -> BoxFuture<'_, FsResult<SpaceUsage>> {
        Box::pin(self.space_usage())
    }

    fn failure(&self) -> Option<String> {
        self.note_table_failure();
        self.volatile.lock().failure.clone()
    }

    fn stop(&self) -> BoxFuture<'_, FsResult<()>> {
        Box::pin(async move {
            self.stopping.store(true, Ordering::Release);
            self.wanted.notify_one();
            self.scrub_wanted.notify_one();
            // From here on only this commit touches host files: the next process may have its
            // own.
            self.tasks.closed().await;
            self.commit().await?;
            self.mark_clean().await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::{
        test_store::{TestStore, quiet},
        *,
    };

    /// A sweep that continues after it would remove a file that the target's next process has just
    /// made.
    #[tokio::test]
    async fn a_stop_waits_for_the_tasks() {
        let target = TestStore::new(quiet()).await;
        let store = &target.ost.directory;
        assert_eq!(store.tasks.receiver_count(), 1, "commits");
        DirectoryStore::start_sweep(store);
        assert_eq!(store.tasks.receiver_count(), 2);
        let busy = store.tasks.subscribe();
        {
            let mut stop = pin!(store.stop());
            for _ in 0..1000 {
                assert!(stop.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                tokio::task::yield_now().await;
            }
            drop(busy);
            stop.await.unwrap();
        }
        assert_eq!(store.tasks.receiver_count(), 0);
    }

    #[test]
    fn host_files_are_named_after_their_objects() {
        let object = ObjectId { mirror: 2, ..ObjectId::new(types::InodeNumber(0x1_0000_0000_01ab), 7) };
        assert_eq!(host_file(object), "objects/ab/00010000000001ab.00000007.02");
        assert_eq!(parse_host_file("objects/ab/00010000000001ab.00000007"), None, "a name of version 1");
        assert_eq!(parse_host_file(&host_file(object)), Some(object));
        assert_eq!(parse_host_file("journal.0"), None);
    }

    #[test]
    fn a_range_touches_the_blocks_of_its_first_and_last_byte() {
        assert_eq!(blocks_of(0, 1), 0..1);
        assert_eq!(blocks_of(4095, 2), 0..2);
        assert_eq!(blocks_of(4096, 4096), 1..2);
        assert_eq!(blocks_of(0, u64::MAX), 0..u64::MAX.div_ceil(BLOCK_BYTES));
    }
}
