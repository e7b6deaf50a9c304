//! The hardware of a study's cluster: disks with queues and links with bandwidth, in virtual time.

pub mod block_cache;
pub mod links;
pub mod rotating;
pub mod spindle;

use std::{collections::BTreeMap, sync::Arc};

use lab::{Simulation, hardware::Hardware};
use parking_lot::Mutex;
use rt::Device;

use block_cache::{BlockCache, ServerMemory};
use links::{LinkModel, Links};
use spindle::{Spindle, SpindleModel};

/// Parameters of disks and links.
#[derive(Clone, Copy, Debug)]
pub struct HardwareModel {
    /// Links between machines.
    pub links: LinkModel,
    /// Disks of objects.
    pub spindle: SpindleModel,
}

/// The hardware of one cluster.
pub struct ModelledHardware {
    model: HardwareModel,
    /// What each machine with object storage servers keeps of what was read.
    memories: Mutex<BTreeMap<u16, ServerMemory>>,
}

impl ModelledHardware {
    /// Idle hardware.
    pub fn new(model: HardwareModel) -> Self {
        Self { model, memories: Mutex::default() }
    }

    /// The memory of the machine that an object storage server is part of.
    fn memory(&self, server: u16) -> ServerMemory {
        let machine = server / self.model.links.osts_per_machine.max(1);
        let new = || Arc::new(Mutex::new(BlockCache::new(self.model.spindle.memory_bytes)));
        self.memories.lock().entry(machine).or_insert_with(new).clone()
    }
}

impl Hardware for ModelledHardware {
    fn links(&self) -> Arc<dyn lab::hardware::Links> {
        Arc::new(Links::new(self.model.links))
    }

    fn objects(&self, simulation: &Simulation, server: u16) -> Arc<dyn Device> {
        // The name that the server's host has in the cluster too.
        let name = lab::server::Role::Oss(server).host();
        Arc::new(Spindle::new(simulation, &name, self.model.spindle, self.memory(server)))
    }
}
