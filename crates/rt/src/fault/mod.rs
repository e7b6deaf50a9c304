//! Seams that fail on demand: wrappers around a transport or a device that cause the failures that
//! the contracts allow.
//!
//! Without faults they behave like the wrapped object, and pass the same contract suites. All
//! randomness comes from the given [`Entropy`](crate::Entropy), so a run can be repeated.

mod device;
mod network;
mod transport;

pub use device::{DeviceFaults, FaultyDevice};
pub use network::{NetworkRules, NetworkStatistics, PPM};
pub use transport::FaultyTransport;
