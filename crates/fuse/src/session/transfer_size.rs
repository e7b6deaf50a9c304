//! How many bytes of data a READ or WRITE has at most.
//!
//! The kernel divides a synchronous call (`pread`, `pwrite`) into requests of this size and sends
//! them one after the other, so it limits how many targets work for such a call at once. Linux
//! allows 1 MiB by default; where an administrator allows more (`sysctl fs.fuse.max_pages_limit`,
//! Linux 6.13), mounts take it, up to [`DATA_BYTES_MAX`].

use super::buffer::PAGE_BYTES;
use super::host_limits;

/// More is not asked for: a request then has a part on each of 16 targets with the usual stripe of
/// 1 MiB. Buffers and entries of io_uring have addresses for as much; memory is taken by use.
pub const DATA_BYTES_MAX: usize = 16 << 20;
/// What kernels without a parameter allow.
const DATA_BYTES_DEFAULT: usize = 1 << 20;

/// What this host allows now.
pub fn of_host() -> usize {
    allowed(host_limits::read("max_pages_limit"))
}

/// `pages_limit`: of a request; `None` if the kernel has a fixed limit.
fn allowed(pages_limit: Option<u64>) -> usize {
    let bytes = pages_limit.map_or(DATA_BYTES_DEFAULT as u64, |pages| pages.saturating_mul(PAGE_BYTES as u64));
    bytes.clamp(PAGE_BYTES as u64, DATA_BYTES_MAX as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_take_what_the_host_allows_up_to_a_limit() {
        assert_eq!(allowed(None), 1 << 20);
        assert_eq!(allowed(Some(256)), 1 << 20);
        assert_eq!(allowed(Some(1024)), 4 << 20);
        assert_eq!(allowed(Some(1)), PAGE_BYTES);
        assert_eq!(allowed(Some(65_535)), DATA_BYTES_MAX);
        assert_eq!(allowed(Some(u64::MAX)), DATA_BYTES_MAX);
        assert_eq!(allowed(Some(0)), PAGE_BYTES);
    }
}
