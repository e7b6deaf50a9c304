//! What a target has written to its device since it was opened, by cause.

use std::sync::atomic::AtomicU64;

/// Bytes written to the device.
#[derive(Default)]
pub(super) struct WrittenBytes {
    /// To areas of short overwrites.
    pub short: AtomicU64,
    /// Otherwise: large writes, write-back, merges.
    pub direct: AtomicU64,
}
