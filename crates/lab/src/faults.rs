//! Chaos: which faults happen while a workload runs, when, and for how long, all chosen by the
//! seed.
//!
//! Independent lanes run in parallel, each with its own random stream: *weather* (frames lost,
//! doubled, reordered, late, connections broken), *cuts* (hosts that cannot reach each other),
//! *kills* (server processes that end and are started again), *stops* (server processes that are
//! suspended and resumed), *hangs* (devices that hang for a while) and *evictions* (clients that an
//! administrator evicts, or that are suspended or cut off from the MDT for longer than their
//! lease). Power losses are part of the workload that knows what must survive them.
//!
//! Times are chosen on a logarithmic scale, from about one request to about one time-out, so that
//! faults hit the middle of operations, restarts hit restarts, and quiet times exist too.
//! [`Chaos::end`] ends all faults and waits until every server is back: from then on the cluster
//! must heal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rt::Entropy;
use tokio::sync::{oneshot, watch};

use crate::{
    Process, ProcessId, Random,
    cluster::{Cluster, client_host},
    device::DiskPart,
    network::NetworkFaults,
    server::Role,
};

/// Which lanes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    /// Frames and connections suffer.
    pub weather: bool,
    /// Hosts are cut off.
    pub cuts: bool,
    /// Server processes are killed.
    pub kills: bool,
    /// Server processes are stopped for a while.
    pub stops: bool,
    /// Devices hang for a while.
    pub hangs: bool,
    /// A client dies in the middle of its work, in workloads that can tell what must be left.
    pub client_dies: bool,
    /// Living clients are evicted, in workloads that can tell what may be left.
    pub evictions: bool,
}

impl FaultPlan {
    /// Nothing goes wrong.
    pub const NONE: FaultPlan = FaultPlan {
        weather: false,
        cuts: false,
        kills: false,
        stops: false,
        hangs: false,
        client_dies: false,
        evictions: false,
    };

    /// The plan of a seed: usually everything, sometimes single lanes, now and then nothing.
    pub fn of_seed(seed: u64) -> Self {
        let random = Random::for_purpose(seed, "fault plan");
        let plan = match random.below(11) {
            0 => FaultPlan::NONE,
            1 => FaultPlan { weather: true, ..FaultPlan::NONE },
            2 => FaultPlan { cuts: true, ..FaultPlan::NONE },
            3 => FaultPlan { kills: true, ..FaultPlan::NONE },
            4 => FaultPlan { stops: true, ..FaultPlan::NONE },
            5 => FaultPlan { stops: true, kills: true, ..FaultPlan::NONE },
            6 => FaultPlan { stops: true, hangs: true, ..FaultPlan::NONE },
            _ => FaultPlan { weather: true, cuts: true, kills: true, ..FaultPlan::NONE },
        };
        FaultPlan { client_dies: random.below(3) == 0, ..plan }
    }

    /// The plan of a seed in which clients fight over names: in every other one living clients are
    /// evicted, too.
    pub fn of_contended_seed(seed: u64) -> Self {
        let evictions = Random::for_purpose(seed, "evictions of living clients").below(2) == 0;
        FaultPlan { evictions, ..Self::of_seed(seed) }
    }

    /// The plan of a seed whose calls have short timeouts: targets that take longer than that,
    /// and at times all the rest.
    pub fn of_timeouts_seed(seed: u64) -> Self {
        let random = Random::for_purpose(seed, "impatient fault plan");
        let plan = match random.below(3) {
            0 => FaultPlan { stops: true, ..FaultPlan::NONE },
            1 => FaultPlan { hangs: true, ..FaultPlan::NONE },
            _ => FaultPlan { stops: true, hangs: true, ..FaultPlan::NONE },
        };
        match random.below(4) {
            0 => FaultPlan { weather: true, ..plan },
            1 => FaultPlan { cuts: true, ..plan },
            2 => FaultPlan { weather: true, cuts: true, kills: true, ..plan },
            _ => plan,
        }
    }
}

/// How long leases are, and how long servers are silent at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasePlan {
    /// The lease of clients at all servers.
    pub lease: Duration,
    /// The longest time that a server process is stopped or a device hangs.
    pub silence_max: Duration,
}

impl LeasePlan {
    /// For calls with this timeout. Where only servers fall silent, leases are shorter than their
    /// silences: a server that was suspended must not evict clients that were there all the time.
    /// Where the network fails, too, an eviction would be right, so leases are longer than any
    /// fault, unless evictions are part of the plan.
    pub fn of_seed(seed: u64, faults: FaultPlan, timeout: Duration) -> Self {
        if (faults.weather || faults.cuts) && !faults.evictions {
            return Self { lease: LEASE_LONG, silence_max: timeout.min(LEASE_LONG) * SILENCE_FACTOR };
        }
        let random = Random::for_purpose(seed, "lease");
        let lease = *random.pick(&[Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(40)]);
        Self { lease, silence_max: lease * SILENCE_FACTOR }
    }
}

/// A time between `least` and `most`, equally likely in every order of magnitude.
pub fn spread(random: &Random, least: Duration, most: Duration) -> Duration {
    let (least, most) = ((least.as_nanos() as f64).ln(), (most.as_nanos() as f64).ln());
    let position = random.below(1 << 20) as f64 / (1 << 20) as f64;
    Duration::from_nanos((least + (most - least) * position).exp() as u64)
}

/// Quiet time before the next fault.
const QUIET: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(400));
/// How long a fault lasts.
const LASTS: (Duration, Duration) = (Duration::from_micros(200), Duration::from_secs(3));
/// Time between two evictions.
const EVICTIONS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(10));
/// The longest time that a process is stopped or a device hangs, in multiples of the callers'
/// timeout or of the lease.
const SILENCE_FACTOR: u32 = 3;
/// Longer than any fault that keeps a living client from its servers, so that no such client is
/// evicted.
pub const LEASE_LONG: Duration = Duration::from_secs(120);

/// The faults of a running workload.
pub struct Chaos {
    cluster: Cluster,
    silence_max: Duration,
    stop: watch::Sender<bool>,
    lanes: Vec<oneshot::Receiver<()>>,
    faults: Arc<AtomicU64>,
}

/// One lane.
struct Lane {
    cluster: Cluster,
    random: Random,
    silence_max: Duration,
    stopping: watch::Receiver<bool>,
    faults: Arc<AtomicU64>,
}

impl Chaos {
    /// Begins to break things.
    pub fn begin(cluster: &Cluster, plan: FaultPlan) -> Self {
        let timeout = cluster.options().settings.import.timeout;
        let silence_max = LeasePlan::of_seed(cluster.seed(), plan, timeout).silence_max;
        let stop = watch::Sender::new(false);
        let mut chaos = Self { cluster: cluster.clone(), silence_max, stop, lanes: Vec::new(), faults: Arc::default() };
        cluster.log().event("chaos", format_args!("{plan:?}"));
        if plan.weather {
            chaos.spawn("weather", |lane| async move { lane.weather().await });
        }
        if plan.cuts {
            chaos.spawn("cuts", |lane| async move { lane.cuts().await });
        }
        if plan.kills {
            chaos.spawn("kills", |lane| async move { lane.kills().await });
        }
        if plan.stops {
            chaos.spawn("stops", |lane| async move { lane.stops().await });
        }
        if plan.hangs {
            chaos.spawn("hangs", |lane| async move { lane.hangs().await });
        }
        if plan.evictions {
            chaos.spawn("evictions", |lane| async move { lane.evictions().await });
        }
        chaos
    }

    fn spawn<F>(&mut self, name: &'static str, run: impl FnOnce(Lane) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let lane = Lane {
            cluster: self.cluster.clone(),
            random: Random::for_purpose(self.cluster.seed(), name),
            silence_max: self.silence_max,
            stopping: self.stop.subscribe(),
            faults: self.faults.clone(),
        };
        let (done, ended) = oneshot::channel();
        let running = run(lane);
        let task = async move {
            running.await;
            // The run may be over.
            let _ = done.send(());
        };
        self.cluster.simulation().spawn(ProcessId::DRIVER, name, Box::pin(task));
        self.lanes.push(ended);
    }

    /// Ends all faults and waits until every server is back. Returns how many faults there were.
    pub async fn end(self) -> Result<u64, String> {
        self.stop.send_replace(true);
        for lane in self.lanes {
            // A lane cannot be killed; if its task is gone, so is the run.
            let _ = lane.await;
        }
        self.cluster.ready().await?;
        self.cluster.log().event("chaos", "all faults are off");
        Ok(self.faults.load(Ordering::Relaxed))
    }
}

impl Lane {
    /// Sleeps; true if chaos continues.
    async fn pause(&mut self, (least, most): (Duration, Duration)) -> bool {
        let duration = spread(&self.random, least, most);
        let sleep = self.cluster.simulation().sleep(duration);
        tokio::select! {
            biased;
            _ = self.stopping.wait_for(|stopping| *stopping) => false,
            () = sleep => true,
        }
    }

    fn fault(&self, what: impl std::fmt::Display) {
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.cluster.log().event("chaos", what);
    }

    async fn weather(mut self) {
        while self.pause(QUIET).await {
            let faults = NetworkFaults {
                lost: *self.random.pick(&[0, 1_000, 20_000, 100_000]),
                duplicated: *self.random.pick(&[0, 1_000, 50_000, 200_000]),
                reordered: *self.random.pick(&[0, 10_000, 200_000]),
                delayed: *self.random.pick(&[0, 1_000, 20_000]),
                broken: *self.random.pick(&[0, 0, 1_000, 30_000]),
            };
            self.fault(format_args!("{faults:?}"));
            self.cluster.network().set_faults(faults);
            let goes_on = self.pause(LASTS).await;
            self.cluster.network().set_faults(NetworkFaults::default());
            if !goes_on {
                break;
            }
            self.cluster.log().event("chaos", "no faults");
        }
    }

    async fn cuts(mut self) {
        let hosts = self.cluster.hosts();
        while self.pause(QUIET).await {
            let one = self.random.pick(&hosts).clone();
            let others: Vec<&String> = match self.random.below(3) {
                0 => hosts.iter().filter(|host| **host != one).collect(),
                _ => vec![self.random.pick(&hosts)],
            };
            self.fault(format_args!("partition between {one} and {others:?}"));
            others.iter().for_each(|other| self.cluster.network().cut(&one, other));
            let goes_on = self.pause(LASTS).await;
            self.cluster.network().heal();
            if !goes_on {
                break;
            }
            self.cluster.log().event("chaos", "partitions are healed");
        }
    }

    /// One victim at a time, or several at once.
    fn victims(&self) -> Vec<Role> {
        let roles = self.cluster.roles();
        match self.random.below(8) {
            0 => roles,
            1..4 => vec![self.some_mds()],
            _ => vec![*self.random.pick(&roles)],
        }
    }

    fn some_mds(&self) -> Role {
        match &self.cluster.mds_roles().collect::<Vec<_>>()[..] {
            [only] => *only,
            several => *self.random.pick(several),
        }
    }

    /// How long servers run before they are stopped or their devices hang, and how long that lasts.
    fn silences(&self) -> [(Duration, Duration); 2] {
        let longest = self.silence_max;
        let timeout = self.cluster.options().settings.import.timeout;
        let runs_max = if timeout < LEASE_LONG { timeout / 2 } else { QUIET.1 };
        [(QUIET.0, runs_max), (longest / 300, longest)]
    }

    async fn stops(mut self) {
        let [quiet, lasts] = self.silences();
        while self.pause(quiet).await {
            let stopped: Vec<Process> =
                self.victims().into_iter().filter_map(|role| self.cluster.stop_server(role)).collect();
            self.fault(format_args!("{} processes suspended", stopped.len()));
            let goes_on = self.pause(lasts).await;
            stopped.iter().for_each(Process::resume);
            self.cluster.log().event("chaos", "suspended processes resume");
            if !goes_on {
                break;
            }
        }
    }

    async fn hangs(mut self) {
        let [quiet, lasts] = self.silences();
        while self.pause(quiet).await {
            let victims = self.victims();
            let part = *self.random.pick(&[DiskPart::Tables, DiskPart::Objects, DiskPart::Objects]);
            self.fault(format_args!("{part:?} of {victims:?} hang"));
            victims.iter().for_each(|victim| self.cluster.hang(*victim, part, true));
            let goes_on = self.pause(lasts).await;
            victims.iter().for_each(|victim| self.cluster.hang(*victim, part, false));
            self.cluster.log().event("chaos", "devices resume");
            if !goes_on {
                break;
            }
        }
    }

    /// A client that lives is evicted, or cannot be heard for about as long as its lease.
    async fn evictions(mut self) {
        let lease = self.cluster.options().settings.lease;
        let silence = (lease / 10, lease * SILENCE_FACTOR);
        while self.pause(EVICTIONS).await {
            let Some(client) = self.a_client() else { continue };
            let goes_on = match self.random.below(3) {
                0 => {
                    self.fault(format_args!("{} is evicted", client_host(client)));
                    self.cluster.evict(client);
                    true
                }
                1 => {
                    let stopped = self.cluster.stop_client(client);
                    self.fault(format_args!("{} is suspended", client_host(client)));
                    let goes_on = self.pause(silence).await;
                    stopped.iter().for_each(Process::resume);
                    self.cluster.log().event("chaos", format_args!("{} resumes", client_host(client)));
                    goes_on
                }
                _ => {
                    let (one, other) = (client_host(client), Role::Mds(0).host());
                    self.fault(format_args!("partition between {one} and {other}"));
                    self.cluster.network().cut(&one, &other);
                    let goes_on = self.pause(silence).await;
                    self.cluster.network().heal();
                    goes_on
                }
            };
            if !goes_on {
                break;
            }
        }
    }

    fn a_client(&self) -> Option<u16> {
        let clients = self.cluster.clients();
        (!clients.is_empty()).then(|| *self.random.pick(&clients))
    }

    async fn kills(mut self) {
        while self.pause(QUIET).await {
            let victims = self.victims();
            self.fault(format_args!("kill {victims:?}"));
            for victim in &victims {
                self.cluster.kill_server(*victim);
            }
            let goes_on = self.pause(LASTS).await;
            for victim in &victims {
                self.cluster.start_server(*victim);
            }
            if !goes_on {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spread_over_all_magnitudes() {
        let random = Random::new(1);
        let (least, most) = (Duration::from_micros(1), Duration::from_secs(1));
        let times: Vec<Duration> = (0..1000).map(|_| spread(&random, least, most)).collect();
        assert!(times.iter().all(|time| (least..=most).contains(time)));
        let short = times.iter().filter(|time| **time < Duration::from_millis(1)).count();
        assert!((400..600).contains(&short), "{short} of 1000 in the lower half of the magnitudes");
    }

    #[test]
    fn plans_differ_between_seeds() {
        let plans: Vec<FaultPlan> = (0..64).map(FaultPlan::of_seed).collect();
        assert!(plans.contains(&FaultPlan::NONE));
        let everything = FaultPlan { weather: true, cuts: true, kills: true, client_dies: true, ..FaultPlan::NONE };
        assert!(plans.contains(&everything));
        assert!(plans.contains(&FaultPlan { kills: true, ..FaultPlan::NONE }));
        assert!(plans.contains(&FaultPlan { stops: true, kills: true, ..FaultPlan::NONE }));
    }

    #[test]
    fn servers_are_silent_for_longer_than_leases_unless_the_network_fails_too() {
        let timeout = Duration::from_secs(5);
        for seed in 0..16 {
            let stops = FaultPlan { stops: true, ..FaultPlan::NONE };
            let plan = LeasePlan::of_seed(seed, stops, timeout);
            assert!(plan.silence_max > 2 * plan.lease, "{plan:?}");
            let plan = LeasePlan::of_seed(seed, FaultPlan { weather: true, ..stops }, timeout);
            assert!(plan.lease > plan.silence_max + LASTS.1, "{plan:?}");
        }
    }
}
