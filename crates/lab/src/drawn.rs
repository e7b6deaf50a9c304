//! What a seed decides before its run begins: everything that can be said in advance.

use std::{fmt, time::Duration};

use layout::{
    BackingSpec, ComponentSpec, END_OF_FILE, FileSystemDefault, LayoutSpec, ResolvedCount, StripeCount, StripeSpec,
};
use oss::OstOptions;
use rpc::ImportOptions;
use rt::Entropy;

use crate::{
    Random,
    cluster::ClusterOptions,
    faults::{FaultPlan, LEASE_LONG, LeasePlan},
    seed::{Mode, SeedOptions},
    server::{Engines, Settings},
    upper_cache::UpperPlan,
};

/// The `ldlm_timeout` as shipped.
const LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// A cache above a client drops something in this time at most, if no client is to be evicted for
/// it: far less than any lease.
const UPPER_QUICK: Duration = Duration::from_millis(300);
/// In multiples of the `ldlm_timeout`: longer than the five rounds that a busy client has.
const UPPER_SLOWNESS: u32 = 8;

/// Every option of a run. `Display` shows all of them, one group to a line.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// The seed.
    pub seed: u64,
    /// Operations of the workload.
    pub operations: u64,
    /// Kind of workload.
    pub mode: Mode,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// How long leases and silences are.
    pub lease: LeasePlan,
    /// Default layout of the root directory, if it gets one.
    pub default_layout: Option<LayoutSpec>,
    /// The cluster.
    pub cluster: ClusterOptions,
}

impl Drawn {
    /// What the seed of these options decides.
    pub fn by(options: &SeedOptions) -> Drawn {
        let SeedOptions { seed, operations, mode, faults } = *options;
        let mode = mode.unwrap_or_else(|| Mode::of_seed(seed));
        let faults = faults.unwrap_or_else(|| match mode {
            Mode::Timeouts => FaultPlan::of_timeouts_seed(seed),
            Mode::Contended => FaultPlan::of_contended_seed(seed),
            Mode::Serial | Mode::Concurrent | Mode::Power => FaultPlan::of_seed(seed),
        });
        let mut settings = settings(seed);
        if mode == Mode::Timeouts {
            shorten_timeouts(&mut settings.import, seed);
        }
        if mode == Mode::Contended {
            add_upper_caches(&mut settings, faults, seed);
        }
        settings.split_names = split_names_of(seed);
        let lease = LeasePlan::of_seed(seed, faults, settings.import.timeout);
        settings.lease = lease.lease;
        let cluster = ClusterOptions { mdts: mdts_of(seed), osts: 4, osts_per_server: 1, clients: 3, settings };
        Drawn { seed, operations, mode, faults, lease, default_layout: layout_of(seed), cluster }
    }
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn { seed, operations, mode, faults, lease, default_layout, cluster } = self;
        let ClusterOptions {
            mdts,
            osts,
            clients,
            settings:
                Settings {
                    lease: _,
                    lock_timeout,
                    import,
                    store,
                    mdt_audits: _,
                    ost,
                    engines,
                    layout,
                    upper_cache,
                    split_names,
                },
            ..
        } = cluster;
        writeln!(f, "seed {seed}, mode {mode}, {operations} operations, {mdts} MDTs, {osts} OSTs, {clients} clients")?;
        writeln!(f, "  faults: {faults:?}")?;
        writeln!(f, "  directories split with names: {split_names:?}")?;
        writeln!(f, "  leases: {lease:?}, for a lock: {lock_timeout:?}, upper caches: {upper_cache:?}")?;
        writeln!(f, "  default layout: {default_layout:?}, of the file system: {layout:?}")?;
        writeln!(f, "  connections: {import:?}")?;
        writeln!(f, "  tables: {store:?}")?;
        write!(f, "  OSTs: {engines:?}, {ost:?}")
    }
}

/// How many MDTs there are: one in half of the seeds, up to 5 in the others.
fn mdts_of(seed: u64) -> u16 {
    let random = Random::for_purpose(seed, "mdts");
    if random.happens(500_000) { 2 + random.below(4) as u16 } else { 1 }
}

/// With how many names directories split by themselves: in half of the seeds not at all.
fn split_names_of(seed: u64) -> Option<u64> {
    let random = Random::for_purpose(seed, "splits");
    random.happens(500_000).then(|| *random.pick(&[2, 4, 12]))
}

/// A layout whose watermarks the workloads' files cross: 64 KiB on one OST, 256 KiB on two, then
/// all.
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

/// A layout whose second component grows step by step, after a beginning on the MDT.
fn layout_extended() -> LayoutSpec {
    let stripes = StripeSpec { stripe_bytes: Some(64 << 10), ..StripeSpec::default() };
    let extended = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Extended(stripes, 128 << 10) };
    LayoutSpec::Composite(vec![ComponentSpec { end: 64 << 10, backing: BackingSpec::Mdt }, extended])
}

/// The default layout of the root, if the seed has one: else files are automatic or plain, as
/// [`settings`] says.
fn layout_of(seed: u64) -> Option<LayoutSpec> {
    match Random::for_purpose(seed, "layout").below(8) {
        0..=3 => None,
        4 | 5 => Some(growing_layout()),
        6 => Some(layout_on_mdt()),
        _ => Some(layout_extended()),
    }
}

/// Callers of [`Mode::Timeouts`] wait for seconds, on connections that end sooner or later than
/// that.
fn shorten_timeouts(import: &mut ImportOptions, seed: u64) {
    let random = Random::for_purpose(seed, "patience");
    import.timeout = *random.pick(&[Duration::from_millis(700), Duration::from_secs(2), Duration::from_secs(5)]);
    import.resend = *random.pick(&[Duration::from_millis(100), Duration::from_secs(5)]);
}

/// Clients of [`Mode::Contended`] have caches above them in most seeds. Where living clients may be
/// evicted, these may take longer to drop something than clients have to give back a lock, or to
/// come back to an MDT that was started again.
fn add_upper_caches(settings: &mut Settings, faults: FaultPlan, seed: u64) {
    let random = Random::for_purpose(seed, "upper caches");
    let has_some = random.below(4) > 0;
    let slowest = match faults.evictions {
        false => UPPER_QUICK,
        true => {
            settings.lock_timeout = *random.pick(&[Duration::from_millis(500), Duration::from_secs(2), LOCK_TIMEOUT]);
            *random.pick(&[UPPER_QUICK, settings.lock_timeout, settings.lock_timeout * UPPER_SLOWNESS])
        }
    };
    settings.upper_cache = has_some.then_some(UpperPlan { slowest });
}

/// Settings of a seed: everything small, so that little work reaches checkpoints, write-back and
/// full journals; timeouts practically endless, so that operations end well once the faults are
/// over.
pub fn settings(seed: u64) -> Settings {
    let random = Random::for_purpose(seed, "settings");
    let import = ImportOptions {
        timeout: Duration::from_secs(100_000),
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
    let defrag = Random::for_purpose(seed, "defragmentation");
    let scrub = Random::for_purpose(seed, "scrub");
    let ost = OstOptions {
        commit_interval: *random.pick(&[Duration::from_millis(50), Duration::from_secs(1)]),
        write_back_bytes: *random.pick(&[32 << 10, 64 << 20]),
        write_back_idle: *random.pick(&[Duration::from_millis(100), Duration::from_secs(5)]),
        overwrite_bytes_min: *Random::for_purpose(seed, "overwrites").pick(&[4 << 10, 64 << 10]),
        defrag_bytes_per_second: *defrag.pick(&[0, 1 << 20, 1 << 30]),
        defrag_busy_percent: *defrag.pick(&[50, 100]),
        scrub_bytes_per_second: *scrub.pick(&[0, 1 << 20, 64 << 20]),
        auto_scrub: *scrub.pick(&[Duration::ZERO, Duration::from_millis(50), Duration::from_secs(2)]),
        audits: true,
        ..OstOptions::default()
    };
    let stripe_count = *random.pick(&[ResolvedCount::AtMost(1), ResolvedCount::AtMost(2), ResolvedCount::All]);
    // As shipped, but for one in four: these have stripes that the workloads' files cross.
    let layout = FileSystemDefault { automatic: random.below(4) > 0, stripe_count, stripe_bytes: 64 << 10 };
    let engines = *Random::for_purpose(seed, "engines").pick(&[Engines::HostFiles, Engines::Devices, Engines::Mixed]);
    let tables_on_devices = Random::for_purpose(seed, "tables on devices").below(2) == 0;
    let engines = if tables_on_devices { engines.with_tables() } else { engines };
    let (lease, lock_timeout) = (LEASE_LONG, LOCK_TIMEOUT);
    Settings {
        lease,
        lock_timeout,
        import,
        store,
        mdt_audits: true,
        ost,
        engines,
        layout,
        upper_cache: None,
        split_names: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn seeds_have_one_to_five_mdts() {
        for mode in Mode::ALL {
            let of_seed = |seed| Drawn::by(&SeedOptions { seed, operations: 1, mode: Some(mode), faults: None });
            let drawn: BTreeSet<u16> = (0..128).map(|seed| of_seed(seed).cluster.mdts).collect();
            assert_eq!(drawn, (1..=5).collect(), "{mode}");
        }
    }
}
