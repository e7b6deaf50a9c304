//! One seed: a cluster, a workload, faults, checks, all of it decided by one number.

use std::{fmt, panic::AssertUnwindSafe, str::FromStr, time::Duration};

use client::control;
use layout::LayoutSpec;
use rpc::message::control::{ControlReply, ControlRequest};
use types::{Credentials, InodeNumber};

use crate::{
    Simulation, checkers,
    cluster::Cluster,
    drawn::Drawn,
    executor::RunLimits,
    faults::FaultPlan,
    invariants::Watch,
    log::{EventLog, tail},
    move_counts::MoveCounts,
    workload::{self, Verdict},
};

/// What kind of workload runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// One operation at a time, compared with the reference model ([`workload::serial`]).
    Serial,
    /// All clients at once ([`workload::concurrent`]).
    Concurrent,
    /// Power loss, with and without sync ([`workload::power`]).
    Power,
    /// Callers who do not wait for as long as faults last ([`workload::timeouts`]).
    Timeouts,
    /// Clients that fight over few names ([`workload::contended`]).
    Contended,
}

impl Mode {
    /// All of them, by turns.
    pub const ALL: [Mode; 5] = [Mode::Serial, Mode::Concurrent, Mode::Power, Mode::Timeouts, Mode::Contended];

    /// The mode of a seed for which none was chosen.
    pub fn of_seed(seed: u64) -> Mode {
        Mode::ALL[(seed % Mode::ALL.len() as u64) as usize]
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        // What the mode was called before 0.1.0.
        let name = if name == "impatient" { "timeouts" } else { name };
        let named = Mode::ALL.into_iter().find(|mode| mode.to_string() == name);
        named.ok_or_else(|| format!("one of {}", Mode::ALL.map(|mode| mode.to_string()).join(", ")))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Serial => "serial",
            Mode::Concurrent => "concurrent",
            Mode::Power => "power",
            Mode::Timeouts => "timeouts",
            Mode::Contended => "contended",
        })
    }
}

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct SeedOptions {
    /// Decides everything.
    pub seed: u64,
    /// Operations of the workload.
    pub operations: u64,
    /// Kind of workload; `None`: as the seed says.
    pub mode: Option<Mode>,
    /// What goes wrong; `None`: as the seed says.
    pub faults: Option<FaultPlan>,
}

/// A run in which everything held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeedReport {
    /// Kind of workload.
    pub mode: Mode,
    /// The event log.
    pub log: String,
    /// Virtual time that passed.
    pub virtual_time: Duration,
    /// Tasks polled.
    pub steps: u64,
    /// Faults.
    pub faults: u64,
    /// How often all invariants were checked while it ran.
    pub looks: u64,
    /// What came of moves of inodes between MDTs.
    pub moves: MoveCounts,
}

/// A run in which something did not hold. `Display` shows the reason, the last events, and how to
/// repeat it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What the seed had decided before.
    pub drawn: Drawn,
    /// What did not hold.
    pub reason: String,
    /// The event log.
    pub log: String,
}

/// Events that a failure shows.
const EVENTS_SHOWN: usize = 40;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { drawn, reason, log } = self;
        let Drawn { seed, mode, operations, .. } = drawn;
        writeln!(f, "last events:\n{}", tail(log, EVENTS_SHOWN))?;
        writeln!(f, "{drawn}")?;
        writeln!(f, "seed {seed} ({mode}) failed: {reason}")?;
        write!(f, "repeat it with: stria lab run --seed {seed} --mode {mode} --operations {operations}")
    }
}

impl std::error::Error for Failure {}

/// Runs one seed to its end.
pub fn run_seed(options: SeedOptions) -> Result<SeedReport, Box<Failure>> {
    let drawn = Drawn::by(&options);
    let seed = options.seed;
    let simulation = Simulation::new(seed);
    let log = EventLog::new(&simulation);
    let main = run(simulation.clone(), log.clone(), drawn.clone());
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| simulation.run(RunLimits::default(), main)));
    let outcome = match ran {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(stuck)) => Err(stuck.to_string()),
        Err(panic) => Err(format!("panic: {}", panic_message(&*panic))),
    };
    let (virtual_time, steps) = (Duration::from_nanos(simulation.now().0), simulation.steps());
    simulation.end();
    match outcome {
        Ok((faults, looks, moves)) => {
            Ok(SeedReport { mode: drawn.mode, log: log.text(), virtual_time, steps, faults, looks, moves })
        }
        Err(reason) => Err(Box::new(Failure { drawn, reason, log: log.text() })),
    }
}

/// Returns the number of faults, how often the invariants were checked, and what came of moves.
async fn run(simulation: Simulation, log: EventLog, drawn: Drawn) -> Result<(u64, u64, MoveCounts), String> {
    let Drawn { seed, mode, faults, operations, .. } = drawn;
    log.event("lab", format_args!("seed {seed}, mode {mode}"));
    let cluster = Cluster::start(&simulation, &log, seed, drawn.cluster).await?;
    let watch = Watch::begin(&cluster);
    let work = async {
        if let Some(layout) = drawn.default_layout {
            set_default_layout(&cluster, layout).await?;
        }
        let faults = match mode {
            Mode::Serial => workload::serial::run(&cluster, faults, operations).await,
            Mode::Concurrent => workload::concurrent::run(&cluster, faults, operations).await,
            Mode::Power => workload::power::run(&cluster, faults, operations).await,
            Mode::Timeouts => workload::timeouts::run(&cluster, faults, operations).await,
            Mode::Contended => workload::contended::run(&cluster, faults, operations).await,
        }?;
        check(&cluster).await?;
        Ok((faults, watch.looks(), cluster.places().counts()))
    };
    tokio::select! {
        biased;
        reason = cluster.failed() => Err(reason),
        outcome = work => outcome,
    }
}

/// Makes `spec` the default of the root, and so of all that is made from now on.
pub async fn set_default_layout(cluster: &Cluster, spec: LayoutSpec) -> Verdict {
    let (file_system, _) = cluster.file_system(0).ok_or("client 0 is not mounted")?;
    let set = async move {
        let request = ControlRequest::SetDefaultLayout(Some(spec));
        control::execute(&file_system, &Credentials::root(), (InodeNumber::ROOT, None), request).await
    };
    match cluster.on_client(0, set).await {
        Some(ControlReply::Done) => Ok(()),
        reply => Err(format!("the default layout was not set: {reply:?}")),
    }
}

/// Everything that holds after every workload, before and after a last restart of all servers.
async fn check(cluster: &Cluster) -> Verdict {
    checkers::at_rest(cluster).await?;
    for client in cluster.clients() {
        checkers::finishes(cluster, "an unmount", cluster.unmount(client)).await?;
    }
    checkers::abandoned(cluster).await?;
    for role in cluster.roles() {
        cluster.kill_server(role);
    }
    cluster.ready().await?;
    checkers::finishes(cluster, "a mount", cluster.mount(0)).await??;
    checkers::at_rest(cluster).await
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
