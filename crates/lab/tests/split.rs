//! A directory gets shards while clients use it (docs/decisions/0062-directories-that-split.md): no
//! name is lost, none is there twice, and a listing that goes on meanwhile shows each name once
//! that is there all the time.

use crate::common;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use client::{EntryAttributes, FileSystem, NewFile, NewNode};
use common::{Fault, with_options};
use lab::{
    cluster::{Cluster, ClusterOptions},
    drawn::settings,
    server::{Role, Settings},
};
use rpc::message::mdt::{OpenFlags, RenameMode, open_flag};
use types::{Credentials, FsError, FsResult, InodeNumber, MdtIndex, NameHash, NodeKind, Stripes};

/// Names before the split: more than move in one batch to each shard.
const NAMES: usize = 350;
const PAGE: u32 = 16;

type Names = BTreeMap<Vec<u8>, InodeNumber>;

async fn create(file_system: &FileSystem, parent: InodeNumber, name: &str, kind: NodeKind) -> FsResult<InodeNumber> {
    let node = NewNode { parent, name: name.as_bytes().to_vec(), kind, mode: 0o755, umask: 0, layout: None };
    file_system.create(&Credentials::root(), node).await.map(|made| made.inode)
}

/// The names of a directory in the order in which they are shown.
async fn list(file_system: &Arc<FileSystem>, directory: InodeNumber) -> FsResult<Vec<(Vec<u8>, InodeNumber)>> {
    let opened = file_system.open(&Credentials::root(), directory, OpenFlags(open_flag::READ)).await?;
    let (mut cookie, mut shown) = (0, Vec::new());
    loop {
        let page = file_system.read_directory(&opened, cookie, PAGE, EntryAttributes::None).await?;
        let Some(last) = page.items.last() else { break };
        cookie = last.cookie;
        shown.extend(page.items.into_iter().map(|item| (item.name, item.inode)));
        if page.end {
            break;
        }
    }
    file_system.close(opened, None).await?;
    shown.retain(|(name, _)| name != b"." && name != b"..");
    Ok(shown)
}

/// Every name that was there all the time is shown once, and none twice.
fn check_listing(what: &str, shown: &[(Vec<u8>, InodeNumber)], there: &Names) {
    let distinct: Names = shown.iter().cloned().collect();
    assert_eq!(distinct.len(), shown.len(), "{what}: a name is shown twice");
    for (name, inode) in there {
        assert_eq!(distinct.get(name), Some(inode), "{what}: {}", name.escape_ascii());
    }
}

/// What one client does during the split: names come and go, and are listed.
async fn use_names(file_system: Arc<FileSystem>, directory: InodeNumber, mut names: Names) -> FsResult<Names> {
    let root = Credentials::root();
    for round in 0..12_usize {
        check_listing("during the split", &list(&file_system, directory).await?, &names);
        for number in 0..4 {
            let name = format!("new{round}-{number}");
            let kind = if number == 0 { NodeKind::Directory } else { NodeKind::Regular };
            names.insert(name.clone().into_bytes(), create(&file_system, directory, &name, kind).await?);
        }
        // Whole files with one request each, if their names are where it is sent.
        for number in 0..4 {
            let name = format!("whole{round}-{number}").into_bytes();
            let file = NewFile { parent: directory, name: name.clone(), mode: 0o644, umask: 0 };
            let made = file_system.create_with_data(&root, file, "text".into()).await?.inode;
            let (found, data) = file_system.open_and_read(&root, directory, &[&name], 100).await?;
            assert_eq!((found.inode, &data.into_bytes()[..]), (made, &b"text"[..]));
            names.insert(name, made);
        }
        let gone = format!("old{round}").into_bytes();
        file_system.unlink(&root, directory, &gone).await?;
        names.remove(&gone);
        let (old, new) = (format!("old{}", 20 + round).into_bytes(), format!("moved{round}").into_bytes());
        file_system.rename(&root, (directory, &old), (directory, &new), RenameMode::Replace).await?;
        let inode = names.remove(&old).expect("it is there");
        assert_eq!(file_system.link(&root, inode, directory, format!("link{round}").as_bytes()).await?.inode, inode);
        names.extend([(new, inode), (format!("link{round}").into_bytes(), inode)]);
        let missing = file_system.lookup(&root, directory, &gone).await.map(|found| found.inode);
        assert_eq!(missing, Err(FsError::NotFound));
        let kept = format!("old{}", 100 + round).into_bytes();
        assert_eq!(file_system.lookup(&root, directory, &kept).await.map(|found| found.inode), Ok(names[&kept]));
    }
    Ok(names)
}

/// What becomes of the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It gets shards.
    Splits,
    /// It has some, and gets its names back.
    Merges,
}

fn change_under(change: Change, seed: u64, fault: Fault, uses: bool) {
    let options = ClusterOptions { mdts: 3, osts: 1, osts_per_server: 1, clients: 2, settings: settings(seed) };
    let outcome = with_options(seed, options, move |cluster| Box::pin(scenario(cluster, (change, seed), fault, uses)));
    outcome.unwrap_or_else(|reason| panic!("{change:?}, {fault:?}: {reason}"));
}

/// Stripes on all MDTs, from another one on with each seed.
fn stripes(seed: u64) -> Stripes {
    let mdts = (0..3).map(|number| MdtIndex(((seed + number) % 3) as u16)).collect();
    Stripes { hash: NameHash::Fnv1a64, mdts }
}

/// The request to end the stripes of a directory.
fn no_stripes(directory: InodeNumber) -> Stripes {
    Stripes { hash: NameHash::Fnv1a64, mdts: vec![directory.mdt()] }
}

/// A directory on MDT 0 with names that are durable.
async fn filled(cluster: &Cluster) -> Result<(InodeNumber, Names), String> {
    common::on(cluster, 0, move |file_system| async move {
        let directory = create(&file_system, InodeNumber::ROOT, "directory", NodeKind::Directory).await?;
        let mut names = Names::new();
        for number in 0..NAMES {
            let name = format!("old{number}");
            let inode = create(&file_system, directory, &name, NodeKind::Regular).await?;
            names.insert(name.into_bytes(), inode);
        }
        while file_system.sync_all().await.is_err() {}
        FsResult::Ok((directory, names))
    })
    .await
}

async fn scenario(cluster: &Cluster, (change, seed): (Change, u64), fault: Fault, uses: bool) -> Result<(), String> {
    let (directory, names) = filled(cluster).await?;
    if change == Change::Merges {
        let split = move |file_system: Arc<FileSystem>| async move {
            file_system.split_directory(&Credentials::root(), directory, stripes(seed)).await?;
            while file_system.sync_all().await.is_err() {}
            FsResult::Ok(())
        };
        common::on(cluster, 1, split).await?;
    }
    let (user, _) = cluster.file_system(0).ok_or("client 0 is not mounted")?;
    let (splitter, _) = cluster.file_system(1).ok_or("client 1 is not mounted")?;
    let mut using = Box::pin(
        cluster
            .begin_on_client(0, async move { if uses { use_names(user, directory, names).await } else { Ok(names) } }),
    );
    // At another moment with each seed, so that the split begins within a listing.
    let early = cluster.within(Duration::from_micros(200 * (seed % 40)), using.as_mut()).await;
    let mut splitting = Box::pin(cluster.begin_on_client(1, async move {
        let stripes = match change {
            Change::Splits => stripes(seed),
            Change::Merges => no_stripes(directory),
        };
        splitter.split_directory(&Credentials::root(), directory, stripes).await
    }));
    let split = cluster.within(Duration::from_micros(500 * (seed % 23)), splitting.as_mut()).await;
    fault.happen(cluster);
    cluster.ready().await?;
    let split = match split {
        Some(split) => split,
        None => splitting.await,
    };
    split.ok_or("client 1 died")?.map_err(|error| format!("the split: {error}"))?;
    let names = match early {
        Some(names) => names,
        None => using.await,
    };
    let names = names.ok_or("client 0 died")?.map_err(|error| format!("using names: {error}"))?;
    common::on(cluster, 1, move |file_system| async move {
        let shown = list(&file_system, directory).await?;
        check_listing("after the split", &shown, &names);
        assert_eq!(shown.len(), names.len(), "no other names");
        for (name, inode) in &names {
            let found = file_system.lookup(&Credentials::root(), directory, name).await?;
            assert_eq!(found.inode, *inode);
        }
        FsResult::Ok(())
    })
    .await
}

/// Every second one, unless `STRIA_TEST_LONG=1` wants all: faults still come to each MDT.
fn seeds() -> impl Iterator<Item = u64> {
    let is_long = std::env::var_os("STRIA_TEST_LONG").is_some_and(|value| value == "1");
    (0..12).step_by(if is_long { 1 } else { 2 })
}

#[test]
fn names_come_and_go_while_a_directory_splits() {
    for seed in seeds() {
        change_under(Change::Splits, seed, Fault::Nothing, true);
    }
}

#[test]
fn names_come_and_go_although_an_mdt_dies_during_the_split() {
    for seed in seeds() {
        change_under(Change::Splits, seed, Fault::Dies((seed / 3 % 3) as u16), true);
    }
}

#[test]
fn a_power_loss_during_the_split_takes_no_name() {
    for seed in seeds() {
        change_under(Change::Splits, seed, Fault::LosesPower((seed / 3 % 3) as u16), false);
    }
}

#[test]
fn names_come_and_go_while_a_directory_merges() {
    for seed in seeds() {
        change_under(Change::Merges, seed, Fault::Nothing, true);
    }
}

#[test]
fn names_come_and_go_although_an_mdt_dies_during_the_merge() {
    for seed in seeds() {
        change_under(Change::Merges, seed, Fault::Dies((seed / 3 % 3) as u16), true);
    }
}

#[test]
fn a_power_loss_during_the_merge_takes_no_name() {
    for seed in seeds() {
        change_under(Change::Merges, seed, Fault::LosesPower((seed / 3 % 3) as u16), false);
    }
}

/// The listing has shown so many names when the directory splits, or merges, or both.
async fn listed_across(cluster: &Cluster, changes: &[Change], shown_before: usize) -> Result<(), String> {
    let (directory, names) = filled(cluster).await?;
    let other = Stripes { hash: NameHash::Crush, mdts: [2, 0].map(MdtIndex).to_vec() };
    if changes.first() == Some(&Change::Merges) {
        common::on(cluster, 1, move |file_system| async move {
            file_system.split_directory(&Credentials::root(), directory, stripes(0)).await
        })
        .await?;
    }
    let (opened, mut shown) = common::on(cluster, 0, move |file_system| async move {
        let opened = file_system.open(&Credentials::root(), directory, OpenFlags(open_flag::READ)).await?;
        let mut shown = Vec::new();
        while shown.len() < shown_before {
            let cookie = shown.last().map_or(0, |item: &client::DirectoryItem| item.cookie);
            shown.extend(file_system.read_directory(&opened, cookie, PAGE, EntryAttributes::None).await?.items);
        }
        FsResult::Ok((opened, shown))
    })
    .await?;
    for change in changes {
        let stripes = if *change == Change::Splits { other.clone() } else { no_stripes(directory) };
        common::on(cluster, 1, move |file_system| async move {
            file_system.split_directory(&Credentials::root(), directory, stripes).await
        })
        .await?;
    }
    common::on(cluster, 0, move |file_system| async move {
        // The first page comes twice: the kernel may ask for it again.
        let cookie = shown.last().map_or(0, |item| item.cookie);
        let first = file_system.read_directory(&opened, cookie, PAGE, EntryAttributes::None).await?;
        assert_eq!(file_system.read_directory(&opened, cookie, PAGE, EntryAttributes::None).await?.items, first.items);
        let (mut page, mut after) = (first, Vec::new());
        loop {
            after.extend(page.items);
            let Some(last) = after.last() else { break };
            if page.end {
                break;
            }
            page = file_system.read_directory(&opened, last.cookie, PAGE, EntryAttributes::None).await?;
        }
        assert!(after.windows(2).all(|pair| pair[0].cookie < pair[1].cookie), "cookies grow");
        shown.extend(after);
        let shown = shown.into_iter().map(|item| (item.name, item.inode));
        let shown: Vec<_> = shown.filter(|(name, _)| name != b"." && name != b"..").collect();
        check_listing("across the split", &shown, &names);
        assert_eq!(shown.len(), names.len());
        // From the beginning.
        let page = file_system.read_directory(&opened, 0, PAGE, EntryAttributes::None).await?;
        assert_eq!((page.items.len(), &page.items[0].name[..]), (PAGE as usize, &b"."[..]));
        file_system.close(opened, None).await
    })
    .await
}

#[test]
fn a_listing_goes_on_in_the_shards_after_what_it_has_shown() {
    list_across(&[Change::Splits]);
    list_across(&[Change::Splits, Change::Merges, Change::Splits]);
}

#[test]
fn a_listing_goes_on_in_the_directory_after_what_shards_have_shown() {
    list_across(&[Change::Merges]);
    list_across(&[Change::Merges, Change::Splits, Change::Merges]);
}

fn list_across(changes: &'static [Change]) {
    for (seed, shown) in [0, 1, 40, NAMES / 2, NAMES].into_iter().enumerate() {
        let seed = seed as u64;
        let options = ClusterOptions { mdts: 3, osts: 1, osts_per_server: 1, clients: 2, settings: settings(seed) };
        let outcome = with_options(seed, options, move |cluster| Box::pin(listed_across(cluster, changes, shown)));
        outcome.unwrap_or_else(|reason| panic!("{changes:?}, {shown} names shown: {reason}"));
    }
}

/// Makes and removes names, so many times in a second, by so many clients in turn.
async fn churn(
    cluster: &Cluster,
    directory: InodeNumber,
    clients: u16,
    (seconds, per_second): (u32, u32),
) -> Result<(), String> {
    for step in 0..seconds * per_second {
        let client = (step % u32::from(clients)) as u16;
        common::on(cluster, client, move |file_system| async move {
            let name = format!("name{step}");
            create(&file_system, directory, &name, NodeKind::Regular).await?;
            file_system.unlink(&Credentials::root(), directory, name.as_bytes()).await
        })
        .await?;
        cluster.simulation().sleep(Duration::from_secs(1) / per_second).await;
    }
    Ok(())
}

/// How many shards a directory has.
async fn shards(cluster: &Cluster, directory: InodeNumber) -> Result<usize, String> {
    common::on(cluster, 0, move |file_system| async move {
        let map = file_system.layout_info(directory).await?.map;
        FsResult::Ok(map.map_or(0, |map| map.shards.len()))
    })
    .await
}

async fn hot(cluster: &Cluster) -> Result<(), String> {
    for mdt in 0..3 {
        cluster.inspect(Role::Mds(mdt), |serving| {
            let mdt = serving.mdt.as_ref().expect("it has an MDT");
            let parameters = mds::Parameters { hot_changes_per_second: 30, ..mdt.parameters() };
            mdt.set_parameters(parameters);
        });
    }
    let directory = common::on(cluster, 0, |file_system| async move {
        create(&file_system, InodeNumber::ROOT, "directory", NodeKind::Directory).await
    })
    .await?;
    churn(cluster, directory, 1, (15, 25)).await?;
    assert_eq!(shards(cluster, directory).await?, 0, "one client waits for its own requests");
    churn(cluster, directory, 2, (6, 25)).await?;
    cluster.simulation().sleep(Duration::from_secs(3)).await;
    churn(cluster, directory, 2, (6, 25)).await?;
    assert_eq!(shards(cluster, directory).await?, 0, "bursts");
    churn(cluster, directory, 2, (20, 25)).await?;
    assert_eq!(shards(cluster, directory).await?, 3, "it has few names, and keeps its shards");
    cluster.simulation().sleep(Duration::from_secs(400)).await;
    churn(cluster, directory, 1, (40, 1)).await?;
    assert_eq!(shards(cluster, directory).await?, 0, "it has cooled");
    Ok(())
}

/// Names are made and removed by two clients in a directory that never has many.
#[test]
fn a_hot_directory_splits_and_merges_when_it_has_cooled() {
    let settings = Settings { split_names: Some(400), ..settings(4) };
    let options = ClusterOptions { mdts: 3, osts: 1, osts_per_server: 1, clients: 2, settings };
    with_options(4, options, |cluster| Box::pin(hot(cluster))).unwrap_or_else(|reason| panic!("{reason}"));
}
