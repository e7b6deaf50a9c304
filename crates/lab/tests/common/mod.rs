//! Scenarios on whole clusters, each in a world of its own.
#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;

use client::FileSystem;
use lab::{
    Simulation,
    cluster::{Cluster, ClusterOptions},
    drawn::settings,
    executor::RunLimits,
    invariants::Watch,
    log::{self, EventLog},
    server::Role,
};
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::BoxFuture;

pub const READ_WRITE: OpenFlags = OpenFlags(open_flag::READ | open_flag::WRITE);

/// What happens to an MDT while it is used.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Nothing,
    Dies(u16),
    LosesPower(u16),
}

impl Fault {
    pub fn happen(self, cluster: &Cluster) {
        match self {
            Fault::Nothing => {}
            Fault::Dies(mdt) => {
                cluster.kill_server(Role::Mds(mdt));
                cluster.start_server(Role::Mds(mdt));
            }
            Fault::LosesPower(mdt) => cluster.lose_power(Role::Mds(mdt)),
        }
    }
}

/// Runs a scenario on a cluster of so many OSTs and clients, with the settings of this seed, while
/// all invariants are watched. What it says if it fails ends with the last events.
pub fn with_cluster<T: Send + 'static>(
    seed: u64,
    (osts, clients): (u16, u16),
    scenario: impl for<'c> FnOnce(&'c Cluster) -> BoxFuture<'c, Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    with_options(
        seed,
        ClusterOptions { mdts: 1, osts, osts_per_server: 1, clients, settings: settings(seed) },
        scenario,
    )
}

/// As [`with_cluster`], on a cluster with these options.
pub fn with_options<T: Send + 'static>(
    seed: u64,
    options: ClusterOptions,
    scenario: impl for<'c> FnOnce(&'c Cluster) -> BoxFuture<'c, Result<T, String>> + Send + 'static,
) -> Result<T, String> {
    // Unoptimised futures are deep.
    const STACK_BYTES: usize = 256 << 20;
    let run = move || {
        let simulation = Simulation::new(seed);
        let log = EventLog::new(&simulation);
        let main = {
            let (simulation, log) = (simulation.clone(), log.clone());
            async move {
                let cluster = Cluster::start(&simulation, &log, seed, options).await?;
                Watch::begin(&cluster);
                tokio::select! {
                    biased;
                    reason = cluster.failed() => Err(reason),
                    outcome = scenario(&cluster) => outcome,
                }
            }
        };
        let ran = simulation.run(RunLimits::default(), main);
        simulation.end();
        let outcome = ran.map_err(|stuck| stuck.to_string()).and_then(|outcome| outcome);
        outcome.map_err(|reason| format!("seed {seed}: {reason}\n{}", log::tail(&log.text(), 40)))
    };
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(run).expect("a thread");
    thread.join().expect("the run ends")
}

/// Runs `work` on a client.
pub async fn on<T, E, F>(cluster: &Cluster, client: u16, work: impl FnOnce(Arc<FileSystem>) -> F) -> Result<T, String>
where
    T: Send + 'static,
    E: ToString + Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let (file_system, _) = cluster.file_system(client).ok_or("the client is not mounted")?;
    let outcome = cluster.on_client(client, work(file_system)).await.ok_or("the client died")?;
    outcome.map_err(|error| error.to_string())
}
