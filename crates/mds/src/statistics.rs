//! Counts of operations, under the names of Lustre's `mdt.*.md_stats` where it has one.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationCounter {
    /// Opens of files.
    Open,
    /// Ends of opens.
    Close,
    /// Creations of files that are opened with it, or written.
    Create,
    /// Creations of other files and nodes.
    Mknod,
    /// Creations of directories.
    Mkdir,
    /// Creations of symbolic links.
    Symlink,
    /// Hard links.
    Link,
    /// Removals of names of files.
    Unlink,
    /// Removals of directories.
    Rmdir,
    /// Renames.
    Rename,
    /// Names to inodes.
    Lookup,
    /// Reads of attributes.
    Getattr,
    /// Changes of attributes.
    Setattr,
    /// Questions of permission.
    Access,
    /// Reads of symbolic links.
    Readlink,
    /// Reads of directories.
    Readdir,
    /// Reads of extended attributes.
    Getxattr,
    /// Changes of extended attributes.
    Setxattr,
    /// Sizes that clients reported.
    ReportSize,
    /// Takings and returns of the exclusive data lock.
    Exclusive,
    /// Reads and changes of layouts.
    Layout,
    /// Paths of inodes.
    Path,
    /// Advisory locks.
    Lock,
    /// Questions for space, and reports of OSTs that are full.
    Statfs,
    /// Commits.
    Sync,
    /// Claims after restarts, and ends of sessions.
    Session,
    /// Checks and scans of the namespace.
    Check,
    /// Pings.
    Ping,
    /// Reads of data.
    Read,
    /// Writes of data.
    Write,
    /// Other changes of data.
    Punch,
    /// Accesses that clients told of afterwards, many at once.
    NoteAccesses,
}

impl OperationCounter {
    /// All of them, in the order they are shown.
    const ALL: [OperationCounter; 32] = [
        OperationCounter::Open,
        OperationCounter::Close,
        OperationCounter::Create,
        OperationCounter::Mknod,
        OperationCounter::Mkdir,
        OperationCounter::Symlink,
        OperationCounter::Link,
        OperationCounter::Unlink,
        OperationCounter::Rmdir,
        OperationCounter::Rename,
        OperationCounter::Lookup,
        OperationCounter::Getattr,
        OperationCounter::Setattr,
        OperationCounter::Access,
        OperationCounter::Readlink,
        OperationCounter::Readdir,
        OperationCounter::Getxattr,
        OperationCounter::Setxattr,
        OperationCounter::ReportSize,
        OperationCounter::Exclusive,
        OperationCounter::Layout,
        OperationCounter::Path,
        OperationCounter::Lock,
        OperationCounter::Statfs,
        OperationCounter::Sync,
        OperationCounter::Session,
        OperationCounter::Check,
        OperationCounter::Ping,
        OperationCounter::Read,
        OperationCounter::Write,
        OperationCounter::Punch,
        OperationCounter::NoteAccesses,
    ];

    const fn name(self) -> &'static str {
        match self {
            OperationCounter::Open => "open",
            OperationCounter::Close => "close",
            OperationCounter::Create => "create",
            OperationCounter::Mknod => "mknod",
            OperationCounter::Mkdir => "mkdir",
            OperationCounter::Symlink => "symlink",
            OperationCounter::Link => "link",
            OperationCounter::Unlink => "unlink",
            OperationCounter::Rmdir => "rmdir",
            OperationCounter::Rename => "rename",
            OperationCounter::Lookup => "lookup",
            OperationCounter::Getattr => "getattr",
            OperationCounter::Setattr => "setattr",
            OperationCounter::Access => "access",
            OperationCounter::Readlink => "readlink",
            OperationCounter::Readdir => "readdir",
            OperationCounter::Getxattr => "getxattr",
            OperationCounter::Setxattr => "setxattr",
            OperationCounter::ReportSize => "report_size",
            OperationCounter::Exclusive => "exclusive",
            OperationCounter::Layout => "layout",
            OperationCounter::Path => "path",
            OperationCounter::Lock => "lock",
            OperationCounter::Statfs => "statfs",
            OperationCounter::Sync => "sync",
            OperationCounter::Session => "session",
            OperationCounter::Check => "check",
            OperationCounter::Ping => "ping",
            OperationCounter::Read => "read",
            OperationCounter::Write => "write",
            OperationCounter::Punch => "punch",
            OperationCounter::NoteAccesses => "note_accesses",
        }
    }
}

const _: () = {
    let mut place = 0;
    while place < OperationCounter::ALL.len() {
        assert!(OperationCounter::ALL[place] as usize == place);
        place += 1;
    }
    assert!(OperationCounter::NoteAccesses as usize + 1 == OperationCounter::ALL.len());
};

/// Counts since the MDT was opened.
#[derive(Debug, Default)]
pub struct Statistics {
    counts: [AtomicU64; OperationCounter::ALL.len()],
}

impl Statistics {
    /// Counts one request.
    pub(crate) fn count(&self, counter: OperationCounter) {
        self.counts[counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Names and counts.
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        OperationCounter::ALL
            .iter()
            .zip(&self.counts)
            .map(|(counter, count)| (counter.name(), count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Sets all counts to zero.
    pub fn clear(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_name() {
        let statistics = Statistics::default();
        statistics.count(OperationCounter::Ping);
        statistics.count(OperationCounter::Ping);
        let counted: Vec<_> = statistics.read().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("ping", 2)]);
        statistics.clear();
        assert!(statistics.read().iter().all(|(_, count)| *count == 0));
    }
}
