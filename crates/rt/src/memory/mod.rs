//! The seams in memory, for tests: a network of named addresses, a device that simulates power
//! loss, numbers from a seed, and tasks on the tokio runtime the test runs in.
//!
//! Deterministic if the caller is: time is the only thing that is taken from the host.

mod clock;
mod device;
mod entropy;
mod image;
mod jumping_clock;
mod spawn;
mod transport;

use std::sync::Arc;

pub use clock::{HostClock, ShiftedClock};
pub use device::{MemoryDevice, Unflushed};
pub use entropy::SeededEntropy;
pub use jumping_clock::JumpingClock;
pub use spawn::RuntimeSpawn;
pub use transport::MemoryTransport;

use crate::{Cpu, Seams, real::SystemClock};

/// Seams for a test within a tokio runtime: `network`, real time, numbers from `seed`. Those
/// with the same network can talk to each other.
pub fn seams(network: &MemoryTransport, seed: u64) -> Seams {
    Seams {
        clock: Arc::new(SystemClock),
        spawn: Arc::new(RuntimeSpawn),
        entropy: Arc::new(SeededEntropy::new(seed)),
        transport: Arc::new(network.clone()),
        cpu: Cpu::default(),
    }
}
