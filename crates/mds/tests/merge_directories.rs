//! A striped directory that gets its names back from its shards, whatever happens meanwhile
//! (docs/decisions/0065-directories-that-merge.md).

use std::time::Duration;

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{
        COOKIE_PARENT, CreateUnnamed, Lookup, Open, OpenFlags, OpenId, ReadDirectory, RenameMode, ReturningNames,
        open_flag,
    },
};
use types::{DirectoryMap, FileKind, FsError, InodeNumber, MdtIndex, NodeKind, SetAttributes, SetTime, Timestamp};

use super::{
    absent_mdts::{FAULTS, Fault, in_time, interrupt},
    common::{
        ROOT, create_request, created, root,
        several::{Cluster, call, remove, rename},
        user,
    },
    split_directories::{Names, ask, create_file, filled, find, lookup, map_of, split, split_wholly},
};

/// A directory on MDT 0 whose names are in shards on these MDTs.
async fn striped(cluster: &Cluster, files: usize, mdts: &[u16]) -> (InodeNumber, Names, DirectoryMap) {
    let (directory, names) = filled(cluster, files).await;
    in_time("the split", split_wholly(&cluster.0[0].import, directory, mdts)).await.unwrap();
    let map = map_of(cluster, directory).await;
    cluster.at_rest().await;
    (directory, names, map)
}

async fn has_map(cluster: &Cluster, directory: InodeNumber) -> bool {
    match cluster.0[0].call(MdtRequest::GetLayout(directory)).await.unwrap() {
        MdtReply::Layout(info) => info.map.is_some(),
        other => panic!("{other:?}"),
    }
}

/// All names are in the directory, which has no shards, and what they lead to knows them.
async fn assert_names(what: &str, cluster: &Cluster, directory: InodeNumber, map: &DirectoryMap, names: &Names) {
    let zero = &cluster.0[0];
    assert!(!has_map(cluster, directory).await, "{what}");
    for (name, inode) in names {
        let lookup = Lookup { parent: directory, name: name.as_bytes().to_vec() };
        let found = match in_time(name, zero.call(MdtRequest::Lookup(root(), lookup))).await.unwrap() {
            MdtReply::Entry(entry) => entry.attributes.inode,
            MdtReply::Remote(inode) => inode,
            other => panic!("{what}: {name}: {other:?}"),
        };
        assert_eq!(found, *inode, "{what}: {name}");
        let at = &cluster.0[usize::from(inode.mdt().0)];
        let asked = MdtRequest::InodePaths(root(), *inode);
        match in_time(name, at.call(asked)).await.unwrap() {
            MdtReply::Paths(paths) => assert!(!paths.is_empty(), "{what}: {name}"),
            MdtReply::PathsBelow(paths) => {
                let is_it = |(parent, below): &(InodeNumber, Vec<u8>)| *parent == directory && below == name.as_bytes();
                assert!(paths.iter().any(is_it), "{what}: {name}: {paths:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let directories = names.keys().filter(|name| is_directory(name)).count();
    let links = zero.stat(directory).await.unwrap().attributes.links;
    assert_eq!(links as usize, 2 + directories, "{what}: subdirectories");
    cluster.at_rest().await;
    for shard in &map.shards {
        let gone = cluster.0[usize::from(shard.mdt().0)].stat(*shard).await.map(|entry| entry.attributes.inode);
        assert_eq!(gone, Err(FsError::Stale), "{what}");
    }
}

fn is_directory(name: &str) -> bool {
    name.starts_with("near") && name != "near-two" || name.starts_with("far") && !name.contains('-')
}

#[tokio::test]
async fn names_come_back_and_lead_to_the_same_inodes() {
    let cluster = Cluster::new(3).await;
    let (directory, mut names, map) = striped(&cluster, 300, &[1, 0, 2]).await;
    // Inodes on the MDTs of shards, too.
    for number in 0..60 {
        let name = format!("new{number}");
        names.insert(name.clone(), create_file(&cluster, &map, &name).await.unwrap());
    }
    let before = cluster.0[0].stat(directory).await.unwrap().attributes;
    let mut times = Vec::new();
    for shard in &map.shards {
        times.push(cluster.0[usize::from(shard.mdt().0)].stat(*shard).await.unwrap().attributes.mtime);
    }
    in_time("the merge", split_wholly(&cluster.0[0].import, directory, &[0])).await.unwrap();
    assert_names("after the merge", &cluster, directory, &map, &names).await;
    let after = cluster.0[0].stat(directory).await.unwrap().attributes;
    assert_eq!(after.mtime, times.into_iter().max().unwrap().max(before.mtime), "the latest time of the shards");
    // Once more: it is done already.
    assert_eq!(cluster.0[0].call(split(directory, &[0])).await, Ok(MdtReply::Done));
    // And other stripes.
    in_time("the split", split_wholly(&cluster.0[0].import, directory, &[2, 1, 2, 0, 0])).await.unwrap();
    let other = map_of(&cluster, directory).await;
    for (name, inode) in &names {
        assert_eq!(in_time(name, lookup(&cluster, &other, name)).await, Ok(*inode), "{name}");
    }
    in_time("the merge", split_wholly(&cluster.0[0].import, directory, &[0])).await.unwrap();
    assert_names("after both", &cluster, directory, &other, &names).await;
    for name in names.keys() {
        assert_eq!(cluster.0[0].remove(directory, name, is_directory(name)).await, Ok(()), "{name}");
    }
    cluster.0[0].remove(ROOT, "directory", true).await.unwrap();
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

#[tokio::test]
async fn what_cannot_merge_is_refused_and_stays() {
    let cluster = Cluster::new(2).await;
    let zero = &cluster.0[0];
    let (directory, names, map) = striped(&cluster, 20, &[1, 0]).await;
    let file = names["file0"];
    for (inode, mdts, error) in [
        (directory, &[1][..], FsError::NotSupported),
        (directory, &[0, 1], FsError::NotSupported),
        (file, &[0], FsError::NotDirectory),
        (map.shards[1], &[0], FsError::Invalid),
    ] {
        assert_eq!(zero.call(split(inode, mdts)).await, Err(error), "{inode} over {mdts:?}");
    }
    let MdtRequest::SplitDirectory(_, request) = split(directory, &[0]) else { panic!("a request") };
    let by_user = zero.call(MdtRequest::SplitDirectory(user(7), request)).await;
    assert_eq!(by_user, Err(FsError::NotPermitted));
    assert_eq!(map_of(&cluster, directory).await, map);
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// What a directory, or a shard, lists while names go back.
async fn listed(cluster: &Cluster, inode: InodeNumber) -> Names {
    let (node, open, flags) = (&cluster.0[usize::from(inode.mdt().0)], OpenId(1), OpenFlags(open_flag::READ));
    let unasked = Some(flags).filter(|_| inode.is_shard());
    if unasked.is_none() {
        node.call(MdtRequest::Open(root(), Open { inode, open, flags })).await.unwrap();
    }
    let read = ReadDirectory { inode, open, cookie: COOKIE_PARENT, entries_max: 4000, attributes: true, unasked };
    match node.call(MdtRequest::ReadDirectory(read)).await.unwrap() {
        MdtReply::ReturningNames(ReturningNames { entries, end: true, places }) => {
            assert!(!places.is_empty());
            entries.into_iter().map(|found| (String::from_utf8(found.name).unwrap(), found.inode)).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// The MDT of one shard keeps nothing: its names stay there, and those of the others are back. All
/// are used meanwhile, wherever they are.
#[tokio::test]
async fn names_are_used_while_others_go_back() {
    let mut cluster = Cluster::new(3).await;
    let (directory, mut names, map) = striped(&cluster, 200, &[0, 1, 2]).await;
    let stuck = map.shards[2];
    let begun = cluster.0[0].call(split(directory, &[0])).await;
    assert_eq!(begun, Ok(MdtReply::Waiting));
    cluster.0[2].gate.close_flushes();
    let is_back = |name: &String| map.shard_of(name.as_bytes()) != Some(stuck);
    in_time("names of the others", async {
        for (name, inode) in names.iter().filter(|(name, _)| is_back(name)) {
            while find(&cluster, &map, name).await != Ok((directory, *inode)) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    })
    .await;
    for number in 0..40 {
        let name = format!("new{number}");
        if is_back(&name) {
            let made = in_time(&name, create_file(&cluster, &map, &name)).await.unwrap();
            assert_eq!(find(&cluster, &map, &name).await, Ok((directory, made)));
            names.insert(name, made);
        }
    }
    for number in (0..40).step_by(3).map(|number| format!("new{number}")).filter(is_back) {
        let request = |parent| remove(parent, &number, false);
        assert_eq!(ask(&cluster, &map, &number, request).await.unwrap().1, MdtReply::Done);
        assert_eq!(lookup(&cluster, &map, &number).await, Err(FsError::NotFound));
        names.remove(&number);
    }
    // A rename within the directory, to a name that another shard would have had.
    let (old, new) = ("file0", "other0");
    let old = if is_back(&old.to_owned()) { old } else { "file1" };
    if is_back(&old.to_owned()) && is_back(&new.to_owned()) {
        let renamed = cluster.0[0].call(rename((directory, old), (directory, new), RenameMode::Replace)).await;
        assert_eq!(renamed, Ok(MdtReply::Done));
        let inode = names.remove(old).unwrap();
        names.insert(new.to_owned(), inode);
        assert_eq!(lookup(&cluster, &map, new).await, Ok(inode));
    }
    let shown = listed(&cluster, directory).await;
    for (name, inode) in names.iter().filter(|(name, _)| is_back(name)) {
        assert_eq!(shown.get(name), Some(inode), "{name}");
    }
    // Shards that have given all show nothing.
    assert_eq!(listed(&cluster, map.shards[1]).await, Names::new());
    // It goes on.
    cluster.restart(&[2]).await;
    in_time("the merge", split_wholly(&cluster.0[0].import, directory, &[0])).await.unwrap();
    assert_names("after the merge", &cluster, directory, &map, &names).await;
    cluster.end().await;
}

/// With a fault at each step: every name is there once, and comes back at last.
#[tokio::test]
async fn no_name_is_lost_whatever_fails_during_a_merge() {
    // Each fault after other steps.
    for (first, fault) in (0..).step_by(5).zip(FAULTS) {
        let mut steps = first;
        while after_steps(fault, steps).await {
            steps += 29;
        }
        assert!(steps > first + 29, "{fault:?}: {steps} steps");
    }
}

/// False if it was over before the fault.
async fn after_steps(fault: Fault, steps: usize) -> bool {
    let what = format!("{fault:?} after {steps} steps");
    let mut cluster = Cluster::new(3).await;
    let (directory, names, map) = striped(&cluster, 10, &[1, 0, 2, 0, 1]).await;
    for node in &cluster.0 {
        node.call(MdtRequest::Commit).await.unwrap();
    }
    let import = cluster.0[0].import.clone();
    let asked = async move { split_wholly(&import, directory, &[0]).await };
    let (answered, is_over) = interrupt((&what, &mut cluster), (fault, 0), steps, asked).await;
    assert_eq!(answered, Ok(()), "{what}");
    // A power loss may have taken the answer back: never a name.
    in_time(&what, split_wholly(&cluster.0[0].import, directory, &[0])).await.unwrap();
    assert_names(&what, &cluster, directory, &map, &names).await;
    in_time(&what, cluster.0[0].create(directory, "new", NodeKind::Regular)).await.unwrap();
    in_time(&what, cluster.at_rest()).await;
    cluster.end().await;
    !is_over
}

/// A directory that has split by itself, and is small, gets its names back; one that was split by
/// hand does not.
#[tokio::test]
async fn small_directories_merge_by_themselves() {
    let cluster = Cluster::new(2).await;
    let zero = &cluster.0[0];
    let mut parameters = zero.mdt.parameters();
    (parameters.splits_directories, parameters.split_names, parameters.split_delta) = (true, 80, 1);
    parameters.merge_names = 20;
    zero.mdt.set_parameters(parameters);
    let mut maps = Vec::new();
    for (name, files) in [("hand", 60), ("itself", 80)] {
        let directory = zero.create(ROOT, name, NodeKind::Directory).await.unwrap();
        for number in 0..files {
            let request = create_request(directory, &format!("file{number}"), NodeKind::Regular, 0o644, None);
            if let MdtReply::Striped(map) = zero.call(MdtRequest::Create(root(), request)).await.unwrap() {
                create_file(&cluster, &map, &format!("file{number}")).await.unwrap();
            }
        }
        if name == "hand" {
            in_time("the split", split_wholly(&zero.import, directory, &[0, 1])).await.unwrap();
        }
        in_time(name, async {
            while !has_map(&cluster, directory).await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        maps.push((directory, files, map_of(&cluster, directory).await));
    }
    for (directory, files, map) in &maps {
        for number in 0..files - 8 {
            let name = format!("file{number}");
            let request = |parent| remove(parent, &name, false);
            let removed = match has_map(&cluster, *directory).await {
                true => ask(&cluster, map, &name, request).await.map(|(_, reply)| reply),
                false => zero.call(request(*directory)).await,
            };
            match removed {
                Ok(MdtReply::Done) => {}
                // The shard has gone meanwhile.
                Err(FsError::Stale) => assert_eq!(zero.call(request(*directory)).await, Ok(MdtReply::Done)),
                other => panic!("{other:?}"),
            }
        }
    }
    let [(by_hand, ..), (by_itself, ..)] = &maps[..] else { panic!("two directories") };
    in_time("the merge", async {
        while has_map(&cluster, *by_itself).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert!(has_map(&cluster, *by_hand).await, "somebody wanted its stripes");
    for number in 72..80 {
        assert!(zero.lookup(*by_itself, &format!("file{number}")).await.is_ok());
    }
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// Clients that know the former shards are told at once that these have ended, although what loses
/// its last name is kept for a while.
#[tokio::test]
async fn shards_that_have_ended_are_not_kept() {
    let cluster = Cluster::new(2).await;
    for node in &cluster.0 {
        let mut parameters = node.mdt.parameters();
        parameters.removal_grace = Duration::from_secs(3600);
        node.mdt.set_parameters(parameters);
    }
    let (directory, names, map) = striped(&cluster, 20, &[1, 0]).await;
    in_time("the merge", split_wholly(&cluster.0[0].import, directory, &[0])).await.unwrap();
    cluster.at_rest().await;
    for (name, inode) in &names {
        let shard = map.shard_of(name.as_bytes()).unwrap();
        let node = &cluster.0[usize::from(shard.mdt().0)];
        let lookup = Lookup { parent: shard, name: name.as_bytes().to_vec() };
        let found = in_time(name, node.call(MdtRequest::Lookup(root(), lookup))).await;
        assert_eq!(found, Err(FsError::Stale), "{name}");
        let paths = in_time(name, node.call(MdtRequest::InodePaths(root(), shard))).await;
        assert_eq!(paths, Err(FsError::Stale), "{name}");
        assert_eq!(cluster.0[0].lookup(directory, name).await, Ok(*inode), "{name}");
    }
    cluster.end().await;
}

/// A file was made in a shard, and its directory is elsewhere by now: what is to take its place for
/// a moment is made beside it.
#[tokio::test]
async fn an_unnamed_file_is_made_beside_a_file() {
    let cluster = Cluster::new(2).await;
    let (directory, _, map) = striped(&cluster, 4, &[1, 0]).await;
    let name = (0..).map(|number| format!("new{number}"));
    let name = name.into_iter().find(|name| map.shard_of(name.as_bytes()) == Some(map.shards[0])).unwrap();
    let file = create_file(&cluster, &map, &name).await.unwrap();
    assert_eq!(file.mdt(), MdtIndex(1));
    in_time("the merge", split_wholly(&cluster.0[0].import, directory, &[0])).await.unwrap();
    let one = &cluster.0[1];
    let flags = open_flag::READ | open_flag::WRITE;
    let unnamed = |who, open, flags| {
        let open = (OpenId(open), OpenFlags(flags));
        one.call(MdtRequest::CreateUnnamed(who, CreateUnnamed { parent: file, mode: 0o600, umask: 0, open }))
    };
    assert_eq!(unnamed(root(), 1, flags).await, Err(FsError::NotDirectory), "it might get a name");
    assert_eq!(unnamed(user(7), 2, flags | open_flag::EXCLUSIVE).await, Err(FsError::AccessDenied));
    let made = created(unnamed(root(), 3, flags | open_flag::EXCLUSIVE).await.unwrap()).entry.attributes;
    assert_eq!((made.inode.mdt(), made.links, made.kind), (MdtIndex(1), 0, FileKind::Regular));
    cluster.end().await;
}

/// Times that somebody sets while names come back are not replaced by those that names on their way
/// bring with them.
#[tokio::test]
async fn times_that_are_set_during_a_merge_stay() {
    let mtime = Timestamp { seconds: 5, nanoseconds: 0 };
    let (mut steps, mut is_over) = (0, false);
    while !is_over {
        let what = format!("after {steps} steps");
        let cluster = Cluster::new(2).await;
        let (directory, ..) = striped(&cluster, 4, &[1, 0]).await;
        let (merging, setting) = (cluster.0[0].import.clone(), cluster.0[0].import.clone());
        cluster.1.allow(steps);
        let merged = tokio::spawn(async move { split_wholly(&merging, directory, &[0]).await });
        in_time(&what, cluster.1.used_up()).await;
        is_over = merged.is_finished();
        let changes = SetAttributes { mtime: Some(SetTime::To(mtime)), ..SetAttributes::default() };
        let set =
            tokio::spawn(async move { call(&setting, MdtRequest::SetAttributes(root(), directory, changes)).await });
        cluster.1.go_on();
        in_time(&what, merged).await.unwrap().unwrap();
        in_time(&what, set).await.unwrap().unwrap();
        in_time(&what, cluster.at_rest()).await;
        assert_eq!(cluster.0[0].stat(directory).await.unwrap().attributes.mtime, mtime, "{what}");
        cluster.end().await;
        steps += 5;
    }
    assert!(steps > 20, "{steps} steps");
}
