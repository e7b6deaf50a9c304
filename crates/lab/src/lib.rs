//! The lab: whole clusters of the shipped code in one thread, in virtual time, from one seed.
//!
//! The seams of `rt` are implemented by a simulation: a clock that jumps to the next event, tasks
//! that one executor polls, a network and devices that misbehave as the seed says. The same seed
//! gives the same event log, byte for byte.

pub mod checkers;
pub mod cluster;
pub mod device;
pub mod directory_places;
pub mod drawn;
pub mod executor;
pub mod faults;
pub mod hardware;
pub mod inspector;
pub mod invariants;
pub mod log;
pub mod migration;
pub mod move_counts;
pub mod native;
pub mod network;
pub mod process;
pub mod processors;
pub mod random;
pub mod reference;
pub mod seed;
pub mod server;
pub mod upper_cache;
pub mod workload;

pub use drawn::Drawn;
pub use executor::Simulation;
pub use process::{Process, ProcessId};
pub use random::Random;
pub use seed::{Failure, Mode, SeedOptions, SeedReport, run_seed};
