//! Directories and files move between MDTs while clients use them
//! (docs/decisions/0066-inodes-that-move.md): by their paths they are always there, with all that
//! was written to them, whatever happens to an MDT meanwhile.

use crate::common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::{FileSystem, NewFile, NewNode};
use common::{Fault, with_options};
use lab::{
    cluster::{Cluster, ClusterOptions},
    drawn::settings,
};
use rpc::message::{mdt::RenameMode, mdt_peer::MakeDirectory};
use types::{Attributes, Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, Stripes};

const FILES: usize = 12;
/// A number that led elsewhere a moment ago: so often a path is walked again.
const TRIES_MAX: usize = 100;

/// What is in the directory, and what was written there.
type Files = BTreeMap<Vec<u8>, Vec<u8>>;

fn root() -> Credentials {
    Credentials::root()
}

/// Repeats what came to a number that the inode had before it moved.
async fn again<T, F: Future<Output = FsResult<T>>>(mut work: impl FnMut() -> F) -> FsResult<T> {
    for _ in 0..TRIES_MAX {
        match work().await {
            Err(FsError::Stale) => {}
            outcome => return outcome,
        }
    }
    Err(FsError::Stale)
}

async fn walk(file_system: &FileSystem, path: &[&[u8]]) -> FsResult<Attributes> {
    let mut at = file_system.get_attributes(InodeNumber::ROOT, None).await?;
    for name in path {
        at = file_system.lookup(&root(), at.inode, name).await?;
    }
    Ok(at)
}

async fn directory(file_system: &FileSystem) -> FsResult<InodeNumber> {
    Ok(walk(file_system, &[b"directory"]).await?.inode)
}

async fn read(file_system: &Arc<FileSystem>, name: &[u8]) -> FsResult<Vec<u8>> {
    let path: [&[u8]; 2] = [b"directory", name];
    let (_, data) = file_system.open_and_read(&root(), InodeNumber::ROOT, &path, 1 << 20).await?;
    Ok(data.into_bytes().to_vec())
}

async fn write(file_system: &Arc<FileSystem>, name: &[u8], data: &[u8]) -> FsResult<()> {
    let parent = directory(file_system).await?;
    let file = NewFile { parent, name: name.to_vec(), mode: 0o644, umask: 0 };
    match file_system.create_with_data(&root(), file, data.to_vec().into()).await {
        Ok(_) => Ok(()),
        // It was made before the answer was lost.
        Err(FsError::Exists) => file_system.unlink(&root(), parent, name).await.and(Err(FsError::Stale)),
        Err(error) => Err(error),
    }
}

/// Some are on the MDT, others on OSTs.
fn data(number: usize) -> Vec<u8> {
    let bytes = if number.is_multiple_of(3) { 150_000 } else { 700 };
    (0..bytes).map(|at| (at * 7 + number) as u8).collect()
}

/// What one client does meanwhile: files are read, made, renamed, linked and removed.
async fn use_files(file_system: Arc<FileSystem>, mut files: Files) -> FsResult<Files> {
    let it = &file_system;
    for round in 0..10_usize {
        for (name, expected) in &files {
            let found = again(|| read(it, name)).await?;
            assert!(found == *expected, "{} has {} bytes, not {}", name.escape_ascii(), found.len(), expected.len());
        }
        let new = format!("new{round}").into_bytes();
        let text = data(round);
        again(|| write(it, &new, &text)).await?;
        files.insert(new.clone(), text);
        let (old, renamed) = (format!("old{round}").into_bytes(), format!("renamed{round}").into_bytes());
        again(|| async {
            let parent = directory(it).await?;
            it.rename(&root(), (parent, &old), (parent, &renamed), RenameMode::Replace).await
        })
        .await?;
        let moved = files.remove(&old).expect("it is there");
        files.insert(renamed.clone(), moved.clone());
        let link = format!("link{round}").into_bytes();
        again(|| async {
            let inode = walk(it, &[b"directory", &renamed]).await?.inode;
            it.link(&root(), inode, directory(it).await?, &link).await.map(drop)
        })
        .await?;
        files.insert(link, moved);
        if round % 2 == 1 {
            again(|| async { it.unlink(&root(), directory(it).await?, &new).await }).await?;
            files.remove(&new);
        }
    }
    Ok(files)
}

/// The directory moves, then what is in it; so on with other MDTs. Counts what has moved.
async fn move_all(file_system: Arc<FileSystem>, seed: u64) -> FsResult<usize> {
    let mut moved = 0;
    for round in 0..6 {
        let to = MdtIndex(((seed + round) % 3) as u16);
        let mut paths: Vec<Vec<Vec<u8>>> = vec![vec![b"directory".to_vec()]];
        for number in 0..FILES {
            for kind in ["old", "renamed", "link", "new"] {
                paths.push(vec![b"directory".to_vec(), format!("{kind}{number}").into_bytes()]);
            }
        }
        for path in paths {
            let names: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
            let found = match again(|| walk(&file_system, &names)).await {
                Err(FsError::NotFound) => continue,
                found => found?,
            };
            match file_system.move_inode(&root(), found.inode, to).await {
                Ok(()) => moved += 1,
                // Open, or gone meanwhile; or two names in it lead to a file that stayed on a third
                // MDT.
                Err(FsError::Busy | FsError::Stale | FsError::NotSupported) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(moved)
}

fn moves_under(seed: u64, fault: Fault, uses: bool) {
    let options = ClusterOptions { mdts: 3, osts: 2, osts_per_server: 1, clients: 2, settings: settings(seed) };
    let outcome = with_options(seed, options, move |cluster| Box::pin(scenario(cluster, seed, fault, uses)));
    outcome.unwrap_or_else(|reason| panic!("{fault:?}: {reason}"));
}

/// A directory with files that are durable.
async fn filled(cluster: &Cluster, seed: u64) -> Result<Files, String> {
    common::on(cluster, 0, move |file_system| async move {
        let (mdt, stripes) = (MdtIndex((seed % 3) as u16), Stripes::default());
        let make = MakeDirectory {
            parent: InodeNumber::ROOT,
            name: b"directory".to_vec(),
            mode: 0o755,
            umask: 0,
            mdt,
            stripes,
        };
        let directory = file_system.make_directory(&root(), make).await?;
        let mut files = Files::new();
        for number in 0..FILES {
            let name = format!("old{number}").into_bytes();
            write(&file_system, &name, &data(number)).await?;
            files.insert(name, data(number));
        }
        for (name, kind) in [("link to", NodeKind::Symlink(b"there".to_vec())), ("sub", NodeKind::Directory)] {
            let node = NewNode { parent: directory, name: name.into(), kind, mode: 0o755, umask: 0, layout: None };
            file_system.create(&root(), node).await?;
        }
        while file_system.sync_all().await.is_err() {}
        FsResult::Ok(files)
    })
    .await
}

async fn scenario(cluster: &Cluster, seed: u64, fault: Fault, uses: bool) -> Result<(), String> {
    let files = filled(cluster, seed).await?;
    let (user, _) = cluster.file_system(0).ok_or("client 0 is not mounted")?;
    let (mover, _) = cluster.file_system(1).ok_or("client 1 is not mounted")?;
    let using = async move { if uses { use_files(user, files).await } else { Ok(files) } };
    let using = Box::pin(cluster.begin_on_client(0, using));
    let mut moving = Box::pin(cluster.begin_on_client(1, move_all(mover, seed)));
    let moved = cluster.within(Duration::from_micros(1500 * (seed % 23)), moving.as_mut()).await;
    fault.happen(cluster);
    cluster.ready().await?;
    let moved = match moved {
        Some(moved) => moved,
        None => moving.await,
    };
    let moved = moved.ok_or("client 1 died")?.map_err(|error| format!("a move: {error}"))?;
    if moved < FILES {
        return Err(format!("{moved} inodes have moved"));
    }
    let files = using.await.ok_or("client 0 died")?.map_err(|error| format!("using files: {error}"))?;
    for client in [0, 1] {
        let files = files.clone();
        common::on(cluster, client, move |file_system| async move {
            for (name, expected) in &files {
                let found = again(|| read(&file_system, name)).await?;
                assert!(found == *expected, "{} on client {client}", name.escape_ascii());
            }
            let sub = again(|| walk(&file_system, &[b"directory", b"sub"])).await?;
            let above = file_system.lookup(&root(), sub.inode, b"..").await?;
            assert_eq!(above.inode, again(|| directory(&file_system)).await?);
            FsResult::Ok(())
        })
        .await?;
    }
    Ok(())
}

#[test]
fn files_are_used_while_they_move() {
    for seed in 0..8 {
        moves_under(seed, Fault::Nothing, true);
    }
}

#[test]
fn files_are_used_and_move_although_an_mdt_dies() {
    for seed in 0..12 {
        moves_under(seed, Fault::Dies((seed / 3 % 3) as u16), true);
    }
}

#[test]
fn a_power_loss_during_moves_takes_nothing_that_was_synced() {
    for seed in 0..12 {
        moves_under(seed, Fault::LosesPower((seed / 3 % 3) as u16), false);
    }
}
