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
use rt::{Instant, LogLimit, Sender};

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
pub(super) struct Unproven {
    /// By the number of the connection: the oldest first.
    connections: Mutex<BTreeMap<u64, Arc<dyn Sender>>>,
    log: LogLimit,
}

impl Default for Unproven {
    fn default() -> Self {
        Self { connections: Mutex::default(), log: LogLimit::new((LINES_MAX, PERIOD)) }
    }
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
        self.log.may_log(now)
    }
}
