//! One open file or directory of this client.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, OpenId, open_flag};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use types::{Attributes, FileKind, FsError, FsResult, InodeNumber, attributes::file_flag};

use crate::{
    FileSystem,
    open_state::{listing_place::ListingPlace, open_inode::OpenInode},
};

/// An open file or directory. Ends with [`FileSystem::close`]; one that is dropped without it is
/// closed in the background.
pub struct OpenFile {
    pub(crate) open: Arc<OpenInode>,
    kind: FileKind,
    id: OpenId,
    flags: OpenFlags,
    /// It could only be appended to when it was opened.
    append_only: bool,
    /// Whether it is being closed or has been closed.
    closed: AtomicBool,
    /// Held by changes that are completed although their caller has given up. The close waits for
    /// them: when it removes a file without a name, no change may reach the file's objects later,
    /// because it would make them anew.
    unfinished: RwLock<()>,
    /// Of a directory that is read.
    pub(crate) listing: Mutex<ListingPlace>,
    file_system: Weak<FileSystem>,
}

impl fmt::Debug for OpenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, id, flags, .. } = self;
        write!(f, "OpenFile {{ {}, {kind:?}, {id:?}, {flags:?} }}", self.inode())
    }
}

impl OpenFile {
    pub(crate) fn new(
        open: Arc<OpenInode>,
        attributes: &Attributes,
        id: OpenId,
        flags: OpenFlags,
        file_system: Weak<FileSystem>,
    ) -> Self {
        let append_only = attributes.flags & file_flag::APPEND_ONLY != 0;
        let (kind, closed, listing) = (attributes.kind, AtomicBool::new(false), Mutex::default());
        let unfinished = RwLock::default();
        Self { open, kind, id, flags, append_only, closed, unfinished, listing, file_system }
    }

    /// The inode.
    pub fn inode(&self) -> InodeNumber {
        self.open.inode()
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The client's name for this open.
    pub fn id(&self) -> OpenId {
        self.id
    }

    /// How it was opened.
    pub fn flags(&self) -> OpenFlags {
        self.flags
    }

    /// True for the first caller only.
    pub(crate) fn begin_close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Begins a change that is completed whatever becomes of its caller; the close comes after it.
    pub(crate) fn begin_change(&self) -> FsResult<RwLockReadGuard<'_, ()>> {
        self.unfinished.try_read().map_err(|_| FsError::BadHandle)
    }

    /// Waits for the changes that are still to be completed, and lets no other one begin.
    pub(crate) async fn changes_completed(&self) -> RwLockWriteGuard<'_, ()> {
        self.unfinished.write().await
    }

    /// Fails unless this is a regular file open for reading (or execution).
    pub(crate) fn check_readable(&self) -> FsResult<()> {
        self.check_regular()?;
        let readable = self.flags.has(open_flag::READ) || self.flags.has(open_flag::EXECUTE);
        if readable { Ok(()) } else { Err(FsError::BadHandle) }
    }

    /// Fails unless this is a regular file open for writing.
    pub(crate) fn check_writable(&self) -> FsResult<()> {
        self.check_regular()?;
        if self.flags.has(open_flag::WRITE) { Ok(()) } else { Err(FsError::BadHandle) }
    }

    /// As [`OpenFile::check_writable`], for a change of data that are there. The kernel does not
    /// know which files can only be appended to, and lets programs clear O_APPEND.
    pub(crate) fn check_changeable(&self) -> FsResult<()> {
        self.check_writable()?;
        if self.append_only { Err(FsError::NotPermitted) } else { Ok(()) }
    }

    /// Fails unless this is a regular file whose session lives.
    pub(crate) fn check_regular(&self) -> FsResult<()> {
        match self.kind {
            FileKind::Regular => self.open.check(),
            FileKind::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if self.begin_close()
            && let Some(file_system) = self.file_system.upgrade()
        {
            file_system.close_forgotten(self.open.clone(), self.id);
        }
    }
}
