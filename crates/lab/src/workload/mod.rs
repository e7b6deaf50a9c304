//! Workloads: what clients do while faults happen, and what must be true afterwards.

pub mod concurrent;
pub mod contended;
pub mod power;
pub mod serial;
pub mod timeouts;

/// Why a workload found the cluster wanting, in words, with what was expected and what was seen.
pub type Verdict = Result<(), String>;
