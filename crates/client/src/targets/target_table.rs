//! All targets of the cluster map, by index.
//!
//! Targets are added as the map grows and never removed: they hold files, and an index is never
//! given to another target. Life cycle: filled at the mount, then updated by a task that follows
//! the map.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use rpc::{
    Import, ImportOptions, Recovery, Tuning,
    message::mgs::{ClusterMap, MapTarget, Pool, TargetRole, TargetState},
};
use rt::{Seams, clock};
use tokio::sync::watch;
use types::{ClientId, FsError, FsResult, InodeNumber, MdtIndex, OstIndex, limits::BULK_BYTES_MAX};

use crate::{
    client_state::ClientState,
    options::Resolver,
    targets::{
        connection::{Restarts, TargetConnection, target_name},
        recovery::{MdtRecovery, OstRecovery},
    },
};

/// What connections are made with.
pub(crate) struct Connector {
    pub seams: Seams,
    pub options: Mutex<ImportOptions>,
    pub resolve: Resolver,
    pub client_state: Arc<ClientState>,
}

/// See the module documentation.
pub(crate) struct TargetTable {
    connector: Connector,
    /// For the recovery hooks.
    this: Weak<TargetTable>,
    by_role: RwLock<BTreeMap<TargetRole, Arc<TargetConnection>>>,
    several_mdts: AtomicBool,
    /// Requests to some target have less data than a message takes.
    limits_bulk: AtomicBool,
    /// No connection is made any more. Changes under the lock of the targets.
    has_ended: AtomicBool,
    /// The newest map.
    map: Mutex<Arc<ClusterMap>>,
    /// Changes after each map that was taken over, and at the end.
    updates: watch::Sender<()>,
}

impl TargetTable {
    pub fn new(connector: Connector) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            connector,
            this: this.clone(),
            by_role: RwLock::default(),
            several_mdts: AtomicBool::new(false),
            limits_bulk: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            map: Mutex::default(),
            updates: watch::Sender::new(()),
        })
    }

    /// Makes no connection any more. Returns the targets, for their connections to be ended.
    pub fn end(&self) -> Vec<Arc<TargetConnection>> {
        let by_role = self.by_role.write();
        self.has_ended.store(true, Ordering::Relaxed);
        let targets = by_role.values().cloned().collect();
        // Those that are told look at the table.
        drop(by_role);
        self.updates.send_replace(());
        targets
    }

    /// Takes over a (newer) cluster map.
    pub fn update(&self, map: Arc<ClusterMap>) {
        let mut by_role = self.by_role.write();
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        for entry in &map.targets {
            if let Some(target) = by_role.get(&entry.role) {
                if target.update(entry) {
                    target.import().set_address((self.connector.resolve)(entry));
                }
                target.import().set_timeout(self.timeout(entry));
                continue;
            }
            let restarts = Arc::new(Restarts::default());
            let import = self.connect(&map.fsname, entry, restarts.clone());
            let client_state = self.connector.client_state.clone();
            let target = TargetConnection::new(entry, import, restarts, client_state);
            let before = by_role.insert(entry.role, Arc::new(target));
            assert!(before.is_none(), "a target keeps its connection as long as the mount exists");
        }
        let mdts = by_role.keys().filter(|role| matches!(role, TargetRole::Mdt(_))).count();
        self.several_mdts.store(mdts > 1, Ordering::Relaxed);
        *self.map.lock() = map;
        drop(by_role);
        self.updates.send_replace(());
    }

    /// Changes after each map that was taken over, and at the end.
    pub fn updates(&self) -> watch::Receiver<()> {
        self.updates.subscribe()
    }

    /// Waits for a map that has this target. An MDT may have a newer one than this client, and name
    /// what is on a target that was added a moment ago. `NoDevice` if no such map comes while calls
    /// to targets wait.
    pub async fn get_named(&self, role: TargetRole) -> FsResult<Arc<TargetConnection>> {
        let clock = self.connector.seams.clock.clone();
        let mut updates = self.updates.subscribe();
        let is_there = |_: &()| self.has_ended.load(Ordering::Relaxed) || self.by_role.read().contains_key(&role);
        let until = clock.now() + self.timeout_of_callers();
        // The sender lives in `self`: waiting cannot fail.
        let _ = clock::timeout_at(&*clock, until, async { drop(updates.wait_for(is_there).await) }).await;
        self.get(role)
    }

    /// The incarnation `client` has ended: an MDT evicted it, and OSTs refuse it. Connects again to
    /// all targets, as another client. Does nothing if that has happened already.
    pub fn begin_new_incarnation(&self, client: ClientId) {
        if !self.connector.client_state.end_incarnation(client, &*self.connector.seams.entropy) {
            return;
        }
        let by_role = self.by_role.read();
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let map = self.map.lock().clone();
        for entry in &map.targets {
            // One that was added meanwhile is connected as the present client.
            let target = by_role.get(&entry.role).filter(|target| target.import().client() == client);
            if let Some(target) = target {
                let import = self.connect(&map.fsname, entry, target.restarts_counter());
                import.set_like(&target.import());
                target.replace_import(import);
                target.repetitions().ask_again(None);
            }
        }
    }

    /// How long calls to targets in use wait.
    pub fn timeout_of_callers(&self) -> Duration {
        self.connector.options.lock().timeout
    }

    /// How long calls to a target wait. Not at all for one that is out of use, so that those in
    /// progress end too.
    fn timeout(&self, entry: &MapTarget) -> Duration {
        match entry.state {
            TargetState::Active => self.timeout_of_callers(),
            TargetState::Inactive => Duration::ZERO,
        }
    }

    /// Changes how long calls wait for a silent target.
    pub fn set_timeout(&self, timeout: Duration) {
        self.connector.options.lock().timeout = timeout;
        let by_role = self.by_role.read();
        for entry in &self.map.lock().targets {
            if let Some(target) = by_role.get(&entry.role) {
                target.import().set_timeout(self.timeout(entry));
            }
        }
    }

    /// Changes how many requests may be outstanding at a target. At an MDT fewer of them are
    /// changes, as in Lustre, so that questions do not wait for these.
    pub fn set_rpcs_in_flight_max(&self, role: TargetRole, count: u16) {
        if let Some(target) = self.by_role.read().get(&role) {
            let import = target.import();
            import.set_max_rpcs_in_flight(count);
            if matches!(role, TargetRole::Mdt(_)) && import.max_changes_in_flight() >= count {
                import.set_max_changes_in_flight(count.saturating_sub(1));
            }
        }
    }

    /// Changes how many changes of names and attributes may be outstanding at an MDT.
    pub fn set_changes_in_flight_max(&self, mdt: MdtIndex, count: u16) {
        if let Some(target) = self.by_role.read().get(&TargetRole::Mdt(mdt)) {
            target.import().set_max_changes_in_flight(count);
        }
    }

    /// How many changes of names and attributes may be outstanding at an MDT.
    pub fn changes_in_flight_max(&self, mdt: MdtIndex) -> Option<u16> {
        Some(self.by_role.read().get(&TargetRole::Mdt(mdt))?.import().max_changes_in_flight())
    }

    /// Changes how much data one request to a target has at most.
    pub fn set_bulk_bytes_max(&self, role: TargetRole, bytes: usize) {
        if let Some(target) = self.by_role.read().get(&role) {
            target.set_bulk_bytes_max(bytes);
            if bytes < BULK_BYTES_MAX {
                self.limits_bulk.store(true, Ordering::Relaxed);
            }
        }
    }

    /// How much data one request to a target has at most: what a message takes, unless it was
    /// changed.
    pub fn bulk_bytes_max(&self, role: TargetRole) -> usize {
        if !self.limits_bulk.load(Ordering::Relaxed) {
            return BULK_BYTES_MAX;
        }
        self.by_role.read().get(&role).map_or(BULK_BYTES_MAX, |target| target.bulk_bytes_max())
    }

    /// How many requests may be outstanding at a target.
    pub fn rpcs_in_flight_max(&self, role: TargetRole) -> Option<u16> {
        Some(self.by_role.read().get(&role)?.import().max_rpcs_in_flight())
    }

    /// The most requests that may be outstanding at a target with whatever its tuner chooses.
    pub fn rpcs_in_flight_limit(&self, role: TargetRole) -> Option<u16> {
        Some(self.by_role.read().get(&role)?.import().rpcs_in_flight_limit())
    }

    /// The tuner of requests to a target.
    pub fn tuning(&self, role: TargetRole) -> Option<Arc<Tuning>> {
        Some(self.by_role.read().get(&role)?.import().tuning().clone())
    }

    /// Switches the tuner of requests to a target on or off.
    pub fn set_tuner(&self, role: TargetRole, on: bool) {
        if let Some(target) = self.by_role.read().get(&role) {
            if on { target.import().tune() } else { target.import().stop_tuning() }
        }
    }

    /// Switches the tuner of requests to a target on; it begins with so many in flight.
    pub fn tune_from(&self, role: TargetRole, count: u16) {
        if let Some(target) = self.by_role.read().get(&role) {
            target.import().tune_from(count);
        }
    }

    fn connect(&self, fsname: &str, entry: &MapTarget, restarts: Arc<Restarts>) -> Import {
        let connector = &self.connector;
        let principal = connector.client_state.principal();
        let client = principal.client();
        let client_state = connector.client_state.clone();
        let recovery: Arc<dyn Recovery> = match entry.role {
            TargetRole::Mdt(mdt) => {
                let seams = connector.seams.clone();
                Arc::new(MdtRecovery::new(seams, mdt, client, self.this.clone(), client_state, restarts))
            }
            TargetRole::Ost(ost) => Arc::new(OstRecovery::new(ost, client, self.this.clone(), client_state, restarts)),
        };
        Import::new(
            connector.seams.clone(),
            &target_name(fsname, entry.role),
            (connector.resolve)(entry),
            principal,
            ImportOptions { timeout: self.timeout(entry), ..connector.options.lock().clone() },
            Some(recovery),
        )
    }

    /// The target of this role.
    pub fn get(&self, role: TargetRole) -> FsResult<Arc<TargetConnection>> {
        let target = self.by_role.read().get(&role).cloned().ok_or(FsError::NoDevice)?;
        assert_eq!(target.role(), role, "a target is in the table under its own role");
        Ok(target)
    }

    /// The MDT that holds an inode.
    pub fn mdt_of(&self, inode: InodeNumber) -> FsResult<Arc<TargetConnection>> {
        self.mdt(inode.mdt())
    }

    pub fn mdt(&self, index: MdtIndex) -> FsResult<Arc<TargetConnection>> {
        self.get(TargetRole::Mdt(index))
    }

    pub fn ost(&self, index: OstIndex) -> FsResult<Arc<TargetConnection>> {
        self.get(TargetRole::Ost(index))
    }

    /// Whether requests to an MDT may depend on another one.
    pub fn has_several_mdts(&self) -> bool {
        self.several_mdts.load(Ordering::Relaxed)
    }

    /// Pools of the newest map.
    pub fn pools(&self) -> Vec<Pool> {
        self.map.lock().pools.clone()
    }

    /// MDTs by index, then OSTs by index.
    pub fn all(&self) -> Vec<Arc<TargetConnection>> {
        self.by_role.read().values().cloned().collect()
    }
}
