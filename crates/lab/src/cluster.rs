//! A whole cluster in one simulation: one MGS, an MDS for each MDT, several OSS and several
//! clients, each a process on a host of its own.
//!
//! All of it is the shipped code; the lab only starts processes, ends them and keeps their disks. A
//! server has the same address before and after a restart.
//!
//! States of a server: *down* (no process), *starting* (its process opens the target), *ready*. If
//! a target does not open, the run fails: see [`Cluster::failed`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use client::{FileSystem, MountOptions};
use mgs::Watcher;
use oss::Engine;
use parking_lot::Mutex;
use rt::{Cpu, Seams};
use tokio::sync::{oneshot, watch};
use types::OstIndex;

use crate::{
    Process, ProcessId, Random, Simulation,
    device::{Disk, DiskModel, DiskPart},
    directory_places::Places,
    hardware::Hardware,
    log::EventLog,
    network::Network,
    process::FIRST_BOOT,
    server::{self, Role, Serving, Settings},
    upper_cache::UpperCopies,
};

/// Size and settings of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Metadata targets, at least 1.
    pub mdts: u16,
    /// Object storage targets.
    pub osts: u16,
    /// Targets of each object storage server, at least 1.
    pub osts_per_server: u16,
    /// Clients.
    pub clients: u16,
    /// Settings of everything that runs.
    pub settings: Settings,
}

/// How far a server's present process is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Boot {
    Starting,
    Ready,
}

struct Running {
    process: Process,
    boot: watch::Receiver<Boot>,
    /// What the process serves, once it is ready.
    serving: Arc<Mutex<Option<Serving>>>,
}

struct ServerHost {
    /// One for each target.
    disks: Vec<Disk>,
    /// Number of the host's present run.
    boot: u64,
    running: Option<Running>,
}

struct ClientHost {
    process: Process,
    seams: Seams,
    file_system: Arc<FileSystem>,
    upper: Option<Arc<UpperCopies>>,
    maps: Watcher,
}

struct Inner {
    simulation: Simulation,
    network: Network,
    log: EventLog,
    seed: u64,
    options: ClusterOptions,
    /// The cores of each host, in experiments.
    cpus: BTreeMap<String, Cpu>,
    next_process: AtomicU32,
    servers: Mutex<BTreeMap<Role, ServerHost>>,
    clients: Mutex<BTreeMap<u16, ClientHost>>,
    places: Places,
    /// Why the run cannot continue, once it cannot.
    failure: watch::Sender<Option<String>>,
}

/// A cluster. Cheap to clone.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

/// Name of a client's host.
pub fn client_host(client: u16) -> String {
    format!("client{client}")
}

impl Cluster {
    /// Formats all targets, starts all servers, mounts all clients.
    pub async fn start(
        simulation: &Simulation,
        log: &EventLog,
        seed: u64,
        options: ClusterOptions,
    ) -> Result<Cluster, String> {
        Self::start_on(None, simulation, log, seed, options).await
    }

    /// As [`Cluster::start`], on this hardware.
    pub async fn start_on(
        hardware: Option<&dyn Hardware>,
        simulation: &Simulation,
        log: &EventLog,
        seed: u64,
        options: ClusterOptions,
    ) -> Result<Cluster, String> {
        let network = Network::new(simulation, seed);
        let network = match hardware {
            Some(hardware) => network.with_links(hardware.links()),
            None => network,
        };
        let (clients, places) = (options.clients, Places::new(options.mdts));
        let mut roles = vec![Role::Mgs];
        roles.extend((0..options.mdts).map(Role::Mds));
        roles.extend((0..options.osts.div_ceil(options.osts_per_server.max(1))).map(Role::Oss));
        let hosts = roles.iter().map(|role| role.host()).chain((0..clients).map(client_host));
        let cores = |host: String| hardware.map(|hardware| (host.clone(), hardware.processors(simulation, &host)));
        let cpus = hosts.filter_map(cores).collect();
        let cluster = Cluster(Arc::new(Inner {
            simulation: simulation.clone(),
            network,
            log: log.clone(),
            seed,
            options,
            cpus,
            next_process: AtomicU32::new(1),
            servers: Mutex::default(),
            clients: Mutex::default(),
            places,
            failure: watch::Sender::new(None),
        }));
        for role in roles {
            cluster.format(role, hardware).await?;
            cluster.start_server(role);
        }
        cluster.ready().await?;
        for client in 0..clients {
            cluster.mount(client).await?;
        }
        Ok(cluster)
    }

    /// The world it runs in.
    pub fn simulation(&self) -> &Simulation {
        &self.0.simulation
    }

    /// Its network.
    pub fn network(&self) -> &Network {
        &self.0.network
    }

    /// The event log.
    pub fn log(&self) -> &EventLog {
        &self.0.log
    }

    /// The seed everything follows.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Where directories are put.
    pub fn places(&self) -> &Places {
        &self.0.places
    }

    /// Size and settings.
    pub fn options(&self) -> &ClusterOptions {
        &self.0.options
    }

    /// All metadata servers.
    pub fn mds_roles(&self) -> impl Iterator<Item = Role> + use<> {
        (0..self.0.options.mdts).map(Role::Mds)
    }

    /// All servers.
    pub fn roles(&self) -> Vec<Role> {
        self.0.servers.lock().keys().copied().collect()
    }

    /// Names of all hosts.
    pub fn hosts(&self) -> Vec<String> {
        let servers = self.roles().into_iter().map(Role::host);
        servers.chain((0..self.0.options.clients).map(client_host)).collect()
    }

    /// A new process on `host`.
    pub fn process(&self, host: &str) -> Process {
        let id = ProcessId(self.0.next_process.fetch_add(1, Ordering::Relaxed));
        let cpu = self.0.cpus.get(host).cloned().unwrap_or_default();
        Process::start(&self.0.simulation, &self.0.network, id, host, self.0.seed).on_cores(cpu)
    }

    /// The output of `work`, or `None` if this much virtual time passes first.
    pub async fn within<T>(&self, duration: Duration, work: impl Future<Output = T>) -> Option<T> {
        let sleep = self.0.simulation.sleep(duration);
        tokio::select! {
            biased;
            value = work => Some(value),
            () = sleep => None,
        }
    }

    async fn format(&self, role: Role, hardware: Option<&dyn Hardware>) -> Result<(), String> {
        let takes_no_time = hardware.is_some_and(|hardware| hardware.tables_take_no_time());
        let tables = if takes_no_time { DiskModel::INSTANT } else { DiskModel::default() };
        let disk = |name: &str| Disk::new(&self.0.simulation, name, self.0.seed, tables);
        let mut disks: Vec<Disk> = match role {
            Role::Oss(_) => {
                let settings = &self.0.options.settings;
                let of_ost = |ost: OstIndex| match settings.engines.of(ost, &settings.store) {
                    Engine::Blocks { blocks, tables: Some(tables) } => {
                        disk(&format!("oss{}", ost.0)).with_tables_on_device(blocks, tables)
                    }
                    Engine::Blocks { .. } | Engine::Directory => disk(&format!("oss{}", ost.0)),
                };
                self.osts_of(role).map(of_ost).collect()
            }
            Role::Mgs | Role::Mds(_) => vec![disk(&role.host())],
        };
        if let Some(hardware) = hardware {
            let on = |(disk, ost): (Disk, OstIndex)| disk.with_objects_on(hardware.objects(&self.0.simulation, ost.0));
            let osts: Vec<OstIndex> = self.osts_of(role).collect();
            if !osts.is_empty() {
                disks = disks.into_iter().zip(osts).map(on).collect();
            }
        }
        let process = self.process(&role.host());
        let (targets, settings, seams) = (self.targets(role, &disks), self.0.options.settings.clone(), process.seams());
        let formatted =
            self.run_in(&process, async move { server::format(role, &seams, &targets, &settings).await }).await;
        formatted.unwrap_or_else(|| Err("the formatting process died".to_owned()))?;
        process.kill();
        disks.iter_mut().for_each(Disk::process_died);
        self.0.servers.lock().insert(role, ServerHost { disks, boot: FIRST_BOOT, running: None });
        Ok(())
    }

    /// The object storage targets of a role.
    fn osts_of(&self, role: Role) -> impl Iterator<Item = OstIndex> + use<> {
        let ClusterOptions { osts, osts_per_server, .. } = self.0.options;
        role.osts(osts_per_server.max(1)).filter(move |ost| ost.0 < osts)
    }

    /// The targets of a role with what a process opens of their disks.
    fn targets(&self, role: Role, disks: &[Disk]) -> Vec<server::TargetDevices> {
        let mut osts = self.osts_of(role);
        disks.iter().map(|disk| server::TargetDevices { ost: osts.next(), devices: disk.open() }).collect()
    }

    /// Runs `work` as a task of `process`; `None` if the process dies before it completes.
    async fn run_in<T: Send + 'static>(
        &self,
        process: &Process,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.begin_in(process, work).await.ok()
    }

    fn begin_in<T: Send + 'static>(
        &self,
        process: &Process,
        work: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, result) = oneshot::channel();
        let task = async move {
            // No task waits any more if the run has ended.
            let _ = done.send(work.await);
        };
        self.0.simulation.spawn(process.id, "work", Box::pin(task));
        result
    }

    /// Starts a server that is down. Its disk is as the last process or the power loss left it.
    pub fn start_server(&self, role: Role) {
        let (starting, boot) = watch::channel(Boot::Starting);
        let serving = Arc::new(Mutex::new(None));
        self.0.network.set_power(&role.host(), true);
        let mut servers = self.0.servers.lock();
        let host = servers.get_mut(&role).expect("every role has a host");
        assert!(host.running.is_none(), "{role} is already running");
        let process = self.process(&role.host()).in_run(host.boot);
        let (targets, settings, seams) =
            (self.targets(role, &host.disks), self.0.options.settings.clone(), process.seams());
        let (slot, log, failure) = (serving.clone(), self.0.log.clone(), self.0.failure.clone());
        let boot_task = async move {
            match server::open(role, &seams, targets, &settings).await {
                Ok(opened) => {
                    *slot.lock() = Some(opened);
                    log.event(&role.host(), "ready");
                    starting.send_replace(Boot::Ready);
                }
                Err(error) => {
                    log.event(&role.host(), format_args!("does not start: {error}"));
                    failure.send_replace(Some(format!("{role} does not start: {error}")));
                }
            }
            std::future::pending::<()>().await;
        };
        self.0.log.event(&role.host(), format_args!("starts as {}", process.id));
        self.0.simulation.spawn(process.id, "boot", Box::pin(boot_task));
        host.running = Some(Running { process, boot, serving });
    }

    /// Ends a server's process at once (kill -9). What it wrote stays. False if it is down already.
    pub fn kill_server(&self, role: Role) -> bool {
        let mut servers = self.0.servers.lock();
        let host = servers.get_mut(&role).expect("every role has a host");
        let Some(running) = host.running.take() else { return false };
        drop(servers);
        self.0.log.event(&role.host(), "killed");
        running.process.kill();
        drop(running.serving.lock().take());
        let mut servers = self.0.servers.lock();
        let host = servers.get_mut(&role).expect("every role has a host");
        host.disks.iter_mut().for_each(Disk::process_died);
        true
    }

    /// Stops a server's process (SIGSTOP); the caller has to resume it. `None` if it is down.
    pub fn stop_server(&self, role: Role) -> Option<Process> {
        let process = self.0.servers.lock()[&role].running.as_ref()?.process.clone();
        self.0.log.event(&role.host(), "stopped");
        process.stop();
        Some(process)
    }

    /// From now on operations on these devices of a server hang, or those that hang continue.
    pub fn hang(&self, role: Role, part: DiskPart, hangs: bool) {
        self.0.servers.lock()[&role].disks.iter().for_each(|disk| disk.hang(part, hangs));
    }

    /// Takes a server's power away: its process ends, and of what it did not flush the seed decides
    /// what is left.
    pub fn lose_power(&self, role: Role) {
        self.kill_server(role);
        self.0.network.set_power(&role.host(), false);
        let mut servers = self.0.servers.lock();
        let host = servers.get_mut(&role).expect("every role has a host");
        let unflushed: Vec<_> = host.disks.iter_mut().map(Disk::lose_power).collect();
        host.boot += 1;
        drop(servers);
        for unflushed in unflushed {
            self.0.log.event(&role.host(), format_args!("without power, unflushed writes: {unflushed:?}"));
        }
    }

    /// Whether a server has ever lost power.
    pub fn lost_power(&self, role: Role) -> bool {
        self.0.servers.lock()[&role].boot > FIRST_BOOT
    }

    /// Whether a server has a process.
    pub fn is_up(&self, role: Role) -> bool {
        self.0.servers.lock()[&role].running.is_some()
    }

    /// What a server runs now; `None` unless it is ready.
    pub fn inspect<T>(&self, role: Role, look: impl FnOnce(&Serving) -> T) -> Option<T> {
        let serving = self.0.servers.lock()[&role].running.as_ref()?.serving.clone();
        let serving = serving.lock();
        serving.as_ref().map(look)
    }

    /// The process of a server; `None` if it has none.
    pub fn process_of(&self, role: Role) -> Option<ProcessId> {
        self.0.servers.lock()[&role].running.as_ref().map(|running| running.process.id)
    }

    /// The cluster maps that clients and servers follow, with the host and the process of each.
    pub fn watchers(&self) -> Vec<(String, ProcessId, Watcher)> {
        let clients = self.0.clients.lock();
        let of_client =
            |(client, host): (&u16, &ClientHost)| (client_host(*client), host.process.id, host.maps.clone());
        let mut watchers: Vec<_> = clients.iter().map(of_client).collect();
        drop(clients);
        for role in self.roles() {
            let Some(process) = self.process_of(role) else { continue };
            let maps = self.inspect(role, |serving| serving.maps.clone()).flatten();
            watchers.extend(maps.map(|maps| (role.host(), process, maps)));
        }
        watchers
    }

    /// The run cannot continue.
    pub(crate) fn fail(&self, reason: String) {
        self.0.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert(reason);
            first
        });
    }

    /// Completes when the run cannot continue, with the reason: a target does not open, or an
    /// invariant does not hold.
    pub async fn failed(&self) -> String {
        let mut failure = self.0.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await.map(|reason| reason.clone());
        failed.ok().flatten().unwrap_or_default()
    }

    /// Starts every server that is down and waits until all are ready. Waits forever if a target
    /// does not open: see [`Cluster::failed`].
    pub async fn ready(&self) -> Result<(), String> {
        for role in self.roles() {
            if !self.is_up(role) {
                self.start_server(role);
            }
        }
        for role in self.roles() {
            let boot = self.0.servers.lock()[&role].running.as_ref().map(|running| running.boot.clone());
            let gone = || format!("{role} went down while everybody waited for it");
            let mut boot = boot.ok_or_else(gone)?;
            boot.wait_for(|boot| *boot == Boot::Ready).await.map_err(|_| gone())?;
        }
        Ok(())
    }

    /// Starts a client's process and mounts the file system in it.
    pub async fn mount(&self, client: u16) -> Result<(), String> {
        let host = client_host(client);
        let process = self.process(&host);
        let (seams, settings, name) = (process.seams(), self.0.options.settings.clone(), host.clone());
        let inner = seams.clone();
        let mounting = async move {
            let watcher = Watcher::start(&inner, server::mgs_import(&inner, &name, &settings));
            let mut options = MountOptions::new(
                watcher.subscribe(),
                Arc::new(server::endpoint),
                server::principal(&inner, rpc::Role::Client, &name),
            );
            options.import = settings.import.clone();
            FileSystem::mount(inner, options).await.map(|file_system| (file_system, watcher))
        };
        let mounted = self.run_in(&process, mounting).await.ok_or("the client died while it mounted")?;
        let (file_system, maps) = mounted.map_err(|error| format!("{host} cannot mount: {error}"))?;
        self.0.log.event(&host, format_args!("mounted as {}", process.id));
        let upper = self.0.options.settings.upper_cache.map(|plan| {
            let random = Random::for_purpose(self.0.seed, &format!("{host} upper cache"));
            UpperCopies::above(&file_system, &seams, random, plan)
        });
        self.0.clients.lock().insert(client, ClientHost { process, seams, file_system, upper, maps });
        Ok(())
    }

    /// Ends a client's process at once. False if there is none.
    pub fn kill_client(&self, client: u16) -> bool {
        let Some(host) = self.0.clients.lock().remove(&client) else { return false };
        self.0.log.event(&client_host(client), "killed");
        host.process.kill();
        true
    }

    /// Stops a client's process (SIGSTOP); the caller has to resume it. `None` if there is none.
    pub fn stop_client(&self, client: u16) -> Option<Process> {
        let process = self.0.clients.lock().get(&client)?.process.clone();
        process.stop();
        Some(process)
    }

    /// The first MDT evicts a client, if it serves at this moment.
    pub fn evict(&self, client: u16) {
        let (role, Some((file_system, _))) = (Role::Mds(0), self.file_system(client)) else { return };
        let server = self.inspect(role, |serving| serving.server.clone());
        let (Some(server), Some(process)) = (server, self.process_of(role)) else { return };
        let evict = async move {
            // It may have no session there.
            let _ = server.evict(&role.target_name(), file_system.client_id()).await;
        };
        self.0.simulation.spawn(process, "eviction", Box::pin(evict));
    }

    /// Unmounts a client cleanly and ends its process.
    pub async fn unmount(&self, client: u16) {
        let Some(host) = self.0.clients.lock().remove(&client) else { return };
        let file_system = host.file_system.clone();
        self.run_in(&host.process, async move { file_system.unmount().await }).await;
        self.0.log.event(&client_host(client), "unmounted");
        host.process.kill();
    }

    /// Clients that are mounted.
    pub fn clients(&self) -> Vec<u16> {
        self.0.clients.lock().keys().copied().collect()
    }

    /// The file system as mounted by a client, with the seams of its process.
    pub fn file_system(&self, client: u16) -> Option<(Arc<FileSystem>, Seams)> {
        let clients = self.0.clients.lock();
        clients.get(&client).map(|host| (host.file_system.clone(), host.seams.clone()))
    }

    /// The caches above clients, where they have one.
    pub fn upper_caches(&self) -> Vec<(u16, Arc<UpperCopies>)> {
        let clients = self.0.clients.lock();
        clients.iter().filter_map(|(client, host)| Some((*client, host.upper.clone()?))).collect()
    }

    /// The file systems as mounted by all clients.
    pub fn file_systems(&self) -> Vec<(u16, Arc<FileSystem>)> {
        self.0.clients.lock().iter().map(|(client, host)| (*client, host.file_system.clone())).collect()
    }

    /// Runs `work` as a task of a client's process; `None` if the process is not there or dies
    /// before it completes.
    pub async fn on_client<T: Send + 'static>(
        &self,
        client: u16,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.begin_on_client(client, work).await
    }

    /// As [`Cluster::on_client`], but the work begins at once, before the future is polled.
    pub fn begin_on_client<T: Send + 'static>(
        &self,
        client: u16,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Option<T>> + Send + 'static {
        let process = self.0.clients.lock().get(&client).map(|host| host.process.clone());
        let begun = process.map(|process| self.begin_in(&process, work));
        async move { begun?.await.ok() }
    }
}
