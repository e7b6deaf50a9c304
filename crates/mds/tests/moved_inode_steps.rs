//! Moves of inodes between MDTs (decision 0066), with a fault at each step of these.

use rpc::message::{MdtReply, MdtRequest};
use types::{FsError, InodeNumber, MdtIndex, NodeKind};

use super::{
    absent_mdts::{FAULTS, Fault, in_time, interrupt},
    common::{root, several::call},
    distant_names::Tree,
    moved_inodes::striped,
    striped_directories::map_of,
};

/// The MDTs of the inode, of its name, and where it moves.
struct Case {
    old: usize,
    home: usize,
    new: usize,
    directory: bool,
    /// MDTs of its shards.
    shards: &'static [u16],
}

const NAME: &str = "name";
const CHILDREN: [&str; 2] = ["child", "other"];

impl Case {
    async fn build(&self) -> (Tree, InodeNumber) {
        let further = self.shards.iter().copied().max().unwrap_or(0);
        let mdts = 1 + (self.old.max(self.home).max(self.new) as u16).max(further);
        let tree = Tree::new(mdts).await;
        let home = tree.on(self.home);
        let inode = match self.shards {
            [] => tree.directory(home, NAME, self.old as u16).await,
            shards => striped(&tree, home, NAME, (self.old as u16, shards)).await.master,
        };
        if self.directory {
            for child in CHILDREN {
                let at = self.part(&tree, inode, child).await;
                tree.node(at).create(at, child, NodeKind::Symlink(b"target".to_vec())).await.unwrap();
            }
            tree.cluster.at_rest().await;
            return (tree, inode);
        }
        tree.node(home).remove(home, NAME, true).await.unwrap();
        let file = tree.file(self.old, "made").await;
        let request = super::common::several::rename(
            (tree.on(self.old), "made"),
            (home, NAME),
            rpc::message::mdt::RenameMode::Replace,
        );
        tree.node(home).call(request).await.unwrap();
        tree.cluster.at_rest().await;
        (tree, file)
    }

    /// The directory or shard that has a name.
    async fn part(&self, tree: &Tree, directory: InodeNumber, name: &str) -> InodeNumber {
        match self.shards {
            [] => directory,
            _ => map_of(&tree.cluster, directory).await.shard_of(name.as_bytes()).unwrap(),
        }
    }

    /// The fault happens after so many steps of the MDTs; false if the move was over by then.
    async fn after_steps(&self, fault: Fault, steps: usize) -> bool {
        let Case { old, home, new, directory, shards } = *self;
        let case =
            format!("from {old} to {new}, named on {home}, {directory}, {shards:?}: {fault:?} after {steps} steps");
        let (mut tree, inode) = self.build().await;
        for node in &tree.cluster.0 {
            node.call(MdtRequest::Commit).await.unwrap();
        }
        let import = tree.cluster.0[new].import.clone();
        let asked = async move { call(&import, MdtRequest::MoveInode(root(), inode)).await };
        let (answered, is_over) = interrupt((&case, &mut tree.cluster), (fault, new), steps, asked).await;
        assert_eq!(answered, Ok(MdtReply::Done), "{case}");
        in_time(&case, tree.cluster.at_rest()).await;
        let (parent, may_be_undone) =
            (tree.on(home), matches!(fault, Fault::LosesPower(nodes) if nodes.contains(&new)));
        let found = in_time(&case, tree.lookup((parent, NAME))).await.unwrap();
        let is_moved = found.mdt() == MdtIndex(new as u16);
        assert!(is_moved && found != inode || may_be_undone && found == inode, "{case}: {found}");
        if is_moved {
            assert_eq!(in_time(&case, tree.links(inode)).await, Err(FsError::Stale), "{case}");
        }
        let links = if directory { 2 } else { 1 };
        assert_eq!(in_time(&case, tree.links(found)).await, Ok(links), "{case}");
        // All of it can be used, and ends.
        for child in CHILDREN.into_iter().filter(|_| directory) {
            let at = in_time(&case, self.part(&tree, found, child)).await;
            in_time(&case, tree.node(at).remove(at, child, false)).await.unwrap();
        }
        in_time(&case, tree.node(parent).remove(parent, NAME, directory)).await.unwrap();
        let left = in_time(&case, tree.cluster.at_rest()).await;
        assert_eq!(left.len(), tree.cluster.0.len() - 1, "{case}: {left:?}");
        tree.cluster.end().await;
        !is_over
    }

    async fn with_each_fault(self) {
        for fault in FAULTS {
            let mut steps = 0;
            while self.after_steps(fault, steps).await {
                steps += 1;
            }
            assert!(steps > 10, "a move takes some steps, not {steps}");
            println!("{fault:?}: {steps} steps");
        }
    }
}

#[tokio::test]
async fn a_file_moves_to_its_name_whatever_happens_at_each_step() {
    Case { old: 1, home: 0, new: 0, directory: false, shards: &[] }.with_each_fault().await;
}

#[tokio::test]
async fn a_file_moves_from_its_name_whatever_happens_at_each_step() {
    Case { old: 0, home: 0, new: 1, directory: false, shards: &[] }.with_each_fault().await;
}

#[tokio::test]
async fn a_file_moves_past_its_name_whatever_happens_at_each_step() {
    Case { old: 1, home: 2, new: 0, directory: false, shards: &[] }.with_each_fault().await;
}

#[tokio::test]
async fn a_directory_moves_whatever_happens_at_each_step() {
    Case { old: 0, home: 0, new: 1, directory: true, shards: &[] }.with_each_fault().await;
}

#[tokio::test]
async fn a_directory_moves_past_its_name_whatever_happens_at_each_step() {
    Case { old: 0, home: 2, new: 1, directory: true, shards: &[] }.with_each_fault().await;
}

#[tokio::test]
async fn a_striped_directory_moves_whatever_happens_at_each_step() {
    Case { old: 0, home: 0, new: 1, directory: true, shards: &[2, 1, 0] }.with_each_fault().await;
}
