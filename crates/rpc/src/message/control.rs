//! The control channel of a mount: requests that `lfs` sends through an ioctl on any file or
//! directory of the mount.
//!
//! One ioctl carries an encoded [`ControlRequest`] in and one page of the encoded result out; long
//! results are fetched page by page (the crate `host` has the number and the framing). Permission
//! is checked as for the caller of the ioctl.

use layout::{Layout, LayoutSpec};
use serde::{Deserialize, Serialize};
use types::{DirectoryDefault, DirectoryMap, FsError, InodeNumber, MdtIndex, SpaceUsage, Stripes};

use super::{
    mdt::LayoutChange,
    mgs::{Pool, TargetRole},
    ost::{FoundExtents, TargetCondition},
};

/// Which inode a request is about: the one the ioctl was called on, or a name in it (so that a file
/// can be asked about without being opened).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// The open file or directory itself.
    This,
    /// A name in the open directory.
    Name(Vec<u8>),
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlRequest {
    /// Create a regular file with a layout, atomically (`lfs setstripe FILE`). -> Created
    CreateWithLayout {
        /// New name in the open directory.
        name: Vec<u8>,
        /// Permission bits; the caller has applied its umask.
        mode: u32,
        /// The layout.
        spec: LayoutSpec,
    },
    /// Set (`Some`) or clear the default layout of the open directory. -> Done
    SetDefaultLayout(Option<LayoutSpec>),
    /// -> Layout
    GetLayout(Subject),
    /// Inode number, from which the FID follows. -> Inode
    GetInode(Subject),
    /// Paths of an inode relative to the mount's root. -> Paths
    InodePaths(InodeNumber),
    /// All targets with state and space. -> Targets
    Targets,
    /// Name of the file system and of this client (`lfs getname`). -> Name
    Name,
    /// Change the layout of a file (`lfs setstripe --component-add`, `--component-del`). -> Done
    ChangeLayout(Subject, LayoutChange),
    /// Make everything acknowledged by any target durable. The kernel does not forward sync(2) and
    /// syncfs(2) to file systems in user space, so this replaces them. -> Done
    SyncAll,
    /// Pools of OSTs (`lfs pool_list`). -> Pools
    Pools,
    /// The number that changes whenever the data of a file may have changed; no client may have it
    /// open for writing. -> Version
    DataVersion {
        /// The file.
        subject: Subject,
        /// As long as the file on which the ioctl is called ([`Subject::This`]) is open, writers
        /// wait. `WouldBlock` if they already wait for the end of another open.
        hold_writers: bool,
    },
    /// Another layout for the open unnamed file, in which nothing was ever changed, as if it were
    /// next to `like`. -> Done
    BeginLayout {
        /// The layout.
        spec: LayoutSpec,
        /// The file whose directory provides the unspecified fields.
        like: InodeNumber,
    },
    /// Swap the layouts, and so the data, of two files. -> Done
    SwapLayouts {
        /// One, and the version that its data must still have.
        first: (Subject, u64),
        /// The other, and the version of its data likewise. Without a version it would be a file
        /// that the caller has open, which a number does not prove: `Invalid`, see
        /// [`ControlRequest::TakeLayout`].
        second: (InodeNumber, Option<u64>),
    },
    /// Swap the layouts, and so the data, of the open file itself, which only the caller writes and
    /// which may be unnamed, and of another that the caller has open too. An unnamed file can be
    /// reached only through an open descriptor, so the ioctl is called on it. -> Done
    TakeLayout {
        /// The other file; the caller needs a path to it.
        of: InodeNumber,
        /// The version that its data must still have.
        version: u64,
    },
    /// Make a directory, and choose its MDT (`lfs mkdir`). -> Created
    MakeDirectory {
        /// New name in the open directory.
        name: Vec<u8>,
        /// Permission bits.
        mode: u32,
        /// Bits to clear, unless the directory has a default access list.
        umask: u32,
        /// Where; `None`: as mkdir(2) makes it.
        mdt: Option<MdtIndex>,
        /// The MDTs over which its names are spread; none: it is not striped.
        #[serde(default)]
        stripes: Stripes,
    },
    /// Where the data of an object of the open file are (`lfs fiemap`). -> Extents
    Extents {
        /// Slot of the object in the file's layout.
        slot: u32,
        /// Byte offset within the object from which to begin.
        offset: u64,
    },
    /// Set (`Some`) or clear what new directories in the open directory get (`lfs setdirstripe
    /// -D`). -> Done
    SetDirectoryDefault(Option<DirectoryDefault>),
    /// Spread the names of the open directory over these MDTs (`lfs setdirstripe -c`). -> Done when
    /// they are there
    SplitDirectory(Stripes),
    /// Move an inode to this MDT (`lfs migrate -m`). -> Done
    MoveInode(Subject, MdtIndex),
}

impl ControlRequest {
    /// Whether it changes something in the file system, and so is refused on a read-only mount.
    pub fn changes(&self) -> bool {
        match self {
            Self::CreateWithLayout { .. }
            | Self::SetDefaultLayout(_)
            | Self::SetDirectoryDefault(_)
            | Self::SplitDirectory(_)
            | Self::MoveInode(..)
            | Self::ChangeLayout(..)
            | Self::BeginLayout { .. }
            | Self::SwapLayouts { .. }
            | Self::TakeLayout { .. }
            | Self::MakeDirectory { .. } => true,
            Self::GetLayout(_)
            | Self::GetInode(_)
            | Self::InodePaths(_)
            | Self::Targets
            | Self::Name
            | Self::SyncAll
            | Self::Pools
            | Self::Extents { .. }
            | Self::DataVersion { .. } => false,
        }
    }
}

/// A target as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// Role and index.
    pub role: TargetRole,
    /// `stria-OST0003_UUID`, as Lustre names targets; not the random identity that the cluster map
    /// has.
    pub uuid: String,
    /// Its address.
    pub address: String,
    /// Whether the administrators want it to be used.
    pub active: bool,
    /// Whether this client has a working connection.
    pub connected: bool,
    /// Its report of its condition.
    pub condition: TargetCondition,
    /// Space; `None` if it cannot be reached.
    pub space: Option<SpaceUsage>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ControlReply {
    /// Success.
    Done,
    /// The new file or directory.
    Created(InodeNumber),
    /// A layout.
    Layout {
        /// The inode asked about.
        inode: InodeNumber,
        /// Whether it is a directory.
        directory: bool,
        /// Layout of a regular file.
        layout: Option<Layout>,
        /// Default set on the directory itself.
        own_default: Option<LayoutSpec>,
        /// What new files in the directory get.
        effective_default: Option<LayoutSpec>,
        /// Of a striped directory: where its names are.
        #[serde(default)]
        map: Option<Box<DirectoryMap>>,
        /// Default for new directories that the directory has.
        #[serde(default)]
        directory_default: Option<DirectoryDefault>,
    },
    /// An inode number.
    Inode(InodeNumber),
    /// Paths.
    Paths(Vec<Vec<u8>>),
    /// Targets: MDTs by index, then OSTs by index.
    Targets(Vec<TargetStatus>),
    /// File system name and the client's name (`stria-<16 hex digits>`).
    Name(String, String),
    /// Why not.
    Error(FsError),
    /// Pools by name.
    Pools(Vec<Pool>),
    /// The version of a file's data.
    Version(u64),
    /// Where data of an object are.
    Extents(FoundExtents),
}
