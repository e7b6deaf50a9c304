//! Structures of answers. Each is the kernel's `fuse_..._out`, named in its first line.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::request::FileLock;

/// `fuse_out_header`: what every answer begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OutHeader {
    /// Bytes of the answer, this header included.
    pub length: u32,
    /// 0, or a negative errno; then nothing follows.
    pub error: i32,
    /// The request's.
    pub unique: u64,
}

/// `fuse_init_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitOut {
    /// Major version of this side.
    pub major: u32,
    /// Minor version both sides use: the smaller of both.
    pub minor: u32,
    /// Most read-ahead, in bytes.
    pub read_ahead_bytes_max: u32,
    /// Lower half of the bits switched on.
    pub flags: u32,
    /// Background requests (read-ahead, write-back, asynchronous I/O) outstanding at most.
    pub background_max: u16,
    /// Background requests from which on the kernel considers the device congested.
    pub congestion_threshold: u16,
    /// Most data of a WRITE, in bytes.
    pub write_bytes_max: u32,
    /// Granularity of times in nanoseconds.
    pub time_granularity: u32,
    /// Most pages of a request.
    pub pages_max: u16,
    /// For DAX; 0.
    pub map_alignment: u16,
    /// Upper half of the bits switched on.
    pub flags2: u32,
    /// For stacking; 0.
    pub stack_depth_max: u32,
    /// Seconds after which the kernel ends the connection over one request; 0: never.
    pub request_timeout: u16,
    /// Unused.
    pub unused: [u16; 11],
}

/// `fuse_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Attr {
    /// Inode number shown to users.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Seconds of the last access (signed).
    pub atime: u64,
    /// Seconds of the last change of contents (signed).
    pub mtime: u64,
    /// Seconds of the last change (signed).
    pub ctime: u64,
    /// Nanoseconds of `atime`.
    pub atime_nanoseconds: u32,
    /// Nanoseconds of `mtime`.
    pub mtime_nanoseconds: u32,
    /// Nanoseconds of `ctime`.
    pub ctime_nanoseconds: u32,
    /// Kind and permission bits.
    pub mode: u32,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub device: u32,
    /// Preferred size of I/O in bytes.
    pub block_size: u32,
    /// FUSE_ATTR_ bits; 0.
    pub flags: u32,
}

/// `fuse_entry_out`: a name found or made. The validities stay 0: nothing may be cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EntryOut {
    /// The inode; 0 in READDIRPLUS: nothing was looked up.
    pub node: u64,
    /// Tells apart inodes of one number, also in file handles. 32 bits; 0 of the root.
    pub generation: u64,
    /// Seconds for which the name may be cached.
    pub entry_valid: u64,
    /// Seconds for which the attributes may be cached.
    pub attributes_valid: u64,
    /// Nanoseconds of `entry_valid`.
    pub entry_valid_nanoseconds: u32,
    /// Nanoseconds of `attributes_valid`.
    pub attributes_valid_nanoseconds: u32,
    /// Attributes.
    pub attributes: Attr,
}

impl EntryOut {
    /// Shows the same, and makes nothing valid.
    pub fn without_validity(self) -> Self {
        Self {
            entry_valid: 0,
            attributes_valid: 0,
            entry_valid_nanoseconds: 0,
            attributes_valid_nanoseconds: 0,
            ..self
        }
    }
}

/// `fuse_attr_out`, of GETATTR and SETATTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct AttributesOut {
    /// Seconds for which the attributes may be cached.
    pub valid: u64,
    /// Nanoseconds of `valid`.
    pub valid_nanoseconds: u32,
    /// Padding.
    pub padding: u32,
    /// Attributes.
    pub attributes: Attr,
}

/// `fuse_sx_time`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatxTime {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
    /// Reserved.
    pub reserved: i32,
}

/// `fuse_statx`, which is `struct statx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Statx {
    /// STATX_ bits that are filled in.
    pub mask: u32,
    /// Preferred size of I/O in bytes.
    pub block_size: u32,
    /// STATX_ATTR_ bits; 0.
    pub attributes: u64,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Kind and permission bits.
    pub mode: u16,
    /// Padding.
    pub spare0: u16,
    /// Inode number.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// STATX_ATTR_ bits known; 0.
    pub attributes_mask: u64,
    /// Last access.
    pub atime: StatxTime,
    /// Creation.
    pub btime: StatxTime,
    /// Last change.
    pub ctime: StatxTime,
    /// Last change of contents.
    pub mtime: StatxTime,
    /// Device file: major number.
    pub device_major: u32,
    /// Device file: minor number.
    pub device_minor: u32,
    /// Unused.
    pub filesystem_major: u32,
    /// Unused.
    pub filesystem_minor: u32,
    /// Unused.
    pub spare2: [u64; 14],
}

/// `fuse_statx_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatxOut {
    /// Seconds for which the attributes may be cached.
    pub valid: u64,
    /// Nanoseconds of `valid`.
    pub valid_nanoseconds: u32,
    /// Unused.
    pub flags: u32,
    /// Unused.
    pub spare: [u64; 2],
    /// Attributes.
    pub statx: Statx,
}

/// `fuse_open_out`, of OPEN, CREATE, TMPFILE and OPENDIR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OpenOut {
    /// Names the open file in later requests.
    pub handle: u64,
    /// [`open_reply`](super::flags::open_reply) bits.
    pub flags: u32,
    /// For passthrough; 0.
    pub backing: u32,
}

/// `fuse_write_out`, of WRITE and COPY_FILE_RANGE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct WriteOut {
    /// Bytes written.
    pub size: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_copy_file_range_out`, of COPY_FILE_RANGE_64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CopyFileRangeOut {
    /// Bytes copied.
    pub bytes: u64,
}

/// `fuse_statfs_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatFsOut {
    /// Capacity in units of `fragment_size`.
    pub blocks: u64,
    /// Free units.
    pub blocks_free: u64,
    /// Free units for users other than root.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred size of I/O in bytes.
    pub block_size: u32,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
    /// Unit of the counts of blocks, in bytes.
    pub fragment_size: u32,
    /// Padding.
    pub padding: u32,
    /// Unused.
    pub spare: [u32; 6],
}

/// `fuse_getxattr_out`, answer to a GETXATTR or LISTXATTR without room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GetXattrOut {
    /// Bytes of the value or of all names.
    pub size: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_lk_out`, of GETLK.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LockOut {
    /// The conflicting lock, or F_UNLCK.
    pub lock: FileLock,
}

/// `fuse_ioctl_out`; the data follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoctlOut {
    /// Result of ioctl(2).
    pub result: i32,
    /// FUSE_IOCTL_ bits; 0.
    pub flags: u32,
    /// For retries; 0.
    pub in_vectors: u32,
    /// For retries; 0.
    pub out_vectors: u32,
}

/// `fuse_lseek_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SeekOut {
    /// Offset found, in bytes.
    pub offset: u64,
}

/// `fuse_dirent` without its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct DirentHead {
    /// Inode number.
    pub inode: u64,
    /// Cookie of the position after this entry.
    pub offset: u64,
    /// Bytes of the name.
    pub name_bytes: u32,
    /// DT_ value: bits 12..16 of the mode.
    pub kind: u32,
}

/// Sizes are the kernel's ABI: a field missing or misplaced would show here.
const _: () = {
    assert!(size_of::<OutHeader>() == 16);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<Attr>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<AttributesOut>() == 104);
    assert!(size_of::<Statx>() == 256);
    assert!(size_of::<StatxOut>() == 288);
    assert!(size_of::<OpenOut>() == 16);
    assert!(size_of::<StatFsOut>() == 80);
    assert!(size_of::<LockOut>() == 24);
    assert!(size_of::<IoctlOut>() == 16);
    assert!(size_of::<DirentHead>() == 24);
};
