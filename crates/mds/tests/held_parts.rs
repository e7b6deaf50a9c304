//! A client that is dead, or slow to give its locks back, holds up the operation that waits for
//! them, and not what other MDTs have prepared for that.

use std::time::Duration;

use rpc::message::{MdtReply, mdt::RenameMode};
use tokio::time::timeout;
use types::NodeKind;

use super::{
    absent_mdts::{Keeps, in_time},
    common::{
        ROOT,
        several::{Cluster, call, rename},
    },
};

/// Much longer than an operation may hold what others wait for, much shorter than a client may keep
/// a lock that it was asked for.
const SOON: Duration = Duration::from_secs(8);

/// The directory of the old name is locked at MDT 1 when MDT 0, which decides, comes to a lock of
/// the client.
#[tokio::test]
async fn the_directory_of_an_old_name_is_not_locked_for_as_long_as_a_client_keeps_a_lock() {
    let cluster = Cluster::new(2).await;
    let [zero, one] = &cluster.0[..] else { panic!("two") };
    let remote = zero.make_directory(ROOT, "remote", 1).await.unwrap();
    cluster.at_rest().await;
    let file = one.create(remote, "old", NodeKind::Regular).await.unwrap();
    let (keeps, holder) = Keeps::attributes_of(zero, ROOT).await;
    let import = zero.import.clone();
    let renaming =
        tokio::spawn(async move { call(&import, rename((remote, "old"), (ROOT, "new"), RenameMode::Replace)).await });
    keeps.is_asked().await;
    for round in 0..3 {
        let found = timeout(SOON, one.lookup(remote, "old")).await;
        assert_eq!(found.unwrap_or_else(|_| panic!("round {round}: the directory is locked")), Ok(file));
    }
    assert!(!renaming.is_finished(), "the client has the lock");
    keeps.give_back(&holder).await;
    assert_eq!(in_time("the rename ends", renaming).await.unwrap(), Ok(MdtReply::Done));
    in_time("all ends", cluster.at_rest()).await;
    assert_eq!(zero.lookup(ROOT, "new").await, Ok(file));
    cluster.end().await;
}

/// MDT 1 comes to a lock of the client while it prepares its part, and MDT 0 has the tree for the
/// operation.
#[tokio::test]
async fn the_tree_is_not_held_for_as_long_as_a_client_keeps_a_lock() {
    let cluster = Cluster::new(2).await;
    let [zero, one] = &cluster.0[..] else { panic!("two") };
    let remote = zero.make_directory(ROOT, "remote", 1).await.unwrap();
    let [from, to] = ["from", "to"].map(|name| zero.create(ROOT, name, NodeKind::Directory));
    let (from, to) = (from.await.unwrap(), to.await.unwrap());
    let (inner, other) = (zero.create(from, "inner", NodeKind::Directory), zero.create(ROOT, "x", NodeKind::Directory));
    let (inner, other) = (inner.await.unwrap(), other.await.unwrap());
    cluster.at_rest().await;
    let there = one.create(remote, "y", NodeKind::Directory).await.unwrap();
    let (keeps, holder) = Keeps::attributes_of(one, remote).await;
    let import = zero.import.clone();
    let exchanging =
        tokio::spawn(async move { call(&import, rename((remote, "y"), (ROOT, "x"), RenameMode::Exchange)).await });
    keeps.is_asked().await;
    let moved = timeout(SOON, zero.call(rename((from, "inner"), (to, "inner"), RenameMode::Replace))).await;
    assert_eq!(moved.expect("the tree is held"), Ok(MdtReply::Done));
    assert!(!exchanging.is_finished(), "the client has the lock");
    keeps.give_back(&holder).await;
    assert_eq!(in_time("the exchange ends", exchanging).await.unwrap(), Ok(MdtReply::Done));
    in_time("all ends", cluster.at_rest()).await;
    assert_eq!(zero.lookup(to, "inner").await, Ok(inner));
    assert_eq!((zero.lookup(ROOT, "x").await, one.lookup(remote, "y").await), (Ok(there), Ok(other)));
    cluster.end().await;
}
