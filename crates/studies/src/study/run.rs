//! Running a job in virtual time: the shipped client and server code on modelled disks and links.
//!
//! Every job gets a cluster of its own. Tasks are spread over clients in blocks of ranks, as MPI
//! does by default. A phase starts when every task has the file open, and ends when the last one
//! has finished; writing ends with fsync. All data are zeros ([`crate::model::spindle`]).
//!
//! Downside: unless the testbed has processors, they cost nothing, and a cluster is only as slow as
//! its disks and links.

use std::{sync::Arc, time::Duration};

use client::{FileSystem, NewNode, OpenFile, WriteOptions};
use lab::{
    Simulation,
    cluster::{Cluster, ClusterOptions},
    executor::RunLimits,
    log::EventLog,
    processors::Costs,
    server::{Engines, Role, Serving, Settings},
};
use layout::{FileSystemDefault, LayoutSpec, ResolvedCount};
use oss::OstOptions;
use rpc::{
    ImportOptions,
    message::mdt::{OpenFlags, open_flag},
};
use types::{Credentials, FsResult, InodeNumber, NodeKind};

use super::{Job, Outcome, Pattern};
use crate::model::{
    HardwareModel, ModelledHardware, NodeModels, costs,
    links::LinkModel,
    raid::{RaidModel, drive::DriveModel, read_ahead::ReadAheadModel},
    spindle::{ReadAhead, SpindleModel, zeros},
};

/// A cluster to run on.
#[derive(Clone, Copy, Debug)]
pub struct Testbed {
    /// MDTs.
    pub mdts: u16,
    /// OSTs.
    pub osts: u16,
    /// OSTs that are targets of one process, and share its services and cores.
    pub osts_per_server: u16,
    /// Client hosts.
    pub clients: u16,
    /// Disks and links.
    pub hardware: HardwareModel,
    /// How far clients read ahead of what is touched of a mapped file, at most; 0: the next window,
    /// late.
    pub mapping_ahead_bytes: u64,
    /// Requests of one call do not leave a client in the order of their offsets, but each group of
    /// as many as may be in flight in an order of its own (E2 only).
    pub out_of_order: bool,
}

impl Testbed {
    /// E1's: 64 OSTs of three drives on 8 OSS, 16 clients, 6 routers, FDR InfiniBand. What the
    /// paper does not say is assumed; docs/decisions/0011-models.md says from what.
    pub fn e1(cache: bool) -> Self {
        let links = LinkModel {
            machine_bytes_per_second: 6_000_000_000,
            routers: 6,
            router_bytes_per_second: 6_000_000_000,
            osts_per_machine: 8,
        };
        let spindle = SpindleModel {
            positioning: Duration::from_millis(8),
            bytes_per_second: 300_000_000,
            gather_bytes: if cache { 16 << 20 } else { 8 << 20 },
            read_ahead: cache.then_some(ReadAhead {
                window_bytes_min: 2 << 20,
                window_bytes_max: 8 << 20,
                streams_max: 32,
            }),
            // A file of 4 TB does not fit.
            memory_bytes: 0,
        };
        let hardware = HardwareModel::new(links, spindle);
        let (osts, clients) = (super::e1::OSTS as u16, super::e1::CLIENTS as u16);
        Self { mdts: 1, osts, osts_per_server: 1, clients, hardware, mapping_ahead_bytes: 0, out_of_order: false }
    }

    /// The same for data that the servers' memory may hold: `bytes` of it in each of them.
    pub fn e1_with_memory(bytes: u64) -> Self {
        let mut testbed = Self::e1(true);
        testbed.hardware.spindle.memory_bytes = bytes;
        testbed
    }

    /// E3's: 80 OSTs of 350 MB/s on 20 OSS of 700 MB/s. Its clients sit on a torus that was not the
    /// limit: one per OST here, with fast links.
    pub fn e3() -> Self {
        let links = LinkModel {
            machine_bytes_per_second: 700_000_000,
            routers: 0,
            router_bytes_per_second: 1,
            osts_per_machine: super::e3::OSTS_PER_SERVER,
        };
        let spindle = SpindleModel {
            positioning: Duration::from_millis(8),
            bytes_per_second: 350_000_000,
            gather_bytes: 16 << 20,
            read_ahead: Some(ReadAhead { window_bytes_min: 2 << 20, window_bytes_max: 2 << 20, streams_max: 32 }),
            // What is read was not written just before.
            memory_bytes: 0,
        };
        let hardware = HardwareModel::new(links, spindle);
        let osts = super::e3::OSTS as u16;
        Self { mdts: 1, osts, osts_per_server: 1, clients: osts, hardware, mapping_ahead_bytes: 0, out_of_order: false }
    }

    /// E2's: one OSS with 4 OSTs on RAID 6 of 8 and 2 drives, with the write caches of the drives
    /// on. `costs`: of processor time, `None`: it costs nothing. `misaligned_bytes`: where files
    /// begin on an array, after a stripe does.
    pub fn e2(costs: Option<Costs>, misaligned_bytes: u64) -> Self {
        use super::e2::{CLIENT_CORES, OSTS, SERVER_CORES};
        let raid = RaidModel {
            data_drives: 8,
            parity_drives: 2,
            chunk_bytes: 128 << 10,
            // md: 256 pages of 4 KiB for each drive.
            cache_stripes: (256 * 4096) / (128 << 10),
            misaligned_bytes,
            drive: DriveModel {
                positioning: Duration::from_millis(8),
                rotation: Duration::from_micros(8333),
                bytes_per_second: 100_000_000,
                write_cache_bytes: 16 << 20,
                read_ahead: None,
            },
        };
        // The links of E1's testbed, which are not the limit. Objects are on arrays.
        let Testbed { hardware: HardwareModel { links, spindle, .. }, .. } = Self::e1(false);
        let links = LinkModel { routers: 0, osts_per_machine: 1, ..links };
        let processors = costs.map(|costs| NodeModels {
            server: costs::node(SERVER_CORES, costs),
            client: costs::node(CLIENT_CORES, costs),
        });
        let hardware = HardwareModel { raid: Some(raid), processors, ..HardwareModel::new(links, spindle) };
        Self {
            mdts: 1,
            osts: OSTS,
            osts_per_server: OSTS,
            clients: 8,
            hardware,
            mapping_ahead_bytes: 0,
            out_of_order: false,
        }
    }

    /// The same with clients whose requests leave out of order.
    pub fn with_requests_out_of_order(self) -> Self {
        Self { out_of_order: true, ..self }
    }

    /// The same with the write caches of all drives off.
    pub fn without_write_caches(mut self) -> Self {
        if let Some(raid) = &mut self.hardware.raid {
            raid.drive.write_cache_bytes = 0;
        }
        self
    }

    /// The same with arrays that read ahead: 4 MiB on each drive for 64 streams, 2.5 GiB in all.
    pub fn with_read_ahead(mut self) -> Self {
        if let Some(raid) = &mut self.hardware.raid {
            let gap_bytes = raid.parity_drives * raid.chunk_bytes;
            raid.drive.read_ahead = Some(ReadAheadModel { bytes: 4 << 20, streams_max: 64, gap_bytes });
        }
        self
    }
}

/// Bounds that only a hang reaches.
pub(crate) const LIMITS: RunLimits = RunLimits { virtual_time: Duration::from_secs(100 * 3600), steps: u64::MAX / 2 };

/// Runs one job; the log of a run that fails is of no use here, its reason is.
pub fn run(job: &Job, testbed: Testbed, seed: u64) -> Result<Vec<Outcome>, String> {
    in_world(job, testbed, seed, |world| async move {
        let operations = (0..world.job.tasks).map(|rank| world.job.transfers(rank).count() as u64).sum();
        let mut outcomes = Vec::new();
        for phase in ["write", "read"] {
            let job = world.job.clone();
            let seconds = world.all(phase, move |task, rank| task.transfer(job.clone(), rank, phase)).await?;
            let (job, bytes) = (world.job.name.clone(), world.job.bytes());
            outcomes.push(Outcome { job, phase, bytes, operations, seconds });
        }
        Ok(outcomes)
    })
}

/// Runs `work` in a world of its own, in which every task of the job has its file open.
pub(super) fn in_world<F, T>(
    job: &Job,
    testbed: Testbed,
    seed: u64,
    work: impl FnOnce(World) -> F + Send + 'static,
) -> Result<T, String>
where
    F: Future<Output = Result<T, String>> + Send,
    T: Send + 'static,
{
    let job = job.clone();
    on_cluster(testbed, seed, move |cluster, hardware| async move {
        let tasks = open(&cluster, &job).await?;
        work(World { job: Arc::new(job), cluster, hardware, tasks }).await
    })
}

/// Runs `work` on a cluster of its own, which is ready.
pub(super) fn on_cluster<F, T>(
    testbed: Testbed,
    seed: u64,
    work: impl FnOnce(Cluster, Arc<ModelledHardware>) -> F + Send + 'static,
) -> Result<T, String>
where
    F: Future<Output = Result<T, String>> + Send,
    T: Send + 'static,
{
    let simulation = Simulation::new(seed);
    let inner = simulation.clone();
    let ran = simulation.run(LIMITS, async move {
        let log = EventLog::new(&inner);
        let options = ClusterOptions {
            mdts: testbed.mdts,
            osts: testbed.osts,
            osts_per_server: testbed.osts_per_server,
            clients: testbed.clients,
            settings: settings(),
        };
        let hardware = Arc::new(ModelledHardware::new(testbed.hardware));
        let cluster = Cluster::start_on(Some(&*hardware), &inner, &log, seed, options).await?;
        all_osts_known(&cluster, testbed.osts).await?;
        work(cluster, hardware).await
    });
    simulation.end();
    ran.map_err(|stuck| stuck.to_string())?
}

/// A cluster with a job's tasks on its clients.
pub(super) struct World {
    /// What runs.
    pub job: Arc<Job>,
    pub(super) cluster: Cluster,
    /// What it runs on.
    pub(super) hardware: Arc<ModelledHardware>,
    tasks: Vec<Task>,
}

impl World {
    /// Lets all tasks work at once; the seconds until the last one is done.
    pub(super) async fn all<F>(&self, phase: &str, work: impl Fn(Task, u32) -> F) -> Result<f64, String>
    where
        F: Future<Output = FsResult<()>> + Send + 'static,
    {
        let work = |(rank, task): (usize, &Task)| (task.client, work(task.clone(), rank as u32));
        let took = all_at_once(&self.cluster, self.tasks.iter().enumerate().map(work)).await;
        took.map_err(|error| format!("{} {phase}: {error}", self.job.name))
    }

    /// Lets all tasks begin; nothing waits for them.
    pub(super) fn begin<F>(&self, work: impl Fn(Task, u32) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        for (rank, task) in self.tasks.iter().enumerate() {
            drop(self.cluster.begin_on_client(task.client, work(task.clone(), rank as u32)));
        }
    }
}

/// Begins all work, each on its client; the seconds until the last one is done.
pub(super) async fn all_at_once<F>(cluster: &Cluster, work: impl Iterator<Item = (u16, F)>) -> Result<f64, String>
where
    F: Future<Output = FsResult<()>> + Send + 'static,
{
    let begun = cluster.simulation().now();
    let running: Vec<_> = work.map(|(client, work)| cluster.begin_on_client(client, work)).collect();
    for outcome in running {
        outcome.await.ok_or("a client died")?.map_err(|error| error.to_string())?;
    }
    Ok(cluster.simulation().now().since(begun).as_secs_f64())
}

/// Waits until the MDT has learned of every OST: a file made before has fewer stripes than asked
/// for.
pub(crate) async fn all_osts_known(cluster: &Cluster, osts: u16) -> Result<(), String> {
    let known = || {
        let reported = |serving: &Serving| {
            let views = serving.mdt.iter().flat_map(|mdt| mdt.osts());
            views.filter(|(_, view)| view.report.is_some()).count()
        };
        cluster.inspect(Role::Mds(0), reported).unwrap_or(0)
    };
    for _ in 0..1000 {
        if known() >= usize::from(osts) {
            return Ok(());
        }
        cluster.simulation().sleep(Duration::from_millis(100)).await;
    }
    Err(format!("the metadata server knows {} of {osts} targets", known()))
}

/// A task with its file open.
#[derive(Clone)]
pub(super) struct Task {
    client: u16,
    pub(super) file_system: Arc<FileSystem>,
    pub(super) file: Arc<OpenFile>,
}

impl Task {
    /// Reads bytes of the file; they are zeros.
    pub(super) async fn read(&self, offset: u64, bytes: u64) -> FsResult<()> {
        self.file_system.read(&self.file, offset, bytes as usize).await.map(drop)
    }

    /// Writes its block, durably, or reads it.
    pub(super) async fn transfer(self, job: Arc<Job>, rank: u32, phase: &'static str) -> FsResult<()> {
        let zeros = zeros(job.transfer_bytes as usize);
        for (offset, bytes) in job.transfers(rank) {
            if phase == "write" {
                let data = zeros.slice(..bytes as usize);
                self.file_system.write(&self.file, offset, data, WriteOptions::default()).await?;
            } else {
                self.read(offset, bytes).await?;
            }
        }
        if phase == "write" { self.file_system.fsync(&self.file, false).await } else { Ok(()) }
    }
}

/// Makes the files and opens them for every task, on the client it runs on. A shared file gets its
/// length before, as in the live runs (`stria bench`).
async fn open(cluster: &Cluster, job: &Job) -> Result<Vec<Task>, String> {
    let clients = cluster.clients();
    let mut inodes = Vec::new();
    for file in 0..job.files() {
        inodes.push(create(cluster, &format!("file.{file}"), job.striping.spec()).await?);
    }
    if let (Pattern::Shared, [inode]) = (job.pattern, inodes.as_slice()) {
        set_length(cluster, *inode, job.bytes()).await?;
    }
    let mut tasks = Vec::new();
    for rank in 0..job.tasks {
        let client = clients[rank as usize * clients.len() / job.tasks as usize];
        let (file_system, _) = cluster.file_system(client).ok_or("no client")?;
        let (inode, opener) = (inodes[job.place(rank).0 as usize], file_system.clone());
        let flags = OpenFlags(open_flag::READ | open_flag::WRITE);
        let opened = async move { opener.open(&Credentials::root(), inode, flags).await };
        let opened = cluster.on_client(client, opened).await;
        let file = opened.ok_or("a client died")?.map_err(|error| format!("opening a file: {error}"))?;
        tasks.push(Task { client, file_system, file });
    }
    Ok(tasks)
}

/// Makes a file of this layout, on the first client.
pub(super) async fn create(cluster: &Cluster, name: &str, layout: LayoutSpec) -> Result<InodeNumber, String> {
    let client = *cluster.clients().first().ok_or("no client")?;
    let (file_system, _) = cluster.file_system(client).ok_or("no client")?;
    let node = NewNode {
        parent: InodeNumber::ROOT,
        name: name.as_bytes().to_vec(),
        kind: NodeKind::Regular,
        mode: 0o600,
        umask: 0,
        layout: Some(layout),
    };
    let created = cluster.on_client(client, async move { file_system.create(&Credentials::root(), node).await }).await;
    let attributes = created.ok_or("a client died")?.map_err(|error| format!("creating a file: {error}"))?;
    Ok(attributes.inode)
}

/// Gives a file its length, on the first client.
async fn set_length(cluster: &Cluster, inode: InodeNumber, bytes: u64) -> Result<(), String> {
    let client = *cluster.clients().first().ok_or("no client")?;
    let (file_system, _) = cluster.file_system(client).ok_or("no client")?;
    let set = async move { file_system.truncate(&Credentials::root(), inode, None, bytes).await };
    let outcome = cluster.on_client(client, set).await.ok_or("a client died")?;
    outcome.map(drop).map_err(|error| format!("setting a file's length: {error}"))
}

/// Settings as shipped, but for timeouts: a queue of modelled disks may be longer than any real
/// one.
pub(crate) fn settings() -> Settings {
    let timeout = Duration::from_secs(100_000);
    Settings {
        lease: timeout,
        lock_timeout: timeout,
        import: ImportOptions { timeout, resend: Duration::from_secs(1000), ..ImportOptions::default() },
        store: kv::Config { zero_segments: false, ..kv::Config::default() },
        mdt_audits: false,
        split_names: None,
        ost: OstOptions::default(),
        engines: Engines::HostFiles,
        layout: FileSystemDefault { stripe_count: ResolvedCount::AtMost(1), stripe_bytes: 1 << 20, automatic: false },
        upper_cache: None,
    }
}

#[cfg(test)]
mod tests {
    use layout::StripeCount;

    use super::*;
    use crate::study::Striping;

    /// Two targets of 100 MB/s behind links of 150 MB/s.
    fn testbed() -> Testbed {
        let spindle = SpindleModel {
            positioning: Duration::from_millis(5),
            bytes_per_second: 100_000_000,
            gather_bytes: 8 << 20,
            read_ahead: Some(ReadAhead { window_bytes_min: 1 << 20, window_bytes_max: 1 << 20, streams_max: 8 }),
            memory_bytes: 0,
        };
        let links = LinkModel {
            machine_bytes_per_second: 150_000_000,
            routers: 0,
            router_bytes_per_second: 1,
            osts_per_machine: 1,
        };
        let hardware = HardwareModel::new(links, spindle);
        Testbed {
            mdts: 1,
            osts: 2,
            osts_per_server: 1,
            clients: 2,
            hardware,
            mapping_ahead_bytes: 0,
            out_of_order: false,
        }
    }

    fn job(stripe_count: u32, tasks: u32) -> Job {
        Job {
            name: "job".to_owned(),
            setting: String::new(),
            striping: Striping::plain(StripeCount::Exactly(stripe_count), 1 << 20),
            pattern: Pattern::Shared,
            tasks,
            task_bytes: 16 << 20,
            transfer_bytes: 1 << 20,
        }
    }

    #[test]
    fn two_targets_are_twice_as_fast_as_one_and_a_run_repeats() {
        let one = run(&job(1, 4), testbed(), 1).unwrap();
        let two = run(&job(2, 4), testbed(), 1).unwrap();
        for (one, two) in one.iter().zip(&two) {
            let faster = one.seconds / two.seconds;
            assert!((1.6..2.4).contains(&faster), "{} is {faster} times as fast: {one:?} {two:?}", one.phase);
        }
        let rate = one[0].bytes as f64 / one[0].seconds;
        assert!((70e6..100e6).contains(&rate), "a little below the disks' rate: {rate}");
        assert_eq!(run(&job(2, 4), testbed(), 1).unwrap(), two);
    }

    #[test]
    fn one_client_is_bound_by_its_link() {
        let testbed = Testbed { clients: 1, ..testbed() };
        let outcomes = run(&job(2, 4), testbed, 1).unwrap();
        let rate = outcomes[0].bytes as f64 / outcomes[0].seconds;
        assert!((100e6..150e6).contains(&rate), "{rate}");
    }
}
