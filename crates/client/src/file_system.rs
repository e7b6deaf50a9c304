//! The file system as an API on inodes.
//!
//! Errors: every operation may fail with `Unreachable` (a target did not answer within the patience), `Stale` (the
//! session in which a file was opened was evicted) and `GroupsNeeded`. The last means: nothing has happened, the decision
//! depends on the caller's supplementary groups; call again with `credentials.groups` filled in.

use std::sync::Arc;

use bytes::Bytes;
use rpc::message::mdt::{HeldLock, LockMode, LockRange, OpenFlags, RenameMode, XattrMode};
use types::{Attributes, ClientId, Credentials, FsResult, InodeNumber, SetAttributes, SpaceUsage};

use crate::{
    AllocateMode, CreatedFile, DirectoryPage, LockRequest, NewNode, OpenFile, ReadData, SeekTarget, WriteOptions,
};

/// A mounted file system.
pub struct FileSystem {
    client: ClientId,
}

/// Signatures only, so that users can be written; bodies follow with the crates below.
#[allow(unused_variables)]
impl FileSystem {
    /// Ends all sessions. Files still open are closed by the servers.
    pub async fn unmount(&self) -> FsResult<()> {
        todo!()
    }

    /// Name of the file system.
    pub fn fsname(&self) -> String {
        todo!()
    }

    /// This mount's identity.
    pub fn client_id(&self) -> ClientId {
        self.client
    }

    /// Attributes of a name. `.` and `..` are understood.
    pub async fn lookup(&self, credentials: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<Attributes> {
        todo!()
    }

    /// Attributes of an inode, through an open file if there is one.
    pub async fn get_attributes(&self, inode: InodeNumber, file: Option<&OpenFile>) -> FsResult<Attributes> {
        todo!()
    }

    /// Changes attributes other than the size.
    pub async fn set_attributes(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        changes: SetAttributes,
        file: Option<&OpenFile>,
    ) -> FsResult<Attributes> {
        todo!()
    }

    /// Sets the size; through a file open for writing if there is one, else write permission is checked.
    pub async fn truncate(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        file: Option<&Arc<OpenFile>>,
        size: u64,
    ) -> FsResult<Attributes> {
        todo!()
    }

    /// access(2): `mask` of 4 read, 2 write, 1 execute.
    pub async fn access(&self, credentials: &Credentials, inode: InodeNumber, mask: u32) -> FsResult<()> {
        todo!()
    }

    /// Creates a node of any kind (mknod, mkdir, symlink).
    pub async fn create(&self, credentials: &Credentials, node: NewNode) -> FsResult<Attributes> {
        todo!()
    }

    /// Creates and opens a regular file, or opens the one that exists unless `flags` has EXCLUSIVE (O_CREAT).
    pub async fn create_open(
        self: &Arc<Self>,
        credentials: &Credentials,
        parent: InodeNumber,
        name: &[u8],
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        todo!()
    }

    /// Creates an unnamed file and opens it (O_TMPFILE); `link` can name it unless `flags` has EXCLUSIVE.
    pub async fn create_unnamed(
        self: &Arc<Self>,
        credentials: &Credentials,
        parent: InodeNumber,
        mode: u32,
        umask: u32,
        flags: OpenFlags,
    ) -> FsResult<CreatedFile> {
        todo!()
    }

    /// Opens a file or directory.
    pub async fn open(
        self: &Arc<Self>,
        credentials: &Credentials,
        inode: InodeNumber,
        flags: OpenFlags,
    ) -> FsResult<Arc<OpenFile>> {
        todo!()
    }

    /// Closes. `flock_owner`: the owner whose flock locks end with this close.
    pub async fn close(self: &Arc<Self>, file: Arc<OpenFile>, flock_owner: Option<u64>) -> FsResult<()> {
        todo!()
    }

    /// One descriptor of an open file was closed (FUSE FLUSH): its owner's fcntl locks on the file end.
    pub async fn flush(self: &Arc<Self>, file: &OpenFile, lock_owner: u64) -> FsResult<()> {
        todo!()
    }

    /// Reads; short only at the end of the file.
    pub async fn read(&self, file: &OpenFile, offset: u64, bytes: usize) -> FsResult<ReadData> {
        todo!()
    }

    /// Writes; returns the bytes written, fewer than given only if an object failed behind them.
    pub async fn write(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        offset: u64,
        data: Bytes,
        options: WriteOptions,
    ) -> FsResult<usize> {
        todo!()
    }

    /// Returns when everything this client wrote to the file is durable (of a directory: all its changes).
    pub async fn fsync(&self, file: &OpenFile, data_only: bool) -> FsResult<()> {
        todo!()
    }

    /// fallocate(2).
    pub async fn allocate(&self, file: &OpenFile, mode: AllocateMode, offset: u64, bytes: u64) -> FsResult<()> {
        todo!()
    }

    /// Offset of the next data or hole at or after `offset`; `NoDeviceOrAddress` if there is none.
    pub async fn seek(&self, file: &OpenFile, offset: u64, target: SeekTarget) -> FsResult<u64> {
        todo!()
    }

    /// copy_file_range(2): returns the bytes copied, fewer than asked for at the end of `from`.
    pub async fn copy_range(
        self: &Arc<Self>,
        from: (&Arc<OpenFile>, u64),
        to: (&Arc<OpenFile>, u64),
        bytes: u64,
        options: WriteOptions,
    ) -> FsResult<u64> {
        todo!()
    }

    /// Names of an open directory behind `cookie` (0: from the beginning), with attributes if asked for.
    pub async fn read_directory(
        &self,
        directory: &OpenFile,
        cookie: u64,
        entries_max: u32,
        attributes: bool,
    ) -> FsResult<DirectoryPage> {
        todo!()
    }

    /// unlink(2).
    pub async fn unlink(&self, credentials: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<()> {
        todo!()
    }

    /// rmdir(2).
    pub async fn remove_directory(&self, credentials: &Credentials, parent: InodeNumber, name: &[u8]) -> FsResult<()> {
        todo!()
    }

    /// renameat2(2): `from` and `to` are a directory and a name in it.
    pub async fn rename(
        &self,
        credentials: &Credentials,
        from: (InodeNumber, &[u8]),
        to: (InodeNumber, &[u8]),
        mode: RenameMode,
    ) -> FsResult<()> {
        todo!()
    }

    /// link(2).
    pub async fn link(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        parent: InodeNumber,
        name: &[u8],
    ) -> FsResult<Attributes> {
        todo!()
    }

    /// Target of a symbolic link.
    pub async fn read_link(&self, inode: InodeNumber) -> FsResult<Vec<u8>> {
        todo!()
    }

    /// Value of an extended attribute.
    pub async fn get_xattr(&self, credentials: &Credentials, inode: InodeNumber, name: &[u8]) -> FsResult<Vec<u8>> {
        todo!()
    }

    /// Names of extended attributes.
    pub async fn list_xattr(&self, credentials: &Credentials, inode: InodeNumber) -> FsResult<Vec<Vec<u8>>> {
        todo!()
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(
        &self,
        credentials: &Credentials,
        inode: InodeNumber,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        todo!()
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, credentials: &Credentials, inode: InodeNumber, name: &[u8]) -> FsResult<()> {
        todo!()
    }

    /// Space of all OSTs and inodes of all MDTs; of those that do not answer the last known figures.
    pub async fn statfs(&self) -> FsResult<SpaceUsage> {
        todo!()
    }

    /// Sets or releases an advisory lock. Dropping the future of a waiting request gives up: afterwards the owner holds
    /// what it held before.
    pub async fn set_lock(self: &Arc<Self>, inode: InodeNumber, request: LockRequest) -> FsResult<()> {
        todo!()
    }

    /// F_GETLK: a lock that conflicts.
    pub async fn get_lock(
        &self,
        inode: InodeNumber,
        owner: u64,
        range: LockRange,
        mode: LockMode,
    ) -> FsResult<Option<HeldLock>> {
        todo!()
    }

    /// sync(2): everything acknowledged by any target is durable when it returns.
    pub async fn sync_all(&self) -> FsResult<()> {
        todo!()
    }
}
