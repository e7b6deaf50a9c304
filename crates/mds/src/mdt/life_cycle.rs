//! Life cycle of an MDT: its store is formatted once, opened, updated with the OSTs whenever the
//! map changes, and closed.

use std::{fmt::Display, sync::Arc};

use kv::{Batch, ColdStore, PowerLossEra, Store};
use parking_lot::Mutex;
use rpc::{Endpoint, Import, Principal, Role};
use rt::{BoxFuture, Device, ReadMostly, Seams};
use tokio::sync::{Notify, watch};
use types::{FsResult, InodeNumber, MdtIndex, OstIndex, Timestamp};

use super::{
    Mdt, lock_deadlines, notices, ost_proxy::OstProxy, peers, recovery, removed, revoker::Revoker, silent_clients,
    splits,
};
use crate::{
    error::{OpenError, store_error},
    namespace::Namespace,
    new_root::NewRoot,
    options::MdtOptions,
    statistics::Statistics,
    tables::{
        COUNTERS, INODES,
        counter::{self, Counters, Identity},
        inode::Inode,
    },
    volatile::Volatile,
};

impl Mdt {
    /// The connection to another target, as its proxy begins with it.
    pub(super) fn import_of(&self, target: impl Display, endpoint: Endpoint) -> Import {
        let (name, options) = (format!("{}-{target}", self.options.fsname), self.options.import.clone());
        Import::new(self.seams.clone(), &name, endpoint, self.principal.clone(), options, None)
    }

    /// Makes an empty store the MDT `index` of `fsname`; MDT 0 gets the root directory.
    pub async fn format(
        seams: &Seams,
        device: Arc<dyn Device>,
        cold: Arc<dyn ColdStore>,
        config: kv::Config,
        fsname: &str,
        index: MdtIndex,
        root: &NewRoot,
    ) -> Result<(), OpenError> {
        let store = Store::open(seams.clone(), device, cold, config, &mut |_, _| {}).await?;
        let formatted = Self::format_store(&store, seams.clock.wall(), fsname, index, root).await;
        let closed = store.close().await;
        formatted?;
        Ok(closed?)
    }

    async fn format_store(
        store: &Store,
        now: Timestamp,
        fsname: &str,
        index: MdtIndex,
        root: &NewRoot,
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
            batch.put(INODES, Inode::key(InodeNumber::ROOT), root.inode(now).encode());
        }
        let lsn = store.apply(batch)?;
        Ok(store.durable(lsn).await?)
    }

    /// Opens a formatted store. Clients of a former start have the recovery window to come back.
    pub fn open(
        seams: Seams,
        device: Arc<dyn Device>,
        cold: Arc<dyn ColdStore>,
        options: MdtOptions,
    ) -> BoxFuture<'static, Result<Arc<Mdt>, OpenError>> {
        Box::pin(Self::open_inner(seams, device, cold, options))
    }

    async fn open_inner(
        seams: Seams,
        device: Arc<dyn Device>,
        cold: Arc<dyn ColdStore>,
        options: MdtOptions,
    ) -> Result<Arc<Mdt>, OpenError> {
        let store = Store::open(seams.clone(), device.clone(), cold, options.store.clone(), &mut |_, _| {}).await?;
        check_identity(&store, &options)?;
        let target = format!("{}-{}", options.fsname, options.index);
        let store = Arc::new(store);
        let era = begin(&store, seams.clock.boot()).await?;
        let mut volatile = Volatile::new(seams.clock.wall(), seams.entropy.next_u64(), options.opens_per_client_max);
        volatile.recovery.era = era.count();
        let mut namespace = Namespace::load(store.clone(), options.index, options.process, target.clone(), volatile)?;
        if options.audits {
            namespace.audit();
        }
        let recovering = namespace.volatile.recovery.running();
        let mdt = Arc::new_cyclic(|me| Mdt {
            revoker: Revoker::default(),
            claims: ReadMostly::default(),
            me: me.clone(),
            principal: Principal::random(&*seams.entropy, Role::Mdt, &options.node, &target, options.keys.clone()),
            parameters: ReadMostly::new(options.parameters),
            seams,
            options,
            target,
            store,
            device,
            era,
            namespace: ReadMostly::new(namespace),
            statistics: Statistics::default(),
            ost_proxies: Mutex::default(),
            mdt_proxies: Mutex::default(),
            other_mdts: watch::Sender::new(None),
            mdts_known: watch::Sender::new(false),
            recovery_wakeup: Notify::new(),
            split_wakeup: Notify::new(),
            map_known: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
            tasks: watch::Sender::new(0),
        });
        tracing::info!(target = %mdt.target, recovering, "metadata target opened");
        mdt.spawn("mdt_recovery", recovery::run(mdt.clone()));
        mdt.spawn("mdt_leases", recovery::end_leases(mdt.clone()));
        mdt.spawn("mdt_silent_clients", silent_clients::run(mdt.clone()));
        mdt.namespace().volatile.waiters.set_notices_max(mdt.options.notices_per_client_max);
        mdt.spawn("mdt_notices", notices::run(mdt.clone()));
        mdt.spawn("mdt_lock_deadlines", lock_deadlines::run(mdt.clone()));
        mdt.spawn("mdt_removed", removed::run(mdt.clone()));
        mdt.spawn("mdt_splits", splits::run(mdt.clone()));
        mdt.spawn("mdt_first_map", peers::end_first_wait(mdt.clone()));
        Ok(mdt)
    }

    /// Tells which OSTs there are, where, and whether they are in use. New ones get files from now
    /// on; those no longer in the list keep what they have and what waits to be told to them.
    pub fn update_map(self: &Arc<Self>, osts: &[(OstIndex, Endpoint, bool)]) {
        let states: Vec<(OstIndex, bool)> = osts.iter().map(|(ost, _, active)| (*ost, *active)).collect();
        {
            let mut namespace = self.namespace();
            namespace.volatile.targets.set_map(&states);
            let active: Vec<OstIndex> = namespace.volatile.targets.active().collect();
            let idle = namespace.volatile.fences.pending_osts().into_iter().filter(|ost| !active.contains(ost));
            idle.for_each(|ost| namespace.volatile.release_fences(ost));
        }
        let mut ost_proxies = self.ost_proxies.lock();
        ost_proxies.retain(|ost, ost_proxy| {
            let kept = osts.iter().any(|(known, ..)| known == ost);
            if !kept {
                ost_proxy.connection.retire();
            }
            kept
        });
        for (ost, endpoint, active) in osts {
            match ost_proxies.get(ost) {
                Some(ost_proxy) => ost_proxy.connection.update(endpoint.clone(), *active),
                None => {
                    ost_proxies.insert(*ost, OstProxy::start(self, *ost, endpoint.clone(), *active));
                }
            }
        }
        drop(ost_proxies);
        // A map without OSTs is that of a cluster whose OSTs have not registered yet.
        if !osts.is_empty() {
            self.map_known.send_replace(true);
            self.namespace().volatile.waiters.wake_start();
        }
    }

    /// Ends the background tasks and closes the store; everything acknowledged is durable
    /// afterwards.
    pub async fn stop(&self) -> FsResult<()> {
        self.stopping.send_replace(true);
        let ost_proxies: Vec<Arc<OstProxy>> = std::mem::take(&mut *self.ost_proxies.lock()).into_values().collect();
        for ost_proxy in ost_proxies {
            ost_proxy.connection.stop().await;
        }
        let mdt_proxies = std::mem::take(&mut *self.mdt_proxies.lock());
        for mdt_proxy in mdt_proxies.into_values() {
            mdt_proxy.connection.stop().await;
        }
        let mut tasks = self.tasks.subscribe();
        // The sender lives in `self`: waiting cannot fail.
        let _ = tasks.wait_for(|running| *running == 0).await;
        let rested = self.era.at_rest().save(&self.store, COUNTERS, counter::ERA).await;
        let closed = self.store.close().await;
        rested.and(closed).map_err(|error| store_error(&self.target, &error))
    }
}

/// What every start writes down before it serves: whether changes may have been lost. If so,
/// numbers that the former start may have given to files that are lost are not given again: OSTs
/// may still hold their objects.
async fn begin(store: &Store, boot: u64) -> Result<PowerLossEra, OpenError> {
    /// More than the creations that fit into a journal of a gigabyte, had it never been flushed.
    const NUMBERS_PER_LOSS: u64 = 1 << 24;
    let found = PowerLossEra::load(store, COUNTERS, counter::ERA)?;
    let era = found.at_start(boot);
    if era == found {
        return Ok(era);
    }
    let mut batch = Batch::default();
    batch.put(COUNTERS, counter::ERA.to_vec(), era.encode());
    if era.count() > found.count() {
        tracing::warn!(
            era = era.count(),
            "the host had crashed or lost power: changes that were not durable may be lost"
        );
        let mut counters = Counters::found(store.get(COUNTERS, counter::COUNTERS)?)?;
        counters.next_inode += NUMBERS_PER_LOSS;
        batch.put(COUNTERS, counter::COUNTERS.to_vec(), counters.encode());
    }
    store.durable(store.apply_reserved(batch)?).await?;
    Ok(era)
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
