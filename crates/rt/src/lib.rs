//! The seams: everything through which the file system touches the outside world.
//!
//! Code in client, mds, oss, mgs, rpc, kv and lock uses time, tasks, randomness, the network and
//! storage only through the traits here (and `tokio::sync`, which is free of any runtime). So the
//! same code runs on real hosts ([`real`]), in memory for tests ([`memory`]), under injected faults
//! ([`fault`]) and, in the lab, in virtual time.

mod addresses;
pub mod beat;
pub mod buffer;
pub mod clock;
pub mod contain;
pub mod cpu;
pub mod device;
pub mod entropy;
pub mod fault;
pub mod frame;
mod lanes;
mod log_limit;
pub mod memory;
pub mod parameters;
mod read_mostly;
pub mod real;
mod space;
pub mod spawn;
pub mod trace;
pub mod transport;

pub use addresses::Addresses;
pub use beat::{Beat, Tick};
pub use clock::{Clock, Instant};
pub use cpu::{Cpu, CpuKind, Processors};
pub use device::Device;
pub use entropy::Entropy;
pub use frame::{Frame, FrameError, FrameHeader};
pub use log_limit::LogLimit;
pub use read_mostly::{ChangeGuard, ReadGuard, ReadMostly};
pub use spawn::Spawn;
pub use transport::{Address, Connection, Listener, Receiver, Sender, Transport};

use std::{future::Future, pin::Pin, sync::Arc};

/// A boxed future, as the object-safe seams return it.
///
/// The functions that all requests pass return one, too. The code of an `async fn` is compiled into
/// every crate that awaits it, with that of all it awaits, and again into each unit of such a
/// crate; a function that boxes its future is compiled once.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The seams of one process, handed to everything that process runs. Cheap to clone.
#[derive(Clone)]
pub struct Seams {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tasks.
    pub spawn: Arc<dyn Spawn>,
    /// Chance.
    pub entropy: Arc<dyn Entropy>,
    /// Network.
    pub transport: Arc<dyn Transport>,
    /// Processor time.
    pub cpu: Cpu,
}
