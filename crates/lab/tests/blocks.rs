//! An OST dies in the middle of a write that it does in several batches, at many moments in virtual time: the client asks its
//! next start for the whole of it, and the blocks of the file are those of its objects all the same.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use client::{FileSystem, OpenFile, WriteOptions};
use lab::{
    Random, Simulation, checkers,
    cluster::{Cluster, ClusterOptions},
    executor::RunLimits,
    log::EventLog,
    seed::{set_default_layout, settings},
    server::Role,
};
use layout::{LayoutSpec, StripeSpec};
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::Entropy;
use types::{Credentials, FsResult, InodeNumber, OstIndex, limits::BLOCK_BYTES};

const READ_WRITE: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);
const SEEDS: u64 = 100;
/// Blocks of the write: those with even numbers are there before, and the journal of the labs' OSTs takes a few of them at once.
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
async fn figures(cluster: &Cluster) -> Result<(u64, u64), String> {
    set_default_layout(cluster, LayoutSpec::Plain(StripeSpec { osts: vec![OstIndex(0)], ..StripeSpec::default() }))
        .await?;
    let (file_system, _) = cluster.file_system(0).ok_or("the client is not mounted")?;
    let prepared = cluster.on_client(0, prepare(file_system.clone())).await.ok_or("the client died")?;
    let file = prepared.map_err(|error| format!("a file with every other block: {error}"))?;
    let inode = file.inode();
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
    let (file_system, _) = cluster.file_system(1).ok_or("the client is not mounted")?;
    let found = cluster.on_client(1, async move { file_system.get_attributes(inode, None).await }).await;
    let attributes = found.ok_or("the client died")?.map_err(|error| error.to_string())?;
    Ok((attributes.size, attributes.blocks))
}

#[test]
fn an_ost_dies_in_the_middle_of_a_write_of_several_batches() {
    // Unoptimised futures are deep.
    const STACK_BYTES: usize = 256 << 20;
    for seed in 0..SEEDS {
        let run = move || {
            let simulation = Simulation::new(seed);
            let log = EventLog::new(&simulation);
            let main = {
                let (simulation, log) = (simulation.clone(), log.clone());
                async move {
                    let options = ClusterOptions { osts: 1, clients: 2, settings: settings(seed) };
                    let cluster = Cluster::start(&simulation, &log, seed, options).await?;
                    tokio::select! {
                        biased;
                        reason = cluster.failed() => Err(reason),
                        found = figures(&cluster) => found,
                    }
                }
            };
            let ran = simulation.run(RunLimits::default(), main);
            simulation.end();
            ran.map_err(|stuck| stuck.to_string()).and_then(|outcome| outcome)
        };
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).expect("a thread");
        let found = thread.join().expect("the run ends");
        assert_eq!(found, Ok((BLOCKS * BLOCK_BYTES, BLOCKS * BLOCK_BYTES / 512)), "seed {seed}");
    }
}
