//! Limits of this host for all FUSE mounts, as `sysctl fs.fuse` shows them.

use std::fs;

/// The limit `fs.fuse.NAME`; `None` if this kernel has none.
pub fn read(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/fs/fuse/{name}")).ok()?.trim().parse().ok()
}
