//! What a user of this client asks for when it sets or releases an advisory lock.

use rpc::message::mdt::{LockFamily, LockMode, LockRange};

/// An advisory lock to set or release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// fcntl or flock.
    pub family: LockFamily,
    /// Owner within this client (the kernel's lock owner).
    pub owner: u64,
    /// Process, reported to others.
    pub pid: u32,
    /// Range.
    pub range: LockRange,
    /// Wanted state.
    pub mode: LockMode,
    /// Wait while another owner holds a conflicting lock; otherwise fail with `WouldBlock`.
    pub wait: bool,
}
