//! Bits of the protocol, by the message they belong to.

/// Bits of INIT, request and answer: 64 of them, the upper half in the `flags2` field.
pub mod init {
    /// Read requests of one file may be outstanding together (FUSE_ASYNC_READ).
    pub const ASYNC_READ: u64 = 1 << 0;
    /// fcntl(2) locks are the file system's (FUSE_POSIX_LOCKS).
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// O_TRUNC comes with OPEN (FUSE_ATOMIC_O_TRUNC).
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// LOOKUP of "." and ".." of inodes that the kernel knows by number only, for file handles
    /// (FUSE_EXPORT_SUPPORT).
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// Writes beyond a page (FUSE_BIG_WRITES).
    pub const BIG_WRITES: u64 = 1 << 5;
    /// The file system applies the umask (FUSE_DONT_MASK): a default access list replaces it.
    pub const DONT_MASK: u64 = 1 << 6;
    /// flock(2) locks are the file system's (FUSE_FLOCK_LOCKS).
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// ioctl(2) on directories (FUSE_HAS_IOCTL_DIR).
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    /// READDIRPLUS exists (FUSE_DO_READDIRPLUS).
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    /// The kernel chooses between READDIR and READDIRPLUS (FUSE_READDIRPLUS_AUTO).
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    /// Asynchronous direct I/O is sent in parallel (FUSE_ASYNC_DIO).
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// Lookups and readdirs of one directory may be outstanding together (FUSE_PARALLEL_DIROPS).
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// The kernel checks permissions (as with the mount option default_permissions) and access
    /// lists (FUSE_POSIX_ACL).
    pub const POSIX_ACL: u64 = 1 << 20;
    /// `max_pages` of the answer counts (FUSE_MAX_PAGES).
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The file system removes set-id bits and capabilities; the kernel says when the caller is not
    /// privileged (FUSE_HANDLE_KILLPRIV_V2, Linux 5.12).
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// The `flags2` field exists (FUSE_INIT_EXT, Linux 5.17).
    pub const INIT_EXT: u64 = 1 << 30;
    /// Shared mappings of files opened for direct I/O (FUSE_DIRECT_IO_ALLOW_MMAP, Linux 6.6).
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Requests come over io_uring as soon as every queue has an entry, and wait until then
    /// (FUSE_OVER_IO_URING, Linux 6.14).
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of the answer to OPEN, CREATE and OPENDIR.
pub mod open_reply {
    /// Reads and writes bypass the page cache (FOPEN_DIRECT_IO).
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Pages cached by earlier opens stay valid (FOPEN_KEEP_CACHE).
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The kernel keeps the names of a directory that it reads (FOPEN_CACHE_DIR, Linux 4.20).
    pub const CACHE_DIR: u32 = 1 << 3;
    /// Direct writes to one inode may be outstanding together (FOPEN_PARALLEL_DIRECT_WRITES).
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Bits of `valid` of SETATTR (FATTR_...).
pub mod set_attributes {
    /// `mode`.
    pub const MODE: u32 = 1 << 0;
    /// `uid`.
    pub const UID: u32 = 1 << 1;
    /// `gid`.
    pub const GID: u32 = 1 << 2;
    /// `size`.
    pub const SIZE: u32 = 1 << 3;
    /// `atime`.
    pub const ATIME: u32 = 1 << 4;
    /// `mtime`.
    pub const MTIME: u32 = 1 << 5;
    /// `handle`: through an open file (ftruncate).
    pub const HANDLE: u32 = 1 << 6;
    /// The present time instead of `atime`.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The present time instead of `mtime`.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Clear set-id bits (FATTR_KILL_SUIDGID).
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Bits of `flags` of GETATTR.
pub mod get_attributes {
    /// `handle` names an open file (FUSE_GETATTR_FH).
    pub const HANDLE: u32 = 1 << 0;
}

/// Bits of `write_flags` of WRITE.
pub mod write {
    /// Written back from the page cache: the handle is any that is open for writing, and the
    /// credentials are those of no process (FUSE_WRITE_CACHE).
    pub const CACHE: u32 = 1 << 0;
    /// The writer is not privileged: clear set-id bits (FUSE_WRITE_KILL_SUIDGID).
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Bits of `release_flags` of RELEASE.
pub mod release {
    /// Release the flock(2) locks of `lock_owner` (FUSE_RELEASE_FLOCK_UNLOCK).
    pub const FLOCK_UNLOCK: u32 = 1 << 1;
}

/// Bits of `lock_flags` of GETLK, SETLK and SETLKW.
pub mod lock {
    /// A flock(2) lock, not a fcntl(2) one (FUSE_LK_FLOCK).
    pub const FLOCK: u32 = 1 << 0;
}

/// Bits of `fsync_flags` of FSYNC.
pub mod fsync {
    /// Data and what is needed to read them, not other attributes (FUSE_FSYNC_FDATASYNC).
    pub const DATA_ONLY: u32 = 1 << 0;
}

/// Bit of `unique` that marks INTERRUPT requests (FUSE_INT_REQ_BIT).
pub const INTERRUPT_UNIQUE_BIT: u64 = 1;
