//! Waiting for events that must happen at an unknown time.

use std::time::{Duration, Instant};

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
