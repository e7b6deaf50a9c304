//! Arguments and results of [`FileSystem`](crate::FileSystem) that are more than a number.

use std::sync::Arc;

use bytes::Bytes;
use layout::LayoutSpec;
use types::{Attributes, FileKind, FsError, FsResult, InodeNumber, NodeKind};

use crate::{LockSpan, OpenFile};

/// A node to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Directory.
    pub parent: InodeNumber,
    /// Name within it.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: NodeKind,
    /// Permission bits asked for, 12 bits.
    pub mode: u32,
    /// Bits to clear, unless the directory has a default access list.
    pub umask: u32,
    /// Layout of a regular file; `None` inherits.
    pub layout: Option<LayoutSpec>,
}

/// A regular file to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    /// Directory.
    pub parent: InodeNumber,
    /// Name within it.
    pub name: Vec<u8>,
    /// Permission bits asked for, 12 bits.
    pub mode: u32,
    /// Bits to clear, unless the directory has a default access list.
    pub umask: u32,
}

/// A file created or found, and open.
#[derive(Clone, Debug)]
pub struct CreatedFile {
    /// Its attributes after the open.
    pub attributes: Attributes,
    /// The open file.
    pub file: Arc<OpenFile>,
    /// False if the name existed and that file was opened.
    pub created: bool,
}

/// How a write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Write at the end of the file, atomically against the appends of all clients (O_APPEND); the
    /// offset is ignored.
    pub append: bool,
    /// Return only when the data are durable (O_SYNC, O_DSYNC).
    pub sync: bool,
    /// The writer may keep set-id bits (root, CAP_FSETID); else the first write clears them.
    pub keep_set_id: bool,
}

/// What fallocate(2) does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocateMode {
    /// Reserve space; the file grows to cover the range if `extend`.
    Allocate {
        /// Whether the size may grow.
        extend: bool,
    },
    /// Make the range a hole; the size stays.
    Punch,
    /// Make the range zeros; the file grows to cover the range if `extend`.
    Zero {
        /// Whether the size may grow.
        extend: bool,
    },
}

impl AllocateMode {
    /// From the `mode` of Linux's fallocate(2). Modes that shift data within the file
    /// (COLLAPSE_RANGE, INSERT_RANGE) are `NotSupported`, and so are unknown ones.
    pub fn from_linux(mode: u32) -> FsResult<Self> {
        const KEEP_SIZE: u32 = 0x01;
        const PUNCH_HOLE: u32 = 0x02;
        const ZERO_RANGE: u32 = 0x10;
        match mode {
            0 => Ok(AllocateMode::Allocate { extend: true }),
            KEEP_SIZE => Ok(AllocateMode::Allocate { extend: false }),
            ZERO_RANGE => Ok(AllocateMode::Zero { extend: true }),
            mode if mode == PUNCH_HOLE | KEEP_SIZE => Ok(AllocateMode::Punch),
            mode if mode == ZERO_RANGE | KEEP_SIZE => Ok(AllocateMode::Zero { extend: false }),
            _ => Err(FsError::NotSupported),
        }
    }
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// The next byte that was written (SEEK_DATA).
    Data,
    /// The next byte that was not (SEEK_HOLE); the end of the file counts as one.
    Hole,
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryItem {
    /// The name.
    pub name: Vec<u8>,
    /// Its inode.
    pub inode: InodeNumber,
    /// Its kind.
    pub kind: FileKind,
    /// Position after it.
    pub cookie: u64,
    /// Attributes, if requested; `None` for `.`, `..` and files whose size cannot be determined
    /// now.
    pub attributes: Option<Attributes>,
}

/// Consecutive names of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPage {
    /// The names; `.` and `..` come first.
    pub items: Vec<DirectoryItem>,
    /// Whether the directory ends after them.
    pub end: bool,
    /// The time to which they belong, if the directory's listing is covered by locks.
    pub span: Option<LockSpan>,
}

/// Bytes read, as pieces in file order; holes are pieces of zeros. Pieces are those that arrived:
/// nothing is copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadData {
    pieces: Vec<Bytes>,
    bytes: usize,
}

/// Zeros that holes are made of.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

impl ReadData {
    /// Appends a piece.
    pub(crate) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes += piece.len();
            self.pieces.push(piece);
        }
    }

    /// Appends zeros.
    pub(crate) fn push_zeros(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let piece = bytes.min(ZEROS.len());
            self.push(Bytes::from_static(&ZEROS[..piece]));
            bytes -= piece;
        }
    }

    /// The pieces, none of them empty.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The pieces, to be sent on.
    pub fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }

    /// Number of bytes; fewer than requested only at the end of the file.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether nothing was read: the offset is at or after the end of the file.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// All bytes in one buffer: without a copy if there is one piece.
    pub fn into_bytes(mut self) -> Bytes {
        let bytes: usize = self.pieces.iter().map(Bytes::len).sum();
        assert_eq!(bytes, self.bytes, "the length of a read is that of its pieces");
        match self.pieces.len() {
            0 => Bytes::new(),
            1 => self.pieces.remove(0),
            _ => Bytes::from(self.pieces.concat()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_and_pieces_join_in_order() {
        let mut data = ReadData::default();
        data.push(Bytes::from_static(b"ab"));
        data.push(Bytes::new());
        data.push_zeros(ZEROS.len() + 1);
        data.push(Bytes::from_static(b"c"));
        assert_eq!(data.pieces().len(), 4);
        assert_eq!(data.len(), ZEROS.len() + 4);
        let joined = data.into_bytes();
        assert_eq!(&joined[..2], b"ab");
        assert!(joined[2..joined.len() - 1].iter().all(|byte| *byte == 0));
        assert_eq!(joined[joined.len() - 1], b'c');
    }

    #[test]
    fn linux_modes_are_understood_or_refused() {
        assert_eq!(AllocateMode::from_linux(0), Ok(AllocateMode::Allocate { extend: true }));
        assert_eq!(AllocateMode::from_linux(1), Ok(AllocateMode::Allocate { extend: false }));
        assert_eq!(AllocateMode::from_linux(3), Ok(AllocateMode::Punch));
        assert_eq!(AllocateMode::from_linux(0x10), Ok(AllocateMode::Zero { extend: true }));
        assert_eq!(AllocateMode::from_linux(0x11), Ok(AllocateMode::Zero { extend: false }));
        for mode in [2, 8, 0x20, 0x40, 0x80] {
            assert_eq!(AllocateMode::from_linux(mode), Err(FsError::NotSupported), "{mode:#x}");
        }
    }
}
