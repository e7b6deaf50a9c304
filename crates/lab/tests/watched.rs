//! A contradiction between servers ends a run while it goes on: here a tool destroys an object of a
//! file, which no server does.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, WriteOptions};
use common::{READ_WRITE, on, with_cluster};
use lab::{cluster::Cluster, inspector::Inspector, seed::set_default_layout};
use layout::{LayoutSpec, Location, StripeCount, StripeSpec};
use types::{Credentials, FsResult, InodeNumber, OstIndex};

/// By then the watch has looked.
const PAUSE: Duration = Duration::from_secs(60);
const OST: Location = Location::Ost(OstIndex(0));

async fn prepare(file_system: Arc<FileSystem>) -> FsResult<()> {
    let root = Credentials::root();
    let file = file_system.create_open(&root, InodeNumber::ROOT, b"file", 0o644, 0, READ_WRITE).await?.file;
    file_system.write(&file, 0, Bytes::from_static(b"data"), WriteOptions::default()).await?;
    file_system.close(file, None).await
}

async fn destroy(cluster: &Cluster) -> Result<(), String> {
    let spec = StripeSpec { stripe_count: StripeCount::Exactly(1), ..StripeSpec::default() };
    set_default_layout(cluster, LayoutSpec::Plain(spec)).await?;
    on(cluster, 0, prepare).await?;
    cluster.simulation().sleep(PAUSE).await;
    let inspector = Inspector::open(cluster);
    let objects = inspector.objects(OST).await.map_err(|error| error.to_string())?;
    for (object, _) in objects {
        inspector.destroy(OST, object).await.map_err(|error| error.to_string())?;
    }
    cluster.simulation().sleep(PAUSE).await;
    Ok(())
}

#[test]
fn a_destroyed_object_of_a_file_ends_the_run() {
    let failure = with_cluster(1, (1, 1), |cluster| Box::pin(destroy(cluster))).expect_err("the object is missing");
    let expected = "seed 1: invariant \"what a file has is not destroyed\" is violated: OST0000 has destroyed object";
    assert!(failure.starts_with(expected), "{failure}");
}
