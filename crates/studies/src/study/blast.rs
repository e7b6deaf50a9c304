//! E1's BLAST workload in virtual time: processes each of which searches a whole database of
//! fragments.
//!
//! A fragment is a file, which has the layout of the part of the database that contains its middle.
//! A process maps one fragment after the other and alternates between computing on the data it has
//! and waiting for the next data. [`NodePages`] replaces the kernel: pages that a process of a node
//! has touched are available to the other processes of the node, and when a quarter of a window is
//! left to compute, the next one is fetched (Linux reads around a fault of a mapping, and
//! asynchronously from the last quarter on). With [`Testbed::mapping_ahead_bytes`], as many windows
//! are being fetched ahead of the foremost process as it has touched in the fragment, up to that
//! many bytes (Lustre's clients read up to 40 MiB ahead).
//!
//! Downside: a node's memory evicts nothing, so a database is read once by every node;
//! [`COMPUTE_NS_PER_KIB`] is the same for every query except for a few percent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use client::{FileSystem, OpenFile, WriteOptions};
use lab::{Random, Simulation, cluster::Cluster};
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::Spawn;
use tokio::sync::OnceCell;
use types::{Credentials, FsResult, InodeNumber};

use super::{
    Job, Outcome, Segment, Striping,
    e1::{BLAST_FRAGMENT_BYTES, BLAST_PROCESSES_PER_NODE},
    run::{Testbed, all_at_once, create, on_cluster},
};
use crate::model::spindle::zeros;

/// Time that a process computes for a KiB of the database, on average. Calibrated, see
/// docs/decisions/0011-models.md.
const COMPUTE_NS_PER_KIB: u64 = 925;
/// Per cent of that which a process takes with a fragment: queries differ.
const COMPUTE_PERCENT: std::ops::Range<u64> = 90..111;

/// A part of the database in a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fragment {
    bytes: u64,
    segment: Segment,
}

/// The database of a job: fragments of equal size, `count_min` at least.
fn fragments(job: &Job, count_min: u64) -> Result<Vec<Fragment>, String> {
    let Striping::Segments(segments) = &job.striping else { return Err("a database needs segments".to_owned()) };
    let bytes = job.task_bytes.div_ceil(count_min).min(BLAST_FRAGMENT_BYTES).next_multiple_of(job.transfer_bytes);
    let fragment = |number| {
        let middle = number * bytes + bytes / 2;
        let segment = segments.iter().find(|segment| middle < segment.end).or(segments.last());
        segment.map(|segment| Fragment { bytes, segment: segment.clone() })
    };
    (0..job.task_bytes.div_ceil(bytes)).map(fragment).collect::<Option<_>>().ok_or_else(|| "no segments".to_owned())
}

/// Runs one job, with [`BLAST_PROCESSES_PER_NODE`] on every client. The database has
/// `fragments_min` fragments at least, and is written before, unmeasured.
pub fn run(job: &Job, testbed: Testbed, seed: u64, fragments_min: u64) -> Result<Vec<Outcome>, String> {
    let clients =
        u16::try_from(job.tasks.div_ceil(BLAST_PROCESSES_PER_NODE)).map_err(|_| "too many nodes".to_owned())?;
    let (job, fragments) = (job.clone(), fragments(job, fragments_min)?);
    on_cluster(Testbed { clients, ..testbed }, seed, move |cluster, _| async move {
        let mut files = Vec::new();
        for (number, fragment) in fragments.iter().enumerate() {
            let layout = Striping::Segments(vec![Segment { end: layout::END_OF_FILE, ..fragment.segment.clone() }]);
            files.push((create(&cluster, &format!("fragment.{number}"), layout.spec()).await?, fragment.bytes));
        }
        let database = Arc::new(Database { files, call_bytes: job.transfer_bytes });
        let clients = cluster.clients();
        let place = |number: usize| clients[number % clients.len()];
        let write =
            |number: usize| (place(number), database.clone().write(number, file_system(&cluster, place(number))));
        all_at_once(&cluster, (0..fragments.len()).map(write)).await?;
        let node = |client: &u16| NodePages::new(&database, &cluster, *client, testbed.mapping_ahead_bytes);
        let nodes: Vec<_> = clients.iter().map(node).collect();
        let process = |rank: u32| {
            let node = nodes[(rank / BLAST_PROCESSES_PER_NODE) as usize].clone();
            let random = Random::for_purpose(seed, &format!("queries of {rank}"));
            (node.client, node.search(random))
        };
        let seconds = all_at_once(&cluster, (0..job.tasks).map(process)).await?;
        let bytes: u64 = fragments.iter().map(|fragment| fragment.bytes).sum();
        let (bytes, operations) = (bytes * u64::from(job.tasks), bytes / job.transfer_bytes * u64::from(job.tasks));
        Ok(vec![Outcome { job: job.name, phase: "search", bytes, operations, seconds }])
    })
}

fn file_system(cluster: &Cluster, client: u16) -> Arc<FileSystem> {
    cluster.file_system(client).expect("clients of an experiment do not die").0
}

/// Files of all fragments and their lengths.
struct Database {
    files: Vec<(InodeNumber, u64)>,
    call_bytes: u64,
}

impl Database {
    /// Fills a fragment.
    async fn write(self: Arc<Self>, number: usize, file_system: Arc<FileSystem>) -> FsResult<()> {
        let (inode, bytes) = self.files[number];
        let file = file_system.open(&Credentials::root(), inode, OpenFlags(open_flag::WRITE)).await?;
        for call in 0..bytes / self.call_bytes {
            let data = zeros(self.call_bytes as usize);
            file_system.write(&file, call * self.call_bytes, data, WriteOptions::default()).await?;
        }
        file_system.fsync(&file, false).await?;
        file_system.close(file, None).await
    }
}

/// The database as the processes of a node see it.
struct NodePages {
    client: u16,
    simulation: Simulation,
    file_system: Arc<FileSystem>,
    database: Arc<Database>,
    spawn: Arc<dyn Spawn>,
    /// Windows of every fragment, once they are there.
    windows: Vec<Vec<OnceCell<()>>>,
    /// Of every fragment, after the last window that was read ahead.
    read_ahead: Vec<AtomicUsize>,
    /// Windows that are read ahead at most.
    ahead_max: usize,
}

impl NodePages {
    fn new(database: &Arc<Database>, cluster: &Cluster, client: u16, ahead_bytes: u64) -> Arc<Self> {
        let count = |bytes: u64| (bytes / database.call_bytes) as usize;
        let windows = |(_, bytes): &(InodeNumber, u64)| (0..count(*bytes)).map(|_| OnceCell::new()).collect();
        let (file_system, seams) = cluster.file_system(client).expect("clients of an experiment do not die");
        Arc::new(Self {
            client,
            simulation: cluster.simulation().clone(),
            file_system,
            spawn: seams.spawn,
            windows: database.files.iter().map(windows).collect(),
            read_ahead: database.files.iter().map(|_| AtomicUsize::new(0)).collect(),
            ahead_max: count(ahead_bytes),
            database: database.clone(),
        })
    }

    /// Begins to read what follows a window that is touched, the more the further it is from the
    /// beginning.
    fn ahead_of(self: &Arc<Self>, file: &Arc<OpenFile>, fragment: usize, window: usize) {
        let end = (window + 1 + window.min(self.ahead_max)).min(self.windows[fragment].len());
        let begun = self.read_ahead[fragment].fetch_max(end, Ordering::Relaxed);
        for window in begun.max(window + 1)..end {
            let (this, file) = (self.clone(), file.clone());
            // The next process that needs a window that could not be read tries again, and reports
            // the error.
            let fetch = async move { drop(this.fault(&file, fragment, window).await) };
            self.spawn.spawn("read ahead", Box::pin(fetch));
        }
    }

    /// Waits until a window is there; the first process reads it. After the last one there is
    /// nothing.
    async fn fault(&self, file: &OpenFile, fragment: usize, window: usize) -> FsResult<()> {
        let Some(cell) = self.windows[fragment].get(window) else { return Ok(()) };
        let bytes = self.database.call_bytes;
        let read = || async { self.file_system.read(file, window as u64 * bytes, bytes as usize).await.map(drop) };
        cell.get_or_try_init(read).await.copied()
    }

    /// A process: all fragments, one after the other.
    async fn search(self: Arc<Self>, random: Random) -> FsResult<()> {
        for (fragment, (inode, _)) in self.database.files.iter().enumerate() {
            let user = Credentials::root();
            let file = self.file_system.open(&user, *inode, OpenFlags(open_flag::READ)).await?;
            // A mapping needs the length.
            self.file_system.get_attributes(*inode, Some(&file)).await?;
            let percent = random.within(COMPUTE_PERCENT);
            let window_ns = self.database.call_bytes / 1024 * COMPUTE_NS_PER_KIB * percent / 100;
            for window in 0..self.windows[fragment].len() {
                self.ahead_of(&file, fragment, window);
                self.fault(&file, fragment, window).await?;
                self.simulation.sleep(Duration::from_nanos(window_ns / 4 * 3)).await;
                let ahead = self.fault(&file, fragment, window + 1);
                let (_, fetched) = tokio::join!(self.simulation.sleep(Duration::from_nanos(window_ns / 4)), ahead);
                fetched?;
            }
            self.file_system.close(file, None).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{Scale, e1};

    /// Stripe counts of the fragments of a job of table 5.
    fn counts(number: usize) -> Vec<layout::StripeCount> {
        let study = e1::blast(Scale { bytes: 1000, ..Scale::FULL });
        let fragments = fragments(&study.jobs[number - 1], 12).unwrap();
        assert!(fragments.iter().all(|fragment| fragment.bytes == 7 << 20), "{fragments:?}");
        fragments.into_iter().map(|fragment| fragment.segment.stripe_count).collect()
    }

    #[test]
    fn fragments_lie_as_the_part_says_that_they_are_in() {
        let parts = |first, second, third| {
            let part = |count, times| vec![layout::StripeCount::Exactly(count); times];
            [part(4, first), part(16, second), part(64, third)].concat()
        };
        assert_eq!(counts(1), parts(11, 0, 0));
        assert_eq!(counts(16), parts(4, 3, 4));
        assert_eq!(counts(17), parts(3, 3, 5));
        assert_eq!(counts(18), parts(1, 3, 7));
    }

    #[test]
    fn published_fragments_are_a_gigabyte_at_most() {
        let fragments = fragments(&e1::blast(Scale::FULL).jobs[0], 12).unwrap();
        assert!((78..80).contains(&fragments.len()));
        assert!(fragments.iter().all(|fragment| fragment.bytes <= BLAST_FRAGMENT_BYTES + (1 << 20)));
    }

    #[test]
    fn a_node_reads_the_database_once_and_a_run_repeats() {
        let mut job = e1::blast(Scale { bytes: 5000, ..Scale::FULL }).jobs.swap_remove(0);
        job.tasks = 16;
        // Its layout needs no more.
        let testbed = Testbed { osts: 4, ..Testbed::e1_with_memory(1 << 30) };
        let searched = |job: &Job| run(job, testbed, 1, 3).unwrap();
        let outcomes = searched(&job);
        assert_eq!(searched(&job), outcomes);
        let bytes = outcomes[0].bytes / u64::from(job.tasks);
        let computing = (bytes / 1024 * COMPUTE_NS_PER_KIB) as f64 / 1e9;
        assert!(outcomes[0].seconds > computing * 0.9, "{} s, computing alone {computing} s", outcomes[0].seconds);
        job.tasks = 1;
        let alone = searched(&job)[0].seconds;
        // Every process reads all of it, but a node's memory serves the second one.
        assert!(outcomes[0].seconds < alone * 1.5, "{} s, alone {alone} s", outcomes[0].seconds);
    }
}
