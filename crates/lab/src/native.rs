//! Operations by path on a client's [`FileSystem`]: what the kernel does between a system call and
//! the client.
//!
//! Paths are resolved by look-ups; the errors that the kernel itself finds (a pipe without a
//! reader, a directory opened for writing) are found here. Some files stay open from one operation
//! to the next, as the seed says, so that operations use opens of all ages.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use client::{AllocateMode, FileSystem, NewNode, OpenFile, WriteOptions};
use parking_lot::Mutex;
use rpc::message::{
    mdt::{OpenFlags, RenameMode, XattrMode, open_flag},
    mdt_peer::MakeDirectory,
};
use rt::Entropy;
use types::{
    Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, SetAttributes,
    mode::PERMISSIONS,
};

use crate::{
    Random,
    directory_places::Places,
    migration::{self, Manner},
    reference::{Facts, Operation, Outcome, RenameFlag, Subject, pattern},
};

/// Files that stay open at most.
const OPEN_MAX: usize = 4;
/// Entries asked for at once: few, so that listings take several requests.
const PAGE_ENTRIES: u32 = 3;

/// A client's file system, by path, as root.
#[derive(Clone)]
pub struct Native {
    file_system: Arc<FileSystem>,
    random: Arc<Random>,
    open: Arc<Mutex<BTreeMap<InodeNumber, Arc<OpenFile>>>>,
    /// Among which new directories are spread.
    places: Places,
}

const READ_WRITE: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);

impl Native {
    /// Operations on `file_system`; `random` decides which files stay open.
    pub fn new(file_system: Arc<FileSystem>, random: Random) -> Self {
        Self { file_system, random: Arc::new(random), open: Arc::default(), places: Places::new(1) }
    }

    /// As given, with new directories on any of these MDTs, or striped over some of them.
    pub fn over_mdts(self, places: &Places) -> Self {
        Self { places: places.clone(), ..self }
    }

    /// The file system below.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.file_system
    }

    /// Does one operation.
    pub async fn apply(&self, operation: &Operation) -> Outcome {
        self.execute(operation).await.unwrap_or_else(Outcome::Failed)
    }

    /// Closes all files that stayed open.
    pub async fn close_all(&self) -> FsResult<()> {
        let open = std::mem::take(&mut *self.open.lock());
        for file in open.into_values() {
            self.file_system.close(file, None).await?;
        }
        Ok(())
    }

    async fn execute(&self, operation: &Operation) -> FsResult<Outcome> {
        match operation.subject() {
            Subject::Entries => self.change_names(operation).await,
            Subject::Mode => self.set_mode(operation).await,
            Subject::Data => self.use_data(operation).await,
            Subject::Xattrs => self.use_xattr(operation).await,
            Subject::Looks => self.look(operation).await,
        }
    }

    async fn look(&self, operation: &Operation) -> FsResult<Outcome> {
        match operation {
            Operation::ReadLink { path } => {
                let found = self.resolve(path).await?;
                let target = match found.kind {
                    FileKind::Symlink => self.file_system.read_link(found.inode).await?,
                    _ => return Err(FsError::Invalid),
                };
                Ok(Outcome::Target(String::from_utf8_lossy(&target).into_owned()))
            }
            Operation::Stat { path } => Ok(Outcome::Facts(facts(&self.resolve(path).await?))),
            Operation::List { path } => self.list(path).await,
            Operation::Split { path } => self.split(path).await,
            Operation::Move { path } => self.move_inode(path).await,
            _ => unreachable!("dispatched by subject"),
        }
    }

    /// Gives a directory stripes, if it has none and there are several MDTs.
    async fn split(&self, path: &str) -> FsResult<Outcome> {
        let found = self.resolve(path).await?;
        if found.kind == FileKind::Directory && self.places.are_several() {
            self.places.split(&self.file_system, found.inode, &self.random).await?;
        }
        Ok(Outcome::Done)
    }

    /// Moves a file or directory to another MDT, if there are several; what another client has open
    /// stays where it is.
    async fn move_inode(&self, path: &str) -> FsResult<Outcome> {
        let found = self.resolve(path).await?;
        if self.places.are_several() {
            self.close_kept(found.inode).await?;
            self.places.move_inode(&self.file_system, found.inode, &self.random).await?;
        }
        Ok(Outcome::Done)
    }

    async fn close_kept(&self, inode: InodeNumber) -> FsResult<()> {
        let kept = self.open.lock().remove(&inode);
        match kept {
            Some(file) => self.file_system.close(file, None).await,
            None => Ok(()),
        }
    }

    async fn set_mode(&self, operation: &Operation) -> FsResult<Outcome> {
        let Operation::SetMode { path, mode } = operation else { unreachable!("dispatched by subject") };
        let found = self.resolve_following(path).await?;
        let changes = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
        self.file_system.set_attributes(&root(), found.inode, changes, None).await?;
        Ok(Outcome::Done)
    }

    /// The MDT that decides about a name of a directory: that of the shard to which it belongs, if
    /// the directory is striped.
    pub async fn mdt_of_name(&self, directory: InodeNumber, name: &str) -> FsResult<MdtIndex> {
        let map = self.file_system.layout_info(directory).await?.map;
        let shard = map.and_then(|map| map.shard_of(name.as_bytes()));
        Ok(shard.unwrap_or(directory).mdt())
    }

    /// The inode a path names, the last name not followed.
    pub async fn resolve(&self, path: &str) -> FsResult<Attributes> {
        let mut found = self.file_system.get_attributes(InodeNumber::ROOT, None).await?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            check_directory(&found)?;
            found = self.file_system.lookup(&root(), found.inode, name.as_bytes()).await?;
        }
        Ok(found)
    }

    async fn resolve_following(&self, path: &str) -> FsResult<Attributes> {
        let found = self.resolve(path).await?;
        // Links lead nowhere.
        if found.kind == FileKind::Symlink { Err(FsError::NotFound) } else { Ok(found) }
    }

    async fn resolve_parent<'p>(&self, path: &'p str) -> FsResult<(InodeNumber, &'p [u8])> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let found = self.resolve(parent).await?;
        check_directory(&found)?;
        Ok((found.inode, name.as_bytes()))
    }

    async fn change_names(&self, operation: &Operation) -> FsResult<Outcome> {
        let file_system = &self.file_system;
        match operation {
            Operation::Create { path, mode, exclusive } => self.create(path, *mode, *exclusive).await?,
            Operation::MakeDirectory { path, mode } if self.places.are_several() => {
                self.make_directory(path, *mode).await?
            }
            Operation::MakeDirectory { path, mode } => self.make(path, NodeKind::Directory, *mode).await?,
            Operation::Symlink { path, target } => {
                self.make(path, NodeKind::Symlink(target.clone().into_bytes()), 0o777).await?;
            }
            Operation::MakeFifo { path, mode } => self.make(path, NodeKind::Fifo, *mode).await?,
            Operation::Unlink { path } => {
                let (parent, name) = self.resolve_parent(path).await?;
                file_system.unlink(&root(), parent, name).await?;
            }
            Operation::RemoveDirectory { path } => {
                let (parent, name) = self.resolve_parent(path).await?;
                file_system.remove_directory(&root(), parent, name).await?;
            }
            Operation::Rename { from, to, flag } => {
                let (old, new) = (self.resolve_parent(from).await?, self.resolve_parent(to).await?);
                let mode = match flag {
                    RenameFlag::Replace => RenameMode::Replace,
                    RenameFlag::NoReplace => RenameMode::NoReplace,
                    RenameFlag::Exchange => RenameMode::Exchange,
                };
                file_system.rename(&root(), old, new, mode).await?;
            }
            Operation::Link { from, to } => {
                let found = self.resolve(from).await?;
                let (parent, name) = self.resolve_parent(to).await?;
                self.refuse_linked_directory(&found, parent, name).await?;
                file_system.link(&root(), found.inode, parent, name).await?;
            }
            _ => unreachable!("dispatched by subject"),
        }
        Ok(Outcome::Done)
    }

    /// The kernel finds an existing name before it looks at what is linked.
    async fn refuse_linked_directory(&self, found: &Attributes, parent: InodeNumber, name: &[u8]) -> FsResult<()> {
        if found.kind != FileKind::Directory {
            return Ok(());
        }
        match self.file_system.lookup(&root(), parent, name).await {
            Ok(_) => Err(FsError::Exists),
            Err(FsError::NotFound) => Err(FsError::NotPermitted),
            Err(error) => Err(error),
        }
    }

    async fn make_directory(&self, path: &str, mode: u32) -> FsResult<()> {
        let (parent, name) = self.resolve_parent(path).await?;
        let (mdt, stripes) = self.places.draw(&self.random);
        let make = MakeDirectory { parent, name: name.to_vec(), mode, umask: 0, mdt, stripes };
        self.file_system.make_directory(&root(), make).await.map(drop)
    }

    async fn make(&self, path: &str, kind: NodeKind, mode: u32) -> FsResult<()> {
        let (parent, name) = self.resolve_parent(path).await?;
        let node = NewNode { parent, name: name.to_vec(), kind, mode, umask: 0, layout: None };
        self.file_system.create(&root(), node).await.map(drop)
    }

    async fn create(&self, path: &str, mode: u32, exclusive: bool) -> FsResult<()> {
        let (parent, name) = self.resolve_parent(path).await?;
        let existing = match self.file_system.lookup(&root(), parent, name).await {
            Ok(found) => Some(found),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let flags = if exclusive { OpenFlags(READ_WRITE.0 | open_flag::EXCLUSIVE) } else { READ_WRITE };
        let file = match existing {
            Some(found) if !exclusive => match found.kind {
                FileKind::Regular => self.file_system.open(&root(), found.inode, READ_WRITE).await?,
                kind => return Err(open_error(kind)),
            },
            _ => self.file_system.create_open(&root(), parent, name, mode & PERMISSIONS, 0, flags).await?.file,
        };
        self.done_with(file).await
    }

    /// The file a path names, open for reading and writing.
    async fn open_file(&self, path: &str) -> FsResult<Arc<OpenFile>> {
        let found = self.resolve_following(path).await?;
        if found.kind != FileKind::Regular {
            return Err(open_error(found.kind));
        }
        let kept = self.open.lock().get(&found.inode).cloned();
        match kept {
            Some(file) => Ok(file),
            None => self.file_system.open(&root(), found.inode, READ_WRITE).await,
        }
    }

    /// Closes the file, or keeps it open for a while.
    async fn done_with(&self, file: Arc<OpenFile>) -> FsResult<()> {
        let evicted = {
            let mut open = self.open.lock();
            if self.random.happens(400_000) {
                open.insert(file.inode(), file);
                if open.len() > OPEN_MAX {
                    let index = self.random.below(open.len() as u64) as usize;
                    let inode = *open.keys().nth(index).expect("the index is below the length");
                    open.remove(&inode)
                } else {
                    None
                }
            } else {
                open.remove(&file.inode());
                Some(file)
            }
        };
        match evicted {
            Some(file) => self.file_system.close(file, None).await,
            None => Ok(()),
        }
    }

    async fn use_data(&self, operation: &Operation) -> FsResult<Outcome> {
        match operation {
            Operation::Truncate { path, size } => return self.truncate(path, *size).await,
            Operation::Migrate { path, layout } => return self.migrate(path, *layout).await,
            _ => {}
        }
        let (Operation::Write { path, .. }
        | Operation::Append { path, .. }
        | Operation::Read { path, .. }
        | Operation::Allocate { path, .. }
        | Operation::Punch { path, .. }
        | Operation::Zero { path, .. }
        | Operation::Sync { path }) = operation
        else {
            unreachable!("dispatched by subject")
        };
        let file = self.open_file(path).await?;
        let outcome = self.use_file(&file, operation).await;
        self.done_with(file).await?;
        outcome
    }

    /// A file that another client keeps open stays where it is: no program can tell.
    async fn migrate(&self, path: &str, layout: u8) -> FsResult<Outcome> {
        let found = self.resolve_following(path).await?;
        if found.kind != FileKind::Regular {
            return Err(open_error(found.kind));
        }
        self.close_kept(found.inode).await?;
        migration::migrate(&self.file_system, found.inode, migration::layout(layout), Manner::Tool).await?;
        Ok(Outcome::Done)
    }

    async fn truncate(&self, path: &str, size: u64) -> FsResult<Outcome> {
        let found = self.resolve_following(path).await?;
        match found.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid),
        }
        let file = self.open.lock().get(&found.inode).cloned();
        self.file_system.truncate(&root(), found.inode, file.as_ref(), size).await?;
        Ok(Outcome::Done)
    }

    async fn use_file(&self, file: &Arc<OpenFile>, operation: &Operation) -> FsResult<Outcome> {
        let file_system = &self.file_system;
        match operation {
            Operation::Write { offset, bytes, seed, .. } => {
                let options = WriteOptions { keep_set_id: true, ..WriteOptions::default() };
                self.write(file, *offset, pattern(*seed, *offset, *bytes), options).await?;
            }
            Operation::Append { bytes, seed, .. } => {
                let options = WriteOptions { append: true, keep_set_id: true, sync: false };
                let end = file_system.get_attributes(file.inode(), Some(file)).await?.size;
                self.write(file, 0, pattern(*seed, end, *bytes), options).await?;
            }
            Operation::Read { offset, bytes, .. } => {
                let data = file_system.read(file, *offset, *bytes).await?;
                return Ok(Outcome::Data(data.into_bytes().to_vec()));
            }
            Operation::Allocate { offset, bytes, .. } => {
                file_system.allocate(file, AllocateMode::Allocate { extend: true }, *offset, *bytes).await?;
            }
            Operation::Punch { offset, bytes, .. } => {
                file_system.allocate(file, AllocateMode::Punch, *offset, *bytes).await?;
            }
            Operation::Zero { offset, bytes, .. } => {
                file_system.allocate(file, AllocateMode::Zero { extend: true }, *offset, *bytes).await?;
            }
            Operation::Sync { .. } => file_system.fsync(file, false).await?,
            _ => unreachable!("dispatched by subject"),
        }
        Ok(Outcome::Done)
    }

    async fn write(&self, file: &Arc<OpenFile>, offset: u64, data: Vec<u8>, options: WriteOptions) -> FsResult<()> {
        let bytes = data.len();
        let written = self.file_system.write(file, offset, Bytes::from(data), options).await?;
        if written == bytes { Ok(()) } else { Err(FsError::NoSpace) }
    }

    async fn list(&self, path: &str) -> FsResult<Outcome> {
        let found = self.resolve_following(path).await?;
        check_directory(&found)?;
        let directory = self.file_system.open(&root(), found.inode, OpenFlags(open_flag::READ)).await?;
        let listed = self.read_names(&directory).await;
        self.file_system.close(directory, None).await?;
        let mut names = listed?;
        names.sort();
        Ok(Outcome::Names(names))
    }

    async fn read_names(&self, directory: &OpenFile) -> FsResult<Vec<String>> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page =
                self.file_system.read_directory(directory, cookie, PAGE_ENTRIES, client::EntryAttributes::None).await?;
            if let Some(last) = page.items.last() {
                cookie = last.cookie;
            }
            let shown = page.items.into_iter().filter(|item| item.name != b"." && item.name != b"..");
            names.extend(shown.map(|item| String::from_utf8_lossy(&item.name).into_owned()));
            if page.end {
                return Ok(names);
            }
        }
    }

    async fn use_xattr(&self, operation: &Operation) -> FsResult<Outcome> {
        let file_system = &self.file_system;
        match operation {
            Operation::SetXattr { path, name, value } => {
                let inode = self.resolve_following(path).await?.inode;
                file_system.set_xattr(&root(), inode, name.as_bytes(), value, XattrMode::Any).await?;
            }
            Operation::GetXattr { path, name } => {
                let inode = self.resolve_following(path).await?.inode;
                return Ok(Outcome::Data(file_system.get_xattr(&root(), inode, name.as_bytes()).await?));
            }
            Operation::RemoveXattr { path, name } => {
                let inode = self.resolve_following(path).await?.inode;
                file_system.remove_xattr(&root(), inode, name.as_bytes()).await?;
            }
            _ => unreachable!("dispatched by subject"),
        }
        Ok(Outcome::Done)
    }
}

fn root() -> Credentials {
    Credentials::root()
}

/// A component in the middle of a path.
fn check_directory(found: &Attributes) -> FsResult<()> {
    match found.kind {
        FileKind::Directory => Ok(()),
        FileKind::Symlink => Err(FsError::NotFound),
        _ => Err(FsError::NotDirectory),
    }
}

/// Why something that is not a regular file cannot be opened for writing and without waiting.
fn open_error(kind: FileKind) -> FsError {
    match kind {
        FileKind::Directory => FsError::IsDirectory,
        FileKind::Symlink => FsError::NotFound,
        _ => FsError::NoDeviceOrAddress,
    }
}

fn facts(attributes: &Attributes) -> Facts {
    let Attributes { kind, mode, links, size, .. } = *attributes;
    Facts { kind, mode, links, size: if kind == FileKind::Directory { 0 } else { size } }
}
