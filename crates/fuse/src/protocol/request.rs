//! Structures of requests. Each is the kernel's `fuse_..._in`, named in its first line.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `fuse_in_header`: what every request begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InHeader {
    /// Bytes of the request, this header included.
    pub length: u32,
    /// [`Opcode`](super::Opcode) number.
    pub opcode: u32,
    /// Names the request; the answer repeats it.
    pub unique: u64,
    /// The inode the request is about.
    pub node: u64,
    /// File system user of the caller.
    pub uid: u32,
    /// File system group of the caller.
    pub gid: u32,
    /// The calling thread, in the mounter's pid namespace; 0 if it has none there.
    pub pid: u32,
    /// Bytes of extensions at the end, in units of 8; none are negotiated.
    pub extension_units: u16,
    /// Padding.
    pub padding: u16,
}

/// `fuse_init_in` up to protocol 7.35; `flags2` follows if
/// [`INIT_EXT`](super::flags::init::INIT_EXT) is set.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InitIn {
    /// Major version of the kernel's protocol.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Most read-ahead the kernel would do, in bytes.
    pub read_ahead_bytes_max: u32,
    /// Lower half of the feature bits.
    pub flags: u32,
}

/// `fuse_forget_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ForgetIn {
    /// Lookups to forget.
    pub lookups: u64,
}

/// `fuse_batch_forget_in`; `count` pairs of node and lookups follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct BatchForgetIn {
    /// Pairs that follow.
    pub count: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_forget_one`: one of the pairs after [`BatchForgetIn`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ForgetOne {
    /// The inode.
    pub node: u64,
    /// Lookups to forget.
    pub lookups: u64,
}

/// `fuse_getattr_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GetAttributesIn {
    /// [`get_attributes`](super::flags::get_attributes) bits.
    pub flags: u32,
    /// Padding.
    pub padding: u32,
    /// Open file.
    pub handle: u64,
}

/// `fuse_statx_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct StatxIn {
    /// [`get_attributes`](super::flags::get_attributes) bits.
    pub flags: u32,
    /// Reserved.
    pub reserved: u32,
    /// Open file.
    pub handle: u64,
    /// AT_STATX_ bits.
    pub statx_flags: u32,
    /// STATX_ bits wanted.
    pub mask: u32,
}

/// `fuse_setattr_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SetAttributesIn {
    /// [`set_attributes`](super::flags::set_attributes) bits.
    pub valid: u32,
    /// Padding.
    pub padding: u32,
    /// Open file.
    pub handle: u64,
    /// New size in bytes.
    pub size: u64,
    /// Owner of mandatory locks; unused.
    pub lock_owner: u64,
    /// Seconds of the last access (signed).
    pub atime: u64,
    /// Seconds of the last change of contents (signed).
    pub mtime: u64,
    /// Seconds of the last change; only with a write-back cache.
    pub ctime: u64,
    /// Nanoseconds of `atime`.
    pub atime_nanoseconds: u32,
    /// Nanoseconds of `mtime`.
    pub mtime_nanoseconds: u32,
    /// Nanoseconds of `ctime`.
    pub ctime_nanoseconds: u32,
    /// Kind and permission bits.
    pub mode: u32,
    /// Unused.
    pub unused4: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Unused.
    pub unused5: u32,
}

/// `fuse_mknod_in`; the name follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MakeNodeIn {
    /// Kind and permission bits, before the umask.
    pub mode: u32,
    /// Device number.
    pub device: u32,
    /// Bits to clear.
    pub umask: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_mkdir_in`; the name follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct MakeDirectoryIn {
    /// Permission bits, before the umask.
    pub mode: u32,
    /// Bits to clear.
    pub umask: u32,
}

/// `fuse_rename_in`; old and new name follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RenameIn {
    /// Directory of the new name.
    pub new_parent: u64,
}

/// `fuse_rename2_in`; old and new name follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Rename2In {
    /// Directory of the new name.
    pub new_parent: u64,
    /// RENAME_ bits.
    pub flags: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_link_in`; the new name follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LinkIn {
    /// The file to link.
    pub node: u64,
}

/// `fuse_open_in`, of OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OpenIn {
    /// O_ bits of open(2).
    pub flags: u32,
    /// FUSE_OPEN_ bits: 1, O_TRUNC by an unprivileged process.
    pub open_flags: u32,
}

/// `fuse_create_in`, of CREATE and TMPFILE; the name follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CreateIn {
    /// O_ bits of open(2).
    pub flags: u32,
    /// Kind and permission bits, before the umask.
    pub mode: u32,
    /// Bits to clear.
    pub umask: u32,
    /// FUSE_OPEN_ bits.
    pub open_flags: u32,
}

/// `fuse_release_in`, of RELEASE and RELEASEDIR.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReleaseIn {
    /// Open file.
    pub handle: u64,
    /// O_ bits.
    pub flags: u32,
    /// [`release`](super::flags::release) bits.
    pub release_flags: u32,
    /// Owner of flock(2) locks.
    pub lock_owner: u64,
}

/// `fuse_flush_in`: one descriptor of the open file was closed.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FlushIn {
    /// Open file.
    pub handle: u64,
    /// Unused.
    pub unused: u32,
    /// Padding.
    pub padding: u32,
    /// Owner of fcntl(2) locks, which end here.
    pub lock_owner: u64,
}

/// `fuse_read_in`, of READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct ReadIn {
    /// Open file or directory.
    pub handle: u64,
    /// Byte offset, or cookie of a directory.
    pub offset: u64,
    /// Bytes wanted, or the size of the buffer for entries.
    pub size: u32,
    /// FUSE_READ_ bits.
    pub read_flags: u32,
    /// Owner of mandatory locks; unused.
    pub lock_owner: u64,
    /// O_ bits.
    pub flags: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_write_in`; the data follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct WriteIn {
    /// Open file.
    pub handle: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes of data.
    pub size: u32,
    /// [`write`](super::flags::write) bits.
    pub write_flags: u32,
    /// Owner of mandatory locks; unused.
    pub lock_owner: u64,
    /// O_ bits, with those of this write (O_SYNC and O_DSYNC by RWF_ flags too).
    pub flags: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_fsync_in`, of FSYNC and FSYNCDIR.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FsyncIn {
    /// Open file or directory.
    pub handle: u64,
    /// [`fsync`](super::flags::fsync) bits.
    pub fsync_flags: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_setxattr_in` without FUSE_SETXATTR_EXT; name and value follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SetXattrIn {
    /// Bytes of the value.
    pub size: u32,
    /// XATTR_CREATE (1) or XATTR_REPLACE (2).
    pub flags: u32,
}

/// `fuse_getxattr_in`, of GETXATTR (the name follows) and LISTXATTR.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct GetXattrIn {
    /// Size of the caller's buffer in bytes; 0 asks for the size of the value.
    pub size: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_file_lock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive.
    pub end: u64,
    /// F_RDLCK, F_WRLCK or F_UNLCK.
    pub kind: u32,
    /// Process.
    pub pid: u32,
}

/// `fuse_lk_in`, of GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct LockIn {
    /// Open file.
    pub handle: u64,
    /// Owner.
    pub owner: u64,
    /// Range and kind.
    pub lock: FileLock,
    /// [`lock`](super::flags::lock) bits.
    pub lock_flags: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_access_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct AccessIn {
    /// 4 read, 2 write, 1 execute.
    pub mask: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_interrupt_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct InterruptIn {
    /// The request whose caller no longer wants to wait.
    pub unique: u64,
}

/// `fuse_ioctl_in`; `in_size` bytes follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct IoctlIn {
    /// Open file or directory.
    pub handle: u64,
    /// FUSE_IOCTL_ bits.
    pub flags: u32,
    /// Number of the ioctl.
    pub command: u32,
    /// Its argument as the caller gave it.
    pub argument: u64,
    /// Bytes that came with it.
    pub in_size: u32,
    /// Bytes the caller takes back.
    pub out_size: u32,
}

/// `fuse_fallocate_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct FallocateIn {
    /// Open file.
    pub handle: u64,
    /// Byte offset.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// FALLOC_FL_ bits.
    pub mode: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_lseek_in`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct SeekIn {
    /// Open file.
    pub handle: u64,
    /// Byte offset to start from.
    pub offset: u64,
    /// SEEK_DATA or SEEK_HOLE.
    pub whence: u32,
    /// Padding.
    pub padding: u32,
}

/// `fuse_copy_file_range_in`, of COPY_FILE_RANGE and COPY_FILE_RANGE_64. The header's node is the
/// source.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CopyFileRangeIn {
    /// Open source.
    pub handle_in: u64,
    /// Byte offset in it.
    pub offset_in: u64,
    /// Inode of the destination.
    pub node_out: u64,
    /// Open destination.
    pub handle_out: u64,
    /// Byte offset in it.
    pub offset_out: u64,
    /// Bytes to copy.
    pub length: u64,
    /// Flags of copy_file_range(2); 0.
    pub flags: u64,
}
