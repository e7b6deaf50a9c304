//! Directories over several MDTs whose records are damaged, as fsck knows it: what is done with
//! them ends, and no MDT ends by it.

use mds::tables::{ENTRIES, INODES, inode::Inode};
use rpc::message::{MdtReply, MdtRequest, mdt::Finding};
use types::{FileKind, FsError};

use super::{
    absent_mdts::in_time,
    check::{entry_key, entry_record},
    common::{
        ROOT, root,
        several::{Cluster, call},
    },
    distant_names::Tree,
    moved_inodes::striped,
    split_directories::split_wholly,
};

/// What a check of an MDT finds.
async fn check(cluster: &Cluster, mdt: usize) -> Vec<Finding> {
    let tool = cluster.0[mdt].connect(11, rpc::Role::Tool);
    match in_time("a check", call(&tool, MdtRequest::Check(root(), false))).await {
        Ok(MdtReply::Findings(findings)) => findings,
        other => panic!("{other:?}"),
    }
}

/// What moves a name.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// To a shard on the MDT of the directory, where the inode is.
    Near,
    /// To a shard on the MDT of the inode, which hears of both in one message.
    Far,
    /// With its directory, to the MDT of the inode.
    WithDirectory,
}

/// The name of a file says that it leads to a pipe. In its new directory it says what is true.
#[tokio::test]
async fn a_name_that_says_another_kind_moves_and_is_right_then() {
    for way in [Way::Near, Way::Far, Way::WithDirectory] {
        let case = format!("{way:?}");
        let mut tree = Tree::new(2).await;
        let directory = tree.directory(ROOT, "directory", 0).await;
        let file = tree.file(usize::from(!matches!(way, Way::Near)), "file").await;
        tree.node(directory).link(file, directory, "name").await.unwrap();
        in_time(&case, tree.cluster.at_rest()).await;
        tree.node(directory).call(MdtRequest::Commit).await.unwrap();
        let (key, record) = (entry_key(directory, "name"), entry_record("name", file, FileKind::Fifo));
        tree.cluster.0[0].damage(|batch| batch.put(ENTRIES, key, record)).await;
        tree.cluster.start(&[0]).await;
        let [zero, one] = &tree.cluster.0[..] else { panic!("two") };
        match way {
            Way::Near => in_time(&case, split_wholly(&zero.import, directory, &[0, 0])).await.unwrap(),
            Way::Far => in_time(&case, split_wholly(&zero.import, directory, &[1])).await.unwrap(),
            Way::WithDirectory => {
                let take = MdtRequest::MoveInode(root(), directory);
                assert_eq!(in_time(&case, one.call(take)).await, Ok(MdtReply::Done));
            }
        }
        in_time(&case, tree.cluster.at_rest()).await;
        assert_eq!(tree.links(file).await, Ok(2), "{case}");
        assert_eq!(check(&tree.cluster, usize::from(file.mdt().0)).await, [], "{case}");
        tree.cluster.end().await;
    }
}

/// An entry of a directory leads to the directory.
#[tokio::test]
async fn a_directory_that_is_in_itself_does_not_end_its_mdt() {
    let mut tree = Tree::new(2).await;
    // Its number is not the smallest of those that would be locked.
    let parent = tree.on(0);
    let directory = tree.directory(parent, "directory", 0).await;
    let (key, record) = (entry_key(directory, "self"), entry_record("self", directory, FileKind::Directory));
    tree.cluster.0[0].damage(|batch| batch.put(ENTRIES, key, record)).await;
    tree.cluster.start(&[0]).await;
    let take = MdtRequest::MoveInode(root(), directory);
    let taken = in_time("a move", tree.cluster.0[1].call(take)).await;
    assert!(matches!(taken, Ok(MdtReply::Done) | Err(FsError::Damaged(_))), "{taken:?}");
    assert!(in_time("stat", tree.links(parent)).await.is_ok(), "its MDT is in service");
    tree.cluster.end().await;
}

/// Also before fsck has made it again.
#[tokio::test]
async fn a_directory_of_which_a_shard_is_missing_is_removed() {
    for mdt in [0, 1] {
        let mut tree = Tree::new(2).await;
        let map = striped(&tree, ROOT, "striped", (0, &[0, 1])).await;
        in_time("all is made", tree.cluster.at_rest()).await;
        let missing = map.shards[mdt];
        tree.cluster.0[mdt].damage(|batch| batch.delete(INODES, Inode::key(missing))).await;
        tree.cluster.start(&[mdt]).await;
        let node = &tree.cluster.0[0];
        assert_eq!(in_time("a removal", node.remove(ROOT, "striped", true)).await, Ok(()));
        in_time("all ends", tree.cluster.at_rest()).await;
        tree.cluster.end().await;
    }
}
