//! Waits until no process has files open on a mount.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    mount::{UnmountFlags, unmount},
};

/// Far more than it takes: it ends tests that left something open.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a mount could be unmounted. Child processes that other tests start hold copies of
/// all descriptors of this process until they execute their program, so what a test has closed may
/// be open for a moment still.
pub fn wait_until_free(point: &Path) {
    let begun = Instant::now();
    // Asked this way for the first time, the kernel says only whether it could be (umount(2)).
    while unmount(point, UnmountFlags::EXPIRE) == Err(Errno::BUSY) && begun.elapsed() < TIMEOUT {
        thread::sleep(Duration::from_millis(5));
    }
}
