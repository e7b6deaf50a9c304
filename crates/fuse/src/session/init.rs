//! INIT: what both sides support, and what is enabled. A pure function, so that it can be read and
//! tested as a table.

use crate::protocol::decode::Init;
use crate::protocol::flags::init::{
    ASYNC_DIO, ASYNC_READ, ATOMIC_O_TRUNC, BIG_WRITES, DIRECT_IO_ALLOW_MMAP, DO_READDIRPLUS, DONT_MASK, EXPORT_SUPPORT,
    FLOCK_LOCKS, HANDLE_KILLPRIV_V2, HAS_IOCTL_DIR, INIT_EXT, MAX_PAGES, PARALLEL_DIROPS, POSIX_LOCKS,
    READDIRPLUS_AUTO,
};
use crate::protocol::reply::InitOut;
use crate::protocol::{MAJOR, MINOR_MAX, MINOR_MIN};

use super::buffer::PAGE_BYTES;
use super::ring::ENTRIES_MAX as RING_ENTRIES_MAX;
use super::transfer_size::DATA_BYTES_MAX;

/// Features without which the promises of this file system cannot be kept. All are older than
/// [`MINOR_MIN`].
const REQUIRED: u64 = BIG_WRITES | ATOMIC_O_TRUNC | DONT_MASK | POSIX_LOCKS | FLOCK_LOCKS | MAX_PAGES;

/// Features used where the kernel has them. Deliberately absent:
/// - WRITEBACK_CACHE, AUTO_INVAL_DATA: no data may be cached that another client can change.
/// - CACHE_SYMLINKS: targets would stay in the page cache, which is not dropped with attributes.
///   Numbers are never reused and targets never change, but reading one changes its access time.
/// - POSIX_ACL, which makes the kernel check permissions and access lists by attributes: mounts add
///   it ([`negotiate`]) unless their options say no_default_permissions.
/// - OVER_IO_URING: depends on the choice at mount, and on what is available.
/// - NO_OPEN_SUPPORT: every open is known to the MDT.
/// - HANDLE_KILLPRIV (the first version) does not say whether a writer is privileged. The second
///   one does, with WRITE, SETATTR and OPEN. Without either, the kernel would send a chmod on
///   behalf of a writer that may not chmod.
const WANTED: u64 = REQUIRED
    | ASYNC_READ
    | ASYNC_DIO
    | PARALLEL_DIROPS
    | HAS_IOCTL_DIR
    | DO_READDIRPLUS
    | READDIRPLUS_AUTO
    | HANDLE_KILLPRIV_V2
    | DIRECT_IO_ALLOW_MMAP
    | EXPORT_SUPPORT
    | INIT_EXT;

/// Background requests in flight at most: asynchronous I/O of programs, read-ahead, RELEASE. Those
/// that wait for a target keep their places, and the kernel sends no others, not even RELEASE, once
/// none is left. So there are many: the memory that they take here is in proportion to what the
/// programs themselves hold for their asynchronous I/O. Over io_uring all may come from one
/// processor, and must leave entries of its queue for others.
const BACKGROUND_MAX: u16 = 4096;
const _: () = assert!(BACKGROUND_MAX as usize <= RING_ENTRIES_MAX / 2, "they do not use up the entries of a queue");
const _: () = assert!(DATA_BYTES_MAX / PAGE_BYTES <= u16::MAX as usize, "INIT can say how many pages");
/// Read-ahead of mapped files, in bytes.
pub const READ_AHEAD_BYTES: u32 = 1 << 20;

/// What INIT led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Negotiated {
    /// Agreed: send this answer and serve. Second: features switched on.
    Agreed(InitOut, u64),
    /// The kernel's major version is newer: send this answer and wait for another INIT.
    TryOlder(InitOut),
}

/// Why this kernel cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedKernel {
    /// Protocol too old.
    #[error("the kernel speaks FUSE {major}.{minor}; at least {MAJOR}.{MINOR_MIN} (Linux 5.4) is needed")]
    Version {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// Features missing.
    #[error("the kernel lacks FUSE features (mask {0:#x})")]
    Features(u64),
}

/// Decides on versions and features. `further`: features wanted besides those of every session.
/// `data_bytes`: of one READ or WRITE at most, whole pages.
pub fn negotiate(request: &Init, further: u64, data_bytes: usize) -> Result<Negotiated, UnsupportedKernel> {
    let (major, minor) = (request.init.major, request.init.minor);
    if major > MAJOR {
        return Ok(Negotiated::TryOlder(InitOut { major: MAJOR, minor: MINOR_MAX, ..InitOut::default() }));
    }
    if major < MAJOR || minor < MINOR_MIN {
        return Err(UnsupportedKernel::Version { major, minor });
    }
    let missing = REQUIRED & !request.flags;
    if missing != 0 {
        return Err(UnsupportedKernel::Features(missing));
    }
    let features = request.flags & (WANTED | further);
    let reply = InitOut {
        major: MAJOR,
        minor: minor.min(MINOR_MAX),
        read_ahead_bytes_max: READ_AHEAD_BYTES,
        flags: features as u32,
        background_max: BACKGROUND_MAX,
        congestion_threshold: BACKGROUND_MAX / 4 * 3,
        write_bytes_max: data_bytes as u32,
        time_granularity: 1,
        pages_max: (data_bytes / PAGE_BYTES) as u16,
        flags2: (features >> 32) as u32,
        ..InitOut::default()
    };
    Ok(Negotiated::Agreed(reply, features))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::flags::init::POSIX_ACL;
    use crate::protocol::request::InitIn;

    fn kernel(major: u32, minor: u32, flags: u64) -> Init {
        Init { init: InitIn { major, minor, read_ahead_bytes_max: 131_072, flags: flags as u32 }, flags }
    }

    #[test]
    fn a_kernel_that_can_everything_gets_what_is_wanted_and_no_more() {
        let Ok(Negotiated::Agreed(reply, features)) = negotiate(&kernel(7, 45, u64::MAX), 0, 1 << 20) else { panic!() };
        assert_eq!(features, WANTED);
        assert_eq!((reply.major, reply.minor), (7, 45));
        assert_eq!((reply.pages_max, reply.write_bytes_max), (256, 1 << 20));
        assert_eq!(u64::from(reply.flags2), DIRECT_IO_ALLOW_MMAP >> 32);
        let writeback_cache = 1 << 16;
        assert_eq!(reply.flags & writeback_cache, 0);
    }

    #[test]
    fn further_features_are_switched_on_where_the_kernel_has_them() {
        let Ok(Negotiated::Agreed(_, features)) = negotiate(&kernel(7, 45, u64::MAX), POSIX_ACL, 1 << 20) else {
            panic!()
        };
        assert_eq!(features, WANTED | POSIX_ACL);
        let Ok(Negotiated::Agreed(_, features)) = negotiate(&kernel(7, 45, REQUIRED), POSIX_ACL, 1 << 20) else {
            panic!()
        };
        assert_eq!(features, REQUIRED);
    }

    #[test]
    fn versions_meet_at_the_smaller() {
        for (minor, agreed) in [(MINOR_MIN, MINOR_MIN), (38, 38), (MINOR_MAX, MINOR_MAX), (99, MINOR_MAX)] {
            let Ok(Negotiated::Agreed(reply, _)) = negotiate(&kernel(7, minor, u64::MAX), 0, 1 << 20) else { panic!() };
            assert_eq!(reply.minor, agreed);
        }
        assert!(matches!(negotiate(&kernel(8, 0, 0), 0, 1 << 20), Ok(Negotiated::TryOlder(InitOut { major: 7, .. }))));
    }

    #[test]
    fn too_old_kernels_are_refused_by_name() {
        assert_eq!(
            negotiate(&kernel(7, 30, u64::MAX), 0, 1 << 20),
            Err(UnsupportedKernel::Version { major: 7, minor: 30 })
        );
        assert_eq!(
            negotiate(&kernel(6, 99, u64::MAX), 0, 1 << 20),
            Err(UnsupportedKernel::Version { major: 6, minor: 99 })
        );
        let without_flock = negotiate(&kernel(7, 31, !FLOCK_LOCKS), 0, 1 << 20);
        assert_eq!(without_flock, Err(UnsupportedKernel::Features(FLOCK_LOCKS)));
    }
}
