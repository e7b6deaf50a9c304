//! Connections whose peers have proved nothing yet, and what is logged of them.
//!
//! Any host that reaches the port can open a connection, so what such connections cost is bounded:
//! their number ([`CONNECTIONS_MAX`]; one more closes the oldest), the memory of each
//! ([`FRAME_BYTES_MAX`]), their time (module `connection`), and the lines in the log ([`LINES_MAX`]
//! per [`PERIOD`]).
//!
//! Downside: a peer that opens connections fast enough keeps others from finishing a handshake. A
//! client that is pushed out connects again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rt::{Instant, Sender};

/// Most bytes of a frame before a proof: a `Connect` with the longest names takes some 500.
pub(super) const FRAME_BYTES_MAX: usize = 4096;
/// Most connections without a proof. A handshake takes a few milliseconds, so this many are enough
/// for all clients that come back at once after a restart, and few enough for the descriptors of a
/// process.
pub(super) const CONNECTIONS_MAX: usize = 1024;
/// Memory of all of them: what was read, and one frame that is being handled.
const BYTES_MAX: usize = CONNECTIONS_MAX * 4 * FRAME_BYTES_MAX;
const _: () = assert!(BYTES_MAX <= 16 << 20, "peers without proof cost little memory");

/// Lines in the log about such peers, per period.
const LINES_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(60);

/// See the module documentation.
#[derive(Default)]
pub(super) struct Unproven {
    /// By the number of the connection: the oldest first.
    connections: Mutex<BTreeMap<u64, Arc<dyn Sender>>>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    /// When the present period began.
    begun: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Unproven {
    /// A connection begins. If there are too many, the oldest is closed.
    pub(super) fn begin(&self, number: u64, sender: Arc<dyn Sender>) {
        let mut connections = self.connections.lock();
        connections.insert(number, sender);
        let oldest = if connections.len() > CONNECTIONS_MAX { connections.pop_first() } else { None };
        drop(connections);
        if let Some((_, oldest)) = oldest {
            oldest.close();
        }
    }

    /// A connection has proved itself, or ended.
    pub(super) fn end(&self, number: u64) {
        self.connections.lock().remove(&number);
    }

    /// Whether one more line may be logged now, and how many were not since the last one.
    pub(super) fn may_log(&self, now: Instant) -> Option<u64> {
        let mut log = self.log.lock();
        if log.begun.is_none_or(|begun| now.since(begun) >= PERIOD) {
            log.begun = Some(now);
            log.lines = 0;
        }
        if log.lines == LINES_MAX {
            log.suppressed += 1;
            return None;
        }
        log.lines += 1;
        Some(std::mem::take(&mut log.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_period_and_those_left_out_are_counted() {
        let unproven = Unproven::default();
        let at = |seconds: u64| Instant(seconds * 1_000_000_000);
        for _ in 0..LINES_MAX {
            assert_eq!(unproven.may_log(at(1)), Some(0));
        }
        assert_eq!((unproven.may_log(at(2)), unproven.may_log(at(60))), (None, None));
        assert_eq!(unproven.may_log(at(61)), Some(2));
        assert_eq!(unproven.may_log(at(61)), Some(0));
    }
}
