//! Directories whose names are in shards on several MDTs: made and removed in one decision, and
//! used as a client does, which knows their maps.

use std::time::Duration;

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{Lookup, OpenFlags, OpenId, ReadDirectory, Rename, RenameMode, SourceData, open_flag},
    mdt_peer::MakeDirectory,
};
use types::{
    Credentials, DirectoryMap, FsError, FsResult, InodeNumber, MdtIndex, NameHash, NodeKind, SetAttributes, Stripes,
};

use super::{
    absent_mdts::{FAULTS, Fault, in_time, interrupt},
    common::{
        ROOT, create_request, created, root,
        several::{Cluster, call, make_directory, remove},
    },
};

fn make_striped(name: &str, mdt: u16, mdts: &[u16]) -> MdtRequest {
    let mdts = mdts.iter().map(|mdt| MdtIndex(*mdt)).collect();
    let stripes = Stripes { hash: NameHash::Fnv1a64, mdts };
    let (name, mdt) = (name.as_bytes().to_vec(), MdtIndex(mdt));
    MdtRequest::MakeDirectory(root(), MakeDirectory { parent: ROOT, name, mode: 0o755, umask: 0, mdt, stripes })
}

/// A striped directory in the root.
async fn striped(cluster: &Cluster, name: &str, mdt: u16, mdts: &[u16]) -> DirectoryMap {
    let made = created(cluster.0[0].call(make_striped(name, mdt, mdts)).await.unwrap());
    let master = made.entry.attributes.inode;
    assert_eq!((master.mdt(), made.entry.map_version), (MdtIndex(mdt), 1));
    map_of(cluster, master).await
}

/// What a client is told that looks a name up without a map.
pub async fn map_of(cluster: &Cluster, master: InodeNumber) -> DirectoryMap {
    let lookup = MdtRequest::Lookup(root(), Lookup { parent: master, name: b"any".to_vec() });
    match cluster.0[usize::from(master.mdt().0)].call(lookup).await {
        Ok(MdtReply::Striped(map)) => map,
        other => panic!("{other:?}"),
    }
}

/// Index of the MDT, and the shard, that has a name.
fn place(map: &DirectoryMap, name: &str) -> (usize, InodeNumber) {
    let shard = map.shard_of(name.as_bytes()).expect("there are shards");
    (usize::from(shard.mdt().0), shard)
}

/// A name of which the shard is on this MDT.
fn name_on(map: &DirectoryMap, mdt: usize, number: usize) -> String {
    let names = (0..).map(|count| format!("name{count}"));
    names.filter(|name| place(map, name).0 == mdt).nth(number).expect("there is always one")
}

async fn create(cluster: &Cluster, map: &DirectoryMap, name: &str, kind: NodeKind) -> FsResult<InodeNumber> {
    let (mdt, shard) = place(map, name);
    cluster.0[mdt].create(shard, name, kind).await
}

#[tokio::test]
async fn names_are_made_found_and_removed_on_the_mdts_of_their_shards() {
    let cluster = Cluster::new(3).await;
    let map = striped(&cluster, "striped", 1, &[1, 2, 0]).await;
    assert_eq!(map.shards.iter().map(|shard| shard.mdt().0).collect::<Vec<_>>(), [1, 2, 0]);
    assert!(map.is_possible());
    let mut made = Vec::new();
    for number in 0..30 {
        let name = format!("f{number}");
        let file = create(&cluster, &map, &name, NodeKind::Regular).await.unwrap();
        assert_eq!(usize::from(file.mdt().0), place(&map, &name).0, "name and inode are together");
        made.push(name);
    }
    for name in &made {
        let (mdt, shard) = place(&map, name);
        assert_eq!(cluster.0[mdt].lookup(shard, name).await.map(|found| usize::from(found.mdt().0)), Ok(mdt));
    }
    assert_eq!(cluster.0[0].remove(ROOT, "striped", true).await, Err(FsError::NotEmpty));
    for name in &made {
        let (mdt, shard) = place(&map, name);
        cluster.0[mdt].remove(shard, name, false).await.unwrap();
    }
    cluster.0[0].remove(ROOT, "striped", true).await.unwrap();
    assert_eq!(in_time("all ends", cluster.at_rest()).await, []);
    for shard in map.shards {
        assert_eq!(cluster.0[usize::from(shard.mdt().0)].stat(shard).await, Err(FsError::Stale));
    }
    cluster.end().await;
}

#[tokio::test]
async fn each_name_is_in_the_shard_of_its_hash_only() {
    let cluster = Cluster::new(2).await;
    let map = striped(&cluster, "striped", 0, &[0, 1]).await;
    let name = name_on(&map, 1, 0);
    let wrong = cluster.0[0].create(map.shards[0], &name, NodeKind::Regular).await;
    assert_eq!(wrong, Err(FsError::Invalid), "a client with a wrong map makes no second file of this name");
    let by_master = create_request(map.master, "x", NodeKind::Regular, 0o644, None);
    let answer = cluster.0[0].call(MdtRequest::Create(root(), by_master)).await;
    assert_eq!(answer, Ok(MdtReply::Striped(map.clone())), "no name is made in the directory itself");
    assert_eq!(cluster.0[0].lookup(map.shards[0], ".").await, Err(FsError::Stale), "no program sees a shard");
    assert_eq!(cluster.0[1].lookup(map.shards[1], "..").await, Ok(map.master));
    let child = create(&cluster, &map, &name, NodeKind::Directory).await.unwrap();
    let above = cluster.0[1].lookup(child, "..").await.unwrap();
    assert_eq!(above, map.master, "programs see no shard");
    cluster.end().await;
}

/// Impossible requests of a client that lies.
#[tokio::test]
async fn impossible_stripes_are_refused() {
    let cluster = Cluster::new(2).await;
    for mdts in [&[1, 1][..], &[0, 1, 0]] {
        let refused = cluster.0[0].call(make_striped("x", 0, mdts)).await;
        assert_eq!(refused, Err(FsError::Invalid), "{mdts:?}");
    }
    let many: Vec<u16> = (0..=types::limits::SHARDS_MAX as u16).collect();
    assert_eq!(cluster.0[0].call(make_striped("x", 0, &many)).await, Err(FsError::TooBig));
    let absent = cluster.0[0].call(make_striped("x", 0, &[0, 1, 7])).await;
    assert_eq!(absent, Err(FsError::NoDeviceOrAddress), "there is no such MDT");
    assert_eq!(cluster.0[0].lookup(ROOT, "x").await, Err(FsError::NotFound), "nothing is made");
    assert_eq!(in_time("all ends", cluster.at_rest()).await, []);
    let map = striped(&cluster, "striped", 0, &[0, 1]).await;
    let chmod = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
    let of_shard = cluster.0[1].call(MdtRequest::SetAttributes(root(), map.shards[1], chmod)).await;
    assert_eq!(of_shard, Err(FsError::Invalid), "shards change with their directory");
    cluster.end().await;
}

#[tokio::test]
async fn shards_have_the_permissions_of_their_directory() {
    let cluster = Cluster::new(2).await;
    let map = striped(&cluster, "striped", 0, &[0, 1]).await;
    in_time("all is carried out", cluster.at_rest()).await;
    let change = SetAttributes { mode: Some(0o1777), uid: Some(5), gid: Some(6), ..SetAttributes::default() };
    cluster.0[0].call(MdtRequest::SetAttributes(root(), map.master, change)).await.unwrap();
    for shard in &map.shards {
        let found = cluster.0[usize::from(shard.mdt().0)].stat(*shard).await.unwrap().attributes;
        assert_eq!((found.mode, found.uid, found.gid), (0o1777, 5, 6), "{shard}");
    }
    let user = Credentials { uid: 7, gid: 7, groups: Some(Vec::new()) };
    for mdt in [0, 1] {
        let name = name_on(&map, mdt, 0);
        create(&cluster, &map, &name, NodeKind::Regular).await.unwrap();
        let unlink = rpc::message::mdt::Unlink { parent: map.shards[mdt], name: name.into_bytes(), directory: false };
        let removed = cluster.0[mdt].call(MdtRequest::Unlink(user.clone(), unlink)).await;
        assert_eq!(removed, Err(FsError::NotPermitted), "it is sticky");
    }
    cluster.end().await;
}

#[tokio::test]
async fn names_of_a_shard_are_read_with_cookies_that_have_room_for_its_index() {
    let cluster = Cluster::new(2).await;
    let map = striped(&cluster, "striped", 0, &[0, 1]).await;
    let mut made = Vec::new();
    for number in 0..20 {
        let name = format!("f{number}");
        create(&cluster, &map, &name, NodeKind::Regular).await.unwrap();
        made.push(name.into_bytes());
    }
    let mut found = Vec::new();
    for shard in &map.shards {
        let unasked = Some(OpenFlags(open_flag::READ));
        let mut cookie = 0;
        loop {
            let open = OpenId(0);
            let read = ReadDirectory { inode: *shard, open, cookie, entries_max: 3, attributes: false, unasked };
            let answer = cluster.0[usize::from(shard.mdt().0)].call(MdtRequest::ReadDirectory(read)).await;
            let Ok(MdtReply::Directory(page, end)) = answer else { panic!("{answer:?}") };
            assert!(page.iter().all(|entry| entry.cookie > cookie && entry.cookie < 1 << 53));
            cookie = page.last().map_or(cookie, |last| last.cookie);
            found.extend(page.into_iter().map(|entry| entry.name));
            if end {
                break;
            }
        }
    }
    found.sort();
    made.sort();
    assert_eq!(found, made, "without dots");
    cluster.end().await;
}

fn rename(
    (parent, name): (InodeNumber, &str),
    (new_parent, new_name): (InodeNumber, &str),
    same_directory: bool,
) -> MdtRequest {
    let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
    let (mode, source_data, mdt_era) = (RenameMode::Replace, SourceData::AsIs, None);
    let rename = Rename { parent, name, new_parent, new_name, mode, source_data, mdt_era, same_directory };
    MdtRequest::Rename(root(), rename)
}

#[tokio::test]
async fn names_move_between_shards_and_no_directory_into_itself() {
    let cluster = Cluster::new(2).await;
    let map = striped(&cluster, "striped", 0, &[0, 1]).await;
    in_time("all is carried out", cluster.at_rest()).await;
    let (old, new) = (name_on(&map, 0, 0), name_on(&map, 1, 0));
    let file = create(&cluster, &map, &old, NodeKind::Regular).await.unwrap();
    let (from, to) = ((map.shards[0], &old[..]), (map.shards[1], &new[..]));
    assert_eq!(cluster.0[1].call(rename(from, to, true)).await, Ok(MdtReply::Done));
    assert_eq!(cluster.0[1].lookup(map.shards[1], &new).await, Ok(file));
    assert_eq!(cluster.0[0].lookup(map.shards[0], &old).await, Err(FsError::NotFound));
    // A directory that the caller may not write to keeps its parent.
    let kept = create(&cluster, &map, &old, NodeKind::Directory).await.unwrap();
    let other = name_on(&map, 1, 1);
    assert_eq!(cluster.0[1].call(rename(from, (map.shards[1], &other), true)).await, Ok(MdtReply::Done));
    assert_eq!(cluster.0[1].lookup(map.shards[1], &other).await, Ok(kept));
    // Into itself, by way of a shard.
    let into = name_on(&map, 1, 2);
    let looped = cluster.0[1].call(rename((ROOT, "striped"), (map.shards[1], &into), false)).await;
    assert_eq!(looped, Err(FsError::Invalid));
    // What lies below is not put in its place.
    let above = cluster.0[0].call(rename((map.shards[1], &other), (ROOT, "striped"), false)).await;
    assert_eq!(above, Err(FsError::NotEmpty));
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

#[tokio::test]
async fn an_empty_striped_directory_is_replaced_by_a_rename() {
    for home in [0, 1] {
        let cluster = Cluster::new(2).await;
        let map = striped(&cluster, "striped", home, &[0, 1]).await;
        in_time("all is carried out", cluster.at_rest()).await;
        let plain = cluster.0[0].create(ROOT, "plain", NodeKind::Directory).await.unwrap();
        let name = name_on(&map, 1, 0);
        create(&cluster, &map, &name, NodeKind::Regular).await.unwrap();
        let replace = rename((ROOT, "plain"), (ROOT, "striped"), false);
        assert_eq!(cluster.0[0].call(replace.clone()).await, Err(FsError::NotEmpty));
        cluster.0[1].remove(map.shards[1], &name, false).await.unwrap();
        assert_eq!(cluster.0[0].call(replace).await, Ok(MdtReply::Done));
        assert_eq!(cluster.0[0].lookup(ROOT, "striped").await, Ok(plain));
        assert_eq!(in_time("all ends", cluster.at_rest()).await, []);
        for shard in &map.shards {
            assert_eq!(cluster.0[usize::from(shard.mdt().0)].stat(*shard).await, Err(FsError::Stale));
        }
        cluster.end().await;
    }
}

/// One shard's MDT is absent: names of the others are used as before.
#[tokio::test]
async fn only_names_of_an_absent_mdt_wait() {
    let mut cluster = Cluster::new(3).await;
    let map = striped(&cluster, "striped", 0, &[0, 1, 2]).await;
    in_time("all is carried out", cluster.at_rest()).await;
    cluster.0[2].crash().await;
    for mdt in [0, 1] {
        let name = name_on(&map, mdt, 0);
        let file = in_time("a name elsewhere", create(&cluster, &map, &name, NodeKind::Regular)).await.unwrap();
        assert_eq!(cluster.0[mdt].lookup(map.shards[mdt], &name).await, Ok(file));
    }
    assert_eq!(map_of(&cluster, map.master).await, map);
    cluster.start(&[2]).await;
    let name = name_on(&map, 2, 0);
    in_time("its names are back", create(&cluster, &map, &name, NodeKind::Regular)).await.unwrap();
    cluster.end().await;
}

/// The shard is used at once after the answer to mkdir, before its MDT has the decision; also if
/// that MDT has forgotten in a restart that it gave the number away.
#[tokio::test]
async fn a_shard_is_waited_for_until_its_mdt_has_it() {
    let mut cluster = Cluster::new(2).await;
    cluster.0[0].make_directory(ROOT, "before", 1).await.unwrap();
    cluster.at_rest().await;
    cluster.0[0].gate.close_flushes();
    let map = striped(&cluster, "striped", 0, &[0, 1]).await;
    let name = name_on(&map, 1, 0);
    let (import, shard) = (cluster.0[1].import.clone(), map.shards[1]);
    let create = MdtRequest::Create(root(), create_request(shard, &name, NodeKind::Regular, 0o644, None));
    let creating = tokio::spawn(async move { call(&import, create).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!creating.is_finished(), "its MDT does not have the shard");
    cluster.restart(&[1]).await;
    cluster.0[0].gate.open_flushes();
    created(in_time("the shard is there", creating).await.unwrap().unwrap());
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// With a fault at each step of both: the directory is there with all its shards, or not at all.
#[tokio::test]
async fn a_striped_directory_is_made_and_removed_as_a_whole() {
    for fault in FAULTS {
        let mut steps = 0;
        while after_steps(fault, steps).await {
            steps += 3;
        }
        assert!(steps > 10, "{fault:?}: {steps} steps");
    }
}

/// False if both were over before the fault.
async fn after_steps(fault: Fault, steps: usize) -> bool {
    let what = format!("{fault:?} after {steps} steps");
    let mut cluster = Cluster::new(3).await;
    cluster.0[0].call(make_directory(ROOT, "before", 1)).await.unwrap();
    cluster.at_rest().await;
    for node in &cluster.0 {
        node.call(MdtRequest::Commit).await.unwrap();
    }
    let import = cluster.0[0].import.clone();
    let asked = async move {
        let made = call(&import, make_striped("striped", 1, &[1, 2])).await;
        let removed = call(&import, remove(ROOT, "striped", true)).await;
        (made, removed)
    };
    let ((made, _), is_over) = interrupt((&what, &mut cluster), (fault, 0), steps, asked).await;
    assert!(matches!(made, Ok(MdtReply::Created(_)) | Err(FsError::Exists)), "{what}: {made:?}");
    let names = in_time(&what, cluster.at_rest()).await;
    let of_shards = names.iter().filter(|named| named.inode.is_shard()).count();
    match cluster.0[0].lookup(ROOT, "striped").await {
        Ok(master) => {
            assert_eq!(map_of(&cluster, master).await.shards.len(), 2, "{what}");
            assert_eq!(of_shards, 1, "{what}: the other one is with the directory");
        }
        Err(FsError::NotFound) => assert_eq!(of_shards, 0, "{what}"),
        Err(error) => panic!("{what}: {error}"),
    }
    cluster.end().await;
    !is_over
}
