//! Data of small files, cached under locks of the MDT: what they cost, and that nobody reads what
//! another client has replaced. Servers are the shipped ones.

use crate::support;

use std::sync::Arc;

use bytes::Bytes;
use client::{AllocateMode, FileSystem, OpenFile, control::execute};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use rpc::message::{
    control::{ControlReply, ControlRequest},
    mdt::{OpenFlags, open_flag},
};
use rt::{Entropy, memory::SeededEntropy};
use support::{READ_WRITE, ROOT, create, read, real::RealCluster, write};
use types::{Credentials, InodeNumber, MdtIndex, limits::SMALL_FILE_BYTES_MAX};

/// The part of a file that is on the MDT.
const ON_MDT: u64 = 128 << 10;
const MDT: MdtIndex = MdtIndex(0);

fn root() -> Credentials {
    Credentials::root()
}

/// New files begin on the MDT.
async fn cluster() -> RealCluster {
    let cluster = RealCluster::new(65536, 1).await.without_grace();
    let components = vec![
        ComponentSpec { end: ON_MDT, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ];
    let request = ControlRequest::SetDefaultLayout(Some(LayoutSpec::Composite(components)));
    let reply = execute(&*cluster.mount().await, &root(), (ROOT, None), request).await;
    assert!(matches!(reply, ControlReply::Done), "{reply:?}");
    cluster
}

/// Requests to the MDT so far, but for those that give locks back.
fn requests(fs: &FileSystem) -> u64 {
    let (_, _, statistics) = fs.connections().into_iter().next().expect("an MDT");
    let opcodes = statistics.opcodes.iter().filter(|opcode| opcode.name != "mdt_cancel_locks");
    opcodes.map(|opcode| opcode.calls).sum()
}

async fn open(fs: &Arc<FileSystem>, inode: InodeNumber) -> Arc<OpenFile> {
    fs.open(&root(), inode, OpenFlags(open_flag::READ)).await.unwrap()
}

/// Two clients, and a file with these contents that the second has open and has read twice.
async fn warm(data: &[u8]) -> (RealCluster, Arc<FileSystem>, Arc<FileSystem>, Arc<OpenFile>) {
    let cluster = cluster().await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let file = create(&one, "file", READ_WRITE).await;
    let inode = file.inode();
    write(&one, &file, 0, data).await;
    one.close(file, None).await.unwrap();
    two.lookup(&root(), ROOT, b"file").await.unwrap();
    for _ in 0..2 {
        let file = open(&two, inode).await;
        read(&two, &file, 0, data.len()).await;
        two.close(file, None).await.unwrap();
    }
    let file = open(&two, inode).await;
    let before = requests(&two);
    assert_eq!(read(&two, &file, 0, data.len() + 1).await, data);
    assert_eq!(requests(&two), before, "it is known");
    (cluster, one, two, file)
}

#[tokio::test]
async fn a_small_file_costs_one_request_once() {
    let (_cluster, one, two, file) = warm(&[7; 4096]).await;
    let inode = file.inode();
    two.close(file, None).await.unwrap();
    // Both ends of the limit, and a file without bytes.
    for (name, bytes, again) in
        [("none", 0, 0), ("most", SMALL_FILE_BYTES_MAX, 0), ("more", SMALL_FILE_BYTES_MAX + 1, 1)]
    {
        let data = vec![5; bytes as usize];
        let file = create(&one, name, READ_WRITE).await;
        if bytes > 0 {
            write(&one, &file, 0, &data).await;
        }
        one.close(file, None).await.unwrap();
        let inode = two.lookup(&root(), ROOT, name.as_bytes()).await.unwrap().inode;
        for (turn, asked) in [(0, 1 + again), (1, again)] {
            let before = requests(&two);
            let file = open(&two, inode).await;
            assert_eq!(read(&two, &file, 0, 1 << 20).await, data, "{name}");
            two.close(file, None).await.unwrap();
            assert_eq!(requests(&two) - before, asked, "{name}, turn {turn}");
        }
    }
    let before = requests(&two);
    let file = open(&two, inode).await;
    assert_eq!(read(&two, &file, 1000, 10).await, [7; 10]);
    assert_eq!(read(&two, &file, 4096, 10).await, [0_u8; 0]);
    two.close(file, None).await.unwrap();
    assert_eq!(requests(&two), before);
}

#[tokio::test]
async fn every_change_by_another_client_is_seen_at_once() {
    let (_cluster, one, two, reader) = warm(&[7; 5000]).await;
    let inode = reader.inode();
    let writer = one.open(&root(), inode, OpenFlags(READ_WRITE)).await.unwrap();
    let mut expected = vec![7; 5000];
    write(&one, &writer, 4000, &[8; 2000]).await;
    expected[4000..].fill(8);
    expected.resize(6000, 8);
    assert_eq!(read(&two, &reader, 0, 10_000).await, expected, "written while it is open");
    one.allocate(&writer, AllocateMode::Punch, 100, 200).await.unwrap();
    expected[100..300].fill(0);
    assert_eq!(read(&two, &reader, 0, 10_000).await, expected, "punched");
    one.close(writer, None).await.unwrap();
    assert_eq!(read(&two, &reader, 0, 10_000).await, expected, "closed");
    let before = requests(&two);
    assert_eq!(read(&two, &reader, 0, 10_000).await, expected);
    assert_eq!(requests(&two), before, "nobody writes any more: it is known again");

    one.truncate(&root(), inode, None, 150).await.unwrap();
    expected.truncate(150);
    assert_eq!(read(&two, &reader, 0, 10_000).await, expected, "truncated by its number");
    assert_eq!(read(&two, &reader, 0, 10_000).await, expected);
    let writer = one.open(&root(), inode, OpenFlags(READ_WRITE | open_flag::TRUNCATE)).await.unwrap();
    assert_eq!(read(&two, &reader, 0, 10_000).await, [0_u8; 0], "O_TRUNC");
    write(&one, &writer, ON_MDT - 5, &[9; 10]).await;
    one.close(writer, None).await.unwrap();
    let end = read(&two, &reader, ON_MDT - 6, 100).await;
    assert_eq!(end, [0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9], "grown to an OST");
}

#[tokio::test]
async fn what_is_removed_or_replaced_is_read_by_those_who_have_it_open() {
    let (_cluster, one, two, reader) = warm(b"before").await;
    let file = create(&one, "new", READ_WRITE).await;
    write(&one, &file, 0, b"after").await;
    one.close(file, None).await.unwrap();
    one.rename(&root(), (ROOT, b"new"), (ROOT, b"file"), rpc::message::mdt::RenameMode::Replace).await.unwrap();
    assert_eq!(read(&two, &reader, 0, 100).await, b"before");
    let found = two.lookup(&root(), ROOT, b"file").await.unwrap();
    let other = open(&two, found.inode).await;
    assert_eq!(read(&two, &other, 0, 100).await, b"after");
    two.close(reader, None).await.unwrap();
    two.close(other, None).await.unwrap();
}

#[tokio::test]
async fn own_changes_are_seen_at_once() {
    let (_cluster, one, two, reader) = warm(b"what was written").await;
    let writer = two.open(&root(), reader.inode(), OpenFlags(READ_WRITE)).await.unwrap();
    assert_eq!(read(&two, &reader, 0, 100).await, b"what was written");
    write(&two, &writer, 5, b"IS ").await;
    assert_eq!(read(&two, &reader, 0, 100).await, b"what IS  written");
    two.close(writer, None).await.unwrap();
    assert_eq!(read(&two, &reader, 0, 100).await, b"what IS  written");
    let other = open(&one, reader.inode()).await;
    assert_eq!(read(&one, &other, 0, 100).await, b"what IS  written");
    one.close(other, None).await.unwrap();
}

#[tokio::test]
async fn memory_is_limited() {
    let (_cluster, _one, two, reader) = warm(&[7; 5000]).await;
    let (bytes, most) = two.cached_small_bytes(MDT).unwrap();
    assert!((5000..10_000).contains(&bytes) && most == 64 << 20, "{bytes} of {most}");
    two.set_cached_small_bytes_max(MDT, 0).unwrap();
    assert_eq!(two.cached_small_bytes(MDT).unwrap(), (0, 0));
    let before = requests(&two);
    for _ in 0..3 {
        assert_eq!(read(&two, &reader, 0, 10_000).await, [7; 5000]);
    }
    assert_eq!(requests(&two) - before, 3, "switched off");
    two.set_cached_small_bytes_max(MDT, 1 << 20).unwrap();
    for _ in 0..3 {
        assert_eq!(read(&two, &reader, 0, 10_000).await, [7; 5000]);
    }
    assert_eq!(requests(&two) - before, 4, "the lock was held all the time");
    two.set_cached_locks_max(MDT, 0).unwrap();
    assert_eq!(two.cached_small_bytes(MDT).unwrap().0, 0, "nothing is kept without a lock");
    assert_eq!(read(&two, &reader, 0, 10_000).await, [7; 5000]);
}

/// Writing data changes no version of the inode, by which other locks are claimed.
#[tokio::test]
async fn nothing_is_known_after_a_restart_of_the_mdt() {
    let (mut cluster, one, two, reader) = warm(&[7; 5000]).await;
    let writer = one.open(&root(), reader.inode(), OpenFlags(READ_WRITE)).await.unwrap();
    cluster.crash_mdt().await;
    one.get_attributes(ROOT, None).await.unwrap();
    two.get_attributes(ROOT, None).await.unwrap();
    assert_eq!(two.cached_small_bytes(MDT).unwrap().0, 0);
    write(&one, &writer, 0, &[8; 10]).await;
    assert_eq!(read(&two, &reader, 0, 12).await, [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7, 7]);
    one.close(writer, None).await.unwrap();
}

/// Two clients write and read one small file in any order: each read shows what was written last.
#[tokio::test]
async fn two_clients_always_read_what_was_written_last() {
    const STEPS: usize = 2000;
    let cluster = cluster().await;
    let clients = [cluster.mount().await, cluster.mount().await];
    let inode = create(&clients[0], "file", READ_WRITE).await.inode();
    let dice = SeededEntropy::new(7);
    let mut expected: Vec<u8> = Vec::new();
    let mut open_files: Vec<Vec<Arc<OpenFile>>> = vec![Vec::new(), Vec::new()];
    let (mut served, mut reads) = (0, 0);
    for step in 0..STEPS {
        let below = |limit: u64| dice.next_u64() % limit;
        let who = below(2) as usize;
        let fs = &clients[who];
        match below(8) {
            0 if open_files[who].len() < 3 => {
                let flags = if below(3) == 0 { READ_WRITE } else { open_flag::READ };
                open_files[who].push(fs.open(&root(), inode, OpenFlags(flags)).await.unwrap());
            }
            1 if !open_files[who].is_empty() => {
                let at = below(open_files[who].len() as u64) as usize;
                fs.close(open_files[who].swap_remove(at), None).await.unwrap();
            }
            2 => {
                let writer = open_files[who].iter().find(|file| file.flags().has(open_flag::WRITE)).cloned();
                let Some(writer) = writer else { continue };
                let (start, bytes) = (below(20_000) as usize, 1 + below(9000) as usize);
                write(fs, &writer, start as u64, &vec![step as u8; bytes]).await;
                expected.resize(expected.len().max(start + bytes), 0);
                expected[start..start + bytes].fill(step as u8);
            }
            3 if below(4) == 0 => {
                let size = below(30_000);
                fs.truncate(&root(), inode, None, size).await.unwrap();
                expected.resize(size as usize, 0);
            }
            _ => {
                let Some(reader) = open_files[who].first().cloned() else { continue };
                let before = requests(fs);
                let found = read(fs, &reader, 0, 1 << 20).await;
                assert!(found == expected, "step {step}: client {who} reads something else");
                reads += 1;
                served += u64::from(requests(fs) == before);
            }
        }
    }
    assert!(reads > 500 && served > reads / 4, "{served} of {reads} reads without a request");
}

/// Requests to the MDT for each of these, from a client that knows the directory.
#[tokio::test]
async fn the_request_budget_is_kept() {
    const FILES: usize = 1000;
    let cluster = cluster().await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    let new = |name: &str| client::NewFile { parent: ROOT, name: name.as_bytes().to_vec(), mode: 0o644, umask: 0 };
    let data = Bytes::from(vec![7; 4096]);
    one.get_attributes(ROOT, None).await.unwrap();

    let before = requests(&one);
    one.create_with_data(&root(), new("empty"), Bytes::new()).await.unwrap();
    assert_eq!(requests(&one) - before, 1, "create and close");
    let before = requests(&one);
    one.create_with_data(&root(), new("small"), data.clone()).await.unwrap();
    assert_eq!(requests(&one) - before, 1, "create, write and close");
    let before = requests(&two);
    let (_, found) = two.open_and_read(&root(), ROOT, &[b"small"], 8192).await.unwrap();
    assert_eq!((found.into_bytes(), requests(&two) - before), (data.clone(), 1), "open, read and close, cold");

    let inode = one.lookup(&root(), ROOT, b"small").await.unwrap().inode;
    for (asked, what) in [(1, "open, read and close, of a name that is known"), (0, "and again")] {
        let before = requests(&one);
        let file = open(&one, inode).await;
        assert_eq!(read(&one, &file, 0, 4096).await, data);
        one.close(file, None).await.unwrap();
        assert_eq!(requests(&one) - before, asked, "{what}");
    }

    let before = requests(&one);
    one.rename(&root(), (ROOT, b"small"), (ROOT, b"moved"), rpc::message::mdt::RenameMode::NoReplace).await.unwrap();
    assert_eq!(requests(&one) - before, 1, "rename");
    let before = requests(&one);
    one.rename(&root(), (ROOT, b"empty"), (ROOT, b"moved"), rpc::message::mdt::RenameMode::Replace).await.unwrap();
    assert_eq!(requests(&one) - before, 1, "rename onto an existing name, of a file without objects on OSTs");
    let before = requests(&one);
    one.unlink(&root(), ROOT, b"moved").await.unwrap();
    assert_eq!(requests(&one) - before, 1, "unlink");

    for number in 0..FILES {
        one.create_with_data(&root(), new(&format!("file{number}")), Bytes::new()).await.unwrap();
    }
    let cold = cluster.mount().await;
    let before = requests(&cold);
    let directory = open(&cold, ROOT).await;
    let (mut items, mut cookie) = (Vec::new(), 0);
    loop {
        let page = cold.read_directory(&directory, cookie, FILES as u32, client::EntryAttributes::OfAll).await.unwrap();
        cookie = page.items.last().map_or(cookie, |item| item.cookie);
        items.extend(page.items);
        if page.end {
            break;
        }
    }
    cold.close(directory, None).await.unwrap();
    for item in items.iter().filter(|item| !matches!(&*item.name, b"." | b"..")) {
        cold.lookup(&root(), ROOT, &item.name).await.unwrap();
        cold.get_attributes(item.inode, None).await.unwrap();
    }
    let asked = requests(&cold) - before;
    assert!(items.len() >= FILES && asked <= FILES as u64 / 500, "{asked} requests for {} names", items.len());
    let before = requests(&cold);
    for item in &items {
        cold.get_attributes(item.inode, None).await.unwrap();
    }
    assert_eq!(requests(&cold) - before, 0, "stat again");
}
