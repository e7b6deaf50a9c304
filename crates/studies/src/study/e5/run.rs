//! Runs a cell of E5 in virtual time: the shipped MDS and client on modelled cores and links.
//!
//! As mdsrate does it: every task makes, looks at and removes files of its own, one after the
//! other, and a phase lasts from the first task's start to the last one's end. Tasks are spread
//! over client nodes in turn, then over the mounts of a node, so the tasks of a directory are on
//! several nodes. Between phases all clients give their locks back, as benchmarks of Lustre do
//! (`lru_size=clear`): otherwise stat would show what clients have cached.
//!
//! MDTs of one MDS share its cores and its link. An MDT executes reads beside each other and a
//! change alone: the lock of its namespace costs nothing by itself in the lab, so it is part of the
//! hardware here ([`crate::model::namespace_lock`]). Downside: MDTs of one MDS are processes of
//! their own here, which do not share service threads.

use std::{sync::Arc, time::Duration};

use client::FileSystem;
use lab::{
    cluster::{Cluster, client_host},
    processors::{Costs, ProcessorModel, ProcessorUse},
    server::Role,
};
use types::{DirectoryPlace, InodeNumber, MdtIndex};

use super::{
    Amount, Cell, NODE_CORES, NODES, Outcome, PHASES, SERVER_CORES,
    task::{self, Requests, Task},
};
use crate::{
    model::{HardwareModel, Machines, ModelledHardware, NodeModels, costs, namespace_lock::LockCosts},
    study::run::{Testbed, all_at_once, on_cluster},
};

/// Memory that a request to the metadata uses again and again: some pages (assumed). With the 1 MiB
/// of a request with data, an MDS for which more than 15 requests wait would spend most of its time
/// in filling caches again, and those that all clients ask first would never catch up.
const WORKING_SET_BYTES: u64 = 16 << 10;

/// A file system on modelled hardware.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// What code costs.
    pub costs: Costs,
    /// The lock of an MDT's namespace; `None`: it keeps nobody waiting.
    pub namespace_lock: Option<LockCosts>,
}

impl Hardware {
    fn testbed(self, cell: Cell, mounts: u16) -> Testbed {
        let e1 = Testbed::e1(false);
        let links = crate::model::links::LinkModel { routers: 0, osts_per_machine: 1, ..e1.hardware.links };
        let node = |cores| ProcessorModel { working_set_bytes: WORKING_SET_BYTES, ..costs::node(cores, self.costs) };
        let processors = NodeModels { server: node(SERVER_CORES), client: node(NODE_CORES) };
        let machines =
            Machines { mdts: cell.mdts, clients: mounts.div_ceil(NODES), namespace_lock: self.namespace_lock };
        let hardware =
            HardwareModel { processors: Some(processors), machines, ..HardwareModel::new(links, e1.hardware.spindle) };
        Testbed { mdts: cell.mdts_in_all(), osts: 1, clients: mounts, hardware, ..e1 }
    }
}

/// Mounts that a cell uses: of whole nodes, and not more of them than it has tasks.
fn mounts_of(cell: Cell, amount: Amount) -> u16 {
    let all = u32::from(NODES) * u32::from(amount.mounts);
    cell.load.tasks().min(all) as u16
}

/// Runs one cell.
pub fn run(cell: Cell, amount: Amount, hardware: Hardware, seed: u64) -> Result<Vec<Outcome>, String> {
    let mounts = mounts_of(cell, amount);
    on_cluster(hardware.testbed(cell, mounts), seed, move |cluster, hardware| async move {
        all_mdts_known(&cluster, cell.mdts_in_all()).await?;
        let world = World::prepare(cell, amount, cluster, hardware).await?;
        let mut outcomes = Vec::new();
        for phase in PHASES {
            outcomes.push(world.phase(phase).await.map_err(|error| format!("{}, {phase}: {error}", cell.name()))?);
            world.give_locks_back().await?;
        }
        Ok(outcomes)
    })
}

/// Waits until every client knows every MDT.
async fn all_mdts_known(cluster: &Cluster, mdts: u16) -> Result<(), String> {
    let last = MdtIndex(mdts - 1);
    for _ in 0..1000 {
        if cluster.file_systems().iter().all(|(_, file_system)| file_system.cached_locks(last).is_ok()) {
            return Ok(());
        }
        cluster.simulation().sleep(Duration::from_millis(100)).await;
    }
    Err(format!("clients do not know all of {mdts} metadata targets"))
}

struct World {
    cell: Cell,
    task_files: u64,
    cluster: Cluster,
    hardware: Arc<ModelledHardware>,
    /// Each on its client.
    tasks: Vec<(u16, Task)>,
}

/// What has been used so far.
struct Usage {
    requests: Requests,
    servers: Vec<ProcessorUse>,
    nodes: Vec<ProcessorUse>,
}

impl Usage {
    fn requests_since(&self, before: &Usage) -> u64 {
        self.requests.values().sum::<u64>() - before.requests.values().sum::<u64>()
    }

    /// For the log: what each target was asked for, and how long each MDS worked.
    fn tell(&self, before: &Usage, what: &str) {
        for ((role, kind), count) in &self.requests {
            let count = count - before.requests.get(&(*role, *kind)).unwrap_or(&0);
            if count > 0 {
                tracing::info!("{what}: {role:?} got {count} {kind}");
            }
        }
        for (number, (after, before)) in self.servers.iter().zip(&before.servers).enumerate() {
            let (worked, switching) = (after.worked - before.worked, after.switching - before.switching);
            tracing::info!("{what}: MDS {number} worked for {worked:?} and changed tasks for {switching:?}");
        }
    }
}

impl World {
    async fn prepare(
        cell: Cell,
        amount: Amount,
        cluster: Cluster,
        hardware: Arc<ModelledHardware>,
    ) -> Result<Self, String> {
        /// Until MDTs have delivered to each other what they decided.
        const SETTLED: Duration = Duration::from_secs(5);
        let clients = cluster.clients();
        let mut made = Vec::new();
        for (number, place) in task::places(cell).into_iter().enumerate() {
            made.push(make(&cluster, number, place).await?);
        }
        cluster.simulation().sleep(SETTLED).await;
        let (nodes, each) = (clients.len().div_ceil(per_node(clients.len())), per_node(clients.len()));
        let task = |rank: u32| -> Result<(u16, Task), String> {
            let number = task::directory_of(cell, rank);
            let (directory, directory_name) = (made[number], directory_name(number));
            let rank_of = rank as usize;
            // Nodes in turn, then the mounts of each.
            let place = (rank_of % nodes) * each + (rank_of / nodes) % each;
            let client = clients[place % clients.len()];
            let (file_system, _) = cluster.file_system(client).ok_or("no client")?;
            Ok((client, Task { file_system, directory, directory_name, rank }))
        };
        let tasks: Vec<_> = (0..cell.load.tasks()).map(task).collect::<Result<_, _>>()?;
        // A program has found its directory before it begins: where a striped one is, the MDT of
        // its first shard tells each client once, which many files would hide.
        let find = tasks.iter().map(|(client, task)| (*client, task.clone().find_directory()));
        all_at_once(&cluster, find).await?;
        Ok(Self { cell, task_files: cell.task_files(amount), cluster, hardware, tasks })
    }

    async fn phase(&self, phase: &'static str) -> Result<Outcome, String> {
        let before = self.usage();
        let files = self.task_files;
        let work = self.tasks.iter().map(|(client, task)| (*client, task.clone().work(phase, files)));
        let seconds = all_at_once(&self.cluster, work).await?;
        let after = self.usage();
        after.tell(&before, &format!("{}, {phase}", self.cell.name()));
        let operations = files * self.tasks.len() as u64;
        let part = |(after, before): (&ProcessorUse, &ProcessorUse), cores: u32| {
            let busy = (after.worked + after.switching).saturating_sub(before.worked + before.switching);
            busy.as_secs_f64() / seconds.max(1e-9) / f64::from(cores)
        };
        let servers = after.servers.iter().zip(&before.servers).map(|pair| part(pair, SERVER_CORES));
        let nodes = after.nodes.iter().zip(&before.nodes).map(|pair| part(pair, NODE_CORES));
        Ok(Outcome {
            cell: self.cell.name(),
            phase,
            operations,
            seconds,
            requests: after.requests_since(&before) as f64 / operations as f64,
            server_use: servers.clone().fold(0.0, f64::max),
            server_use_min: servers.fold(f64::INFINITY, f64::min),
            node_use: nodes.fold(0.0, f64::max),
        })
    }

    fn usage(&self) -> Usage {
        let clients = self.cluster.file_systems();
        let requests = task::requests_of(clients.iter().map(|(_, file_system)| file_system));
        let cores = |hosts: Vec<String>| hosts.iter().filter_map(|host| self.hardware.cores(host)).collect();
        let servers = (0..self.cell.servers).map(|server| Role::Mds(server * self.cell.mdts).host()).collect();
        let nodes = clients.iter().step_by(per_node(clients.len())).map(|(client, _)| client_host(*client)).collect();
        Usage { requests, servers: cores(servers), nodes: cores(nodes) }
    }

    /// All clients give back all locks of all MDTs.
    async fn give_locks_back(&self) -> Result<(), String> {
        let mdts = self.cell.mdts_in_all();
        let clear = |(_, file_system): (u16, Arc<FileSystem>)| task::give_locks_back(&file_system, mdts);
        self.cluster.file_systems().into_iter().try_for_each(clear).map_err(|error| error.to_string())?;
        let held = |(_, file_system): (u16, Arc<FileSystem>)| task::has_locks(&file_system, mdts);
        for _ in 0..1000 {
            if !self.cluster.file_systems().into_iter().any(held) {
                return Ok(());
            }
            self.cluster.simulation().sleep(Duration::from_millis(20)).await;
        }
        Err("clients keep locks".to_owned())
    }
}

fn directory_name(number: usize) -> Vec<u8> {
    format!("dir.{number}").into_bytes()
}

/// Mounts on each node.
fn per_node(mounts: usize) -> usize {
    mounts.div_ceil(NODES.into())
}

async fn make(cluster: &Cluster, number: usize, place: DirectoryPlace) -> Result<InodeNumber, String> {
    let client = *cluster.clients().first().ok_or("no client")?;
    let (file_system, _) = cluster.file_system(client).ok_or("no client")?;
    let made = async move { task::make_directory(&file_system, directory_name(number), place).await };
    let made = cluster.on_client(client, made).await.ok_or("a client died")?;
    made.map_err(|error| format!("making a directory: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMOUNT: Amount = Amount { files: 1, striped_files: 1, task_files_min: 25, mounts: 1 };
    const HARDWARE: Hardware = Hardware { costs: costs::MEASURED, namespace_lock: Some(costs::NAMESPACE_LOCK) };

    #[test]
    fn two_servers_do_twice_as_much_as_one_in_separate_directories_and_a_run_repeats() {
        let one = run(Cell::separate(1, 1, 8), AMOUNT, HARDWARE, 1).unwrap();
        let two = run(Cell::separate(2, 1, 16), AMOUNT, HARDWARE, 1).unwrap();
        for (one, two) in one.iter().zip(&two) {
            let growth = two.rate() / one.rate();
            assert!((1.7..2.2).contains(&growth), "{} grows by {growth}: {one:?} {two:?}", one.phase);
            // Some more, for directories that several clients use.
            assert!((1.0..1.6).contains(&one.requests), "{one:?}");
        }
        assert_eq!(run(Cell::separate(1, 1, 8), AMOUNT, HARDWARE, 1).unwrap(), one);
    }

    #[test]
    fn mdts_of_a_server_share_its_cores_and_each_changes_one_thing_at_a_time() {
        let phases = |cell: Cell, namespace_lock| {
            let hardware = Hardware { namespace_lock, ..HARDWARE };
            let [mknod, stat, _] = run(cell, AMOUNT, hardware, 1).unwrap().try_into().unwrap();
            (mknod, stat)
        };
        let each = |kind: rt::CpuKind| 1e9 / f64::from(costs::MEASURED.0[kind as usize].each_ns);
        let locked = HARDWARE.namespace_lock;
        let (one, stat) = phases(Cell::separate(1, 1, 16), locked);
        assert!(one.rate() <= each(rt::CpuKind::MetadataChange), "{one:?}");
        assert!(stat.rate() > each(rt::CpuKind::MetadataRead) * 1.2, "reads work beside each other: {stat:?}");
        let (without, _) = phases(Cell::separate(1, 1, 16), None);
        assert!(without.rate() > one.rate() * 1.5, "{without:?} {one:?}");
        let (two, _) = phases(Cell::separate(1, 2, 16), locked);
        assert!(two.rate() > one.rate() * 1.5 && two.server_use > one.server_use * 1.5, "{two:?} {one:?}");
    }

    #[test]
    fn a_striped_directory_uses_all_servers_alike() {
        let outcomes = run(Cell::striped(2, 1, 32), AMOUNT, HARDWARE, 1).unwrap();
        assert_eq!(outcomes.iter().map(|outcome| outcome.phase).collect::<Vec<_>>(), PHASES);
        for outcome in outcomes {
            assert_eq!(outcome.operations, 32 * 25);
            // Stats fill the cores of an MDS, and one that has a queue changes tasks.
            let part = if outcome.phase == "stat" { 0.4 } else { 0.6 };
            assert!(outcome.server_use_min > outcome.server_use * part, "{outcome:?}");
        }
    }
}
