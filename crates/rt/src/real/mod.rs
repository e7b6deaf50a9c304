//! The seams on real hosts.

pub mod clock;
pub mod cores;
mod descriptors;
mod device_identity;
mod direct;
pub mod directory;
mod discard;
pub mod entropy;
mod held;
mod idle_poll;
pub mod io_threads;
mod present;
mod processor_time;
mod processors;
pub mod tcp;
mod turn;
mod visit;

use std::sync::Arc;

pub use clock::SystemClock;
pub use cores::Cores;
pub use descriptors::raise_open_files_limit;
pub use directory::{Execution, LocalDirectory, create_directories};
pub use entropy::SystemEntropy;
pub use held::open_alone;
pub use idle_poll::{IdlePoll, idle_poll, idle_poll_stats, message_came, set_idle_poll};
pub use io_threads::{IoThreads, IoThreadsStatistics};
pub use processor_time::ProcessorTime;
pub use processors::{
    RestrictError, parse_processors, processors_in_use, restrict_processors, show_processors, use_all_processors,
};
pub use tcp::{TcpOptions, TcpTransport};

use crate::{Cpu, Seams};

/// The seams of a real process: the host's clocks and random numbers, `cores` for tasks, TCP.
pub fn seams(cores: &Cores, transport: TcpTransport) -> Seams {
    Seams {
        clock: Arc::new(SystemClock),
        spawn: Arc::new(cores.clone()),
        entropy: Arc::new(SystemEntropy),
        transport: Arc::new(transport),
        cpu: Cpu::default(),
    }
}
