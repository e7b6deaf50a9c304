//! The metadata target: a request handler around a [`Namespace`], and the tasks behind it.
//!
//! Life cycle: [`Mdt::format`] once per store; [`Mdt::open`]; [`Mdt::update_map`] with the OSTs, again whenever the map
//! changes; served by an [`rpc::Server`]; [`Mdt::stop`]. Dropping it instead is what a crash is.
//!
//! Invariants: the namespace's mutex is never held across an await; an answer leaves only when everything it shows is with
//! the kernel.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use kv::{Batch, ColdStore, Losses, Lsn, Store};
use parking_lot::{Mutex, MutexGuard};
use rpc::{
    Answer, Call, Endpoint, Handler, SessionEvent,
    message::{MdtReply, MdtRequest, Reply, Request, mgs::Pool},
    stored_reply,
};
use rt::{BoxFuture, Device, Seams, clock};
use tokio::sync::{Notify, watch};
use types::{
    Attributes, ClientId, Credentials, FileKind, FsError, FsResult, InodeNumber, MdtIndex, OstIndex, Slot, SpaceUsage,
    Timestamp, Xid,
};

use crate::{
    agent::Agent,
    data::NewData,
    error::{OpenError, store_error},
    namespace::Namespace,
    ops,
    options::{MdtOptions, Parameters},
    placement::OstView,
    pools::{Spill, SpillError},
    recovery,
    statistics::Statistics,
    tables::{
        COUNTERS, INODES, REPLIES,
        counter::{self, Counters, Identity},
        inode::{Inode, InodeData},
    },
    transaction::{Context, DIRECTORY_BYTES},
    volatile::Volatile,
};

/// Longest time a request waits for a lock within its handler, before it is answered `Waiting`.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1);
/// Space one inode takes in the store, by rule of thumb: record, entry, journal.
const INODE_BYTES: u64 = 1024;
/// Bytes of a batch, without data: the largest are layouts and long extended attributes.
const BATCH_BYTES: u64 = 128 << 10;
/// For so many bytes of data a batch is one byte larger than they: a block of 4096 has a key and a head below 64 bytes.
const DATA_OVERHEAD: u64 = 64;
/// The service of requests for advisory locks that wait for others, as long as these like.
const LOCK_SERVICE: &str = "ldlm";
/// The service of other requests that may wait (see [`ops::may_wait`]).
const WAIT_SERVICE: &str = "mdt_wait";
/// The service of clients that come back: others wait for them.
const RECOVERY_SERVICE: &str = "mdt_recovery";
/// Service threads for requests that wait: there they take memory, as in a queue, and little else. Who waits in the queue
/// instead is not asking when it is his turn.
const WAITING_THREADS: usize = 4096;

/// See the module documentation.
pub struct Mdt {
    pub(crate) seams: Seams,
    pub(crate) options: MdtOptions,
    pub(crate) target: String,
    pub(crate) store: Arc<Store>,
    device: Arc<dyn Device>,
    /// As of this start.
    losses: Losses,
    namespace: Mutex<Namespace>,
    parameters: Mutex<Parameters>,
    statistics: Statistics,
    agents: Mutex<BTreeMap<OstIndex, Arc<Agent>>>,
    /// This MDT as a client of OSTs.
    pub(crate) client: ClientId,
    /// Rung when a client finished its recovery, or the map is known.
    pub(crate) recovery_bell: Notify,
    pub(crate) map_known: watch::Sender<bool>,
    pub(crate) stopping: watch::Sender<bool>,
    /// Background tasks that still run.
    pub(crate) tasks: watch::Sender<usize>,
}

impl Mdt {
    /// Makes an empty store the MDT `index` of `fsname`: MDT 0 gets the root directory, mode 0755, of `owner`.
    pub async fn format(
        seams: &Seams,
        device: Arc<dyn Device>,
        cold: Arc<dyn ColdStore>,
        config: kv::Config,
        fsname: &str,
        index: MdtIndex,
        owner: &Credentials,
    ) -> Result<(), OpenError> {
        let store = Store::open(seams.clone(), device, cold, config, &mut |_, _| {}).await?;
        let formatted = Self::format_store(&store, seams.clock.wall(), fsname, index, owner).await;
        let closed = store.close().await;
        formatted?;
        Ok(closed?)
    }

    async fn format_store(
        store: &Store,
        now: Timestamp,
        fsname: &str,
        index: MdtIndex,
        owner: &Credentials,
    ) -> Result<(), OpenError> {
        if let Some(value) = store.get(COUNTERS, counter::IDENTITY)? {
            let found = Identity::decode(&value)?;
            return Err(OpenError::AlreadyFormatted { fsname: found.fsname, index: found.mdt });
        }
        let mut batch = Batch::default();
        let identity = Identity { mdt: index, fsname: fsname.to_owned() };
        batch.put(COUNTERS, counter::IDENTITY.to_vec(), identity.encode());
        let inodes = u64::from(index == MdtIndex(0));
        let counters = Counters { next_inode: InodeNumber::FIRST_FREE_COUNTER, inodes };
        batch.put(COUNTERS, counter::COUNTERS.to_vec(), counters.encode());
        if index == MdtIndex(0) {
            batch.put(INODES, Inode::key(InodeNumber::ROOT), root_directory(now, owner).encode());
        }
        let lsn = store.apply(batch)?;
        Ok(store.durable(lsn).await?)
    }

    /// Opens a formatted store. Clients of a former start have the recovery window to come back.
    pub async fn open(
        seams: Seams,
        device: Arc<dyn Device>,
        cold: Arc<dyn ColdStore>,
        options: MdtOptions,
    ) -> Result<Arc<Mdt>, OpenError> {
        let store = Store::open(seams.clone(), device.clone(), cold, options.store.clone(), &mut |_, _| {}).await?;
        check_identity(&store, &options)?;
        let target = format!("{}-{}", options.fsname, options.index);
        let store = Arc::new(store);
        let losses = begin(&store, seams.clock.boot()).await?;
        let mut volatile = Volatile::new(seams.entropy.next_u64());
        volatile.recovery.losses = losses.count();
        let namespace = Namespace::load(store.clone(), options.index, options.process, target.clone(), volatile)?;
        let recovering = namespace.volatile.recovery.running();
        let mdt = Arc::new(Mdt {
            client: ClientId(seams.entropy.next_u64()),
            parameters: Mutex::new(options.parameters),
            seams,
            options,
            target,
            store,
            device,
            losses,
            namespace: Mutex::new(namespace),
            statistics: Statistics::default(),
            agents: Mutex::default(),
            recovery_bell: Notify::new(),
            map_known: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
            tasks: watch::Sender::new(0),
        });
        tracing::info!(target = %mdt.target, recovering, "metadata target opened");
        mdt.spawn("mdt_recovery", recovery::run(mdt.clone()));
        mdt.spawn("mdt_locks", recovery::expire_locks(mdt.clone()));
        mdt.spawn("mdt_removed", crate::removed::run(mdt.clone()));
        Ok(mdt)
    }

    /// Name of this target, as `stria-MDT0000`.
    pub fn name(&self) -> &str {
        &self.target
    }

    /// Tells which OSTs there are, where, and whether they are in use. New ones get files from now on; those no longer in
    /// the list keep what they have and what waits to be told to them.
    pub fn update_map(self: &Arc<Self>, osts: &[(OstIndex, Endpoint, bool)]) {
        let states: Vec<(OstIndex, bool)> = osts.iter().map(|(ost, _, active)| (*ost, *active)).collect();
        {
            let mut namespace = self.namespace();
            namespace.volatile.targets.set_map(&states);
            let active: Vec<OstIndex> = namespace.volatile.targets.active().collect();
            let idle = namespace.volatile.fences.pending_osts().into_iter().filter(|ost| !active.contains(ost));
            idle.for_each(|ost| recovery::release_fences(&mut namespace, ost));
        }
        let mut agents = self.agents.lock();
        agents.retain(|ost, agent| {
            let kept = osts.iter().any(|(known, ..)| known == ost);
            if !kept {
                agent.retire();
            }
            kept
        });
        for (ost, endpoint, active) in osts {
            match agents.get(ost) {
                Some(agent) => agent.update(endpoint.clone(), *active),
                None => {
                    agents.insert(*ost, Agent::start(self, *ost, endpoint.clone(), *active));
                }
            }
        }
        drop(agents);
        // A map without OSTs is that of a cluster whose OSTs have not registered yet.
        if !osts.is_empty() {
            self.map_known.send_replace(true);
        }
    }

    /// Tells which pools there are.
    pub fn update_pools(&self, pools: &[Pool]) {
        self.namespace().volatile.targets.pools.set(pools);
    }

    /// Where a pool spills to.
    pub fn spill(&self, pool: &str) -> Option<Spill> {
        self.namespace().volatile.targets.pools.spill(pool)
    }

    /// Sets the pool that another spills to; `None`: none.
    pub fn set_spill_target(&self, pool: &str, target: Option<&str>) -> Result<(), SpillError> {
        self.namespace().volatile.targets.pools.set_target(pool, target)
    }

    /// Sets from which use on, in percent, a pool spills; 0: never.
    pub fn set_spill_threshold(&self, pool: &str, threshold_pct: u32) -> Result<(), SpillError> {
        self.namespace().volatile.targets.pools.set_threshold(pool, threshold_pct)
    }

    /// Parameters at present.
    pub fn parameters(&self) -> Parameters {
        *self.parameters.lock()
    }

    /// Changes parameters, from the next request on.
    pub fn set_parameters(&self, parameters: Parameters) {
        *self.parameters.lock() = parameters;
    }

    /// Counts of operations (`md_stats`).
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// What the tables' store is doing.
    pub fn store_statistics(&self) -> kv::Statistics {
        self.store.statistics()
    }

    /// OSTs as placement sees them.
    pub fn osts(&self) -> Vec<(OstIndex, OstView)> {
        self.namespace().volatile.targets.views().collect()
    }

    /// Open files.
    pub fn open_files(&self) -> usize {
        self.namespace().volatile.opens.len()
    }

    /// Clients of a former start that have not come back yet; empty once recovery is over (`recovery_status`).
    pub fn recovering_clients(&self) -> Vec<ClientId> {
        self.namespace().volatile.recovery.expected.iter().copied().collect()
    }

    /// Ends the background tasks and closes the store; everything acknowledged is durable afterwards.
    pub async fn stop(&self) -> FsResult<()> {
        self.stopping.send_replace(true);
        let agents: Vec<Arc<Agent>> = std::mem::take(&mut *self.agents.lock()).into_values().collect();
        for agent in agents {
            agent.stop().await;
        }
        let mut tasks = self.tasks.subscribe();
        // The sender lives in `self`: waiting cannot fail.
        let _ = tasks.wait_for(|running| *running == 0).await;
        let rested = self.losses.at_rest().save(&self.store, COUNTERS, counter::LOSSES).await;
        let closed = self.store.close().await;
        rested.and(closed).map_err(|error| store_error(&self.target, &error))
    }

    pub(crate) fn namespace(&self) -> MutexGuard<'_, Namespace> {
        self.namespace.lock()
    }

    /// Runs a task that [`Mdt::stop`] waits for.
    pub(crate) fn spawn(self: &Arc<Self>, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.send_modify(|running| *running += 1);
        let mdt = self.clone();
        self.seams.spawn.spawn(
            name,
            Box::pin(async move {
                task.await;
                mdt.tasks.send_modify(|running| *running -= 1);
            }),
        );
    }

    /// Waits, and says whether to go on: false when the MDT stops.
    pub(crate) async fn pause(&self, duration: Duration) -> bool {
        let mut stopping = self.stopping.subscribe();
        let deadline = self.seams.clock.now() + duration;
        let stopped = stopping.wait_for(|stopping| *stopping);
        clock::timeout_at(&*self.seams.clock, deadline, stopped).await.is_none()
    }

    /// Time and caller of one operation.
    pub(crate) fn context(&self, client: ClientId) -> Context {
        Context {
            client,
            now: self.seams.clock.wall(),
            now_ns: self.seams.clock.now().0,
            parameters: self.possible(self.parameters()),
            losses: self.losses.count(),
            moved_bytes_max: self.moved_bytes_limit(),
            supply: self.store.supply(),
        }
    }

    /// Parameters without what this MDT cannot do.
    fn possible(&self, parameters: Parameters) -> Parameters {
        let bytes_on_mdt_max = parameters.bytes_on_mdt_max.min(self.bytes_on_mdt_limit());
        Parameters { bytes_on_mdt_max, ..parameters }
    }

    /// Waits until the kernel has everything up to `lsn`.
    pub(crate) async fn written(&self, lsn: Lsn) -> FsResult<()> {
        self.store.written(lsn).await.map_err(|error| store_error(&self.target, &error))
    }

    /// Bytes of a batch without data, by far.
    fn batch_bytes(&self) -> u64 {
        (self.options.store.segment_bytes / 8).min(BATCH_BYTES)
    }

    /// Runs `operate` on the namespace once the store has room for its batch, which has `data_bytes` of data: so that nothing is
    /// refused because many changed much before any of them waited.
    pub(crate) async fn with_room<T>(&self, data_bytes: u64, operate: impl FnOnce(&mut Namespace) -> T) -> T {
        let bytes = data_bytes + data_bytes / DATA_OVERHEAD + self.batch_bytes();
        loop {
            {
                let mut namespace = self.namespace();
                if self.store.has_room(bytes) {
                    return operate(&mut namespace);
                }
            }
            self.store.room(bytes).await;
        }
    }

    /// Waits until everything changed so far survives power loss.
    pub(crate) async fn durable(&self) -> FsResult<()> {
        let last = self.namespace().last();
        self.store.durable(last).await.map_err(|error| store_error(&self.target, &error))
    }

    /// Waits until bytes that objects got by a change up to `lsn` are theirs whatever happens, see [`Volatile::lengthened`].
    async fn lengthened_for_good(&self, lsn: Lsn) -> FsResult<()> {
        self.store.durable(lsn).await.map_err(|error| store_error(&self.target, &error))?;
        self.namespace().volatile.lengthened.retain(|_, of| *of > lsn);
        Ok(())
    }

    /// What works for this MDT at the OSTs of the map.
    pub(crate) fn agents(&self) -> Vec<(OstIndex, Arc<Agent>)> {
        self.agents.lock().iter().map(|(ost, agent)| (*ost, agent.clone())).collect()
    }

    /// Runs an operation of the MDT itself and waits until the kernel has it.
    pub(crate) async fn transact<T>(
        &self,
        client: ClientId,
        operate: impl FnOnce(&mut crate::transaction::Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        let context = self.context(client);
        let transact = |namespace: &mut Namespace| (namespace.transact(&context, operate), namespace.last());
        let (outcome, lsn) = self.with_room(0, transact).await;
        self.written(lsn).await?;
        outcome
    }

    async fn serve(self: &Arc<Self>, call: &Call) -> FsResult<MdtReply> {
        let Request::Mdt(request) = &call.request else {
            return Err(FsError::Protocol(format!("{} is a metadata target", self.target)));
        };
        self.statistics.count(request);
        match request {
            MdtRequest::StatFs => self.space().await.map(MdtReply::Space),
            MdtRequest::Commit => self.durable().await.map(|()| MdtReply::Done),
            MdtRequest::Check(who, repair) => {
                ops::require_root(who)?;
                crate::ops::check::run(self, *repair).await.map(MdtReply::Findings)
            }
            MdtRequest::Disconnect => {
                recovery::end_session(self, call.client, false).await?;
                Ok(MdtReply::Done)
            }
            MdtRequest::ChangeData(request) => self.change_data(call, request).await,
            MdtRequest::ReportFull(ost) => {
                self.refresh_space(*ost).await;
                self.namespace().volatile.targets.refused(*ost, self.seams.clock.now());
                Ok(MdtReply::Done)
            }
            MdtRequest::PlaceElsewhere(_)
            | MdtRequest::SwapLayouts(..)
            | MdtRequest::LeaveOut(_)
            | MdtRequest::RenewLayout(_) => {
                let reply = self.run(call, request, &NewData::default()).await?;
                // A client goes on writing under the new layout although this MDT loses power and restarts.
                self.durable().await?;
                Ok(reply)
            }
            _ if ops::places_objects(request) && !self.map_is_known().await => Ok(MdtReply::Waiting),
            MdtRequest::CreateWithData(_, create) => {
                let new = NewData::verified(0, &call.bulk, &create.checksums)?;
                self.run(call, request, &new).await
            }
            _ => self.run(call, request, &NewData::default()).await,
        }
    }

    /// Waits for the first map since this start, for up to [`WAIT_MAX`]: until then there is no OST to place a file on.
    async fn map_is_known(&self) -> bool {
        let mut known = self.map_known.subscribe();
        let deadline = self.seams.clock.now() + WAIT_MAX;
        clock::timeout_at(&*self.seams.clock, deadline, known.wait_for(|known| *known)).await.is_some()
    }

    /// Runs a request in the namespace, again whenever what it waits for changes, for up to [`WAIT_MAX`]; and once more, by
    /// fresh news, if no OST seems to have room.
    async fn run(&self, call: &Call, request: &MdtRequest, new: &NewData) -> FsResult<MdtReply> {
        if let Some(reply) = self.repeated(call).await? {
            return Ok(reply);
        }
        let deadline = self.seams.clock.now() + WAIT_MAX;
        let data_bytes = if ops::moves_data(request) { self.moved_bytes_limit() } else { new.end() };
        let mut refreshed = false;
        loop {
            let context = self.context(call.client);
            let transact = |namespace: &mut Namespace| {
                let (mut lacks_osts, mut lengthened) = (false, None);
                let outcome = namespace.transact_or_wait(&context, |txn| {
                    let reply = ops::run(txn, request, new);
                    lacks_osts = txn.lacks_osts();
                    let reply = reply?;
                    if ops::is_stored(request) {
                        txn.keep_reply(call, &reply)?;
                    }
                    lengthened = txn.lengthened();
                    Ok(reply)
                });
                let lsn = namespace.last();
                (outcome, lsn, lacks_osts, lengthened.map(|before| before.unwrap_or(lsn)))
            };
            let (outcome, lsn, lacks_osts, lengthened) = self.with_room(data_bytes, transact).await;
            self.written(lsn).await?;
            if matches!(outcome, Err(FsError::NoSpace)) && lacks_osts && !refreshed {
                refreshed = true;
                self.refresh_all_space().await;
                continue;
            }
            let (reply, waiter) = outcome?;
            if let Some(lsn) = lengthened {
                self.lengthened_for_good(lsn).await?;
            }
            if let MdtRequest::Reclaim(reclaim) = request
                && reclaim.done
            {
                recovery::client_recovered(self, call.client);
            }
            match waiter {
                None => return Ok(reply),
                Some(waiter) => {
                    let changed = clock::timeout_at(&*self.seams.clock, deadline, waiter).await.is_some();
                    if !changed || ops::is_cancelled(&self.namespace().volatile, call.client, request) {
                        return Ok(reply);
                    }
                }
            }
        }
    }

    /// The stored reply, if this is the repetition of a mutation that a former start of this MDT answered or was about to.
    /// An open that was part of it is entered again: the client did not know of it when it reclaimed.
    pub(crate) async fn repeated(&self, call: &Call) -> FsResult<Option<MdtReply>> {
        let context = self.context(call.client);
        let mut namespace = self.namespace();
        if namespace.volatile.recovery.replies.is_empty() {
            return Ok(None);
        }
        if namespace.volatile.recovery.replies.remove(&(call.client, call.slot)) != Some(call.xid) {
            return Ok(None);
        }
        namespace.transact(&context, |txn| {
            let stored = txn.get(REPLIES, &stored_reply::key(call.client, call.slot))?;
            let stored = stored.map(|value| stored_reply::decode::<MdtReply>(&value)).transpose()?;
            let Some((_, reply)) = stored else { return Ok(None) };
            if let (MdtReply::Created(created), Request::Mdt(request)) = (&reply, &call.request)
                && let Some(opened) = &created.opened
            {
                match ops::create::enter_again(txn, request, opened) {
                    // It ended before its creator came back: without a name as an orphan, else somebody removed it. The
                    // creator never saw it: another one will do.
                    Err(FsError::Stale) => return Ok(None),
                    entered => entered?,
                }
            }
            Ok(Some(reply))
        })
    }

    /// Space of the target and inodes it can hold.
    pub async fn space(&self) -> FsResult<SpaceUsage> {
        let error = |error: std::io::Error| FsError::Device { target: self.target.clone(), detail: error.to_string() };
        let space = self.device.space().await.map_err(error)?;
        // What the tables keep back counts as used.
        let reserve = self.store.device_reserve();
        let bytes_free = space.bytes_free.saturating_sub(reserve);
        let bytes_available = space.bytes_available.saturating_sub(reserve);
        let inodes = self.namespace().inodes();
        let inodes_free = bytes_available / INODE_BYTES;
        Ok(SpaceUsage { bytes_free, bytes_available, inodes_total: inodes + inodes_free, inodes_free, ..space })
    }
}

impl Handler for Mdt {
    fn handle(self: Arc<Self>, call: Call) -> BoxFuture<'static, Answer> {
        Box::pin(async move {
            let outcome = match &call.request {
                Request::Mdt(request @ MdtRequest::ReadData(question)) => {
                    self.statistics.count(request);
                    self.read_data(&call, question).await
                }
                Request::Mdt(request @ MdtRequest::ReadFile(who, read)) => {
                    self.statistics.count(request);
                    self.read_file(&call, who, read).await
                }
                _ => self.serve(&call).await.map(|reply| (reply, Bytes::new())),
            };
            match outcome {
                Ok((reply, bulk)) => Answer { reply: Ok(Reply::Mdt(reply)), bulk },
                Err(error) => Answer::new(Err(error)),
            }
        })
    }

    /// Nobody who could end a wait is served behind those who wait.
    fn service(&self, request: &Request) -> &'static str {
        let Request::Mdt(request) = request else { return "mdt" };
        match request {
            MdtRequest::ReadDirectory(_) | MdtRequest::ScanInodes(..) | MdtRequest::Check(..) => "mdt_readpage",
            MdtRequest::ChangeData(_)
            | MdtRequest::ReadData(_)
            | MdtRequest::CreateWithData(..)
            | MdtRequest::ReadFile(..) => "mdt_io",
            MdtRequest::Reclaim(_) => RECOVERY_SERVICE,
            MdtRequest::SetLock(set) if set.queues() => LOCK_SERVICE,
            request if ops::may_wait(request) => WAIT_SERVICE,
            _ => "mdt",
        }
    }

    fn service_threads(&self) -> &'static [(&'static str, usize)] {
        &[(LOCK_SERVICE, WAITING_THREADS), (WAIT_SERVICE, WAITING_THREADS)]
    }

    fn persistent_reply(&self, client: ClientId, slot: Slot) -> Option<(Xid, Reply)> {
        let value = self.store.get(REPLIES, &stored_reply::key(client, slot)).ok()??;
        match stored_reply::decode(&value) {
            // The handler itself answers its repetition, because it has to enter the open again,
            Ok((_, MdtReply::Created(created))) if created.opened.is_some() => None,
            // or to wait until the data are durable.
            Ok((_, MdtReply::Data(_))) => None,
            Ok((xid, reply)) => Some((xid, Reply::Mdt(reply))),
            Err(error) => {
                tracing::error!(%client, ?slot, %error, "a stored reply is damaged");
                None
            }
        }
    }

    fn answers_repetition(&self, client: ClientId, slot: Slot) -> Option<Xid> {
        self.namespace().volatile.recovery.replies.get(&(client, slot)).copied()
    }

    fn losses(&self) -> u64 {
        self.losses.count()
    }

    fn may_resume(&self, client: ClientId) -> bool {
        self.namespace().volatile.recovery.in_good_standing(client)
    }

    fn session_event(self: Arc<Self>, event: SessionEvent) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match event {
                SessionEvent::Opened { client, resumed: true, .. } => {
                    tracing::info!(target = %self.target, %client, "client came back");
                }
                SessionEvent::Opened { client, resumed: false, in_process } => {
                    if let Err(error) = recovery::begin_session(&self, client, in_process).await {
                        // The client works, and is evicted by the next restart.
                        tracing::error!(target = %self.target, %client, %error, "a session was not recorded");
                    }
                }
                SessionEvent::Evicted(client) => {
                    recovery::end_session_at_last(&self, client, true).await;
                }
                SessionEvent::Closed(client) => {
                    recovery::end_session_at_last(&self, client, false).await;
                }
            }
        })
    }
}

/// What every start writes down before it serves: whether changes may have been lost. If so, numbers that the former start
/// may have given to files that are lost are not given again: OSTs may still hold their objects.
async fn begin(store: &Store, boot: u64) -> Result<Losses, OpenError> {
    /// More than the creations that fit into a journal of a gigabyte, had it never been flushed.
    const NUMBERS_PER_LOSS: u64 = 1 << 24;
    let found = Losses::load(store, COUNTERS, counter::LOSSES)?;
    let losses = found.at_start(boot);
    if losses == found {
        return Ok(losses);
    }
    let mut batch = Batch::default();
    batch.put(COUNTERS, counter::LOSSES.to_vec(), losses.encode());
    if losses.count() > found.count() {
        tracing::warn!(losses = losses.count(), "the host ended: changes that were not durable are lost");
        let mut counters = Counters::found(store.get(COUNTERS, counter::COUNTERS)?)?;
        counters.next_inode += NUMBERS_PER_LOSS;
        batch.put(COUNTERS, counter::COUNTERS.to_vec(), counters.encode());
    }
    store.durable(store.apply_reserved(batch)?).await?;
    Ok(losses)
}

fn check_identity(store: &Store, options: &MdtOptions) -> Result<(), OpenError> {
    let value = store.get(COUNTERS, counter::IDENTITY)?.ok_or(OpenError::NotFormatted)?;
    let found = Identity::decode(&value)?;
    if found.mdt == options.index && found.fsname == options.fsname {
        return Ok(());
    }
    Err(OpenError::OtherIdentity {
        found_fsname: found.fsname,
        found: found.mdt,
        fsname: options.fsname.clone(),
        index: options.index,
    })
}

fn root_directory(now: Timestamp, owner: &Credentials) -> Inode {
    Inode {
        attributes: Attributes {
            inode: InodeNumber::ROOT,
            kind: FileKind::Directory,
            mode: 0o755,
            links: 2,
            uid: owner.uid,
            gid: owner.gid,
            device: 0,
            size: DIRECTORY_BYTES,
            blocks: DIRECTORY_BYTES / 512,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        },
        settled: true,
        epoch: 0,
        accounted: Timestamp::default(),
        access_list: false,
        default_list: false,
        xattrs: false,
        not_linkable: false,
        first_link: None,
        data: InodeData::Directory(None),
    }
}
