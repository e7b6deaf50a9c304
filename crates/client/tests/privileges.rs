//! Writes clear set-id bits and capabilities, whichever client set them and whenever. Servers are
//! the shipped ones.

use crate::support;

use std::sync::Arc;

use bytes::Bytes;
use client::{FileSystem, OpenFile, WriteOptions};
use rpc::message::mdt::{OpenFlags, XattrMode, open_flag};
use support::{ROOT, real::RealCluster};
use types::{Credentials, FsError, InodeNumber, MdtIndex, SetAttributes};

const FLAGS: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);
const CAPABILITIES: &[u8] = b"security.capability";
/// Version 2, of cap_net_raw.
const VALUE: &[u8] = &[1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const BY_USER: WriteOptions = WriteOptions { append: false, sync: false, keep_set_id: false };

fn root() -> Credentials {
    Credentials::root()
}

async fn create(fs: &Arc<FileSystem>) -> Arc<OpenFile> {
    fs.create_open(&root(), ROOT, b"file", 0o777, 0, FLAGS).await.unwrap().file
}

async fn write(fs: &Arc<FileSystem>, file: &Arc<OpenFile>, options: WriteOptions) {
    fs.write(file, 0, Bytes::from_static(b"data"), options).await.unwrap();
}

async fn set_mode(fs: &FileSystem, inode: InodeNumber, mode: u32) {
    let changes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    fs.set_attributes(&root(), inode, changes, None).await.unwrap();
}

async fn mode(fs: &FileSystem, inode: InodeNumber) -> u32 {
    fs.get_attributes(inode, None).await.unwrap().mode & 0o7777
}

/// Requests to the MDT so far.
fn requests(fs: &FileSystem) -> u64 {
    let counted = |name: &str| name.starts_with("mdt_") && !name.contains("ping");
    let connections = fs.connections();
    let opcodes = connections.iter().flat_map(|(_, _, statistics)| &statistics.opcodes);
    opcodes.filter(|opcode| counted(opcode.name)).map(|opcode| opcode.calls).sum()
}

/// `locks_max`: of the client that writes. `writes_too`: the one that sets them has the file open.
async fn set_id_bits_are_cleared(locks_max: Option<usize>, writes_too: bool) {
    let cluster = RealCluster::new(65536, 1).await;
    let (writer, other) = (cluster.mount().await, cluster.mount().await);
    if let Some(locks_max) = locks_max {
        writer.set_cached_locks_max(MdtIndex(0), locks_max).unwrap();
    }
    let file = create(&writer).await;
    let inode = file.inode();
    let others = if writes_too { Some(other.open(&root(), inode, FLAGS).await.unwrap()) } else { None };
    for _ in 0..2 {
        set_mode(&other, inode, 0o6777).await;
        write(&writer, &file, BY_USER).await;
        assert_eq!((mode(&other, inode).await, mode(&writer, inode).await), (0o777, 0o777));
        let before = requests(&writer);
        write(&writer, &file, BY_USER).await;
        assert!(locks_max.is_some() || requests(&writer) == before, "it has the lock again");
    }
    // A look gives the lock back to the writer, and tells nothing of the open file.
    for look in 0..3 {
        set_mode(&other, inode, 0o6777).await;
        match look {
            0 => drop(writer.get_attributes(inode, None).await.unwrap()),
            1 => drop(writer.lookup(&root(), ROOT, b"file").await.unwrap()),
            _ => assert_eq!(writer.get_xattr(&root(), inode, CAPABILITIES).await, Err(FsError::NoData)),
        }
        write(&writer, &file, BY_USER).await;
        assert_eq!(mode(&other, inode).await, 0o777);
    }
    // Such a bit stays until the group may execute the file.
    set_mode(&other, inode, 0o2666).await;
    write(&writer, &file, BY_USER).await;
    assert_eq!(mode(&other, inode).await, 0o2666);
    set_mode(&other, inode, 0o2676).await;
    write(&writer, &file, BY_USER).await;
    assert_eq!(mode(&other, inode).await, 0o676);
    set_mode(&other, inode, 0o6777).await;
    write(&writer, &file, WriteOptions { keep_set_id: true, ..BY_USER }).await;
    assert_eq!(mode(&other, inode).await, 0o6777, "its user may keep them");
    write(&writer, &file, BY_USER).await;
    assert_eq!(mode(&other, inode).await, 0o777);
    for (fs, file) in [(&writer, Some(file)), (&other, others)] {
        if let Some(file) = file {
            fs.close(file, None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn set_id_bits_that_another_client_sets_are_cleared_by_the_next_write() {
    set_id_bits_are_cleared(None, false).await;
}

/// Nobody has the lock on attributes then.
#[tokio::test]
async fn also_if_several_clients_write() {
    set_id_bits_are_cleared(None, true).await;
}

#[tokio::test]
async fn also_without_caches() {
    set_id_bits_are_cleared(Some(0), false).await;
    set_id_bits_are_cleared(Some(0), true).await;
}

/// One that loses a name may have others; one without any is asked for once.
#[tokio::test]
async fn a_file_that_loses_a_name_is_asked_for() {
    let cluster = RealCluster::new(65536, 1).await;
    let (writer, other) = (cluster.mount().await, cluster.mount().await);
    let file = create(&writer).await;
    let inode = file.inode();
    writer.link(&root(), inode, ROOT, b"second").await.unwrap();
    writer.unlink(&root(), ROOT, b"file").await.unwrap();
    set_mode(&other, inode, 0o4755).await;
    write(&writer, &file, BY_USER).await;
    assert_eq!(mode(&other, inode).await, 0o755);
    writer.unlink(&root(), ROOT, b"second").await.unwrap();
    write(&writer, &file, BY_USER).await;
    let before = requests(&writer);
    write(&writer, &file, BY_USER).await;
    assert_eq!(requests(&writer), before);
    writer.close(file, None).await.unwrap();
}

#[tokio::test]
async fn capabilities_that_another_client_sets_are_removed_by_the_next_write_of_any_user() {
    for keep_set_id in [true, false] {
        let cluster = RealCluster::new(65536, 1).await;
        let (writer, other) = (cluster.mount().await, cluster.mount().await);
        let file = create(&writer).await;
        let inode = file.inode();
        for _ in 0..2 {
            other.set_xattr(&root(), inode, CAPABILITIES, VALUE, XattrMode::Any).await.unwrap();
            write(&writer, &file, WriteOptions { keep_set_id, ..BY_USER }).await;
            for fs in [&writer, &other] {
                assert_eq!(fs.get_xattr(&root(), inode, CAPABILITIES).await, Err(FsError::NoData));
            }
        }
        writer.close(file, None).await.unwrap();
    }
}
