//! The seams on real hosts.

pub mod clock;
pub mod entropy;

pub use clock::SystemClock;
pub use entropy::SystemEntropy;
