//! Converts between the kernel's structures and the client's: attributes, kinds, flags.

use rpc::message::mdt::{OpenFlags, open_flag};
use rustix::mount::MountFlags;
use types::mode::PERMISSIONS;
use types::{
    Attributes, FileKind, FsError, FsResult, InodeNumber, NodeKind, SetAttributes, SetTime, SpaceUsage, Timestamp,
    limits,
};

use crate::kernel_cache::Validity;
use crate::protocol::flags::set_attributes as valid;
use crate::protocol::reply::{Attr, AttributesOut, EntryOut, StatFsOut, Statx, StatxOut, StatxTime};
use crate::protocol::request::SetAttributesIn;

/// `st_blksize`: what programs take as their buffer size. Large enough that copying programs need
/// few requests, small enough that reading a small file through stdio does not make the kernel pin
/// a megabyte of untouched memory.
const IO_BLOCK_BYTES: u32 = 128 * 1024;
/// The same of directories: glibc lists them with a buffer of this size. The kernel asks for as
/// many entries with attributes at once as fit, some 1500.
const DIRECTORY_BLOCK_BYTES: u32 = 256 * 1024;
/// Unit in which statfs(2) counts; f_bsize and f_frsize alike, because programs mix them up.
const SPACE_UNIT_BYTES: u32 = 4096;
/// Flag with which the kernel opens programs for execution (__FMODE_EXEC); not visible to programs.
const FMODE_EXEC: u32 = 0x20;
/// STATX_BASIC_STATS and STATX_BTIME.
const STATX_FILLED: u32 = 0x7ff | 0x800;

/// The S_IFMT bits of a kind.
pub fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharacterDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// The `d_type` of a kind.
pub fn dirent_kind(kind: FileKind) -> u32 {
    kind_bits(kind) >> 12
}

/// What mknod(2) is to create.
pub fn node_kind(mode: u32, device: u32) -> FsResult<NodeKind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(NodeKind::Regular),
        libc::S_IFIFO => Ok(NodeKind::Fifo),
        libc::S_IFSOCK => Ok(NodeKind::Socket),
        libc::S_IFCHR => Ok(NodeKind::CharacterDevice(device)),
        libc::S_IFBLK => Ok(NodeKind::BlockDevice(device)),
        _ => Err(FsError::Invalid),
    }
}

fn block_bytes(kind: FileKind) -> u32 {
    if kind == FileKind::Directory { DIRECTORY_BLOCK_BYTES } else { IO_BLOCK_BYTES }
}

/// Attributes for the kernel. Seconds are signed on both sides; the protocol merely calls them
/// unsigned.
pub fn attr(attributes: &Attributes) -> Attr {
    Attr {
        inode: attributes.inode.0,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: attributes.atime.seconds.cast_unsigned(),
        mtime: attributes.mtime.seconds.cast_unsigned(),
        ctime: attributes.ctime.seconds.cast_unsigned(),
        atime_nanoseconds: attributes.atime.nanoseconds,
        mtime_nanoseconds: attributes.mtime.nanoseconds,
        ctime_nanoseconds: attributes.ctime.nanoseconds,
        mode: kind_bits(attributes.kind) | attributes.mode & PERMISSIONS,
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        device: attributes.device,
        block_size: block_bytes(attributes.kind),
        flags: 0,
    }
}

/// A name that was found or made.
pub fn entry_out(attributes: &Attributes, validity: Validity) -> EntryOut {
    let (name, known) = (validity.name.unwrap_or_default(), validity.attributes.unwrap_or_default());
    EntryOut {
        node: attributes.inode.0,
        generation: generation(attributes),
        entry_valid: name.as_secs(),
        attributes_valid: known.as_secs(),
        entry_valid_nanoseconds: name.subsec_nanos(),
        attributes_valid_nanoseconds: known.subsec_nanos(),
        attributes: attr(attributes),
    }
}

/// What tells a file from another one of the same number. A metadata server gives a number once;
/// but handles outlive file systems, and one that was made again, or restored from a copy, gives
/// the same numbers to other files. Their times of creation differ.
///
/// File handles carry it, and outlive this program: it must stay the same function of the inode.
/// The kernel keeps 32 bits, and expects 0 of the root.
fn generation(attributes: &Attributes) -> u64 {
    if attributes.inode == InodeNumber::ROOT {
        return 0;
    }
    let Timestamp { seconds, nanoseconds } = attributes.btime;
    // The nanoseconds have 30 bits; the golden ratio spreads both over the upper half.
    let time = seconds.cast_unsigned() << 30 | u64::from(nanoseconds);
    time.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Attributes.
pub fn attributes_out(attributes: &Attributes, validity: Validity) -> AttributesOut {
    let valid = validity.attributes.unwrap_or_default();
    AttributesOut {
        valid: valid.as_secs(),
        valid_nanoseconds: valid.subsec_nanos(),
        padding: 0,
        attributes: attr(attributes),
    }
}

/// Attributes with the time of creation.
pub fn statx_out(attributes: &Attributes, validity: Validity) -> StatxOut {
    let time =
        |time: Timestamp| StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, ..StatxTime::default() };
    let device = u64::from(attributes.device);
    let statx = Statx {
        mask: STATX_FILLED,
        block_size: block_bytes(attributes.kind),
        links: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        mode: (kind_bits(attributes.kind) | attributes.mode & PERMISSIONS) as u16,
        inode: attributes.inode.0,
        size: attributes.size,
        blocks: attributes.blocks,
        atime: time(attributes.atime),
        btime: time(attributes.btime),
        ctime: time(attributes.ctime),
        mtime: time(attributes.mtime),
        device_major: libc::major(device),
        device_minor: libc::minor(device),
        ..Statx::default()
    };
    let valid = validity.attributes.unwrap_or_default();
    StatxOut { valid: valid.as_secs(), valid_nanoseconds: valid.subsec_nanos(), statx, ..StatxOut::default() }
}

/// Space for statfs(2).
pub fn statfs_out(space: &SpaceUsage) -> StatFsOut {
    let units = |bytes: u64| bytes / u64::from(SPACE_UNIT_BYTES);
    StatFsOut {
        blocks: units(space.bytes_total),
        blocks_free: units(space.bytes_free),
        blocks_available: units(space.bytes_available),
        files: space.inodes_total,
        files_free: space.inodes_free,
        block_size: SPACE_UNIT_BYTES,
        name_bytes_max: limits::NAME_BYTES_MAX as u32,
        fragment_size: SPACE_UNIT_BYTES,
        ..StatFsOut::default()
    }
}

/// The changes of a SETATTR other than the size.
pub fn changes(set: &SetAttributesIn) -> SetAttributes {
    let has = |bit: u32| set.valid & bit != 0;
    let time = |given: u32, now: u32, seconds: u64, nanoseconds: u32| {
        let to = || SetTime::To(Timestamp { seconds: seconds.cast_signed(), nanoseconds });
        has(given).then(|| if has(now) { SetTime::Now } else { to() })
    };
    SetAttributes {
        mode: has(valid::MODE).then_some(set.mode & PERMISSIONS),
        uid: has(valid::UID).then_some(set.uid),
        gid: has(valid::GID).then_some(set.gid),
        atime: time(valid::ATIME, valid::ATIME_NOW, set.atime, set.atime_nanoseconds),
        mtime: time(valid::MTIME, valid::MTIME_NOW, set.mtime, set.mtime_nanoseconds),
        seen: None,
        flags: None,
        project: None,
    }
}

/// Which access times the options of a mount leave as they are. The kernel passes O_NOATIME on, but
/// not these options, and updates no access time of a FUSE file system itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessTimes {
    /// Those of everything but directories.
    pub kept_of_files: bool,
    /// Those of directories.
    pub kept_of_directories: bool,
}

impl From<MountFlags> for AccessTimes {
    fn from(flags: MountFlags) -> Self {
        let kept_of_files = flags.intersects(MountFlags::RDONLY | MountFlags::NOATIME);
        Self { kept_of_files, kept_of_directories: kept_of_files || flags.contains(MountFlags::NODIRATIME) }
    }
}

/// Open flags from those of open(2). Access mode 3 (Linux: neither, but checked for both) counts as
/// both. `keeps_access_time`: whatever O_NOATIME says.
pub fn open_flags(linux: u32, keeps_access_time: bool) -> OpenFlags {
    let o = |flag: libc::c_int| linux & flag.cast_unsigned() != 0;
    let access = match (linux & libc::O_ACCMODE.cast_unsigned()).cast_signed() {
        libc::O_RDONLY if linux & FMODE_EXEC != 0 => open_flag::EXECUTE,
        libc::O_RDONLY => open_flag::READ,
        libc::O_WRONLY => open_flag::WRITE,
        _ => open_flag::READ | open_flag::WRITE,
    };
    let mut flags = if keeps_access_time { access | open_flag::NO_ACCESS_TIME } else { access };
    for (linux, flag) in [
        (libc::O_APPEND, open_flag::APPEND),
        (libc::O_TRUNC, open_flag::TRUNCATE),
        (libc::O_EXCL, open_flag::EXCLUSIVE),
        (libc::O_NOATIME, open_flag::NO_ACCESS_TIME),
    ] {
        if o(linux) {
            flags |= flag;
        }
    }
    OpenFlags(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> Attributes {
        Attributes {
            inode: InodeNumber(0x1_0000_0000_0101),
            kind: FileKind::BlockDevice,
            mode: 0o4755,
            links: 2,
            uid: 3,
            gid: 4,
            device: libc::makedev(8, 17) as u32,
            size: 5,
            blocks: 6,
            atime: Timestamp { seconds: -1, nanoseconds: 7 },
            mtime: Timestamp { seconds: 1 << 33, nanoseconds: 999_999_999 },
            ctime: Timestamp::default(),
            btime: Timestamp { seconds: 9, nanoseconds: 10 },
            flags: 0,
            project: 0,
        }
    }

    #[test]
    fn times_before_1970_and_after_2038_pass() {
        let attr = attr(&attributes());
        assert_eq!(attr.atime.cast_signed(), -1);
        assert_eq!(attr.mtime, 1 << 33);
        assert_eq!(attr.mode, libc::S_IFBLK | 0o4755);
        let statx = statx_out(&attributes(), Validity::default()).statx;
        assert_eq!((statx.atime.seconds, statx.btime.seconds, statx.btime.nanoseconds), (-1, 9, 10));
        assert_eq!((statx.device_major, statx.device_minor), (8, 17));
    }

    #[test]
    fn generations_are_those_in_the_file_handles_of_users() {
        let at = |seconds, nanoseconds| {
            let attributes = Attributes { btime: Timestamp { seconds, nanoseconds }, ..attributes() };
            entry_out(&attributes, Validity::default()).generation
        };
        // Never to be changed: see the function.
        assert_eq!(at(1_800_000_000, 123_456_789), 0xf235e84);
        assert_ne!(at(1_800_000_000, 123_456_790), 0xf235e84);
        assert_ne!(at(1_800_000_001, 123_456_789), 0xf235e84);
        assert!(at(-1, 999_999_999) <= u64::from(u32::MAX));
        let root = Attributes { inode: InodeNumber::ROOT, ..attributes() };
        assert_eq!(entry_out(&root, Validity::default()).generation, 0);
    }

    #[test]
    fn only_valid_changes_are_taken() {
        let set = SetAttributesIn {
            valid: valid::UID | valid::ATIME | valid::MTIME | valid::MTIME_NOW,
            mode: 0o100_644,
            uid: 7,
            gid: 8,
            atime: u64::MAX,
            atime_nanoseconds: 5,
            ..SetAttributesIn::default()
        };
        let expected = SetAttributes {
            uid: Some(7),
            atime: Some(SetTime::To(Timestamp { seconds: -1, nanoseconds: 5 })),
            mtime: Some(SetTime::Now),
            ..SetAttributes::default()
        };
        assert_eq!(changes(&set), expected);
        let chmod = SetAttributesIn { valid: valid::MODE, mode: 0o106_755, ..set };
        assert_eq!(changes(&chmod), SetAttributes { mode: Some(0o6755), ..SetAttributes::default() });
    }

    #[test]
    fn open_flags_translate() {
        let linux = |flags: libc::c_int| open_flags(flags.cast_unsigned(), false).0;
        assert_eq!(linux(libc::O_RDONLY), open_flag::READ);
        assert_eq!(linux(libc::O_WRONLY | libc::O_APPEND), open_flag::WRITE | open_flag::APPEND);
        assert_eq!(linux(libc::O_RDWR | libc::O_TRUNC), open_flag::READ | open_flag::WRITE | open_flag::TRUNCATE);
        assert_eq!(linux(libc::O_ACCMODE), open_flag::READ | open_flag::WRITE);
        assert_eq!(open_flags(FMODE_EXEC, false).0, open_flag::EXECUTE, "who may execute need not be able to read");
        assert_eq!(linux(libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL), open_flag::WRITE | open_flag::EXCLUSIVE);
        let quietly = open_flag::READ | open_flag::NO_ACCESS_TIME;
        assert_eq!((linux(libc::O_NOATIME), open_flags(0, true).0), (quietly, quietly));
    }

    #[test]
    fn mount_options_keep_access_times() {
        let kept = |flags: MountFlags| {
            let kept = AccessTimes::from(flags);
            (kept.kept_of_files, kept.kept_of_directories)
        };
        for flags in [MountFlags::RDONLY, MountFlags::NOATIME, MountFlags::NOATIME | MountFlags::NODIRATIME] {
            assert_eq!(kept(flags), (true, true), "{flags:?}");
        }
        assert_eq!(kept(MountFlags::NODIRATIME | MountFlags::NOSUID), (false, true));
        assert_eq!(kept(MountFlags::RELATIME | MountFlags::NOEXEC), (false, false));
    }

    #[test]
    fn only_kinds_that_mknod_makes_are_made() {
        assert_eq!(node_kind(libc::S_IFCHR | 0o600, 5), Ok(NodeKind::CharacterDevice(5)));
        assert_eq!(node_kind(0o600, 0), Ok(NodeKind::Regular));
        assert_eq!(node_kind(libc::S_IFDIR, 0), Err(FsError::Invalid));
        assert_eq!(node_kind(libc::S_IFLNK, 0), Err(FsError::Invalid));
        assert_eq!(dirent_kind(FileKind::Directory), u32::from(libc::DT_DIR));
        assert_eq!(dirent_kind(FileKind::Socket), u32::from(libc::DT_SOCK));
    }
}
