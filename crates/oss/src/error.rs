//! Errors of the tables, as clients of the target see them.

use types::{Damage, FsError};

/// An error of the kv store as users of the target see it.
pub(crate) fn kv_error(target: &str, error: kv::Error) -> FsError {
    match error {
        kv::Error::NoSpace => FsError::NoSpace,
        // Of an attempt that is given up.
        kv::Error::Missed => FsError::WouldBlock,
        kv::Error::Corrupt { .. } => Damage::new(format!("tables of {target}"), error.to_string()).into(),
        error => FsError::Device { target: target.to_owned(), detail: error.to_string() },
    }
}
