//! Waiting for events that must happen at an unknown time.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// How long things may take that must happen. Far more than any takes: it ends tests that hang.
pub const TIMEOUT: Duration = Duration::from_secs(90);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(20);

/// Looks until there is something.
#[track_caller]
pub fn wait_for<T>(what: &str, timeout: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {} s: {what}", timeout.as_secs());
        std::thread::sleep(POLL);
    }
}

/// Says that something is over when it is dropped: also if what works beside it panics, or its
/// scope would wait forever.
pub struct End<'a>(pub &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
