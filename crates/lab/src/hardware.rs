//! Hardware that a cluster may be given, to predict its performance. Without it links have
//! unlimited bandwidth and disks have no queues, which is sufficient to find bugs; the models are
//! in the crate `studies`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use rt::{Cpu, Device, Instant};

use crate::Simulation;

/// What carries frames between hosts, besides the delay that every network of the lab has.
pub trait Links: Send + Sync {
    /// The data of a frame while it waits: the same bytes, in memory that frames may share.
    fn under_way(&self, data: Bytes) -> Bytes;

    /// When a frame of so many bytes that is sent now is through; occupies the links until then.
    fn through(&self, now: Instant, from: &str, to: &str, bytes: u64) -> Instant;

    /// The delay of every frame; `None`: that of every network of the lab.
    fn delay(&self) -> Option<Duration> {
        None
    }
}

/// Links, disks of objects, processors.
pub trait Hardware: Send + Sync {
    /// The links between all hosts. Asked for once per cluster.
    fn links(&self) -> Arc<dyn Links>;

    /// The disks that this object storage target's objects are on. Asked for once per target; they
    /// survive its server's process.
    fn objects(&self, simulation: &Simulation, ost: u16) -> Arc<dyn Device>;

    /// Whether the disks that hold the tables of servers take no time: what is appended to a page
    /// cache is processor time.
    fn tables_take_no_time(&self) -> bool {
        false
    }

    /// The cores of this host; without a model, processor time costs nothing. Asked for once per
    /// host.
    fn processors(&self, simulation: &Simulation, host: &str) -> Cpu {
        let _ = (simulation, host);
        Cpu::default()
    }
}
