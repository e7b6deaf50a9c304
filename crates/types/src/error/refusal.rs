//! What a server refuses.

use crate::limits::FSNAME_BYTES_MAX;

/// Why a server refuses a request that it understands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A layout names this pool.
    #[error("pool '{0}' does not exist")]
    UnknownPool(String),
    /// No pool can have this name.
    #[error("'{name}' cannot name a pool: 1-{bytes_max} characters of [-_.a-zA-Z0-9], not a reserved word")]
    PoolName {
        /// The name.
        name: String,
        /// Longest name of a pool.
        bytes_max: usize,
    },
    /// No file system can have this name.
    #[error("'{0}' cannot name a file system: 1-{FSNAME_BYTES_MAX} characters of [-_a-zA-Z0-9]")]
    FileSystemName(String),
    /// A name in a `Connect` is too long or not printable.
    #[error("the {whose}'s name has {bytes} bytes; it must have at most {bytes_max}, all of them printable")]
    ConnectName {
        /// "client" or "target".
        whose: &'static str,
        /// Length of the name.
        bytes: usize,
        /// Longest name.
        bytes_max: usize,
    },
    /// A text of a target or parameter is empty, too long or not printable.
    #[error("{whose}: the {what} must have 1-{bytes_max} printable characters")]
    Text {
        /// The target, or "parameter".
        whose: String,
        /// Which text.
        what: &'static str,
        /// Longest text.
        bytes_max: usize,
    },
    /// The directory of the management service belongs to another file system.
    #[error("this management service was formatted for file system '{formatted}', not '{requested}'")]
    OtherStore {
        /// The file system that it was formatted for.
        formatted: String,
        /// The file system that it should serve.
        requested: String,
    },
    /// A target of another file system registers.
    #[error("{target}: this management service serves file system '{served}'")]
    OtherFileSystem {
        /// The target.
        target: String,
        /// The file system of the management service.
        served: String,
    },
    /// A target registers that is known under another index.
    #[error("{target}: uuid {uuid} is registered as {registered}")]
    OtherIndex {
        /// The target.
        target: String,
        /// Its uuid.
        uuid: String,
        /// The target that has this uuid.
        registered: String,
    },
    /// A target registers under the index of another.
    #[error("{target}: the index is taken by uuid {owner} at {address}, this target has uuid {uuid}")]
    IndexTaken {
        /// The target.
        target: String,
        /// Its uuid.
        uuid: String,
        /// The uuid that has the index.
        owner: String,
        /// Where the owner is.
        address: String,
    },
    /// The file system has as many targets as it can have.
    #[error("{target}: the file system has {targets_max} targets already")]
    TooManyTargets {
        /// The target that registers.
        target: String,
        /// Most targets of a file system.
        targets_max: usize,
    },
    /// A target registers with no address, with too many or too long ones, or with one twice.
    #[error("{target}: a target has 1-{addresses_max} different addresses, of at most {bytes_max} bytes together")]
    Addresses {
        /// The target.
        target: String,
        /// Most addresses of a target.
        addresses_max: usize,
        /// Most bytes of all of them, with a separator after each.
        bytes_max: usize,
    },
    /// Another process, started later, serves the target that registers.
    #[error(
        "{target}: two processes serve uuid {uuid}, one at {address} and, started later, one at {newer_address}, which \
         clients use now; stop one of them: only one process may serve a target"
    )]
    ServedTwice {
        /// The target.
        target: String,
        /// Its uuid.
        uuid: String,
        /// Where the process is that registers.
        address: String,
        /// Where the process is that was started later.
        newer_address: String,
    },
    /// The target of the root directory is to be taken out of use.
    #[error(
        "{0} holds the root directory: without it every access to the file system fails. To take the whole file \
         system out of service, unmount it and stop its servers"
    )]
    HoldsRoot(String),
    /// In the words of a server in another process.
    #[error("{0}")]
    Told(String),
    /// A client could not prove what it is; the text says what it lacks.
    #[error("{0}")]
    Unproven(String),
}
