//! A directory that gets shards: its names move there, whatever happens meanwhile
//! (docs/decisions/0062-directories-that-split.md).

use std::{collections::BTreeMap, time::Duration};

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{
        COOKIE_HASH_BITS, COOKIE_PARENT, LayoutInfo, Lookup, MovingNames, Open, OpenFlags, OpenId, ReadDirectory,
        RenameMode, first_cookie, open_flag,
    },
    mdt_peer::SplitDirectory,
};
use types::{DirectoryMap, FsError, FsResult, InodeNumber, MdtIndex, NameHash, NodeKind, Stripes};

use super::{
    absent_mdts::{FAULTS, Fault, in_time, interrupt},
    common::{
        ROOT, create_request, created, root,
        several::{Cluster, call, remove, rename},
    },
};

pub(crate) fn split(directory: InodeNumber, mdts: &[u16]) -> MdtRequest {
    let mdts = mdts.iter().map(|mdt| MdtIndex(*mdt)).collect();
    let stripes = Stripes { hash: NameHash::Fnv1a64, mdts };
    MdtRequest::SplitDirectory(root(), SplitDirectory { directory, stripes })
}

/// As a client does it: until all names have moved.
pub(crate) async fn split_wholly(import: &rpc::Import, directory: InodeNumber, mdts: &[u16]) -> FsResult<()> {
    loop {
        match call(import, split(directory, mdts)).await? {
            MdtReply::Waiting => {}
            MdtReply::Done => return Ok(()),
            other => panic!("{other:?}"),
        }
    }
}

/// Names of a directory, and to what they lead.
pub(crate) type Names = BTreeMap<String, InodeNumber>;

/// Files, directories, and what is on other MDTs, in a directory on MDT 0.
pub(crate) async fn filled(cluster: &Cluster, files: usize) -> (InodeNumber, Names) {
    let zero = &cluster.0[0];
    let directory = zero.create(ROOT, "directory", NodeKind::Directory).await.unwrap();
    let mut names = Names::new();
    for number in 0..files {
        let name = format!("file{number}");
        names.insert(name.clone(), zero.create(directory, &name, NodeKind::Regular).await.unwrap());
    }
    for number in 0..5 {
        let name = format!("near{number}");
        names.insert(name.clone(), zero.create(directory, &name, NodeKind::Directory).await.unwrap());
    }
    for number in 0..12 {
        let name = format!("far{number}");
        names.insert(name.clone(), zero.make_directory(directory, &name, 1).await.unwrap());
    }
    // Names of one file, here and elsewhere.
    let elsewhere = zero.make_directory(ROOT, "elsewhere", 1).await.unwrap();
    let file = cluster.0[1].create(elsewhere, "file", NodeKind::Regular).await.unwrap();
    for (name, inode) in [("far-one", file), ("far-two", file), ("near-two", names["file0"])] {
        zero.link(inode, directory, name).await.unwrap();
        names.insert(name.to_owned(), inode);
    }
    (directory, names)
}

/// The map of a directory, also while its names move.
pub(crate) async fn map_of(cluster: &Cluster, directory: InodeNumber) -> DirectoryMap {
    match cluster.0[0].call(MdtRequest::GetLayout(directory)).await {
        Ok(MdtReply::Layout(LayoutInfo { map: Some(map), .. })) => map,
        other => panic!("{other:?}"),
    }
}

/// As a client does it: asks the shard that is to have a name, and the directory if it has the name
/// still. Returns which of them has answered.
pub(crate) async fn ask(
    cluster: &Cluster,
    map: &DirectoryMap,
    name: &str,
    request: impl Fn(InodeNumber) -> MdtRequest,
) -> FsResult<(InodeNumber, MdtReply)> {
    let shard = map.shard_of(name.as_bytes()).unwrap();
    let mut at = shard;
    loop {
        match cluster.0[usize::from(at.mdt().0)].call(request(at)).await? {
            MdtReply::Striped(answer) if answer.shards.is_empty() => {
                assert_eq!((answer.master, at), (map.master, shard), "a shard says that");
                at = map.master;
            }
            MdtReply::Striped(answer) => {
                assert_eq!((&answer, at), (map, map.master), "the directory says that");
                at = shard;
                // The shard has not heard of it.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            reply => return Ok((at, reply)),
        }
    }
}

/// Who has a name, and what it leads to.
pub(crate) async fn find(cluster: &Cluster, map: &DirectoryMap, name: &str) -> FsResult<(InodeNumber, InodeNumber)> {
    let lookup = |parent| MdtRequest::Lookup(root(), Lookup { parent, name: name.as_bytes().to_vec() });
    match ask(cluster, map, name, lookup).await? {
        (at, MdtReply::Entry(entry)) => Ok((at, entry.attributes.inode)),
        (at, MdtReply::Remote(inode)) => Ok((at, inode)),
        (_, MdtReply::Absent) => Err(FsError::NotFound),
        (_, other) => panic!("{other:?}"),
    }
}

pub(crate) async fn lookup(cluster: &Cluster, map: &DirectoryMap, name: &str) -> FsResult<InodeNumber> {
    find(cluster, map, name).await.map(|(_, inode)| inode)
}

pub(crate) async fn create_file(cluster: &Cluster, map: &DirectoryMap, name: &str) -> FsResult<InodeNumber> {
    let create = |parent| MdtRequest::Create(root(), create_request(parent, name, NodeKind::Regular, 0o644, None));
    let (_, reply) = ask(cluster, map, name, create).await?;
    Ok(created(reply).entry.attributes.inode)
}

/// All names are in the shards, where they belong, and what they lead to knows them.
async fn assert_names(what: &str, cluster: &Cluster, directory: InodeNumber, names: &Names) -> DirectoryMap {
    let map = map_of(cluster, directory).await;
    for (name, inode) in names {
        let found = in_time(what, lookup(cluster, &map, name)).await;
        assert_eq!(found, Ok(*inode), "{what}: {name}");
    }
    in_time(what, cluster.at_rest()).await;
    let mut links = cluster.0[0].stat(directory).await.unwrap().attributes.links;
    for shard in &map.shards {
        links += cluster.0[usize::from(shard.mdt().0)].stat(*shard).await.unwrap().attributes.links - 2;
    }
    assert_eq!(links, 2 + 5 + 12, "{what}: subdirectories");
    map
}

#[tokio::test]
async fn names_move_to_the_shards_and_lead_to_the_same_inodes() {
    let cluster = Cluster::new(3).await;
    let (directory, names) = filled(&cluster, 400).await;
    let before = cluster.0[0].stat(names["file7"]).await.unwrap().attributes;
    in_time("the split", split_wholly(&cluster.0[0].import, directory, &[1, 0, 2])).await.unwrap();
    let map = assert_names("after the split", &cluster, directory, &names).await;
    assert_eq!(map.shards.iter().map(|shard| shard.mdt().0).collect::<Vec<_>>(), [1, 0, 2]);
    assert_eq!(cluster.0[0].stat(names["file7"]).await.unwrap().attributes, before, "programs see no change");
    // Once more: it is done already. Otherwise: it is not possible yet.
    assert_eq!(cluster.0[0].call(split(directory, &[1, 0, 2])).await, Ok(MdtReply::Done));
    assert_eq!(cluster.0[0].call(split(directory, &[0, 1])).await, Err(FsError::NotSupported));
    // The directory is one as others.
    let above = lookup(&cluster, &map, "near0").await.unwrap();
    assert_eq!(cluster.0[0].remove(ROOT, "directory", true).await, Err(FsError::NotEmpty));
    assert!(cluster.0[0].create(above, "below", NodeKind::Regular).await.is_ok());
    assert!(cluster.0[0].remove(above, "below", false).await.is_ok());
    for (name, inode) in &names {
        let shard = map.shard_of(name.as_bytes()).unwrap();
        let is_directory =
            name.starts_with("near") && name != "near-two" || name.starts_with("far") && !name.contains('-');
        let removed = cluster.0[usize::from(shard.mdt().0)].remove(shard, name, is_directory).await;
        assert_eq!(removed, Ok(()), "{name} of {inode}");
    }
    cluster.0[0].remove(ROOT, "directory", true).await.unwrap();
    assert_eq!(cluster.0[0].lookup(ROOT, "directory").await, Err(FsError::NotFound));
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

#[tokio::test]
async fn what_cannot_split_is_refused_and_stays() {
    let cluster = Cluster::new(2).await;
    let zero = &cluster.0[0];
    let file = zero.create(ROOT, "file", NodeKind::Regular).await.unwrap();
    let directory = zero.create(ROOT, "directory", NodeKind::Directory).await.unwrap();
    for (inode, mdts, error) in [
        (file, &[0, 1][..], FsError::NotDirectory),
        (ROOT, &[0, 1], FsError::Invalid),
        (directory, &[], FsError::Invalid),
        (directory, &[0, 7], FsError::NoDeviceOrAddress),
    ] {
        assert_eq!(zero.call(split(inode, mdts)).await, Err(error), "{inode} over {mdts:?}");
    }
    let MdtRequest::SplitDirectory(_, request) = split(directory, &[0, 1]) else { panic!("a split") };
    let by_user = zero.call(MdtRequest::SplitDirectory(super::common::user(7), request)).await;
    assert_eq!(by_user, Err(FsError::NotPermitted));
    assert!(zero.create(directory, "name", NodeKind::Regular).await.is_ok(), "it has no shards");
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// A directory that has become large gets shards, if that is switched on.
#[tokio::test]
async fn large_directories_split_by_themselves() {
    let cluster = Cluster::new(3).await;
    let zero = &cluster.0[0];
    let [off, small, large] = ["off", "small", "large"];
    let mut directories = BTreeMap::new();
    for (name, splits) in [(off, false), (small, true), (large, true)] {
        let mut parameters = zero.mdt.parameters();
        (parameters.splits_directories, parameters.split_names, parameters.split_delta) = (splits, 50, 1);
        zero.mdt.set_parameters(parameters);
        let directory = zero.create(ROOT, name, NodeKind::Directory).await.unwrap();
        let mut names = Names::new();
        for number in 0..if name == small { 49 } else { 60 } {
            let file = format!("file{number}");
            match zero.create(directory, &file, NodeKind::Regular).await {
                Ok(inode) => drop(names.insert(file, inode)),
                // It has shards by now.
                Err(error) => panic!("{name}/{file}: {error}"),
            }
            if name == large && number + 1 == 49 {
                break;
            }
        }
        directories.insert(name, (directory, names));
    }
    let (directory, mut names) = directories[large].clone();
    // The names that make it large. The split may begin with any of them.
    for number in 49..80 {
        let name = format!("file{number}");
        let create = MdtRequest::Create(root(), create_request(directory, &name, NodeKind::Regular, 0o644, None));
        let inode = match zero.call(create).await.unwrap() {
            MdtReply::Striped(map) => create_file(&cluster, &map, &name).await.unwrap(),
            reply => created(reply).entry.attributes.inode,
        };
        names.insert(name, inode);
    }
    let map = in_time("the split", async {
        loop {
            match zero.call(MdtRequest::GetLayout(directory)).await.unwrap() {
                MdtReply::Layout(info) if info.map.is_some() => break map_of(&cluster, directory).await,
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    })
    .await;
    assert_eq!(map.shards.iter().map(|shard| shard.mdt().0).collect::<Vec<_>>(), [0, 1], "one more");
    for (name, inode) in &names {
        assert_eq!(in_time(name, lookup(&cluster, &map, name)).await, Ok(*inode));
    }
    for name in [off, small] {
        let (directory, names) = &directories[name];
        assert_eq!(zero.lookup(*directory, "file0").await, Ok(names["file0"]), "{name} has no shards");
    }
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// The MDT of a shard is not there: what has begun waits, and goes on.
#[tokio::test]
async fn names_wait_for_an_absent_mdt_and_then_move() {
    let mut cluster = Cluster::new(2).await;
    let (directory, names) = filled(&cluster, 20).await;
    cluster.at_rest().await;
    cluster.0[1].gate.close_flushes();
    let begun = in_time("the begin", cluster.0[0].call(split(directory, &[0, 1]))).await;
    assert_eq!(begun, Ok(MdtReply::Waiting));
    let map = map_of(&cluster, directory).await;
    // All names are still where they were, and are used there.
    let mut names = names;
    let mut fresh = (0..).map(|number| format!("new{number}"));
    let name = fresh.find(|name| map.shard_of(name.as_bytes()) == Some(map.shards[0])).unwrap();
    names.insert(name.clone(), in_time("a creation", create_file(&cluster, &map, &name)).await.unwrap());
    assert_eq!(in_time("a lookup", find(&cluster, &map, &name)).await, Ok((directory, names[&name])));
    assert_eq!(cluster.0[0].stat(map.shards[0]).await.unwrap().attributes.links, 2);
    // The process that was to move them ends, too.
    cluster.restart(&[0, 1]).await;
    in_time("the split", split_wholly(&cluster.0[0].import, directory, &[0, 1])).await.unwrap();
    assert_names("after the split", &cluster, directory, &names).await;
    cluster.end().await;
}

/// What a directory, or a shard, lists while names move.
async fn listed(cluster: &Cluster, inode: InodeNumber) -> Names {
    let (node, open, flags) = (&cluster.0[usize::from(inode.mdt().0)], OpenId(1), OpenFlags(open_flag::READ));
    let unasked = Some(flags).filter(|_| inode.is_shard());
    if unasked.is_none() {
        node.call(MdtRequest::Open(root(), Open { inode, open, flags })).await.unwrap();
    }
    let read = ReadDirectory { inode, open, cookie: COOKIE_PARENT, entries_max: 4000, attributes: true, unasked };
    match node.call(MdtRequest::ReadDirectory(read)).await.unwrap() {
        MdtReply::MovingNames(MovingNames { entries, end: true, place }) => {
            assert!(place > 0);
            entries.into_iter().map(|found| (String::from_utf8(found.name).unwrap(), found.inode)).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// A split stops in the middle, at a name that leads to an MDT that is not there. All other names
/// are used meanwhile, wherever they are.
#[tokio::test]
async fn names_are_used_while_others_move() {
    const BATCH: usize = 96;
    let mut cluster = Cluster::new(3).await;
    let zero = &cluster.0[0];
    let directory = zero.create(ROOT, "directory", NodeKind::Directory).await.unwrap();
    let mut names = Names::new();
    for number in 0..300 {
        let name = format!("file{number}");
        names.insert(name.clone(), zero.create(directory, &name, NodeKind::Regular).await.unwrap());
    }
    let order = |name: &String| first_cookie(name.as_bytes(), COOKIE_HASH_BITS);
    let mut in_order: Vec<String> = names.keys().cloned().collect();
    in_order.sort_by_key(order);
    // One in the second batch.
    let (first, last) = (order(&in_order[BATCH + 10]), order(&in_order[2 * BATCH - 10]));
    let far = (0..).map(|number| format!("far{number}")).find(|name| (first..last).contains(&order(name))).unwrap();
    names.insert(far.clone(), zero.make_directory(directory, &far, 1).await.unwrap());
    cluster.at_rest().await;
    cluster.0[1].gate.close_flushes();
    assert_eq!(zero.call(split(directory, &[0, 2])).await, Ok(MdtReply::Waiting));
    let map = map_of(&cluster, directory).await;
    in_time("the first batch", async {
        while find(&cluster, &map, &in_order[BATCH - 1]).await.unwrap().0 == directory {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    for (index, name) in in_order.iter().enumerate() {
        let (at, inode) = in_time(name, find(&cluster, &map, name)).await.unwrap();
        assert_eq!((at.is_shard(), inode), (index < BATCH, names[name]), "{index}: {name}");
    }
    // Names are made where they belong, and removed.
    for number in 0..60 {
        let name = format!("new{number}");
        let made = in_time(&name, create_file(&cluster, &map, &name)).await.unwrap();
        let (at, inode) = find(&cluster, &map, &name).await.unwrap();
        assert_eq!((at.is_shard(), inode), (order(&name) < order(&in_order[BATCH]), made), "{name}");
        names.insert(name, made);
    }
    for number in (0..30).step_by(3) {
        let name = format!("new{number}");
        let request = |parent| remove(parent, &name, false);
        assert_eq!(ask(&cluster, &map, &name, request).await.unwrap().1, MdtReply::Done);
        assert_eq!(lookup(&cluster, &map, &name).await, Err(FsError::NotFound));
        names.remove(&name);
    }
    // Renames from the shards to the directory and back, also over names that exist.
    let shard_of = |name: &String| map.shard_of(name.as_bytes()).unwrap();
    for shard in &map.shards {
        let [moved, left] = [0, 2 * BATCH].map(|from| {
            let range = from..from + BATCH;
            let mut found = in_order[range].iter().filter(|name| shard_of(name) == *shard && **name != far).cloned();
            [found.next().unwrap(), found.next().unwrap(), found.next().unwrap()]
        });
        for (old, new) in [(&moved[0], &left[0]), (&left[1], &moved[1])] {
            let [from, to] = [old, new].map(|name| if moved.contains(name) { *shard } else { directory });
            let (from_mdt, to_mdt) = (from.mdt(), to.mdt());
            let MdtRequest::Rename(who, mut request) = rename((from, old), (to, new), RenameMode::Replace) else {
                panic!("a rename")
            };
            request.same_directory = true;
            let renamed = cluster.0[usize::from(to_mdt.0)].call(MdtRequest::Rename(who, request));
            assert_eq!(in_time(old, renamed).await, Ok(MdtReply::Done), "{old} to {new}, {from_mdt} to {to_mdt}");
            let inode = names.remove(old).unwrap();
            names.insert(new.clone(), inode);
            assert_eq!(in_time(new, lookup(&cluster, &map, new)).await, Ok(inode));
            assert_eq!(in_time(old, lookup(&cluster, &map, old)).await, Err(FsError::NotFound));
        }
        // Where the old name is not.
        let (old, new) = (&left[2], &moved[2]);
        let MdtRequest::Rename(who, mut request) = rename((*shard, old), (*shard, new), RenameMode::Replace) else {
            panic!("a rename")
        };
        request.same_directory = true;
        let refused = cluster.0[usize::from(shard.mdt().0)].call(MdtRequest::Rename(who, request)).await;
        assert_eq!(refused, Err(FsError::CrossDevice));
    }
    let mut all = listed(&cluster, directory).await;
    for shard in &map.shards {
        for (name, inode) in listed(&cluster, *shard).await {
            assert_eq!(all.insert(name.clone(), inode), None, "{name} is listed twice");
        }
    }
    assert_eq!(all, names);
    assert_eq!(cluster.0[0].remove(ROOT, "directory", true).await, Err(FsError::NotEmpty));
    // It goes on.
    cluster.restart(&[1]).await;
    in_time("the split", split_wholly(&cluster.0[0].import, directory, &[0, 2])).await.unwrap();
    for (name, inode) in &names {
        let (at, found) = in_time(name, find(&cluster, &map, name)).await.unwrap();
        assert_eq!((at.is_shard(), found), (true, *inode), "{name}");
    }
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// With a fault at each step: every name is there once, and moves at last.
#[tokio::test]
async fn no_name_is_lost_whatever_fails() {
    for fault in FAULTS {
        let mut steps = 0;
        while after_steps(fault, steps).await {
            steps += 13;
        }
        assert!(steps > 20, "{fault:?}: {steps} steps");
    }
}

/// MDTs of shards, of which one has two.
const OVER: [u16; 4] = [1, 0, 2, 1];

/// False if it was over before the fault.
async fn after_steps(fault: Fault, steps: usize) -> bool {
    let what = format!("{fault:?} after {steps} steps");
    let mut cluster = Cluster::new(3).await;
    let (directory, names) = filled(&cluster, 10).await;
    cluster.at_rest().await;
    for node in &cluster.0 {
        node.call(MdtRequest::Commit).await.unwrap();
    }
    let import = cluster.0[0].import.clone();
    let asked = async move { split_wholly(&import, directory, &OVER).await };
    let (answered, is_over) = interrupt((&what, &mut cluster), (fault, 0), steps, asked).await;
    assert_eq!(answered, Ok(()), "{what}");
    // A power loss may have taken the answer back, and with it the shards: never a name.
    in_time(&what, split_wholly(&cluster.0[0].import, directory, &OVER)).await.unwrap();
    let map = assert_names(&what, &cluster, directory, &names).await;
    in_time(&what, create_file(&cluster, &map, "new")).await.unwrap();
    in_time(&what, cluster.at_rest()).await;
    cluster.end().await;
    !is_over
}
