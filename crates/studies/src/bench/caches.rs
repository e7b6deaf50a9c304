//! The kernel's caches, which are emptied between the phases of a benchmark.

use std::sync::Once;

use host::progress;

/// Which caches of the kernel are emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// Pages of files.
    Pages,
    /// Names and attributes too.
    All,
}

/// Empties the kernel's caches, so that the file system is asked again; only root can do so; for
/// other users a message says that cached data may be used.
pub fn drop_caches(kind: CacheKind) {
    static TOLD: Once = Once::new();
    let number = match kind {
        CacheKind::Pages => "1",
        CacheKind::All => "3",
    };
    rustix::fs::sync();
    if let Err(error) = std::fs::write("/proc/sys/vm/drop_caches", number) {
        TOLD.call_once(|| {
            progress::tell(format_args!("cached data may be used: the kernel's caches cannot be emptied: {error}"));
        });
    }
}
