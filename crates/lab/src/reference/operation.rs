//! One operation of a file system by path, and its result.

use types::{FileKind, FsError};

/// A relative path: names joined by slashes, none of them `.` or `..`.
pub type Path = String;

/// Flags of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameFlag {
    /// Replace what is there.
    Replace,
    /// RENAME_NOREPLACE
    NoReplace,
    /// RENAME_EXCHANGE
    Exchange,
}

#[allow(missing_docs, reason = "fields are the arguments of the system call that the variant names")]
/// What to do. Everything is done as root; data are written as [`pattern`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// open(O_CREAT [| O_EXCL]), close
    Create { path: Path, mode: u32, exclusive: bool },
    /// mkdir
    MakeDirectory { path: Path, mode: u32 },
    /// symlink; targets never resolve
    Symlink { path: Path, target: String },
    /// mkfifo
    MakeFifo { path: Path, mode: u32 },
    /// readlink
    ReadLink { path: Path },
    /// unlink
    Unlink { path: Path },
    /// rmdir
    RemoveDirectory { path: Path },
    /// renameat2
    Rename { from: Path, to: Path, flag: RenameFlag },
    /// link
    Link { from: Path, to: Path },
    /// pwrite of `bytes` pattern bytes
    Write { path: Path, offset: u64, bytes: usize, seed: u8 },
    /// open(O_APPEND), write
    Append { path: Path, bytes: usize, seed: u8 },
    /// pread
    Read { path: Path, offset: u64, bytes: usize },
    /// truncate
    Truncate { path: Path, size: u64 },
    /// fallocate(0)
    Allocate { path: Path, offset: u64, bytes: u64 },
    /// fallocate(PUNCH_HOLE | KEEP_SIZE)
    Punch { path: Path, offset: u64, bytes: u64 },
    /// fallocate(ZERO_RANGE)
    Zero { path: Path, offset: u64, bytes: u64 },
    /// lstat
    Stat { path: Path },
    /// readdir, sorted
    List { path: Path },
    /// chmod
    SetMode { path: Path, mode: u32 },
    /// setxattr
    SetXattr { path: Path, name: String, value: Vec<u8> },
    /// getxattr
    GetXattr { path: Path, name: String },
    /// removexattr
    RemoveXattr { path: Path, name: String },
    /// open, fsync
    Sync { path: Path },
    /// Another layout for the file, one of some; programs see no difference
    Migrate { path: Path, layout: u8 },
    /// More metadata targets for the names of a directory; programs see no difference
    Split { path: Path },
    /// Another metadata target for a file or directory; programs see no difference
    Move { path: Path },
}

/// What an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Entries of directories: it makes, removes, renames or links names.
    Entries,
    /// The permissions of a file.
    Mode,
    /// The data of a file, and where they are.
    Data,
    /// Extended attributes.
    Xattrs,
    /// Nothing that changes, and no data: it only looks.
    Looks,
}

impl Operation {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Create { .. }
            | Self::MakeDirectory { .. }
            | Self::Symlink { .. }
            | Self::MakeFifo { .. }
            | Self::Unlink { .. }
            | Self::RemoveDirectory { .. }
            | Self::Rename { .. }
            | Self::Link { .. } => Subject::Entries,
            Self::SetMode { .. } => Subject::Mode,
            Self::Write { .. }
            | Self::Append { .. }
            | Self::Read { .. }
            | Self::Truncate { .. }
            | Self::Allocate { .. }
            | Self::Punch { .. }
            | Self::Zero { .. }
            | Self::Sync { .. }
            | Self::Migrate { .. } => Subject::Data,
            Self::SetXattr { .. } | Self::GetXattr { .. } | Self::RemoveXattr { .. } => Subject::Xattrs,
            Self::ReadLink { .. } | Self::Stat { .. } | Self::List { .. } | Self::Split { .. } | Self::Move { .. } => {
                Subject::Looks
            }
        }
    }
}

/// What stat tells that every file system must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Link count.
    pub links: u32,
    /// Size; 0 for directories, whose size is each file system's own business.
    pub size: u64,
}

/// What an operation gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// Bytes read.
    Data(Vec<u8>),
    /// A link's target.
    Target(String),
    /// Attributes.
    Facts(Facts),
    /// Names, sorted.
    Names(Vec<String>),
    /// Failure.
    Failed(FsError),
}

/// The bytes that writes put at `offset`: they depend on position and seed, so that misplaced data
/// show.
pub fn pattern(seed: u8, offset: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|index| {
            let position = offset + index;
            let mixed = (position ^ (position >> 8) ^ (position >> 16)).wrapping_mul(31).wrapping_add(u64::from(seed));
            (mixed as u8) | 1
        })
        .collect()
}
