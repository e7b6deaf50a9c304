//! Simulated processes: the seams as one process sees them. A process can be killed: its tasks end
//! and its connections break. Or it can be suspended for a while: it does nothing, and receives
//! what arrived meanwhile when it is resumed.

use std::{fmt, sync::Arc, time::Duration};

use rt::{BoxFuture, Clock, Cpu, Instant, Seams, Spawn};
use types::Timestamp;

use crate::{Random, Simulation, network::Network};

/// Wall-clock time at virtual time zero: 2026-01-01 UTC.
const WALL_ORIGIN_SECONDS: i64 = 1_767_225_600;
/// Number of a host's first run; the next one begins with every power loss.
pub const FIRST_BOOT: u64 = 1;

/// Identifies one run of one process: a restarted server is another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

impl ProcessId {
    /// The test itself; cannot be killed.
    pub const DRIVER: ProcessId = ProcessId(0);
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}", self.0)
    }
}

/// A running process.
#[derive(Clone)]
pub struct Process {
    /// Its number.
    pub id: ProcessId,
    /// Host it runs on: what partitions separate.
    pub host: Arc<str>,
    simulation: Simulation,
    network: Network,
    seed: u64,
    boot: u64,
    cpu: Cpu,
}

impl Process {
    /// Starts a process without tasks on `host`, in the host's first run.
    pub fn start(simulation: &Simulation, network: &Network, id: ProcessId, host: &str, seed: u64) -> Self {
        let (simulation, network) = (simulation.clone(), network.clone());
        Self { id, host: host.into(), simulation, network, seed, boot: FIRST_BOOT, cpu: Cpu::default() }
    }

    /// The same in another run of the host.
    pub fn in_run(self, boot: u64) -> Self {
        Self { boot, ..self }
    }

    /// The same on these cores.
    pub fn on_cores(self, cpu: Cpu) -> Self {
        Self { cpu, ..self }
    }

    /// The seams for code that runs in this process.
    pub fn seams(&self) -> Seams {
        Seams {
            clock: Arc::new(VirtualClock { simulation: self.simulation.clone(), boot: self.boot }),
            spawn: Arc::new(ProcessSpawn { simulation: self.simulation.clone(), process: self.id }),
            entropy: Arc::new(Random::for_purpose(self.seed, &format!("{}/{}", self.host, self.id))),
            transport: Arc::new(self.network.endpoint(self.id, &self.host)),
            cpu: self.cpu.clone(),
        }
    }

    /// Stops the process (SIGSTOP). What is sent to it waits, and its peers notice nothing but that
    /// it does not answer.
    pub fn stop(&self) {
        self.simulation.stop(self.id);
    }

    /// Lets it continue (SIGCONT).
    pub fn resume(&self) {
        self.simulation.resume(self.id);
    }

    /// Kills the process: tasks vanish in the middle of whatever they did, peers see broken
    /// connections.
    pub fn kill(&self) {
        self.simulation.kill(self.id);
        self.network.drop_process(self.id);
    }
}

struct VirtualClock {
    simulation: Simulation,
    boot: u64,
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.simulation.now()
    }

    fn wall(&self) -> Timestamp {
        let elapsed = Duration::from_nanos(self.simulation.now().0);
        Timestamp {
            seconds: WALL_ORIGIN_SECONDS + i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX - WALL_ORIGIN_SECONDS),
            nanoseconds: elapsed.subsec_nanos(),
        }
    }

    fn boot(&self) -> u64 {
        self.boot
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        Box::pin(self.simulation.sleep_until(deadline))
    }
}

struct ProcessSpawn {
    simulation: Simulation,
    process: ProcessId,
}

impl Spawn for ProcessSpawn {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.simulation.spawn(self.process, name, future);
    }

    /// A simulated process has one core, and it runs.
    fn all_cores_ran(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
