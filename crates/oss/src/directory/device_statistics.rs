//! What administrators see of the allocator of a target that is served: the parameters `mb_stats`
//! and `mb_groups`, named after files of ext4 and ldiskfs.
//!
//! Downside: of groups that are not loaded only their summaries are known. `stria inspect --map`
//! reads the bitmaps, of a target that is not served.

use std::{fmt::Write, sync::atomic::Ordering};

use blocks::Summary;
use kv::inspect::Schema;
use types::counted;

use super::{DirectoryStore, device_space::SpaceCounts, discard_queue::DiscardCounts};
use crate::inspect::OstSchema;

/// What is shown of a target without a device.
pub(super) const NO_DEVICE: &str = "no device: objects are in host files";
/// Lines of `mb_groups`, at most: more do not fit an answer of the parameter tree.
const LINES_MAX: usize = 4096;

impl DirectoryStore {
    /// The allocator in numbers: a line each.
    pub fn mb_stats(&self) -> String {
        let found = self.volatile.lock().device.as_ref().map(|device| (device.counts(), device.summaries()));
        let Some((counts, groups)) = found else { return NO_DEVICE.to_owned() };
        let SpaceCounts { blocks, free, in_windows, retired, reserved, promised, .. } = counts;
        let SpaceCounts {
            discards: DiscardCounts { waiting, discarded, skipped },
            last_group,
            last_start,
            groups_out_of_use,
            loaded_groups,
            memory_bytes,
            ..
        } = counts;
        let mut text = String::new();
        for (name, value) in [
            ("blocks", blocks),
            ("free", free),
            ("in_windows", in_windows),
            ("retired", retired),
            ("reserved", reserved),
            ("promised", promised),
            ("discard_waiting", waiting),
            ("discarded", discarded),
            ("not_discarded", skipped),
            ("groups", groups.len() as u64),
            ("groups_loaded", loaded_groups as u64),
            ("groups_damaged", groups_out_of_use as u64),
            ("memory_bytes", memory_bytes as u64),
            ("mb_last_group", u64::from(last_group)),
            ("mb_last_start", u64::from(last_start)),
        ] {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{name:<16}{value}");
        }
        text += &longest_runs(&groups);
        text.trim_end().to_owned()
    }

    /// What was written to the device and the journal since the opening, by cause: a line each.
    /// What the cold store of the tables writes by itself is not known here.
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

    /// Free blocks, longest free run and number of free runs of each group; one line for groups
    /// next to each other of which all of that is the same.
    pub fn mb_groups(&self) -> String {
        let groups = self.volatile.lock().device.as_ref().map(|device| device.summaries());
        groups.map_or_else(|| NO_DEVICE.to_owned(), |groups| describe_groups(&groups, LINES_MAX))
    }
}

/// How many groups have a longest free run of 1, 2-3, 4-7 blocks, and so on.
fn longest_runs(groups: &[Summary]) -> String {
    let mut classes = [0u64; u32::BITS as usize];
    groups.iter().filter_map(|group| group.longest.checked_ilog2()).for_each(|class| classes[class as usize] += 1);
    let mut text = "longest free run of a group, in blocks: groups\n".to_owned();
    for (class, groups) in classes.iter().enumerate().filter(|(_, groups)| **groups > 0) {
        let (first, last) = (1u64 << class, (2u64 << class) - 1);
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let _ = writeln!(text, "  {range:<14}{groups}");
    }
    text
}

fn describe_groups(groups: &[Summary], lines_max: usize) -> String {
    let mut text = "groups              free  longest     runs".to_owned();
    let mut first = 0;
    for (line, alike) in groups.chunk_by(|one, next| one == next).enumerate() {
        if line == lines_max {
            let rest = groups.len() - first;
            let _ = write!(text, "\n... and {}", counted(rest as u64, "more group"));
            break;
        }
        let last = first + alike.len() - 1;
        let range = if first == last { first.to_string() } else { format!("{first}-{last}") };
        let Summary { free, longest, runs } = alike[0];
        let _ = write!(text, "\n{range:<15}{free:>9}{longest:>9}{runs:>9}");
        first = last + 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(free: u32, longest: u32, runs: u32) -> Summary {
        Summary { free, longest, runs }
    }

    #[test]
    fn groups_that_are_alike_share_a_line_and_there_is_an_end() {
        let free = summary(32_768, 32_768, 1);
        let groups = [free, free, summary(5, 3, 2), free];
        assert_eq!(
            describe_groups(&groups, 10),
            "groups              free  longest     runs\n\
             0-1                32768    32768        1\n\
             2                      5        3        2\n\
             3                  32768    32768        1"
        );
        assert!(describe_groups(&groups, 1).ends_with("        1\n... and 2 more groups"));
        let text = longest_runs(&groups);
        assert_eq!(text, "longest free run of a group, in blocks: groups\n  2-3           1\n  32768-65535   3\n");
        assert!(!longest_runs(&[summary(0, 0, 0)]).contains('-'), "a full group has no run");
    }
}
