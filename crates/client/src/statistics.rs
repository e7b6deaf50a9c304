//! Counters of operations, as Lustre's `llite.*.stats` shows them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Operations that are counted, under the names of Lustre's `llite` statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Data read; samples are bytes.
    ReadBytes,
    /// Data written; samples are bytes.
    WriteBytes,
    /// open(2), with or without creation.
    Open,
    /// close(2) of the last descriptor.
    Close,
    /// fsync(2).
    Fsync,
    /// lseek(2) for data or a hole.
    Seek,
    /// fallocate(2).
    Fallocate,
    /// truncate(2).
    Truncate,
    /// stat(2).
    Getattr,
    /// chmod(2) and the like.
    Setattr,
    /// access(2).
    Access,
    /// Name to inode.
    Lookup,
    /// mknod(2) and creation of files.
    Mknod,
    /// mkdir(2).
    Mkdir,
    /// symlink(2).
    Symlink,
    /// readlink(2).
    Readlink,
    /// link(2).
    Link,
    /// unlink(2).
    Unlink,
    /// rmdir(2).
    Rmdir,
    /// rename(2).
    Rename,
    /// One request for directory entries.
    Readdir,
    /// getxattr(2).
    Getxattr,
    /// setxattr(2).
    Setxattr,
    /// listxattr(2).
    Listxattr,
    /// removexattr(2).
    Removexattr,
    /// statfs(2).
    Statfs,
    /// Advisory locks.
    Flock,
    /// sync(2).
    Sync,
    /// Operations of those above that were answered from the cache of names and attributes.
    CacheHits,
}

impl Operation {
    /// All operations, in the order they are shown.
    pub const ALL: [Operation; 29] = [
        Operation::ReadBytes,
        Operation::WriteBytes,
        Operation::Open,
        Operation::Close,
        Operation::Fsync,
        Operation::Seek,
        Operation::Fallocate,
        Operation::Truncate,
        Operation::Getattr,
        Operation::Setattr,
        Operation::Access,
        Operation::Lookup,
        Operation::Mknod,
        Operation::Mkdir,
        Operation::Symlink,
        Operation::Readlink,
        Operation::Link,
        Operation::Unlink,
        Operation::Rmdir,
        Operation::Rename,
        Operation::Readdir,
        Operation::Getxattr,
        Operation::Setxattr,
        Operation::Listxattr,
        Operation::Removexattr,
        Operation::Statfs,
        Operation::Flock,
        Operation::Sync,
        Operation::CacheHits,
    ];

    /// Lustre's name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::ReadBytes => "read_bytes",
            Operation::WriteBytes => "write_bytes",
            Operation::Open => "open",
            Operation::Close => "close",
            Operation::Fsync => "fsync",
            Operation::Seek => "seek",
            Operation::Fallocate => "fallocate",
            Operation::Truncate => "truncate",
            Operation::Getattr => "getattr",
            Operation::Setattr => "setattr",
            Operation::Access => "inode_permission",
            Operation::Lookup => "lookup",
            Operation::Mknod => "mknod",
            Operation::Mkdir => "mkdir",
            Operation::Symlink => "symlink",
            Operation::Readlink => "readlink",
            Operation::Link => "link",
            Operation::Unlink => "unlink",
            Operation::Rmdir => "rmdir",
            Operation::Rename => "rename",
            Operation::Readdir => "readdir",
            Operation::Getxattr => "getxattr",
            Operation::Setxattr => "setxattr",
            Operation::Listxattr => "listxattr",
            Operation::Removexattr => "removexattr",
            Operation::Statfs => "statfs",
            Operation::Flock => "flock",
            Operation::Sync => "sync",
            Operation::CacheHits => "cache_hits",
        }
    }
}

#[derive(Debug)]
struct Counter {
    samples: AtomicU64,
    sum: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

impl Default for Counter {
    fn default() -> Self {
        Self {
            samples: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }
    }
}

/// What was counted of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Operations.
    pub samples: u64,
    /// Of those with sizes: bytes in all.
    pub sum: u64,
    /// Smallest size; 0 without samples.
    pub min: u64,
    /// Largest size.
    pub max: u64,
}

/// Counters since the mount, or since they were last reset.
#[derive(Debug, Default)]
pub struct Statistics {
    counters: [Counter; Operation::ALL.len()],
    /// What was asked for ahead.
    pub statahead: StataheadStatistics,
}

/// What was asked for ahead of lookups: Lustre's `llite.*.statahead_stats`.
#[derive(Debug, Default)]
pub struct StataheadStatistics {
    pages: AtomicU64,
    names: AtomicU64,
    wrong: AtomicU64,
}

impl StataheadStatistics {
    pub(crate) fn asked(&self, names: usize) {
        self.pages.fetch_add(1, Ordering::Relaxed);
        self.names.fetch_add(names as u64, Ordering::Relaxed);
    }

    pub(crate) fn left_order(&self) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
    }

    /// Pages that were asked for, names that came with them, and how often lookups left the order
    /// in which they had been.
    pub fn get(&self) -> (u64, u64, u64) {
        let [pages, names, wrong] =
            [&self.pages, &self.names, &self.wrong].map(|counter| counter.load(Ordering::Relaxed));
        (pages, names, wrong)
    }

    /// Begins to count again.
    pub fn reset(&self) {
        [&self.pages, &self.names, &self.wrong].into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

impl Statistics {
    pub(crate) fn count(&self, operation: Operation) {
        self.counters[operation as usize].samples.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_bytes(&self, operation: Operation, bytes: usize) {
        let counter = &self.counters[operation as usize];
        let bytes = bytes as u64;
        counter.samples.fetch_add(1, Ordering::Relaxed);
        counter.sum.fetch_add(bytes, Ordering::Relaxed);
        counter.min.fetch_min(bytes, Ordering::Relaxed);
        counter.max.fetch_max(bytes, Ordering::Relaxed);
    }

    /// What was counted of one operation.
    pub fn get(&self, operation: Operation) -> Count {
        let counter = &self.counters[operation as usize];
        let samples = counter.samples.load(Ordering::Relaxed);
        let min = counter.min.load(Ordering::Relaxed);
        Count {
            samples,
            sum: counter.sum.load(Ordering::Relaxed),
            min: if min == u64::MAX { 0 } else { min },
            max: counter.max.load(Ordering::Relaxed),
        }
    }

    /// Begins to count again.
    pub fn reset(&self) {
        for counter in &self.counters {
            counter.samples.store(0, Ordering::Relaxed);
            counter.sum.store(0, Ordering::Relaxed);
            counter.min.store(u64::MAX, Ordering::Relaxed);
            counter.max.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_own_counter() {
        let statistics = Statistics::default();
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, index, "{}", operation.name());
            for _ in 0..=index {
                statistics.count(operation);
            }
        }
        assert!(Operation::ALL.iter().all(|&each| statistics.get(each).samples == each as u64 + 1));
        statistics.reset();
        assert!(Operation::ALL.iter().all(|&each| statistics.get(each) == Count::default()));
    }

    #[test]
    fn bytes_have_bounds_and_a_sum() {
        let statistics = Statistics::default();
        for bytes in [7, 3, 5] {
            statistics.count_bytes(Operation::ReadBytes, bytes);
        }
        assert_eq!(statistics.get(Operation::ReadBytes), Count { samples: 3, sum: 15, min: 3, max: 7 });
    }
}
