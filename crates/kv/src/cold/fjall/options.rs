//! Memory of a fjall store.

/// Memory of a fjall store.
#[derive(Clone, Copy, Debug)]
pub struct FjallOptions {
    /// Cache of blocks.
    pub cache_bytes: u64,
    /// Size at which what was written goes to a table file. A few such buffers may exist at a time.
    pub write_buffer_bytes: u64,
}

impl Default for FjallOptions {
    fn default() -> FjallOptions {
        FjallOptions { cache_bytes: 32 << 20, write_buffer_bytes: 8 << 20 }
    }
}

impl FjallOptions {
    /// For a store with [`crate::Config::for_budget`] of the same number. Little for blocks: the
    /// kernel caches them too.
    pub fn for_budget(bytes: u64) -> FjallOptions {
        FjallOptions { cache_bytes: bytes / 16, write_buffer_bytes: (bytes / 64).max(1 << 20) }
    }
}
