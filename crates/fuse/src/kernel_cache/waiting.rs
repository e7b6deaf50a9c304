//! Requests that are not answered yet, to find out what delays a withdrawal.

use std::{collections::BTreeMap, fmt::Write as _, fs, sync::Arc};

use parking_lot::Mutex;

use crate::protocol::Opcode;

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRequest {
    pub opcode: Opcode,
    pub node: u64,
    pub thread: u32,
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
