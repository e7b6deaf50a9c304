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
/// Bytes of a file that is written: more than any run writes.
const WRITTEN_BYTES: u64 = 512 << 30;
/// Bytes of a file that is read.
const READ_BYTES: u64 = 4 << 30;
/// The most that tuners may choose: as many as the sweep has.
pub const MOST: u16 = 64;

/// What the programs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
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
    /// client to the first OST.
    pub numbers: Vec<(u16, u16)>,
    pub fine: Vec<u64>,
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
            for part in 1..=20u64 {
                programs
                    .simulation
                    .sleep_until(programs.begun + Duration::from_millis((second as u64 - 1) * 1000 + part * 50))
                    .await;
                course.fine.push(programs.moved.iter().map(|bytes| bytes.load(Relaxed)).sum::<u64>());
            }
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
                    service.set_threads(MOST.into());
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
                        file_system.set_rpcs_in_flight_max(target, MOST);
                        file_system.tune_from(target, start);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The numbers at this moment.
fn numbers(world: &World) -> Result<(u16, u16), String> {
    let threads = world.cluster.inspect(Role::Oss(0), |serving| serving.server.service(oss::SERVICE_IO).threads());
    let threads = threads.ok_or("the object storage server is down")?;
    let (_, first) = world.cluster.file_systems().into_iter().next().ok_or("no client")?;
    let in_flight = first.rpcs_in_flight_max(TargetRole::Ost(OstIndex(0))).ok_or("no target")?;
    Ok((threads as u16, in_flight))
}

/// What the tuners of the server and of all clients decided.
fn decisions(world: &World) -> Vec<String> {
    let of_server = world.cluster.inspect(Role::Oss(0), |serving| {
        let tuning = serving.server.service(oss::SERVICE_IO).tuning().clone();
        tuning.log().into_iter().map(|line| format!("ost_io {line}")).collect()
    });
    let mut all: Vec<String> = of_server.unwrap_or_default();
    for (client, file_system) in world.cluster.file_systems() {
        for ost in 0..e2::OSTS {
            let tuning = file_system.tuning(TargetRole::Ost(OstIndex(ost)));
            let log = tuning.map(|tuning| tuning.log()).unwrap_or_default();
            all.extend(log.into_iter().map(|line| format!("client{client} OST{ost} {line}")));
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
    use crate::model::costs::MEASURED;

    #[test]
    fn explore() {
        let get = |name: &str, or: &str| std::env::var(name).unwrap_or(or.to_owned());
        let number = |text: &str| -> Number {
            match text.strip_prefix('t') {
                Some(start) => Number::Tuned(start.parse().unwrap()),
                None => Number::Fixed(text.parse().unwrap()),
            }
        };
        let loads = get("LOADS", "8x1");
        let seconds: usize = get("SECONDS", "60").parse().unwrap();
        let access = if get("ACCESS", "w") == "w" { Access::Write } else { Access::Read };
        let stripes: u32 = get("STRIPES", "1").parse().unwrap();
        for load in loads.split(',') {
            let (clients, threads) = load.split_once('x').unwrap();
            let load = Load(clients.parse().unwrap(), threads.parse().unwrap());
            for s in get("S", "64").split(',') {
                for c in get("C", "64").split(',') {
                    let begun = std::time::Instant::now();
                    let plan = Plan {
                        stripes,
                        access,
                        stages: vec![Stage { seconds, load, request_bytes: REQUEST_BYTES }],
                        threads: number(s),
                        in_flight: number(c),
                    };
                    let testbed = Testbed::e2(Some(MEASURED), (256 << 10) + 4096);
                    let course = plan.run(testbed, 1).unwrap();
                    let fives: Vec<f64> = course
                        .seconds
                        .chunks(5)
                        .map(|five| five.iter().flatten().sum::<f64>() / five.len() as f64)
                        .collect();
                    let after = if fives.len() > 6 { &fives[4..] } else { &fives[1..] };
                    let mean = after.iter().sum::<f64>() / after.len() as f64;
                    let spread = after.iter().map(|one| (one / mean - 1.0).abs()).fold(0.0, f64::max);
                    println!(
                        "{load:?} {access:?} s={s} c={c}: mean {mean:.0}, spread {:.1}%, {:?} real {:.1} s",
                        spread * 100.0,
                        fives.iter().map(|x| x.round() as i64).collect::<Vec<_>>(),
                        begun.elapsed().as_secs_f64()
                    );
                    if !s.starts_with('t') {
                        let fine = &course.fine[100..];
                        let mut text = String::new();
                        for scale in [1usize, 2, 4, 8, 16, 20, 32, 40, 64, 80] {
                            let rates: Vec<f64> = fine
                                .iter()
                                .step_by(scale)
                                .collect::<Vec<_>>()
                                .windows(2)
                                .map(|w| (w[1] - w[0]) as f64)
                                .collect();
                            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
                            let var = rates.windows(2).map(|w| ((w[0] - w[1]) / mean).powi(2) / 2.0).sum::<f64>()
                                / (rates.len() - 1) as f64;
                            text += &format!(" {}ms:{:.1}%", scale * 50, var.sqrt() * 100.0);
                        }
                        println!("   sd{text}");
                    }
                    if s.starts_with('t') || c.starts_with('t') {
                        println!("  numbers {:?}", course.numbers.iter().step_by(5).collect::<Vec<_>>());
                        if get("LOG", "") != "" {
                            for line in &course.decisions {
                                println!("    {line}");
                            }
                        }
                    }
                }
            }
        }
    }
}
