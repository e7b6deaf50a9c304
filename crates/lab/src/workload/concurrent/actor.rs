//! One client in a scenario: the file system as seen from the scenario's directory, with errors in
//! words.

use std::sync::Arc;

use bytes::Bytes;
use client::{FileSystem, LockRequest, NewFile, NewNode, OpenFile, WriteOptions};
use rpc::message::mdt::{LockFamily, LockMode, LockRange, OpenFlags, RenameMode, open_flag};
use types::{Attributes, Credentials, FsError, FsResult, InodeNumber, NodeKind};

use crate::{
    Random,
    cluster::{Cluster, client_host},
    directory_places::Places,
    log::EventLog,
    migration::{self, Manner},
};

/// Reading and writing.
pub const READ_WRITE: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);
/// Reading, writing and creating what must not exist.
pub const CREATE_NEW: OpenFlags = OpenFlags(READ_WRITE.0 | open_flag::EXCLUSIVE);

/// Of a million changes of where a directory is, those that move it to another MDT.
const MOVES: u32 = 500_000;
/// So often is done again what came to a number that a directory had before it moved: each time it
/// has moved once more.
const TRIES_MAX: usize = 4;

/// No scenario writes a larger file.
const BYTES_MAX: usize = 64 << 20;

/// A client within one scenario.
pub struct Actor {
    /// Which client.
    pub client: u16,
    /// Chance of this actor.
    pub random: Random,
    file_system: Arc<FileSystem>,
    scenario: &'static str,
    log: EventLog,
    who: String,
    /// Among which directories are spread.
    places: Places,
}

fn root() -> Credentials {
    Credentials::root()
}

/// Says which operation failed.
pub fn told<T>(what: &str, result: FsResult<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// As the kernel does it: what came to a number that does not exist any more is done again from the
/// first name on.
async fn again<T, F: Future<Output = FsResult<T>>>(work: impl Fn() -> F) -> FsResult<T> {
    for _ in 1..TRIES_MAX {
        match work().await {
            Err(FsError::Stale) => {}
            outcome => return outcome,
        }
    }
    work().await
}

impl Actor {
    /// The client as an actor of this scenario. It must be mounted.
    pub fn new(cluster: &Cluster, client: u16, scenario: &'static str) -> Self {
        let (file_system, _) = cluster.file_system(client).expect("actors are made of living clients");
        let who = format!("{} {scenario}", client_host(client));
        let random = Random::for_purpose(cluster.seed(), &who);
        let (log, places) = (cluster.log().clone(), cluster.places().clone());
        Self { client, random, file_system, scenario, log, who, places }
    }

    /// Notes an event.
    pub fn note(&self, what: impl std::fmt::Display) {
        self.log.event(&self.who, what);
    }

    /// Makes the scenario's directory in the root.
    pub async fn make_directory(&self) -> Result<(), String> {
        told("mkdir of the scenario", self.make_in(InodeNumber::ROOT, self.scenario).await)
    }

    /// If there are several MDTs: moves the scenario's directory to another one, or gives it
    /// stripes, if it has none.
    pub async fn split_directory(&self) -> Result<(), String> {
        if !self.places.are_several() {
            return Ok(());
        }
        let directory = told("lookup of the scenario", self.directory().await)?;
        if self.random.happens(MOVES) {
            let moved = self.places.move_inode(&self.file_system, directory, &self.random).await;
            self.note(format_args!("move -> {moved:?}"));
            return told("move", moved);
        }
        let split = self.places.split(&self.file_system, directory, &self.random).await;
        self.note(format_args!("split -> {split:?}"));
        told("split", split)
    }

    /// Makes a directory in the scenario's.
    pub async fn make_subdirectory(&self, name: &str) -> FsResult<()> {
        again(|| self.make_subdirectory_once(name)).await
    }

    async fn make_subdirectory_once(&self, name: &str) -> FsResult<()> {
        self.make_in(self.directory().await?, name).await
    }

    /// Makes an empty file that must not exist.
    pub async fn make_file(&self, name: &str) -> Result<(), String> {
        let file = told("create", self.create(name, CREATE_NEW).await)?;
        told("close", self.close(file).await)
    }

    async fn make_in(&self, parent: InodeNumber, name: &str) -> FsResult<()> {
        if self.places.are_several() {
            let make = self.places.new_directory(&self.random, (parent, name));
            return self.file_system.make_directory(&root(), make).await.map(drop);
        }
        let (name, kind) = (name.as_bytes().to_vec(), NodeKind::Directory);
        let node = NewNode { parent, name, kind, mode: 0o755, umask: 0, layout: None };
        self.file_system.create(&root(), node).await.map(drop)
    }

    /// The scenario's directory.
    async fn directory(&self) -> FsResult<InodeNumber> {
        Ok(self.file_system.lookup(&root(), InodeNumber::ROOT, self.scenario.as_bytes()).await?.inode)
    }

    /// Directory and last name of a path below the scenario's directory.
    async fn place<'p>(&self, path: &'p str) -> FsResult<(InodeNumber, &'p [u8])> {
        let directory = self.directory().await?;
        match path.split_once('/') {
            None => Ok((directory, path.as_bytes())),
            Some((parent, name)) => {
                let parent = self.file_system.lookup(&root(), directory, parent.as_bytes()).await?;
                Ok((parent.inode, name.as_bytes()))
            }
        }
    }

    /// stat
    pub async fn stat(&self, path: &str) -> FsResult<Attributes> {
        again(|| self.stat_once(path)).await
    }

    async fn stat_once(&self, path: &str) -> FsResult<Attributes> {
        let (parent, name) = self.place(path).await?;
        self.file_system.lookup(&root(), parent, name).await
    }

    /// open(O_CREAT)
    pub async fn create(&self, path: &str, flags: OpenFlags) -> FsResult<Arc<OpenFile>> {
        again(|| self.create_once(path, flags)).await
    }

    async fn create_once(&self, path: &str, flags: OpenFlags) -> FsResult<Arc<OpenFile>> {
        let (parent, name) = self.place(path).await?;
        Ok(self.file_system.create_open(&root(), parent, name, 0o644, 0, flags).await?.file)
    }

    /// open
    pub async fn open(&self, path: &str) -> FsResult<Arc<OpenFile>> {
        again(|| self.open_once(path)).await
    }

    async fn open_once(&self, path: &str) -> FsResult<Arc<OpenFile>> {
        let found = self.stat_once(path).await?;
        self.file_system.open(&root(), found.inode, READ_WRITE).await
    }

    /// close
    pub async fn close(&self, file: Arc<OpenFile>) -> FsResult<()> {
        self.file_system.close(file, None).await
    }

    /// unlink
    pub async fn unlink(&self, path: &str) -> FsResult<()> {
        again(|| self.unlink_once(path)).await
    }

    async fn unlink_once(&self, path: &str) -> FsResult<()> {
        let (parent, name) = self.place(path).await?;
        self.file_system.unlink(&root(), parent, name).await
    }

    /// link
    pub async fn link(&self, from: &str, to: &str) -> FsResult<()> {
        again(|| self.link_once(from, to)).await
    }

    async fn link_once(&self, from: &str, to: &str) -> FsResult<()> {
        let found = self.stat_once(from).await?;
        let (parent, name) = self.place(to).await?;
        self.file_system.link(&root(), found.inode, parent, name).await.map(drop)
    }

    /// rename(RENAME_NOREPLACE)
    pub async fn rename(&self, from: &str, to: &str) -> FsResult<()> {
        again(|| self.rename_once(from, to)).await
    }

    async fn rename_once(&self, from: &str, to: &str) -> FsResult<()> {
        let (old, new) = (self.place(from).await?, self.place(to).await?);
        self.file_system.rename(&root(), old, new, RenameMode::NoReplace).await
    }

    /// pwrite of everything
    pub async fn write(&self, file: &Arc<OpenFile>, offset: u64, data: Vec<u8>) -> FsResult<()> {
        self.put(file, offset, data, WriteOptions { keep_set_id: true, ..WriteOptions::default() }).await
    }

    /// write to a file opened with O_APPEND
    pub async fn append(&self, file: &Arc<OpenFile>, data: Vec<u8>) -> FsResult<()> {
        self.put(file, 0, data, WriteOptions { append: true, keep_set_id: true, sync: false }).await
    }

    async fn put(&self, file: &Arc<OpenFile>, offset: u64, data: Vec<u8>, options: WriteOptions) -> FsResult<()> {
        let bytes = data.len();
        let written = self.file_system.write(file, offset, Bytes::from(data), options).await?;
        if written == bytes { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// pread
    pub async fn read(&self, file: &OpenFile, offset: u64, bytes: usize) -> FsResult<Vec<u8>> {
        Ok(self.file_system.read(file, offset, bytes).await?.into_bytes().to_vec())
    }

    /// All of a file.
    pub async fn contents(&self, path: &str) -> FsResult<Vec<u8>> {
        let file = self.open(path).await?;
        let data = self.read(&file, 0, BYTES_MAX).await;
        self.close(file).await?;
        data
    }

    /// As [`Actor::contents`]; path, open, read and close are one request where that is possible.
    pub async fn contents_at_once(&self, path: &str) -> FsResult<Vec<u8>> {
        again(|| self.contents_in_one_request(path)).await
    }

    async fn contents_in_one_request(&self, path: &str) -> FsResult<Vec<u8>> {
        let names = [self.scenario].into_iter().chain(path.split('/')).map(str::as_bytes).collect::<Vec<_>>();
        let (_, data) = self.file_system.open_and_read(&root(), InodeNumber::ROOT, &names, BYTES_MAX).await?;
        Ok(data.into_bytes().to_vec())
    }

    /// A new file with these contents, in one request where that is possible.
    pub async fn create_at_once(&self, path: &str, data: Vec<u8>) -> FsResult<()> {
        again(|| self.create_with_data(path, data.clone())).await
    }

    async fn create_with_data(&self, path: &str, data: Vec<u8>) -> FsResult<()> {
        let (parent, name) = self.place(path).await?;
        let file = NewFile { parent, name: name.to_vec(), mode: 0o644, umask: 0 };
        self.file_system.create_with_data(&root(), file, data.into()).await.map(drop)
    }

    /// Another layout for a file that this actor does not have open; false if another user prevents
    /// it.
    pub async fn migrate(&self, path: &str, layout: u8) -> FsResult<bool> {
        let inode = self.stat(path).await?.inode;
        migration::migrate(&self.file_system, inode, migration::layout(layout), Manner::Tool).await
    }

    /// fsync
    pub async fn sync(&self, file: &OpenFile) -> FsResult<()> {
        self.file_system.fsync(file, false).await
    }

    /// Names in a directory of the scenario (empty: its own), without `.` and `..`, sorted.
    pub async fn names(&self, path: &str) -> FsResult<Vec<String>> {
        again(|| self.names_once(path)).await
    }

    async fn names_once(&self, path: &str) -> FsResult<Vec<String>> {
        let inode = if path.is_empty() { self.directory().await? } else { self.stat_once(path).await?.inode };
        let directory = self.file_system.open(&root(), inode, OpenFlags(open_flag::READ)).await?;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.file_system.read_directory(&directory, cookie, 7, client::EntryAttributes::OfAll).await?;
            cookie = page.items.last().map_or(cookie, |item| item.cookie);
            let shown = page.items.iter().filter(|item| item.name != b"." && item.name != b"..");
            names.extend(shown.map(|item| String::from_utf8_lossy(&item.name).into_owned()));
            if page.end {
                break;
            }
        }
        self.file_system.close(directory, None).await?;
        names.sort();
        Ok(names)
    }

    /// Waits for an exclusive lock on the whole file.
    pub async fn lock(&self, file: &OpenFile, family: LockFamily) -> FsResult<()> {
        self.set_lock(file, family, LockMode::Exclusive).await
    }

    /// Gives it back.
    pub async fn unlock(&self, file: &OpenFile, family: LockFamily) -> FsResult<()> {
        self.set_lock(file, family, LockMode::Unlock).await
    }

    async fn set_lock(&self, file: &OpenFile, family: LockFamily, mode: LockMode) -> FsResult<()> {
        let owner = u64::from(self.client) + 1;
        let request = LockRequest { family, owner, pid: 1, range: LockRange::WHOLE, mode, wait: true };
        self.file_system.set_lock(file, request).await
    }
}
