//! A file that another client migrates before it was synced: its writer learns about losses of its
//! data at their old place, and not about losses at their new place.

use crate::common;

use bytes::Bytes;
use client::WriteOptions;
use common::{READ_WRITE, on, with_cluster};
use lab::{
    cluster::Cluster,
    migration::{self, Manner},
    seed::set_default_layout,
    server::Role,
};
use layout::{LayoutSpec, StripeSpec};
use types::{Credentials, FsError, FsResult, InodeNumber, OstIndex};

const SEED: u64 = 1;

/// One stripe, on this OST.
fn on_ost(ost: u16) -> LayoutSpec {
    LayoutSpec::Plain(StripeSpec { osts: vec![OstIndex(ost)], ..StripeSpec::default() })
}

async fn lose_power(cluster: &Cluster, ost: u16) -> Result<(), String> {
    cluster.lose_power(Role::Oss(ost));
    cluster.ready().await
}

/// What two syncs say of a file that was written on OST 0 and moved to OST 1. `lost`: OST 0 lost
/// power in between; else OST 1 did before.
async fn syncs(cluster: &Cluster, lost: bool) -> Result<[FsResult<()>; 2], String> {
    set_default_layout(cluster, on_ost(0)).await?;
    if !lost {
        lose_power(cluster, 1).await?;
    }
    let root = Credentials::root();
    let inode = on(cluster, 0, |file_system| async move {
        let created = file_system.create_open(&root, InodeNumber::ROOT, b"file", 0o644, 0, READ_WRITE).await?;
        file_system.write(&created.file, 0, Bytes::from(vec![7; 100_000]), WriteOptions::default()).await?;
        let inode = created.file.inode();
        file_system.close(created.file, None).await?;
        FsResult::Ok(inode)
    })
    .await?;
    if lost {
        lose_power(cluster, 0).await?;
    }
    let move_it = |file_system| async move { migration::migrate(&file_system, inode, on_ost(1), Manner::Tool).await };
    if !on(cluster, 1, move_it).await? {
        return Err("cannot migrate a file that nobody has open".to_owned());
    }
    on(cluster, 0, |file_system| async move {
        let file = file_system.open(&Credentials::root(), inode, READ_WRITE).await?;
        let told = [file_system.fsync(&file, false).await, file_system.fsync(&file, false).await];
        file_system.close(file, None).await?;
        FsResult::Ok(told)
    })
    .await
}

fn told(lost: bool) -> [FsResult<()>; 2] {
    with_cluster(SEED, (2, 2), move |cluster| Box::pin(syncs(cluster, lost))).expect("the scenario")
}

#[test]
fn what_was_lost_before_somebody_moved_the_file_is_told() {
    let [first, second] = told(true);
    assert!(matches!(first, Err(FsError::Device { .. })), "{first:?}");
    assert_eq!(second, Ok(()), "once");
}

#[test]
fn what_the_new_place_lost_before_the_file_came_there_is_not_told() {
    assert_eq!(told(false), [Ok(()), Ok(())]);
}
