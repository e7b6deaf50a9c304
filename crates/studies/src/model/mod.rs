//! The hardware of a study's cluster: disks with queues, links with bandwidth and cores that take
//! time, in virtual time.

pub mod block_cache;
pub mod costs;
pub mod links;
pub mod machines;
pub mod namespace_lock;
pub mod raid;
pub mod rotating;
pub mod spindle;

use std::{collections::BTreeMap, sync::Arc};

use lab::{
    Simulation,
    hardware::Hardware,
    processors::{NodeProcessors, ProcessorModel, ProcessorUse, RecentUse},
};
use parking_lot::Mutex;
use rt::{Cpu, Device};

use block_cache::{BlockCache, ServerMemory};
use links::{LinkModel, Links};
pub use machines::Machines;
use namespace_lock::NamespaceLock;
use raid::{Raid, RaidModel, RaidStatistics};
use spindle::{Spindle, SpindleModel};

/// Cores of servers and clients.
#[derive(Clone, Copy, Debug)]
pub struct NodeModels {
    /// Each server.
    pub server: ProcessorModel,
    /// Each client.
    pub client: ProcessorModel,
}

/// Parameters of disks, links and cores.
#[derive(Clone, Copy, Debug)]
pub struct HardwareModel {
    /// Links between machines.
    pub links: LinkModel,
    /// Disks of objects.
    pub spindle: SpindleModel,
    /// Arrays that objects are on instead.
    pub raid: Option<RaidModel>,
    /// Cores; `None`: processor time costs nothing.
    pub processors: Option<NodeModels>,
    /// Hosts that share cores and links.
    pub machines: Machines,
}

impl HardwareModel {
    /// Single disks, and processors that cost nothing.
    pub fn new(links: LinkModel, spindle: SpindleModel) -> Self {
        Self { links, spindle, raid: None, processors: None, machines: Machines::SEPARATE }
    }
}

/// The hardware of one cluster.
pub struct ModelledHardware {
    model: HardwareModel,
    /// What each machine with object storage servers keeps of what was read.
    memories: Mutex<BTreeMap<u16, ServerMemory>>,
    arrays: Mutex<Vec<Raid>>,
    /// By host; hosts of one machine have the same.
    nodes: Mutex<BTreeMap<String, NodeProcessors>>,
    machines: Mutex<BTreeMap<String, NodeProcessors>>,
}

impl ModelledHardware {
    /// Idle hardware.
    pub fn new(model: HardwareModel) -> Self {
        Self {
            model,
            memories: Mutex::default(),
            arrays: Mutex::default(),
            nodes: Mutex::default(),
            machines: Mutex::default(),
        }
    }

    /// What arrays did so far, together.
    pub fn arrays(&self) -> RaidStatistics {
        let arrays = self.arrays.lock();
        arrays.iter().map(Raid::statistics).fold(RaidStatistics::default(), |sum, one| RaidStatistics {
            whole: sum.whole + one.whole,
            partial: sum.partial + one.partial,
        })
    }

    /// What the cores of a host did so far, if they are modelled.
    pub fn cores(&self, host: &str) -> Option<ProcessorUse> {
        self.nodes.lock().get(host).map(NodeProcessors::used)
    }

    /// What tells the share of a host's processor time that was used recently, if its cores are
    /// modelled.
    pub fn recent_use(&self, host: &str) -> Option<rpc::ProcessorUse> {
        let recent = RecentUse::new(self.nodes.lock().get(host)?.clone());
        Some(Arc::new(move || recent.used()))
    }

    /// The memory of the machine that a target is part of.
    fn memory(&self, ost: u16) -> ServerMemory {
        let machine = ost / self.model.links.osts_per_machine.max(1);
        let new = || Arc::new(Mutex::new(BlockCache::new(self.model.spindle.memory_bytes)));
        self.memories.lock().entry(machine).or_insert_with(new).clone()
    }
}

impl Hardware for ModelledHardware {
    fn links(&self) -> Arc<dyn lab::hardware::Links> {
        Arc::new(Links::new(self.model.links).of_machines(self.model.machines))
    }

    fn objects(&self, simulation: &Simulation, ost: u16) -> Arc<dyn Device> {
        if let Some(raid) = self.model.raid {
            let raid = Raid::new(simulation, raid);
            self.arrays.lock().push(raid.clone());
            return Arc::new(raid);
        }
        Arc::new(Spindle::new(simulation, &format!("oss{ost}"), self.model.spindle, self.memory(ost)))
    }

    fn processors(&self, simulation: &Simulation, host: &str) -> Cpu {
        let Some(NodeModels { server, client }) = self.model.processors else { return Cpu::default() };
        let model = if host.starts_with("client") { client } else { server };
        let machines = self.model.machines;
        let new = || NodeProcessors::new(simulation, model);
        let node = match machines.of(host) {
            Some(machine) => self.machines.lock().entry(machine).or_insert_with(new).clone(),
            None => new(),
        };
        self.nodes.lock().insert(host.to_owned(), node.clone());
        match machines.namespace_lock {
            Some(costs) if host.starts_with("mds") => Cpu::on(Arc::new(NamespaceLock::on(node, costs))),
            _ => Cpu::on(Arc::new(node)),
        }
    }
}
