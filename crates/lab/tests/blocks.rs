//! An OST dies in the middle of a write that takes several batches, at many moments in virtual
//! time: the client repeats the whole write after the next start, and the blocks of the file are
//! still those of its objects.

use crate::common;

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, OpenFile, WriteOptions};
use common::{READ_WRITE, on, with_cluster};
use lab::{Random, checkers, cluster::Cluster, seed::set_default_layout, server::Role};
use layout::{LayoutSpec, StripeSpec};
use rt::Entropy;
use types::{Credentials, FsResult, InodeNumber, OstIndex, limits::BLOCK_BYTES};

const SEEDS: u64 = 100;
/// Blocks of the write: those with even numbers are there before, and the journal of the labs' OSTs
/// takes a few of them at once.
const BLOCKS: u64 = 100;
/// The OST dies between these times after the begin of the write, which is at its batches then.
const MOMENTS: (Duration, Duration) = (Duration::from_micros(1100), Duration::from_micros(1700));

/// Makes a file with every other block.
async fn prepare(file_system: Arc<FileSystem>) -> FsResult<Arc<OpenFile>> {
    let root = Credentials::root();
    let file = file_system.create_open(&root, InodeNumber::ROOT, b"file", 0o644, 0, READ_WRITE).await?.file;
    for block in (0..BLOCKS).step_by(2) {
        let data = Bytes::from(vec![1; BLOCK_BYTES as usize]);
        file_system.write(&file, block * BLOCK_BYTES, data, WriteOptions::default()).await?;
    }
    Ok(file)
}

/// What somebody else finds as the file's size and blocks (of 512 bytes).
async fn size_and_blocks(cluster: &Cluster) -> Result<(u64, u64), String> {
    set_default_layout(cluster, LayoutSpec::Plain(StripeSpec { osts: vec![OstIndex(0)], ..StripeSpec::default() }))
        .await?;
    let file = on(cluster, 0, prepare).await.map_err(|error| format!("a file with every other block: {error}"))?;
    let inode = file.inode();
    let (file_system, _) = cluster.file_system(0).ok_or("the client is not mounted")?;
    let write = cluster.begin_on_client(0, async move {
        let data = Bytes::from(vec![2; (BLOCKS * BLOCK_BYTES) as usize]);
        let written = file_system.write(&file, 0, data, WriteOptions::default()).await;
        file_system.close(file, None).await.and(written)
    });
    let spread = (MOMENTS.1 - MOMENTS.0).as_nanos() as u64;
    let moment = MOMENTS.0 + Duration::from_nanos(Random::for_purpose(cluster.seed(), "death").below(spread));
    cluster.within(moment, pending::<()>()).await;
    cluster.kill_server(Role::Oss(0));
    cluster.ready().await?;
    match checkers::finishes(cluster, "the write", write).await? {
        Some(Ok(written)) if written as u64 == BLOCKS * BLOCK_BYTES => {}
        outcome => return Err(format!("the write: {outcome:?}")),
    }
    let look = |file_system: Arc<FileSystem>| async move { file_system.get_attributes(inode, None).await };
    let attributes = on(cluster, 1, look).await?;
    Ok((attributes.size, attributes.blocks))
}

#[test]
fn an_ost_dies_in_the_middle_of_a_write_of_several_batches() {
    for seed in 0..SEEDS {
        let found = with_cluster(seed, (1, 2), |cluster| Box::pin(size_and_blocks(cluster)));
        assert_eq!(found, Ok((BLOCKS * BLOCK_BYTES, BLOCKS * BLOCK_BYTES / 512)), "seed {seed}");
    }
}
