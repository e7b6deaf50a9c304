//! Directories on another MDT than their name: by the protocol of decision 0049, between real MDTs.

use std::{collections::BTreeMap, time::Duration};

use mds::tables::{
    decision::{DecidedPart, Decision},
    inode::{Inode, InodeData, Link},
};
use rpc::{
    Role,
    message::{
        MdtReply, MdtRequest,
        mdt::RenameMode,
        mdt_peer::{Decisions, DropLink, Join, MakeDirectory, OperationId, Part, Prepare, Prepared},
    },
};
use types::{
    Accounted, Attributes, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, SetAttributes, SplitMix64,
};

use super::common::{
    ROOT, created, root,
    several::{self, Cluster, Node, call, make_directory, remove, second_endpoint},
    user,
};

/// More than anything takes that does not wait for something.
const MOMENT: Duration = Duration::from_millis(100);

/// Whether something waits.
async fn waits<T>(what: &mut (impl Future<Output = T> + Unpin)) -> bool {
    tokio::time::timeout(MOMENT, what).await.is_err()
}

fn rename(parent: InodeNumber, name: &str, new_parent: InodeNumber, new_name: &str, mode: RenameMode) -> MdtRequest {
    several::rename((parent, name), (new_parent, new_name), mode)
}

pub fn rename_in_root(name: &str, new_name: &str) -> MdtRequest {
    rename(ROOT, name, ROOT, new_name, RenameMode::Replace)
}

#[tokio::test]
async fn a_directory_is_where_it_was_asked_for_and_so_is_what_is_made_in_it() {
    let cluster = Cluster::new(2).await;
    let [zero, one] = &cluster.0[..] else { panic!("two") };
    let remote = zero.make_directory(ROOT, "remote", 1).await.unwrap();
    assert_eq!(remote.mdt(), MdtIndex(1));
    assert_eq!(zero.lookup(ROOT, "remote").await, Ok(remote));
    assert_eq!(zero.stat(ROOT).await.unwrap().attributes.links, 3);
    let shown = one.stat(remote).await.unwrap().attributes;
    assert_eq!((shown.links, shown.mode, shown.inode), (2, 0o755, remote));
    let file = one.create(remote, "file", NodeKind::Regular).await.unwrap();
    assert_eq!(file.mdt(), MdtIndex(1));
    // And one whose name is on MDT 1, back on MDT 0.
    let back = one.make_directory(remote, "back", 0).await.unwrap();
    assert_eq!((back.mdt(), one.lookup(back, "..").await.err()), (MdtIndex(0), Some(FsError::Stale)));
    assert_eq!(zero.lookup(back, "..").await, Ok(remote));
    assert_eq!(one.lookup(file, "..").await, Err(FsError::NotDirectory));
    assert_eq!(zero.remove(ROOT, "remote", true).await, Err(FsError::NotEmpty));
    assert_eq!(zero.remove(ROOT, "remote", false).await, Err(FsError::IsDirectory));
    one.remove(remote, "file", false).await.unwrap();
    assert_eq!(zero.remove(ROOT, "remote", true).await, Err(FsError::NotEmpty), "of a directory elsewhere");
    one.remove(remote, "back", true).await.unwrap();
    zero.remove(ROOT, "remote", true).await.unwrap();
    assert_eq!(zero.lookup(ROOT, "remote").await, Err(FsError::NotFound));
    assert_eq!(one.stat(remote).await, Err(FsError::Stale));
    assert_eq!(zero.stat(ROOT).await.unwrap().attributes.links, 2);
    assert_eq!(cluster.at_rest().await, []);
    // On the MDT of the directory above it is like any other.
    let near = zero.make_directory(ROOT, "near", 0).await.unwrap();
    assert_eq!((near.mdt(), zero.stat(near).await.unwrap().attributes.links), (MdtIndex(0), 2));
}

#[tokio::test]
async fn what_several_mdts_cannot_do_is_refused_and_changes_nothing() {
    let cluster = Cluster::new(2).await;
    let [zero, one] = &cluster.0[..] else { panic!("two") };
    let remote = zero.make_directory(ROOT, "remote", 1).await.unwrap();
    one.create(remote, "file", NodeKind::Regular).await.unwrap();
    assert_eq!(zero.make_directory(ROOT, "none", 7).await, Err(FsError::NoDeviceOrAddress), "there is no such MDT");
    assert_eq!(zero.make_directory(ROOT, "remote", 1).await, Err(FsError::Exists));
    let make = MakeDirectory {
        parent: ROOT,
        name: b"x".to_vec(),
        mode: 0o777,
        umask: 0,
        mdt: MdtIndex(1),
        stripes: Default::default(),
    };
    let by_user = zero.call(MdtRequest::MakeDirectory(user(7), make)).await;
    assert_eq!(by_user, Err(FsError::AccessDenied), "who may not even write there");
    let replace = RenameMode::Replace;
    assert_eq!(
        one.call(rename(remote, "file", ROOT, "new", replace)).await,
        Err(FsError::CrossDevice),
        "the wrong MDT"
    );
    assert_eq!(zero.call(rename(ROOT, "remote", ROOT, "remote", replace)).await, Ok(MdtReply::Done), "no change");
    let names: Vec<_> = cluster.at_rest().await.into_iter().map(|name| name.name).collect();
    assert_eq!(names, [b"remote".to_vec()]);
}

#[tokio::test]
async fn a_directory_on_another_mdt_gets_other_names() {
    let mut cluster = Cluster::new(2).await;
    let zero = &cluster.0[0];
    let remote = zero.make_directory(ROOT, "remote", 1).await.unwrap();
    let local = zero.create(ROOT, "local", NodeKind::Directory).await.unwrap();
    let back = cluster.0[1].make_directory(remote, "back", 0).await.unwrap();
    let replace = RenameMode::Replace;
    assert_eq!(zero.call(rename(ROOT, "remote", ROOT, "other", replace)).await, Ok(MdtReply::Done));
    assert_eq!(zero.lookup(ROOT, "remote").await, Err(FsError::NotFound));
    assert_eq!(zero.call(rename(ROOT, "other", local, "moved", RenameMode::NoReplace)).await, Ok(MdtReply::Done));
    assert_eq!(zero.lookup(local, "moved").await, Ok(remote));
    assert_eq!(cluster.0[1].lookup(remote, "..").await, Ok(local));
    let links = async |inode| zero.stat(inode).await.unwrap().attributes.links;
    assert_eq!((links(ROOT).await, links(local).await), (3, 3));
    // What it has been moved from and to comes back with both.
    cluster.at_rest().await;
    cluster.restart(&[0, 1]).await;
    let names = cluster.at_rest().await;
    let found: Vec<_> = names.iter().map(|name| (name.inode, name.parent, text(&name.name))).collect();
    assert_eq!(found, [(back, remote, "back".to_owned()), (remote, local, "moved".to_owned())]);
    let zero = &cluster.0[0];
    // Below itself, over both.
    let refused = zero.call(rename(local, "moved", back, "moved", replace)).await;
    assert_eq!(refused, Err(FsError::Invalid));
    cluster.0[1].remove(remote, "back", true).await.unwrap();
    zero.remove(local, "moved", true).await.unwrap();
    assert_eq!(cluster.at_rest().await, []);
}

#[tokio::test]
async fn another_name_takes_the_permissions_that_it_takes_on_one_mdt() {
    let cluster = Cluster::new(2).await;
    let zero = &cluster.0[0];
    let shared = zero.create(ROOT, "shared", NodeKind::Directory).await.unwrap();
    let elsewhere = zero.create(ROOT, "elsewhere", NodeKind::Directory).await.unwrap();
    for directory in [shared, elsewhere] {
        let set = SetAttributes { mode: Some(0o1777), ..SetAttributes::default() };
        zero.call(MdtRequest::SetAttributes(root(), directory, set)).await.unwrap();
    }
    let remote = zero.make_directory(shared, "remote", 1).await.unwrap();
    let by = async |who, new_parent| {
        let MdtRequest::Rename(_, request) = rename(shared, "remote", new_parent, "new", RenameMode::Replace) else {
            panic!("a rename")
        };
        zero.call(MdtRequest::Rename(who, request)).await
    };
    assert_eq!(by(user(7), shared).await, Err(FsError::NotPermitted), "the directory is sticky");
    let set = SetAttributes { uid: Some(7), mode: Some(0o555), ..SetAttributes::default() };
    cluster.0[1].call(MdtRequest::SetAttributes(root(), remote, set)).await.unwrap();
    assert_eq!(by(user(7), elsewhere).await, Err(FsError::AccessDenied), "its '..' would change");
    assert_eq!(by(user(7), shared).await, Ok(MdtReply::Done));
    assert_eq!(zero.lookup(shared, "new").await, Ok(remote));
}

/// Loops through another MDT are not possible either.
#[tokio::test]
async fn a_directory_does_not_come_below_itself_over_another_mdt() {
    let cluster = Cluster::new(2).await;
    let [zero, one] = &cluster.0[..] else { panic!("two") };
    // /a, /a/over on MDT 1, /a/over/back on MDT 0.
    let a = zero.create(ROOT, "a", NodeKind::Directory).await.unwrap();
    let over = zero.make_directory(a, "over", 1).await.unwrap();
    let back = one.make_directory(over, "back", 0).await.unwrap();
    let replace = RenameMode::Replace;
    assert_eq!(zero.call(rename(ROOT, "a", back, "a", replace)).await, Err(FsError::Invalid));
    let (one_dir, other) = (
        zero.create(back, "one", NodeKind::Directory).await.unwrap(),
        zero.create(back, "other", NodeKind::Directory).await.unwrap(),
    );
    assert_eq!(zero.call(rename(back, "one", other, "one", replace)).await, Ok(MdtReply::Done));
    assert_eq!(zero.call(rename(back, "other", one_dir, "other", replace)).await, Err(FsError::Invalid));
    assert_eq!(zero.call(rename(other, "one", ROOT, "one", replace)).await, Ok(MdtReply::Done), "towards the root");
    assert_eq!(zero.call(rename(ROOT, "one", back, "one", replace)).await, Ok(MdtReply::Done), "and back");
}

#[tokio::test]
async fn decisions_are_carried_out_although_both_processes_die() {
    let mut cluster = Cluster::new(2).await;
    for round in 0..4 {
        let (kept, gone) = (format!("kept{round}"), format!("gone{round}"));
        let inode = cluster.0[0].make_directory(ROOT, &gone, 1).await.unwrap();
        cluster.0[0].make_directory(ROOT, &kept, 1).await.unwrap();
        cluster.0[0].remove(ROOT, &gone, true).await.unwrap();
        cluster.restart([&[0][..], &[1], &[0, 1], &[1, 0]][round]).await;
        let names = cluster.at_rest().await;
        assert_eq!(names.len(), round + 1, "{names:?}");
        assert_eq!(cluster.0[1].stat(inode).await, Err(FsError::Stale));
        let inode = cluster.0[0].lookup(ROOT, &kept).await.unwrap();
        assert_eq!(cluster.0[1].stat(inode).await.unwrap().attributes.links, 2);
    }
    assert_eq!(cluster.0[0].stat(ROOT).await.unwrap().attributes.links, 6);
}

#[tokio::test]
async fn what_a_power_loss_takes_it_takes_on_both_sides() {
    let mut cluster = Cluster::new(2).await;
    for round in 0..6 {
        let name = format!("name{round}");
        let made = cluster.0[0].make_directory(ROOT, &name, 1).await.unwrap();
        if round % 2 == 1 {
            // The decision has left, so it is durable.
            cluster.0[1].stat(made).await.unwrap();
        }
        let losers = [&[0][..], &[1], &[0, 1]][round % 3];
        for loser in losers {
            cluster.0[*loser].lose_power().await;
        }
        cluster.start(losers).await;
        let names = cluster.at_rest().await;
        let is_there = names.iter().any(|found| found.name == name.as_bytes());
        assert!(is_there || round % 2 == 0 && losers.contains(&0), "{name}: only its MDT can lose it, and once");
        assert_eq!(cluster.0[0].lookup(ROOT, &name).await.is_ok(), is_there);
        let links = cluster.0[0].stat(ROOT).await.unwrap().attributes.links;
        assert_eq!(links as usize, names.len() + 2);
        let again = cluster.0[0].make_directory(ROOT, &format!("again{round}"), 1).await.unwrap();
        assert_ne!(again, made, "a number is used once");
        assert_eq!(cluster.0[1].stat(again).await.unwrap().attributes.links, 2);
        cluster.0[0].remove(ROOT, &format!("again{round}"), true).await.unwrap();
    }
}

/// One of the directories of a storm, and what it is called if it is there.
type Expected = BTreeMap<u64, Option<String>>;

/// A change of one of them, and what it is called afterwards. It has one of two names.
fn change(below: &mut impl FnMut(u64) -> u64, number: u64, name: Option<&str>) -> (MdtRequest, Option<String>) {
    let (one, other) = (format!("{number}a"), format!("{number}b"));
    match (name, below(2)) {
        (None, _) => (make_directory(ROOT, &one, 1 + below(2) as u16), Some(one)),
        (Some(name), 0) => (remove(ROOT, name, true), None),
        (Some(name), _) => {
            let new = if name == one { other } else { one };
            (rename(ROOT, name, ROOT, &new, RenameMode::Replace), Some(new))
        }
    }
}

/// Makes, renames and removes a few directories while MDTs die. Without a power loss what was
/// answered is so.
async fn storm(seed: u64, loses_power: bool) {
    const DIRECTORIES: u64 = 5;
    let mut random = SplitMix64(seed);
    let mut below = |bound: u64| random.next_u64() % bound;
    let mut cluster = Cluster::new(3).await;
    let mut expected: Expected = (0..DIRECTORIES).map(|number| (number, None)).collect();
    for _ in 0..12 {
        let mut tasks = Vec::new();
        for (number, name) in &expected {
            if below(3) == 0 {
                continue;
            }
            let (request, then) = change(&mut below, *number, name.as_deref());
            let import = cluster.0[0].import.clone();
            tasks.push((*number, then, tokio::spawn(async move { call(&import, request).await })));
        }
        for _ in 0..below(40) {
            tokio::task::yield_now().await;
        }
        let dies: Vec<usize> = (0..3).filter(|_| below(3) == 0).collect();
        for node in &dies {
            match loses_power && below(2) == 0 {
                true => cluster.0[*node].lose_power().await,
                false => cluster.0[*node].crash().await,
            }
        }
        cluster.start(&dies).await;
        for (number, then, task) in tasks {
            let outcome = task.await.expect("no panic");
            // What a power loss has undone may fail when it is asked for again.
            assert!(outcome.is_ok() || loses_power, "seed {seed}: {then:?}: {outcome:?}");
            if outcome.is_ok() {
                expected.insert(number, then);
            }
        }
        let there: Vec<String> = cluster.at_rest().await.into_iter().map(|found| text(&found.name)).collect();
        if loses_power {
            let of = |number: u64| there.iter().find(|name| name.starts_with(&number.to_string())).cloned();
            expected.iter_mut().for_each(|(number, name)| *name = of(*number));
        }
        let names: Vec<&String> = expected.values().flatten().collect();
        let mut there: Vec<&String> = there.iter().collect();
        there.sort();
        assert_eq!(there, names, "seed {seed}");
        assert_eq!(cluster.0[0].stat(ROOT).await.unwrap().attributes.links as usize, names.len() + 2, "seed {seed}");
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).expect("a name of this test")
}

#[tokio::test]
async fn names_and_directories_stay_the_same_whatever_dies() {
    for seed in 1..=8 {
        storm(seed, false).await;
    }
}

#[tokio::test]
async fn names_and_directories_stay_the_same_whatever_loses_power() {
    for seed in 1..=8 {
        storm(seed, true).await;
    }
}

/// MDT 1 with a coordinator that is a test.
struct Coordinator {
    cluster: Cluster,
    caller: rpc::Import,
    start: u64,
}

impl Coordinator {
    async fn new() -> Self {
        let cluster = Cluster::new(2).await;
        let caller = cluster.0[1].connect(5, Role::Mdt);
        Self { cluster, caller, start: 1 << 40 }
    }

    fn operation(&self, number: u64) -> OperationId {
        OperationId { coordinator: MdtIndex(3), start: self.start, number }
    }

    async fn prepare(&self, number: u64, part: Part) -> FsResult<Prepared> {
        match call(&self.caller, MdtRequest::Prepare(Prepare { operation: self.operation(number), part })).await? {
            MdtReply::Prepared(prepared) => Ok(*prepared),
            other => panic!("{other:?}"),
        }
    }

    async fn removal(&self, inode: InodeNumber, name: &str) -> Part {
        let parent = self.cluster.0[0].stat(ROOT).await.unwrap().attributes;
        let name = name.as_bytes().to_vec();
        Part::DropLink(DropLink { inode, parent, name, directory: true, who: root() })
    }
}

#[tokio::test]
async fn what_is_in_doubt_waits_until_it_is_decided_also_after_a_restart() {
    let mut test = Coordinator::new().await;
    let remote = test.cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    test.cluster.at_rest().await;
    let removal = test.removal(remote, "remote").await;
    let other = test.cluster.0[0].make_directory(ROOT, "other", 1).await.unwrap();
    let promised = test.prepare(1, removal.clone()).await.unwrap();
    assert_eq!((promised.inode, test.prepare(1, removal.clone()).await), (remote, Ok(promised)), "also when repeated");
    for restarts in [false, true] {
        if restarts {
            test.cluster.restart(&[1]).await;
            test.caller = test.cluster.0[1].connect(5, Role::Mdt);
        }
        let node = &test.cluster.0[1];
        assert!(waits(&mut Box::pin(node.stat(remote))).await);
        assert_eq!(node.stat(other).await.unwrap().attributes.links, 2, "all else is served");
    }
    let node = &test.cluster.0[1];
    let mut create = Box::pin(node.create(remote, "file", NodeKind::Regular));
    assert!(waits(&mut create).await);
    assert_eq!(call(&test.caller, MdtRequest::Abort(test.operation(1))).await, Ok(MdtReply::Done));
    create.await.unwrap();
    assert_eq!(test.prepare(3, removal).await, Err(FsError::NotEmpty));
}

/// A new connection waits for running requests, and the message that ends the wait of one of them
/// comes through it.
#[tokio::test]
async fn a_request_that_waits_for_its_own_client_does_not_keep_its_next_connection_out() {
    let test = Coordinator::new().await;
    let remote = test.cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    test.cluster.at_rest().await;
    let removal = test.removal(remote, "remote").await;
    test.prepare(1, removal.clone()).await.unwrap();
    let mut second = Box::pin(test.prepare(2, removal.clone()));
    assert!(waits(&mut second).await);
    test.caller.set_address(second_endpoint(MdtIndex(1)));
    assert_eq!(call(&test.caller, MdtRequest::Abort(test.operation(1))).await, Ok(MdtReply::Done));
    assert_eq!(second.await.unwrap().inode, remote, "it was sent again");
    assert_eq!(call(&test.caller, MdtRequest::Abort(test.operation(2))).await, Ok(MdtReply::Done));
    assert_eq!(test.cluster.0[1].stat(remote).await.unwrap().attributes.links, 2);
}

/// Requests of MDTs that were executed.
pub fn executed(node: &Node) -> u64 {
    let counts = node.mdt.statistics().read();
    counts.iter().find(|(name, _)| *name == "session").map_or(0, |(_, count)| *count)
}

/// A copy of it could come after the end of its operation, and prepare it again.
#[tokio::test]
async fn a_prepare_whose_answer_was_lost_is_not_executed_again() {
    let test = Coordinator::new().await;
    let remote = test.cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    test.cluster.at_rest().await;
    let removal = test.removal(remote, "remote").await;
    let node = &test.cluster.0[1];
    let before = executed(node);
    node.gate.close_flushes();
    let mut prepare = Box::pin(test.prepare(1, removal));
    assert!(waits(&mut prepare).await, "it is not durable");
    // The connection ends before the answer comes; the request is sent again through the next one.
    test.caller.set_address(second_endpoint(MdtIndex(1)));
    assert!(waits(&mut prepare).await);
    node.gate.open_flushes();
    assert_eq!(prepare.await.unwrap().inode, remote);
    assert_eq!(executed(node) - before, 1);
    assert_eq!(call(&test.caller, MdtRequest::Abort(test.operation(1))).await, Ok(MdtReply::Done));
    assert_eq!(node.stat(remote).await.unwrap().attributes.links, 2);
}

#[tokio::test]
async fn a_new_start_ends_what_former_ones_have_not_decided() {
    let mut test = Coordinator::new().await;
    let remote = test.cluster.0[0].make_directory(ROOT, "remote", 1).await.unwrap();
    test.cluster.at_rest().await;
    let removal = test.removal(remote, "remote").await;
    test.prepare(1, removal.clone()).await.unwrap();
    let held = test.prepare(2, Part::MakeDirectory).await.unwrap().inode;
    let node = &test.cluster.0[1];
    let (mut stat, mut missing) = (Box::pin(node.stat(remote)), Box::pin(node.stat(held)));
    assert!(waits(&mut stat).await && waits(&mut missing).await);
    test.start += 1;
    let join = Join { source: MdtIndex(3), start: test.start, promised: vec![test.operation(9)] };
    let MdtReply::Joined(joined) = call(&test.caller, MdtRequest::Join(join)).await.unwrap() else { panic!() };
    assert_eq!((joined.last, joined.ended.len()), (0, 1), "it has no such operation");
    assert_eq!(stat.await.unwrap().attributes.links, 2);
    assert_eq!(missing.await, Err(FsError::Stale));
    test.start -= 1;
    assert_eq!(test.prepare(4, Part::MakeDirectory).await, Err(FsError::Stale), "a late message of a dead start");
    let other = Part::MakeDirectory;
    test.start += 1;
    assert_ne!(test.prepare(5, other).await.unwrap().inode, held);
}

/// It would say that it has lost no power.
#[tokio::test]
async fn a_start_that_has_no_number_yet_joins_nobody() {
    let mut test = Coordinator::new().await;
    test.cluster.0[1].crash().await;
    test.cluster.0[1].start().await;
    let caller = test.cluster.0[1].connect(5, Role::Mdt);
    let join = Join { source: MdtIndex(3), start: test.start, promised: Vec::new() };
    let mut joined = Box::pin(call(&caller, MdtRequest::Join(join)));
    assert!(waits(&mut joined).await, "it does not know any other MDT");
    test.cluster.update_map();
    let Ok(MdtReply::Joined(joined)) = joined.await else { panic!() };
    assert!(joined.start > 0);
}

/// A new directory, as another MDT would make it.
fn directory(inode: InodeNumber, link: Link) -> Inode {
    Inode {
        attributes: Attributes { mode: 0o755, links: 2, ..Attributes::zeroed(inode, FileKind::Directory) },
        version: 1,
        size_known: true,
        epoch: 0,
        map_version: 0,
        striping: Default::default(),
        accounted: Accounted::default(),
        access_list: false,
        default_list: false,
        xattrs: false,
        not_linkable: false,
        directory_default: None,
        first_link: Some(link),
        data: InodeData::Directory(None),
    }
}

#[tokio::test]
async fn decisions_are_carried_out_once_and_in_order() {
    let test = Coordinator::new().await;
    let node = &test.cluster.0[1];
    let send = async |first: u64, records: Vec<Vec<u8>>| {
        call(&test.caller, MdtRequest::Decisions(Decisions { source: MdtIndex(3), first, records })).await
    };
    let parent = InodeNumber::new(MdtIndex(3), 0x200);
    let link = Link { parent, name: b"n".to_vec() };
    let inode = test.prepare(1, Part::MakeDirectory).await.unwrap().inode;
    let record = directory(inode, link.clone()).encode();
    let make = Decision { operation: test.operation(1), inode, part: DecidedPart::Make { record, xattrs: Vec::new() } };
    let remove = Decision { operation: test.operation(2), inode, part: DecidedPart::DropLink(link) };
    assert_eq!(send(2, vec![remove.encode()]).await, Err(FsError::Invalid), "the first one is missing");
    assert_eq!(send(1, vec![make.encode()]).await, Ok(MdtReply::Done));
    assert_eq!(node.stat(inode).await.unwrap().attributes.links, 2);
    assert_eq!(send(1, vec![make.encode(), remove.encode()]).await, Ok(MdtReply::Done), "the rest of it");
    assert_eq!(node.stat(inode).await, Err(FsError::Stale));
    assert_eq!(send(1, vec![make.encode(), remove.encode()]).await, Ok(MdtReply::Done), "nothing of it");
    assert_eq!(node.stat(inode).await, Err(FsError::Stale));
    let damaged = send(3, vec![vec![9]]).await;
    assert!(matches!(damaged, Err(FsError::Damaged(_))), "{damaged:?}");
}

#[tokio::test]
async fn only_mdts_prepare_and_decide() {
    let cluster = Cluster::new(2).await;
    let prepare = Prepare {
        operation: OperationId { coordinator: MdtIndex(0), start: 1 << 40, number: 1 },
        part: Part::MakeDirectory,
    };
    let refused = cluster.0[1].call(MdtRequest::Prepare(prepare)).await;
    assert!(matches!(refused, Err(FsError::Refused(_) | FsError::NotPermitted | FsError::Protocol(_))), "{refused:?}");
    let make = MakeDirectory {
        parent: ROOT,
        name: b"d".to_vec(),
        mode: 0o777,
        umask: 0o22,
        mdt: MdtIndex(1),
        stripes: Default::default(),
    };
    let reply = cluster.0[0].call(MdtRequest::MakeDirectory(root(), make)).await.unwrap();
    assert_eq!(created(reply).entry.attributes.mode, 0o755);
}
