//! Limits on everything, with their origin. Relations between them are checked at compile time.

/// Longest name of a directory entry, in bytes (POSIX NAME_MAX, as Lustre).
pub const NAME_BYTES_MAX: usize = 255;
/// Longest target of a symbolic link, in bytes (Linux PATH_MAX less its NUL).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Hard links to one file (u32 in `Attributes`, the bound is ext4's order of magnitude with room).
pub const LINKS_MAX: u32 = 1_000_000;
/// Largest file, in bytes: what off_t holds, less one maximal stripe so that stripe arithmetic cannot overflow.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64 - STRIPE_BYTES_MAX;
/// Smallest stripe and the unit of stripe sizes, in bytes (Lustre's LOV_MIN_STRIPE_SIZE).
pub const STRIPE_BYTES_MIN: u64 = 64 * 1024;
/// Largest stripe, in bytes: multiples of 64 KiB below 4 GiB (Lustre).
pub const STRIPE_BYTES_MAX: u64 = (4 << 30) - STRIPE_BYTES_MIN;
/// Stripe size where nobody chose one (Lustre 2.17's default).
pub const STRIPE_BYTES_DEFAULT: u64 = 4 << 20;
/// Most stripes of a plain layout (Lustre's LOV_MAX_STRIPE_COUNT).
pub const STRIPE_COUNT_MAX: u32 = 2000;
/// Unit of checksums and of space on an OST, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// Most data in one read or write request, in bytes (Lustre's 4 MiB `max_pages_per_rpc`).
pub const BULK_BYTES_MAX: usize = 4 << 20;
/// Most bytes of an encoded message body, without bulk data.
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// Longest name of an extended attribute (Linux XATTR_NAME_MAX).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Largest value of an extended attribute, and of all names together (Linux XATTR_SIZE_MAX).
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Requests one session may have outstanding at one target; the slots a server keeps replies for.
pub const SESSION_SLOTS_MAX: u16 = 256;
/// Longest file system name (Lustre).
pub const FSNAME_BYTES_MAX: usize = 8;
/// Advisory locks one client may hold at one MDT.
pub const LOCKS_PER_CLIENT_MAX: usize = 1 << 20;

const _: () = assert!(STRIPE_BYTES_MIN.is_multiple_of(BLOCK_BYTES), "a checksum block must not straddle stripes");
const _: () =
    assert!((BULK_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES), "a request must carry whole checksum blocks");
const _: () = assert!(XATTR_VALUE_BYTES_MAX + XATTR_NAME_BYTES_MAX < BODY_BYTES_MAX, "an attribute fits a message");
