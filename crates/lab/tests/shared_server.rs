//! Several OSTs on one server: they share its process, its services and its death.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, OpenFile, WriteOptions};
use common::{READ_WRITE, on, with_options};
use lab::{
    cluster::{Cluster, ClusterOptions},
    drawn::settings,
    seed::set_default_layout,
    server::Role,
};
use layout::{LayoutSpec, StripeCount, StripeSpec};
use types::{Credentials, FsResult, InodeNumber};

const OSTS: u16 = 4;
const STRIPE_BYTES: u64 = 1 << 20;

async fn prepare(file_system: Arc<FileSystem>) -> FsResult<Arc<OpenFile>> {
    let root = Credentials::root();
    let file = file_system.create_open(&root, InodeNumber::ROOT, b"file", 0o644, 0, READ_WRITE).await?.file;
    let data = Bytes::from(vec![7; OSTS as usize * STRIPE_BYTES as usize]);
    file_system.write(&file, 0, data, WriteOptions::default()).await?;
    file_system.fsync(&file, false).await?;
    Ok(file)
}

/// Waits until the MDT has heard of every OST: a file made before has fewer stripes.
async fn all_known(cluster: &Cluster) {
    let known = || {
        let count = |mdt: &Arc<mds::Mdt>| mdt.osts().iter().filter(|(_, view)| view.report.is_some()).count();
        cluster.inspect(Role::Mds(0), |serving| serving.mdt.as_ref().map_or(0, count)).unwrap_or(0)
    };
    while known() < usize::from(OSTS) {
        cluster.simulation().sleep(Duration::from_millis(100)).await;
    }
}

async fn write_and_restart(cluster: &Cluster) -> Result<(), String> {
    assert_eq!(cluster.roles(), [Role::Mgs, Role::Mds(0), Role::Oss(0)]);
    let stripes =
        StripeSpec { stripe_count: StripeCount::All, stripe_bytes: Some(STRIPE_BYTES), ..StripeSpec::default() };
    all_known(cluster).await;
    set_default_layout(cluster, LayoutSpec::Plain(stripes)).await?;
    let file = on(cluster, 0, prepare).await?;
    let written = cluster.inspect(Role::Oss(0), |serving| {
        let writes = serving.osts.iter().map(|ost| (ost.index().0, ost.statistics().counters().write.requests));
        (writes.collect::<Vec<_>>(), serving.server.service(oss::SERVICE_IO).statistics().requests)
    });
    let (writes, requests) = written.ok_or("the server is up")?;
    assert_eq!(writes, [(0, 1), (1, 1), (2, 1), (3, 1)], "each target has a stripe");
    assert_eq!(requests, 4, "one service executed all of them");
    cluster.kill_server(Role::Oss(0));
    cluster.ready().await?;
    let read = on(cluster, 0, move |file_system| async move { file_system.read(&file, 3 << 20, 4096).await }).await?;
    assert_eq!(read.into_pieces().concat(), [7; 4096]);
    Ok(())
}

#[test]
fn targets_of_one_server_share_its_services_and_come_back_with_it() {
    let options = ClusterOptions { mdts: 1, osts: OSTS, osts_per_server: OSTS, clients: 1, settings: settings(3) };
    with_options(3, options, |cluster| Box::pin(write_and_restart(cluster))).unwrap();
}
