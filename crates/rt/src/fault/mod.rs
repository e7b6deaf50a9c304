//! Seams that fail on demand: wrappers around a transport or a device that break what the contracts let break.
//!
//! With no faults switched on they behave as what they wrap, and pass the same contract suites. All chance comes from the
//! [`Entropy`](crate::Entropy) given, so a run can be repeated.

mod device;
mod network;
mod transport;

pub use device::{DeviceFaults, FaultyDevice};
pub use network::{NetworkRules, NetworkStatistics, PPM};
pub use transport::FaultyTransport;
