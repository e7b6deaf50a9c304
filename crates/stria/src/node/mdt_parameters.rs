//! Parameters of a metadata target, under Lustre's names (`mdt.*`, `lod.*`).

use std::{sync::Arc, time::Duration};

use layout::ResolvedCount;
use mds::{Mdt, Parameters};
use rt::parameters::{Parameter, ParameterError, ParameterTree, parse_number, parse_size};
use types::limits;

/// A number among [`Parameters`]: name below the target, explanation, range, unit, and how to read and change it.
struct Number {
    name: &'static str,
    doc: &'static str,
    range: std::ops::RangeInclusive<u64>,
    /// Values are multiples of this.
    unit: u64,
    /// Bytes that one of the number stands for, if it is a size: then it may have a unit of its own.
    size_bytes: Option<u64>,
    get: fn(&Parameters) -> u64,
    set: fn(&mut Parameters, u64),
}

const NUMBERS: [Number; 11] = [
    Number {
        name: "lod.automatic",
        doc: "1: layouts that nobody chose grow with the file, as the MDT decides; 0: stripecount and stripesize hold",
        range: 0..=1,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.default_layout.automatic),
        set: |parameters, value| parameters.default_layout.automatic = value == 1,
    },
    Number {
        name: "lod.stripecount",
        doc: "stripes of files that nobody chose a layout for; setting it ends automatic layouts",
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
        doc: "bytes per stripe of files that nobody chose a layout for, a multiple of 65536; setting it ends automatic layouts",
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
        doc: "most bytes of a file that a layout may put on the metadata target; a multiple of 65536, 0: none",
        range: 0..=limits::BULK_BYTES_MAX as u64,
        unit: limits::STRIPE_BYTES_MIN,
        size_bytes: Some(1),
        get: |parameters| parameters.bytes_on_mdt_max,
        set: |parameters, value| parameters.bytes_on_mdt_max = value,
    },
    Number {
        name: "lod.migrate_mbps",
        doc: "MB/s that finished files which lie badly for how they are read are moved with in the background; 0: none is",
        range: 0..=1_000_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.migration_bytes_per_second / 1_000_000,
        set: |parameters, value| parameters.migration_bytes_per_second = value * 1_000_000,
    },
    Number {
        name: "lod.qos_threshold_rr",
        doc: "percent by which free space may differ before placement weighs it",
        range: 0..=100,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.placement.qos_threshold_rr),
        set: |parameters, value| parameters.placement.qos_threshold_rr = value as u32,
    },
    Number {
        name: "lod.qos_prio_free",
        doc: "percent by which free space counts more than an even spread",
        range: 0..=100,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.placement.qos_prio_free),
        set: |parameters, value| parameters.placement.qos_prio_free = value as u32,
    },
    Number {
        name: "lod.reserved_permille",
        doc: "thousandths of an OST's space below which others get new objects first",
        range: 0..=1000,
        unit: 1,
        size_bytes: None,
        get: |parameters| u64::from(parameters.placement.reserved_permille),
        set: |parameters, value| parameters.placement.reserved_permille = value as u32,
    },
    Number {
        name: "lod.reserved_mib",
        doc: "free space of an OST, in MiB, below which others get new objects first",
        range: 0..=1 << 30,
        unit: 1,
        size_bytes: Some(1 << 20),
        get: |parameters| parameters.placement.reserved_bytes >> 20,
        set: |parameters, value| parameters.placement.reserved_bytes = value << 20,
    },
    Number {
        name: "osp.maxage_ms",
        doc: "milliseconds between questions for the space of the OSTs; fewer while one fills",
        range: 10..=3_600_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.ost_refresh.as_millis() as u64,
        set: |parameters, value| parameters.ost_refresh = Duration::from_millis(value),
    },
    Number {
        name: "mdt.removal_grace_ms",
        doc: "milliseconds for which a removed file can still be opened by who looked it up before",
        range: 0..=60_000,
        unit: 1,
        size_bytes: None,
        get: |parameters| parameters.removal_grace.as_millis() as u64,
        set: |parameters, value| parameters.removal_grace = Duration::from_millis(value),
    },
];

/// Registers what `mdt` has.
pub fn register(tree: &ParameterTree, mdt: &Arc<Mdt>) -> Result<(), ParameterError> {
    for Number { name, doc, range, unit, size_bytes, get, set } in NUMBERS {
        let (kind, leaf) = name.split_once('.').expect("names have two parts");
        let (shown, changed) = (Arc::clone(mdt), Arc::clone(mdt));
        let parameter = Parameter::writable(
            doc,
            move || get(&shown.parameters()).to_string(),
            move |text| {
                let value = match size_bytes {
                    Some(bytes) => parse_size(text, bytes, &range)?,
                    None => parse_number(text, &range)?,
                };
                if !value.is_multiple_of(unit) {
                    return Err(format!("expected a multiple of {unit}"));
                }
                let mut parameters = changed.parameters();
                set(&mut parameters, value);
                changed.set_parameters(parameters);
                Ok(())
            },
        );
        let part = if kind == "mdt" { "" } else { "-mdtlov" };
        tree.register(&format!("{kind}.{}{part}.{leaf}", mdt.name()), parameter)?;
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
    let status = move || match shown.recovering_clients().len() {
        0 => "status: COMPLETE".to_owned(),
        count => format!("status: RECOVERING\nclients_missing: {count}"),
    };
    tree.register(&format!("{prefix}.recovery_status"), Parameter::read_only("recovery after a restart", status))
}
