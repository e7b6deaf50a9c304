//! Errors when an MDT is opened, and how errors of the store appear in replies.

use types::{Damage, FsError, MdtIndex};

/// Why an MDT does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store does not open.
    #[error(transparent)]
    Store(#[from] kv::Error),
    /// A record does not decode.
    #[error(transparent)]
    Damaged(#[from] FsError),
    /// The store was never formatted as an MDT.
    #[error("the store is empty: format it first")]
    NotFormatted,
    /// The store belongs to another target.
    #[error("the store belongs to {found_fsname}-{found}, expected {fsname}-{index}")]
    OtherIdentity {
        /// File system of the store.
        found_fsname: String,
        /// Index of the store.
        found: MdtIndex,
        /// File system expected.
        fsname: String,
        /// Index expected.
        index: MdtIndex,
    },
    /// Formatting would destroy what is there.
    #[error("the store already holds {fsname}-{index}")]
    AlreadyFormatted {
        /// File system of the store.
        fsname: String,
        /// Index of the store.
        index: MdtIndex,
    },
}

/// An error of the store as a reply carries it. `target` as `stria-MDT0000`.
pub(crate) fn store_error(target: &str, error: &kv::Error) -> FsError {
    if error.is_no_space() {
        return FsError::NoSpace;
    }
    match error {
        kv::Error::Corrupt { .. } => Damage::new(format!("tables of {target}"), error.to_string()).into(),
        kv::Error::TooLarge { .. } => FsError::TooBig,
        // Of an attempt that is given up.
        kv::Error::Missed => FsError::WouldBlock,
        _ => FsError::Device { target: target.to_owned(), detail: error.to_string() },
    }
}
