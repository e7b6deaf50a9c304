//! Listings of directories in which a client makes, renames and removes names itself: what they
//! cost, and that they are what the MDT has. Servers are the shipped ones.

use crate::support;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use client::{DirectoryItem, FileSystem, NewFile, NewNode, WriteOptions};
use rpc::message::mdt::{OpenFlags, RenameMode, open_flag};
use rt::{BoxFuture, Entropy, memory::SeededEntropy};
use support::{ROOT, others_run, real::RealCluster};
use types::{Attributes, Credentials, FileKind, InodeNumber, MdtIndex, NodeKind, SetAttributes, SetTime, Timestamp};

const CREATE: u32 = open_flag::READ | open_flag::WRITE | open_flag::EXCLUSIVE;
const OLD: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };

fn root() -> Credentials {
    Credentials::root()
}

/// Requests to the MDT so far, by their names.
fn requests(fs: &FileSystem) -> BTreeMap<String, u64> {
    let (_, _, statistics) = fs.connections().into_iter().next().expect("an MDT");
    statistics.opcodes.iter().map(|opcode| (opcode.name.to_string(), opcode.calls)).collect()
}

/// Those since an earlier moment.
fn since(fs: &FileSystem, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let new = |(name, calls): (String, u64)| {
        let calls = calls - before.get(&name).copied().unwrap_or(0);
        (calls > 0).then_some((name, calls))
    };
    requests(fs).into_iter().filter_map(new).collect()
}

async fn node(fs: &FileSystem, parent: InodeNumber, name: &str, kind: NodeKind) -> InodeNumber {
    let node = NewNode { parent, name: name.into(), kind, mode: 0o700, umask: 0, layout: None };
    fs.create(&root(), node).await.unwrap().inode
}

/// Owner, mode and times of what was unpacked.
async fn set(fs: &FileSystem, inode: InodeNumber) {
    let owner = SetAttributes { uid: Some(1), gid: Some(2), ..SetAttributes::default() };
    let mode = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    let times = SetAttributes { mtime: Some(SetTime::To(OLD)), ..SetAttributes::default() };
    for changes in [owner, mode, times] {
        fs.set_attributes(&root(), inode, changes, None).await.unwrap();
    }
}

/// Unpacks a tree as `tar` does; returns how many names it has.
fn unpack(fs: &Arc<FileSystem>, parent: InodeNumber, depth: u32) -> BoxFuture<'_, usize> {
    Box::pin(async move {
        let mut names = 0;
        for number in 0..5 {
            let name = format!("file{number}").into_bytes();
            let file = fs.create_open(&root(), parent, &name, 0o600, 0, OpenFlags(CREATE)).await.unwrap().file;
            fs.write(&file, 0, Bytes::from_static(b"data"), WriteOptions::default()).await.unwrap();
            set(fs, file.inode()).await;
            fs.close(file, None).await.unwrap();
            names += 1;
        }
        node(fs, parent, "link", NodeKind::Symlink(b"file0".to_vec())).await;
        names += 1;
        for number in 0..if depth > 0 { 3 } else { 0 } {
            let below = node(fs, parent, &format!("directory{number}"), NodeKind::Directory).await;
            names += 1 + unpack(fs, below, depth - 1).await;
        }
        set(fs, parent).await;
        names
    })
}

async fn list(fs: &Arc<FileSystem>, inode: InodeNumber, flags: u32, entries_max: u32) -> Vec<DirectoryItem> {
    let directory = fs.open(&root(), inode, OpenFlags(open_flag::READ | flags)).await.unwrap();
    let (mut items, mut cookie) = (Vec::<DirectoryItem>::new(), 0);
    loop {
        let page = fs.read_directory(&directory, cookie, entries_max, client::EntryAttributes::OfAll).await.unwrap();
        // As the kernel, which asks until nothing comes.
        let Some(last) = page.items.last() else { break };
        cookie = last.cookie;
        items.extend(page.items);
    }
    fs.close(directory, None).await.unwrap();
    items
}

/// Names of a directory besides `.` and `..`.
fn named(items: &[DirectoryItem]) -> impl Iterator<Item = &DirectoryItem> {
    items.iter().filter(|item| !matches!(&*item.name, b"." | b".."))
}

/// Visits a tree as `find` does; returns how many names it has.
fn walk(fs: &Arc<FileSystem>, inode: InodeNumber) -> BoxFuture<'_, usize> {
    Box::pin(async move {
        let items = list(fs, inode, 0, 4).await;
        let mut names = 0;
        for item in named(&items) {
            assert!(item.attributes.is_some(), "what it shows it knows");
            names += 1;
            if item.kind == FileKind::Directory {
                names += walk(fs, item.inode).await;
            }
        }
        names
    })
}

#[tokio::test]
async fn a_tree_that_was_unpacked_here_is_walked_without_requests() {
    unpack_and_walk(0).await;
}

/// What became of them comes with other replies.
#[tokio::test]
async fn nor_does_it_cost_any_if_closes_go_along_with_other_requests() {
    unpack_and_walk(3_600_000).await;
}

async fn unpack_and_walk(close_delay_ms: u32) {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = cluster.mount().await;
    fs.set_close_delay_ms(close_delay_ms);
    let top = node(&fs, ROOT, "top", NodeKind::Directory).await;
    let names = unpack(&fs, top, 2).await;
    let (before, begun) = (requests(&fs), Instant::now());
    assert_eq!(walk(&fs, top).await, names);
    let mut asked = since(&fs, &before);
    if begun.elapsed() > Duration::from_millis(500) {
        // On a host that busy, it tells of the accesses meanwhile.
        asked.remove("note accesses");
    }
    assert_eq!(asked, BTreeMap::new());
    // Another client sees the same.
    let other = cluster.mount().await;
    assert_eq!(walk(&other, top).await, names);
}

#[tokio::test]
async fn renamed_linked_and_removed_names_are_followed() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = cluster.mount().await;
    let top = node(&fs, ROOT, "top", NodeKind::Directory).await;
    let below = node(&fs, top, "below", NodeKind::Directory).await;
    let file = node(&fs, top, "file", NodeKind::Regular).await;
    fs.link(&root(), file, below, b"second").await.unwrap();
    fs.rename(&root(), (top, b"file"), (top, b"renamed"), RenameMode::Replace).await.unwrap();
    node(&fs, top, "replaced", NodeKind::Regular).await;
    fs.rename(&root(), (top, b"renamed"), (top, b"replaced"), RenameMode::Replace).await.unwrap();
    node(&fs, below, "other", NodeKind::Fifo).await;
    fs.rename(&root(), (top, b"replaced"), (below, b"other"), RenameMode::Exchange).await.unwrap();
    node(&fs, top, "gone", NodeKind::Directory).await;
    fs.remove_directory(&root(), top, b"gone").await.unwrap();
    let new = NewFile { parent: below, name: b"whole".to_vec(), mode: 0o644, umask: 0 };
    fs.create_with_data(&root(), new, Bytes::from_static(b"data")).await.unwrap();
    let before = requests(&fs);
    let shown = |items: &[DirectoryItem]| {
        let mut names: Vec<_> = named(items).map(|item| (item.name.clone(), item.inode == file, item.kind)).collect();
        names.sort();
        names
    };
    let of_top = [(b"below".to_vec(), false, FileKind::Directory), (b"replaced".to_vec(), false, FileKind::Fifo)];
    let top_items = list(&fs, top, open_flag::NO_ACCESS_TIME, 100).await;
    assert_eq!((shown(&top_items), since(&fs, &before)), (of_top.to_vec(), BTreeMap::new()));
    let of_below = [("other", true), ("second", true), ("whole", false)];
    let of_below = of_below.map(|(name, is_file)| (name.as_bytes().to_vec(), is_file, FileKind::Regular));
    assert_eq!(shown(&list(&fs, below, open_flag::NO_ACCESS_TIME, 100).await), of_below);
    let other = cluster.mount().await;
    for (directory, items) in [(top, top_items), (below, list(&fs, below, 0, 100).await)] {
        assert_eq!(plain(list(&other, directory, 0, 100).await), plain(items));
    }
}

/// A name of a listing: itself, its inode, kind, cookie and attributes.
type Shown = (Vec<u8>, InodeNumber, FileKind, u64, Option<Attributes>);

/// What a listing says, but for access times.
fn plain(items: Vec<DirectoryItem>) -> Vec<Shown> {
    let still = |attributes| Attributes { atime: Timestamp::default(), ..attributes };
    items.into_iter().map(|item| (item.name, item.inode, item.kind, item.cookie, item.attributes.map(still))).collect()
}

/// Where a directory is that moves shows in its listing.
#[tokio::test]
async fn a_directory_that_moves_shows_the_one_above() {
    let cluster = RealCluster::new(65536, 1).await;
    let fs = cluster.mount().await;
    let (one, two) =
        (node(&fs, ROOT, "one", NodeKind::Directory).await, node(&fs, ROOT, "two", NodeKind::Directory).await);
    let moved = node(&fs, one, "moved", NodeKind::Directory).await;
    assert_eq!(list(&fs, moved, 0, 10).await[1].inode, one);
    fs.rename(&root(), (one, b"moved"), (two, b"moved"), RenameMode::Replace).await.unwrap();
    assert_eq!(list(&fs, moved, 0, 10).await[1].inode, two);
}

struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, count: usize) -> usize {
        self.0.below(count as u64) as usize
    }

    fn place(&self, directories: &[InodeNumber]) -> (InodeNumber, String) {
        (directories[self.below(directories.len())], format!("n{}", self.below(6)))
    }
}

/// A change by a client, which may fail.
fn change(fs: Arc<FileSystem>, dice: &Dice, directories: &[InodeNumber]) -> BoxFuture<'static, ()> {
    let (parent, name) = dice.place(directories);
    let (other, other_name) = dice.place(directories);
    let (which, kind) = (dice.below(8), dice.below(3));
    Box::pin(async move {
        let (name, other_name) = (name.as_bytes(), other_name.as_bytes());
        let kind = [NodeKind::Regular, NodeKind::Directory, NodeKind::Symlink(b"x".to_vec())][kind].clone();
        match which {
            0 | 1 => {
                let node = NewNode { parent, name: name.to_vec(), kind, mode: 0o755, umask: 0, layout: None };
                drop(fs.create(&root(), node).await);
            }
            2 => drop(fs.unlink(&root(), parent, name).await),
            3 => drop(fs.remove_directory(&root(), parent, name).await),
            4 => drop(fs.rename(&root(), (parent, name), (other, other_name), RenameMode::Replace).await),
            5 => drop(fs.rename(&root(), (parent, name), (other, other_name), RenameMode::Exchange).await),
            6 => {
                if let Ok(found) = fs.lookup(&root(), parent, name).await {
                    drop(fs.link(&root(), found.inode, other, other_name).await);
                }
            }
            _ => {
                let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
                if let Ok(opened) = fs.create_open(&root(), parent, name, 0o644, 0, flags).await {
                    drop(fs.write(&opened.file, 0, Bytes::from_static(b"data"), WriteOptions::default()).await);
                    drop(fs.close(opened.file, None).await);
                }
            }
        }
    })
}

/// Changes of names by two clients, several at once; after each round both list what a third one
/// does, which asks for everything.
#[tokio::test]
async fn listings_of_two_clients_that_change_names_are_those_of_the_mdt() {
    const ROUNDS: usize = 60;
    let (mut asked, mut listed) = (0, 0);
    for seed in 0..12 {
        let dice = Dice(SeededEntropy::new(seed));
        let cluster = RealCluster::new(65536, 1).await;
        let clients = [cluster.mount().await, cluster.mount().await];
        clients.iter().for_each(|fs| fs.set_close_delay_ms(seed as u32 % 3 * 2));
        let cold = cluster.mount().await;
        cold.set_cached_locks_max(MdtIndex(0), 0).unwrap();
        let mut directories = Vec::new();
        for (number, fs) in clients.iter().chain([&clients[0]]).enumerate() {
            directories.push(node(fs, ROOT, &format!("d{number}"), NodeKind::Directory).await);
        }
        for _ in 0..ROUNDS {
            let mostly = dice.below(2);
            let tasks: Vec<_> = (0..1 + dice.below(4))
                .map(|_| {
                    let client = if dice.below(8) == 0 { 1 - mostly } else { mostly };
                    tokio::spawn(change(clients[client].clone(), &dice, &directories))
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            others_run().await;
            for directory in &directories {
                let truth = plain(list(&cold, *directory, open_flag::NO_ACCESS_TIME, 100).await);
                let client = &clients[if dice.below(4) == 0 { 1 - mostly } else { mostly }];
                let before = requests(client).get("read directory").copied().unwrap_or(0);
                let page = 1 + dice.below(8) as u32;
                let shown = plain(list(client, *directory, open_flag::NO_ACCESS_TIME, page).await);
                assert_eq!(shown, truth, "seed {seed}");
                let after = requests(client).get("read directory").copied().unwrap_or(0);
                (asked, listed) = (asked + usize::from(after > before), listed + 1);
            }
        }
    }
    assert!(asked * 3 < listed * 2, "{asked} of {listed} listings were asked for");
}
