//! What new directories get by the default of the one above: stripes, and the MDT that has them.

use std::{sync::Arc, time::Duration};

use rpc::{
    Import, ImportOptions,
    message::{
        MdtReply, MdtRequest,
        mdt::{Create, LayoutInfo},
        mdt_peer::MakeDirectory,
        session::feature,
    },
};
use tokio::task::JoinSet;
use types::{
    Attributes, Credentials, DirectoryDefault, FsError, FsResult, InodeNumber, MdtIndex, NameHash, NodeKind,
    ShardCount, Stripes, limits::SHARDS_MAX,
};

use super::{
    absent_mdts::in_time,
    common::{
        ROOT, root,
        several::{Cluster, ComesBack, call, endpoint, import_options, make_directory},
    },
};

/// Over all MDTs, for all levels.
const ALL: DirectoryDefault =
    DirectoryDefault { count: ShardCount::All, first: None, hash: None, levels: None, spread_levels: Some(0) };

async fn set(cluster: &Cluster, inode: InodeNumber, default: Option<DirectoryDefault>) -> FsResult<MdtReply> {
    set_as(cluster, root(), inode, default).await
}

async fn set_as(
    cluster: &Cluster,
    who: Credentials,
    inode: InodeNumber,
    default: Option<DirectoryDefault>,
) -> FsResult<MdtReply> {
    let mdt = usize::from(inode.mdt().0);
    cluster.0[mdt].call(MdtRequest::SetDirectoryDefault(who, inode, default)).await
}

async fn info(cluster: &Cluster, inode: InodeNumber) -> LayoutInfo {
    match cluster.0[usize::from(inode.mdt().0)].call(MdtRequest::GetLayout(inode)).await {
        Ok(MdtReply::Layout(info)) => info,
        other => panic!("{other:?}"),
    }
}

async fn default_of(cluster: &Cluster, inode: InodeNumber) -> Option<DirectoryDefault> {
    info(cluster, inode).await.directory_default
}

/// The MDTs that have the names of a directory; none: it is not striped.
async fn mdts(cluster: &Cluster, inode: InodeNumber) -> Vec<u16> {
    info(cluster, inode).await.map.map_or(Vec::new(), |map| map.shards.iter().map(|shard| shard.mdt().0).collect())
}

/// mkdir(2), in the shard of the name if the parent is striped.
async fn mkdir(cluster: &Cluster, parent: InodeNumber, name: &str, who: Credentials) -> FsResult<InodeNumber> {
    let map = info(cluster, parent).await.map;
    let parent = map.and_then(|map| map.shard_of(name.as_bytes())).unwrap_or(parent);
    match cluster.0[usize::from(parent.mdt().0)].call(mkdir_as(parent, name, who)).await? {
        MdtReply::Created(created) => Ok(created.entry.attributes.inode),
        MdtReply::Decided(decided) => Ok(decided.entry.attributes.inode),
        other => panic!("{other:?}"),
    }
}

fn mkdir_as(parent: InodeNumber, name: &str, who: Credentials) -> MdtRequest {
    let (name, kind) = (name.as_bytes().to_vec(), NodeKind::Directory);
    MdtRequest::Create(who, Create { parent, name, kind, mode: 0o777, umask: 0o22, layout: None, open: None })
}

/// A client that understands so much, at MDT 0.
pub(crate) fn client_with(cluster: &Cluster, number: u64, features: u64) -> Import {
    let options = ImportOptions { features, ..import_options() };
    cluster.0[0].connect_with(number, options, Arc::new(ComesBack))
}

/// The client needs no other request, which might fail although the directory exists.
#[tokio::test]
async fn the_answer_to_a_mkdir_says_all_of_what_it_made() {
    let cluster = Cluster::new(3).await;
    let own = types::SetAttributes { gid: Some(7), mode: Some(0o2775), ..Default::default() };
    cluster.0[0].call(MdtRequest::SetAttributes(root(), ROOT, own)).await.unwrap();
    let on_2 = DirectoryDefault { count: ShardCount::Exactly(1), first: Some(MdtIndex(2)), ..ALL };
    let from_1 = DirectoryDefault { first: Some(MdtIndex(1)), ..ALL };
    for (name, default) in [("far", on_2), ("striped here", ALL), ("striped from 1", from_1)] {
        set(&cluster, ROOT, Some(default)).await.unwrap();
        let decided = match cluster.0[0].call(mkdir_as(ROOT, name, root())).await {
            Ok(MdtReply::Decided(decided)) => decided,
            other => panic!("{name}: {other:?}"),
        };
        in_time("it is made", cluster.at_rest()).await;
        let Attributes { inode, gid, mode, links, .. } = decided.entry.attributes;
        assert_eq!((gid, mode, links), (7, 0o2755, 2), "{name}: set-gid directories pass both on");
        let found = cluster.0[usize::from(inode.mdt().0)].stat(inode).await.unwrap();
        assert_eq!(decided.entry, found, "{name}");
        assert_eq!(decided.map, info(&cluster, inode).await.map, "{name}");
    }
    cluster.end().await;
}

/// What it does not understand is not stored as the reply to its request, either: that is sent
/// again as it is.
#[tokio::test]
async fn clients_get_answers_that_they_understand() {
    let cluster = Cluster::new(2).await;
    let older = client_with(&cluster, 31, feature::ALL & !feature::DECIDED_INODES);
    let on_1 = DirectoryDefault { count: ShardCount::Exactly(1), first: Some(MdtIndex(1)), ..ALL };
    set(&cluster, ROOT, Some(on_1)).await.unwrap();
    let answer = older.call(mkdir_as(ROOT, "far", root())).await.unwrap().reply;
    assert_eq!(answer, MdtReply::Remote(cluster.0[0].lookup(ROOT, "far").await.unwrap()));
    set(&cluster, ROOT, Some(ALL)).await.unwrap();
    match older.call(mkdir_as(ROOT, "striped", root())).await.unwrap().reply {
        MdtReply::Created(created) => assert_eq!(created.entry.map_version, 1),
        other => panic!("{other:?}"),
    }
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// Release 0.1.0 knows one MDT, and no stripes: it would not find its directory, or not the names
/// in it.
#[tokio::test]
async fn clients_that_know_one_mdt_make_directories_where_they_find_them() {
    let cluster = Cluster::new(2).await;
    let newer = feature::SEVERAL_MDTS | feature::STRIPED_DIRECTORIES | feature::DECIDED_INODES;
    let old = client_with(&cluster, 32, feature::ALL & !newer);
    let on_1 = DirectoryDefault { count: ShardCount::Exactly(1), first: Some(MdtIndex(1)), ..ALL };
    for (name, default) in [("one", on_1), ("all", ALL)] {
        set(&cluster, ROOT, Some(default)).await.unwrap();
        let made = match old.call(mkdir_as(ROOT, name, root())).await.unwrap().reply {
            MdtReply::Created(created) => created.entry.attributes.inode,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!((made.mdt(), mdts(&cluster, made).await), (MdtIndex(0), vec![]), "{name}");
        assert_eq!(default_of(&cluster, made).await, Some(default), "others go by it");
        let below = old.call(mkdir_as(made, "below", root())).await.unwrap().reply;
        assert!(matches!(below, MdtReply::Created(_)), "{below:?}");
    }
    assert_eq!(in_time("all ends", cluster.at_rest()).await, [], "no name leads elsewhere");
    cluster.end().await;
}

#[tokio::test]
async fn new_directories_are_striped_for_so_many_levels() {
    let cluster = Cluster::new(3).await;
    let before = cluster.0[0].create(ROOT, "before", NodeKind::Directory).await.unwrap();
    let crush = DirectoryDefault { hash: Some(NameHash::Crush), levels: Some(2), ..ALL };
    assert_eq!(set(&cluster, ROOT, Some(crush)).await, Ok(MdtReply::Done));
    assert_eq!(default_of(&cluster, ROOT).await, Some(crush));
    let first = mkdir(&cluster, ROOT, "d", root()).await.unwrap();
    assert_eq!(mdts(&cluster, first).await, [0, 1, 2], "from the MDT of the name on");
    assert_eq!(info(&cluster, first).await.map.map(|map| map.hash), Some(NameHash::Crush));
    assert_eq!(default_of(&cluster, first).await, Some(DirectoryDefault { levels: Some(1), ..crush }));
    // Its names are on all MDTs, which have the default at hand.
    for number in 0..6 {
        let second = mkdir(&cluster, first, &format!("d{number}"), root()).await.unwrap();
        let mut over = mdts(&cluster, second).await;
        assert_eq!(over.first(), Some(&second.mdt().0));
        over.sort();
        assert_eq!(over, [0, 1, 2]);
        assert_eq!(default_of(&cluster, second).await, None, "the last level");
        let third = mkdir(&cluster, second, "d", root()).await.unwrap();
        assert_eq!(mdts(&cluster, third).await, [0; 0], "no default any more");
    }
    assert_eq!((mdts(&cluster, before).await, default_of(&cluster, before).await), (vec![], None), "it was there");
    assert_eq!(set(&cluster, ROOT, None).await, Ok(MdtReply::Done));
    let plain = mkdir(&cluster, ROOT, "plain", root()).await.unwrap();
    assert_eq!(mdts(&cluster, plain).await, [0; 0]);
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

#[tokio::test]
async fn a_default_may_give_an_mdt_several_shards() {
    let mut cluster = Cluster::new(2).await;
    let five = DirectoryDefault { count: ShardCount::Overstriped(5), levels: Some(2), ..ALL };
    set(&cluster, ROOT, Some(five)).await.unwrap();
    let first = mkdir(&cluster, ROOT, "five", root()).await.unwrap();
    in_time("all ends", cluster.at_rest()).await;
    cluster.restart(&[0, 1]).await;
    assert_eq!(default_of(&cluster, ROOT).await, Some(five), "as it is stored");
    assert_eq!(mdts(&cluster, first).await, [0, 1, 0, 1, 0]);
    for number in 0..6 {
        let below = in_time("mkdir", mkdir(&cluster, first, &format!("d{number}"), root())).await.unwrap();
        let mut over = mdts(&cluster, below).await;
        assert_eq!((over.len(), over[0]), (5, below.mdt().0), "from the MDT of the name on");
        over.sort();
        over.dedup();
        assert_eq!(over, [0, 1]);
    }
    let two_each = DirectoryDefault { count: ShardCount::PerMdt(2), first: Some(MdtIndex(1)), ..ALL };
    set(&cluster, ROOT, Some(two_each)).await.unwrap();
    let each = mkdir(&cluster, ROOT, "each", root()).await.unwrap();
    assert_eq!((each.mdt(), mdts(&cluster, each).await), (MdtIndex(1), vec![1, 0, 1, 0]));
    for count in [ShardCount::Overstriped(0), ShardCount::Overstriped(SHARDS_MAX as u16 + 1), ShardCount::PerMdt(33)] {
        let impossible = DirectoryDefault { count, ..ALL };
        assert_eq!(set(&cluster, ROOT, Some(impossible)).await, Err(FsError::Invalid), "{count:?}");
    }
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

#[tokio::test]
async fn new_directories_go_to_the_mdt_of_the_default() {
    let cluster = Cluster::new(3).await;
    let on_2 = DirectoryDefault { count: ShardCount::Exactly(1), first: Some(MdtIndex(2)), ..ALL };
    set(&cluster, ROOT, Some(on_2)).await.unwrap();
    let far = mkdir(&cluster, ROOT, "far", root()).await.unwrap();
    assert_eq!((far.mdt(), mdts(&cluster, far).await), (MdtIndex(2), vec![]));
    assert_eq!(cluster.0[0].lookup(ROOT, "far").await, Ok(far));
    assert_eq!(mkdir(&cluster, ROOT, "far", root()).await, Err(FsError::Exists));
    let below = mkdir(&cluster, far, "below", root()).await.unwrap();
    assert_eq!((below.mdt(), default_of(&cluster, below).await), (MdtIndex(2), Some(on_2)));
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// Each directory on another MDT, for one level.
const SPREAD: DirectoryDefault = DirectoryDefault { count: ShardCount::Exactly(1), spread_levels: Some(1), ..ALL };

/// So many more directories in the root; how many each MDT has got.
async fn spread(cluster: &Cluster, prefix: &str, directories: usize) -> Vec<usize> {
    let mut counts = vec![0; cluster.0.len()];
    for number in 0..directories {
        let made = mkdir(cluster, ROOT, &format!("{prefix}{number}"), root()).await.unwrap();
        counts[usize::from(made.mdt().0)] += 1;
    }
    counts
}

#[tokio::test]
async fn new_directories_go_round_the_mdts() {
    let cluster = Cluster::new(3).await;
    // An MDT that is not connected yet would lose its turn.
    for mdt in 0..3 {
        cluster.0[0].make_directory(ROOT, &format!("first on {mdt}"), mdt).await.unwrap();
    }
    in_time("they are made", cluster.at_rest()).await;
    set(&cluster, ROOT, Some(SPREAD)).await.unwrap();
    for round in 0..5 {
        assert_eq!(spread(&cluster, &format!("round {round} "), 3).await, [1, 1, 1]);
    }
    assert_eq!(mkdir(&cluster, ROOT, "round 0 0", root()).await, Err(FsError::Exists));
    // Others do not count, and what is below stays.
    let made = mkdir(&cluster, ROOT, "d", root()).await.unwrap();
    let below = mkdir(&cluster, made, "below", root()).await.unwrap();
    assert_eq!(below.mdt(), made.mdt(), "for one level");
    let mut others = spread(&cluster, "others", 2).await;
    others[usize::from(made.mdt().0)] += 1;
    assert_eq!(others, [1, 1, 1]);
    // Each of those that are made at the same time.
    let mut made = JoinSet::new();
    for number in 0..30 {
        let import = cluster.0[0].import.clone();
        made.spawn(async move { call(&import, mkdir_as(ROOT, &format!("at once {number}"), root())).await });
    }
    let mut counts = [0; 3];
    for made in made.join_all().await {
        match made {
            Ok(MdtReply::Decided(decided)) => counts[usize::from(decided.entry.attributes.inode.mdt().0)] += 1,
            Ok(MdtReply::Created(_)) => counts[0] += 1,
            other => panic!("{other:?}"),
        }
    }
    // One that was told to ask again took another turn.
    assert!(counts.iter().all(|count| (5..=15).contains(count)), "{counts:?}");
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// What has little space gets few directories, and what does not answer none: mkdir waits for none
/// of them.
#[tokio::test]
async fn new_directories_go_where_space_is_and_answers_come_from() {
    let mut cluster = Cluster::new(3).await;
    set(&cluster, ROOT, Some(SPREAD)).await.unwrap();
    for node in &mut cluster.0 {
        node.set_refresh(Duration::from_millis(5));
        node.set_capacity(1 << 40);
    }
    cluster.0[1].set_capacity(1 << 34);
    cluster.restart(&[0, 1, 2]).await;
    // Until all have told.
    let mut turn = 0;
    in_time("space decides", async {
        loop {
            turn += 1;
            let [zero, one, two] = spread(&cluster, &format!("turn {turn} "), 30).await[..] else { panic!("three") };
            if one < 4 && zero > 5 && two > 5 {
                break;
            }
        }
    })
    .await;
    cluster.0[1].set_capacity(1 << 40);
    in_time("they are equal", async {
        loop {
            turn += 1;
            if spread(&cluster, &format!("turn {turn} "), 3).await == [1, 1, 1] {
                break;
            }
        }
    })
    .await;
    in_time("all is made", cluster.at_rest()).await;
    cluster.0[2].crash().await;
    in_time("it is missed", async {
        loop {
            turn += 1;
            if spread(&cluster, &format!("turn {turn} "), 10).await == [5, 5, 0] {
                break;
            }
        }
    })
    .await;
    cluster.end().await;
}

/// It is asked as soon as it can be reached, not at the next interval; also if it was away for
/// longer than others are waited for.
#[tokio::test]
async fn new_directories_go_to_an_mdt_as_soon_as_it_is_back() {
    let timeout = Duration::from_secs(2);
    let mut cluster = Cluster::with_timeout(3, timeout).await;
    set(&cluster, ROOT, Some(SPREAD)).await.unwrap();
    for node in &mut cluster.0 {
        node.set_refresh(Duration::from_secs(3600));
    }
    cluster.restart(&[0, 1, 2]).await;
    let mut turn = 0;
    let mut until = async |cluster: &Cluster, what: &str, expected: [usize; 3]| {
        let look = async {
            loop {
                turn += 1;
                let directories = expected.iter().sum();
                if spread(cluster, &format!("turn {turn} "), directories).await == expected {
                    break;
                }
            }
        };
        in_time(what, look).await;
    };
    until(&cluster, "all are there", [1, 1, 1]).await;
    in_time("all is made", cluster.at_rest()).await;
    cluster.0[2].crash().await;
    until(&cluster, "it is missed", [2, 2, 0]).await;
    tokio::time::sleep(timeout + Duration::from_secs(1)).await;
    cluster.start(&[2]).await;
    until(&cluster, "it is back", [1, 1, 1]).await;
    cluster.end().await;
}

#[tokio::test]
async fn a_place_that_is_asked_for_takes_precedence() {
    let cluster = Cluster::new(2).await;
    set(&cluster, ROOT, Some(ALL)).await.unwrap();
    for mdt in [0, 1] {
        let name = format!("on{mdt}");
        cluster.0[0].call(make_directory(ROOT, &name, mdt)).await.unwrap();
        let made = cluster.0[0].lookup(ROOT, &name).await.unwrap();
        assert_eq!((made.mdt(), mdts(&cluster, made).await), (MdtIndex(mdt), vec![]));
        in_time("it is made", cluster.at_rest()).await;
        assert_eq!(default_of(&cluster, made).await, Some(ALL), "it passes the default on");
    }
    let stripes = Stripes { hash: NameHash::AllCharacters, mdts: vec![MdtIndex(1), MdtIndex(0)] };
    let (name, mdt) = (b"listed".to_vec(), MdtIndex(1));
    let make = MakeDirectory { parent: ROOT, name, mode: 0o755, umask: 0, mdt, stripes };
    cluster.0[0].call(MdtRequest::MakeDirectory(root(), make)).await.unwrap();
    let listed = cluster.0[0].lookup(ROOT, "listed").await.unwrap();
    in_time("it is made", cluster.at_rest()).await;
    assert_eq!(mdts(&cluster, listed).await, [1, 0]);
    cluster.end().await;
}

/// Root sets it; then users make directories elsewhere, where they may write.
#[tokio::test]
async fn users_make_directories_by_the_default_and_do_not_set_it() {
    let cluster = Cluster::new(2).await;
    let user = Credentials { uid: 7, gid: 7, groups: Some(Vec::new()) };
    let home = cluster.0[0].create(ROOT, "home", NodeKind::Directory).await.unwrap();
    let own = types::SetAttributes { uid: Some(7), gid: Some(7), ..Default::default() };
    cluster.0[0].call(MdtRequest::SetAttributes(root(), home, own)).await.unwrap();
    assert_eq!(set_as(&cluster, user.clone(), home, Some(ALL)).await, Err(FsError::NotPermitted));
    assert_eq!(set_as(&cluster, user.clone(), home, None).await, Err(FsError::NotPermitted));
    set(&cluster, home, Some(ALL)).await.unwrap();
    let made = mkdir(&cluster, home, "d", user.clone()).await.unwrap();
    assert_eq!(mdts(&cluster, made).await, [0, 1]);
    let attributes = cluster.0[0].stat(made).await.unwrap().attributes;
    assert_eq!((attributes.uid, attributes.gid, attributes.mode), (7, 7, 0o755));
    let below = mkdir(&cluster, made, "below", user.clone()).await.unwrap();
    assert_eq!(mdts(&cluster, below).await.len(), 2);
    set(&cluster, ROOT, Some(ALL)).await.unwrap();
    assert_eq!(mkdir(&cluster, ROOT, "d", user).await, Err(FsError::AccessDenied));
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// The default of the root belongs to the user who owns it; other users, and what it owns below,
/// are as everywhere.
#[tokio::test]
async fn who_owns_the_root_sets_its_default() {
    let cluster = Cluster::new(2).await;
    let user = |uid| Credentials { uid, gid: uid, groups: Some(Vec::new()) };
    let own = types::SetAttributes { uid: Some(7), gid: Some(7), ..Default::default() };
    cluster.0[0].call(MdtRequest::SetAttributes(root(), ROOT, own)).await.unwrap();
    for default in [Some(ALL), None, Some(DirectoryDefault::OF_NEW_ROOT)] {
        for other in [8, 1] {
            assert_eq!(set_as(&cluster, user(other), ROOT, default).await, Err(FsError::NotPermitted), "{other}");
        }
        assert_eq!(set_as(&cluster, user(7), ROOT, default).await, Ok(MdtReply::Done), "{default:?}");
        assert_eq!(default_of(&cluster, ROOT).await, default);
    }
    let below = mkdir(&cluster, ROOT, "below", user(7)).await.unwrap();
    assert_eq!(set_as(&cluster, user(7), below, Some(ALL)).await, Err(FsError::NotPermitted));
    set(&cluster, ROOT, None).await.expect("root may");
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// Requests of a client that lies, and of one that asks for more than there is.
#[tokio::test]
async fn impossible_defaults_are_refused() {
    let cluster = Cluster::new(2).await;
    let count = |count| DirectoryDefault { count: ShardCount::Exactly(count), ..ALL };
    let first = |mdt| DirectoryDefault { first: Some(MdtIndex(mdt)), ..ALL };
    for (default, error) in [
        (count(0), FsError::Invalid),
        (count(SHARDS_MAX as u16 + 1), FsError::Invalid),
        (DirectoryDefault { levels: Some(0), ..ALL }, FsError::Invalid),
        (DirectoryDefault { levels: Some(251), ..ALL }, FsError::Invalid),
        (DirectoryDefault { spread_levels: Some(251), ..ALL }, FsError::Invalid),
        (DirectoryDefault { spread_levels: Some(1), ..first(1) }, FsError::Invalid),
        (count(3), FsError::NoDeviceOrAddress),
        (first(2), FsError::NoDeviceOrAddress),
        (first(u16::MAX), FsError::NoDeviceOrAddress),
    ] {
        assert_eq!(set(&cluster, ROOT, Some(default)).await, Err(error), "{default:?}");
    }
    assert_eq!(default_of(&cluster, ROOT).await, None);
    let file = cluster.0[0].create(ROOT, "file", NodeKind::Regular).await.unwrap();
    assert_eq!(set(&cluster, file, Some(ALL)).await, Err(FsError::NotDirectory));
    set(&cluster, ROOT, Some(ALL)).await.unwrap();
    let made = mkdir(&cluster, ROOT, "d", root()).await.unwrap();
    let shard = info(&cluster, made).await.map.unwrap().shards[1];
    assert_eq!(set(&cluster, shard, None).await, Err(FsError::Invalid), "shards change with their directory");
    cluster.end().await;
}

/// The default of a directory that is striped is one of all its shards.
#[tokio::test]
async fn a_changed_default_holds_for_all_names_and_after_restarts() {
    let mut cluster = Cluster::new(2).await;
    set(&cluster, ROOT, Some(ALL)).await.unwrap();
    let made = mkdir(&cluster, ROOT, "d", root()).await.unwrap();
    in_time("it is made", cluster.at_rest()).await;
    let one = DirectoryDefault { count: ShardCount::Exactly(1), first: Some(MdtIndex(1)), levels: Some(7), ..ALL };
    set(&cluster, made, Some(one)).await.unwrap();
    in_time("all ends", cluster.at_rest()).await;
    cluster.restart(&[0, 1]).await;
    assert_eq!(default_of(&cluster, made).await, Some(one));
    for number in 0..6 {
        let below = in_time("mkdir", mkdir(&cluster, made, &format!("d{number}"), root())).await.unwrap();
        assert_eq!((below.mdt(), mdts(&cluster, below).await), (MdtIndex(1), vec![]), "wherever its name is");
    }
    in_time("all ends", cluster.at_rest()).await;
    cluster.end().await;
}

/// A count that was possible when it was set: of MDTs taken out of use later, none gets a shard.
#[tokio::test]
async fn fewer_mdts_than_the_default_says_are_all_that_are_left() {
    let cluster = Cluster::new(3).await;
    let three = DirectoryDefault { count: ShardCount::Exactly(3), first: Some(MdtIndex(1)), ..ALL };
    set(&cluster, ROOT, Some(three)).await.unwrap();
    let full = mkdir(&cluster, ROOT, "full", root()).await.unwrap();
    assert_eq!(mdts(&cluster, full).await, [1, 2, 0]);
    in_time("all ends", cluster.at_rest()).await;
    let maps: Vec<_> = [0, 1, 2].map(|mdt| (MdtIndex(mdt), endpoint(MdtIndex(mdt)), mdt != 1)).into();
    cluster.0[0].mdt.update_mdts(&maps);
    let fewer = in_time("mkdir", async {
        loop {
            // The map is followed by a task.
            let made = mkdir(&cluster, ROOT, "fewer", root()).await.unwrap();
            match mdts(&cluster, made).await {
                over if over.len() == 2 => break over,
                _ => cluster.0[0].remove(ROOT, "fewer", true).await.unwrap(),
            }
        }
    })
    .await;
    assert_eq!(fewer, [2, 0], "from the next one on");
    cluster.end().await;
}
