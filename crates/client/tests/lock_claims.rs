//! What a client has cached when its MDT restarts: served again without a request, as far as
//! nothing has changed. Servers are the shipped ones.

use crate::support;

use std::sync::Arc;

use client::{FileSystem, NewNode};
use rpc::message::mdt::open_flag;
use support::{ROOT, create, others_run, real::RealCluster, write};
use types::{Attributes, Credentials, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, SetAttributes};

const STRIPE: u64 = 65536;
const FILES: usize = 600;
const READ_WRITE: u32 = open_flag::READ | open_flag::WRITE;

fn root() -> Credentials {
    Credentials::root()
}

/// How often the MDT was asked for something by this name.
fn asked(fs: &FileSystem, name: &str) -> u64 {
    let (_, _, statistics) = fs.connections().into_iter().next().expect("an MDT");
    statistics.opcodes.iter().filter(|opcode| opcode.name == name).map(|opcode| opcode.calls).sum()
}

async fn look_up(fs: &FileSystem, name: &str) -> FsResult<Attributes> {
    fs.lookup(&root(), ROOT, name.as_bytes()).await
}

async fn make(fs: &FileSystem, name: String) -> InodeNumber {
    let node =
        NewNode { parent: ROOT, name: name.into(), kind: NodeKind::Regular, mode: 0o644, umask: 0, layout: None };
    fs.create(&root(), node).await.unwrap().inode
}

async fn chmod(fs: &FileSystem, inode: InodeNumber, mode: u32) {
    let changes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    fs.set_attributes(&root(), inode, changes, None).await.unwrap();
}

/// A client that knows many files, and another one.
async fn warm() -> (RealCluster, Arc<FileSystem>, Arc<FileSystem>) {
    let cluster = RealCluster::new(STRIPE, 1).await;
    let (one, two) = (cluster.mount().await, cluster.mount().await);
    for file in 0..FILES {
        make(&one, format!("file{file}")).await;
    }
    know(&two).await;
    (cluster, one, two)
}

/// Looks at all files; returns how many of these looks asked the MDT.
async fn know(fs: &FileSystem) -> u64 {
    let before = asked(fs, "mdt_lookup");
    fs.get_attributes(ROOT, None).await.unwrap();
    for file in 0..FILES {
        look_up(fs, &format!("file{file}")).await.unwrap();
    }
    assert_eq!(look_up(fs, "missing").await, Err(FsError::NotFound));
    asked(fs, "mdt_lookup") - before
}

#[tokio::test]
async fn a_warm_cache_survives_a_restart() {
    let (mut cluster, one, two) = warm().await;
    assert_eq!(know(&two).await, 0);
    let held = two.cached_locks(MdtIndex(0)).unwrap().0;
    cluster.crash_mdt().await;
    // It waits for the connection.
    two.statfs().await.unwrap();
    assert!(asked(&two, "mdt_claim_locks") > 2, "in several batches");
    assert_eq!((know(&two).await, two.cached_locks(MdtIndex(0)).unwrap().0), (0, held));
    // What is changed from now on is seen at once, and the rest stays.
    let inode = look_up(&two, "file7").await.unwrap().inode;
    chmod(&one, inode, 0o600).await;
    assert_eq!(look_up(&two, "file7").await.unwrap().mode & 0o777, 0o600);
    one.unlink(&root(), ROOT, b"file8").await.unwrap();
    assert_eq!(look_up(&two, "file8").await, Err(FsError::NotFound));
    make(&one, "missing".to_owned()).await;
    assert!(look_up(&two, "missing").await.is_ok());
    // Permission to search depends on the directory's attributes, which the changes withdrew.
    two.get_attributes(ROOT, None).await.unwrap();
    let before = asked(&two, "mdt_lookup");
    look_up(&two, "file9").await.unwrap();
    assert_eq!(asked(&two, "mdt_lookup"), before);
    // Once more: locks that were claimed can be claimed.
    cluster.crash_mdt().await;
    two.statfs().await.unwrap();
    look_up(&two, "file9").await.unwrap();
    assert_eq!(asked(&two, "mdt_lookup"), before);
}

/// Its own changes tell the client the versions that it claims.
#[tokio::test]
async fn what_the_client_changed_itself_is_known_after_a_restart() {
    let (mut cluster, one, _two) = warm().await;
    let inode = look_up(&one, "file3").await.unwrap().inode;
    chmod(&one, inode, 0o611).await;
    let file = create(&one, "written", READ_WRITE).await;
    write(&one, &file, 0, b"hello").await;
    one.close(file, None).await.unwrap();
    let written = look_up(&one, "written").await.unwrap();
    cluster.crash_mdt().await;
    one.statfs().await.unwrap();
    let before = asked(&one, "mdt_lookup");
    assert_eq!(look_up(&one, "file3").await.unwrap().mode & 0o777, 0o611);
    assert_eq!(look_up(&one, "written").await, Ok(written));
    assert_eq!(asked(&one, "mdt_lookup"), before);
}

/// The other client's change comes before the recovery of this one, which serves nothing stale.
#[tokio::test]
async fn a_change_that_waits_for_the_recovery_is_seen() {
    let (mut cluster, one, two) = warm().await;
    let inode = look_up(&two, "file5").await.unwrap().inode;
    let change = {
        let one = one.clone();
        tokio::spawn(async move {
            others_run().await;
            chmod(&one, inode, 0o640).await;
        })
    };
    cluster.crash_mdt().await;
    change.await.unwrap();
    assert_eq!(look_up(&two, "file5").await.unwrap().mode & 0o777, 0o640);
    assert_eq!(two.get_attributes(inode, None).await.unwrap().mode & 0o777, 0o640);
}

/// The MDT may have lost what the client knows, and gives the versions again.
#[tokio::test]
async fn nothing_is_claimed_after_a_power_loss() {
    let (mut cluster, one, two) = warm().await;
    one.sync_all().await.unwrap();
    let inode = look_up(&one, "file4").await.unwrap().inode;
    chmod(&one, inode, 0o600).await;
    assert_eq!(look_up(&two, "file4").await.unwrap().mode & 0o777, 0o600);
    cluster.lose_power_of_mdt().await;
    two.statfs().await.unwrap();
    assert_eq!(asked(&two, "mdt_claim_locks"), 0);
    assert_eq!(look_up(&two, "file4").await.unwrap().mode & 0o777, 0o644, "it was lost");
    assert_eq!(look_up(&one, "file4").await.unwrap().mode & 0o777, 0o644);
    assert!(know(&two).await > 0);
}
