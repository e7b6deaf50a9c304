//! What tasks of E5 do, and the directories that they work in: the same in virtual time and live.

use std::{collections::BTreeMap, sync::Arc};

use client::{FileSystem, NewNode};
use rpc::message::{mdt_peer::MakeDirectory, mgs::TargetRole};
use types::{Credentials, DirectoryPlace, FsError, FsResult, InodeNumber, MdtIndex, NodeKind};

use super::{Cell, DIRECTORY_TASKS, Load};
use crate::directory_places::in_turn;

/// A task: its mount, and the directory it works in.
#[derive(Clone)]
pub struct Task {
    /// Its mount.
    pub file_system: Arc<FileSystem>,
    /// Its directory.
    pub directory: InodeNumber,
    /// Name of it in the root.
    pub directory_name: Vec<u8>,
    /// Its number among all tasks.
    pub rank: u32,
}

impl Task {
    /// Looks its directory up, as a program does before it begins.
    pub async fn find_directory(self) -> FsResult<()> {
        let found = self.file_system.lookup(&Credentials::root(), InodeNumber::ROOT, &self.directory_name).await?;
        if found.inode == self.directory { Ok(()) } else { Err(FsError::Stale) }
    }

    /// Does the phase's operation to each of its files, one after the other.
    pub async fn work(self, phase: &'static str, files: u64) -> FsResult<()> {
        for file in 0..files {
            self.operate(phase, file).await?;
        }
        Ok(())
    }

    /// Does the phase's operation to one of its files.
    pub async fn operate(&self, phase: &'static str, file: u64) -> FsResult<()> {
        let Self { file_system, directory, rank, .. } = self;
        let root = Credentials::root();
        let name = format!("file.{rank}.{file}").into_bytes();
        match phase {
            "mknod" => {
                let kind = NodeKind::Regular;
                let node = NewNode { parent: *directory, name, kind, mode: 0o644, umask: 0, layout: None };
                file_system.create(&root, node).await.map(drop)
            }
            "stat" => file_system.lookup(&root, *directory, &name).await.map(drop),
            _ => file_system.unlink(&root, *directory, &name).await,
        }
    }
}

/// Where the directories of a cell are.
pub fn places(cell: Cell) -> Vec<DirectoryPlace> {
    let mdts = cell.mdts_in_all();
    match cell.load {
        Load::Separate { directories } => (0..directories as usize).map(|number| in_turn(number, mdts, 1)).collect(),
        Load::Striped { .. } => vec![in_turn(0, mdts, mdts)],
    }
}

/// The number of the directory in which a task works.
pub fn directory_of(cell: Cell, rank: u32) -> usize {
    match cell.load {
        Load::Separate { .. } => (rank / DIRECTORY_TASKS) as usize,
        Load::Striped { .. } => 0,
    }
}

/// Makes a directory of this name in the root.
pub async fn make_directory(file_system: &FileSystem, name: Vec<u8>, place: DirectoryPlace) -> FsResult<InodeNumber> {
    let DirectoryPlace { mdt, stripes } = place;
    let make = MakeDirectory { parent: InodeNumber::ROOT, name, mode: 0o755, umask: 0, mdt, stripes };
    file_system.make_directory(&Credentials::root(), make).await
}

/// Lets a client give back all its locks (`lru_size=clear`), which takes a moment.
pub fn give_locks_back(file_system: &FileSystem, mdts: u16) -> FsResult<()> {
    (0..mdts).map(MdtIndex).try_for_each(|mdt| file_system.clear_cached_locks(mdt))
}

/// Whether a client has such locks.
pub fn has_locks(file_system: &FileSystem, mdts: u16) -> bool {
    (0..mdts).map(MdtIndex).any(|mdt| file_system.cached_locks(mdt).is_ok_and(|(locks, _)| locks > 0))
}

/// Requests that clients have sent so far, by target and kind.
pub type Requests = BTreeMap<(TargetRole, &'static str), u64>;

/// Those of all these clients.
pub fn requests_of<'c>(clients: impl IntoIterator<Item = &'c Arc<FileSystem>>) -> Requests {
    let mut requests = Requests::new();
    for (role, _, statistics) in clients.into_iter().flat_map(|file_system| file_system.connections()) {
        for opcode in statistics.opcodes {
            *requests.entry((role, opcode.name)).or_default() += opcode.calls;
        }
    }
    requests
}
