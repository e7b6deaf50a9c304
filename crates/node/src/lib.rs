//! A process of the file system: its targets, its server, its clients, put together.
//!
//! Life cycle: [`Node::start`] locks and opens the targets, serves them, registers them at the
//! management service and follows the cluster map; [`Node::mount_client`] adds a client;
//! [`Node::stop`] ends everything in the opposite order.

mod absent_parameters;
mod background;
mod background_client;
mod balancer;
pub mod config;
mod connection_parameters;
mod control;
pub mod ctl;
mod daemon;
mod durable_file;
pub mod format;
pub mod fsck;
mod holders;
mod identity;
pub mod inspect;
pub mod key_file;
mod mdt_parameters;
pub mod mount;
pub mod mount_guard;
pub mod mount_options;
mod mount_parameters;
mod mover;
mod node_options;
mod one_device;
mod pages;
mod parameter_names;
mod parameters;
mod pool_parameters;
mod preflight;
mod private_file;
mod process;
mod processors;
pub mod reachability;
pub mod serve;
mod server_key;
mod service_manager;
mod service_parameters;
mod settings;
pub mod signals;
mod status;
pub mod storage;
pub mod system_log;
pub mod target;
mod target_parameters;
mod tuner_parameters;
pub mod tuner_state;
pub mod up;
mod worker;

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, bail};
use client::{FileSystem, MountOptions, Resolver};
use mds::Mdt;
use mgs::{Mgs, Registrar, Watcher, registrar};
use oss::{Ost, RateLimit};
use rpc::{
    Endpoint, Import, ImportOptions, Keyring, Principal, Server, ServerOptions,
    message::mgs::{ClusterMap, MapTarget, TargetRole, TargetState},
};
use rt::{Address, Addresses, Seams, real::Cores};
use tokio::sync::watch;
use types::{FsError, MdtIndex, OstIndex};

use background_client::BackgroundOptions;
use balancer::Balancer;
use config::{Role, TargetConfig};
use identity::{DirectoryLock, Identity};
use mount_parameters::ShownMount;
use mover::Mover;
pub use node_options::NodeOptions;
pub use process::seams;
use process::{client_name, host_name};
use target::{OpenTarget, Threads};

/// A session that sends nothing for this long is evicted.
const LEASE: Duration = Duration::from_secs(30);
/// Address of targets that only their own process can reach.
const LOCAL_ADDRESS: &str = "0@lo";

/// A target of this process, as the cluster map knows it.
pub struct Served<T> {
    /// Role and index.
    pub role: TargetRole,
    /// Identity.
    pub uuid: String,
    /// The target.
    pub target: Arc<T>,
}

/// A running process.
pub struct Node {
    options: NodeOptions,
    keys: Keyring,
    cores: Cores,
    seams: Seams,
    /// Blocking threads of the targets.
    pub threads: Threads,
    /// The server of this process's targets.
    pub server: Arc<Server>,
    /// Where it listens.
    pub address: Option<Address>,
    /// Management service.
    pub mgs: Option<Arc<Mgs>>,
    /// Metadata targets.
    pub mdts: Vec<Served<Mdt>>,
    /// Object storage targets.
    pub osts: Vec<Served<Ost>>,
    /// The imitated speed of this server, for all of them together.
    pub oss_limit: Arc<RateLimit>,
    /// The way to the management service.
    pub mgs_import: Import,
    /// The cluster map.
    pub watcher: Watcher,
    /// Mounted clients.
    pub clients: Mutex<Vec<Arc<FileSystem>>>,
    /// What parameters show of the mount.
    pub(crate) shown_mount: ShownMount,
    /// What works in the background for the metadata targets, in the same order.
    movers: Vec<Mover>,
    balancers: Vec<Balancer>,
    registrars: Vec<Registrar>,
    /// Version of the map that the metadata targets of this process know.
    applied: watch::Receiver<u64>,
    _locks: Vec<DirectoryLock>,
}

impl Node {
    /// Starts everything in `options`. The targets must be formatted.
    pub async fn start(cores: Cores, options: NodeOptions) -> anyhow::Result<Self> {
        let seams = seams(&cores);
        let mut locks = Vec::new();
        let mut identities = Vec::new();
        for target in &options.targets {
            identities.push(Identity::expect(target, &options.fsname)?);
            locks.push(DirectoryLock::take(&target.dir)?);
        }
        let keys = keys(&options)?;
        let server = Server::new(seams.clone(), ServerOptions::new(keys.clone()));
        let threads = Threads::start()?;
        let (mut mgs, mut mdts, mut osts) = (None, Vec::new(), Vec::new());
        let oss_limit: Arc<RateLimit> = Arc::default();
        for (target, identity) in options.targets.iter().zip(identities) {
            let name = target.name(&options.fsname);
            let uuid = identity.uuid;
            let opened = target::open(&seams, target, &options.fsname, &threads, options.memory_bytes, &keys).await;
            match opened.with_context(|| format!("cannot open {name} in {}", target.dir.display()))? {
                OpenTarget::Mgs(opened) => {
                    server.add_target(mgs::TARGET_NAME, opened.clone(), LEASE);
                    mgs = Some(opened);
                }
                OpenTarget::Mdt(opened) => {
                    server.add_target(&name, opened.clone(), LEASE);
                    let role = TargetRole::Mdt(MdtIndex(target.index));
                    mdts.push(Served { role, uuid, target: opened });
                }
                OpenTarget::Ost(opened) => {
                    server.add_target(&name, opened.clone(), LEASE);
                    let role = TargetRole::Ost(OstIndex(target.index));
                    opened.share_limit(Arc::clone(&oss_limit));
                    osts.push(Served { role, uuid, target: opened });
                }
            }
        }
        let address = match &options.listen {
            Some(listen) => Some(server.listen(listen).await.with_context(|| format!("cannot listen on {listen}"))?),
            None => None,
        };
        let endpoint = match &options.mgs {
            Some(remote) => Endpoint::Remote(remote.clone()),
            None => Endpoint::Local(Arc::clone(&server)),
        };
        let mgs_import = import(&seams, mgs::TARGET_NAME, endpoint, principal(&seams, options.mgs_role(), &keys));
        let watcher = match &mgs {
            Some(mgs) => Watcher::of(mgs.subscribe()),
            None => Watcher::start(&seams, mgs_import.clone()),
        };
        let mut node = Self {
            options,
            keys,
            cores,
            seams,
            threads,
            server,
            address,
            mgs,
            mdts,
            osts,
            oss_limit,
            mgs_import,
            watcher,
            clients: Mutex::default(),
            shown_mount: ShownMount::default(),
            movers: Vec::new(),
            balancers: Vec::new(),
            registrars: Vec::new(),
            applied: watch::channel(0).1,
            _locks: locks,
        };
        if !node.options.targets.is_empty() {
            node.end_with_targets();
        }
        parameters::tune_services(&node);
        node.register();
        node.applied = node.follow_map();
        (node.movers, node.balancers) = node.start_background_work();
        Ok(node)
    }

    /// A process with one client of a remote file system.
    pub async fn connect(
        cores: Cores,
        mgs: &Addresses,
        fsname: &str,
        keys: Keyring,
    ) -> anyhow::Result<(Self, Arc<FileSystem>)> {
        let node = Self::start(cores, NodeOptions::client(mgs, fsname, rpc::Role::Client, keys)).await?;
        let file_system = node.mount_client().await?;
        Ok((node, file_system))
    }

    /// Ends the process once all its targets are out of service because they panicked: the service
    /// manager or the administrator starts it again, and the targets continue from their journals.
    fn end_with_targets(&self) {
        let server = Arc::clone(&self.server);
        let watch = async move {
            server.all_failed().await;
            tracing::error!("all targets of this process are out of service; exiting");
            std::process::abort();
        };
        self.seams.spawn.spawn("end_with_targets", Box::pin(watch));
    }

    /// The keys of this process.
    pub fn keys(&self) -> &Keyring {
        &self.keys
    }

    /// A new client or tool of this process.
    pub fn principal(&self, role: rpc::Role) -> Principal {
        principal(&self.seams, role, &self.keys)
    }

    /// File system of this process.
    pub fn fsname(&self) -> &str {
        &self.options.fsname
    }

    /// Directories of the object storage targets of this process.
    pub fn ost_directories(&self) -> impl Iterator<Item = &Path> {
        let osts = self.options.targets.iter().filter(|target| target.role == Role::Ost);
        osts.map(|target| target.dir.as_path())
    }

    /// The process's cores.
    pub fn cores(&self) -> &Cores {
        &self.cores
    }

    /// The process's seams.
    pub fn seams(&self) -> &Seams {
        &self.seams
    }

    /// Adds a client. Waits for the management service and the first metadata target.
    pub async fn mount_client(&self) -> anyhow::Result<Arc<FileSystem>> {
        self.mount_client_telling(|_| ()).await
    }

    /// The same, and tells what it waits for.
    pub async fn mount_client_telling(&self, tell: impl Fn(&str)) -> anyhow::Result<Arc<FileSystem>> {
        let known = async {
            self.registered().await?;
            self.known_map().await
        };
        reachability::tell_while_any([&self.mgs_import], known, &tell).await.0?;
        let mut options =
            MountOptions::new(self.watcher.subscribe(), self.resolver(), self.principal(rpc::Role::Client));
        options.import.tunes = true;
        let file_system = FileSystem::connect(self.seams.clone(), options).await?;
        if !self.mdts.is_empty() {
            // No message is saved, and the next request would wait for the close (0059).
            file_system.set_close_delay_ms(0);
        }
        let root = file_system.root_import()?;
        let deadline = self.seams.clock.now() + reachability::TIMEOUT;
        let found = rt::clock::timeout_at(&*self.seams.clock, deadline, file_system.find_root());
        let found = match reachability::tell_while_any([&root], found, &tell).await.0 {
            Some(found) => found.map_err(anyhow::Error::from),
            None => Err(anyhow::anyhow!("{}", reachability::cannot_reach(&root))),
        };
        if let Err(error) = found {
            file_system.unmount().await;
            return Err(error);
        }
        self.clients.lock().expect("no panic while locked").push(Arc::clone(&file_system));
        Ok(file_system)
    }

    /// The cluster map, once it has the first metadata target. Fails at once if the MGS refuses
    /// this client.
    pub async fn known_map(&self) -> anyhow::Result<Arc<ClusterMap>> {
        let root = TargetRole::Mdt(MdtIndex(0));
        let known = async {
            tokio::select! {
                biased;
                known = self.watcher.wait_for(|map| map.targets.iter().any(|target| target.role == root)) => Ok(known?),
                refused = self.mgs_import.refusal() => {
                    Err(refused).with_context(|| format!("refused by MGS {}", self.mgs_import.endpoint()))
                }
            }
        };
        let deadline = self.seams.clock.now() + reachability::TIMEOUT;
        let Some(map) = rt::clock::timeout_at(&*self.seams.clock, deadline, known).await else {
            match self.watcher.map().version {
                0 => bail!("{}", reachability::cannot_reach(&self.mgs_import)),
                _ => bail!(
                    "no metadata target has registered with MGS {}; is stria serve running on its host?",
                    self.mgs_import.endpoint()
                ),
            }
        };
        let map = map?;
        if map.fsname != self.options.fsname {
            bail!("the file system at this address is '{}', not '{}'", map.fsname, self.options.fsname);
        }
        Ok(map)
    }

    /// Names of the targets of this process.
    fn own_targets(&self) -> BTreeSet<TargetRole> {
        self.options.targets.iter().filter_map(TargetConfig::map_role).collect()
    }

    /// Names of targets that this process has served and no longer serves: they cannot be found at
    /// its address. Nothing is known about those that it served under another address, unless it
    /// had none then: they may belong to another host.
    pub fn missing_targets(&self) -> Vec<String> {
        missing_targets(&self.watcher.map(), &self.own_targets(), &self.places())
    }

    /// Where the targets of this process are, as the cluster map has it.
    fn places(&self) -> Vec<String> {
        match (&self.options.advertise, &self.address) {
            (Some(advertised), _) => advertised.to_texts(),
            (None, Some(address)) => vec![address.to_string()],
            (None, None) => vec![LOCAL_ADDRESS.to_owned()],
        }
    }

    /// Where the management service is; `None` if only this process reaches it.
    pub fn mgs_address(&self) -> Option<String> {
        let own = || self.address.as_ref().map(|_| self.places().join(","));
        self.options.mgs.as_ref().map(ToString::to_string).or_else(own)
    }

    /// The way to a target: directly if it is of this process, else over the network.
    pub fn resolver(&self) -> Resolver {
        let (own, server) = (self.own_targets(), Arc::clone(&self.server));
        Arc::new(move |target: &MapTarget| match own.contains(&target.role) {
            true => Endpoint::Local(Arc::clone(&server)),
            false => Endpoint::Remote(Addresses::of_texts(&target.addresses)),
        })
    }

    fn start_background_work(&self) -> (Vec<Mover>, Vec<Balancer>) {
        let (maps, resolver) = (self.watcher.subscribe(), self.resolver());
        let (seams, keys) = (self.seams.clone(), self.keys.clone());
        let options: BackgroundOptions = Arc::new(move || {
            let principal = principal(&seams, rpc::Role::Mover, &keys);
            MountOptions::new(maps.clone(), Arc::clone(&resolver), principal)
        });
        let start = |mdt: &Served<Mdt>| {
            let mover = Mover::start(&self.seams, &mdt.target, options.clone());
            (mover, Balancer::start(&self.seams, &mdt.target, options.clone()))
        };
        self.mdts.iter().map(start).unzip()
    }

    /// Reports this process's targets to the management service from now on.
    fn register(&mut self) {
        let addresses = self.places();
        let identity = |role, uuid: &str| registrar::Identity {
            fsname: self.options.fsname.clone(),
            role,
            uuid: uuid.to_owned(),
            addresses: addresses.clone(),
        };
        let mut registrars = Vec::new();
        for mdt in &self.mdts {
            let measured = Arc::clone(&mdt.target);
            let measure: registrar::Measure = Arc::new(move || {
                let mdt = Arc::clone(&measured);
                Box::pin(async move { (mdt.space().await.unwrap_or_default(), Default::default()) })
            });
            let import = self.mgs_import.clone();
            registrars.push(Registrar::start(&self.seams, import, identity(mdt.role, &mdt.uuid), measure));
        }
        for ost in &self.osts {
            let measured = Arc::clone(&ost.target);
            let measure: registrar::Measure = Arc::new(move || {
                let ost = Arc::clone(&measured);
                Box::pin(async move { (ost.space().await.unwrap_or_default(), ost.condition()) })
            });
            let import = self.mgs_import.clone();
            registrars.push(Registrar::start(&self.seams, import, identity(ost.role, &ost.uuid), measure));
        }
        self.registrars = registrars;
    }

    /// Tells the metadata targets where the object storage targets and the other metadata targets
    /// are, now and whenever it changes.
    fn follow_map(&self) -> watch::Receiver<u64> {
        let (applied, versions) = watch::channel(0);
        let (mut maps, mdts, resolve) = (
            self.watcher.subscribe(),
            self.mdts.iter().map(|mdt| Arc::clone(&mdt.target)).collect::<Vec<_>>(),
            self.resolver(),
        );
        self.seams.spawn.spawn(
            "map_follower",
            Box::pin(async move {
                loop {
                    let map = maps.borrow_and_update().clone();
                    // Version 0 says that nothing is known yet, not that there are no OSTs.
                    if map.version > 0 {
                        let osts = ost_endpoints(&map, &resolve);
                        let others = mdt_endpoints(&map, &resolve);
                        for mdt in &mdts {
                            mdt.update_pools(&map.pools);
                            mdt.update_map(&osts);
                            mdt.update_mdts(&others);
                        }
                    }
                    applied.send_replace(map.version);
                    if maps.changed().await.is_err() {
                        return;
                    }
                }
            }),
        );
        versions
    }

    /// Waits until all targets of this process are registered and its metadata targets know of
    /// them; an error says which is not and why.
    pub async fn registered(&self) -> anyhow::Result<()> {
        for registrar in &self.registrars {
            registrar.first().await.context("cannot register a target with the management service")?;
        }
        if !self.registrars.is_empty() {
            let known = self.watcher.map().version;
            let mut applied = self.applied.clone();
            applied
                .wait_for(|version| *version >= known)
                .await
                .context("this process no longer follows the cluster map")?;
        }
        Ok(())
    }

    /// Waits until all targets of this process are registered, however often that fails before.
    pub async fn all_registered(&self) {
        for registrar in &self.registrars {
            registrar.succeeded().await;
        }
    }

    /// Completes only if the management service refuses one of the targets, with the reason.
    pub async fn refused(&self) -> anyhow::Error {
        for registrar in &self.registrars {
            if let Err(FsError::Refused(reason)) = registrar.first().await {
                return anyhow::anyhow!("the management service refuses a target of this host: {reason}");
            }
        }
        std::future::pending().await
    }

    /// Ends clients, then the server, then the targets. Everything acknowledged is durable
    /// afterwards, and the targets' directories are no longer in use, even if handles of a client
    /// of this process, or of a target, still exist.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        for mover in std::mem::take(&mut self.movers) {
            mover.stop().await;
        }
        for balancer in std::mem::take(&mut self.balancers) {
            balancer.stop().await;
        }
        let clients = std::mem::take(&mut *self.clients.lock().expect("no panic while locked"));
        for client in clients {
            client.unmount().await;
        }
        self.registrars.clear();
        self.mgs_import.close().await;
        self.server.stop().await;
        // Every target is stopped, whatever became of the others.
        let mut outcome = Ok(());
        for mdt in &self.mdts {
            outcome = outcome.and(mdt.target.stop().await.context("stopping a metadata target"));
        }
        for ost in &self.osts {
            outcome = outcome.and(ost.target.stop().await.context("stopping an object storage target"));
        }
        if let Some(mgs) = &self.mgs {
            outcome = outcome.and(mgs.close().await.context("stopping the management service"));
        }
        // What was given up half way may still write.
        self.threads.ost_io.rest().await;
        self.threads.ost_flush.rest().await;
        self.threads.flush.rest().await;
        outcome
    }
}

fn ost_endpoints(map: &ClusterMap, resolve: &Resolver) -> Vec<(OstIndex, Endpoint, bool)> {
    map.targets
        .iter()
        .filter_map(|target| match target.role {
            TargetRole::Ost(index) => Some((index, resolve(target), target.state == TargetState::Active)),
            TargetRole::Mdt(_) => None,
        })
        .collect()
}

fn mdt_endpoints(map: &ClusterMap, resolve: &Resolver) -> Vec<(MdtIndex, Endpoint, bool)> {
    map.targets
        .iter()
        .filter_map(|target| match target.role {
            TargetRole::Mdt(index) => Some((index, resolve(target), target.state == TargetState::Active)),
            TargetRole::Ost(_) => None,
        })
        .collect()
}

/// Names of targets at an address of this process, or of a process that no other host can reach,
/// that are not its own.
fn missing_targets(map: &ClusterMap, own: &BTreeSet<TargetRole>, places: &[String]) -> Vec<String> {
    let is_here = |address: &String| places.contains(address) || address == LOCAL_ADDRESS;
    let here = |target: &&MapTarget| target.addresses.iter().any(is_here);
    let lost = map.targets.iter().filter(here).filter(|target| !own.contains(&target.role));
    lost.map(|target| target.role.target_name(&map.fsname)).collect()
}

fn import(seams: &Seams, name: &str, endpoint: Endpoint, principal: Principal) -> Import {
    Import::new(seams.clone(), name, endpoint, principal, ImportOptions::default(), None)
}

/// A new client of this process.
fn principal(seams: &Seams, role: rpc::Role, keys: &Keyring) -> Principal {
    Principal::random(&*seams.entropy, role, &host_name(), &client_name(), keys.clone())
}

/// The keys of a process: those of its targets, if it has some.
fn keys(options: &NodeOptions) -> anyhow::Result<Keyring> {
    let of_targets = server_key::of_targets(&options.targets, &options.fsname)?;
    Ok(of_targets.map_or_else(|| options.keys.clone(), Keyring::server))
}

#[cfg(test)]
mod tests;
