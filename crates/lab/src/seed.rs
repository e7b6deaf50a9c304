//! One seed: a cluster, a workload, faults, checks, all of it decided by one number.

use std::{fmt, panic::AssertUnwindSafe, str::FromStr, time::Duration};

use client::control;
use layout::{
    BackingSpec, ComponentSpec, END_OF_FILE, FileSystemDefault, LayoutSpec, ResolvedCount, StripeCount, StripeSpec,
};
use oss::OstOptions;
use rpc::ImportOptions;
use rpc::message::control::{ControlReply, ControlRequest};
use rt::Entropy;
use types::{Credentials, InodeNumber};

use crate::{
    Random, Simulation, checkers,
    cluster::{Cluster, ClusterOptions},
    executor::RunLimits,
    faults::{FaultPlan, LEASE_LONG, LeasePlan},
    log::{EventLog, tail},
    server::Settings,
    workload::{self, Verdict},
};

/// What kind of workload runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// One operation at a time, compared with the reference model ([`workload::serial`]).
    Serial,
    /// All clients at once ([`workload::concurrent`]).
    Concurrent,
    /// Loss of power, with and without sync ([`workload::power`]).
    Power,
    /// Callers who do not wait for as long as faults last ([`workload::impatient`]).
    Impatient,
}

impl Mode {
    /// All of them, by turns.
    pub const ALL: [Mode; 4] = [Mode::Serial, Mode::Concurrent, Mode::Power, Mode::Impatient];

    /// The mode of a seed whose mode nobody chose.
    pub fn of_seed(seed: u64) -> Mode {
        Mode::ALL[(seed % Mode::ALL.len() as u64) as usize]
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
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
            Mode::Impatient => "impatient",
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
}

/// A run in which something did not hold. `Display` shows the reason, the last events, and how to repeat it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Operations of the workload.
    pub operations: u64,
    /// Kind of workload.
    pub mode: Mode,
    /// What did not hold.
    pub reason: String,
    /// The event log.
    pub log: String,
}

/// Events that a failure shows.
const EVENTS_SHOWN: usize = 40;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { seed, operations, mode, reason, log } = self;
        writeln!(f, "last events:\n{}", tail(log, EVENTS_SHOWN))?;
        writeln!(f, "seed {seed} ({mode}) failed: {reason}")?;
        write!(f, "repeat it with: stria lab run --seed {seed} --mode {mode} --operations {operations}")
    }
}

impl std::error::Error for Failure {}

/// Runs one seed to its end.
pub fn run_seed(options: SeedOptions) -> Result<SeedReport, Box<Failure>> {
    let SeedOptions { seed, operations, mode, faults } = options;
    let mode = mode.unwrap_or_else(|| Mode::of_seed(seed));
    let plan = faults.unwrap_or_else(|| match mode {
        Mode::Impatient => FaultPlan::of_impatient_seed(seed),
        Mode::Serial | Mode::Concurrent | Mode::Power => FaultPlan::of_seed(seed),
    });
    let simulation = Simulation::new(seed);
    let log = EventLog::new(&simulation);
    let main = run(simulation.clone(), log.clone(), seed, mode, plan, operations);
    let ran = std::panic::catch_unwind(AssertUnwindSafe(|| simulation.run(RunLimits::default(), main)));
    let outcome = match ran {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(stuck)) => Err(stuck.to_string()),
        Err(panic) => Err(format!("panic: {}", panic_message(&*panic))),
    };
    let (virtual_time, steps) = (Duration::from_nanos(simulation.now().0), simulation.steps());
    simulation.end();
    match outcome {
        Ok(faults) => Ok(SeedReport { mode, log: log.text(), virtual_time, steps, faults }),
        Err(reason) => Err(Box::new(Failure { seed, operations, mode, reason, log: log.text() })),
    }
}

async fn run(
    simulation: Simulation,
    log: EventLog,
    seed: u64,
    mode: Mode,
    plan: FaultPlan,
    operations: u64,
) -> Result<u64, String> {
    log.event("lab", format_args!("seed {seed}, mode {mode}"));
    let mut settings = settings(seed);
    if mode == Mode::Impatient {
        make_impatient(&mut settings.import, seed);
    }
    settings.lease = LeasePlan::of_seed(seed, plan, settings.import.patience).lease;
    let options = ClusterOptions { osts: 4, clients: 3, settings };
    let cluster = Cluster::start(&simulation, &log, seed, options).await?;
    let work = async {
        if let Some(layout) = layout_of(seed) {
            set_default_layout(&cluster, layout).await?;
        }
        let faults = match mode {
            Mode::Serial => workload::serial::run(&cluster, plan, operations).await,
            Mode::Concurrent => workload::concurrent::run(&cluster, plan, operations).await,
            Mode::Power => workload::power::run(&cluster, plan, operations).await,
            Mode::Impatient => workload::impatient::run(&cluster, plan, operations).await,
        }?;
        check(&cluster).await?;
        Ok(faults)
    };
    tokio::select! {
        biased;
        reason = cluster.failed() => Err(reason),
        outcome = work => outcome,
    }
}

/// A layout whose watermarks the workloads' files cross: 64 KiB on one OST, 256 KiB on two, then all.
pub fn growing_layout() -> LayoutSpec {
    let component = |end, stripe_count| {
        let stripes = StripeSpec { stripe_count, stripe_bytes: Some(64 << 10), ..StripeSpec::default() };
        ComponentSpec { end, backing: BackingSpec::Striped(stripes) }
    };
    LayoutSpec::Composite(vec![
        component(64 << 10, StripeCount::Exactly(1)),
        component(256 << 10, StripeCount::Exactly(2)),
        component(END_OF_FILE, StripeCount::All),
    ])
}

/// As [`growing_layout`], with the first 64 KiB on the MDT.
pub fn layout_on_mdt() -> LayoutSpec {
    let LayoutSpec::Composite(mut components) = growing_layout() else { unreachable!("it has components") };
    components[0].backing = BackingSpec::Mdt;
    LayoutSpec::Composite(components)
}

/// A layout whose second component grows step by step, behind a beginning on the MDT.
fn layout_extended() -> LayoutSpec {
    let stripes = StripeSpec { stripe_bytes: Some(64 << 10), ..StripeSpec::default() };
    let extended = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Extended(stripes, 128 << 10) };
    LayoutSpec::Composite(vec![ComponentSpec { end: 64 << 10, backing: BackingSpec::Mdt }, extended])
}

/// The default layout of the root, if the seed has one: else files are automatic or plain, as [`settings`] says.
fn layout_of(seed: u64) -> Option<LayoutSpec> {
    match Random::for_purpose(seed, "layout").below(8) {
        0..=3 => None,
        4 | 5 => Some(growing_layout()),
        6 => Some(layout_on_mdt()),
        _ => Some(layout_extended()),
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

/// Callers of [`Mode::Impatient`] wait for seconds, on connections that end sooner or later than that.
fn make_impatient(import: &mut ImportOptions, seed: u64) {
    let random = Random::for_purpose(seed, "patience");
    import.patience = *random.pick(&[Duration::from_millis(700), Duration::from_secs(2), Duration::from_secs(5)]);
    import.resend = *random.pick(&[Duration::from_millis(100), Duration::from_secs(5)]);
}

/// Settings of a seed: everything small, so that little work reaches checkpoints, write-back and full journals; patience
/// practically endless, so that operations end well once the faults are over.
pub fn settings(seed: u64) -> Settings {
    let random = Random::for_purpose(seed, "settings");
    let import = ImportOptions {
        patience: Duration::from_secs(100_000),
        resend: Duration::from_millis(100),
        connect_timeout: Duration::from_millis(500),
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(300),
        rpcs_in_flight_max: *random.pick(&[2, 8, 64]),
        ..ImportOptions::default()
    };
    let store = kv::Config {
        segment_bytes: *random.pick(&[128 << 10, 512 << 10]),
        memory_bytes: *random.pick(&[64 << 10, 4 << 20]),
        commit_interval: *random.pick(&[Duration::from_millis(20), Duration::from_secs(1)]),
        checkpoint_interval: *random.pick(&[Duration::from_millis(300), Duration::from_secs(300)]),
        ..kv::Config::small()
    };
    let ost = OstOptions {
        commit_interval: *random.pick(&[Duration::from_millis(50), Duration::from_secs(1)]),
        write_back_bytes: *random.pick(&[32 << 10, 64 << 20]),
        write_back_idle: *random.pick(&[Duration::from_millis(100), Duration::from_secs(5)]),
        ..OstOptions::default()
    };
    let stripe_count = *random.pick(&[ResolvedCount::AtMost(1), ResolvedCount::AtMost(2), ResolvedCount::All]);
    // As shipped, but for one in four: these have stripes that the workloads' files cross.
    let layout = FileSystemDefault { automatic: random.below(4) > 0, stripe_count, stripe_bytes: 64 << 10 };
    Settings { lease: LEASE_LONG, import, store, ost, layout }
}
