//! The event log: what happened and when, as text. The same seed gives the same log, byte for byte.
//!
//! One line per event: virtual seconds, process, event. Data appear as their length and a checksum.

use std::{fmt::Write, sync::Arc};

use parking_lot::Mutex;

use crate::{Simulation, reference::Outcome};

/// Events of one run. Cheap to clone.
#[derive(Clone)]
pub struct EventLog {
    simulation: Simulation,
    text: Arc<Mutex<String>>,
}

impl EventLog {
    /// An empty log of this world.
    pub fn new(simulation: &Simulation) -> Self {
        Self { simulation: simulation.clone(), text: Arc::default() }
    }

    /// Adds a line.
    pub fn event(&self, who: &str, what: impl std::fmt::Display) {
        let now = self.simulation.now().0;
        let (seconds, nanoseconds) = (now / 1_000_000_000, now % 1_000_000_000);
        tracing::debug!("{seconds:4}.{nanoseconds:09} {who}: {what}");
        // Writing to a string cannot fail.
        let _ = writeln!(self.text.lock(), "{seconds:4}.{nanoseconds:09} {who}: {what}");
    }

    /// Everything so far.
    pub fn text(&self) -> String {
        self.text.lock().clone()
    }
}

/// The last `lines` lines of a log.
pub fn tail(log: &str, lines: usize) -> &str {
    let start = log.trim_end().rmatch_indices('\n').nth(lines.saturating_sub(1)).map_or(0, |(at, _)| at + 1);
    &log[start..]
}

/// A short form of an outcome: data as length and checksum.
pub fn summary(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Data(data) => format!("{} bytes, crc {:08x}", data.len(), rpc::checksum::crc32c(data)),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(tail("a\nb\nc\n", 3), "a\nb\nc\n");
        assert_eq!(tail("a\n", 5), "a\n");
        assert_eq!(tail("", 5), "");
    }

    #[test]
    fn lines_carry_virtual_time() {
        let log = EventLog::new(&Simulation::new(1));
        log.event("mds", "started");
        assert_eq!(log.text(), "   0.000000001 mds: started\n");
    }
}
