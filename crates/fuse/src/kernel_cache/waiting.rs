//! Requests that are not answered yet, to find out what delays a withdrawal.

use std::{collections::BTreeMap, fmt::Write as _, fs, sync::Arc, time::Instant};

use parking_lot::Mutex;

use crate::protocol::Opcode;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRequest {
    pub opcode: Opcode,
    pub node: u64,
    pub thread: u32,
    pub since: Instant,
}

/// Requests that had to wait, by the kernel's number.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<BTreeMap<u64, WaitingRequest>>);

/// Removes a request when dropped.
#[derive(Debug)]
pub struct WaitingEntry {
    waiting: Arc<Waiting>,
    unique: u64,
}

impl Waiting {
    /// Enters a request, until the entry is dropped.
    pub fn enter(self: &Arc<Self>, unique: u64, request: WaitingRequest) -> WaitingEntry {
        self.0.lock().insert(unique, request);
        WaitingEntry { waiting: self.clone(), unique }
    }

    /// Since when the lock of a directory may have been held by a request that waits, if it may be:
    /// Linux holds it while it looks a name up and while it reads the names.
    pub fn holds_directory(&self, node: u64) -> Option<Instant> {
        let holds = |request: &&WaitingRequest| {
            let opcode = matches!(request.opcode, Opcode::Lookup | Opcode::ReadDirectory | Opcode::ReadDirectoryPlus);
            opcode && request.node == node
        };
        self.0.lock().values().filter(holds).map(|request| request.since).min()
    }

    /// The requests about an inode, in words.
    pub fn describe(&self, node: u64) -> String {
        let about: Vec<WaitingRequest> = self.0.lock().values().filter(|known| known.node == node).copied().collect();
        let mut text = String::new();
        for WaitingRequest { opcode, thread, .. } in about {
            let program = fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{separator}{} of {} (thread {thread})", opcode.label(), program.trim());
        }
        if text.is_empty() { "none that is known".to_owned() } else { text }
    }
}

impl Drop for WaitingEntry {
    fn drop(&mut self) {
        self.waiting.0.lock().remove(&self.unique);
    }
}
