//! Errors of file system operations, one variant per cause. They are sent in replies; only the
//! crate `host` converts them to errno values, and only the tools convert them to text for people.
//!
//! Damage, protocol errors, refusals and full tables have one errno each and many causes, which are
//! enums of their own. Downside: the wire has only text for these causes (module `wire`), so they
//! arrive from other processes as `Told`. Code that decides by one of them must run where the error
//! arises.

mod damage;
mod protocol_error;
mod refusal;
mod too_many;
mod wire;

use serde::{Deserialize, Serialize};

use crate::{MdtIndex, ObjectId, OstIndex};
use wire::WireError;

pub use damage::{Damage, RecordDamage};
pub use protocol_error::ProtocolError;
pub use refusal::Refusal;
pub use too_many::TooMany;

/// Result of a file system operation.
pub type FsResult<T> = Result<T, FsError>;

/// Why a file system operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(from = "WireError", into = "WireError")]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("file exists")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("directory not empty")]
    NotEmpty,
    /// EACCES: the mode bits or the access list deny it.
    #[error("permission denied")]
    AccessDenied,
    /// EPERM: only the owner or root may.
    #[error("operation not permitted")]
    NotPermitted,
    /// EINVAL
    #[error("invalid argument")]
    Invalid,
    /// ENAMETOOLONG
    #[error("file name too long")]
    NameTooLong,
    /// ELOOP
    #[error("too many levels of symbolic links")]
    Loop,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// EXDEV
    #[error("invalid cross-device link")]
    CrossDevice,
    /// EBUSY
    #[error("device or resource busy")]
    Busy,
    /// ENOSPC
    #[error("no space left on device")]
    NoSpace,
    /// EDQUOT
    #[error("disk quota exceeded")]
    Quota,
    /// EROFS
    #[error("read-only file system")]
    ReadOnly,
    /// EFBIG
    #[error("file too large")]
    FileTooLarge,
    /// EBADF: the handle is not open, or not for this.
    #[error("bad file handle")]
    BadHandle,
    /// ESTALE: the inode is gone, or the session that opened it was evicted.
    #[error("stale file handle")]
    Stale,
    /// ENODATA: no such extended attribute, or no layout for this offset.
    #[error("no data available")]
    NoData,
    /// ERANGE: the value does not fit the caller's buffer.
    #[error("numerical result out of range")]
    Range,
    /// E2BIG: an attribute or argument above its limit.
    #[error("argument list too long")]
    TooBig,
    /// EOPNOTSUPP
    #[error("operation not supported")]
    NotSupported,
    /// ENOTTY
    #[error("inappropriate ioctl for device")]
    NotTty,
    /// ETXTBSY: a program that is being executed would be truncated.
    #[error("text file busy")]
    TextFileBusy,
    /// ENXIO: no data or hole at or after the offset; no reader of a pipe.
    #[error("no such device or address")]
    NoDeviceOrAddress,
    /// ENODEV: no such target.
    #[error("no such device")]
    NoDevice,
    /// EAGAIN: another owner holds a lock.
    #[error("resource temporarily unavailable")]
    WouldBlock,
    /// EDEADLK
    #[error("resource deadlock avoided")]
    Deadlock,
    /// EINTR: the caller gave up waiting.
    #[error("interrupted")]
    Interrupted,
    /// ENOLCK: the server's limit on locks is reached.
    #[error("no locks available")]
    NoLocks,
    /// EOVERFLOW
    #[error("value too large")]
    Overflow,
    /// EIO: a device failed.
    #[error("{target} cannot use its device: {detail}")]
    Device {
        /// The target, as `stria-OST0003`.
        target: String,
        /// What failed.
        detail: String,
    },
    /// EIO: stored data do not match their checksum. The data are not returned.
    #[error("checksum mismatch in object {object} on {ost} at byte {offset}")]
    Corrupt {
        /// The object.
        object: ObjectId,
        /// The target that holds it.
        ost: OstIndex,
        /// Offset of the damaged block within the object, in bytes.
        offset: u64,
    },
    /// EIO: data were damaged in transit; the sender retries.
    #[error("checksum mismatch on the wire")]
    Transfer,
    /// EIO: no server answered within the time allowed (`timeout` parameter).
    #[error("{target} did not answer for {seconds} s{}", after_colon(cause.as_deref()))]
    Unreachable {
        /// The target.
        target: String,
        /// How long the client waited.
        seconds: u32,
        /// Why it could not connect, in words; `None` if it was connected, or that is not known.
        cause: Option<String>,
    },
    /// EIO (EUCLEAN for tools): a stored structure of a server does not decode or contradicts
    /// another.
    #[error("damaged metadata: {0}")]
    Damaged(Box<Damage>),
    /// EPROTO: the peer speaks a version or message this side does not know, or its message is not
    /// what it must be.
    #[error("protocol error: {0}")]
    Protocol(Box<ProtocolError>),
    /// Never reaches a user: the permission decision needs the caller's supplementary groups; ask
    /// again with them.
    #[error("supplementary groups needed")]
    GroupsNeeded,
    /// Never reaches a user: the session is unknown or its lease expired; open a new one.
    #[error("session evicted")]
    Evicted,
    /// EINVAL: a server refuses what its administrators' decisions forbid, and says why (a target
    /// that registers under a wrong file system or a taken index, an unknown pool).
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// EIO: data stored on an MDT do not match their checksum. The data are not returned.
    #[error("checksum mismatch in object {object} on {mdt} at byte {offset}")]
    CorruptOnMdt {
        /// The object.
        object: ObjectId,
        /// The target that holds it.
        mdt: MdtIndex,
        /// Offset of the damaged block within the object, in bytes.
        offset: u64,
    },
    /// Never reaches a user: the object was fenced against layouts as old as the caller's; ask for
    /// the layout again.
    #[error("the layout of the file has changed")]
    LayoutChanged,
    /// ENFILE: a table of a server is full. Existing entries keep their places.
    #[error("{0}")]
    TooMany(Box<TooMany>),
    /// Never reaches a user: nothing was done, because the answer depends on this MDT, which is not
    /// there or has an operation in doubt; ask again in a moment.
    #[error("{0} has to answer first")]
    AwaitsMdt(MdtIndex),
}

/// Every result of an operation has room for an error: three words for each of the two texts of
/// `Unreachable`, and one for its seconds and the number of the variant. Larger contents are boxed.
const _: () = assert!(size_of::<FsError>() <= 7 * size_of::<usize>());

impl From<Damage> for FsError {
    fn from(damage: Damage) -> Self {
        FsError::Damaged(Box::new(damage))
    }
}

impl From<ProtocolError> for FsError {
    fn from(error: ProtocolError) -> Self {
        FsError::Protocol(Box::new(error))
    }
}

impl From<Refusal> for FsError {
    fn from(refusal: Refusal) -> Self {
        FsError::Refused(Box::new(refusal))
    }
}

impl From<TooMany> for FsError {
    fn from(full: TooMany) -> Self {
        FsError::TooMany(Box::new(full))
    }
}

/// The end of a message that names a cause.
fn after_colon(cause: Option<&str>) -> String {
    cause.map_or_else(String::new, |cause| format!(": {cause}"))
}
