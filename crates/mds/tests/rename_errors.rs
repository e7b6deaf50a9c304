//! Renames that fail: over several MDTs with the same error as on one, wherever the directories of
//! the tree are.

use std::collections::BTreeMap;

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{Rename, RenameMode, SourceData},
    mdt_peer::MakeDirectory,
};
use types::{DirectoryMap, FsError, FsResult, InodeNumber, MdtIndex, NameHash, NodeKind, Stripes};

use super::{
    absent_mdts::in_time,
    common::{
        ROOT, created, root,
        several::{Cluster, Node},
    },
    striped_directories::map_of,
};

const DIRECTORIES: [&str; 6] = ["a", "a/b", "a/b/c", "a/b/c/d", "a/e", "z"];
const FILES: [&str; 4] = ["f", "a/f", "a/b/f", "a/b/c/d/f"];
/// Besides directories and files.
const MISSING: [&str; 5] = ["x", "a/x", "a/b/x", "a/b/c/d/x", "z/x"];
const MODES: [RenameMode; 3] = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];

/// Where a directory is.
enum Place {
    Mdt(u16),
    /// Itself there, with a shard on each.
    Striped(u16),
}

/// The same names in all clusters.
struct Tree {
    cluster: Cluster,
    directories: BTreeMap<&'static str, InodeNumber>,
    maps: BTreeMap<InodeNumber, DirectoryMap>,
}

impl Tree {
    async fn new(mdts: u16, place: impl Fn(usize) -> Place) -> Self {
        let cluster = Cluster::new(mdts).await;
        let mut tree = Self { cluster, directories: BTreeMap::from([("", ROOT)]), maps: BTreeMap::new() };
        for (number, path) in DIRECTORIES.into_iter().enumerate() {
            let made = tree.make_directory(path, place(number), mdts).await;
            tree.directories.insert(path, made);
        }
        for path in FILES {
            let (parent, name) = tree.at(path);
            tree.node(parent).create(parent, name, NodeKind::Regular).await.unwrap();
        }
        // Another name of a file.
        let ((parent, name), (new_parent, new_name)) = (tree.at("f"), tree.at("a/b/link"));
        let file = tree.node(parent).lookup(parent, name).await.unwrap();
        tree.node(new_parent).link(file, new_parent, new_name).await.unwrap();
        in_time("all is carried out", tree.cluster.at_rest()).await;
        tree
    }

    async fn make_directory(&mut self, path: &'static str, place: Place, mdts: u16) -> InodeNumber {
        let (parent, name) = self.at(path);
        let (mdt, stripes) = match place {
            Place::Mdt(mdt) => (MdtIndex(mdt), Stripes::default()),
            Place::Striped(mdt) => {
                let mdts = (0..mdts).map(MdtIndex).collect();
                (MdtIndex(mdt), Stripes { hash: NameHash::Fnv1a64, mdts })
            }
        };
        let is_striped = !stripes.mdts.is_empty();
        let name = name.as_bytes().to_vec();
        let make = MakeDirectory { parent, name, mode: 0o755, umask: 0, mdt, stripes };
        let made = created(self.node(parent).call(MdtRequest::MakeDirectory(root(), make)).await.unwrap());
        let made = made.entry.attributes.inode;
        if is_striped {
            self.maps.insert(made, map_of(&self.cluster, made).await);
        }
        made
    }

    fn node(&self, inode: InodeNumber) -> &Node {
        &self.cluster.0[usize::from(inode.mdt().0)]
    }

    /// The directory that programs see, and a name in it.
    fn seen(&self, path: &'static str) -> (InodeNumber, &'static str) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.directories[parent], name)
    }

    /// The directory or shard that has a name.
    fn at(&self, path: &'static str) -> (InodeNumber, &'static str) {
        let (parent, name) = self.seen(path);
        let shard = self.maps.get(&parent).and_then(|map| map.shard_of(name.as_bytes()));
        (shard.unwrap_or(parent), name)
    }

    async fn rename(&self, from: &'static str, to: &'static str, mode: RenameMode) -> FsResult<MdtReply> {
        let ((parent, name), (new_parent, new_name)) = (self.at(from), self.at(to));
        let same_directory = parent != new_parent && self.seen(from).0 == self.seen(to).0;
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        let (source_data, mdt_era) = (SourceData::AsIs, None);
        let rename = Rename { parent, name, new_parent, new_name, mode, source_data, mdt_era, same_directory };
        self.node(new_parent).call(MdtRequest::Rename(root(), rename)).await
    }
}

type Renames = Vec<(&'static str, &'static str, RenameMode)>;

fn all_renames() -> Renames {
    let paths: Vec<&str> = DIRECTORIES.into_iter().chain(FILES).chain(MISSING).chain(["a/b/link"]).collect();
    let pairs = paths.iter().flat_map(|from| paths.iter().map(move |to| (*from, *to)));
    pairs.flat_map(|(from, to)| MODES.map(|mode| (from, to, mode))).collect()
}

/// Renames that fail on one MDT, with their errors.
async fn failing() -> Vec<((&'static str, &'static str, RenameMode), FsError)> {
    let mut tree = Tree::new(1, |_| Place::Mdt(0)).await;
    let mut found = Vec::new();
    for (from, to, mode) in all_renames() {
        match tree.rename(from, to, mode).await {
            Err(error) => found.push(((from, to, mode), error)),
            // What follows is to find the same names.
            Ok(_) => {
                tree.cluster.end().await;
                tree = Tree::new(1, |_| Place::Mdt(0)).await;
            }
        }
    }
    tree.cluster.end().await;
    found
}

async fn fail_equally(mdts: u16, place: impl Fn(usize) -> Place) {
    let tree = Tree::new(mdts, place).await;
    for ((from, to, mode), error) in failing().await {
        let failed = in_time("a rename is answered", tree.rename(from, to, mode)).await;
        assert_eq!(failed, Err(error), "{mode:?} of {from} to {to}");
    }
    in_time("all ends", tree.cluster.at_rest()).await;
    tree.cluster.end().await;
}

#[tokio::test]
async fn the_errors_on_one_mdt_are_those_of_posix() {
    let failing: BTreeMap<_, _> =
        failing().await.into_iter().map(|((from, to, mode), error)| ((from, to, mode as u8), error)).collect();
    let error = |from, to, mode: RenameMode| failing.get(&(from, to, mode as u8)).cloned();
    let [replace, no_replace, exchange] = MODES;
    for (from, to) in [("a", "a/x"), ("a", "a/f"), ("a", "a/b/c"), ("a/b", "a/b/c/d/f")] {
        assert_eq!(error(from, to, replace), Some(FsError::Invalid), "{from} to {to}");
    }
    for (from, to) in [("a/b/c", "a"), ("a/f", "a"), ("a/b/c/d/f", "a/b"), ("a/b", "a/e")] {
        let expected = if to == "a/e" { None } else { Some(FsError::NotEmpty) };
        assert_eq!(error(from, to, replace), expected, "{from} over {to}");
        assert_eq!(error(from, to, no_replace), Some(FsError::Exists));
        let expected = if to == "a/e" { None } else { Some(FsError::Invalid) };
        assert_eq!(error(from, to, exchange), expected, "{from} with {to}");
    }
    assert_eq!(error("f", "a", replace), Some(FsError::IsDirectory));
    assert_eq!(error("z", "f", replace), Some(FsError::NotDirectory));
    assert_eq!(error("a/x", "a", no_replace), Some(FsError::NotFound));
}

#[tokio::test]
async fn a_rename_fails_with_the_same_error_wherever_directories_are() {
    for shift in 0..3 {
        fail_equally(3, |number| Place::Mdt((number as u16 + shift) % 3)).await;
    }
    // Two of one way on the same MDT, with others between.
    fail_equally(2, |number| Place::Mdt(u16::from([false, true, false, false, true, true][number]))).await;
}

#[tokio::test]
async fn a_rename_fails_with_the_same_error_in_striped_directories() {
    fail_equally(3, |number| Place::Striped(number as u16 % 3)).await;
    fail_equally(2, |number| match number % 2 {
        0 => Place::Striped(1),
        _ => Place::Mdt(0),
    })
    .await;
}
