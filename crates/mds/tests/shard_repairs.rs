//! Repairs of striped directories of which map and shards contradict each other.

use std::collections::BTreeSet;

use mds::tables::{
    ENTRIES, INODES,
    inode::{Inode, Striping},
};
use types::{DirectoryMap, FsError, InodeNumber, NodeKind};

use super::{
    absent_mdts::in_time,
    check::{entry_key, inode_of, put_inode},
    moved_inodes::striped,
    name_repairs::{changed, check, is_clean, records, settle, settles, with_others},
};

/// The record of a shard is lost, on the MDT of the directory or on another one. Its names are
/// left.
#[tokio::test]
async fn a_lost_shard_is_made_again_with_its_names() {
    for mdt in [0, 1] {
        let mut tree = with_others().await;
        let map = striped(&tree, tree.on(0), "striped", (0, &[0, 1])).await;
        let mut files = Vec::new();
        for number in 0..8 {
            let name = format!("f{number}");
            let shard = map.shard_of(name.as_bytes()).unwrap();
            files.push((shard, tree.node(shard).create(shard, &name, NodeKind::Regular).await.unwrap(), name));
        }
        let lost = map.shards[mdt];
        let sub_name = name_in(&map, lost, "sub");
        let sub = tree.directory(lost, &sub_name, 1 - mdt as u16).await;
        in_time("all is made", tree.cluster.at_rest()).await;
        let before = records(&mut tree.cluster).await;
        tree.cluster.0[mdt].damage(|batch| batch.delete(INODES, Inode::key(lost))).await;
        tree.cluster.start(&[mdt]).await;
        in_time("rest", tree.cluster.all_is_decided()).await;
        if mdt == 1 {
            settles(&tree, &["does not exist"]).await;
        }
        let found = check(&tree.cluster, mdt, true).await;
        assert!(!found.is_empty() && found.iter().all(|finding| finding.repaired), "{found:?}");
        is_clean(&tree.cluster).await;
        for (shard, file, name) in &files {
            assert_eq!(tree.lookup((*shard, name)).await, Ok(*file), "{name}");
        }
        assert_eq!(tree.lookup((lost, &sub_name)).await, Ok(sub));
        let after = records(&mut tree.cluster).await;
        assert_eq!(changed(&before, &after), [lost].into(), "its times, and nothing else");
        let new = name_in(&map, lost, "new");
        tree.node(lost).create(lost, &new, NodeKind::Regular).await.unwrap();
        tree.cluster.end().await;
    }
}

/// The check of the MDT of a lost shard comes before the directory, on another MDT, has had the
/// shard made again: it could not, or is out of use.
#[tokio::test]
async fn names_of_a_lost_shard_stay_until_it_is_made_again() {
    let mut tree = with_others().await;
    let map = striped(&tree, tree.on(0), "striped", (0, &[0, 1])).await;
    let lost = map.shards[1];
    let names = ["a", "b", "c"].map(|prefix| name_in(&map, lost, prefix));
    for name in &names {
        tree.node(lost).create(lost, name, NodeKind::Regular).await.unwrap();
    }
    in_time("all is made", tree.cluster.at_rest()).await;
    let before = records(&mut tree.cluster).await;
    tree.cluster.0[1].damage(|batch| batch.delete(INODES, Inode::key(lost))).await;
    tree.cluster.start(&[1]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    let found = check(&tree.cluster, 1, true).await;
    assert!(found.len() == 1 && found[0].inode == lost && !found[0].repaired, "{found:?}");
    assert!(found[0].problem.contains("a shard whose record is lost; they are kept"), "{found:?}");
    settles(&tree, &["does not exist"]).await;
    check(&tree.cluster, 1, true).await;
    is_clean(&tree.cluster).await;
    for name in &names {
        assert!(tree.lookup((lost, name)).await.is_ok(), "{name}");
    }
    let after = records(&mut tree.cluster).await;
    assert_eq!(changed(&before, &after), [lost].into());
    tree.cluster.end().await;
}

/// A name that is in this shard.
fn name_in(map: &DirectoryMap, shard: InodeNumber, prefix: &str) -> String {
    let mut names = (0..).map(|number| format!("{prefix}{number}"));
    names.find(|name| map.shard_of(name.as_bytes()) == Some(shard)).expect("there is one")
}

/// The directory of a shard is lost, or its map does not have the shard: an empty one ends, one
/// with names is reported.
#[tokio::test]
async fn a_shard_that_no_directory_knows_ends_if_it_is_empty() {
    for (mdt, has_names) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut tree = with_others().await;
        let before = records(&mut tree.cluster).await;
        let map = striped(&tree, tree.on(0), "striped", (0, &[mdt as u16])).await;
        in_time("all is made", tree.cluster.at_rest()).await;
        let shard = map.shards[0];
        if has_names {
            tree.node(shard).create(shard, "name", NodeKind::Regular).await.unwrap();
        }
        tree.cluster.0[0]
            .damage(|batch| {
                batch.delete(INODES, Inode::key(map.master));
                batch.delete(ENTRIES, entry_key(tree.directories[0], "striped"));
            })
            .await;
        if mdt == 1 {
            tree.cluster.0[1].tolerates_damage();
            tree.cluster.restart(&[1]).await;
        }
        tree.cluster.start(&[0]).await;
        in_time("rest", tree.cluster.all_is_decided()).await;
        if mdt == 1 {
            let [(false, name)] = &tree.cluster.contradictions().await[..] else { panic!("one shard") };
            match settle(&tree.cluster, name).await {
                Err(FsError::NotEmpty) if has_names => {}
                Ok(found) if !has_names => assert_eq!(found.len(), 1),
                other => panic!("{other:?}"),
            }
            in_time("the decision", tree.cluster.all_is_decided()).await;
        }
        let found = check(&tree.cluster, 0, true).await;
        let is_reported = found.iter().any(|finding| finding.inode == shard && finding.repaired != has_names);
        assert_eq!(is_reported, mdt == 0, "{found:?}");
        if !has_names {
            is_clean(&tree.cluster).await;
            let after = records(&mut tree.cluster).await;
            assert_eq!(changed(&before, &after), [tree.on(0)].into());
        }
        tree.cluster.end().await;
    }
}

/// Two maps have one shard: it stays with the directory that it names.
#[tokio::test]
async fn a_shard_of_two_maps_stays_as_it_is() {
    let mut tree = with_others().await;
    let first = striped(&tree, tree.on(0), "first", (0, &[0, 1])).await;
    let second = striped(&tree, tree.on(0), "second", (0, &[0, 1])).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    tree.cluster.0[0]
        .damage_seeing(|store, batch| {
            let inode = inode_of(store, second.master);
            let shards = vec![second.shards[0], first.shards[1]];
            put_inode(batch, &Inode { striping: Striping::Over(second.hash, shards), ..inode });
        })
        .await;
    tree.cluster.0[1].tolerates_damage();
    tree.cluster.restart(&[1]).await;
    tree.cluster.start(&[0]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    let before = records(&mut tree.cluster).await;
    let found = tree.cluster.contradictions().await;
    let wrong = found.iter().find(|(is_name, name)| *is_name && name.parent == second.master).expect("it is found");
    assert_eq!(settle(&tree.cluster, &wrong.1).await, Err(FsError::Exists));
    let after = records(&mut tree.cluster).await;
    assert_eq!(changed(&before, &after), BTreeSet::new());
    tree.cluster.end().await;
}
