//! Parameters of a metadata target, under Lustre's names (`mdt.*`, `lod.*`,
//! `ldlm.namespaces.mdt-*`).

use std::{sync::Arc, time::Duration};

use layout::ResolvedCount;
use mds::{LockCounters, Mdt, Parameters};
use rt::parameters::{Parameter, ParameterError, ParameterTree, parse_number, parse_size};
use types::limits;

/// What `lock_count` is, under both of its names.
const LOCK_COUNT: &str = "locks under which clients cache names and attributes";

/// A number among [`Parameters`]: name below the target, explanation, range, unit, and how to read
/// and change it.
struct Number {
    name: &'static str,
    doc: &'static str,
    range: std::ops::RangeInclusive<u64>,
    /// Values are multiples of this.
    unit: u64,
    /// Bytes that one of the number stands for, if it is a size: then it may have a unit of its
    /// own.
    size_bytes: Option<u64>,
    get: fn(&Parameters) -> u64,
    set: fn(&mut Parameters, u64),
}

/// What all numbers have in common that only switch something on (1) or off (0).
const SWITCH: Number =
    Number { name: "", doc: "", range: 0..=1, unit: 1, size_bytes: None, get: |_| 0, set: |_, _| () };

const NUMBERS: [Number; 26] = [
    Number {
        name: "lod.automatic",
        doc: "1: layouts that were not set explicitly grow with the file; 0: stripecount and stripesize apply",
        get: |parameters| u64::from(parameters.default_layout.automatic),
        set: |parameters, value| parameters.default_layout.automatic = value == 1,
        ..SWITCH
    },
    Number {
        name: "lod.stripecount",
        doc: "stripes of files without an explicit layout; setting it switches automatic layouts off",
        range: 1..=limits::STRIPE_COUNT_MAX as u64,
        unit: 1,
        size_bytes: None,
        get: |parameters| match parameters.default_layout.stripe_count {
            ResolvedCount::AtMost(count) | ResolvedCount::Overstriped(count) | ResolvedCount::PerOst(count) => {
                u64::from(count)
            }
            ResolvedCount::All => u64::from(limits::STRIPE_COUNT_MAX),
        },
        set: |parameters, value| {
            parameters.default_layout.stripe_count = ResolvedCount::AtMost(value as u32);
            parameters.default_layout.automatic = false;
        },
    },
    Number {
        name: "lod.stripesize",
        doc: "bytes per stripe of files without an explicit layout, a multiple of 65536; setting it switches automatic layouts off",
        range: limits::STRIPE_BYTES_MIN..=limits::STRIPE_BYTES_MAX,
        unit: limits::STRIPE_BYTES_MIN,
        size_bytes: Some(1),
        get: |parameters| parameters.default_layout.stripe_bytes,
        set: |parameters, value| {
            parameters.default_layout.stripe_bytes = value;
            parameters.default_layout.automatic = false;
        },
    },
    Number {
        name: "lod.dom_stripesize",
        doc: "largest number of bytes of a file on the metadata target; a multiple of 65536, 0: none",
        range: 0..=limits::BULK_BYTES_MAX as u64,
        unit: limits::STRIPE_BYTES_MIN,
        size_bytes: Some(1),
        get: |parameters| parameters.bytes_on_mdt_max,
        set: |parameters, value| parameters.bytes_on_mdt_max = value,
    },
    Number {
        name: "lod.migrate_mbps",
        doc: "bandwidth in MB/s for migrating finished files with a poor layout in the background; 0: none are migrated",
        range: 0..=1_000_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.migration_bytes_per_second / 1_000_000,
        set: |parameters, value| parameters.migration_bytes_per_second = value * 1_000_000,
    },
    Number {
        name: "lod.qos_threshold_rr",
        doc: "percent by which free space may differ before placement takes it into account",
        range: 0..=100,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.placement.qos_threshold_rr),
        set: |parameters, value| parameters.placement.qos_threshold_rr = value as u32,
    },
    Number {
        name: "lod.qos_prio_free",
        doc: "percent by which free space outweighs even distribution",
        range: 0..=100,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.placement.qos_prio_free),
        set: |parameters, value| parameters.placement.qos_prio_free = value as u32,
    },
    Number {
        name: "lod.mdt_qos_threshold_rr",
        doc: "percent by which free space of metadata targets may differ before new directories that are spread over them go by it",
        range: 0..=100,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.directory_placement.qos_threshold_rr),
        set: |parameters, value| parameters.directory_placement.qos_threshold_rr = value as u32,
    },
    Number {
        name: "lod.mdt_qos_prio_free",
        doc: "percent by which free space of metadata targets outweighs even distribution of such directories",
        range: 0..=100,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.directory_placement.qos_prio_free),
        set: |parameters, value| parameters.directory_placement.qos_prio_free = value as u32,
    },
    Number {
        name: "lod.reserved_permille",
        doc: "thousandths of an OST's space; while it has less free, other OSTs get new objects first",
        range: 0..=1000,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.placement.reserved_permille),
        set: |parameters, value| parameters.placement.reserved_permille = value as u32,
    },
    Number {
        name: "lod.reserved_mib",
        doc: "free space of an OST in MiB; while it has less, other OSTs get new objects first",
        range: 0..=1 << 30,
        unit: 1,
        size_bytes: Some(1 << 20),
        get: |parameters| parameters.placement.reserved_bytes >> 20,
        set: |parameters, value| parameters.placement.reserved_bytes = value << 20,
    },
    Number {
        name: "osp.maxage_ms",
        doc: "milliseconds between queries of the space of the OSTs, shorter while one fills up, and of other metadata targets",
        range: 10..=3_600_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.ost_refresh.as_millis() as u64,
        set: |parameters, value| parameters.ost_refresh = Duration::from_millis(value),
    },
    Number {
        name: "mdt.removal_grace_ms",
        doc: "milliseconds during which a process that looked up a file before its removal can still open it",
        range: 0..=60_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.removal_grace.as_millis() as u64,
        set: |parameters, value| parameters.removal_grace = Duration::from_millis(value),
    },
    Number {
        name: "mdt.cache_locks",
        doc: "1: clients are granted locks under which they cache names and attributes; 0: none are granted from now on",
        get: |parameters| u64::from(parameters.cache_locks),
        set: |parameters, value| parameters.cache_locks = value == 1,
        ..SWITCH
    },
    Number {
        name: "mdt.open_locks",
        doc: "1: locks let clients open files and directories for reading without a request; 0: not from now on",
        get: |parameters| u64::from(parameters.open_locks),
        set: |parameters, value| parameters.open_locks = value == 1,
        ..SWITCH
    },
    Number {
        name: "mdt.enable_dir_auto_split",
        doc: "1: a directory without stripes that has dir_split_count names gets some, if there are several metadata targets",
        get: |parameters| u64::from(parameters.splits_directories),
        set: |parameters, value| parameters.splits_directories = value == 1,
        ..SWITCH
    },
    Number {
        name: "mdt.dir_split_count",
        doc: "names with which a directory splits by itself, if it may (enable_dir_auto_split)",
        range: 2..=limits::SPLIT_NAMES_MAX as u64 / 2,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.split_names,
        set: |parameters, value| parameters.split_names = value,
    },
    Number {
        name: "mdt.dir_split_hot",
        doc: "names made and removed per second in a directory, by several clients, with which it splits by itself, if it may (enable_dir_auto_split), that lasts for 10 seconds, and is half of what its target counts; 0: with none",
        range: 0..=10_000_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.hot_changes_per_second,
        set: |parameters, value| parameters.hot_changes_per_second = value,
    },
    Number {
        name: "mdt.dir_split_delta",
        doc: "stripes on other metadata targets that such a directory gets, if there are so many",
        range: 1..=limits::SHARDS_MAX as u64 - 1,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.split_delta),
        set: |parameters, value| parameters.split_delta = value as u16,
    },
    Number {
        name: "mdt.dir_merge_count",
        doc: "names with which a directory that has split by itself gets them back from its stripes; at most a quarter of dir_split_count counts; 0: never",
        range: 0..=limits::SPLIT_NAMES_MAX as u64 / 4,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.merge_names,
        set: |parameters, value| parameters.merge_names = value,
    },
    Number {
        name: "mdt.balance_rate",
        doc: "inodes per second that move to other metadata targets in the background, with their directories, while this one has clearly more than its part; 0: none",
        range: 0..=100_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.balance.inodes_per_second,
        set: |parameters, value| parameters.balance.inodes_per_second = value,
    },
    Number {
        name: "mdt.balance_threshold",
        doc: "percent by which a metadata target has more inodes than its part, by what each has room for, before some move (balance_rate); until it is a quarter of that",
        range: 1..=1000,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.balance.threshold_pct),
        set: |parameters, value| parameters.balance.threshold_pct = value as u32,
    },
    Number {
        name: "mdt.balance_min",
        doc: "inodes that a metadata target has more than its part, at least, before some move (balance_rate)",
        range: 1..=1_000_000_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.balance.inodes_min,
        set: |parameters, value| parameters.balance.inodes_min = value,
    },
    Number {
        name: "mdt.balance_idle",
        doc: "seconds for which nothing in a directory was made, used, changed or moved before it moves (balance_rate)",
        range: 0..=100_000_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.balance.idle.as_secs(),
        set: |parameters, value| parameters.balance.idle = Duration::from_secs(value),
    },
    Number {
        name: "mdt.mdt_timeout",
        doc: "seconds for which another metadata target may be silent before operations that need it fail with an input/output error; 0: they wait until it is back, or are killed",
        range: 0..=86_400,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.mdt_silence.as_secs(),
        set: |parameters, value| parameters.mdt_silence = Duration::from_secs(value),
    },
    Number {
        name: "mdt.ldlm_timeout",
        doc: "seconds a client has to give back a lock before it is evicted; up to three times as many if it is busy",
        range: 1..=3600,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.lock_timeout.as_secs(),
        set: |parameters, value| parameters.lock_timeout = Duration::from_secs(value),
    },
];

impl Number {
    /// The name of the parameter at a target.
    fn at(&self, target: &str) -> String {
        let (kind, leaf) = self.name.split_once('.').expect("names have two parts");
        let part = if kind == "mdt" { "" } else { "-mdtlov" };
        format!("{kind}.{target}{part}.{leaf}")
    }

    /// The value that a text stands for, or what is wrong with it.
    fn parse(&self, text: &str) -> Result<u64, String> {
        let value = match self.size_bytes {
            Some(bytes) => parse_size(text, bytes, &self.range)?,
            None => parse_number(text, &self.range)?,
        };
        match value.is_multiple_of(self.unit) {
            true => Ok(value),
            false => Err(format!("expected a multiple of {}", self.unit)),
        }
    }
}

/// Registers the numbers of a target that is not there yet: they check values, and keep none.
pub fn register_checks(tree: &ParameterTree, target: &str) -> Result<(), ParameterError> {
    NUMBERS.into_iter().try_for_each(|number| {
        let (name, range) = (number.at(target), number.range.clone());
        let check = move |text: &str| number.parse(text).map(drop);
        tree.register(&name, Parameter::writable("", String::new, check).within(range))
    })
}

/// Registers what `mdt` has.
pub fn register(tree: &ParameterTree, mdt: &Arc<Mdt>) -> Result<(), ParameterError> {
    for number in NUMBERS {
        let (shown, changed, get) = (Arc::clone(mdt), Arc::clone(mdt), number.get);
        let (name, doc, range) = (number.at(mdt.name()), number.doc, number.range.clone());
        let parameter = Parameter::writable(
            doc,
            move || get(&shown.parameters()).to_string(),
            move |text| {
                let value = number.parse(text)?;
                let mut parameters = changed.parameters();
                (number.set)(&mut parameters, value);
                changed.set_parameters(parameters);
                Ok(())
            },
        )
        .within(range);
        tree.register(&name, parameter)?;
    }
    let prefix = format!("mdt.{}", mdt.name());
    let (shown, reset) = (Arc::clone(mdt), Arc::clone(mdt));
    let get = move || {
        let lines = shown.statistics().read().into_iter().filter(|(_, count)| *count > 0);
        lines.map(|(name, count)| format!("{name:<24} {count} samples [reqs]\n")).collect()
    };
    let set = move |_: &str| {
        reset.statistics().clear();
        Ok(())
    };
    let doc = "operations; writing anything resets them";
    tree.register(&format!("{prefix}.md_stats"), Parameter::writable(doc, get, set))?;
    let shown = Arc::clone(mdt);
    let get = move || shown.open_files().to_string();
    tree.register(&format!("{prefix}.open_files"), Parameter::read_only("files open on this target", get))?;
    let shown = Arc::clone(mdt);
    let get = move || shown.cache_locks().0.to_string();
    tree.register(&format!("{prefix}.lock_count"), Parameter::read_only(LOCK_COUNT, get))?;
    let shown = Arc::clone(mdt);
    let get = move || {
        let LockCounters { granted, revoked, blocked } = shown.cache_locks().1;
        format!("granted: {granted}\nrevoked: {revoked}\nblocked_changes: {blocked}")
    };
    let doc = "locks granted, locks revoked, and changes that waited for revocations, since the target started";
    tree.register(&format!("{prefix}.lock_stats"), Parameter::read_only(doc, get))?;
    let shown = Arc::clone(mdt);
    let get = move || shown.undurable_age().as_millis().to_string();
    let doc = "age of the oldest change that a power loss could lose";
    tree.register(&format!("{prefix}.undurable_age_ms"), Parameter::read_only(doc, get))?;
    let shown = Arc::clone(mdt);
    let status = move || match shown.recovering_clients().len() {
        0 => "status: COMPLETE".to_owned(),
        count => format!("status: RECOVERING\nclients_missing: {count}"),
    };
    tree.register(&format!("{prefix}.recovery_status"), Parameter::read_only("recovery after a restart", status))?;
    register_namespace(tree, mdt)
}

/// The name of a target's lock namespace, which differs from that of a client's locks of the same
/// target.
pub fn lock_namespace(target: &str) -> String {
    format!("ldlm.namespaces.mdt-{target}_UUID")
}

/// The locks under which clients cache, as Lustre's servers show them.
fn register_namespace(tree: &ParameterTree, mdt: &Arc<Mdt>) -> Result<(), ParameterError> {
    let prefix = lock_namespace(mdt.name());
    let shown = Arc::clone(mdt);
    let get = move || shown.cache_locks().0.to_string();
    tree.register(&format!("{prefix}.lock_count"), Parameter::read_only(LOCK_COUNT, get))?;
    let get = || "0".to_owned();
    let doc = "locks that the server could drop by itself: none, only their clients give them back";
    tree.register(&format!("{prefix}.lock_unused_count"), Parameter::read_only(doc, get))?;
    let shown = Arc::clone(mdt);
    let get = move || shown.locked_inodes().to_string();
    let doc = "inodes on which clients have such locks";
    tree.register(&format!("{prefix}.resource_count"), Parameter::read_only(doc, get))?;
    let shown = Arc::clone(mdt);
    let get = move || shown.lock_timeouts().to_string();
    let doc =
        "clients evicted because they did not give back a lock, or did not answer, in time, since the target started";
    tree.register(&format!("{prefix}.lock_timeouts"), Parameter::read_only(doc, get))
}
