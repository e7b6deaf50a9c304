//! Directories whose names are in shards on several MDTs: made and removed in one decision, and
//! used as a client does, which knows their maps.

use std::{collections::BTreeSet, time::Duration};

use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{
        Lookup, OpenFlags, OpenId, ReadDirectory, Rename, RenameMode, SetXattr, SourceData, Unlink, XattrMode,
        open_flag,
    },
    mdt_peer::MakeDirectory,
    session::feature,
};
use types::{
    Credentials, DirectoryDefault, DirectoryMap, FsError, FsResult, InodeNumber, MdtIndex, NameHash, NodeKind,
    SetAttributes, ShardCount, SplitMix64, Stripes, access_list::ACCESS_NAME,
};

use super::{
    absent_mdts::{FAULTS, Fault, in_time, interrupt},
    common::{
        ROOT, create_request, created, root,
        several::{Cluster, call, make_directory, remove},
        user,
    },
    directory_defaults::client_with,
    remote_directories::executed,
    split_directories::split,
};

fn make_striped(name: &str, mdt: u16, mdts: &[u16]) -> MdtRequest {
    make_hashed(name, mdt, mdts, NameHash::Fnv1a64)
}

fn make_hashed(name: &str, mdt: u16, mdts: &[u16], hash: NameHash) -> MdtRequest {
    let mdts = mdts.iter().map(|mdt| MdtIndex(*mdt)).collect();
    let stripes = Stripes { hash, mdts };
    let (name, mdt) = (name.as_bytes().to_vec(), MdtIndex(mdt));
    MdtRequest::MakeDirectory(root(), MakeDirectory { parent: ROOT, name, mode: 0o755, umask: 0, mdt, stripes })
}

/// A striped directory in the root.
async fn striped(cluster: &Cluster, name: &str, mdt: u16, mdts: &[u16]) -> DirectoryMap {
    hashed(cluster, name, mdt, mdts, NameHash::Fnv1a64).await
}

async fn hashed(cluster: &Cluster, name: &str, mdt: u16, mdts: &[u16], hash: NameHash) -> DirectoryMap {
    let made = created(cluster.0[0].call(make_hashed(name, mdt, mdts, hash)).await.unwrap());
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

/// Several shards on one MDT: each has its names, and all are one directory.
#[tokio::test]
async fn an_mdt_may_have_several_shards() {
    for (count, mdt, mdts) in [(1, 0, &[0, 0, 0][..]), (2, 1, &[0, 1, 1, 0, 0]), (2, 0, &[1, 1]), (3, 1, &[2, 0, 2])] {
        let cluster = Cluster::new(count).await;
        let map = striped(&cluster, "striped", mdt, mdts).await;
        assert_eq!(map.shards.iter().map(|shard| shard.mdt().0).collect::<Vec<_>>(), mdts);
        assert!(map.is_possible() && map.is_overstriped());
        in_time("all is carried out", cluster.at_rest()).await;
        let chmod = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
        let home = &cluster.0[usize::from(mdt)];
        home.call(MdtRequest::SetAttributes(root(), map.master, chmod)).await.unwrap();
        in_time("all is carried out", cluster.at_rest()).await;
        for shard in &map.shards {
            assert_eq!(cluster.0[usize::from(shard.mdt().0)].stat(*shard).await.unwrap().attributes.mode, 0o777);
        }
        // From each shard to each other one, what its user may not write to: its parent stays.
        let in_shard = |index: usize, prefix: &str| {
            let names = (0..).map(|count| format!("{prefix}{count}"));
            names.map(|name| (place(&map, &name), name)).find(|((_, shard), _)| *shard == map.shards[index]).unwrap()
        };
        for from in 0..mdts.len() {
            for to in 0..mdts.len() {
                let (((_, old_shard), old), ((at, new_shard), new)) = (in_shard(from, "old"), in_shard(to, "new"));
                let made = create(&cluster, &map, &old, NodeKind::Directory).await.unwrap();
                let MdtRequest::Rename(_, request) = rename((old_shard, &old), (new_shard, &new), from != to) else {
                    panic!("a rename")
                };
                let moved = in_time("a rename", cluster.0[at].call(MdtRequest::Rename(user(7), request))).await;
                assert_eq!(moved, Ok(MdtReply::Done), "{from} to {to} of {mdts:?}");
                assert_eq!(cluster.0[at].lookup(new_shard, &new).await, Ok(made), "{from} to {to} of {mdts:?}");
                in_time("all is carried out", cluster.at_rest()).await;
                assert_eq!(cluster.0[0].remove(ROOT, "striped", true).await, Err(FsError::NotEmpty));
                cluster.0[at].remove(new_shard, &new, true).await.unwrap();
            }
        }
        assert_eq!(cluster.0[0].remove(ROOT, "striped", true).await, Ok(()));
        assert_eq!(in_time("all ends", cluster.at_rest()).await, []);
        for shard in &map.shards {
            assert_eq!(cluster.0[usize::from(shard.mdt().0)].stat(*shard).await, Err(FsError::Stale));
        }
        cluster.end().await;
    }
}

/// Of an earlier release, an MDT or a client takes such a map for damaged: it never sees one.
#[tokio::test]
async fn several_shards_on_one_mdt_are_only_where_that_is_known() {
    const OVER: DirectoryDefault = DirectoryDefault {
        count: ShardCount::Overstriped(3),
        first: None,
        hash: None,
        levels: None,
        spread_levels: Some(0),
    };
    let mut cluster = Cluster::new(2).await;
    let plain = cluster.0[0].create(ROOT, "plain", NodeKind::Directory).await.unwrap();
    cluster.0[1].set_missing(feature::OVERSTRIPED_DIRECTORIES);
    cluster.restart(&[1]).await;
    let distinct = striped(&cluster, "distinct", 0, &[0, 1]).await;
    let default = || MdtRequest::SetDirectoryDefault(root(), ROOT, Some(OVER));
    for request in [make_striped("x", 0, &[0, 0]), make_striped("x", 1, &[0, 1, 0]), split(plain, &[0, 0]), default()] {
        let refused = in_time("an answer", cluster.0[0].call(request.clone())).await;
        assert_eq!(refused, Err(FsError::NotSupported), "{request:?}");
    }
    assert_eq!(cluster.0[0].lookup(ROOT, "x").await, Err(FsError::NotFound));
    in_time("all ends", cluster.at_rest()).await;
    cluster.0[1].set_missing(0);
    cluster.restart(&[1]).await;
    let map = in_time("it is made", striped(&cluster, "x", 0, &[1, 0, 1])).await;
    in_time("all is carried out", cluster.at_rest()).await;
    let older = client_with(&cluster, 31, feature::ALL & !feature::OVERSTRIPED_DIRECTORIES);
    let look = |parent| MdtRequest::Lookup(root(), Lookup { parent, name: b"any".to_vec() });
    assert_eq!(older.call(look(map.master)).await.unwrap_err(), FsError::NotSupported);
    assert_eq!(older.call(look(distinct.master)).await.unwrap().reply, MdtReply::Striped(distinct));
    let MdtReply::Layout(info) = older.call(MdtRequest::GetLayout(map.master)).await.unwrap().reply else {
        panic!("a layout")
    };
    assert_eq!(info.map, None);
    cluster.0[0].call(default()).await.unwrap();
    let mkdir = MdtRequest::Create(root(), create_request(ROOT, "by default", NodeKind::Directory, 0o755, None));
    let made = created(older.call(mkdir).await.unwrap().reply).entry;
    assert_eq!((made.attributes.inode.mdt(), made.map_version), (MdtIndex(0), 0), "where it finds it");
    assert_eq!(call(&older, remove(ROOT, "x", true)).await, Ok(MdtReply::Done), "it can be removed");
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// Impossible requests of a client that lies.
#[tokio::test]
async fn impossible_stripes_are_refused() {
    let cluster = Cluster::new(2).await;
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
        let unlink = Unlink { parent: map.shards[mdt], name: name.into_bytes(), directory: false };
        let removed = cluster.0[mdt].call(MdtRequest::Unlink(user.clone(), unlink)).await;
        assert_eq!(removed, Err(FsError::NotPermitted), "it is sticky");
    }
    cluster.end().await;
}

#[tokio::test]
async fn what_shards_have_nothing_of_leaves_them_as_they_are() {
    let cluster = Cluster::new(2).await;
    let map = striped(&cluster, "striped", 0, &[0, 1]).await;
    let shards = async || {
        let mut shown = Vec::new();
        for (mdt, shard) in map.shards.iter().enumerate() {
            shown.push(in_time("stat", cluster.0[mdt].stat(*shard)).await.unwrap());
        }
        shown
    };
    let (zero, before) = (&cluster.0[0], shards().await);
    let set = |name: &[u8], value: Vec<u8>| {
        let set = SetXattr { inode: map.master, name: name.to_vec(), value, mode: XattrMode::Any };
        MdtRequest::SetXattr(root(), set)
    };
    zero.call(set(b"user.a", b"1".to_vec())).await.unwrap();
    zero.call(MdtRequest::RemoveXattr(root(), map.master, b"user.a".to_vec())).await.unwrap();
    zero.call(MdtRequest::SetAttributes(root(), map.master, SetAttributes::default())).await.unwrap();
    in_time("all ends", cluster.at_rest()).await;
    assert_eq!(shards().await, before);
    // Version 2: owner, group and others.
    let entry =
        |(tag, permissions): (u16, u16)| [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &[255; 4]].concat();
    let entries = [(1, 7), (4, 0), (32, 0)].map(entry).concat();
    zero.call(set(ACCESS_NAME, [&[2, 0, 0, 0], &entries[..]].concat())).await.unwrap();
    in_time("all ends", cluster.at_rest()).await;
    assert!(shards().await.iter().all(|shard| shard.attributes.mode & 0o777 == 0o700));
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

/// Files that are written under each kind of temporary name.
const WRITTEN: usize = 64;

/// As mkstemp(3) draws it.
fn drawn(random: &mut SplitMix64, count: usize) -> String {
    const ALL: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    (0..count).map(|_| char::from(ALL[(random.next_u64() % ALL.len() as u64) as usize])).collect()
}

/// Files are written under temporary names and get their final ones, in a directory over 4 MDTs.
/// Returns how many of these renames concern two MDTs, by kind of name, and how many requests MDTs
/// send each other for all.
async fn temporary_names(hash: NameHash) -> ([usize; 4], u64) {
    let cluster = Cluster::new(4).await;
    let map = hashed(&cluster, "striped", 0, &[0, 1, 2, 3], hash).await;
    in_time("all is carried out", cluster.at_rest()).await;
    let between = || cluster.0.iter().map(executed).sum::<u64>();
    let (mut random, mut found, before, mut mdts) = (SplitMix64(7), [0; 4], between(), BTreeSet::new());
    for number in 0..WRITTEN {
        let kinds = [
            format!(".f{number}.tmp"),
            format!(".f{number}.{}", drawn(&mut random, 6)),
            format!("f{number}.{}", drawn(&mut random, 8)),
            format!("f{number}.{}", drawn(&mut random, 6)),
        ];
        for (temporary, found) in kinds.iter().zip(&mut found) {
            let file = create(&cluster, &map, temporary, NodeKind::Regular).await.unwrap();
            let name = format!("f{number}");
            let ((from, old), (to, new)) = (place(&map, temporary), place(&map, &name));
            let renamed = cluster.0[to].call(rename((old, temporary), (new, &name), true)).await;
            assert_eq!(renamed, Ok(MdtReply::Done), "{hash:?}: {temporary}");
            assert_eq!(cluster.0[to].lookup(new, &name).await, Ok(file));
            *found += usize::from(from != to);
            mdts.insert(to);
        }
    }
    assert_eq!(mdts.len(), 4, "{hash:?}: the files are on all MDTs");
    in_time("all ends", cluster.at_rest()).await;
    let requests = between() - before;
    cluster.end().await;
    (found, requests)
}

/// With `crush` and `crush2` they are on the MDT of the final name. Of the suffixes that mkstemp(3)
/// draws, some look as if they had a meaning, and are not taken for temporary: long ones hardly
/// ever.
#[tokio::test]
async fn a_file_that_is_written_under_a_temporary_name_stays_on_its_mdt() {
    for hash in [NameHash::Crush, NameHash::Crush2] {
        let ([with_tmp, of_rsync, long, short], requests) = temporary_names(hash).await;
        assert_eq!((with_tmp, long), (0, 0), "{hash:?}");
        assert!(of_rsync <= WRITTEN / 32 && short <= WRITTEN / 10, "{hash:?}: {of_rsync}, {short}");
        // A part, a decision and its end at most.
        assert!(requests <= 4 * (of_rsync + short) as u64, "{hash:?}: {requests} for {of_rsync} and {short}");
    }
}

/// The others say nothing of that: most of the names are on another MDT, and each rename has a part
/// there.
#[tokio::test]
async fn other_hashes_put_temporary_names_anywhere() {
    for hash in [NameHash::Fnv1a64, NameHash::AllCharacters] {
        let (found, requests) = temporary_names(hash).await;
        assert!(found.iter().all(|moved| (WRITTEN / 2..=WRITTEN).contains(moved)), "{hash:?}: {found:?}");
        assert!(requests >= found.iter().sum::<usize>() as u64, "{hash:?}: {requests} for {found:?}");
    }
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
    for (mdts, more) in [(&[1, 2][..], 3), (&[1, 2, 2, 1, 2], 7)] {
        for fault in FAULTS {
            let mut steps = 0;
            while after_steps(fault, steps, mdts).await {
                steps += more;
            }
            assert!(steps > 10, "{fault:?}: {steps} steps");
        }
    }
}

/// False if both were over before the fault.
async fn after_steps(fault: Fault, steps: usize, mdts: &'static [u16]) -> bool {
    let what = format!("{fault:?} after {steps} steps, over {mdts:?}");
    let mut cluster = Cluster::new(3).await;
    cluster.0[0].call(make_directory(ROOT, "before", 1)).await.unwrap();
    cluster.at_rest().await;
    for node in &cluster.0 {
        node.call(MdtRequest::Commit).await.unwrap();
    }
    let import = cluster.0[0].import.clone();
    let asked = async move {
        let made = call(&import, make_striped("striped", 1, mdts)).await;
        let removed = call(&import, remove(ROOT, "striped", true)).await;
        (made, removed)
    };
    let ((made, _), is_over) = interrupt((&what, &mut cluster), (fault, 0), steps, asked).await;
    assert!(matches!(made, Ok(MdtReply::Created(_)) | Err(FsError::Exists)), "{what}: {made:?}");
    let names = in_time(&what, cluster.at_rest()).await;
    let of_shards = names.iter().filter(|named| named.inode.is_shard()).count();
    match cluster.0[0].lookup(ROOT, "striped").await {
        Ok(master) => {
            let map = map_of(&cluster, master).await;
            assert_eq!(map.shards.iter().map(|shard| shard.mdt().0).collect::<Vec<_>>(), mdts, "{what}");
            let elsewhere = mdts.iter().filter(|mdt| **mdt != 1).count();
            assert_eq!(of_shards, elsewhere, "{what}: the others are with the directory");
        }
        Err(FsError::NotFound) => assert_eq!(of_shards, 0, "{what}"),
        Err(error) => panic!("{what}: {error}"),
    }
    cluster.end().await;
    !is_over
}
