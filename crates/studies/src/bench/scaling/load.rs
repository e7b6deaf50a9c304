//! The load of E5 on a [`Cluster`]: the same tasks as in virtual time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use client::NewNode;
use rt::Spawn;
use types::{Credentials, FsResult, InodeNumber, NodeKind};

use super::cluster::Cluster;
use crate::{
    bench::workers::own_cpu,
    study::e5::{
        Cell, Outcome, PHASES,
        task::{self, Task},
    },
};

/// Until MDTs have delivered to each other what they decided: after their next commit, a second
/// later.
const SETTLED: Duration = Duration::from_secs(2);
/// Until the first file can be made: MDTs know an OST by then.
const USABLE_WITHIN: Duration = Duration::from_secs(30);
/// A task that takes longer has failed.
const TASK_WITHIN: Duration = Duration::from_secs(300);
/// Until clients have given all locks back.
const RETURNED_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// What is the same in all cells.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Files of each task.
    pub task_files: u64,
    /// Hundredths of a processor that each metadata server has.
    pub percent: u32,
}

/// Runs cells on a cluster that has servers for all of them, phase by phase; in each, what is
/// compared runs one after the other, in this order. What each phase of each came to.
pub fn run(cluster: &Cluster, cells: &[Cell], amount: Amount) -> anyhow::Result<Vec<(Cell, Outcome)>> {
    let mut prepared = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        prepared.push((*cell, prepare(cluster, *cell, number).with_context(|| cell.name())?));
    }
    std::thread::sleep(SETTLED);
    let mut outcomes = Vec::new();
    for phase in PHASES {
        for (cell, tasks) in &prepared {
            let outcome = measure(cluster, *cell, tasks, phase, amount).with_context(|| cell.name())?;
            outcomes.push((*cell, outcome));
        }
    }
    Ok(outcomes)
}

/// Makes the directories of a cell, and its tasks, which are on clients in turn.
fn prepare(cluster: &Cluster, cell: Cell, number: usize) -> anyhow::Result<Vec<Task>> {
    let first = cluster.clients.first().context("no client")?;
    let name = |directory: usize| format!("cell.{number}.{directory}").into_bytes();
    let mut made = Vec::new();
    for (directory, place) in task::places(cell).into_iter().enumerate() {
        made.push(cluster.cores.block_on(task::make_directory(first, name(directory), place))?);
        wait_until_usable(cluster, made[directory])?;
    }
    let task = |rank: u32| {
        let file_system = cluster.clients[rank as usize % cluster.clients.len()].clone();
        let directory = task::directory_of(cell, rank);
        Task { file_system, directory: made[directory], directory_name: name(directory), rank }
    };
    let tasks: Vec<Task> = (0..cell.load.tasks()).map(task).collect();
    all_at_once(cluster, tasks.iter().cloned().map(Task::find_directory), || ())?;
    Ok(tasks)
}

/// Until files can be made in a directory, on all of its MDTs.
fn wait_until_usable(cluster: &Cluster, directory: InodeNumber) -> anyhow::Result<()> {
    /// So many names are on every shard of a striped directory, as good as certainly.
    const NAMES: u32 = 64;
    let (client, root, begun) = (&cluster.clients[0], Credentials::root(), Instant::now());
    let made = async |name: &[u8]| -> FsResult<()> {
        let (name, kind) = (name.to_vec(), NodeKind::Regular);
        let node = NewNode { parent: directory, name: name.clone(), kind, mode: 0o644, umask: 0, layout: None };
        client.create(&root, node).await?;
        client.unlink(&root, directory, &name).await
    };
    for number in 0..NAMES {
        let name = format!("probe.{number}").into_bytes();
        while let Err(error) = cluster.cores.block_on(made(&name)) {
            ensure!(begun.elapsed() < USABLE_WITHIN, "no file can be made: {error}");
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// Does all work at once, and looks at something as soon as the first piece has ended.
fn all_at_once<F, T>(
    cluster: &Cluster,
    work: impl Iterator<Item = F>,
    at_first_end: impl FnOnce() -> T,
) -> anyhow::Result<T>
where
    F: Future<Output = FsResult<()>> + Send + 'static,
{
    let (tell, told) = mpsc::channel();
    let mut pieces = 0;
    for piece in work {
        let tell = tell.clone();
        pieces += 1;
        let told = async move {
            let outcome = piece.await;
            // Nobody listens any more after a failure.
            let _ = tell.send(outcome);
        };
        cluster.cores.spawn_spread("load", Box::pin(told));
    }
    let end = || -> anyhow::Result<()> {
        told.recv_timeout(TASK_WITHIN).map_err(|error| anyhow!("a task does not end: {error}"))??;
        Ok(())
    };
    if pieces > 0 {
        end()?;
    }
    let seen = at_first_end();
    (1..pieces).try_for_each(|_| end())?;
    Ok(seen)
}

/// What was used and done up to a moment.
struct Usage {
    moment: Instant,
    operations: u64,
    requests: u64,
    servers: Vec<Duration>,
    own: Duration,
}

impl Usage {
    fn of(cluster: &Cluster, operations: &AtomicU64) -> Self {
        Self {
            moment: Instant::now(),
            operations: operations.load(Ordering::Relaxed),
            requests: task::requests_of(&cluster.clients).values().sum(),
            servers: cluster.server_times(),
            own: own_cpu(),
        }
    }
}

/// One phase under the limit, and its locks given back without one. It is measured until the first
/// task has ended: from then on there is not the same to do for all servers.
fn measure(
    cluster: &Cluster,
    cell: Cell,
    tasks: &[Task],
    phase: &'static str,
    amount: Amount,
) -> anyhow::Result<Outcome> {
    let operations = Arc::new(AtomicU64::new(0));
    let work = |task: Task| {
        let operations = operations.clone();
        async move {
            for file in 0..amount.task_files {
                task.operate(phase, file).await?;
                operations.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    };
    cluster.limit(Some(amount.percent))?;
    let before = Usage::of(cluster, &operations);
    let after = all_at_once(cluster, tasks.iter().cloned().map(work), || Usage::of(cluster, &operations));
    cluster.limit(None)?;
    let after = after.with_context(|| phase)?;
    let seconds = (after.moment - before.moment).as_secs_f64();
    let quota = seconds * f64::from(amount.percent) / 100.0;
    // The others have nothing to do.
    let servers = usize::from(cell.servers);
    let uses = after.servers.iter().zip(&before.servers).take(servers);
    let uses = uses.map(|(after, before)| after.saturating_sub(*before).as_secs_f64() / quota.max(1e-9));
    let processors = std::thread::available_parallelism()?.get() as f64;
    give_locks_back(cluster)?;
    Ok(Outcome {
        cell: cell.name(),
        phase,
        operations: after.operations,
        seconds,
        requests: (after.requests - before.requests) as f64 / after.operations.max(1) as f64,
        server_use: uses.clone().fold(0.0, f64::max),
        server_use_min: uses.fold(f64::INFINITY, f64::min),
        node_use: after.own.saturating_sub(before.own).as_secs_f64() / seconds.max(1e-9) / processors,
    })
}

/// As benchmarks of Lustre do between phases: otherwise a stat would be no request.
fn give_locks_back(cluster: &Cluster) -> anyhow::Result<()> {
    let (mdts, begun) = (cluster.mdts(), Instant::now());
    cluster.clients.iter().try_for_each(|client| task::give_locks_back(client, mdts))?;
    while cluster.clients.iter().any(|client| task::has_locks(client, mdts)) {
        ensure!(begun.elapsed() < RETURNED_WITHIN, "clients keep locks");
        std::thread::sleep(POLL);
    }
    Ok(())
}
