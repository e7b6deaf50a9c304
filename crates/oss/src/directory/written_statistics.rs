//! What a target has written since it was opened, by cause: the parameter `write_stats`.
//!
//! Downside: what the cold store of the tables writes by itself is not known here.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use kv::inspect::Schema;

use super::DirectoryStore;
use crate::inspect::OstSchema;

/// Bytes written to the device.
#[derive(Default)]
pub(super) struct WrittenBytes {
    /// To areas of short overwrites.
    pub short: AtomicU64,
    /// Otherwise: large writes, write-back, merges.
    pub direct: AtomicU64,
}

impl DirectoryStore {
    /// Bytes by cause: a line each.
    pub fn write_stats(&self) -> String {
        let statistics = self.kv.statistics();
        let tables = self.kv.journal_bytes_of_tables();
        let of_tables: u64 = tables.iter().map(|(_, bytes)| bytes).sum();
        let lines = [
            ("device_large".to_owned(), self.written.direct.load(Ordering::Relaxed)),
            ("device_short".to_owned(), self.written.short.load(Ordering::Relaxed)),
            ("journal_prepared".to_owned(), statistics.prepared_bytes),
            ("journal_headers".to_owned(), statistics.journal_bytes.saturating_sub(of_tables)),
        ];
        let tables = tables.into_iter().map(|(table, bytes)| {
            let name = OstSchema.table(table).unwrap_or("unknown");
            (format!("journal_{}", name.replace(' ', "_")), bytes)
        });
        let mut text = String::new();
        for (name, bytes) in lines.into_iter().chain(tables) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<24}{bytes}");
        }
        text.trim_end().to_owned()
    }
}
