//! A run with numbers that are fixed or tuned, under loads that last: what is written or read in
//! each second, and which numbers the tuners chose.
//!
//! The programs are those of E2: each thread makes calls of 64 MiB, one after the other, and each
//! call is requests of 1 MiB (or less) at once. But they never end, and nothing is synchronised. A
//! file is never overwritten: its blocks are longer than what any run writes. What is read was
//! written before, and is read again from the start at its end; nothing is cached in the models.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lab::{Simulation, server::Role};
use parking_lot::Mutex;
use rpc::message::mgs::TargetRole;
use rt::{BoxFuture, Instant};
use types::{FsResult, OstIndex};

use super::super::{
    Job, Pattern, Striping,
    e2::{self, Load},
    run::{Task, Testbed, World, in_world},
    service_threads,
};

const MIB: u64 = 1 << 20;
/// Bytes of a call, as in E2.
const CALL_BYTES: u64 = 64 * MIB;
/// Bytes of a request, as in E2.
pub const REQUEST_BYTES: u64 = MIB;
/// Bytes of a file that is written, as many as the model of an array takes: a part of it for each
/// thread, which is more than any of them writes in a run.
const WRITTEN_BYTES: u64 = 1 << 40;
/// Bytes of a file that is read.
const READ_BYTES: u64 = 4 << 30;
/// The threads of a client begin so long after each other, as a launcher starts programs. If they
/// began at once, their first calls would take turns request by request, which later ones do not:
/// in the load of 8x16 that lasts for 20 s, and is another load, which does a third less.
const BEGIN_APART: Duration = Duration::from_millis(10);
/// The most service threads that a tuner may choose, and with which it begins by default.
pub const THREADS_MOST: u16 = 256;
/// The same of requests in flight.
pub const IN_FLIGHT_MOST: u16 = 64;

/// What the programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// They write.
    Write,
    /// They read.
    Read,
}

/// A number of service threads, or of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// It stays.
    Fixed(u16),
    /// A tuner begins with it.
    Tuned(u16),
}

/// A load, for so many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// How long it lasts.
    pub seconds: usize,
    /// Clients, and threads on each.
    pub load: Load,
    /// Bytes of a request.
    pub request_bytes: u64,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Stripes of the file.
    pub stripes: u32,
    /// What the programs do.
    pub access: Access,
    /// Loads, one after the other.
    pub stages: Vec<Stage>,
    /// Service threads of `ost_io`.
    pub threads: Number,
    /// Requests in flight from each client to each OST.
    pub in_flight: Number,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Course {
    /// MiB of each client in each second.
    pub seconds: Vec<Vec<f64>>,
    /// Numbers at the end of each second: service threads, and requests in flight of the first
    /// client to an OST of the file.
    pub numbers: Vec<(u16, u16)>,
    /// What the tuners decided, for people.
    pub decisions: Vec<String>,
}

impl Plan {
    fn seconds(&self) -> usize {
        self.stages.iter().map(|stage| stage.seconds).sum()
    }

    /// The stage of a time after the start.
    fn stage(&self, elapsed: Duration) -> Option<Stage> {
        let mut end = Duration::ZERO;
        self.stages.iter().copied().find(|stage| {
            end += Duration::from_secs(stage.seconds as u64);
            elapsed < end
        })
    }

    /// The file, and the tasks of all loads together.
    fn job(&self) -> Job {
        let clients = self.stages.iter().map(|stage| stage.load.clients()).max().unwrap_or(1);
        let threads = self.stages.iter().map(|stage| stage.load.threads()).max().unwrap_or(1);
        let tasks = u32::from(clients) * u32::from(threads);
        let bytes = if self.access == Access::Write { WRITTEN_BYTES } else { READ_BYTES };
        let task_bytes = (bytes / u64::from(tasks)).next_multiple_of(MIB);
        Job {
            name: "tuned".to_owned(),
            setting: String::new(),
            striping: Striping::plain(layout::StripeCount::Exactly(self.stripes), MIB),
            pattern: Pattern::Shared,
            tasks,
            task_bytes,
            transfer_bytes: CALL_BYTES.min(task_bytes),
        }
    }

    /// Runs it.
    pub fn run(&self, testbed: Testbed, seed: u64) -> Result<Course, String> {
        let (plan, job) = (self.clone(), self.job());
        let clients = plan.stages.iter().map(|stage| stage.load.clients()).max().unwrap_or(1);
        let testbed = Testbed { clients, ..testbed };
        in_world(&job, testbed, seed, move |world| async move { plan.run_in(&world, clients).await })
    }

    async fn run_in(self, world: &World, clients: u16) -> Result<Course, String> {
        if self.access == Access::Read {
            world
                .all("write", |task, rank| service_threads::transfer(task, (world.job.clone(), rank), "write", None))
                .await?;
        }
        self.set(world)?;
        let simulation = world.cluster.simulation().clone();
        let programs = Arc::new(Programs {
            begun: simulation.now(),
            job: world.job.clone(),
            moved: (0..clients).map(|_| Arc::default()).collect(),
            failure: Mutex::default(),
            simulation,
            plan: self,
        });
        world.begin(|task, rank| programs.clone().thread(task, rank));
        let mut course = Course::default();
        let mut before = vec![0; usize::from(clients)];
        for second in 1..=programs.plan.seconds() {
            programs.simulation.sleep_until(programs.begun + Duration::from_secs(second as u64)).await;
            if let Some(failure) = programs.failure.lock().take() {
                return Err(format!("after {second} s: {failure}"));
            }
            let now: Vec<u64> = programs.moved.iter().map(|bytes| bytes.load(Relaxed)).collect();
            let moved = now.iter().zip(&before).map(|(now, before)| (now - before) as f64 / MIB as f64);
            course.seconds.push(moved.collect());
            before = now;
            course.numbers.push(numbers(world)?);
        }
        course.decisions = decisions(world);
        Ok(course)
    }

    /// Sets the numbers, as an administrator does while the file system is in use.
    fn set(&self, world: &World) -> Result<(), String> {
        let cores = world.hardware.recent_use(&Role::Oss(0).host());
        let set = world.cluster.inspect(Role::Oss(0), |serving| {
            let service = serving.server.service(oss::SERVICE_IO);
            match self.threads {
                Number::Fixed(threads) => service.set_threads(threads.into()),
                Number::Tuned(start) => {
                    if let Some(cores) = cores {
                        service.tuning().watch_processors(cores);
                    }
                    service.set_threads(THREADS_MOST.into());
                    service.tune_from(start.into());
                }
            }
        });
        set.ok_or("the object storage server is down")?;
        for (_, file_system) in world.cluster.file_systems() {
            for target in (0..e2::OSTS).map(|ost| TargetRole::Ost(OstIndex(ost))) {
                match self.in_flight {
                    Number::Fixed(count) => file_system.set_rpcs_in_flight_max(target, count),
                    Number::Tuned(start) => {
                        file_system.set_rpcs_in_flight_max(target, IN_FLIGHT_MOST);
                        file_system.tune_from(target, start);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The numbers at this moment: requests in flight of the first client to the OST whose tuner
/// decided most, which is one of those that the file is on.
fn numbers(world: &World) -> Result<(u16, u16), String> {
    let threads = world.cluster.inspect(Role::Oss(0), |serving| serving.server.service(oss::SERVICE_IO).threads());
    let threads = threads.ok_or("the object storage server is down")?;
    let (_, first) = world.cluster.file_systems().into_iter().next().ok_or("no client")?;
    let osts = (0..e2::OSTS).map(|ost| TargetRole::Ost(OstIndex(ost)));
    let used = osts.max_by_key(|ost| first.tuning(*ost).map_or(0, |tuning| tuning.log().len()));
    let in_flight = used.and_then(|ost| first.rpcs_in_flight_max(ost)).ok_or("no target")?;
    Ok((threads as u16, in_flight))
}

/// What the tuners of the server and of all clients decided.
fn decisions(world: &World) -> Vec<String> {
    let of_server = world.cluster.inspect(Role::Oss(0), |serving| {
        let tuning = serving.server.service(oss::SERVICE_IO).tuning().clone();
        tuning.log().into_iter().map(|decision| format!("ost_io {}", decision.line())).collect()
    });
    let mut all: Vec<String> = of_server.unwrap_or_default();
    for (client, file_system) in world.cluster.file_systems() {
        for ost in 0..e2::OSTS {
            let tuning = file_system.tuning(TargetRole::Ost(OstIndex(ost)));
            let log = tuning.map(|tuning| tuning.log()).unwrap_or_default();
            all.extend(log.into_iter().map(|decision| format!("client{client} OST{ost} {}", decision.line())));
        }
    }
    all
}

/// The programs of all clients.
struct Programs {
    plan: Plan,
    job: Arc<Job>,
    simulation: Simulation,
    begun: Instant,
    /// Bytes of each client up to now.
    moved: Vec<Arc<AtomicU64>>,
    /// The first failure.
    failure: Mutex<Option<String>>,
}

impl Programs {
    /// A thread of a client, until the end of the run.
    async fn thread(self: Arc<Self>, task: Task, rank: u32) {
        if let Err(error) = self.calls(&task, rank).await {
            self.failure.lock().get_or_insert_with(|| error.to_string());
        }
    }

    /// Its calls, while the load has it.
    async fn calls(&self, task: &Task, rank: u32) -> FsResult<()> {
        let (_, start) = self.job.place(rank);
        let per_client = self.job.tasks / self.moved.len() as u32;
        let (client, thread) = (rank / per_client, rank % per_client);
        self.simulation.sleep_until(self.begun + BEGIN_APART * thread).await;
        let mut done = 0;
        while let Some(stage) = self.plan.stage(self.simulation.now().since(self.begun)) {
            if client >= stage.load.clients().into() || thread >= stage.load.threads().into() {
                self.simulation.sleep(Duration::from_millis(100)).await;
                continue;
            }
            if done + self.job.transfer_bytes > self.job.task_bytes {
                assert_eq!(self.plan.access, Access::Read, "a run writes less than its file is long");
                done = 0;
            }
            let requests = (start + done..start + done + self.job.transfer_bytes).step_by(stage.request_bytes as usize);
            let request = |offset| {
                let moved = self.moved[client as usize].clone();
                Some(transfer(task.clone(), self.plan.access, (offset, stage.request_bytes), moved))
            };
            service_threads::all(requests.map(request).collect()).await?;
            done += self.job.transfer_bytes;
        }
        Ok(())
    }
}

/// A request, which is counted when it is done.
fn transfer(
    task: Task,
    access: Access,
    (offset, bytes): (u64, u64),
    moved: Arc<AtomicU64>,
) -> BoxFuture<'static, FsResult<()>> {
    Box::pin(async move {
        match access {
            Access::Write => service_threads::write(task, offset, bytes).await?,
            Access::Read => task.read(offset, bytes).await?,
        }
        moved.fetch_add(bytes, Relaxed);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::costs::APART, study::tuned::contract};

    fn run(seconds: usize, threads: Number, in_flight: Number) -> Course {
        let stage = Stage { seconds, load: Load(8, 1), request_bytes: REQUEST_BYTES };
        let plan = Plan { stripes: 1, access: Access::Write, stages: vec![stage], threads, in_flight };
        plan.run(Testbed::e2(Some(APART), (256 << 10) + 4096), 1).unwrap()
    }

    /// The sweep of this load: 92 MiB/s with 2 threads, 420 with 8, 491 with 32, 535 with 64, 557
    /// with 256. The drives' caches let the rates of 100 ms differ by 60%, and those of 1.6 s by 4%
    /// (docs/experiments.md).
    #[test]
    fn the_tuner_of_a_server_finds_a_good_number_within_20_seconds() {
        let fixed = run(15, Number::Fixed(64), Number::Fixed(64));
        let tuned = run(35, Number::Tuned(1), Number::Fixed(64));
        let (best, found) = (contract::mean(&fixed.seconds[5..]), contract::mean(&tuned.seconds[20..]));
        assert!(found >= 0.95 * best, "{found:.0} of {best:.0}: {:#?}", tuned.decisions);
        let jain = contract::jain(&tuned.seconds[20..]);
        assert!(jain >= 0.95, "{jain}");
    }

    #[test]
    fn the_same_seed_takes_the_same_course_and_tuners_of_both_go_up_together() {
        let first = run(6, Number::Tuned(1), Number::Tuned(1));
        assert_eq!(run(6, Number::Tuned(1), Number::Tuned(1)), first);
        assert!(first.numbers.last() > Some(&(2, 1)), "{:#?}", first.decisions);
    }

    #[test]
    fn a_load_that_changes_moves_to_other_clients() {
        let stage = |load| Stage { seconds: 2, load, request_bytes: REQUEST_BYTES };
        let plan = Plan {
            stripes: 1,
            access: Access::Read,
            stages: vec![stage(Load(2, 1)), stage(Load(1, 2))],
            threads: Number::Fixed(8),
            in_flight: Number::Fixed(8),
        };
        let course = plan.run(Testbed::e2(Some(APART), 0), 1).unwrap();
        let [.., last] = &course.seconds[..] else { panic!("four seconds") };
        assert!(course.seconds[1].iter().all(|moved| *moved > 0.0), "{course:?}");
        assert!(last[0] > 0.0 && last[1] < 1.0, "{course:?}");
        assert_eq!(course.numbers, [(8, 8); 4]);
    }
}
