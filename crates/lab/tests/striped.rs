//! Striped directories: a client that does not know of one learns it from the answer to its first
//! request; and a sync of a file commits the MDT of its name.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use client::{EntryAttributes, FileSystem, NewFile, NewNode};
use common::{READ_WRITE, on, with_options};
use lab::{
    cluster::{Cluster, ClusterOptions, client_host},
    drawn::settings,
    server::Role,
};
use rpc::message::{
    mdt::{OpenFlags, RenameMode, XattrMode, open_flag},
    mdt_peer::MakeDirectory,
};
use rt::BoxFuture;
use types::{
    Credentials, FileKind, FsError, FsResult, InodeNumber, MdtIndex, NameHash, NodeKind, SetAttributes, SetTime,
    Stripes, Timestamp, access_list::ACCESS_NAME,
};

const SEED: u64 = 1;

fn with_mdts<T: Send + 'static>(
    seed: u64,
    mdts: u16,
    scenario: impl for<'c> FnOnce(&'c Cluster) -> BoxFuture<'c, Result<T, String>> + Send + 'static,
) -> T {
    let options = ClusterOptions { mdts, osts: 1, osts_per_server: 1, clients: 2, settings: settings(seed) };
    with_options(seed, options, scenario).unwrap_or_else(|reason| panic!("{reason}"))
}

/// A directory in the root, with a shard on each of these MDTs, if there are any.
async fn directory(file_system: &FileSystem, name: &str, mdt: u16, shards: &[u16]) -> FsResult<InodeNumber> {
    let stripes = Stripes { hash: NameHash::Fnv1a64, mdts: shards.iter().copied().map(MdtIndex).collect() };
    let (parent, name, mdt) = (InodeNumber::ROOT, name.as_bytes().to_vec(), MdtIndex(mdt));
    let make = MakeDirectory { parent, name, mode: 0o755, umask: 0, mdt, stripes };
    file_system.make_directory(&Credentials::root(), make).await
}

fn node(parent: InodeNumber, name: &str, kind: NodeKind) -> NewNode {
    NewNode { parent, name: name.as_bytes().to_vec(), kind, mode: 0o755, umask: 0, layout: None }
}

/// The first requests of a client in a directory of which it has only the number.
const REQUESTS: u8 = 11;

/// One of these. The directory has the file `file` and the directory `sub`.
async fn request(number: u8, file_system: Arc<FileSystem>, at: InodeNumber, file: InodeNumber) -> FsResult<()> {
    let (root, replace) = (Credentials::root(), RenameMode::Replace);
    match number {
        0 => file_system.lookup(&root, at, b"file").await.map(drop),
        1 => file_system.unlink(&root, at, b"file").await,
        2 => file_system.remove_directory(&root, at, b"sub").await,
        3 => file_system.rename(&root, (at, b"file"), (at, b"new"), replace).await,
        4 => file_system.rename(&root, (at, b"file"), (InodeNumber::ROOT, b"new"), replace).await,
        5 => file_system.link(&root, file, at, b"link").await.map(drop),
        6 => file_system.create(&root, node(at, "made", NodeKind::Directory)).await.map(drop),
        7 => {
            let created = file_system.create_open(&root, at, b"opened", 0o644, 0, READ_WRITE).await?;
            file_system.close(created.file, None).await
        }
        8 => {
            let new = NewFile { parent: at, name: b"whole".to_vec(), mode: 0o644, umask: 0 };
            file_system.create_with_data(&root, new, Bytes::from_static(b"text")).await.map(drop)
        }
        9 => {
            let (mdt, stripes) = (MdtIndex(0), Stripes::default());
            let make = MakeDirectory { parent: at, name: b"far".to_vec(), mode: 0o755, umask: 0, mdt, stripes };
            file_system.make_directory(&root, make).await.map(drop)
        }
        _ => match file_system.lookup(&root, at, b"missing").await {
            Err(FsError::NotFound) => Ok(()),
            other => panic!("{other:?}"),
        },
    }
}

/// Client 1 does these two requests at once, and has only the number of the directory.
fn first_requests(mdts: u16, numbers: [u8; 2]) -> [FsResult<()>; 2] {
    with_mdts(SEED, mdts, move |cluster| {
        Box::pin(async move {
            let (at, file) = on(cluster, 0, move |file_system| async move {
                // One MDT has several of them.
                let shards: Vec<u16> = (0..mdts).chain((mdts == 1).then_some(0)).collect();
                let made = directory(&file_system, "striped", 0, &shards).await?;
                file_system.create(&Credentials::root(), node(made, "sub", NodeKind::Directory)).await?;
                let file = file_system.create(&Credentials::root(), node(made, "file", NodeKind::Regular)).await?;
                FsResult::Ok((made, file.inode))
            })
            .await?;
            on(cluster, 1, move |file_system| async move {
                let [first, second] = numbers.map(|number| request(number, file_system.clone(), at, file));
                let (first, second) = tokio::join!(biased; first, second);
                FsResult::Ok([first, second])
            })
            .await
        })
    })
}

#[test]
fn a_client_learns_a_map_from_its_first_request_with_one_mdt() {
    for number in 0..REQUESTS {
        // The second one changes nothing.
        assert_eq!(first_requests(1, [number, 10]), [Ok(()), Ok(())], "{number}");
    }
}

#[test]
fn two_first_requests_at_the_same_time_both_succeed() {
    for number in 0..REQUESTS {
        assert_eq!(first_requests(2, [number, 10]), [Ok(()), Ok(())], "{number}");
        assert_eq!(first_requests(2, [10, number]), [Ok(()), Ok(())], "{number}");
    }
}

/// A file gets a name on MDT 0 and stays on MDT 1; then MDT 0 loses its power, or not, and the file
/// is synced twice. Returns what the syncs said, and whether the file has the new name.
fn synced_after_a_rename(seed: u64, links: bool, loses_power: bool) -> ([FsResult<()>; 2], bool) {
    with_mdts(seed, 2, move |cluster| {
        Box::pin(async move {
            let root = Credentials::root();
            let file = on(cluster, 0, move |file_system| async move {
                let near = directory(&file_system, "near", 0, &[]).await?;
                let far = directory(&file_system, "far", 1, &[]).await?;
                let file = file_system.create(&root, node(far, "file", NodeKind::Regular)).await?;
                assert_eq!((file.kind, file.inode.mdt()), (FileKind::Regular, MdtIndex(1)));
                let opened = file_system.open(&root, file.inode, READ_WRITE).await?;
                while file_system.sync_all().await.is_err() {}
                match links {
                    true => drop(file_system.link(&root, file.inode, near, b"new").await?),
                    false => file_system.rename(&root, (far, b"file"), (near, b"new"), RenameMode::Replace).await?,
                }
                FsResult::Ok(opened)
            })
            .await?;
            if loses_power {
                cluster.lose_power(Role::Mds(0));
                cluster.ready().await?;
            }
            on(cluster, 0, move |file_system| async move {
                let told = [file_system.fsync(&file, false).await, file_system.fsync(&file, false).await];
                let root = Credentials::root();
                let near = file_system.lookup(&root, InodeNumber::ROOT, b"near").await?.inode;
                let is_there = file_system.lookup(&root, near, b"new").await.is_ok();
                file_system.close(file, None).await?;
                FsResult::Ok((told, is_there))
            })
            .await
        })
    })
}

#[test]
fn a_sync_of_a_file_tells_that_its_new_name_was_lost_with_another_mdt() {
    for links in [false, true] {
        let mut lost = 0;
        for seed in 0..20 {
            let ([first, second], is_there) = synced_after_a_rename(seed, links, true);
            assert!(is_there || matches!(first, Err(FsError::Device { .. })), "seed {seed}, {links}: {first:?}");
            assert_eq!(second, Ok(()), "once");
            lost += u64::from(!is_there);
        }
        assert!(lost > 0 || links, "no seed loses the name");
        assert_eq!(synced_after_a_rename(SEED, links, false), ([Ok(()), Ok(())], true));
    }
}

/// Names of which some are on each of two MDTs.
const SPREAD: u8 = 16;

#[test]
fn a_creation_waits_for_the_mdt_of_its_shard_to_learn_the_map() {
    with_mdts(SEED, 2, |cluster| {
        Box::pin(async move {
            let at = on(cluster, 0, |file_system| async move { directory(&file_system, "striped", 0, &[0, 1]).await });
            let at = at.await?;
            cluster.kill_server(Role::Mgs);
            cluster.kill_server(Role::Mds(1));
            // It has no map before the MGS is back, and so no OSTs: it calls back then.
            cluster.start_server(Role::Mds(1));
            let (file_system, _) = cluster.file_system(0).ok_or("the client is not mounted")?;
            let create = move |number: u8| {
                let file_system = file_system.clone();
                cluster.begin_on_client(0, async move {
                    let new = node(at, &format!("name{number}"), NodeKind::Regular);
                    file_system.create(&Credentials::root(), new).await.map(|made| made.inode.mdt())
                })
            };
            let creations: Vec<_> = (0..SPREAD).map(|number| Box::pin(create(number))).collect();
            let (mut near, mut waiting) = (0, Vec::new());
            for mut creation in creations {
                match cluster.within(Duration::from_secs(30), creation.as_mut()).await {
                    Some(made) => {
                        assert_eq!(made, Some(Ok(MdtIndex(0))));
                        near += 1;
                    }
                    None => waiting.push(creation),
                }
            }
            assert!(near > 0 && !waiting.is_empty(), "{near} of {SPREAD}");
            cluster.ready().await?;
            for creation in waiting {
                let made = cluster.within(Duration::from_secs(60), creation).await;
                assert_eq!(made, Some(Some(Ok(MdtIndex(1)))));
            }
            Ok(())
        })
    });
}

/// Client 0 makes `count` striped directories in one, each with a subdirectory on MDT 1.
async fn nested(file_system: &FileSystem, count: usize) -> FsResult<InodeNumber> {
    let root = Credentials::root();
    let above = file_system.create(&root, node(InodeNumber::ROOT, "above", NodeKind::Directory)).await?.inode;
    for number in 0..count {
        let stripes = Stripes { hash: NameHash::Fnv1a64, mdts: vec![MdtIndex(1)] };
        let (name, mdt) = (format!("d{number}").into_bytes(), MdtIndex(0));
        let make = MakeDirectory { parent: above, name, mode: 0o755, umask: 0, mdt, stripes };
        let made = file_system.make_directory(&root, make).await?;
        file_system.create(&root, node(made, "sub", NodeKind::Directory)).await?;
    }
    Ok(above)
}

/// Attributes that came ahead of the lookup are not shown without what the shards add.
#[test]
fn subdirectories_are_counted_of_directories_that_were_looked_at_ahead() {
    const COUNT: usize = 40;
    with_mdts(SEED, 2, |cluster| {
        Box::pin(async move {
            let above = on(cluster, 0, |file_system| async move { nested(&file_system, COUNT).await }).await?;
            on(cluster, 1, move |file_system| async move {
                let root = Credentials::root();
                let opened = file_system.open(&root, above, OpenFlags(open_flag::READ)).await?;
                let page = file_system.read_directory(&opened, 0, 100, EntryAttributes::None).await?;
                let names: Vec<_> = page.items.into_iter().map(|item| item.name).skip(2).collect();
                assert_eq!(names.len(), COUNT);
                for name in names {
                    let found = file_system.lookup(&root, above, &name).await?;
                    assert_eq!(found.links, 3, "{}", name.escape_ascii());
                }
                assert!(file_system.statistics().statahead.get().0 > 0, "nothing was asked for ahead");
                file_system.close(opened, None).await
            })
            .await
        })
    });
}

/// A client that has cached the attributes of a directory learns that others gave it shards.
#[test]
fn what_shards_add_is_seen_by_clients_that_knew_the_directory_before() {
    with_mdts(SEED, 2, |cluster| {
        Box::pin(async move {
            let at =
                on(cluster, 0, |file_system| async move { directory(&file_system, "plain", 0, &[]).await }).await?;
            let look = move |file_system: Arc<FileSystem>| async move { file_system.get_attributes(at, None).await };
            let before = on(cluster, 1, look).await?;
            let stripes = Stripes { hash: NameHash::Fnv1a64, mdts: vec![MdtIndex(0), MdtIndex(1)] };
            on(cluster, 0, move |file_system| async move {
                file_system.split_directory(&Credentials::root(), at, stripes).await?;
                for number in 0..SPREAD {
                    let sub = node(at, &format!("sub{number}"), NodeKind::Directory);
                    file_system.create(&Credentials::root(), sub).await?;
                }
                FsResult::Ok(())
            })
            .await?;
            let after = on(cluster, 1, look).await?;
            assert_eq!((before.links, after.links), (2, 2 + u32::from(SPREAD)));
            assert!(after.mtime > before.mtime);
            Ok(())
        })
    });
}

/// What makes a name in a directory visible or not to a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    Mode,
    List,
}

/// Lets other users search a directory, or not.
async fn permit(file_system: &FileSystem, at: InodeNumber, how: Permission, allowed: bool) -> FsResult<()> {
    let root = Credentials::root();
    match how {
        Permission::Mode => {
            let mode = Some(if allowed { 0o755 } else { 0o700 });
            let changes = SetAttributes { mode, ..SetAttributes::default() };
            file_system.set_attributes(&root, at, changes, None).await.map(drop)
        }
        Permission::List => {
            let of_user = if allowed { 0o5 } else { 0 };
            let list = access_list(USER, of_user);
            file_system.set_xattr(&root, at, ACCESS_NAME, &list, XattrMode::Any).await
        }
    }
}

const USER: u32 = 1000;

/// A list in the form of Linux: a user may do this, all others what a directory usually allows.
fn access_list(user: u32, may: u16) -> Vec<u8> {
    let entries = [(0x01, 0o7, u32::MAX), (0x02, may, user), (0x04, 0o5, u32::MAX), (0x10, 0o7, u32::MAX)];
    let entries = entries.into_iter().chain([(0x20, 0o5, u32::MAX)]);
    let entry =
        |(tag, may, id): (u16, u16, u32)| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat();
    [2_u32.to_le_bytes().to_vec()].into_iter().chain(entries.map(entry)).flatten().collect()
}

/// The client that changes the permissions of a directory does not go on with those that it had
/// cached of the shards.
#[test]
fn a_client_keeps_no_permissions_of_shards_that_it_has_changed() {
    for how in [Permission::Mode, Permission::List] {
        with_mdts(SEED, 2, move |cluster| {
            Box::pin(async move {
                on(cluster, 0, move |file_system| async move {
                    let user = Credentials { uid: USER, gid: USER, ..Credentials::root() };
                    let at = directory(&file_system, "striped", 0, &[0, 1]).await?;
                    for number in 0..SPREAD {
                        let file = node(at, &format!("f{number}"), NodeKind::Regular);
                        file_system.create(&Credentials::root(), file).await?;
                    }
                    // The attributes of the shards are cached.
                    file_system.get_attributes(at, None).await?;
                    for allowed in [false, true, false] {
                        permit(&file_system, at, how, allowed).await?;
                        for number in 0..SPREAD {
                            let name = format!("f{number}").into_bytes();
                            let found = file_system.lookup(&user, at, &name).await;
                            let expected = if allowed { Ok(()) } else { Err(FsError::AccessDenied) };
                            assert_eq!(found.map(drop), expected, "{how:?}, {number}");
                        }
                        file_system.get_attributes(at, None).await?;
                    }
                    FsResult::Ok(())
                })
                .await
            })
        });
    }
}

/// A time that is set is shown although a shard cannot be asked.
#[test]
fn times_that_were_set_are_not_followed_by_earlier_ones_of_shards() {
    with_mdts(SEED, 2, |cluster| {
        Box::pin(async move {
            let at = on(cluster, 0, |file_system| async move {
                let at = directory(&file_system, "striped", 0, &[0, 1]).await?;
                file_system.get_attributes(at, None).await?;
                file_system.clear_cached_locks(MdtIndex(1))?;
                FsResult::Ok(at)
            })
            .await?;
            cluster.network().cut(&client_host(0), &Role::Mds(1).host());
            let past = Timestamp { seconds: 1_000_000, nanoseconds: 0 };
            let shown = on(cluster, 0, move |file_system| async move {
                let mtime = Some(SetTime::To(past));
                let changes = SetAttributes { mtime, ..SetAttributes::default() };
                file_system.set_attributes(&Credentials::root(), at, changes, None).await
            })
            .await?;
            assert_eq!(shown.mtime, past);
            cluster.network().heal();
            Ok(())
        })
    });
}
