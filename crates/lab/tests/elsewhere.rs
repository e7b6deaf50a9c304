//! What mkdir(2) and link(2) say of inodes on other metadata targets than their names, and what
//! makes them durable.

use crate::common;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use client::{FileSystem, NewNode, control};
use common::{on, with_options};
use lab::{
    cluster::{Cluster, ClusterOptions, client_host},
    drawn::settings,
    server::{Role, Settings},
    upper_cache::{UpperCopies, UpperPlan},
};
use rpc::message::{
    control::{ControlReply, ControlRequest},
    mdt::{OpenFlags, RenameMode, open_flag},
    mdt_peer::MakeDirectory,
};
use rt::BoxFuture;
use types::{
    Attributes, Credentials, DirectoryDefault, FsError, FsResult, InodeNumber, MdtIndex, NodeKind, SetAttributes,
    ShardCount, Stripes,
};

const ROOT: InodeNumber = InodeNumber::ROOT;

/// All directories below one are on MDT 1.
const ON_1: DirectoryDefault = DirectoryDefault {
    count: ShardCount::Exactly(1),
    first: Some(MdtIndex(1)),
    hash: None,
    levels: None,
    spread_levels: Some(0),
};
/// Their names are on all MDTs, from MDT 1 on.
const STRIPED: DirectoryDefault = DirectoryDefault { count: ShardCount::All, ..ON_1 };
/// From the MDT of the name on.
const STRIPED_HERE: DirectoryDefault = DirectoryDefault { first: None, ..STRIPED };

fn with_two_mdts<T: Send + 'static>(
    seed: u64,
    scenario: impl for<'c> FnOnce(&'c Cluster) -> BoxFuture<'c, Result<T, String>> + Send + 'static,
) -> T {
    let options = ClusterOptions { mdts: 2, osts: 1, osts_per_server: 1, clients: 2, settings: settings(seed) };
    with_options(seed, options, scenario).unwrap_or_else(|reason| panic!("{reason}"))
}

async fn set_default(file_system: &FileSystem, default: DirectoryDefault) {
    set_default_of(file_system, ROOT, default).await;
}

async fn set_default_of(file_system: &FileSystem, directory: InodeNumber, default: DirectoryDefault) {
    let request = ControlRequest::SetDirectoryDefault(Some(default));
    let reply = control::execute(file_system, &Credentials::root(), (directory, None), request).await;
    assert_eq!(reply, ControlReply::Done);
}

async fn mkdir(file_system: &FileSystem, parent: InodeNumber, name: &str) -> FsResult<Attributes> {
    make(file_system, parent, name, NodeKind::Directory).await
}

async fn make(file_system: &FileSystem, parent: InodeNumber, name: &str, kind: NodeKind) -> FsResult<Attributes> {
    let node = NewNode { parent, name: name.as_bytes().to_vec(), kind, mode: 0o750, umask: 0, layout: None };
    file_system.create(&Credentials::root(), node).await
}

/// The MDT of the inode does not answer the client: what has happened is no error for that.
#[test]
fn what_was_decided_succeeds_without_the_mdt_of_the_inode() {
    with_two_mdts(1, |cluster| {
        Box::pin(async move {
            let file = on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                set_default(&file_system, ON_1).await;
                let far = mkdir(&file_system, ROOT, "far").await?;
                make(&file_system, far.inode, "file", NodeKind::Fifo).await
            })
            .await?;
            assert_eq!((file.inode.mdt(), file.links), (MdtIndex(1), 1));
            cluster.network().cut(&client_host(0), &Role::Mds(1).host());
            let [far, striped, link] = on(cluster, 0, move |file_system| async move {
                let far = mkdir(&file_system, ROOT, "d").await?;
                let link = file_system.link(&Credentials::root(), file.inode, ROOT, b"link").await?;
                set_default(&file_system, STRIPED).await;
                FsResult::Ok([far, mkdir(&file_system, ROOT, "striped").await?, link])
            })
            .await?;
            for made in [far, striped] {
                assert_eq!((made.inode.mdt(), made.mode, made.links), (MdtIndex(1), 0o750, 2));
            }
            assert_eq!((link.inode, link.links), (file.inode, 2));
            cluster.network().heal();
            on(cluster, 0, move |file_system| async move {
                for made in [far, striped] {
                    assert_eq!(file_system.get_attributes(made.inode, None).await?, made);
                }
                FsResult::Ok(())
            })
            .await
        })
    });
}

async fn look_up(file_system: &FileSystem, name: &str) -> FsResult<InodeNumber> {
    Ok(file_system.lookup(&Credentials::root(), ROOT, name.as_bytes()).await?.inode)
}

/// A path through a directory on another MDT costs no request to the MDT of its name, until another
/// client changes a name there.
#[test]
fn where_a_name_on_another_mdt_leads_is_known_under_the_lock_on_the_names() {
    with_two_mdts(1, |cluster| {
        Box::pin(async move {
            let before = on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                set_default(&file_system, ON_1).await;
                mkdir(&file_system, ROOT, "far").await?;
                look_up(&file_system, "far").await
            })
            .await?;
            assert_eq!(before.mdt(), MdtIndex(1));
            cluster.network().cut(&client_host(0), &Role::Mds(0).host());
            let kept = on(cluster, 0, |file_system| async move { look_up(&file_system, "far").await }).await?;
            assert_eq!(kept, before);
            cluster.network().heal();
            let replaced = on(cluster, 1, |file_system| async move {
                file_system.remove_directory(&Credentials::root(), ROOT, b"far").await?;
                let made = mkdir(&file_system, ROOT, "far").await?;
                FsResult::Ok(made.inode)
            })
            .await?;
            let found = on(cluster, 0, |file_system| async move { look_up(&file_system, "far").await }).await?;
            assert_eq!(found, replaced);
            let gone = on(cluster, 0, |file_system| async move {
                file_system.remove_directory(&Credentials::root(), ROOT, b"far").await?;
                FsResult::Ok(look_up(&file_system, "far").await)
            })
            .await?;
            assert_eq!(gone, Err(FsError::NotFound));
            Ok(())
        })
    });
}

/// How a client changes a name that it has just looked up.
#[derive(Clone, Copy, Debug)]
enum OwnChange {
    Renames,
    Replaces,
    Exchanges,
    Removes,
}

impl OwnChange {
    /// Of `far`, which is on another MDT than its name; `near` is another directory. Where the
    /// directory is now, if it is anywhere.
    async fn make(self, file_system: &FileSystem) -> FsResult<Option<&'static str>> {
        let (root, far, near) = (Credentials::root(), (ROOT, &b"far"[..]), (ROOT, &b"near"[..]));
        let rename = async |to, mode| file_system.rename(&root, far, to, mode).await;
        match self {
            OwnChange::Renames => rename((ROOT, b"off"), RenameMode::Replace).await.map(|()| Some("off")),
            OwnChange::Replaces => rename(near, RenameMode::Replace).await.map(|()| Some("near")),
            OwnChange::Exchanges => rename(near, RenameMode::Exchange).await.map(|()| Some("near")),
            OwnChange::Removes => file_system.remove_directory(&root, ROOT, b"far").await.map(|()| None),
        }
    }
}

/// A client has the answer to a look-up, and has asked whether a cache above it may keep the name
/// (`asks`), or is going to. Then it changes the name itself. From the moment at which others see
/// that, which is before the client knows, the name may not be kept.
fn changed_before_it_was_given(change: OwnChange, asks: bool) {
    with_two_mdts(1, move |cluster| {
        Box::pin(async move {
            let far = on(cluster, 0, move |file_system: Arc<FileSystem>| async move {
                set_default(&file_system, ON_1).await;
                mkdir(&file_system, ROOT, "near").await?;
                mkdir(&file_system, ROOT, "far").await?;
                let far = look_up(&file_system, "far").await?;
                let may_keep = || file_system.keepable(far, Some((ROOT, b"far"))).is_some_and(|found| found.name);
                assert!(!asks || may_keep());
                FsResult::Ok(far)
            })
            .await?;
            // MDT 0 decides, and its answers do not arrive.
            cluster.network().cut_way(&Role::Mds(0).host(), &client_host(0));
            let (file_system, _) = cluster.file_system(0).ok_or("the client is not mounted")?;
            let may_keep = |name: &str| {
                let kept = file_system.keepable(far, Some((ROOT, name.as_bytes())));
                kept.is_some_and(|found| found.name)
            };
            let changing = {
                let file_system = file_system.clone();
                cluster.begin_on_client(0, async move { change.make(&file_system).await })
            };
            let mut changing = Box::pin(changing);
            assert!(cluster.within(Duration::from_millis(500), changing.as_mut()).await.is_none());
            let seen = on(cluster, 1, |file_system: Arc<FileSystem>| async move {
                FsResult::Ok(look_up(&file_system, "far").await)
            });
            assert_ne!(seen.await?, Ok(far), "{change:?}");
            assert!(!may_keep("far"), "{change:?}, {asks}: it was changed");
            cluster.network().heal();
            let now = changing.await.ok_or("the client died")?.map_err(|error| error.to_string())?;
            assert!(!may_keep("far"), "{change:?}, {asks}: it is another one");
            // What is found afterwards is right.
            on(cluster, 0, move |file_system: Arc<FileSystem>| async move {
                let found = look_up(&file_system, "far").await;
                assert!(found != Ok(far) && found.is_ok() == matches!(change, OwnChange::Exchanges), "{found:?}");
                if let Some(now) = now {
                    assert_eq!(look_up(&file_system, now).await, Ok(far));
                    let kept = file_system.keepable(far, Some((ROOT, now.as_bytes())));
                    assert!(kept.is_some_and(|found| found.name), "{change:?}: as any name that was found");
                    let kept = file_system.keepable(far, Some((ROOT, b"far")));
                    assert!(!kept.is_some_and(|found| found.name), "{change:?}: the lock is held again");
                }
                FsResult::Ok(())
            })
            .await
        })
    });
}

#[test]
fn a_name_on_another_mdt_is_not_given_after_an_own_change_of_it() {
    for change in [OwnChange::Renames, OwnChange::Replaces, OwnChange::Exchanges, OwnChange::Removes] {
        for asks in [false, true] {
            changed_before_it_was_given(change, asks);
        }
    }
}

/// New directories go to the MDTs in turn, and the MDT that has their names starts again while the
/// management server is down, which knows the others.
#[test]
fn new_directories_are_on_the_mdt_of_their_name_while_there_is_no_map() {
    for mdts in [1, 2] {
        let options = ClusterOptions { mdts, osts: 1, osts_per_server: 1, clients: 1, settings: settings(1) };
        let outcome = with_options(1, options, move |cluster| {
            Box::pin(async move {
                on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                    let striped = mkdir(&file_system, ROOT, "striped").await?.inode;
                    set_default_of(&file_system, striped, STRIPED_HERE).await;
                    set_default(&file_system, DirectoryDefault::OF_NEW_ROOT).await;
                    FsResult::Ok(())
                })
                .await?;
                cluster.kill_server(Role::Mgs);
                cluster.kill_server(Role::Mds(0));
                cluster.start_server(Role::Mds(0));
                let making = on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                    for number in 0..4 {
                        let made = mkdir(&file_system, ROOT, &format!("without{number}")).await?;
                        assert_eq!(made.inode.mdt(), MdtIndex(0));
                        make(&file_system, made.inode, "inside", NodeKind::Fifo).await?;
                    }
                    FsResult::Ok(())
                });
                let mut making = Box::pin(making);
                let made = cluster.within(Duration::from_secs(30), making.as_mut()).await;
                made.ok_or("the directories are not made")??;
                // With stripes on all of them, it waits until they are known.
                let striped = on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                    let below = look_up(&file_system, "striped").await?;
                    mkdir(&file_system, below, "waits").await
                });
                let mut striped = Box::pin(striped);
                assert!(cluster.within(Duration::from_secs(30), striped.as_mut()).await.is_none());
                cluster.ready().await?;
                striped.await?;
                on(cluster, 0, move |file_system: Arc<FileSystem>| async move {
                    let mut used = BTreeSet::new();
                    for number in 0..4 {
                        used.insert(mkdir(&file_system, ROOT, &format!("with{number}")).await?.inode.mdt());
                    }
                    assert_eq!(used.len(), usize::from(mdts), "in turn again");
                    FsResult::Ok(())
                })
                .await
            })
        });
        outcome.unwrap_or_else(|reason| panic!("{mdts}: {reason}"));
    }
}

/// Two MDTs, two clients and a cache above each of these.
fn with_caches_above<T: Send + 'static>(
    seed: u64,
    scenario: impl for<'c> FnOnce(&'c Cluster) -> BoxFuture<'c, Result<T, String>> + Send + 'static,
) -> T {
    let plan = UpperPlan { slowest: Duration::from_millis(1) };
    let settings = Settings { upper_cache: Some(plan), ..settings(seed) };
    let options = ClusterOptions { mdts: 2, osts: 1, osts_per_server: 1, clients: 2, settings };
    with_options(seed, options, scenario).unwrap_or_else(|reason| panic!("{reason}"))
}

fn cache_above(cluster: &Cluster, client: u16) -> Arc<UpperCopies> {
    cluster.upper_caches().into_iter().find(|(number, _)| *number == client).expect("each client has one").1
}

/// What programs look up through the cache above a client.
async fn look_above(
    cluster: &Cluster,
    client: u16,
    directory: InodeNumber,
    names: &'static [&'static str],
) -> Result<Vec<InodeNumber>, String> {
    let above = cache_above(cluster, client);
    on(cluster, client, move |file_system| async move {
        let mut found = Vec::new();
        for name in names {
            found.push(above.look(&file_system, (directory, name.as_bytes())).await?.inode);
        }
        FsResult::Ok(found)
    })
    .await
}

fn names_above(cluster: &Cluster, client: u16) -> Vec<(InodeNumber, String)> {
    let names = cache_above(cluster, client).served().names;
    names.into_iter().map(|(parent, name, _)| (parent, String::from_utf8(name).unwrap())).collect()
}

fn has_attributes_above(cluster: &Cluster, client: u16, inode: InodeNumber) -> bool {
    cache_above(cluster, client).served().attributes.iter().any(|found| found.inode == inode)
}

/// The lock on the names of an inode covers them wherever they are.
#[test]
fn a_name_on_another_mdt_is_kept_above_until_it_changes() {
    with_caches_above(1, |cluster| {
        Box::pin(async move {
            on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                set_default(&file_system, ON_1).await;
                mkdir(&file_system, ROOT, "far").await
            })
            .await?;
            let far = look_above(cluster, 0, ROOT, &["far"]).await?;
            assert_eq!(far[0].mdt(), MdtIndex(1));
            let kept = || names_above(cluster, 0).contains(&(ROOT, "far".to_owned()));
            assert!(kept());
            on(cluster, 1, |file_system: Arc<FileSystem>| async move {
                make(&file_system, ROOT, "other", NodeKind::Fifo).await
            })
            .await?;
            assert!(kept(), "another name of the directory");
            on(cluster, 1, |file_system: Arc<FileSystem>| async move {
                let names = [b"far", b"off"].map(|name| (ROOT, name.as_slice()));
                file_system.rename(&Credentials::root(), names[0], names[1], RenameMode::Replace).await
            })
            .await?;
            assert!(!kept());
            assert_eq!(look_above(cluster, 0, ROOT, &["off"]).await?, far);
            assert_eq!(names_above(cluster, 0).len(), 1);
            on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                file_system.remove_directory(&Credentials::root(), ROOT, b"off").await
            })
            .await?;
            assert_eq!(names_above(cluster, 0), [], "its own change");
            Ok(())
        })
    });
}

/// Names of a striped directory are those of its shards, and so are its attributes.
#[test]
fn a_striped_directory_is_kept_above_until_a_shard_changes() {
    with_caches_above(1, |cluster| {
        Box::pin(async move {
            const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
            let directory = on(cluster, 0, |file_system: Arc<FileSystem>| async move {
                set_default(&file_system, STRIPED).await;
                let directory = mkdir(&file_system, ROOT, "striped").await?.inode;
                for name in NAMES {
                    make(&file_system, directory, name, NodeKind::Fifo).await?;
                }
                FsResult::Ok(directory)
            })
            .await?;
            look_above(cluster, 0, ROOT, &["striped"]).await?;
            let found = look_above(cluster, 0, directory, &NAMES).await?;
            assert!(found.iter().any(|file| file.mdt() != found[0].mdt()), "they are on both MDTs");
            let kept = names_above(cluster, 0);
            assert!(NAMES.iter().all(|name| kept.contains(&(directory, (*name).to_owned()))), "{kept:?}");
            assert!(has_attributes_above(cluster, 0, directory));
            // Of one shard each.
            for name in NAMES {
                on(cluster, 1, move |file_system: Arc<FileSystem>| async move {
                    file_system.unlink(&Credentials::root(), directory, name.as_bytes()).await
                })
                .await?;
                assert!(!names_above(cluster, 0).contains(&(directory, name.to_owned())));
                assert!(!has_attributes_above(cluster, 0, directory), "its size and times are others");
                let above = cache_above(cluster, 0);
                on(cluster, 0, move |file_system| async move { above.stat(&file_system, directory).await }).await?;
                assert!(has_attributes_above(cluster, 0, directory));
            }
            Ok(())
        })
    });
}

/// What a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synced {
    Nothing,
    Parent,
    Made,
}

/// A directory is made whose default puts it on MDT 1; then what is named is synced, MDT 0 loses
/// its power, or both MDTs, and the root is synced twice. Whether the directory is there, and what
/// the last syncs said.
fn after_power_loss(seed: u64, synced: Synced, default: DirectoryDefault, both: bool) -> (bool, [FsResult<()>; 2]) {
    with_two_mdts(seed, move |cluster| {
        Box::pin(async move {
            let (root, made) = on(cluster, 0, move |file_system: Arc<FileSystem>| async move {
                set_default(&file_system, default).await;
                while file_system.sync_all().await.is_err() {}
                let read = OpenFlags(open_flag::READ);
                let root = file_system.open(&Credentials::root(), ROOT, read).await?;
                let made = mkdir(&file_system, ROOT, "made").await?.inode;
                match synced {
                    Synced::Nothing => {}
                    Synced::Parent => file_system.fsync(&root, false).await?,
                    Synced::Made => {
                        let opened = file_system.open(&Credentials::root(), made, read).await?;
                        file_system.fsync(&opened, false).await?;
                        file_system.close(opened, None).await?;
                    }
                }
                FsResult::Ok((root, made))
            })
            .await?;
            cluster.lose_power(Role::Mds(0));
            if both {
                cluster.lose_power(Role::Mds(1));
            }
            cluster.ready().await?;
            on(cluster, 0, move |file_system| async move {
                let told = [file_system.fsync(&root, false).await, file_system.fsync(&root, false).await];
                let found = file_system.lookup(&Credentials::root(), ROOT, b"made").await;
                if let Ok(found) = &found {
                    assert_eq!((found.inode, found.links), (made, 2));
                    mkdir(&file_system, made, "below").await?;
                }
                file_system.close(root, None).await?;
                FsResult::Ok((found.is_ok(), told))
            })
            .await
        })
    })
}

/// A sync of the directory that has the name makes the new directory durable, wherever that is; and
/// so does a sync of the new directory: it can be opened once the decision is durable.
#[test]
fn a_sync_of_either_directory_makes_a_new_one_on_another_mdt_durable() {
    for default in [ON_1, STRIPED] {
        let mut lost = 0;
        for seed in 0..8 {
            for both in [false, true] {
                for synced in [Synced::Parent, Synced::Made] {
                    let (is_there, _) = after_power_loss(seed, synced, default, both);
                    assert!(is_there, "seed {seed}, {synced:?}, {default:?}, both: {both}");
                }
                let (is_there, told) = after_power_loss(seed, Synced::Nothing, default, both);
                assert!(is_there || told[0].is_err(), "seed {seed}, {default:?}, both: {both}: nobody is told");
                assert_eq!(told[1], Ok(()), "once");
                lost += u32::from(!is_there);
            }
        }
        assert!(lost > 0, "{default:?}: no seed loses the directory");
    }
}

/// A directory on one MDT.
async fn make_on(
    file_system: &FileSystem,
    parent: InodeNumber,
    name: &str,
    (mdt, mode): (u16, u32),
) -> FsResult<InodeNumber> {
    let (mdt, stripes) = (MdtIndex(mdt), Stripes::default());
    let make = MakeDirectory { parent, name: name.as_bytes().to_vec(), mode, umask: 0, mdt, stripes };
    file_system.make_directory(&Credentials::root(), make).await
}

async fn set_mode(file_system: &FileSystem, inode: InodeNumber, mode: u32) -> FsResult<()> {
    let changes = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    file_system.set_attributes(&Credentials::root(), inode, changes, None).await.map(drop)
}

/// A file that is named by its number needs a path whose directories the user may search, also
/// those whose names or entries are on other MDTs.
#[test]
fn a_private_directory_protects_what_is_below_it_on_any_mdt() {
    let bob = || Credentials { uid: 200, gid: 200, groups: Some(Vec::new()) };
    with_two_mdts(1, move |cluster| {
        Box::pin(async move {
            on(cluster, 0, move |file_system: Arc<FileSystem>| async move {
                let home = make_on(&file_system, ROOT, "home", (1, 0o777)).await?;
                let alice = make_on(&file_system, home, "alice", (0, 0o700)).await?;
                let open = make_on(&file_system, alice, "open", (1, 0o777)).await?;
                let hers = make(&file_system, open, "hers", NodeKind::Regular).await?.inode;
                let his = make(&file_system, home, "his", NodeKind::Regular).await?.inode;
                for file in [hers, his] {
                    assert_eq!(file.mdt(), MdtIndex(1));
                    set_mode(&file_system, file, 0o666).await?;
                }
                let swap = async || {
                    let his_version = file_system.data_version(&bob(), his, None).await?;
                    let her_version = file_system.data_version(&Credentials::root(), hers, None).await?;
                    file_system.swap_layouts(&bob(), (his, his_version, false), (hers, Some(her_version))).await
                };
                let path = vec![b"home/alice/open/hers".to_vec()];
                assert_eq!(file_system.paths(&Credentials::root(), hers).await?, path);
                for inode in [hers, open] {
                    assert_eq!(file_system.paths(&bob(), inode).await, Err(FsError::AccessDenied));
                }
                assert_eq!(swap().await, Err(FsError::AccessDenied));
                file_system.link(&Credentials::root(), hers, home, b"link").await?;
                assert_eq!(file_system.paths(&bob(), hers).await?, [b"home/link".to_vec()], "and only that one");
                file_system.unlink(&Credentials::root(), home, b"link").await?;
                set_mode(&file_system, alice, 0o711).await?;
                assert_eq!(file_system.paths(&bob(), hers).await?, path);
                swap().await?;
                set_mode(&file_system, ROOT, 0o700).await?;
                assert_eq!(file_system.paths(&bob(), hers).await, Err(FsError::AccessDenied));
                FsResult::Ok(())
            })
            .await
        })
    });
}
