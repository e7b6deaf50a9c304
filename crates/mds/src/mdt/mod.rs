//! The metadata target: a request handler around a [`Namespace`], and its background tasks.
//!
//! Life cycle: [`Mdt::format`] once per store; [`Mdt::open`]; [`Mdt::update_map`] with the OSTs,
//! again whenever the map changes, and [`Mdt::update_mdts`] with the MDTs;
//! served by an [`rpc::Server`]; [`Mdt::stop`]. Dropping it instead
//! is equivalent to a crash.
//!
//! Invariants: the namespace's lock is never held across an await; an answer is sent only when
//! everything it shows has been written to the kernel.

pub(crate) mod balance;
mod cache;
mod check;
mod claims;
mod compound;
mod coordination;
mod data;
mod handler;
mod inspection;
mod late_closes;
mod layout_fences;
mod life_cycle;
mod lock_callbacks;
mod lock_deadlines;
mod mdt_proxy;
mod moves;
mod notices;
mod ost_proxy;
mod peer_space;
mod peers;
mod proxy_connection;
mod readers;
mod recovery;
mod removed;
mod revoker;
mod silent_clients;
mod space;
mod split_warnings;
mod splits;
mod waiter;

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use kv::{Lsn, PowerLossEra, Store};
use lock::inode_locks::LockCounters;
use parking_lot::Mutex;
use rpc::{Call, Principal, message::mgs::Pool};
use rt::{ChangeGuard, Device, ReadGuard, ReadMostly, Seams, clock};
use tokio::sync::{Notify, watch};
use types::{ClientId, FsError, FsResult, MdtIndex, OstIndex, SpaceUsage};

use self::{
    mdt_proxy::MdtProxy,
    ost_proxy::OstProxy,
    peers::{OtherMdt, PEER_WAIT},
    revoker::Revoker,
    waiter::Waiter,
};
use crate::{
    claims::Claims,
    error::store_error,
    namespace::{Attempt, Attempts, Namespace, Obstacle},
    options::{MdtOptions, Parameters},
    placement::OstView,
    pools::{Spill, SpillError},
    statistics::Statistics,
    transaction::{Context, Transaction},
};

/// Space one inode takes in the store, by rule of thumb: record, entry, journal.
const INODE_BYTES: u64 = 1024;
/// Bytes of a batch, without data: the largest are layouts and long extended attributes.
const BATCH_BYTES: u64 = 128 << 10;
/// For so many bytes of data a batch is one byte larger than they: a block of 4096 has a key and a
/// head below 64 bytes.
const DATA_OVERHEAD: u64 = 64;
/// See the module documentation.
pub struct Mdt {
    pub(crate) seams: Seams,
    pub(crate) options: MdtOptions,
    pub(crate) target: String,
    pub(crate) store: Arc<Store>,
    device: Arc<dyn Device>,
    /// As of this start.
    era: PowerLossEra,
    namespace: ReadMostly<Namespace>,
    parameters: ReadMostly<Parameters>,
    statistics: Statistics,
    ost_proxies: Mutex<BTreeMap<OstIndex, Arc<OstProxy>>>,
    mdt_proxies: Mutex<BTreeMap<MdtIndex, Arc<MdtProxy>>>,
    /// The other MDTs of the map; `None`: none was ever in it.
    other_mdts: watch::Sender<Option<Vec<OtherMdt>>>,
    /// Whether this start can ask the other MDTs, or knows that there are none.
    mdts_known: watch::Sender<bool>,
    /// How clients are reached, and those that are asked for locks.
    revoker: Revoker,
    claims: ReadMostly<Claims>,
    /// For tasks that begin where only a reference is at hand.
    me: Weak<Mdt>,
    /// This MDT as a client of OSTs and other MDTs.
    pub(crate) principal: Principal,
    /// Rung when a client finished its recovery, or the map is known.
    pub(crate) recovery_wakeup: Notify,
    /// Rung when names of a directory are to be moved to its shards.
    split_wakeup: Notify,
    pub(crate) map_known: watch::Sender<bool>,
    pub(crate) stopping: watch::Sender<bool>,
    /// Background tasks that still run.
    pub(crate) tasks: watch::Sender<usize>,
}

impl Mdt {
    /// Name of this target, such as `stria-MDT0000`.
    pub fn name(&self) -> &str {
        &self.target
    }

    /// Which one it is.
    pub fn index(&self) -> MdtIndex {
        self.options.index
    }

    /// Sets the existing pools.
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
        *self.parameters.read()
    }

    /// Changes parameters, from the next request on.
    pub fn set_parameters(&self, parameters: Parameters) {
        *self.parameters.write() = parameters;
    }

    /// Counts of operations (`md_stats`).
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// What the tables' store is doing.
    pub fn store_statistics(&self) -> kv::Statistics {
        self.store.statistics()
    }

    /// Age of the oldest change that a power loss could take; zero if there is none.
    pub fn undurable_age(&self) -> Duration {
        self.store.oldest_unflushed().map_or(Duration::ZERO, |oldest| self.seams.clock.now().since(oldest))
    }

    /// OSTs as placement sees them.
    pub fn osts(&self) -> Vec<(OstIndex, OstView)> {
        self.namespace().volatile.targets.views().collect()
    }

    /// Open files.
    pub fn open_files(&self) -> usize {
        self.namespace().volatile.opens.len()
    }

    /// Locks under which clients cache: how many there are, and counts since the start.
    pub fn cache_locks(&self) -> (usize, LockCounters) {
        let namespace = self.reading();
        let cache = namespace.volatile.cache.lock();
        (cache.count(), cache.counters())
    }

    /// Inodes on which clients have such locks.
    pub fn locked_inodes(&self) -> usize {
        self.namespace().volatile.cache.lock().inodes()
    }

    /// How often a client was evicted since it did not give a lock back in time, since the start.
    pub fn lock_timeouts(&self) -> u64 {
        self.namespace().volatile.cache.lock().timeouts()
    }

    /// Clients of a former start that have not come back yet; empty once recovery is over
    /// (`recovery_status`).
    pub fn recovering_clients(&self) -> Vec<ClientId> {
        self.namespace().volatile.recovery.expected.iter().copied().collect()
    }

    /// The namespace for changes: no other request uses it meanwhile.
    pub(crate) fn namespace(&self) -> ChangeGuard<'_, Namespace> {
        self.namespace.write()
    }

    /// The namespace for reads, beside others: nothing changes meanwhile.
    pub(crate) fn reading(&self) -> ReadGuard<'_, Namespace> {
        self.namespace.read()
    }

    /// Runs a task that [`Mdt::stop`] waits for.
    pub(crate) fn spawn(self: &Arc<Self>, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.send_modify(|running| *running += 1);
        let mdt = self.clone();
        self.seams.spawn.spawn(
            name,
            Box::pin(async move {
                task.await;
                mdt.tasks.send_modify(|running| {
                    assert!(*running > 0, "a task that ends was counted");
                    *running -= 1;
                });
            }),
        );
    }

    /// Waits, and says whether to continue: false when the MDT stops.
    pub(crate) async fn pause(&self, duration: Duration) -> bool {
        let mut stopping = self.stopping.subscribe();
        let deadline = self.seams.clock.now() + duration;
        let stopped = stopping.wait_for(|stopping| *stopping);
        clock::timeout_at(&*self.seams.clock, deadline, stopped).await.is_none()
    }

    /// Time and caller of one operation. To be taken under the namespace's lock, so that what is
    /// done later has no earlier time, however long it waited before.
    pub(crate) fn context(&self, client: ClientId) -> Context {
        Context {
            client,
            features: 0,
            now: self.seams.clock.wall(),
            now_ns: self.seams.clock.now().0,
            parameters: self.possible(self.parameters()),
            era: self.era.count(),
            moved_bytes_max: self.moved_bytes_limit(),
            supply: self.store.supply(),
        }
    }

    /// The same, of a request.
    fn context_of(&self, call: &Call) -> Context {
        Context { features: call.features, ..self.context(call.client) }
    }

    /// Parameters without what this MDT cannot do.
    fn possible(&self, parameters: Parameters) -> Parameters {
        let bytes_on_mdt_max = parameters.bytes_on_mdt_max.min(self.bytes_on_mdt_limit());
        let cache_locks = parameters.cache_locks && self.revoker.is_served();
        Parameters { bytes_on_mdt_max, cache_locks, ..parameters }
    }

    /// Waits until the kernel has everything up to `lsn`.
    pub(crate) async fn written(&self, lsn: Lsn) -> FsResult<()> {
        self.store.written(lsn).await.map_err(|error| store_error(&self.target, &error))
    }

    /// Bytes of a batch without data, by far.
    fn batch_bytes(&self) -> u64 {
        (self.options.store.segment_bytes / 8).min(BATCH_BYTES)
    }

    /// Runs `operate` on the namespace once the store has room for its batch, which has
    /// `data_bytes` of data: so that nothing is refused because many changed much before any of
    /// them waited.
    pub(crate) async fn with_space<T>(&self, data_bytes: u64, operate: impl FnOnce(&mut Namespace) -> T) -> T {
        let bytes = data_bytes + data_bytes / DATA_OVERHEAD + self.batch_bytes();
        loop {
            {
                let mut namespace = self.namespace();
                if self.store.has_space(bytes) {
                    return operate(&mut namespace);
                }
            }
            self.store.wait_for_space(bytes).await;
        }
    }

    /// Runs an operation on the namespace, with room for its batch if it has `data_bytes`. It ends
    /// an attempt when it needs what is not in memory, which is then loaded, or when clients cache
    /// what it changes, which are then asked to give their locks back; both without the lock. Then
    /// it is tried again. `waiter`: the request whose operation it is.
    pub(crate) async fn load_and_run<T>(
        &self,
        waiter: Option<Waiter>,
        data_bytes: Option<u64>,
        mut attempt: impl FnMut(&mut Namespace, &mut Attempts) -> Attempt<T>,
    ) -> FsResult<T> {
        let mut preparing = self.preparing();
        let (mut peers_until, mut held_until) = (None, None);
        loop {
            let mut once = |namespace: &mut Namespace| {
                let outcome = attempt(namespace, &mut preparing.attempts);
                (outcome, namespace.volatile.cache.lock().take_asked())
            };
            let (outcome, callers) = match data_bytes {
                Some(bytes) => self.with_space(bytes, once).await,
                None => {
                    let mut namespace = self.namespace();
                    once(&mut namespace)
                }
            };
            self.ask_back(callers);
            match outcome {
                Attempt::Done(done) => return Ok(done),
                Attempt::GivenUp => {
                    let loaded = self.store.load_missed(&mut preparing.attempts.loading).await;
                    loaded.map_err(|error| store_error(&self.target, &error))?;
                }
                Attempt::Blocked(Obstacle::Locks(change)) => {
                    let given_back = self.locks_given_back(waiter, change);
                    let outcome = Box::pin(self.not_long_if_held(waiter, &mut held_until, given_back)).await;
                    if matches!(outcome, Err(FsError::AwaitsMdt(_))) {
                        self.linger(preparing.attempts.change.take());
                    }
                    outcome?;
                }
                Attempt::Blocked(Obstacle::FormerClients(progress)) => {
                    let one_less = self.unless_left(waiter, progress);
                    Box::pin(self.not_long_if_held(waiter, &mut held_until, one_less)).await?;
                }
                Attempt::Blocked(Obstacle::Peer(peer, progress)) => {
                    let until = *peers_until.get_or_insert_with(|| self.seams.clock.now() + PEER_WAIT);
                    Box::pin(self.progress_of_peer((peer, until), waiter, progress)).await?;
                }
            }
        }
    }

    /// Waits until everything changed so far survives power loss.
    pub(crate) async fn durable(&self) -> FsResult<()> {
        let last = self.reading().last();
        self.store.durable(last).await.map_err(|error| store_error(&self.target, &error))
    }

    /// Waits until bytes that objects got by a change up to `lsn` are theirs whatever happens, see
    /// [`Volatile::lengthened`].
    async fn lengthened_for_good(&self, lsn: Lsn) -> FsResult<()> {
        self.store.durable(lsn).await.map_err(|error| store_error(&self.target, &error))?;
        self.namespace().volatile.lengthened.retain(|_, of| *of > lsn);
        Ok(())
    }

    /// The proxies of this MDT for the OSTs of the map.
    pub(crate) fn ost_proxies(&self) -> Vec<(OstIndex, Arc<OstProxy>)> {
        self.ost_proxies.lock().iter().map(|(ost, ost_proxy)| (*ost, ost_proxy.clone())).collect()
    }

    /// Runs an operation of the MDT itself and waits until the kernel has it.
    pub(crate) async fn transact<T>(
        &self,
        client: ClientId,
        operate: impl FnMut(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.transact_for(None, client, operate).await
    }

    /// The same for a request.
    pub(crate) async fn transact_for<T>(
        &self,
        waiter: Option<Waiter>,
        client: ClientId,
        operate: impl FnMut(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.transact_with_space(waiter, client, Some(0), operate).await
    }

    /// As [`Mdt::transact`], for an operation that changes little or nothing, and waits for no
    /// room.
    pub(crate) async fn look<T>(
        &self,
        client: ClientId,
        operate: impl FnMut(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        self.transact_with_space(None, client, None, operate).await
    }

    async fn transact_with_space<T>(
        &self,
        waiter: Option<Waiter>,
        client: ClientId,
        data_bytes: Option<u64>,
        mut operate: impl FnMut(&mut Transaction<'_>) -> FsResult<T>,
    ) -> FsResult<T> {
        let transact = |namespace: &mut Namespace, attempts: &mut Attempts| {
            let context = self.context(client);
            let outcome = namespace.attempt(&context, Some(attempts), &mut operate);
            outcome.map(|outcome| (outcome, namespace.last()))
        };
        let (outcome, lsn) = self.load_and_run(waiter, data_bytes, transact).await?;
        self.written(lsn).await?;
        outcome
    }

    /// Space of the target and inodes it can hold.
    pub async fn space(&self) -> FsResult<SpaceUsage> {
        let error = |error: std::io::Error| FsError::Device { target: self.target.clone(), detail: error.to_string() };
        let space = self.device.space().await.map_err(error)?;
        // What the tables keep back counts as used.
        let reserve = self.store.device_reserve();
        let bytes_free = space.bytes_free.saturating_sub(reserve);
        let bytes_available = space.bytes_available.saturating_sub(reserve);
        let inodes = self.reading().counters().inodes;
        let inodes_free = bytes_available / INODE_BYTES;
        Ok(SpaceUsage { bytes_free, bytes_available, inodes_total: inodes + inodes_free, inodes_free, ..space })
    }
}
