//! Repairs of names and inodes on different MDTs that contradict each other: each kind of damage is
//! made in the tables, found, repaired, and gone afterwards; what was not damaged stays as it was.

use std::collections::BTreeSet;

use kv::Table;
use mds::tables::{
    ENTRIES, INODES, LINKS, ORPHANS, XATTRS,
    inode::{Inode, Link},
    link,
};
use rpc::{
    Role,
    message::{
        MdtReply, MdtRequest,
        mdt::{Finding, RenameMode},
        mdt_peer::RemoteName,
        name_repair::NameRepair,
        session::feature,
    },
};
use types::{FileKind, FsError, FsResult, InodeNumber, NodeKind};

use super::{
    absent_mdts::in_time,
    check::{entry_key, entry_record, inode_of, put_inode},
    common::{
        ROOT, root,
        several::{Cluster, call, make_directory, remove},
        user,
    },
    distant_names::Tree,
    moved_inodes::striped,
};

const TABLES: [Table; 5] = [INODES, ENTRIES, LINKS, XATTRS, ORPHANS];

pub type Records = BTreeSet<(usize, u8, Vec<u8>, Vec<u8>)>;

/// All records of the namespace. All MDTs start again.
pub async fn records(cluster: &mut Cluster) -> Records {
    let mut records = Records::new();
    for node in 0..cluster.0.len() {
        let found = cluster.0[node].records(&TABLES).await;
        records.extend(found.into_iter().map(|(table, key, value)| (node, table.0, key, value)));
    }
    let all: Vec<usize> = (0..cluster.0.len()).collect();
    cluster.start(&all).await;
    in_time("rest", cluster.all_is_decided()).await;
    records
}

/// The inodes whose records differ: their own, their names and attributes, and names in them.
pub fn changed(before: &Records, after: &Records) -> BTreeSet<InodeNumber> {
    let number = |(_, _, key, _): &(usize, u8, Vec<u8>, Vec<u8>)| {
        InodeNumber(u64::from_be_bytes(key[..8].try_into().expect("a key begins with an inode")))
    };
    before.symmetric_difference(after).map(number).collect()
}

async fn repair(cluster: &Cluster, mdt: usize, repair: NameRepair) -> FsResult<Vec<Finding>> {
    match in_time("a repair", call(&cluster.0[mdt].repairer, MdtRequest::RepairName(root(), repair))).await? {
        MdtReply::Findings(findings) => Ok(findings),
        other => panic!("{other:?}"),
    }
}

pub async fn settle(cluster: &Cluster, name: &RemoteName) -> FsResult<Vec<Finding>> {
    repair(cluster, usize::from(name.parent.mdt().0), NameRepair::Settle(name.clone())).await
}

/// What the check of an MDT by itself finds.
pub async fn check(cluster: &Cluster, mdt: usize, repair: bool) -> Vec<Finding> {
    match in_time("a check", call(&cluster.0[mdt].repairer, MdtRequest::Check(root(), repair))).await {
        Ok(MdtReply::Findings(findings)) => findings,
        other => panic!("{other:?}"),
    }
}

pub async fn is_clean(cluster: &Cluster) {
    assert_eq!(cluster.contradictions().await, []);
    for mdt in 0..cluster.0.len() {
        assert_eq!(check(cluster, mdt, false).await, [], "MDT {mdt}");
    }
}

/// Starts MDT 0, whose store was damaged, and MDT 1 again.
async fn start_damaged(tree: &mut Tree) {
    tree.cluster.0[1].tolerates_damage();
    tree.cluster.restart(&[1]).await;
    tree.cluster.start(&[0]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
}

/// Settles all contradictions, inodes first, and expects these words of them.
pub async fn settles(tree: &Tree, expected: &[&str]) {
    let found = tree.cluster.contradictions().await;
    let mut problems = Vec::new();
    for (_, name) in &found {
        let repaired = settle(&tree.cluster, name).await.unwrap();
        assert!(repaired.iter().all(|finding| finding.repaired), "{repaired:?}");
        problems.extend(repaired);
        in_time("the decision", tree.cluster.all_is_decided()).await;
    }
    assert_eq!(problems.len(), expected.len(), "{problems:?} of {found:?}");
    for (finding, words) in problems.iter().zip(expected) {
        assert!(finding.problem.contains(words), "{words}: {finding:?}");
    }
    for (_, name) in &found {
        assert_eq!(settle(&tree.cluster, name).await, Ok(Vec::new()), "nothing is left to repair");
    }
}

/// Two MDTs with names and inodes that nobody damages.
pub async fn with_others() -> Tree {
    let tree = Tree::new(2).await;
    for (from, to) in [(0, 1), (1, 0)] {
        let file = tree.file(from, "other").await;
        tree.node(tree.on(to)).link(file, tree.on(to), "other link").await.unwrap();
        let directory = tree.directory(tree.on(from), "other directory", to as u16).await;
        tree.node(directory).create(directory, "inner", NodeKind::Regular).await.unwrap();
    }
    in_time("all is made", tree.cluster.at_rest()).await;
    tree
}

/// A file on MDT 1 whose first name is there, and which has a second one on MDT 0.
async fn linked_file(tree: &Tree) -> InodeNumber {
    let file = tree.file(1, "name").await;
    tree.node(tree.on(0)).link(file, tree.on(0), "link").await.unwrap();
    in_time("the link", tree.cluster.at_rest()).await;
    file
}

#[tokio::test]
async fn a_name_of_an_inode_that_does_not_exist_is_removed() {
    let mut tree = with_others().await;
    let before = records(&mut tree.cluster).await;
    let (zero, one) = (tree.on(0), tree.on(1));
    let file = linked_file(&tree).await;
    let directory = tree.directory(zero, "directory", 1).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    let second = Link { parent: zero, name: b"link".to_vec() };
    tree.cluster.0[1]
        .damage(|batch| {
            batch.delete(ENTRIES, entry_key(one, "name"));
            batch.delete(LINKS, link::key(file, &second));
            batch.delete(INODES, Inode::key(file));
            batch.delete(INODES, Inode::key(directory));
        })
        .await;
    tree.cluster.start(&[1]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    assert_eq!(tree.node(zero).remove(zero, "link", false).await, Err(FsError::Stale), "users cannot remove it");
    settles(&tree, &["'link'", "'directory'"]).await;
    assert_eq!(tree.lookup((zero, "link")).await, Err(FsError::NotFound));
    is_clean(&tree.cluster).await;
    let after = records(&mut tree.cluster).await;
    assert_eq!(changed(&before, &after), [zero, one].into(), "the directories in which names were made");
    tree.cluster.end().await;
}

#[tokio::test]
async fn an_inode_gets_names_that_it_does_not_know() {
    let mut tree = with_others().await;
    let (zero, file) = (tree.on(0), linked_file(&tree).await);
    let directory = tree.directory(zero, "directory", 1).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    let before = records(&mut tree.cluster).await;
    let second = Link { parent: zero, name: b"link".to_vec() };
    tree.cluster.0[1]
        .damage_seeing(|store, batch| {
            batch.delete(LINKS, link::key(file, &second));
            put_inode(batch, &Inode { first_link: None, ..inode_of(store, directory) });
        })
        .await;
    tree.cluster.start(&[1]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    settles(&tree, &["'link'", "'directory'"]).await;
    assert_eq!((tree.links(file).await, tree.parent(directory).await), (Ok(2), Ok(zero)));
    is_clean(&tree.cluster).await;
    let after = records(&mut tree.cluster).await;
    assert_eq!(changed(&before, &after), [zero, file, directory].into());
    tree.cluster.end().await;
}

#[tokio::test]
async fn an_inode_forgets_a_name_that_its_directory_does_not_have() {
    let mut tree = with_others().await;
    let (zero, one, file) = (tree.on(0), tree.on(1), linked_file(&tree).await);
    let before = records(&mut tree.cluster).await;
    tree.cluster.0[0].damage(|batch| batch.delete(ENTRIES, entry_key(zero, "link"))).await;
    tree.cluster.start(&[0]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    settles(&tree, &["'link'"]).await;
    assert_eq!((tree.links(file).await, tree.lookup((one, "name")).await), (Ok(1), Ok(file)));
    is_clean(&tree.cluster).await;
    let after = records(&mut tree.cluster).await;
    assert_eq!(changed(&before, &after), [zero, file].into(), "nothing but the lost name");
    tree.cluster.end().await;
}

/// A directory with a file in it, and another file, both on MDT 1, lose their only names on MDT 0.
#[tokio::test]
async fn inodes_without_any_name_go_to_lost_and_found_from_other_mdts() {
    let mut tree = with_others().await;
    let zero = tree.on(0);
    let directory = tree.directory(zero, "directory", 1).await;
    let inner = tree.node(directory).create(directory, "inner", NodeKind::Regular).await.unwrap();
    let file = tree.file(1, "file").await;
    tree.rename((tree.on(1), "file"), (zero, "file"), RenameMode::Replace).await.unwrap();
    in_time("all is made", tree.cluster.at_rest()).await;
    let before = records(&mut tree.cluster).await;
    tree.cluster.0[0]
        .damage(|batch| ["directory", "file"].iter().for_each(|name| batch.delete(ENTRIES, entry_key(zero, name))))
        .await;
    // Between two repairs the inodes have no name.
    start_damaged(&mut tree).await;
    settles(&tree, &["'directory'", "'file'"]).await;
    let found = check(&tree.cluster, 1, true).await;
    assert_eq!(found.iter().map(|finding| finding.inode).collect::<Vec<_>>(), [directory, file]);
    assert!(found.iter().all(|finding| finding.problem.contains("no name refers to it") && !finding.repaired));
    for nameless in [directory, file] {
        let rescued = repair(&tree.cluster, 0, NameRepair::Rescue(nameless)).await.unwrap();
        assert!(rescued.len() == 1 && rescued[0].repaired, "{rescued:?}");
        in_time("the decision", tree.cluster.all_is_decided()).await;
        assert_eq!(repair(&tree.cluster, 0, NameRepair::Rescue(nameless)).await, Ok(Vec::new()), "it has a name");
    }
    let lost_and_found = tree.lookup((ROOT, "lost+found")).await.unwrap();
    for (inode, links) in [(directory, 2), (file, 1)] {
        let name = format!("#{:x}", inode.0);
        assert_eq!(tree.lookup((lost_and_found, &name)).await, Ok(inode));
        assert_eq!(tree.links(inode).await, Ok(links));
    }
    assert_eq!(
        (tree.lookup((directory, "inner")).await, tree.parent(directory).await),
        (Ok(inner), Ok(lost_and_found))
    );
    // The directory that has lost a name of a subdirectory counts them again.
    let counted = check(&tree.cluster, 0, true).await;
    assert!(counted.len() == 1 && counted[0].inode == zero && counted[0].repaired, "{counted:?}");
    is_clean(&tree.cluster).await;
    let after = records(&mut tree.cluster).await;
    let expected = [zero, directory, file, lost_and_found, ROOT];
    assert_eq!(changed(&before, &after), expected.into());
    // Users go on with what was found.
    tree.rename((lost_and_found, &format!("#{:x}", file.0)), (zero, "back"), RenameMode::NoReplace).await.unwrap();
    tree.node(directory).remove(directory, "inner", false).await.unwrap();
    tree.node(ROOT).remove(lost_and_found, &format!("#{:x}", directory.0), true).await.unwrap();
    in_time("all ends", tree.cluster.at_rest()).await;
    is_clean(&tree.cluster).await;
    tree.cluster.end().await;
}

/// Inodes that have names, were removed, or do not exist stay out of `lost+found`.
#[tokio::test]
async fn only_nameless_inodes_go_to_lost_and_found() {
    let tree = with_others().await;
    let map = striped(&tree, tree.on(0), "striped", (0, &[0, 1])).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    let file = tree.lookup((tree.on(0), "other link")).await.unwrap();
    let never = InodeNumber(file.0 + 1000);
    for inode in [file, tree.on(1), never, map.shards[1]] {
        assert_eq!(repair(&tree.cluster, 0, NameRepair::Rescue(inode)).await, Ok(Vec::new()), "{inode}");
    }
    assert_eq!(
        repair(&tree.cluster, 1, NameRepair::Rescue(file)).await,
        Err(FsError::Invalid),
        "lost+found is on MDT 0"
    );
    assert_eq!(
        repair(&tree.cluster, 0, NameRepair::Rescue(tree.on(0))).await,
        Err(FsError::Invalid),
        "Check does that"
    );
    is_clean(&tree.cluster).await;
    tree.cluster.end().await;
}

/// One whose name is where the administrator put `lost+found` on another MDT.
#[tokio::test]
async fn a_lost_and_found_on_another_mdt_is_not_used() {
    let mut tree = with_others().await;
    let (zero, one) = (tree.on(0), tree.on(1));
    let here = tree.file(0, "here").await;
    let there = tree.file(1, "there").await;
    tree.rename((one, "there"), (zero, "there"), RenameMode::Replace).await.unwrap();
    tree.directory(ROOT, "lost+found", 1).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    tree.cluster.0[0]
        .damage(|batch| ["here", "there"].iter().for_each(|name| batch.delete(ENTRIES, entry_key(zero, name))))
        .await;
    start_damaged(&mut tree).await;
    settles(&tree, &["'there'"]).await;
    assert_eq!(repair(&tree.cluster, 0, NameRepair::Rescue(there)).await, Err(FsError::NotSupported));
    let found = check(&tree.cluster, 0, true).await;
    let nameless = found.iter().find(|finding| finding.inode == here && !finding.repaired).expect("it is reported");
    assert!(nameless.problem.contains("/lost+found is not a directory without stripes on MDT0000"), "{nameless:?}");
    tree.rename((ROOT, "lost+found"), (ROOT, "old"), RenameMode::NoReplace).await.unwrap();
    in_time("the rename", tree.cluster.all_is_decided()).await;
    assert_eq!(repair(&tree.cluster, 0, NameRepair::Rescue(there)).await.unwrap().len(), 1);
    in_time("the decision", tree.cluster.all_is_decided()).await;
    check(&tree.cluster, 0, true).await;
    is_clean(&tree.cluster).await;
    tree.cluster.end().await;
}

/// One that root did not make, or whose names users have taken.
#[tokio::test]
async fn a_lost_and_found_that_is_not_private_or_has_no_free_name_is_not_used() {
    let mut tree = with_others().await;
    let zero = tree.on(0);
    let here = tree.file(0, "here").await;
    let there = tree.file(1, "there").await;
    tree.rename((tree.on(1), "there"), (zero, "there"), RenameMode::Replace).await.unwrap();
    let shared = tree.directory(ROOT, "lost+found", 0).await;
    let full = tree.directory(ROOT, "full", 0).await;
    for inode in [here, there] {
        for number in 0..16 {
            let suffix = if number == 0 { String::new() } else { format!(".{number}") };
            tree.node(full).create(full, &format!("#{:x}{suffix}", inode.0), NodeKind::Regular).await.unwrap();
        }
    }
    in_time("all is made", tree.cluster.at_rest()).await;
    tree.cluster.0[0]
        .damage_seeing(|store, batch| {
            ["here", "there"].iter().for_each(|name| batch.delete(ENTRIES, entry_key(zero, name)));
            let mut inode = inode_of(store, shared);
            inode.attributes.mode = 0o777;
            put_inode(batch, &inode);
        })
        .await;
    start_damaged(&mut tree).await;
    settles(&tree, &["'there'"]).await;
    for words in ["that only root can change", "all names for it in /lost+found are taken"] {
        assert_eq!(repair(&tree.cluster, 0, NameRepair::Rescue(there)).await, Err(FsError::NotSupported), "{words}");
        let found = check(&tree.cluster, 0, true).await;
        let nameless = found.iter().find(|finding| finding.inode == here && !finding.repaired).expect("it is reported");
        assert!(nameless.problem.contains(words), "{nameless:?}");
        tree.rename((ROOT, "lost+found"), (ROOT, &format!("old {words:.8}")), RenameMode::NoReplace).await.unwrap();
        if words.starts_with("that") {
            tree.rename((ROOT, "full"), (ROOT, "lost+found"), RenameMode::NoReplace).await.unwrap();
        }
        in_time("the renames", tree.cluster.all_is_decided()).await;
    }
    assert_eq!(repair(&tree.cluster, 0, NameRepair::Rescue(there)).await.unwrap().len(), 1);
    in_time("the decision", tree.cluster.all_is_decided()).await;
    check(&tree.cluster, 0, true).await;
    is_clean(&tree.cluster).await;
    tree.cluster.end().await;
}

/// The only name of each of two directories is on MDT 0, and on its own MDT. Both know another one,
/// on MDT 2, that does not exist, and have not forgotten it yet.
#[tokio::test]
async fn the_only_name_of_a_directory_stays_while_it_knows_a_wrong_one_elsewhere() {
    let mut tree = Tree::new(3).await;
    let (zero, one, two) = (tree.on(0), tree.on(1), tree.on(2));
    let far = tree.directory(zero, "far", 1).await;
    let near = tree.directory(one, "near", 1).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    let named = |name: &str| Some(Link { parent: two, name: name.as_bytes().to_vec() });
    tree.cluster.0[1]
        .damage_seeing(|store, batch| {
            put_inode(batch, &Inode { first_link: named("wrong far"), ..inode_of(store, far) });
            put_inode(batch, &Inode { first_link: named("wrong near"), ..inode_of(store, near) });
        })
        .await;
    tree.cluster.0[1].tolerates_damage();
    tree.cluster.start(&[1]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    let right = RemoteName { inode: far, parent: zero, name: b"far".to_vec(), kind: FileKind::Directory };
    assert_eq!(settle(&tree.cluster, &right).await, Err(FsError::Exists));
    let found = check(&tree.cluster, 1, true).await;
    let reported = found.iter().find(|finding| finding.inode == near).expect("it is reported");
    assert!(!reported.repaired && reported.problem.contains("another name on MDT0002"), "{found:?}");
    assert_eq!((tree.lookup((zero, "far")).await, tree.lookup((one, "near")).await), (Ok(far), Ok(near)));
    settles(&tree, &["'wrong far'", "'wrong near'", "'far'"]).await;
    check(&tree.cluster, 1, true).await;
    is_clean(&tree.cluster).await;
    assert_eq!((tree.parent(far).await, tree.parent(near).await), (Ok(zero), Ok(one)));
    tree.cluster.end().await;
}

/// Number 0, which says in an answer that no inode can have a name, in a damaged entry.
#[tokio::test]
async fn a_name_of_inode_0_is_removed() {
    let mut tree = with_others().await;
    let one = tree.on(1);
    let before = records(&mut tree.cluster).await;
    for kind in [FileKind::Regular, FileKind::Directory] {
        tree.cluster.0[1]
            .damage(|batch| batch.put(ENTRIES, entry_key(one, "zero"), entry_record("zero", InodeNumber(0), kind)))
            .await;
        tree.cluster.0[1].tolerates_damage();
        tree.cluster.start(&[1]).await;
        in_time("rest", tree.cluster.all_is_decided()).await;
        settles(&tree, &["'zero'"]).await;
        assert_eq!(tree.lookup((one, "zero")).await, Err(FsError::NotFound));
        check(&tree.cluster, 1, true).await;
        is_clean(&tree.cluster).await;
    }
    let after = records(&mut tree.cluster).await;
    assert_eq!(changed(&before, &after), [one].into());
    tree.cluster.end().await;
}

#[tokio::test]
async fn a_second_name_of_a_directory_is_removed_and_a_wrong_kind_corrected() {
    let mut tree = with_others().await;
    let (zero, one, file) = (tree.on(0), tree.on(1), linked_file(&tree).await);
    let directory = tree.directory(one, "directory", 1).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    let before = records(&mut tree.cluster).await;
    tree.cluster.0[0]
        .damage(|batch| {
            batch.put(ENTRIES, entry_key(zero, "second"), entry_record("second", directory, FileKind::Directory));
            batch.put(ENTRIES, entry_key(zero, "link"), entry_record("link", file, FileKind::Fifo));
        })
        .await;
    tree.cluster.start(&[0]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    settles(&tree, &["says Fifo", "'second'"]).await;
    assert_eq!((tree.parent(directory).await, tree.links(file).await), (Ok(one), Ok(2)));
    check(&tree.cluster, 0, true).await;
    is_clean(&tree.cluster).await;
    let after = records(&mut tree.cluster).await;
    assert_eq!(changed(&before, &after), [zero].into());
    tree.cluster.end().await;
}

/// A directory has forgotten its name, and the only one that leads to it is below itself.
#[tokio::test]
async fn a_directory_does_not_get_a_name_below_itself() {
    let mut tree = with_others().await;
    let one = tree.on(1);
    let directory = tree.directory(one, "directory", 1).await;
    let below = tree.directory(directory, "below", 0).await;
    in_time("all is made", tree.cluster.at_rest()).await;
    tree.cluster.0[0]
        .damage(|batch| batch.put(ENTRIES, entry_key(below, "up"), entry_record("up", directory, FileKind::Directory)))
        .await;
    tree.cluster.0[1]
        .damage_seeing(|store, batch| {
            batch.delete(ENTRIES, entry_key(one, "directory"));
            put_inode(batch, &Inode { first_link: None, ..inode_of(store, directory) });
        })
        .await;
    tree.cluster.start(&[0, 1]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    settles(&tree, &["'up'"]).await;
    assert_eq!(tree.lookup((below, "up")).await, Err(FsError::NotFound));
    assert_eq!(repair(&tree.cluster, 0, NameRepair::Rescue(directory)).await.unwrap().len(), 1);
    in_time("the decision", tree.cluster.all_is_decided()).await;
    for mdt in [0, 1] {
        check(&tree.cluster, mdt, true).await;
    }
    is_clean(&tree.cluster).await;
    assert_eq!(tree.parent(below).await, Ok(directory));
    tree.cluster.end().await;
}

/// A directory is made on another MDT, which has not heard of it: the name is not removed.
#[tokio::test]
async fn a_repair_waits_for_an_inode_that_is_being_made() {
    let tree = with_others().await;
    let zero = tree.on(0);
    tree.cluster.0[0].gate.close_flushes();
    // Nothing of this leaves MDT 0 before it is durable.
    let made = in_time("mkdir", tree.node(zero).call(make_directory(zero, "new", 1))).await.unwrap();
    let MdtReply::Created(made) = made else { panic!("{made:?}") };
    let inode = made.entry.attributes.inode;
    let name = RemoteName { inode, parent: zero, name: b"new".to_vec(), kind: FileKind::Directory };
    let opened = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(tree.lookup((zero, "new")).await, Ok(inode));
        tree.cluster.0[0].gate.open_flushes();
    };
    let (settled, ()) = tokio::join!(settle(&tree.cluster, &name), opened);
    assert_eq!(settled, Ok(Vec::new()));
    in_time("rest", tree.cluster.at_rest()).await;
    assert_eq!((tree.lookup((zero, "new")).await, tree.parent(inode).await), (Ok(inode), Ok(zero)));
    is_clean(&tree.cluster).await;
    tree.cluster.end().await;
}

/// Removals, which may have ended on one of both sides when fsck looks, are not repaired.
#[tokio::test]
async fn a_repair_waits_for_a_name_that_is_being_removed() {
    let tree = with_others().await;
    let (zero, file) = (tree.on(0), linked_file(&tree).await);
    let name = RemoteName { inode: file, parent: zero, name: b"link".to_vec(), kind: FileKind::Regular };
    // The decision of MDT 0 does not leave it: the inode has a name that its directory has not.
    tree.cluster.0[0].gate.close_flushes();
    in_time("a removal", tree.node(zero).call(remove(zero, "link", false))).await.unwrap();
    assert_eq!(tree.cluster.contradictions().await, [(false, name.clone())]);
    let opened = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        tree.cluster.0[0].gate.open_flushes();
    };
    let (settled, ()) = tokio::join!(settle(&tree.cluster, &name), opened);
    assert_eq!(settled, Ok(Vec::new()));
    in_time("rest", tree.cluster.at_rest()).await;
    assert_eq!(tree.links(file).await, Ok(1));
    is_clean(&tree.cluster).await;
    tree.cluster.end().await;
}

/// Either side of a repair may end at any moment after it was decided.
#[tokio::test]
async fn a_repair_is_carried_out_after_restarts() {
    for ends in [0, 1] {
        let mut tree = with_others().await;
        let (zero, file) = (tree.on(0), linked_file(&tree).await);
        let second = Link { parent: zero, name: b"link".to_vec() };
        tree.cluster.0[1].damage(|batch| batch.delete(LINKS, link::key(file, &second))).await;
        tree.cluster.start(&[1]).await;
        in_time("rest", tree.cluster.all_is_decided()).await;
        let [(true, name)] = &tree.cluster.contradictions().await[..] else { panic!("one name") };
        // A session does not begin without a flush.
        check(&tree.cluster, 0, false).await;
        tree.cluster.0[0].gate.close_flushes();
        assert_eq!(settle(&tree.cluster, name).await.unwrap().len(), 1);
        tree.cluster.restart(&[ends]).await;
        tree.cluster.0[0].gate.open_flushes();
        in_time("rest", tree.cluster.at_rest()).await;
        assert_eq!(tree.links(file).await, Ok(2), "{ends}");
        is_clean(&tree.cluster).await;
        tree.cluster.end().await;
    }
}

#[tokio::test]
async fn a_repair_is_refused_where_it_is_not_possible() {
    let mut tree = with_others().await;
    let (zero, file) = (tree.on(0), linked_file(&tree).await);
    let name = RemoteName { inode: file, parent: zero, name: b"link".to_vec(), kind: FileKind::Regular };
    let request = |who| MdtRequest::RepairName(who, NameRepair::Settle(name.clone()));
    assert_eq!(call(&tree.cluster.0[0].repairer, request(user(5))).await, Err(FsError::NotPermitted));
    assert!(call(&tree.cluster.0[0].connect(13, Role::Tool), request(root())).await.is_err(), "it changes something");
    assert_eq!(repair(&tree.cluster, 1, NameRepair::Settle(name.clone())).await, Err(FsError::Invalid));
    let local = RemoteName { inode: zero, ..name.clone() };
    assert_eq!(settle(&tree.cluster, &local).await, Err(FsError::Invalid), "Check does that");
    tree.cluster.0[1].set_missing(feature::NAME_REPAIRS);
    tree.cluster.restart(&[1]).await;
    in_time("rest", tree.cluster.all_is_decided()).await;
    assert_eq!(settle(&tree.cluster, &name).await, Err(FsError::NotSupported), "of an earlier release");
    tree.cluster.end().await;
}
