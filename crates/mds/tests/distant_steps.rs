//! Links, removals and renames over several MDTs, with a fault at each step of these.

use std::collections::BTreeMap;

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{self, RenameMode},
};
use types::{FileKind, FsError, InodeNumber};

use super::{
    absent_mdts::{FAULTS, Fault, in_time, interrupt},
    common::{
        root,
        several::{call, remove, rename},
    },
    distant_names::Tree,
};

/// A name in the directory on this MDT.
type Path = (usize, &'static str);

/// An operation on a few names.
struct Case {
    what: &'static str,
    mdts: u16,
    /// Names, what they lead to, and the MDT of that.
    before: &'static [(Path, FileKind, u16)],
    /// The MDT that decides, and what it is asked for.
    request: fn(&Tree, &Names) -> (usize, MdtRequest),
    /// Names afterwards, and which names the same had before.
    after: &'static [(Path, Path)],
}

/// Where names lead.
type Names = BTreeMap<Path, InodeNumber>;

const FILE: FileKind = FileKind::Regular;
const DIRECTORY: FileKind = FileKind::Directory;

impl Case {
    async fn build(&self) -> (Tree, Names) {
        let tree = Tree::new(self.mdts).await;
        let mut names = Names::new();
        for ((at, name), kind, home) in self.before {
            let parent = tree.on(*at);
            let inode = match kind {
                FileKind::Directory => tree.directory(parent, name, *home).await,
                _ => {
                    let file = tree.file(usize::from(*home), "made").await;
                    let made = (tree.on(usize::from(*home)), "made");
                    tree.rename(made, (parent, name), RenameMode::Replace).await.unwrap();
                    file
                }
            };
            names.insert((*at, name), inode);
        }
        tree.cluster.at_rest().await;
        for node in &tree.cluster.0 {
            node.call(MdtRequest::Commit).await.unwrap();
        }
        (tree, names)
    }

    /// All names that there may be.
    async fn look(&self, tree: &Tree) -> Names {
        let paths = self.before.iter().map(|(path, ..)| path).chain(self.after.iter().map(|(path, _)| path));
        let mut names = Names::new();
        for path in paths {
            match tree.lookup((tree.on(path.0), path.1)).await {
                Ok(inode) => drop(names.insert(*path, inode)),
                Err(FsError::NotFound) => {}
                Err(error) => panic!("{path:?}: {error}"),
            }
        }
        names
    }

    /// The fault happens after so many steps of the MDTs; false if the operation was over by then.
    async fn after_steps(&self, fault: Fault, steps: usize) -> bool {
        let case = format!("{}, {fault:?} after {steps} steps", self.what);
        let (mut tree, before) = self.build().await;
        let after: Names = self.after.iter().map(|(path, old)| (*path, before[old])).collect();
        let (coordinator, request) = (self.request)(&tree, &before);
        let import = tree.cluster.0[coordinator].import.clone();
        let asked = async move { call(&import, request).await };
        let (answered, is_over) = interrupt((&case, &mut tree.cluster), (fault, coordinator), steps, asked).await;
        assert!(matches!(answered, Ok(MdtReply::Done | MdtReply::Decided(_))), "{case}: {answered:?}");
        in_time(&case, tree.cluster.at_rest()).await;
        let names = in_time(&case, self.look(&tree)).await;
        let may_be_undone = matches!(fault, Fault::LosesPower(nodes) if nodes.contains(&coordinator));
        assert!(names == after || may_be_undone && names == before, "{case}: {names:?}");
        self.check_links(&case, &tree, &before, &names).await;
        for ((at, name), inode) in &names {
            let is_directory = self.kind(&before, *inode) == DIRECTORY;
            in_time(&case, tree.cluster.0[*at].remove(tree.on(*at), name, is_directory)).await.unwrap();
        }
        let left = in_time(&case, tree.cluster.at_rest()).await;
        assert_eq!(left.len(), usize::from(self.mdts) - 1, "{case}: {left:?}");
        tree.cluster.end().await;
        !is_over
    }

    fn kind(&self, before: &Names, inode: InodeNumber) -> FileKind {
        let found = self.before.iter().find(|(path, ..)| before[path] == inode);
        found.expect("one of them").1
    }

    /// Each inode has as many links as names, or is gone; each directory counts its subdirectories.
    async fn check_links(&self, case: &str, tree: &Tree, before: &Names, names: &Names) {
        let mut subdirectories = vec![0; usize::from(self.mdts)];
        for inode in before.values() {
            let paths: Vec<&Path> = names.iter().filter(|(_, found)| *found == inode).map(|(path, _)| path).collect();
            let is_directory = self.kind(before, *inode) == DIRECTORY;
            let links = match (paths.len(), is_directory) {
                (0, _) => Err(FsError::Stale),
                (_, true) => Ok(2),
                (count, false) => Ok(count as u32),
            };
            assert_eq!(in_time(case, tree.links(*inode)).await, links, "{case}");
            if let (true, Some((at, _))) = (is_directory, paths.first()) {
                subdirectories[*at] += 1;
                assert_eq!(in_time(case, tree.parent(*inode)).await, Ok(tree.on(*at)), "{case}");
            }
        }
        for (at, count) in subdirectories.into_iter().enumerate() {
            let links = in_time(case, tree.links(tree.on(at))).await;
            assert_eq!(links, Ok(2 + count), "{case}: of the directory on MDT {at}");
        }
    }

    async fn with_each_fault(self) {
        for fault in FAULTS {
            let mut steps = 0;
            while self.after_steps(fault, steps).await {
                steps += 1;
            }
            assert!(steps > 10, "{} takes some steps, not {steps}", self.what);
            println!("{}, {fault:?}: {steps} steps", self.what);
        }
    }
}

fn renames(tree: &Tree, from: Path, to: Path, mode: RenameMode) -> (usize, MdtRequest) {
    (to.0, rename((tree.on(from.0), from.1), (tree.on(to.0), to.1), mode))
}

#[tokio::test]
async fn a_link_is_made_whatever_happens_at_each_step() {
    let request = |tree: &Tree, names: &Names| {
        let link = mdt::Link { inode: names[&(1, "file")], parent: tree.on(0), name: b"link".to_vec() };
        (0, MdtRequest::Link(root(), link))
    };
    let before = &[((1, "file"), FILE, 1)];
    let after = &[((1, "file"), (1, "file")), ((0, "link"), (1, "file"))];
    Case { what: "link", mdts: 2, before, request, after }.with_each_fault().await;
}

#[tokio::test]
async fn a_name_is_removed_whatever_happens_at_each_step() {
    let request = |tree: &Tree, _: &Names| (0, remove(tree.on(0), "file", false));
    let before = &[((0, "file"), FILE, 1)];
    Case { what: "unlink", mdts: 2, before, request, after: &[] }.with_each_fault().await;
}

#[tokio::test]
async fn a_file_is_renamed_whatever_happens_at_each_step() {
    let request = |tree: &Tree, _: &Names| renames(tree, (0, "old"), (1, "new"), RenameMode::Replace);
    let before = &[((0, "old"), FILE, 0)];
    let after = &[((1, "new"), (0, "old"))];
    Case { what: "rename of a file", mdts: 2, before, request, after }.with_each_fault().await;
}

/// The file that is replaced and the directory of the old name are on one MDT, the file that is
/// moved is on the other.
#[tokio::test]
async fn a_file_is_replaced_whatever_happens_at_each_step() {
    let request = |tree: &Tree, _: &Names| renames(tree, (0, "old"), (1, "new"), RenameMode::Replace);
    let before = &[((0, "old"), FILE, 1), ((1, "new"), FILE, 0)];
    let after = &[((1, "new"), (0, "old"))];
    Case { what: "rename over a file", mdts: 2, before, request, after }.with_each_fault().await;
}

#[tokio::test]
async fn a_directory_gets_another_parent_whatever_happens_at_each_step() {
    let request = |tree: &Tree, _: &Names| renames(tree, (0, "old"), (1, "new"), RenameMode::Replace);
    let before = &[((0, "old"), DIRECTORY, 0)];
    let after = &[((1, "new"), (0, "old"))];
    Case { what: "rename of a directory", mdts: 2, before, request, after }.with_each_fault().await;
}

#[tokio::test]
async fn a_directory_is_replaced_whatever_happens_at_each_step() {
    let request = |tree: &Tree, _: &Names| renames(tree, (1, "old"), (0, "new"), RenameMode::Replace);
    let before = &[((1, "old"), DIRECTORY, 0), ((0, "new"), DIRECTORY, 1)];
    let after = &[((0, "new"), (1, "old"))];
    Case { what: "rename over a directory", mdts: 2, before, request, after }.with_each_fault().await;
}

#[tokio::test]
async fn names_are_exchanged_whatever_happens_at_each_step() {
    let request = |tree: &Tree, _: &Names| renames(tree, (0, "one"), (1, "other"), RenameMode::Exchange);
    let before = &[((0, "one"), FILE, 0), ((1, "other"), DIRECTORY, 0)];
    let after = &[((0, "one"), (1, "other")), ((1, "other"), (0, "one"))];
    Case { what: "exchange", mdts: 2, before, request, after }.with_each_fault().await;
}

/// The MDT of the inode, of the old name and of the new one are three, and of what is replaced a
/// fourth part is on one of them.
#[tokio::test]
async fn a_rename_over_three_mdts_is_whole_whatever_happens_at_each_step() {
    let request = |tree: &Tree, _: &Names| renames(tree, (0, "old"), (1, "new"), RenameMode::Replace);
    let before = &[((0, "old"), FILE, 2), ((1, "new"), FILE, 2)];
    let after = &[((1, "new"), (0, "old"))];
    Case { what: "rename over three MDTs", mdts: 3, before, request, after }.with_each_fault().await;
}
