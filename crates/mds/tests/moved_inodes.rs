//! Inodes that move to another MDT (decision 0066), between real ones.

use bytes::Bytes;
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use rpc::{
    Question,
    checksum::checksums,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest,
        lock::inode_bit,
        mdt::{Close, Create, Entry, Open, OpenFlags, OpenId, RenameMode, SetXattr, XattrMode},
        ost::{Read, Write},
        session::feature,
    },
};
use types::{
    DirectoryMap, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, ObjectId, Owner, SetAttributes,
    limits::GIVEN_NAMES_MAX,
};

use super::{
    absent_mdts::{Keeps, in_time},
    common::{
        READ, ROOT, WRITE, create_request, created, root,
        several::{Node, call, make_directory, rename},
        size_update, user,
    },
    distant_names::Tree,
    split_directories::split_wholly,
    striped_directories::map_of,
};

/// Asks an MDT to take an inode.
async fn take(node: &Node, inode: InodeNumber) -> FsResult<()> {
    match in_time("a move", node.call(MdtRequest::MoveInode(root(), inode))).await? {
        MdtReply::Done => Ok(()),
        other => panic!("a move was answered {other:?}"),
    }
}

/// What stays of an inode when it moves.
async fn shown(tree: &Tree, inode: InodeNumber) -> Entry {
    let mut entry = in_time("stat", tree.node(inode).stat(inode)).await.unwrap();
    entry.attributes.inode = ROOT;
    entry
}

async fn find(tree: &Tree, at: (InodeNumber, &str)) -> InodeNumber {
    in_time("a look-up", tree.lookup(at)).await.unwrap()
}

async fn set_xattr(node: &Node, inode: InodeNumber, name: &str) {
    let set =
        SetXattr { inode, name: name.as_bytes().to_vec(), value: name.as_bytes().to_vec(), mode: XattrMode::Create };
    node.call(MdtRequest::SetXattr(root(), set)).await.unwrap();
}

async fn has_xattr(node: &Node, inode: InodeNumber, name: &str) {
    let value = node.call(MdtRequest::GetXattr(root(), inode, name.as_bytes().to_vec())).await;
    assert_eq!(value, Ok(MdtReply::Value(name.as_bytes().to_vec())));
}

#[tokio::test]
async fn an_inode_moves_with_all_its_names_and_attributes() {
    let tree = Tree::new(3).await;
    let file = tree.file(1, "file").await;
    let parents = [tree.on(0), tree.on(1), tree.on(2)];
    for parent in parents {
        tree.node(parent).link(file, parent, "link").await.unwrap();
        tree.node(parent).link(file, parent, "other").await.unwrap();
    }
    set_xattr(tree.node(file), file, "user.a").await;
    let set = SetAttributes { mode: Some(0o640), uid: Some(7), ..SetAttributes::default() };
    tree.node(file).call(MdtRequest::SetAttributes(root(), file, set)).await.unwrap();
    let (mut former, before) = (file, shown(&tree, file).await);
    for to in [0, 2, 1, 0] {
        let node = &tree.cluster.0[to];
        take(node, former).await.unwrap();
        let moved = find(&tree, (parents[0], "link")).await;
        assert_eq!(moved.mdt(), MdtIndex(to as u16));
        for parent in parents {
            assert_eq!([find(&tree, (parent, "link")).await, find(&tree, (parent, "other")).await], [moved; 2]);
        }
        assert_eq!(find(&tree, (parents[1], "file")).await, moved);
        assert_eq!(shown(&tree, moved).await, before, "not even a time changes");
        assert_eq!(before.attributes.links, 7);
        has_xattr(node, moved, "user.a").await;
        assert_eq!(tree.links(former).await, Err(FsError::Stale));
        assert_eq!(take(node, former).await, Err(FsError::Stale));
        take(node, moved).await.unwrap();
        in_time("all ends", tree.cluster.at_rest()).await;
        former = moved;
    }
    for parent in parents {
        tree.node(parent).remove(parent, "link", false).await.unwrap();
        tree.node(parent).remove(parent, "other", false).await.unwrap();
    }
    tree.node(parents[1]).remove(parents[1], "file", false).await.unwrap();
    assert_eq!(in_time("all ends", tree.cluster.at_rest()).await.len(), 2, "the directories");
    assert_eq!(tree.links(former).await, Err(FsError::Stale));
    tree.cluster.end().await;
}

/// Where the directory is that has its name does not change: kernels would drop what is mounted
/// below that. The names in it do.
#[tokio::test]
async fn the_directory_of_an_inode_that_moves_is_found_where_it_was() {
    let tree = Tree::new(2).await;
    let parent = tree.on(1);
    let (file, directory) = (tree.file(1, "file").await, tree.directory(parent, "sub", 1).await);
    let (keeps, holder) = Keeps::parts_of((tree.node(parent), 20), parent, inode_bit::LOOKUP).await;
    for inode in [file, directory] {
        take(&tree.cluster.0[0], inode).await.unwrap();
    }
    in_time("all ends", tree.cluster.at_rest()).await;
    assert!(!keeps.was_asked());
    keeps.give_back(&holder).await;
    // What changes is asked back.
    let (file, directory) = (tree.file(1, "another").await, tree.directory(parent, "another sub", 1).await);
    for (client, of, bits, moved) in
        [(21, parent, inode_bit::DIRECTORY, file), (22, directory, inode_bit::LOOKUP, directory)]
    {
        let (keeps, holder) = Keeps::parts_of((tree.node(of), client), of, bits).await;
        let gives_back = async {
            keeps.is_asked().await;
            keeps.give_back(&holder).await;
        };
        let (moved, ()) = tokio::join!(take(&tree.cluster.0[0], moved), gives_back);
        moved.unwrap();
    }
    tree.cluster.end().await;
}

#[tokio::test]
async fn inodes_of_all_kinds_move() {
    let tree = Tree::new(2).await;
    let (on, node) = (tree.on(0), &tree.cluster.0[0]);
    let kinds =
        [NodeKind::Symlink(b"to/there".to_vec()), NodeKind::Fifo, NodeKind::Socket, NodeKind::BlockDevice(0x801)];
    for (index, kind) in kinds.into_iter().enumerate() {
        let name = format!("node{index}");
        let inode = node.create(on, &name, kind.clone()).await.unwrap();
        let before = shown(&tree, inode).await;
        take(&tree.cluster.0[1], inode).await.unwrap();
        let moved = find(&tree, (on, &name)).await;
        assert_eq!((moved.mdt(), shown(&tree, moved).await), (MdtIndex(1), before));
        if kind.file_kind() == FileKind::Symlink {
            let target = tree.node(moved).call(MdtRequest::ReadLink(moved)).await;
            assert_eq!(target, Ok(MdtReply::Target(b"to/there".to_vec())));
        }
    }
    tree.cluster.end().await;
}

/// Creates a file of which the beginning is on the MDT, writes and closes it.
async fn with_data(node: &Node, parent: InodeNumber, name: &str, data: &Bytes) -> InodeNumber {
    let layout = LayoutSpec::Composite(vec![
        ComponentSpec { end: 128 << 10, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ]);
    let (open, flags) = (OpenId(1), OpenFlags(READ | WRITE));
    let create = create_request(parent, name, NodeKind::Regular, 0o644, Some((open, flags)));
    let create = Create { layout: Some(layout), ..create };
    let made = created(node.call(MdtRequest::Create(root(), create)).await.unwrap());
    let inode = made.entry.attributes.inode;
    let object = ObjectId::new(inode, 0);
    let (checksums, owner) = (checksums(0, data), Owner::default());
    let write = Write { object, offset: 0, checksums, sync: false, layout_generation: 0, owner };
    let request = MdtRequest::ChangeData(OstRequest::Write(write));
    node.import.call(Question::with_bulk(request, data.clone())).await.unwrap();
    let epoch = made.opened.expect("it is open").epoch;
    let update = Some(size_update(epoch, data.len() as u64));
    node.call(MdtRequest::Close(Close { inode, open, update, flock_owner: None })).await.unwrap();
    inode
}

async fn read(node: &Node, inode: InodeNumber, bytes: u32) -> Bytes {
    let read = Read { object: ObjectId::new(inode, 0), offset: 0, bytes, layout_generation: 0 };
    let answered = node.import.call(MdtRequest::ReadData(OstRequest::Read(read))).await.unwrap();
    assert!(matches!(answered.reply, MdtReply::Data(OstReply::Read(_))));
    answered.bulk
}

#[tokio::test]
async fn data_on_the_mdt_move_with_their_file() {
    let tree = Tree::new(2).await;
    let [zero, one] = &tree.cluster.0[..] else { panic!("two") };
    let data = Bytes::from((0..50_000_u32).map(|at| at as u8).collect::<Vec<_>>());
    let file = with_data(zero, tree.on(0), "file", &data).await;
    let before = shown(&tree, file).await;
    assert_eq!(before.attributes.size, 50_000);
    take(one, file).await.unwrap();
    let moved = find(&tree, (tree.on(0), "file")).await;
    assert_eq!(shown(&tree, moved).await, before);
    assert_eq!(read(one, moved, 60_000).await, data);
    in_time("all ends", tree.cluster.at_rest()).await;
    tree.cluster.end().await;
}

#[tokio::test]
async fn what_is_open_stays() {
    let tree = Tree::new(2).await;
    let [zero, one] = &tree.cluster.0[..] else { panic!("two") };
    let (file, open) = (tree.file(0, "file").await, OpenId(1));
    let directory = tree.directory(tree.on(0), "directory", 0).await;
    for inode in [file, directory] {
        let request = Open { inode, open, flags: OpenFlags(READ) };
        zero.call(MdtRequest::Open(root(), request)).await.unwrap();
        assert_eq!(take(one, inode).await, Err(FsError::Busy));
        assert_eq!(tree.links(inode).await, Ok(if inode == file { 1 } else { 2 }));
        zero.call(MdtRequest::Close(Close { inode, open, update: None, flock_owner: None })).await.unwrap();
        take(one, inode).await.unwrap();
    }
    in_time("all ends", tree.cluster.at_rest()).await;
    tree.cluster.end().await;
}

/// A striped directory, in one that is not, on this MDT and with shards on these.
pub async fn striped(tree: &Tree, parent: InodeNumber, name: &str, (mdt, mdts): (u16, &[u16])) -> DirectoryMap {
    let MdtRequest::MakeDirectory(who, mut make) = make_directory(parent, name, mdt) else { panic!("a creation") };
    make.stripes.mdts = mdts.iter().map(|mdt| MdtIndex(*mdt)).collect();
    in_time("mkdir", tree.node(parent).call(MdtRequest::MakeDirectory(who, make))).await.unwrap();
    map_of(&tree.cluster, find(tree, (parent, name)).await).await
}

async fn shown_all(tree: &Tree, inodes: &[InodeNumber]) -> Vec<Entry> {
    let mut all = Vec::new();
    for inode in inodes {
        all.push(shown(tree, *inode).await);
    }
    all
}

/// A striped directory moves from each MDT to each other one. Its names, and the shards that have
/// them, stay where they are.
#[tokio::test]
async fn a_striped_directory_moves_and_its_shards_stay() {
    let tree = Tree::new(3).await;
    let parent = tree.on(1);
    let mut map = striped(&tree, parent, "striped", (0, &[2, 0, 1, 2, 0, 1])).await;
    let mut names = Vec::new();
    for number in 0..12 {
        let name = format!("f{number}");
        let shard = map.shard_of(name.as_bytes()).unwrap();
        names.push((tree.node(shard).create(shard, &name, NodeKind::Fifo).await.unwrap(), shard, name));
    }
    set_xattr(tree.node(map.master), map.master, "user.a").await;
    let mut subs = Vec::new();
    for to in [1, 2, 0, 2] {
        let (former, node) = (map.master, &tree.cluster.0[to]);
        let (before, shards) = (shown(&tree, former).await, shown_all(&tree, &map.shards).await);
        take(node, former).await.unwrap();
        let moved = find(&tree, (parent, "striped")).await;
        assert_eq!((moved.mdt(), shown(&tree, moved).await), (MdtIndex(to as u16), before));
        in_time("all ends", tree.cluster.at_rest()).await;
        assert_eq!(shown_all(&tree, &map.shards).await, shards, "nor do times of shards change, wherever they are");
        assert_eq!(tree.links(former).await, Err(FsError::Stale));
        let now = map_of(&tree.cluster, moved).await;
        assert_eq!((now.master, &now.shards), (moved, &map.shards));
        has_xattr(node, moved, "user.a").await;
        map = now;
        // The shards know it: what is in them has it as its parent, and a change of it is theirs.
        for (inode, shard, name) in &names {
            assert_eq!(find(&tree, (*shard, name)).await, *inode);
        }
        let mode = 0o700 + to as u32;
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        in_time("chmod", node.call(MdtRequest::SetAttributes(root(), moved, set))).await.unwrap();
        in_time("all ends", tree.cluster.at_rest()).await;
        for shard in &map.shards {
            assert_eq!(tree.node(*shard).stat(*shard).await.unwrap().attributes.mode, mode, "to {to}");
            assert_eq!(in_time("..", tree.parent(*shard)).await, Ok(moved), "to {to}");
        }
        // What is made in it afterwards has it as its parent, too.
        let name = format!("sub{}", subs.len());
        let shard = map.shard_of(name.as_bytes()).unwrap();
        let sub = in_time("mkdir", tree.node(shard).create(shard, &name, NodeKind::Directory)).await.unwrap();
        assert_eq!(in_time("..", tree.parent(sub)).await, Ok(moved), "to {to}");
        subs.push((shard, name));
    }
    for (shard, name) in subs {
        in_time("rmdir", tree.node(shard).remove(shard, &name, true)).await.unwrap();
    }
    let rmdir = |name| in_time("rmdir", tree.node(parent).remove(parent, name, true));
    assert_eq!(rmdir("striped").await, Err(FsError::NotEmpty));
    for (_, shard, name) in names {
        tree.node(shard).remove(shard, &name, false).await.unwrap();
    }
    rmdir("striped").await.unwrap();
    assert_eq!(in_time("all ends", tree.cluster.at_rest()).await.len(), 2);
    for shard in map.shards {
        assert_eq!(tree.links(shard).await, Err(FsError::Stale));
    }
    tree.cluster.end().await;
}

/// A directory with more names than move at once: they move to a shard of the other MDT, the
/// directory follows, and gets them back there.
#[tokio::test]
async fn a_directory_with_many_names_moves_after_them() {
    let tree = Tree::new(3).await;
    let parent = tree.on(2);
    let [zero, one, _] = &tree.cluster.0[..] else { panic!("three") };
    let full = tree.directory(parent, "full", 0).await;
    for number in 0..=GIVEN_NAMES_MAX {
        zero.create(full, &number.to_string(), NodeKind::Fifo).await.unwrap();
    }
    let far = tree.directory(full, "far", 2).await;
    let before = shown(&tree, far).await;
    assert_eq!(take(one, full).await, Err(FsError::TooBig));
    in_time("the split", split_wholly(&zero.import, full, &[1])).await.unwrap();
    in_time("the split", split_wholly(&zero.import, full, &[1])).await.unwrap();
    take(one, full).await.unwrap();
    let moved = find(&tree, (parent, "full")).await;
    assert_eq!(moved.mdt(), MdtIndex(1));
    let [shard] = map_of(&tree.cluster, moved).await.shards[..] else { panic!("one shard") };
    take(one, find(&tree, (shard, "7")).await).await.unwrap();
    in_time("the merge", split_wholly(&one.import, moved, &[1])).await.unwrap();
    for number in 0..=GIVEN_NAMES_MAX {
        let found = find(&tree, (moved, &number.to_string())).await;
        assert_eq!(found.mdt().0, u16::from(number == 7), "{number}");
    }
    assert_eq!(in_time("..", tree.parent(far)).await, Ok(moved));
    assert_eq!(tree.links(moved).await, Ok(3));
    in_time("all ends", tree.cluster.at_rest()).await;
    assert_eq!(shown(&tree, far).await, before, "its name has moved twice and its directory once: no time changes");
    assert_eq!([tree.links(full).await, tree.links(shard).await], [Err(FsError::Stale), Err(FsError::Stale)]);
    tree.cluster.end().await;
}

#[tokio::test]
async fn what_does_not_move_is_refused() {
    let tree = Tree::new(2).await;
    let [zero, one] = &tree.cluster.0[..] else { panic!("two") };
    assert_eq!(take(one, ROOT).await, Err(FsError::Invalid));
    let file = tree.file(0, "file").await;
    assert_eq!(one.call(MdtRequest::MoveInode(user(7), file)).await, Err(FsError::NotPermitted));
    let map = striped(&tree, ROOT, "striped", (0, &[0, 1])).await;
    for shard in map.shards {
        let to = &tree.cluster.0[1 - usize::from(shard.mdt().0)];
        assert_eq!(take(to, shard).await, Err(FsError::NotSupported));
    }
    let full = tree.directory(tree.on(0), "full", 0).await;
    for name in 0..=GIVEN_NAMES_MAX {
        zero.create(full, &name.to_string(), NodeKind::Fifo).await.unwrap();
    }
    assert_eq!(take(one, full).await, Err(FsError::TooBig));
    zero.remove(full, "0", false).await.unwrap();
    take(one, full).await.unwrap();
    in_time("all ends", tree.cluster.at_rest()).await;
    tree.cluster.end().await;
}

/// A directory with names of inodes on all MDTs moves from each to each other one, with its name on
/// each.
#[tokio::test]
async fn a_directory_moves_and_what_is_named_in_it_stays() {
    for home in 0..3 {
        let tree = Tree::new(3).await;
        let parent = tree.on(home);
        let mut former = tree.directory(parent, "directory", 1).await;
        let mut children = Vec::new();
        for mdt in 0..3 {
            children.push((format!("sub{mdt}"), tree.directory(former, &format!("sub{mdt}"), mdt).await));
            let file = tree.file(usize::from(mdt), "made").await;
            tree.rename((tree.on(mdt.into()), "made"), (former, &format!("file{mdt}")), RenameMode::Replace)
                .await
                .unwrap();
            children.push((format!("file{mdt}"), file));
        }
        set_xattr(tree.node(former), former, "user.a").await;
        let (mut before, above) = (shown(&tree, former).await, shown(&tree, parent).await);
        let inodes: Vec<InodeNumber> = children.iter().map(|(_, child)| *child).collect();
        let of_children = shown_all(&tree, &inodes).await;
        for to in [2, 0, 1] {
            let node = &tree.cluster.0[to];
            take(node, former).await.unwrap();
            let moved = find(&tree, (parent, "directory")).await;
            assert_eq!((moved.mdt(), shown(&tree, moved).await), (MdtIndex(to as u16), before.clone()));
            assert_eq!(shown(&tree, parent).await, above);
            assert_eq!(in_time("..", tree.parent(moved)).await, Ok(parent));
            has_xattr(node, moved, "user.a").await;
            for (name, child) in &children {
                assert_eq!(find(&tree, (moved, name)).await, *child, "{name}");
                if name.starts_with("sub") {
                    assert_eq!(in_time("..", tree.parent(*child)).await, Ok(moved), "{name}");
                }
            }
            // What is made in it is where it is.
            let new = node.create(moved, "new", NodeKind::Regular).await.unwrap();
            assert_eq!(new.mdt(), MdtIndex(to as u16));
            node.remove(moved, "new", false).await.unwrap();
            (former, before) = (moved, shown(&tree, moved).await);
        }
        in_time("all ends", tree.cluster.at_rest()).await;
        assert_eq!(shown_all(&tree, &inodes).await, of_children, "not even a time changes");
        for (name, child) in children {
            let is_directory = name.starts_with("sub");
            tree.node(former).remove(former, &name, is_directory).await.unwrap();
            assert_eq!(tree.links(child).await, Err(FsError::Stale), "{name}");
        }
        tree.node(parent).remove(parent, "directory", true).await.unwrap();
        assert_eq!(in_time("all ends", tree.cluster.at_rest()).await.len(), 2);
        tree.cluster.end().await;
    }
}

/// An MDT of an earlier release has a part in a move: names of what moves, or something that is
/// named in it. It is not asked for what it does not know, and nothing has changed.
#[tokio::test]
async fn moves_with_a_part_at_an_older_mdt_are_refused() {
    let mut tree = Tree::new(3).await;
    let one = 1;
    let full = tree.directory(tree.on(0), "full", 0).await;
    tree.directory(full, "far", 2).await;
    let map = striped(&tree, tree.on(0), "striped", (0, &[0, 2])).await;
    let plain = tree.directory(tree.on(0), "plain", 0).await;
    for missing in [feature::MOVING_INODES, feature::MOVING_STRIPED] {
        tree.cluster.0[2].set_missing(missing);
        tree.cluster.restart(&[2]).await;
        in_time("all ends", tree.cluster.at_rest()).await;
        let node = &tree.cluster.0[one];
        assert_eq!(take(node, map.master).await, Err(FsError::NotSupported));
        if missing == feature::MOVING_INODES {
            assert_eq!(take(node, full).await, Err(FsError::NotSupported));
            let split = in_time("a split", split_wholly(&tree.cluster.0[0].import, full, &[1])).await;
            assert_eq!(split, Err(FsError::NotSupported), "its names do not go ahead of it");
        }
        in_time("all ends", tree.cluster.at_rest()).await;
        assert_eq!(find(&tree, (tree.on(0), "full")).await, full);
        assert_eq!(map_of(&tree.cluster, map.master).await.shards, map.shards);
    }
    // It has no part in this.
    take(&tree.cluster.0[one], plain).await.unwrap();
    take(&tree.cluster.0[one], full).await.unwrap();
    tree.cluster.0[2].set_missing(0);
    tree.cluster.restart(&[2]).await;
    take(&tree.cluster.0[one], map.master).await.unwrap();
    in_time("all ends", tree.cluster.at_rest()).await;
    tree.cluster.end().await;
}

/// Two clients move what is in each other's way, while others rename and link it.
#[tokio::test]
async fn moves_and_changes_of_names_meet() {
    let tree = Tree::new(3).await;
    let directory = tree.directory(tree.on(0), "directory", 1).await;
    let file = tree.node(directory).create(directory, "file", NodeKind::Regular).await.unwrap();
    let mover = |to: usize, path: &'static [&'static str]| {
        let (nodes, on) = (tree.cluster.0.iter().map(|node| node.import.clone()).collect::<Vec<_>>(), tree.on(0));
        async move {
            let mut moved = 0;
            'rounds: for _ in 0..30 {
                let mut at = on;
                for name in path {
                    let lookup = rpc::message::mdt::Lookup { parent: at, name: name.as_bytes().to_vec() };
                    let asked = call(&nodes[usize::from(at.mdt().0)], MdtRequest::Lookup(root(), lookup)).await;
                    at = match asked {
                        Ok(MdtReply::Remote(inode)) => inode,
                        Ok(MdtReply::Entry(entry)) => entry.attributes.inode,
                        Ok(MdtReply::Absent) | Err(FsError::Stale) => continue 'rounds,
                        other => panic!("{other:?}"),
                    };
                }
                match call(&nodes[to], MdtRequest::MoveInode(root(), at)).await {
                    Ok(_) => moved += 1,
                    Err(FsError::Stale | FsError::Busy) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            moved
        }
    };
    let renamer = async {
        let names = ["directory", "renamed"];
        for round in 0..20 {
            let (from, to) = (names[round % 2], names[(round + 1) % 2]);
            let request = rename((tree.on(0), from), (tree.on(0), to), RenameMode::Replace);
            loop {
                match tree.node(tree.on(0)).call(request.clone()).await {
                    Ok(_) => break,
                    Err(FsError::Stale) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    let all = async {
        tokio::join!(
            mover(0, &["directory"]),
            mover(2, &["directory"]),
            mover(0, &["directory", "file"]),
            mover(1, &["renamed", "file"]),
            renamer
        )
    };
    let counts = tokio::time::timeout(std::time::Duration::from_secs(120), all).await.expect("all end");
    println!("{counts:?}");
    in_time("all ends", tree.cluster.at_rest()).await;
    let directory = find(&tree, (tree.on(0), "directory")).await;
    let found = find(&tree, (directory, "file")).await;
    assert!(found != file, "it has moved");
    assert_eq!((tree.links(directory).await, tree.links(found).await), (Ok(2), Ok(1)));
    tree.node(directory).remove(directory, "file", false).await.unwrap();
    tree.node(tree.on(0)).remove(tree.on(0), "directory", true).await.unwrap();
    assert_eq!(in_time("all ends", tree.cluster.at_rest()).await.len(), 2);
    tree.cluster.end().await;
}
