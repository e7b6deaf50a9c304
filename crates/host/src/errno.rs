//! Converts [`FsError`] to errno: the only place that knows errno values. The opposite direction
//! (for tools that get an errno from a system call) is `std::io::Error`.

use types::FsError;

/// An errno value, positive; 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Success.
    pub const NONE: Errno = Errno(0);
    /// EIO.
    pub const INPUT_OUTPUT: Errno = Errno(libc::EIO);
    /// ENOSYS: the kernel never asks again and does without.
    pub const NO_SUCH_OPERATION: Errno = Errno(libc::ENOSYS);
    /// EINVAL.
    pub const INVALID: Errno = Errno(libc::EINVAL);
    /// ENOLCK.
    pub const NO_LOCKS: Errno = Errno(libc::ENOLCK);
    /// ENOTCONN: the mount is being ended.
    pub const NOT_CONNECTED: Errno = Errno(libc::ENOTCONN);
}

/// What a system call that failed so reports.
pub fn of(error: &FsError) -> Errno {
    Errno(match error {
        FsError::NotFound => libc::ENOENT,
        FsError::Exists => libc::EEXIST,
        FsError::NotDirectory => libc::ENOTDIR,
        FsError::IsDirectory => libc::EISDIR,
        FsError::NotEmpty => libc::ENOTEMPTY,
        FsError::AccessDenied => libc::EACCES,
        FsError::NotPermitted => libc::EPERM,
        FsError::Invalid | FsError::Refused(_) => libc::EINVAL,
        FsError::NameTooLong => libc::ENAMETOOLONG,
        FsError::Loop => libc::ELOOP,
        FsError::TooManyLinks => libc::EMLINK,
        FsError::CrossDevice => libc::EXDEV,
        FsError::Busy => libc::EBUSY,
        FsError::NoSpace => libc::ENOSPC,
        FsError::Quota => libc::EDQUOT,
        FsError::ReadOnly => libc::EROFS,
        FsError::FileTooLarge => libc::EFBIG,
        FsError::BadHandle => libc::EBADF,
        FsError::Stale => libc::ESTALE,
        FsError::NoData => libc::ENODATA,
        FsError::Range => libc::ERANGE,
        FsError::TooBig => libc::E2BIG,
        FsError::NotSupported => libc::EOPNOTSUPP,
        FsError::NotTty => libc::ENOTTY,
        FsError::TextFileBusy => libc::ETXTBSY,
        FsError::NoDeviceOrAddress => libc::ENXIO,
        FsError::NoDevice => libc::ENODEV,
        FsError::WouldBlock => libc::EAGAIN,
        FsError::Deadlock => libc::EDEADLK,
        FsError::Interrupted => libc::EINTR,
        FsError::NoLocks => libc::ENOLCK,
        FsError::Overflow => libc::EOVERFLOW,
        FsError::Protocol(_) => libc::EPROTO,
        FsError::TooMany(_) => libc::ENFILE,
        FsError::Device { .. }
        | FsError::Corrupt { .. }
        | FsError::CorruptOnMdt { .. }
        | FsError::Transfer
        | FsError::Unreachable { .. }
        | FsError::Damaged(_) => libc::EIO,
        // The last ones never get this far: the adapter asks again with groups, the client asks
        // again, opens a new session or asks for the layout.
        FsError::AwaitsMdt(_) => libc::EAGAIN,
        FsError::GroupsNeeded => libc::EACCES,
        FsError::Evicted | FsError::LayoutChanged => libc::ESTALE,
    })
}

#[cfg(test)]
mod tests {
    use types::{Damage, MdtIndex, ObjectId, OstIndex};

    use super::*;

    #[test]
    fn errors_mean_to_programs_what_they_say_to_people() {
        // The texts of FsError are those of strerror(3), so the mapping can be checked against the
        // C library.
        let plain = [
            FsError::NotFound,
            FsError::Exists,
            FsError::NotDirectory,
            FsError::IsDirectory,
            FsError::NotEmpty,
            FsError::AccessDenied,
            FsError::NotPermitted,
            FsError::Invalid,
            FsError::NameTooLong,
            FsError::Loop,
            FsError::TooManyLinks,
            FsError::CrossDevice,
            FsError::Busy,
            FsError::NoSpace,
            FsError::Quota,
            FsError::ReadOnly,
            FsError::FileTooLarge,
            FsError::Stale,
            FsError::NoData,
            FsError::Range,
            FsError::TooBig,
            FsError::NotSupported,
            FsError::NotTty,
            FsError::TextFileBusy,
            FsError::NoDeviceOrAddress,
            FsError::NoDevice,
            FsError::WouldBlock,
            FsError::Deadlock,
            FsError::NoLocks,
        ];
        for error in plain {
            let text = std::io::Error::from_raw_os_error(of(&error).0).to_string().to_lowercase();
            assert!(text.starts_with(&error.to_string()), "{error:?} is '{text}'");
        }
    }

    #[test]
    fn whatever_a_device_or_server_does_is_an_input_output_error() {
        let target = || "stria-OST0000".to_owned();
        for error in [
            FsError::Device { target: target(), detail: String::new() },
            FsError::Corrupt { object: ObjectId::default(), ost: OstIndex(0), offset: 0 },
            FsError::CorruptOnMdt { object: ObjectId::default(), mdt: MdtIndex(0), offset: 0 },
            FsError::Transfer,
            FsError::Unreachable { target: target(), seconds: 100, cause: Some("connection refused".to_owned()) },
            Damage::Told(String::new()).into(),
        ] {
            assert_eq!(of(&error), Errno::INPUT_OUTPUT);
        }
    }
}
