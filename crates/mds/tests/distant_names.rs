//! Links, removals and renames over several MDTs, between real ones (decision 0049).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mds::tables::ENTRIES;
use rpc::{
    ImportOptions,
    message::{
        MdtReply, MdtRequest,
        mdt::{Link, RenameMode},
        session::feature,
    },
};
use types::{Attributes, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, SetAttributes};

use super::{
    absent_mdts::in_time,
    check::{entry_key, entry_record},
    common::{
        ROOT, root,
        several::{Cluster, ComesBack, Node, call, import_options, remove, rename},
        user,
    },
};

const REPLACE: RenameMode = RenameMode::Replace;
const EXCHANGE: RenameMode = RenameMode::Exchange;
const DONE: FsResult<MdtReply> = Ok(MdtReply::Done);

/// One directory below the root on each MDT.
pub struct Tree {
    pub cluster: Cluster,
    pub directories: Vec<InodeNumber>,
}

impl Tree {
    pub async fn new(mdts: u16) -> Self {
        let cluster = Cluster::new(mdts).await;
        let mut directories = Vec::new();
        for mdt in 0..mdts {
            directories.push(cluster.0[0].make_directory(ROOT, &format!("on{mdt}"), mdt).await.unwrap());
        }
        cluster.at_rest().await;
        Self { cluster, directories }
    }

    /// The MDT that has an inode.
    pub fn node(&self, inode: InodeNumber) -> &Node {
        &self.cluster.0[usize::from(inode.mdt().0)]
    }

    /// The directory on this MDT.
    pub fn on(&self, mdt: usize) -> InodeNumber {
        self.directories[mdt]
    }

    pub async fn file(&self, mdt: usize, name: &str) -> InodeNumber {
        self.cluster.0[mdt].create(self.on(mdt), name, NodeKind::Regular).await.unwrap()
    }

    /// A directory there, by its name in the directory on another MDT.
    pub async fn directory(&self, parent: InodeNumber, name: &str, mdt: u16) -> InodeNumber {
        self.node(parent).make_directory(parent, name, mdt).await.unwrap()
    }

    pub async fn rename(
        &self,
        from: (InodeNumber, &str),
        to: (InodeNumber, &str),
        mode: RenameMode,
    ) -> FsResult<MdtReply> {
        self.node(to.0).call(rename(from, to, mode)).await
    }

    pub async fn lookup(&self, at: (InodeNumber, &str)) -> FsResult<InodeNumber> {
        self.node(at.0).lookup(at.0, at.1).await
    }

    pub async fn links(&self, inode: InodeNumber) -> FsResult<u32> {
        Ok(self.node(inode).stat(inode).await?.attributes.links)
    }

    pub async fn parent(&self, directory: InodeNumber) -> FsResult<InodeNumber> {
        self.node(directory).lookup(directory, "..").await
    }
}

#[tokio::test]
async fn a_file_has_names_on_several_mdts() {
    let tree = Tree::new(3).await;
    let file = tree.file(1, "file").await;
    let (zero, two) = (tree.on(0), tree.on(2));
    tree.node(zero).link(file, zero, "link").await.unwrap();
    tree.node(two).link(file, two, "link").await.unwrap();
    assert_eq!(tree.node(two).link(file, two, "link").await, Err(FsError::Exists));
    assert_eq!((tree.lookup((zero, "link")).await, tree.links(file).await), (Ok(file), Ok(3)));
    assert_eq!(tree.node(zero).link(tree.on(1), zero, "directory").await, Err(FsError::NotPermitted));
    let missing = InodeNumber(file.0 + 1000);
    assert_eq!(tree.node(zero).link(missing, zero, "missing").await, Err(FsError::Stale));
    assert_eq!(tree.cluster.at_rest().await.len(), 2 + 2);
    // The first name goes, then the others.
    tree.node(file).remove(tree.on(1), "file", false).await.unwrap();
    assert_eq!(tree.node(two).remove(two, "link", true).await, Err(FsError::NotDirectory));
    tree.node(two).remove(two, "link", false).await.unwrap();
    assert_eq!((tree.lookup((two, "link")).await, tree.links(file).await), (Err(FsError::NotFound), Ok(1)));
    tree.node(zero).remove(zero, "link", false).await.unwrap();
    assert_eq!(tree.links(file).await, Err(FsError::Stale), "nobody has it open");
    assert_eq!(tree.cluster.at_rest().await.len(), 2);
}

#[tokio::test]
async fn files_are_renamed_between_mdts() {
    let tree = Tree::new(3).await;
    let [zero, one, two] = tree.directories[..] else { panic!("three") };
    let file = tree.file(0, "file").await;
    assert_eq!(tree.rename((zero, "file"), (one, "new"), REPLACE).await, DONE);
    assert_eq!(tree.lookup((zero, "file")).await, Err(FsError::NotFound));
    assert_eq!((tree.lookup((one, "new")).await, tree.links(file).await), (Ok(file), Ok(1)));
    // Its directories and itself on three MDTs; then within one of them, and back home.
    assert_eq!(tree.rename((one, "new"), (two, "third"), RenameMode::NoReplace).await, DONE);
    assert_eq!(tree.rename((two, "third"), (two, "fourth"), REPLACE).await, DONE);
    assert_eq!((tree.lookup((two, "fourth")).await, tree.links(file).await), (Ok(file), Ok(1)));
    assert_eq!(tree.rename((one, "new"), (two, "x"), REPLACE).await, Err(FsError::NotFound));
    let over = tree.rename((one, "new"), (two, "fourth"), RenameMode::NoReplace).await;
    assert_eq!(over, Err(FsError::NotFound), "that comes first");
    // Over others, on each MDT.
    for (mdt, parent) in [(0, zero), (1, one), (2, two)] {
        let victim = tree.file(mdt, "victim").await;
        assert_eq!(tree.rename((two, "fourth"), (parent, "victim"), RenameMode::NoReplace).await, Err(FsError::Exists));
        assert_eq!(tree.rename((two, "fourth"), (parent, "victim"), REPLACE).await, DONE, "{mdt}");
        assert_eq!((tree.links(victim).await, tree.links(file).await), (Err(FsError::Stale), Ok(1)));
        assert_eq!(tree.rename((parent, "victim"), (two, "fourth"), REPLACE).await, DONE);
    }
    // Over one on a third MDT, and over another name of the same file.
    let other = tree.file(1, "other").await;
    assert_eq!(tree.rename((one, "other"), (zero, "other"), REPLACE).await, DONE);
    assert_eq!(tree.rename((two, "fourth"), (zero, "other"), REPLACE).await, DONE);
    assert_eq!((tree.links(other).await, tree.lookup((zero, "other")).await), (Err(FsError::Stale), Ok(file)));
    tree.node(one).link(file, one, "link").await.unwrap();
    assert_eq!(tree.rename((zero, "other"), (one, "link"), REPLACE).await, DONE, "nothing to do");
    assert_eq!((tree.lookup((zero, "other")).await, tree.links(file).await), (Ok(file), Ok(2)));
    tree.cluster.at_rest().await;
    tree.node(zero).remove(zero, "other", false).await.unwrap();
    tree.node(one).remove(one, "link", false).await.unwrap();
    assert_eq!(tree.cluster.at_rest().await.len(), 2);
}

/// As within one MDT, for all callers and with all permissions.
/// The client needs no other request, which might fail although the name was made. Clients that do
/// not understand the answer get another one; those that know one MDT make no such name.
#[tokio::test]
async fn the_answer_to_a_link_says_what_got_the_name() {
    let tree = Tree::new(2).await;
    let (file, zero) = (tree.file(1, "file").await, tree.on(0));
    let link = |name: &str| MdtRequest::Link(root(), Link { inode: file, parent: zero, name: name.into() });
    let before = tree.node(file).stat(file).await.unwrap();
    let decided = match tree.node(zero).call(link("link")).await {
        Ok(MdtReply::Decided(decided)) => decided,
        other => panic!("{other:?}"),
    };
    in_time("it is made", tree.cluster.at_rest()).await;
    let found = tree.node(file).stat(file).await.unwrap();
    assert_eq!((found.attributes.links, decided.map), (2, None));
    assert!(decided.entry.attributes.ctime > before.attributes.ctime);
    let ctime = found.attributes.ctime;
    assert_eq!(Attributes { ctime, ..decided.entry.attributes }, found.attributes);
    let with = |number, features| {
        let options = ImportOptions { features, ..import_options() };
        tree.node(zero).connect_with(number, options, Arc::new(ComesBack))
    };
    let older = with(31, feature::ALL & !feature::DECIDED_INODES);
    assert_eq!(older.call(link("older")).await.unwrap().reply, MdtReply::Remote(file));
    let old = with(32, feature::ALL & !feature::SEVERAL_MDTS);
    assert_eq!(old.call(link("old")).await.map(drop), Err(FsError::NotSupported));
    in_time("all ends", tree.cluster.at_rest()).await;
    assert_eq!((tree.lookup((zero, "old")).await, tree.links(file).await), (Err(FsError::NotFound), Ok(3)));
    tree.cluster.end().await;
}

#[tokio::test]
async fn a_rename_of_one_link_to_another_link_does_nothing() {
    let tree = Tree::new(3).await;
    let restrict = async |inode: InodeNumber| {
        let changes = SetAttributes { mode: Some(0o1755), ..SetAttributes::default() };
        tree.node(inode).call(MdtRequest::SetAttributes(root(), inode, changes)).await.unwrap();
    };
    // The old name is on MDT 1, the new one on 0 or 2, the file on each.
    for home in 0..3 {
        let name = home.to_string();
        let file = tree.file(home, &name).await;
        for other in (0..3).filter(|other| *other != home) {
            tree.node(tree.on(other)).link(file, tree.on(other), &name).await.unwrap();
        }
    }
    let before = tree.cluster.at_rest().await;
    for directory in &tree.directories {
        restrict(*directory).await;
    }
    for home in 0..3 {
        let name = home.to_string();
        for (to, mode) in [(0, REPLACE), (2, REPLACE), (0, EXCHANGE), (2, EXCHANGE)] {
            let MdtRequest::Rename(_, request) = rename((tree.on(1), &name), (tree.on(to), &name), mode) else {
                panic!("a rename")
            };
            let outcome = tree.node(tree.on(to)).call(MdtRequest::Rename(user(7), request)).await;
            assert_eq!(outcome, DONE, "a file of MDT {home}, new name on MDT {to}, {mode:?}");
        }
        assert_eq!(tree.links(tree.lookup((tree.on(1), &name)).await.unwrap()).await, Ok(3));
    }
    assert_eq!(tree.cluster.at_rest().await, before);
}

#[tokio::test]
async fn directories_are_renamed_between_mdts() {
    let tree = Tree::new(3).await;
    let [zero, one, two] = tree.directories[..] else { panic!("three") };
    let moved = tree.directory(zero, "moved", 0).await;
    let inside = tree.node(moved).create(moved, "inside", NodeKind::Regular).await.unwrap();
    assert_eq!(tree.rename((zero, "moved"), (one, "new"), REPLACE).await, DONE);
    assert_eq!((tree.lookup((one, "new")).await, tree.parent(moved).await), (Ok(moved), Ok(one)));
    assert_eq!((tree.links(zero).await, tree.links(one).await), (Ok(2), Ok(3)));
    assert_eq!(tree.lookup((moved, "inside")).await, Ok(inside));
    assert_eq!(tree.rename((one, "new"), (two, "third"), REPLACE).await, DONE);
    assert_eq!((tree.links(one).await, tree.links(two).await, tree.parent(moved).await), (Ok(2), Ok(3), Ok(two)));
    // Over directories that are empty, and others.
    for mdt in 0..3 {
        let victim = tree.directory(zero, "victim", mdt).await;
        let file = tree.node(victim).create(victim, "file", NodeKind::Regular).await.unwrap();
        assert_eq!(tree.rename((two, "third"), (zero, "victim"), REPLACE).await, Err(FsError::NotEmpty));
        tree.node(victim).remove(victim, "file", false).await.unwrap();
        assert_eq!(tree.links(file).await, Err(FsError::Stale));
        assert_eq!(tree.rename((two, "third"), (zero, "victim"), REPLACE).await, DONE, "{mdt}");
        assert_eq!((tree.links(victim).await, tree.parent(moved).await), (Err(FsError::Stale), Ok(zero)));
        assert_eq!((tree.links(zero).await, tree.links(two).await), (Ok(3), Ok(2)));
        assert_eq!(tree.rename((zero, "victim"), (two, "third"), REPLACE).await, DONE);
    }
    // A directory and a file.
    let file = tree.file(1, "file").await;
    assert_eq!(tree.rename((two, "third"), (one, "file"), REPLACE).await, Err(FsError::NotDirectory));
    assert_eq!(tree.rename((one, "file"), (two, "third"), REPLACE).await, Err(FsError::IsDirectory));
    assert_eq!(tree.rename((one, "file"), (two, "third"), EXCHANGE).await, DONE);
    assert_eq!((tree.lookup((one, "file")).await, tree.lookup((two, "third")).await), (Ok(moved), Ok(file)));
    assert_eq!((tree.links(one).await, tree.links(two).await, tree.parent(moved).await), (Ok(3), Ok(2), Ok(one)));
    tree.cluster.at_rest().await;
}

#[tokio::test]
async fn names_are_exchanged_between_mdts() {
    let tree = Tree::new(3).await;
    let [zero, one, two] = tree.directories[..] else { panic!("three") };
    assert_eq!(tree.rename((zero, "x"), (one, "y"), EXCHANGE).await, Err(FsError::NotFound));
    let mut at = [(zero, "a"), (one, "b"), (two, "c")];
    let mut inodes = [tree.file(0, "a").await, tree.directory(one, "b", 2).await, tree.file(2, "c").await];
    for round in 0..12 {
        let (from, to) = (round % 3, (round + 1 + round / 6) % 3);
        assert_eq!(tree.rename(at[from], at[to], EXCHANGE).await, DONE, "{round}");
        inodes.swap(from, to);
        for (at, inode) in at.iter().zip(inodes) {
            assert_eq!(tree.lookup(*at).await, Ok(inode), "{round}");
        }
        let links = [tree.links(zero).await, tree.links(one).await, tree.links(two).await];
        assert_eq!(links.into_iter().map(Result::unwrap).sum::<u32>(), 7, "{round}");
        tree.cluster.at_rest().await;
    }
    // Both on the MDT of the old name, and both on the other one.
    at = [(zero, "d"), (one, "e"), (two, "c")];
    for home in [0, 1] {
        let [first, second] = [tree.file(home, "first").await, tree.file(home, "second").await];
        tree.rename((tree.on(home), "first"), at[0], REPLACE).await.unwrap();
        tree.rename((tree.on(home), "second"), at[1], REPLACE).await.unwrap();
        assert_eq!(tree.rename(at[0], at[1], EXCHANGE).await, DONE);
        assert_eq!((tree.lookup(at[0]).await, tree.lookup(at[1]).await), (Ok(second), Ok(first)));
        assert_eq!((tree.links(first).await, tree.links(second).await), (Ok(1), Ok(1)));
        tree.cluster.at_rest().await;
    }
}

#[tokio::test]
async fn a_directory_does_not_come_below_itself() {
    let tree = Tree::new(3).await;
    let [zero, one, two] = tree.directories[..] else { panic!("three") };
    // /on0/a on 0, /on0/a/b on 1, /on0/a/b/c on 2, /on0/a/b/c/d on 0.
    let a = tree.directory(zero, "a", 0).await;
    let b = tree.directory(a, "b", 1).await;
    let c = tree.directory(b, "c", 2).await;
    let d = tree.directory(c, "d", 0).await;
    for below in [b, c, d] {
        assert_eq!(tree.rename((zero, "a"), (below, "a"), REPLACE).await, Err(FsError::Invalid));
        assert_eq!(tree.rename((ROOT, "on0"), (below, "on0"), REPLACE).await, Err(FsError::Invalid));
    }
    assert_eq!(tree.rename((zero, "a"), (a, "a"), REPLACE).await, Err(FsError::Invalid));
    assert_eq!(tree.rename((zero, "a"), (c, "d"), EXCHANGE).await, Err(FsError::Invalid), "one is below the other");
    assert_eq!(tree.rename((c, "d"), (zero, "a"), EXCHANGE).await, Err(FsError::Invalid));
    assert_eq!(tree.rename((c, "d"), (zero, "a"), REPLACE).await, Err(FsError::NotEmpty));
    assert_eq!(tree.rename((c, "d"), (b, "c"), REPLACE).await, Err(FsError::NotEmpty), "its own parent");
    // Both ways where it is none.
    assert_eq!(tree.rename((b, "c"), (one, "c"), REPLACE).await, DONE);
    assert_eq!(tree.rename((zero, "a"), (d, "a"), REPLACE).await, DONE);
    assert_eq!(tree.rename((one, "c"), (b, "c"), REPLACE).await, Err(FsError::Invalid));
    assert_eq!((tree.parent(a).await, tree.parent(c).await), (Ok(d), Ok(one)));
    assert_eq!(tree.rename((d, "a"), (two, "a"), REPLACE).await, DONE);
    assert_eq!(tree.cluster.at_rest().await.len(), 2 + 4);
}

/// Each alone is possible, both together would make a loop: one fails.
#[tokio::test]
async fn two_renames_do_not_make_a_loop_together() {
    let tree = Tree::new(3).await;
    let mut winners = BTreeSet::new();
    for round in 0..24 {
        let (first, second) = (round % 3, (round + 1 + round / 3 % 2) % 3);
        let (one, other) = (tree.on(first), tree.on(second));
        let x = tree.directory(one, "x", second as u16).await;
        let y = tree.directory(other, "y", (round % 3) as u16).await;
        let below_x = tree.directory(x, "below", first as u16).await;
        let below_y = tree.directory(y, "below", second as u16).await;
        let imports = [below_y, below_x].map(|parent| tree.node(parent).import.clone());
        let into_y = call(&imports[0], rename((one, "x"), (below_y, "x"), REPLACE));
        let into_x = call(&imports[1], rename((other, "y"), (below_x, "y"), REPLACE));
        let (into_y, into_x) = match round / 6 {
            0 => (into_y.await, into_x.await),
            1 => {
                let into_x = into_x.await;
                (into_y.await, into_x)
            }
            _ => tokio::join!(into_y, into_x),
        };
        assert_eq!([&into_y, &into_x].iter().filter(|outcome| outcome.is_ok()).count(), 1, "{into_y:?} {into_x:?}");
        assert_eq!(into_y.as_ref().err().or(into_x.as_ref().err()), Some(&FsError::Invalid));
        winners.insert(into_y.is_ok());
        let (top, inner, above) = match into_y.is_ok() {
            true => ((other, "y"), (below_y, "x"), y),
            false => ((one, "x"), (below_x, "y"), x),
        };
        let moved = tree.lookup(inner).await.unwrap();
        assert_eq!(tree.parent(moved).await, Ok(inner.0));
        for (parent, name) in [(moved, "below"), inner, (above, "below"), top] {
            tree.node(parent).remove(parent, name, true).await.unwrap();
        }
        tree.cluster.at_rest().await;
    }
    assert_eq!(winners.len(), 2, "the first one wins");
}

#[tokio::test]
async fn permissions_are_those_of_one_mdt() {
    let tree = Tree::new(2).await;
    let [zero, one] = tree.directories[..] else { panic!("two") };
    let set = |mode, uid| SetAttributes { mode: Some(mode), uid, ..SetAttributes::default() };
    let change = async |inode: InodeNumber, changes| {
        tree.node(inode).call(MdtRequest::SetAttributes(root(), inode, changes)).await.unwrap();
    };
    for directory in [zero, one] {
        change(directory, set(0o1777, None)).await;
    }
    let file = tree.file(0, "file").await;
    let by = async |from, to: (InodeNumber, &str), mode| {
        let MdtRequest::Rename(_, request) = rename(from, to, mode) else { panic!("a rename") };
        tree.node(to.0).call(MdtRequest::Rename(user(7), request)).await
    };
    let unlink_by = async |parent: InodeNumber, name: &str| {
        let MdtRequest::Unlink(_, request) = remove(parent, name, false) else { panic!("a removal") };
        tree.node(parent).call(MdtRequest::Unlink(user(7), request)).await
    };
    let not_permitted = Err(FsError::NotPermitted);
    assert_eq!(by((zero, "file"), (one, "file"), REPLACE).await, not_permitted, "the old directory is sticky");
    change(file, set(0o644, Some(7))).await;
    assert_eq!(by((zero, "file"), (one, "file"), REPLACE).await, DONE, "its own file");
    let other = tree.file(0, "other").await;
    assert_eq!(by((one, "file"), (zero, "other"), REPLACE).await, not_permitted, "the other's file");
    assert_eq!(by((one, "file"), (zero, "other"), EXCHANGE).await, not_permitted);
    change(other, set(0o644, Some(7))).await;
    assert_eq!(by((one, "file"), (zero, "other"), EXCHANGE).await, DONE);
    change(other, set(0o644, Some(8))).await;
    assert_eq!(unlink_by(one, "file").await, not_permitted, "it is the other's now");
    change(one, set(0o777, None)).await;
    assert_eq!(unlink_by(one, "file").await, DONE);
    // A directory gets another parent only if its '..' may be written.
    let directory = tree.directory(zero, "directory", 1).await;
    change(directory, set(0o555, Some(7))).await;
    assert_eq!(by((zero, "directory"), (one, "directory"), REPLACE).await, Err(FsError::AccessDenied));
    change(directory, set(0o755, Some(7))).await;
    assert_eq!(by((zero, "directory"), (one, "directory"), REPLACE).await, DONE);
    change(one, set(0o755, None)).await;
    assert_eq!(by((zero, "other"), (one, "other"), REPLACE).await, Err(FsError::AccessDenied));
    assert_eq!(by((one, "directory"), (zero, "directory"), REPLACE).await, Err(FsError::AccessDenied));
    tree.cluster.at_rest().await;
}

/// What a directory says of the kind of an inode is wrong: what is here counts, and what another
/// MDT says otherwise is damage. No MDT comes to harm.
#[tokio::test]
async fn a_name_that_says_the_wrong_kind_does_no_harm() {
    let mut tree = Tree::new(2).await;
    let [zero, one] = tree.directories[..] else { panic!("two") };
    let [exchanged, local, moved] = [tree.file(0, "0").await, tree.file(1, "1").await, tree.file(0, "2").await];
    for (from, to) in [((zero, "0"), (one, "0")), ((zero, "2"), (one, "2")), ((one, "1"), (zero, "far"))] {
        assert_eq!(tree.rename(from, to, REPLACE).await, DONE);
    }
    // Names on MDT 1: two lead to MDT 0, one stays.
    let (here, other) = (tree.file(1, "here").await, tree.file(0, "other").await);
    let distant = tree.directory(one, "distant", 0).await;
    tree.cluster.at_rest().await;
    tree.cluster.0[1]
        .damage(|batch| {
            for (name, inode) in [("0", exchanged), ("2", moved), ("here", here)] {
                batch.put(ENTRIES, entry_key(one, name), entry_record(name, inode, FileKind::Fifo));
            }
        })
        .await;
    tree.cluster.start(&[1]).await;
    let is_damage = |outcome: FsResult<MdtReply>| assert!(matches!(outcome, Err(FsError::Damaged(_))), "{outcome:?}");
    // The MDT of the new name says what the old one is to lead to.
    is_damage(tree.rename((zero, "other"), (one, "0"), EXCHANGE).await);
    // It says what another MDT is to rename.
    is_damage(tree.rename((one, "0"), (one, "new"), REPLACE).await);
    // The inode is where the new name is.
    assert_eq!(tree.rename((one, "2"), (zero, "2"), REPLACE).await, DONE);
    // Names and the inode are here, but not what is replaced.
    is_damage(tree.rename((one, "here"), (one, "0"), EXCHANGE).await);
    assert_eq!(tree.rename((zero, "other"), (one, "other"), REPLACE).await, DONE);
    assert_eq!(tree.rename((one, "here"), (one, "other"), REPLACE).await, DONE);
    let found = [(zero, "2"), (one, "other"), (zero, "far"), (one, "distant")];
    for (at, inode) in found.into_iter().zip([moved, here, local, distant]) {
        assert_eq!(tree.lookup(at).await, Ok(inode));
    }
    assert_eq!(tree.links(other).await, Err(FsError::Stale));
    assert_eq!(tree.lookup((one, "0")).await, Ok(exchanged), "it stays as it was");
}

/// Many renames at once over the same few names: each name leads somewhere or nowhere, and each
/// file has one name.
#[tokio::test]
async fn renames_at_once_lose_and_double_nothing() {
    const FILES: usize = 6;
    let tree = Tree::new(3).await;
    let mut files = BTreeSet::new();
    for number in 0..FILES {
        files.insert(tree.file(number % 3, &number.to_string()).await);
    }
    let places: Vec<(InodeNumber, String)> =
        tree.directories.iter().flat_map(|at| (0..FILES).map(|number| (*at, number.to_string()))).collect();
    for round in 0..30 {
        let mut tasks = Vec::new();
        for task in 0..6 {
            let pick = |salt: usize| &places[(round * 7 + task * 5 + salt * (round + 3)) % places.len()];
            let (from, to) = (pick(1), pick(2));
            let mode = if task % 2 == 0 { EXCHANGE } else { RenameMode::NoReplace };
            let request = rename((from.0, &from.1), (to.0, &to.1), mode);
            let import = tree.node(to.0).import.clone();
            tasks.push(tokio::spawn(async move { call(&import, request).await }));
        }
        for task in tasks {
            let outcome = task.await.unwrap();
            assert!(matches!(outcome, DONE | Err(FsError::NotFound | FsError::Exists)), "{outcome:?}");
        }
        tree.cluster.at_rest().await;
        let mut found = BTreeMap::new();
        for (parent, name) in &places {
            if let Ok(inode) = tree.lookup((*parent, name)).await {
                assert_eq!(found.insert(inode, name), None, "round {round}");
                assert_eq!(tree.links(inode).await, Ok(1));
            }
        }
        assert_eq!(found.into_keys().collect::<BTreeSet<_>>(), files, "round {round}");
    }
    assert!(files.iter().map(|file| file.mdt()).collect::<BTreeSet<_>>().contains(&MdtIndex(2)));
}
