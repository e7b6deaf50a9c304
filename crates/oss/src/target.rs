//! The target: a request handler over an object store.
//!
//! Checks the request itself (its sender, limits, checksums, conditions), lets the store do the
//! work, and counts. `Write`, `Read` and `Space` belong to service `ost_io`, whose number of
//! threads is that of the disk's I/O threads; all others to `ost`.
//!
//! A request that changes an object is executed once: its reply is stored with the change (module
//! `replies`). All other requests may be executed again.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use kv::{Batch, ColdStore, PowerLossEra, Store, Table};
use parking_lot::Mutex;
use rpc::{
    Answer, Call, Clients, Handler, SessionEvent,
    checksum::verify,
    message::{
        OstReply, OstRequest, Reply, Request,
        ost::{CHECK_OBJECTS_MAX, Changed, DeferredOrigin, TargetCondition, Write},
    },
};
use rt::{BoxFuture, Clock, Device, Seams};
use types::{
    ClientId, FsError, FsResult, ObjectId, OstIndex, ProtocolError, Slot, SpaceUsage, Xid, limits::BULK_BYTES_MAX,
    record::DecodeError,
};

use crate::{
    applied::Applied,
    directory::{
        DirectoryStore,
        host_files::UnreferencedFile,
        recovery::{Parts, Recovery},
    },
    error::kv_error,
    evictions::Evictions,
    object_record::ObjectOrigin,
    options::OstOptions,
    rate_limit::RateLimit,
    replies::{Origin, Replies},
    service_threads::{SERVICE, SERVICE_IO, ServiceThreads},
    statistics::Statistics,
    store::ObjectStore,
    superblock::{ERA_KEY, SUPERBLOCK_KEY, Superblock, target_name},
    tables::META,
    throughput::{Direction, Throughput},
    work::Work,
};

/// Most bytes of one batch; a quarter of a journal segment if that is less.
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// Most objects in one answer.
const LIST_OBJECTS_MAX: u32 = 8192;

/// Where a target keeps its data.
#[derive(Clone)]
pub struct OstDevices {
    /// Host files of objects; calls should run on I/O threads.
    pub objects: Arc<dyn Device>,
    /// The journal; calls should run at once.
    pub journal: Arc<dyn Device>,
    /// The tables' cold store.
    pub cold: Arc<dyn ColdStore>,
    /// How fast the device of `objects` is; the same one for all targets of the process on it.
    pub throughput: Arc<Throughput>,
}

/// Why a target cannot be formatted or opened.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no target.
    #[error("there is no object storage target here; format one first")]
    NotFormatted,
    /// There is a target already.
    #[error("target {0} already exists here")]
    AlreadyFormatted(String),
    /// Another target.
    #[error("target {found} is here, not {wanted}")]
    OtherTarget {
        /// Found.
        found: String,
        /// Wanted.
        wanted: String,
    },
    /// Not a name for a file system.
    #[error("'{0}' is not a file system name: 1 to 8 letters, digits, '-' or '_'")]
    FsName(String),
    /// The superblock does not decode.
    #[error("the superblock is damaged: {}", .0.damage)]
    Superblock(DecodeError),
    /// The device cannot be labelled.
    #[error("cannot use the device: {0}")]
    Device(String),
    /// The tables.
    #[error(transparent)]
    Tables(#[from] kv::Error),
    /// Recovery of the objects.
    #[error(transparent)]
    Objects(#[from] FsError),
}

/// Not its source: its text has the cause, which would be told twice.
impl From<DecodeError> for OpenError {
    fn from(cause: DecodeError) -> Self {
        OpenError::Superblock(cause)
    }
}

/// An object storage target.
pub struct Ost {
    pub(crate) superblock: Superblock,
    pub(crate) name: String,
    kv: Arc<Store>,
    store: Arc<dyn ObjectStore>,
    pub(crate) directory: Arc<DirectoryStore>,
    pub(crate) options: Arc<Mutex<OstOptions>>,
    /// As of this start.
    era: PowerLossEra,
    pub(crate) evictions: Evictions,
    applied: Applied,
    replies: Replies,
    service_threads: Arc<ServiceThreads>,
    pub(crate) statistics: Statistics,
    work: Work,
    throughput: Arc<Throughput>,
    recovery: Recovery,
    pub(crate) degraded: AtomicBool,
    pub(crate) no_create: AtomicBool,
    pub(crate) read_only: AtomicBool,
    clock: Arc<dyn Clock>,
    limit: Arc<RateLimit>,
    /// Shared by all targets of a server.
    server_limit: OnceLock<Arc<RateLimit>>,
}

impl Ost {
    /// Opens a target, which must be the one wanted.
    pub fn open<'a>(
        seams: Seams,
        devices: OstDevices,
        fsname: &'a str,
        index: OstIndex,
        options: OstOptions,
        config: kv::Config,
    ) -> BoxFuture<'a, Result<Arc<Self>, OpenError>> {
        Box::pin(Self::open_inner(seams, devices, fsname, index, options, config))
    }

    async fn open_inner(
        seams: Seams,
        devices: OstDevices,
        fsname: &str,
        index: OstIndex,
        options: OstOptions,
        config: kv::Config,
    ) -> Result<Arc<Self>, OpenError> {
        let batch_bytes = BATCH_BYTES_MAX.min(config.segment_bytes / 4) as usize;
        let kv = Arc::new(open_tables(&seams, &devices, config).await?);
        let wanted = target_name(fsname, index);
        let superblock = match identify(&kv, &wanted) {
            Ok(superblock) => superblock,
            Err(error) => {
                kv.close().await?;
                return Err(error);
            }
        };
        let found = PowerLossEra::load(&kv, META, ERA_KEY)?;
        let era = found.at_start(seams.clock.boot());
        assert!(era.count() >= found.count(), "eras only grow");
        if era != found {
            era.save(&kv, META, ERA_KEY).await?;
        }
        let (evictions, applied) = (Evictions::load(&kv)?, Applied::load(&kv)?);
        let options = Arc::new(Mutex::new(options));
        let clock = seams.clock.clone();
        // A start counts once.
        let if_missing = if era.count() == found.count() { era.with_missing() } else { era };
        let throughput = devices.throughput;
        let service_threads = Arc::<ServiceThreads>::default();
        let parts = Parts {
            device: devices.objects,
            kv: kv.clone(),
            superblock: superblock.clone(),
            if_missing,
            throughput: throughput.clone(),
            service_threads: service_threads.clone(),
        };
        let replies = Replies::load(kv.clone(), clock.clone())?;
        let (directory, recovery) = DirectoryStore::open(seams, parts, options.clone(), batch_bytes).await?;
        let era = if recovery.blocks_reset > 0 { if_missing } else { era };
        Ok(Arc::new(Self {
            superblock,
            name: wanted,
            kv,
            store: directory.clone(),
            directory,
            options,
            era,
            evictions,
            applied,
            replies,
            service_threads,
            statistics: Statistics::default(),
            work: Work::new(clock.now()),
            throughput,
            recovery,
            degraded: false.into(),
            no_create: false.into(),
            read_only: false.into(),
            clock,
            limit: Arc::default(),
            server_limit: OnceLock::new(),
        }))
    }

    /// Makes everything durable and closes the tables. Requests afterwards fail.
    pub async fn stop(&self) -> FsResult<()> {
        let mut stopped = self.store.stop().await;
        if stopped.is_ok() {
            let rested = self.era.at_rest().save(&self.kv, META, ERA_KEY).await;
            stopped = rested.map_err(|error| kv_error(&self.name, error));
        }
        self.kv.close().await.map_err(|error| kv_error(&self.name, error))?;
        stopped
    }

    /// Name, as `stria-OST0003`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index in the cluster map.
    pub fn index(&self) -> OstIndex {
        self.superblock.index
    }

    /// Identity, for registration at the MGS.
    pub fn uuid(&self) -> String {
        self.superblock.uuid()
    }

    /// What opening found.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Commits and writes back now, as the target's task does at every interval. For simulations
    /// and tests.
    pub async fn work(&self) {
        self.directory.work().await;
    }

    /// The device's limit: the imitated speed.
    pub fn limit(&self) -> &Arc<RateLimit> {
        &self.limit
    }

    /// Puts the target behind a limit that the server shares among its targets. The first one
    /// stays.
    pub fn share_limit(&self, limit: Arc<RateLimit>) {
        self.server_limit.get_or_init(|| limit);
    }

    /// Waits for the time that processors, and an imitated device and server at once, need for
    /// data.
    async fn pass_limits(&self, bytes: u64) {
        crate::cost::spend_on_data(self.directory.cpu(), bytes).await;
        let device = self.limit.pass(&*self.clock, bytes);
        match self.server_limit.get() {
            Some(server) => {
                tokio::join!(device, server.pass(&*self.clock, bytes));
            }
            None => device.await,
        }
    }

    /// Statistics of the target.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Everything stored about one object, a line each.
    pub fn inspect_object(&self, object: ObjectId) -> FsResult<Vec<String>> {
        let lines = crate::inspect::describe_object_entries(&self.kv, object);
        lines.map_err(|error| kv_error(&self.name, error))
    }

    /// Calls `visit` with the key and value of every record of a table, in order, until it returns
    /// an error. What is applied counts, whether or not a crash would take it. For simulations.
    pub fn scan_table(&self, table: Table, mut visit: impl FnMut(&[u8], &[u8]) -> FsResult<()>) -> FsResult<()> {
        let mut outcome = Ok(());
        let scanned = self.kv.scan(table, &[], None, &mut |key, value| {
            outcome = visit(key, value);
            outcome.is_ok()
        });
        scanned.map_err(|error| kv_error(&self.name, error))?;
        outcome
    }

    /// Unreferenced files among its host files.
    pub async fn unreferenced_files(&self) -> FsResult<Vec<UnreferencedFile>> {
        self.directory.unreferenced_files().await
    }

    /// What is wrong with the records of the device, if there is one: compares those of all objects
    /// with the bitmaps. For a target that serves nobody.
    pub fn check_device(&self) -> FsResult<Vec<String>> {
        self.directory.check_device()
    }

    /// Removes the host file of an unknown object, durably; one that has become known is kept.
    pub async fn remove_unreferenced(&self, object: ObjectId) -> FsResult<()> {
        self.check_writable()?;
        self.directory.remove_unreferenced(object).await
    }

    /// Age of the oldest change that a power loss could take; zero if there is none.
    pub fn undurable_age(&self) -> Duration {
        self.directory.undurable_age()
    }

    /// Statistics of the tables.
    pub fn table_statistics(&self) -> kv::Statistics {
        self.kv.statistics()
    }

    /// Space, for registration and parameters.
    pub async fn space(&self) -> FsResult<SpaceUsage> {
        self.store.space().await
    }

    /// Why changes are refused since a device failed; empty if they are not.
    pub fn failure(&self) -> String {
        self.store.failure().unwrap_or_default()
    }

    /// Condition: as set, or forced by a failure.
    pub fn condition(&self) -> TargetCondition {
        TargetCondition {
            degraded: self.degraded.load(Ordering::Relaxed),
            no_create: self.no_create.load(Ordering::Relaxed),
            read_only: self.read_only.load(Ordering::Relaxed) || self.store.failure().is_some(),
            ..TargetCondition::default()
        }
    }

    async fn execute(&self, call: Call) -> FsResult<(OstReply, Bytes)> {
        let origin = self.replies.origin(&call);
        let Request::Ost(request) = call.request else {
            return Err(ProtocolError::misdirected(&self.name, "requests to object storage targets").into());
        };
        // These concern no data, and an eviction waits for all others of its client.
        match request {
            OstRequest::Evict(client, origin) => {
                self.evictions.check(call.client)?;
                let mut batch = Batch::default();
                self.applied.note(origin.as_ref(), 1, &mut batch);
                // Also if it was executed before: the answer waits for what runs of the client.
                let evicted = self.evictions.evict(&self.kv, &self.service_threads, client, batch).await;
                evicted.map_err(|error| kv_error(&self.name, error))?;
                // What it asks again is refused, too.
                self.replies.forget(client).await.map_err(|error| kv_error(&self.name, error))?;
                return Ok((OstReply::Done, Bytes::new()));
            }
            OstRequest::Ping => return self.evictions.check(call.client).map(|()| (OstReply::Done, Bytes::new())),
            OstRequest::Disconnect => return Ok((OstReply::Done, Bytes::new())),
            _ => {}
        }
        let _running = self.evictions.enter(call.client)?;
        match request {
            OstRequest::Write(write) => {
                let _transfer = self.work.begin(&*self.clock);
                self.write(write, call.bulk, origin).await.map(without_bulk(OstReply::Changed))
            }
            OstRequest::Read(read) => {
                let _transfer = self.work.begin(&*self.clock);
                let moving = self.throughput.begin(Direction::Read, &*self.clock);
                let (done, data) = self.store.read(read).await?;
                self.pass_limits(data.len() as u64).await;
                moving.moved(data.len() as u64);
                self.statistics.record_read(data.len() as u64);
                Ok((OstReply::Read(done), data))
            }
            request => Ok((self.execute_small(request, origin).await?, Bytes::new())),
        }
    }

    /// Requests without bulk data.
    async fn execute_small(&self, request: OstRequest, origin: Option<Origin>) -> FsResult<OstReply> {
        match request {
            OstRequest::Space(object, change, layout_generation, owner) => {
                self.check_writable()?;
                self.statistics.record(|counters| counters.space += 1);
                let file = ObjectOrigin { layout_generation, owner };
                self.store.change_space(object, change, file, origin).await.map(OstReply::Changed)
            }
            OstRequest::Fence(objects, generation) => {
                self.check_writable()?;
                self.store.fence(&objects, generation).await.map(|()| OstReply::Done)
            }
            OstRequest::Seek(object, offset, data) => {
                self.statistics.record(|counters| counters.seek += 1);
                self.store.seek(object, offset, data).await.map(OstReply::Found)
            }
            OstRequest::Extents(query) => self.store.extents(query).await.map(OstReply::Extents),
            OstRequest::Glimpse(objects) => {
                self.statistics.record(|counters| counters.glimpse += objects.len() as u64);
                self.store.attributes(&objects).await.map(OstReply::Attributes)
            }
            OstRequest::Sync(objects) => {
                self.statistics.record(|counters| counters.sync += 1);
                self.store.sync(&objects).await.map(|()| OstReply::Done)
            }
            OstRequest::Destroy(objects, origin) => {
                self.check_writable()?;
                let objects_left = &objects[self.applied.covered(origin.as_ref(), objects.len())..];
                self.statistics.record(|counters| counters.destroy += objects_left.len() as u64);
                if origin.is_some() {
                    // An MDT has no layout with them any more.
                    self.store.retire(objects_left);
                }
                self.store.destroy(objects_left).await?;
                self.note_applied(origin.as_ref(), objects.len())?;
                Ok(OstReply::Done)
            }
            OstRequest::StatFs => {
                self.statistics.record(|counters| counters.statfs += 1);
                let work_us = self.work.total_us(self.clock.now());
                let moved = |direction| self.throughput.moved(direction, self.clock.now());
                let (read, written) = (moved(Direction::Read), moved(Direction::Write));
                let condition = TargetCondition { work_us, read, written, ..self.condition() };
                Ok(OstReply::Space(self.store.space().await?, condition))
            }
            OstRequest::ListObjects(after, objects_max) => {
                self.store.list(after, objects_max.min(LIST_OBJECTS_MAX) as usize).await.map(OstReply::Objects)
            }
            OstRequest::Verify(object) => self.store.verify(object).await.map(|()| OstReply::Done),
            OstRequest::Check(objects) if objects.len() > CHECK_OBJECTS_MAX as usize => Err(FsError::Invalid),
            OstRequest::Check(objects) => self.store.check(&objects).await.map(OstReply::Damage),
            OstRequest::Write(_)
            | OstRequest::Read(_)
            | OstRequest::Evict(..)
            | OstRequest::Ping
            | OstRequest::Disconnect => unreachable!("answered by `execute`"),
        }
    }

    async fn write(&self, write: Write, data: Bytes, origin: Option<Origin>) -> FsResult<Changed> {
        self.check_writable()?;
        if data.len() > BULK_BYTES_MAX {
            return Err(FsError::Invalid);
        }
        verify(write.offset, &data, &write.checksums)?;
        if data.is_empty() {
            let attributes = self.store.attributes(&[write.object]).await?[0];
            return Ok(Changed { before: attributes, after: attributes });
        }
        let bytes = data.len() as u64;
        let moving = self.throughput.begin(Direction::Write, &*self.clock);
        self.pass_limits(bytes).await;
        let changed = self.store.write(&write, data, origin).await?;
        moving.moved(bytes);
        self.statistics.record_write(bytes);
        Ok(changed)
    }

    fn note_applied(&self, origin: Option<&DeferredOrigin>, count: usize) -> FsResult<()> {
        let mut batch = Batch::default();
        self.applied.note(origin, count, &mut batch);
        if batch.operations.is_empty() {
            return Ok(());
        }
        match self.kv.apply_reserved(batch) {
            // Without the record a repetition is executed once more, and finds nothing.
            Ok(_) | Err(kv::Error::Overloaded) => Ok(()),
            Err(error) => Err(kv_error(&self.name, error)),
        }
    }

    fn check_writable(&self) -> FsResult<()> {
        if self.read_only.load(Ordering::Relaxed) { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    fn count_failure(&self, error: &FsError) {
        self.statistics.record(|counters| match error {
            FsError::Transfer => counters.damaged_transfers += 1,
            FsError::Corrupt { .. } => counters.corrupt += 1,
            FsError::NoSpace => counters.no_space += 1,
            _ => counters.failed += 1,
        });
    }
}

fn without_bulk<T>(reply: impl FnOnce(T) -> OstReply) -> impl FnOnce(T) -> (OstReply, Bytes) {
    |value| (reply(value), Bytes::new())
}

/// The superblock, if it is that of the target wanted.
fn identify(kv: &Store, wanted: &str) -> Result<Superblock, OpenError> {
    let bytes = kv.get(META, SUPERBLOCK_KEY)?.ok_or(OpenError::NotFormatted)?;
    let superblock = Superblock::decode(&bytes)?;
    if superblock.target() != wanted {
        return Err(OpenError::OtherTarget { found: superblock.target(), wanted: wanted.to_owned() });
    }
    Ok(superblock)
}

pub(crate) async fn open_tables(seams: &Seams, devices: &OstDevices, config: kv::Config) -> Result<Store, kv::Error> {
    // What recovery needs is in the tables themselves (DIRTY, FLUSHED), whatever part of the
    // journal is left.
    let mut replay = |_, _: &Batch| {};
    Store::open(seams.clone(), devices.journal.clone(), devices.cold.clone(), config, &mut replay).await
}

impl Handler for Ost {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            crate::cost::spend_on_request(self.directory.cpu(), &call).await;
            match self.execute(call).await {
                Ok((reply, bulk)) => Answer::with_bulk(Ok(Reply::Ost(reply)), bulk),
                Err(error) => {
                    self.count_failure(&error);
                    Answer::new(Err(error))
                }
            }
        })
    }

    fn service(&self, request: &Request) -> &'static str {
        match request {
            Request::Ost(OstRequest::Write(_) | OstRequest::Read(_) | OstRequest::Space(..)) => SERVICE_IO,
            Request::Ost(
                OstRequest::Seek(..)
                | OstRequest::Glimpse(_)
                | OstRequest::Sync(_)
                | OstRequest::Destroy(..)
                | OstRequest::StatFs
                | OstRequest::ListObjects(..)
                | OstRequest::Verify(_)
                | OstRequest::Evict(..)
                | OstRequest::Ping
                | OstRequest::Disconnect
                | OstRequest::Fence(..)
                | OstRequest::Check(_)
                | OstRequest::Extents(_),
            ) => SERVICE,
            // Refused at once.
            Request::Mdt(_) | Request::Mgs(_) => SERVICE,
        }
    }

    fn persistent_reply(&self, client: ClientId, slot: Slot) -> Option<(Xid, Reply)> {
        self.replies.find(client, slot).map(|(xid, reply)| (xid, Reply::Ost(reply)))
    }

    fn stores_replies_of_sessions_that_ended(&self) -> bool {
        true
    }

    fn era(&self) -> u64 {
        self.era.count()
    }

    fn halt(&self) {
        self.kv.halt();
    }

    fn served(&self, server: Arc<dyn Clients>) {
        self.service_threads.set_server(server);
    }

    fn session_event(self: Arc<Self>, event: SessionEvent) -> BoxFuture<'static, ()> {
        // What must be refused, MDTs say with `Evict`.
        tracing::debug!(target = %self.name, ?event, "session");
        Box::pin(async move {
            if let Err(error) = self.replies.session_event(event).await {
                // They take space, and the session works: its requests have larger numbers.
                tracing::error!(target = %self.name, ?event, %error, "cannot remove the replies of a session");
            }
        })
    }
}
