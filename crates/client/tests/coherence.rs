//! Two clients that have looked at everything, and a third that has not: after each change by one
//! of them, all see the same, and at once. Servers are the shipped ones.

use crate::support;

use std::sync::Arc;

use bytes::Bytes;
use client::{FileSystem, NewNode, WriteOptions};
use rpc::message::mdt::{OpenFlags, RenameMode, XattrMode, open_flag};
use rt::BoxFuture;
use support::{ROOT, real::RealCluster};
use types::{
    Attributes, Credentials, FileKind, FsError, FsResult, NodeKind, SetAttributes, SetTime, Timestamp,
    access_list::ACCESS_NAME,
};

const STRIPE: u64 = 65536;
const XATTR: &[u8] = b"security.test";
/// Version 2; owner 7, user 1000 nothing, owning group 5, mask 5, others 5.
const ACCESS_LIST: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 0, 0, 0xe8, 3, 0, 0, 4, 0, 5, 0, 255, 255, 255, 255, 0x10, 0, 5,
    0, 255, 255, 255, 255, 0x20, 0, 5, 0, 255, 255, 255, 255,
];

fn root() -> Credentials {
    Credentials::root()
}

fn user() -> Credentials {
    Credentials { uid: 1000, gid: 1000, groups: Some(vec![50]) }
}

/// Walks a path from the root.
async fn walk(fs: &FileSystem, who: &Credentials, path: &str) -> FsResult<Attributes> {
    let mut found = fs.get_attributes(ROOT, None).await?;
    for name in path.split('/') {
        found = fs.lookup(who, found.inode, name.as_bytes()).await?;
    }
    Ok(found)
}

async fn make(fs: &FileSystem, path: &str, kind: NodeKind) -> FsResult<()> {
    let (directory, name) = path.rsplit_once('/').unwrap_or((".", path));
    let parent = walk(fs, &root(), directory).await?.inode;
    let node = NewNode { parent, name: name.into(), kind, mode: 0o755, umask: 0, layout: None };
    fs.create(&root(), node).await.map(drop)
}

async fn set(fs: &FileSystem, path: &str, changes: SetAttributes) -> FsResult<()> {
    let inode = walk(fs, &root(), path).await?.inode;
    fs.set_attributes(&root(), inode, changes, None).await.map(drop)
}

async fn write_at(fs: &Arc<FileSystem>, path: &str, offset: u64, flags: u32) -> FsResult<()> {
    let inode = walk(fs, &root(), path).await?.inode;
    let file = fs.open(&root(), inode, OpenFlags(flags)).await?;
    fs.write(&file, offset, Bytes::from_static(b"written"), WriteOptions::default()).await?;
    fs.close(file, None).await
}

async fn rename(fs: &FileSystem, from: &str, to: &str, mode: RenameMode) -> FsResult<()> {
    let directory = walk(fs, &root(), "d").await?.inode;
    fs.rename(&root(), (directory, from.as_bytes()), (directory, to.as_bytes()), mode).await
}

async fn unlink(fs: &FileSystem, name: &str) -> FsResult<()> {
    let directory = walk(fs, &root(), "d").await?.inode;
    fs.unlink(&root(), directory, name.as_bytes()).await
}

async fn names(fs: &Arc<FileSystem>, path: &str) -> FsResult<Vec<Vec<u8>>> {
    let inode = walk(fs, &root(), path).await?.inode;
    let flags = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME);
    let directory = fs.open(&root(), inode, flags).await?;
    let page = fs.read_directory(&directory, 0, 100, client::EntryAttributes::None).await?;
    fs.close(directory, None).await?;
    Ok(page.items.into_iter().map(|item| item.name).collect())
}

/// Everything that can be seen without changing anything, as one text each. (Access times: reading
/// a link may change them.)
async fn look(fs: &Arc<FileSystem>) -> Vec<String> {
    let mut seen = Vec::new();
    let paths = ["d", "d/file", "d/other", "d/new", "d/link", "d/hard", "d/e", "d/e/inner", "d/f/inner", "d/f"];
    for who in [root(), user()] {
        for path in paths {
            let found = walk(fs, &who, path).await;
            let shown = found.clone().map(|found| Attributes { atime: Timestamp::default(), ..found });
            seen.push(format!("{} {path}: {shown:?}", who.uid));
            let Ok(Attributes { inode, kind, .. }) = found else { continue };
            seen.push(format!("{path} may be read: {:?}", fs.access(&who, inode, 4).await));
            seen.push(format!("{path} may be searched: {:?}", fs.access(&who, inode, 1).await));
            seen.push(format!("{path} attribute: {:?}", fs.get_xattr(&who, inode, XATTR).await));
            seen.push(format!("{path} access list: {:?}", fs.get_xattr(&who, inode, ACCESS_NAME).await));
            if kind == FileKind::Symlink {
                seen.push(format!("{path} leads to: {:?}", fs.read_link(inode).await));
            }
        }
    }
    for directory in ["d", "d/e"] {
        seen.push(format!("{directory} has {:?}", names(fs, directory).await));
    }
    seen
}

/// What is there before each change.
async fn prepare(fs: &Arc<FileSystem>) -> FsResult<()> {
    make(fs, "d", NodeKind::Directory).await?;
    make(fs, "d/e", NodeKind::Directory).await?;
    for file in ["d/file", "d/other", "d/e/inner"] {
        make(fs, file, NodeKind::Regular).await?;
        write_at(fs, file, 0, open_flag::WRITE).await?;
    }
    make(fs, "d/link", NodeKind::Symlink(b"before".to_vec())).await
}

type Change = for<'a> fn(&'a Arc<FileSystem>) -> BoxFuture<'a, FsResult<()>>;

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

/// Name and change.
const CHANGES: &[(&str, Change)] = &[
    ("write", |fs| Box::pin(write_at(fs, "d/file", 100_000, open_flag::WRITE))),
    ("overwrite", |fs| Box::pin(write_at(fs, "d/file", 0, open_flag::WRITE))),
    ("open with truncation", |fs| Box::pin(write_at(fs, "d/file", 0, open_flag::WRITE | open_flag::TRUNCATE))),
    ("truncate", |fs| {
        Box::pin(async move {
            let inode = walk(fs, &root(), "d/file").await?.inode;
            fs.truncate(&root(), inode, None, 3).await.map(drop)
        })
    }),
    ("chmod of a file", |fs| Box::pin(set(fs, "d/file", mode(0o600)))),
    ("chmod of a directory", |fs| Box::pin(set(fs, "d", mode(0o700)))),
    ("chmod of a directory to search only", |fs| Box::pin(set(fs, "d", mode(0o711)))),
    ("chown", |fs| Box::pin(set(fs, "d/file", SetAttributes { uid: Some(1000), ..SetAttributes::default() }))),
    ("chgrp of a directory", |fs| {
        Box::pin(async move {
            set(fs, "d", mode(0o750)).await?;
            set(fs, "d", SetAttributes { gid: Some(50), ..SetAttributes::default() }).await
        })
    }),
    ("utimens", |fs| {
        let mtime = Some(SetTime::To(Timestamp { seconds: 5, nanoseconds: 6 }));
        Box::pin(set(fs, "d/file", SetAttributes { mtime, ..SetAttributes::default() }))
    }),
    ("create over a missing name", |fs| Box::pin(make(fs, "d/new", NodeKind::Regular))),
    ("mkdir over a missing name", |fs| Box::pin(make(fs, "d/new", NodeKind::Directory))),
    ("create and write", |fs| {
        Box::pin(async move {
            make(fs, "d/new", NodeKind::Regular).await?;
            write_at(fs, "d/new", 10, open_flag::WRITE).await
        })
    }),
    ("create with open", |fs| {
        Box::pin(async move {
            let directory = walk(fs, &root(), "d").await?.inode;
            let made = fs.create_open(&root(), directory, b"new", 0o644, 0, OpenFlags(open_flag::WRITE)).await?;
            fs.write(&made.file, 0, Bytes::from_static(b"more"), WriteOptions::default()).await?;
            fs.close(made.file, None).await
        })
    }),
    ("create with data", |fs| {
        Box::pin(async move {
            let parent = walk(fs, &root(), "d").await?.inode;
            let new = client::NewFile { parent, name: b"new".to_vec(), mode: 0o640, umask: 0 };
            fs.create_with_data(&root(), new, Bytes::from_static(b"data")).await.map(drop)
        })
    }),
    ("link", |fs| {
        Box::pin(async move {
            let (inode, directory) = (walk(fs, &root(), "d/file").await?.inode, walk(fs, &root(), "d").await?.inode);
            fs.link(&root(), inode, directory, b"hard").await.map(drop)
        })
    }),
    ("link and unlink of the first name", |fs| {
        Box::pin(async move {
            let (inode, directory) = (walk(fs, &root(), "d/file").await?.inode, walk(fs, &root(), "d").await?.inode);
            fs.link(&root(), inode, directory, b"hard").await?;
            unlink(fs, "file").await
        })
    }),
    ("unlink", |fs| Box::pin(unlink(fs, "file"))),
    ("unlink and create", |fs| {
        Box::pin(async move {
            unlink(fs, "file").await?;
            make(fs, "d/file", NodeKind::Fifo).await
        })
    }),
    ("rename to a new name", |fs| Box::pin(rename(fs, "file", "new", RenameMode::Replace))),
    ("rename over a name", |fs| Box::pin(rename(fs, "file", "other", RenameMode::Replace))),
    ("exchange", |fs| Box::pin(rename(fs, "file", "other", RenameMode::Exchange))),
    ("exchange of a file and a directory", |fs| Box::pin(rename(fs, "file", "e", RenameMode::Exchange))),
    ("rename of a directory", |fs| Box::pin(rename(fs, "e", "f", RenameMode::Replace))),
    ("rename out of a directory", |fs| {
        Box::pin(async move {
            let (from, to) = (walk(fs, &root(), "d/e").await?.inode, walk(fs, &root(), "d").await?.inode);
            fs.rename(&root(), (from, b"inner"), (to, b"new"), RenameMode::NoReplace).await
        })
    }),
    ("symbolic link replaced", |fs| {
        Box::pin(async move {
            unlink(fs, "link").await?;
            make(fs, "d/link", NodeKind::Symlink(b"after".to_vec())).await
        })
    }),
    ("rmdir", |fs| {
        Box::pin(async move {
            let (outer, inner) = (walk(fs, &root(), "d").await?.inode, walk(fs, &root(), "d/e").await?.inode);
            fs.unlink(&root(), inner, b"inner").await?;
            fs.remove_directory(&root(), outer, b"e").await
        })
    }),
    ("setxattr", |fs| {
        Box::pin(async move {
            let inode = walk(fs, &root(), "d/file").await?.inode;
            fs.set_xattr(&root(), inode, XATTR, b"value", XattrMode::Any).await
        })
    }),
    ("setxattr and removexattr", |fs| {
        Box::pin(async move {
            let inode = walk(fs, &root(), "d/file").await?.inode;
            fs.set_xattr(&root(), inode, XATTR, b"value", XattrMode::Any).await?;
            fs.remove_xattr(&root(), inode, XATTR).await
        })
    }),
    ("setfacl of a directory", |fs| {
        Box::pin(async move {
            let inode = walk(fs, &root(), "d").await?.inode;
            fs.set_xattr(&root(), inode, ACCESS_NAME, ACCESS_LIST, XattrMode::Any).await
        })
    }),
    ("setfacl and its removal", |fs| {
        Box::pin(async move {
            let inode = walk(fs, &root(), "d").await?.inode;
            fs.set_xattr(&root(), inode, ACCESS_NAME, ACCESS_LIST, XattrMode::Any).await?;
            fs.remove_xattr(&root(), inode, ACCESS_NAME).await
        })
    }),
    ("nothing, refused", |fs| {
        Box::pin(async move {
            assert_eq!(unlink(fs, "new").await, Err(FsError::NotFound));
            assert_eq!(make(fs, "d/file", NodeKind::Regular).await, Err(FsError::Exists));
            Ok(())
        })
    }),
];

/// Both clients are warm; the first one makes the change.
async fn all_see(name: &str, change: Change) {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let (changing, watching) = (cluster.mount().await, cluster.mount().await);
    prepare(&changing).await.unwrap();
    for fs in [&changing, &watching, &changing, &watching] {
        look(fs).await;
    }
    assert_eq!(look(&changing).await, look(&watching).await, "before {name}");
    change(&changing).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    let (seen, seen_by_other) = (look(&changing).await, look(&watching).await);
    let expected = look(&cluster.mount().await).await;
    assert_eq!(seen_by_other, expected, "{name}, by another client");
    assert_eq!(seen, expected, "{name}, by this client");
    // The other way round, with what both have seen since.
    let back = mode(0o751);
    set(&watching, "d", back).await.unwrap();
    let expected = look(&cluster.mount().await).await;
    assert_eq!(look(&changing).await, expected, "after {name}");
    assert_eq!(look(&watching).await, expected, "after {name}");
}

#[tokio::test]
async fn every_change_is_seen_by_every_client_at_once() {
    for (name, change) in CHANGES {
        all_see(name, *change).await;
    }
}

/// A change is seen while it is under way: by the client that makes it not later than by others.
#[tokio::test]
async fn many_changes_and_looks_at_once_end_in_the_same_view() {
    let cluster = RealCluster::new(STRIPE, 2).await;
    let clients = [cluster.mount().await, cluster.mount().await, cluster.mount().await];
    prepare(&clients[0]).await.unwrap();
    let worker = |fs: Arc<FileSystem>, first: usize| async move {
        for turn in 0..40 {
            look(&fs).await;
            let (_, change) = CHANGES[(first + turn * 7) % CHANGES.len()];
            if !CHANGES[(first + turn * 7) % CHANGES.len()].0.contains("refused") {
                // Another client may have removed what it is about.
                let _ = change(&fs).await;
            }
        }
    };
    let tasks: Vec<_> = (0..6).map(|index| tokio::spawn(worker(clients[index % 3].clone(), index * 5))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let expected = look(&cluster.mount().await).await;
    for fs in &clients {
        assert_eq!(look(fs).await, expected);
    }
}

/// Requests to the MDT so far, but for those that only keep the session or give locks back.
fn requests(fs: &FileSystem) -> u64 {
    let quiet = ["mdt_ping", "mdt_cancel_locks"];
    let connections = fs.connections();
    let opcodes = connections.iter().flat_map(|(_, _, statistics)| &statistics.opcodes);
    let counted = opcodes.filter(|opcode| opcode.name.starts_with("mdt_") && !quiet.contains(&opcode.name));
    counted.map(|opcode| opcode.calls).sum()
}

#[tokio::test]
async fn looking_again_needs_no_request() {
    const DEEP: &str = "a/b/c/d/e";
    let cluster = RealCluster::new(STRIPE, 2).await;
    let (fs, other) = (cluster.mount().await, cluster.mount().await);
    let mut path = String::new();
    for name in DEEP.split('/') {
        path = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        make(&fs, &path, NodeKind::Directory).await.unwrap();
    }
    let file = format!("{DEEP}/file");
    make(&fs, &file, NodeKind::Regular).await.unwrap();
    let missing = format!("{DEEP}/missing");
    for who in [root(), user()] {
        for _ in 0..2 {
            walk(&fs, &who, &file).await.unwrap();
            assert_eq!(walk(&fs, &who, &missing).await, Err(FsError::NotFound));
        }
        let before = requests(&fs);
        let found = walk(&fs, &who, &file).await.unwrap();
        assert_eq!(walk(&fs, &who, &missing).await, Err(FsError::NotFound));
        assert_eq!(fs.get_attributes(found.inode, None).await, Ok(found));
        assert_eq!(requests(&fs) - before, 0, "{}", who.uid);
    }
    // New names in a directory that this client made.
    let directory = walk(&fs, &root(), DEEP).await.unwrap().inode;
    let before = requests(&fs);
    assert_eq!(fs.lookup(&root(), directory, b"new").await, Err(FsError::NotFound));
    assert_eq!(requests(&fs) - before, 0);
    let too_long = [b'x'; types::limits::NAME_BYTES_MAX + 1];
    assert_eq!(fs.lookup(&root(), directory, &too_long).await, Err(FsError::NameTooLong), "not just missing");
    make(&other, &format!("{DEEP}/new"), NodeKind::Regular).await.unwrap();
    assert!(fs.lookup(&root(), directory, b"new").await.is_ok());
    assert!(requests(&fs) > before);
}
