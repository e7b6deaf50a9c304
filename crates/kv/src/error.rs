//! Errors of the store, one variant per cause.

use std::{io, sync::Arc};

use crate::batch::Lsn;

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a store operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An earlier write or flush failed: what is on the device is unknown from there on, so nothing
    /// is changed any more. Reads continue. Reopening the store recovers what was durable, and
    /// whatever else can still be read without a gap, which it writes again: after a failed flush
    /// the kernel may show what it will never write.
    #[error("the store refuses changes after an earlier failure: {first}")]
    Poisoned {
        /// The first failure.
        first: Arc<str>,
    },
    /// The device has no room for further changes. Nothing of the batch was applied.
    #[error("no space left for the journal or the tables")]
    NoSpace,
    /// Changes came faster than checkpoints or new segments, without waiting for
    /// [`crate::Store::written`] or [`crate::Store::ready`]. Nothing of the batch was applied.
    #[error("the store is waiting for checkpoints")]
    Overloaded,
    /// An attempt that must not wait needs what is not in memory, see [`crate::Store::reads`]. No
    /// user is to see it.
    #[error("an entry must be loaded first")]
    Missed,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// Above a limit; nothing was applied.
    #[error("{what} of {bytes} bytes is above the limit of {bytes_max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The batch number was never given out.
    #[error("batch {} is unknown: the last one is {}", asked.0, last.0)]
    UnknownLsn {
        /// The requested number.
        asked: Lsn,
        /// The last applied.
        last: Lsn,
    },
    /// Stored bytes are damaged where they had been durable.
    #[error("{file} is damaged at byte {offset}: {reason}")]
    Corrupt {
        /// File of the device.
        file: String,
        /// Where.
        offset: u64,
        /// What was found.
        reason: String,
    },
    /// Written by another version of the format.
    #[error(
        "{file} has format version {found}, this program reads version {supported}: copy the data off with the \
         release that made it (StriaFS 0.1 for version 1), then format again"
    )]
    UnknownVersion {
        /// File of the device, or the cold store.
        file: String,
        /// Version found.
        found: u32,
        /// Version understood.
        supported: u32,
    },
    /// Belongs to another store.
    #[error("{file} belongs to store {found:016x}, expected {expected:016x}")]
    WrongStore {
        /// File of the device, or the cold store.
        file: String,
        /// Its store.
        found: u64,
        /// This store.
        expected: u64,
    },
    /// Something that must exist does not.
    #[error("{what} is missing: {reason}")]
    Missing {
        /// What.
        what: &'static str,
        /// Why it is expected.
        reason: String,
    },
    /// A background task of the store panicked: a defect of this program.
    #[error("a background task panicked")]
    TaskPanicked,
    /// The configuration contradicts itself.
    #[error("store configuration: {0}")]
    Configuration(&'static str),
    /// The device failed.
    #[error("cannot {action} {file}: {cause}")]
    Device {
        /// What was tried.
        action: &'static str,
        /// File of the device.
        file: String,
        /// Why it failed.
        cause: Arc<io::Error>,
    },
    /// The cold store failed.
    #[error("cannot {action} the cold store: {cause}")]
    Cold {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        cause: Arc<io::Error>,
    },
    /// The owner's hook before a checkpoint failed; nothing was checkpointed.
    #[error("preparing a checkpoint: {cause}")]
    Hook {
        /// Why it failed.
        cause: Arc<io::Error>,
    },
}

impl Error {
    pub(crate) fn device(action: &'static str, file: &str, cause: io::Error) -> Error {
        Error::Device { action, file: file.to_owned(), cause: Arc::new(cause) }
    }

    pub(crate) fn cold(action: &'static str, cause: io::Error) -> Error {
        Error::Cold { action, cause: Arc::new(cause) }
    }

    /// Whether the device tried nothing: later it may succeed.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Error::Device { cause, .. } if cause.kind() == io::ErrorKind::ResourceBusy)
    }

    /// Whether space is what is missing.
    pub fn is_no_space(&self) -> bool {
        match self {
            Error::NoSpace => true,
            Error::Device { cause, .. } | Error::Cold { cause, .. } | Error::Hook { cause } => is_no_space(cause),
            _ => false,
        }
    }
}

/// Whether an error of a device says that it is full.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that prints an error with its sources, as `stria` does, must not print the same
    /// text twice.
    #[test]
    fn a_cause_that_the_text_tells_is_no_source() {
        let cause = || io::Error::other("broken");
        let errors = [
            Error::device("write", "journal-0", cause()),
            Error::cold("open", cause()),
            Error::Hook { cause: Arc::new(cause()) },
        ];
        for error in errors {
            assert_eq!(error.to_string().matches("broken").count(), 1, "{error}");
            assert!(std::error::Error::source(&error).is_none(), "{error}");
        }
    }
}
