//! The seams on real hosts.

pub mod clock;
pub mod cores;
mod descriptors;
pub mod directory;
pub mod entropy;
pub mod io_threads;

pub use clock::SystemClock;
pub use cores::Cores;
pub use directory::{Execution, LocalDirectory};
pub use entropy::SystemEntropy;
pub use io_threads::{IoThreads, IoThreadsStatistics};
