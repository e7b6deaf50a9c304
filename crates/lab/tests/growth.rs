//! Two clients change a file's layout at the same moment, and a process dies in the middle: each
//! death at many moments, in virtual time. The clients cross watermarks of the file, or the OST
//! that both use fills up. Also tested: a component that was lengthened, for a file that no client
//! has open any more, when the MDT's host loses power.

use crate::common;

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{AllocateMode, FileSystem, OpenFile, WriteOptions};
use common::{READ_WRITE, on, with_cluster};
use lab::{
    Random, checkers, cluster::Cluster, drawn::growing_layout, inspector::Inspector, seed::set_default_layout,
    server::Role,
};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, Location, StripeSpec, automatic::BYTES_ON_MDT};
use rt::{BoxFuture, Entropy, parameters::ParameterTree};
use types::{Credentials, InodeNumber};

const NAME: &[u8] = b"growing";
/// The first client's part and the second one's: each has a component to itself, and they share
/// one.
const PARTS: [(u64, usize); 2] = [(60 << 10, 300 << 10), (360 << 10, 300 << 10)];
const SEEDS: u64 = 12;

/// Why the layout changes while both write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// They cross watermarks.
    Growth,
    /// The OST of an automatic layout's component is full.
    FullOst,
}

/// Who dies while both write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The MDT's process.
    Mdt,
    /// The MDT's process, and its host's power.
    MdtPower,
    /// The first client.
    Client,
    /// The first client, and the MDT's process with it.
    ClientAndMdt,
}

async fn open(file_system: &Arc<FileSystem>) -> Result<Arc<OpenFile>, String> {
    let created = file_system.create_open(&Credentials::root(), InodeNumber::ROOT, NAME, 0o644, 0, READ_WRITE).await;
    created.map(|created| created.file).map_err(|error| format!("open: {error}"))
}

async fn contents(cluster: &Cluster, client: u16) -> Result<Vec<u8>, String> {
    on(cluster, client, |file_system| async move {
        let file = open(&file_system).await?;
        let data = file_system.read(&file, 0, 2 << 20).await.map_err(|error| format!("read: {error}"))?;
        file_system.close(file, None).await.map_err(|error| format!("close: {error}"))?;
        Ok::<_, String>(data.into_bytes().to_vec())
    })
    .await
}

/// Makes a file with an object where both will write, whose OST takes nothing any more.
async fn prepare_full_ost(cluster: &Cluster) -> Result<(), String> {
    set_default_layout(cluster, LayoutSpec::Automatic).await?;
    let layout = on(cluster, 0, |file_system| async move {
        let file = open(&file_system).await?;
        let failed = |error| format!("a file without data: {error}");
        // Not a truncation: that would need no object.
        let zero = AllocateMode::Zero { extend: true };
        file_system.allocate(&file, zero, PARTS[0].0 + 39_999, 1).await.map_err(failed)?;
        file_system.fsync(&file, false).await.map_err(failed)?;
        file_system.layout_info(file.inode()).await.map_err(failed)?.layout.ok_or("no layout".to_owned())
    })
    .await?;
    let end = layout.objects().last().map(|(_, location)| location);
    let Some(Location::Ost(ost)) = end else { return Err(format!("not on an OST: {layout:?}")) };
    let tree = ParameterTree::new();
    let filled = cluster.inspect(Role::Oss(ost.0), |serving| {
        let target = serving.osts.first().expect("an OSS has a target");
        target.register_parameters(&tree).expect("a new tree");
        tree.set(&format!("obdfilter.{}.reserved_mb", target.name()), "1000000").is_ok()
    });
    if filled == Some(true) { Ok(()) } else { Err("the OST is not full".to_owned()) }
}

async fn change(cluster: &Cluster, change: Change, death: Death) -> Result<(), String> {
    match change {
        Change::Growth => {
            set_default_layout(cluster, growing_layout()).await?;
            on(cluster, 0, |file_system| async move {
                let file = open(&file_system).await?;
                file_system.fsync(&file, false).await.map_err(|error| format!("fsync: {error}"))
            })
            .await?;
        }
        Change::FullOst => prepare_full_ost(cluster).await?,
    }
    let mut files = Vec::new();
    for client in 0..2 {
        files.push(on(cluster, client, |file_system| async move { open(&file_system).await }).await?);
    }
    let mut writes = Vec::new();
    for (client, (file, (offset, bytes))) in (0..).zip(files.iter().cloned().zip(PARTS)) {
        let (file_system, _) = cluster.file_system(client).ok_or("the client is not mounted")?;
        writes.push(cluster.begin_on_client(client, async move {
            let data = Bytes::from(vec![client as u8 + 1; bytes]);
            file_system.write(&file, offset, data, WriteOptions::default()).await
        }));
    }
    let moment = Random::for_purpose(cluster.seed(), "death").below(6_000_000);
    cluster.within(Duration::from_nanos(moment), pending::<()>()).await;
    match death {
        Death::Mdt => drop(cluster.kill_server(Role::Mds(0))),
        Death::MdtPower => cluster.lose_power(Role::Mds(0)),
        Death::Client => drop(cluster.kill_client(0)),
        Death::ClientAndMdt => {
            cluster.kill_client(0);
            cluster.kill_server(Role::Mds(0));
        }
    }
    cluster.ready().await?;
    let client_died = matches!(death, Death::Client | Death::ClientAndMdt);
    for (client, write) in writes.into_iter().enumerate() {
        match checkers::finishes(cluster, "a write", write).await? {
            Some(Ok(written)) if written == PARTS[client].1 => {}
            None if client == 0 && client_died => {}
            outcome => return Err(format!("client {client} was told {outcome:?}")),
        }
    }
    if death == Death::MdtPower {
        // One that opens the file again sees the growth that was lost once those who know of it are
        // back.
        checkers::at_rest(cluster).await?;
        let inspector = Inspector::open(cluster);
        checkers::finishes(cluster, "a look at objects", checkers::deferred_log_drains(cluster, &inspector)).await??;
        inspector.close().await;
    }
    // Data on the MDT that were not synced may be lost with its power.
    let on_mdt = change == Change::FullOst && death == Death::MdtPower;
    let kept_from = if on_mdt { BYTES_ON_MDT as usize } else { 0 };
    judge(&contents(cluster, 2).await?, client_died, kept_from)?;
    drop(files);
    checkers::at_rest(cluster).await?;
    judge(&contents(cluster, 1).await?, client_died, kept_from)
}

/// Everything that was acknowledged is there, from `kept_from` on; of what a client that died had
/// in progress, any part.
fn judge(data: &[u8], client_died: bool, kept_from: usize) -> Result<(), String> {
    let [(first, first_bytes), (second, second_bytes)] = PARTS.map(|(offset, bytes)| (offset as usize, bytes));
    if data.len() != second + second_bytes {
        return Err(format!("the file has {} bytes", data.len()));
    }
    let expected = |at: usize, byte: u8| match at {
        at if at < first => byte == 0,
        at if at < first + first_bytes => byte == 1 || ((client_died || at < kept_from) && byte == 0),
        at => byte == 2 && at >= second,
    };
    match (0..data.len()).find(|at| !expected(*at, data[*at])) {
        Some(at) => Err(format!("byte {at} is {}", data[at])),
        None => Ok(()),
    }
}

/// A component gets longer for a write without a sync; the file is closed, and the MDT's host loses
/// power. What reads as zeros then does so permanently, also when the component grows there again.
async fn lengthen_without_claim(cluster: &Cluster) -> Result<(), String> {
    const STEP: u64 = 128 << 10;
    let stripes = StripeSpec { stripe_bytes: Some(64 << 10), ..StripeSpec::default() };
    let extended = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Extended(stripes, STEP) };
    set_default_layout(cluster, LayoutSpec::Composite(vec![extended])).await?;
    let write_at = |client: u16, offset: u64, synced: bool| {
        on(cluster, client, move |file_system| async move {
            let failed = |error| format!("a write at {offset}: {error}");
            let file = open(&file_system).await?;
            let data = Bytes::from(vec![client as u8 + 1; 1000]);
            file_system.write(&file, offset, data, WriteOptions::default()).await.map_err(failed)?;
            if synced {
                file_system.fsync(&file, false).await.map_err(failed)?;
            }
            file_system.close(file, None).await.map_err(failed)
        })
    };
    write_at(0, 0, true).await?;
    write_at(0, STEP + 5000, false).await?;
    let moment = Random::for_purpose(cluster.seed(), "death").below(6_000_000);
    cluster.within(Duration::from_nanos(moment), pending::<()>()).await;
    cluster.lose_power(Role::Mds(0));
    cluster.ready().await?;
    checkers::at_rest(cluster).await?;
    let before = contents(cluster, 1).await?;
    write_at(1, STEP + 20_000, true).await?;
    let after = contents(cluster, 2).await?;
    let there = |data: &[u8], at: usize| data.get(at).copied().unwrap_or(0);
    match (0..STEP as usize + 20_000).find(|at| there(&before, *at) != there(&after, *at)) {
        Some(at) => Err(format!("byte {at} was {} and is {}", there(&before, at), there(&after, at))),
        None if after.len() == STEP as usize + 21_000 => Ok(()),
        None => Err(format!("the file has {} bytes", after.len())),
    }
}

type Outcome<'c> = BoxFuture<'c, Result<(), String>>;

fn hold(why: Change, death: Death) {
    hold_always(&format!("{why:?}, {death:?}"), move |cluster| Box::pin(change(cluster, why, death)));
}

/// Runs a scenario with each seed.
fn hold_always(name: &str, scenario: impl Fn(&Cluster) -> Outcome<'_> + Copy + Send + Sync + 'static) {
    for seed in 0..SEEDS {
        with_cluster(seed, (4, 3), scenario).unwrap_or_else(|reason| panic!("{name}: {reason}"));
    }
}

#[test]
fn what_a_longer_component_lost_with_the_power_does_not_come_back() {
    hold_always("lengthening", |cluster| Box::pin(lengthen_without_claim(cluster)));
}

#[test]
fn the_mdt_dies_while_two_clients_cross_a_watermark() {
    hold(Change::Growth, Death::Mdt);
}

#[test]
fn the_mdt_loses_power_while_two_clients_cross_a_watermark() {
    hold(Change::Growth, Death::MdtPower);
}

#[test]
fn a_client_dies_while_it_crosses_a_watermark_with_another() {
    hold(Change::Growth, Death::Client);
}

#[test]
fn a_client_and_the_mdt_die_while_two_clients_cross_a_watermark() {
    hold(Change::Growth, Death::ClientAndMdt);
}

#[test]
fn the_mdt_dies_while_two_clients_find_an_ost_full() {
    hold(Change::FullOst, Death::Mdt);
}

#[test]
fn the_mdt_loses_power_while_two_clients_find_an_ost_full() {
    hold(Change::FullOst, Death::MdtPower);
}

#[test]
fn a_client_dies_while_it_finds_an_ost_full_with_another() {
    hold(Change::FullOst, Death::Client);
}

#[test]
fn a_client_and_the_mdt_die_while_two_clients_find_an_ost_full() {
    hold(Change::FullOst, Death::ClientAndMdt);
}
