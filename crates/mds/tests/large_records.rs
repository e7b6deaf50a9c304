//! Inodes with records of tens of KiB: what changes many of them does so in several batches.

use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeCount, StripeSpec};
use rpc::message::{MdtReply, MdtRequest, mdt::Create};
use types::{FsError, InodeNumber, MdtIndex, NodeKind, OstIndex, limits::STRIPE_COUNT_MAX};

use super::{
    absent_mdts::in_time,
    common::{ROOT, create_request, created, root, several::call},
    distant_names::Tree,
    split_directories::split_wholly,
    striped_directories::map_of,
};

/// Of their records a store of the tests takes four at a time.
const FILES: usize = 8;
const BLOCK: u64 = 64 << 10;

/// A layout that any user may ask for. Its components have no objects yet, and say where these are
/// to be.
fn wide() -> LayoutSpec {
    let osts = vec![OstIndex(0); STRIPE_COUNT_MAX as usize];
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(STRIPE_COUNT_MAX), osts, ..StripeSpec::default() };
    let backing = BackingSpec::Striped(stripes);
    let mut components = vec![ComponentSpec { end: BLOCK, backing: BackingSpec::Mdt }];
    let ends = (2..13).map(|number| number * BLOCK).chain([END_OF_FILE]);
    components.extend(ends.map(|end| ComponentSpec { end, backing: backing.clone() }));
    LayoutSpec::Composite(components)
}

async fn wide_files(tree: &Tree, directory: InodeNumber) -> Vec<InodeNumber> {
    let mut files = Vec::new();
    for number in 0..FILES {
        let create = create_request(directory, &format!("f{number}"), NodeKind::Regular, 0o644, None);
        let create = Create { layout: Some(wide()), ..create };
        let made = tree.node(directory).call(MdtRequest::Create(root(), create)).await.unwrap();
        files.push(created(made).entry.attributes.inode);
    }
    files
}

/// Decisions gather while the MDT that has decided waits for its disk. Its next message has all of
/// them, and changes more than fits into one batch of the other MDT: else it would be sent again
/// and again, and nothing after it.
#[tokio::test]
async fn decisions_are_carried_out_in_as_many_batches_as_they_need() {
    let tree = Tree::new(2).await;
    let (zero, files) = (tree.on(0), wide_files(&tree, tree.on(1)).await);
    tree.node(zero).gate.close_flushes();
    let mut links = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let name = format!("l{number}").into_bytes();
        let link = MdtRequest::Link(root(), rpc::message::mdt::Link { inode: *file, parent: zero, name });
        let import = tree.node(zero).import.clone();
        links.push(tokio::spawn(async move { call(&import, link).await }));
    }
    for link in links {
        let answered = in_time("a link", link).await.unwrap();
        assert!(matches!(answered, Ok(MdtReply::Decided(_) | MdtReply::Entry(_))), "{answered:?}");
    }
    tree.node(zero).gate.open_flushes();
    in_time("all ends", tree.cluster.at_rest()).await;
    for file in files {
        assert_eq!(tree.links(file).await, Ok(2));
    }
    tree.cluster.end().await;
}

/// All that is named in a directory changes when that gets another number, in one batch: a
/// directory of which that is too much loses its names first.
#[tokio::test]
async fn a_directory_moves_after_its_names_if_their_inodes_are_large() {
    let tree = Tree::new(2).await;
    let [zero, one] = &tree.cluster.0[..] else { panic!("two") };
    let full = tree.directory(ROOT, "full", 0).await;
    let files = wide_files(&tree, full).await;
    let take = async |inode| in_time("a move", one.call(MdtRequest::MoveInode(root(), inode))).await;
    assert_eq!(take(full).await, Err(FsError::TooBig));
    in_time("the split", split_wholly(&zero.import, full, &[1])).await.unwrap();
    assert_eq!(take(full).await, Ok(MdtReply::Done));
    let moved = tree.lookup((ROOT, "full")).await.unwrap();
    assert_eq!((moved.mdt(), map_of(&tree.cluster, moved).await.shards.len()), (MdtIndex(1), 1));
    in_time("the merge", split_wholly(&one.import, moved, &[1])).await.unwrap();
    in_time("all ends", tree.cluster.at_rest()).await;
    for (number, file) in files.into_iter().enumerate() {
        let found = in_time("a look-up", tree.lookup((moved, &format!("f{number}")))).await;
        assert_eq!((found, tree.links(file).await), (Ok(file), Ok(1)));
    }
    // Nor to a directory that is on their MDT afterwards.
    let back = in_time("a move back", zero.call(MdtRequest::MoveInode(root(), moved))).await;
    assert_eq!(back, Err(FsError::TooBig));
    tree.cluster.end().await;
}

/// The inodes hear of their names in other batches than the directory. The audit after each of them
/// finds no name missing.
#[tokio::test]
async fn names_come_back_to_where_large_inodes_are() {
    let tree = Tree::new(2).await;
    let import = &tree.cluster.0[0].import;
    let directory = tree.directory(ROOT, "directory", 0).await;
    let files = wide_files(&tree, directory).await;
    in_time("the split", split_wholly(import, directory, &[1])).await.unwrap();
    in_time("the merge", split_wholly(import, directory, &[0])).await.unwrap();
    in_time("all ends", tree.cluster.at_rest()).await;
    for (number, file) in files.into_iter().enumerate() {
        let found = in_time("a look-up", tree.lookup((directory, &format!("f{number}")))).await;
        assert_eq!((found, tree.links(file).await), (Ok(file), Ok(1)));
    }
    tree.cluster.end().await;
}
