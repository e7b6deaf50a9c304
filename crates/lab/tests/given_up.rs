//! A metadata server was suspended while it granted something; its client gave up, and the server
//! resumed and granted it. The grant was not used, and all other clients waited for it until that
//! client unmounted.

use std::{sync::Arc, time::Duration};

use client::FileSystem;
use lab::{
    Simulation,
    cluster::{Cluster, ClusterOptions},
    device::DiskPart,
    drawn::settings,
    executor::RunLimits,
    log::EventLog,
    server::Role,
};
use rpc::message::mdt::{OpenFlags, open_flag};
use types::{Credentials, FsError, FsResult, InodeNumber};

const SEED: u64 = 1;
const TIMEOUT: Duration = Duration::from_secs(2);
const READ_WRITE: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);

async fn truncate(file_system: Arc<FileSystem>, inode: InodeNumber, size: u64) -> FsResult<()> {
    file_system.truncate(&Credentials::root(), inode, None, size).await.map(drop)
}

/// What becomes of a truncation that the MDT grants after its client gave up, and of those that
/// both clients try then.
async fn truncations(cluster: &Cluster) -> Result<[Option<FsResult<()>>; 3], String> {
    let (one, other) = (cluster.file_system(0).ok_or("not mounted")?.0, cluster.file_system(1).ok_or("not mounted")?.0);
    let creator = one.clone();
    let create = async move {
        let created =
            creator.create_open(&Credentials::root(), InodeNumber::ROOT, b"file", 0o644, 0, READ_WRITE).await?;
        let inode = created.file.inode();
        creator.close(created.file, None).await.map(|()| inode)
    };
    let inode = cluster.on_client(0, create).await.ok_or("died")?.map_err(|error| error.to_string())?;

    // It is at work when it is stopped: what it has begun it ends when it continues.
    cluster.hang(Role::Mds(0), DiskPart::Tables, true);
    let first = cluster.begin_on_client(0, truncate(one.clone(), inode, 1));
    cluster.simulation().sleep(Duration::from_millis(50)).await;
    let stopped = cluster.stop_server(Role::Mds(0)).ok_or("the server is down")?;
    let first = first.await;
    cluster.hang(Role::Mds(0), DiskPart::Tables, false);
    stopped.resume();

    let soon = Duration::from_secs(60);
    let second = cluster.within(soon, cluster.on_client(1, truncate(other, inode, 2))).await.flatten();
    let third = cluster.within(soon, cluster.on_client(0, truncate(one, inode, 3))).await.flatten();
    Ok([first, second, third])
}

#[test]
fn a_lock_granted_to_who_gave_up_is_in_nobodys_way() {
    // Unoptimised futures are deep.
    const STACK_BYTES: usize = 256 << 20;
    let run = || {
        let simulation = Simulation::new(SEED);
        let log = EventLog::new(&simulation);
        let inner = simulation.clone();
        let outcome = simulation.run(RunLimits::default(), async move {
            let mut settings = settings(SEED);
            settings.import.timeout = TIMEOUT;
            let options = ClusterOptions { mdts: 1, osts: 1, osts_per_server: 1, clients: 2, settings };
            let cluster = Cluster::start(&inner, &log, SEED, options).await?;
            truncations(&cluster).await
        });
        simulation.end();
        outcome.expect("nothing gets stuck")
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).expect("a thread");
    let outcome = thread.join().expect("no panic");
    assert!(matches!(outcome, Ok([Some(Err(FsError::Unreachable { .. })), Some(Ok(())), Some(Ok(()))])), "{outcome:?}");
}
