//! Parameters of a target in the parameter tree, under Lustre's names: `obdfilter.<target>.<name>`.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rt::parameters::{Parameter, ParameterError, ParameterTree, parse_number, parse_size};
use types::SpaceUsage;

use crate::{
    Ost, OstOptions, RateLimit,
    options::{IN_PLACE_BYTES_MIN, OVERWRITE_BYTES_MIN},
};

/// Intervals in milliseconds: up to a day.
pub const INTERVALS_MS: RangeInclusive<u64> = 1..=86_400_000;
/// Amounts of space in MiB: up to 1 PiB.
pub const MEBIBYTES: RangeInclusive<u64> = 0..=1 << 30;
/// Shortest overwrites that go to the device at once, in KiB.
pub const OVERWRITE_KIBIBYTES: RangeInclusive<u64> = OVERWRITE_BYTES_MIN >> 10..=IN_PLACE_BYTES_MIN >> 10;
/// Limits in MiB per second: up to 1 TiB.
pub const LIMIT_MBPS: RangeInclusive<u64> = 0..=1 << 20;
/// Parts of the time.
pub const PERCENT: RangeInclusive<u64> = 0..=100;
/// Latency, and what is saved up, in microseconds: up to ten seconds.
pub const LIMIT_LATENCY_US: RangeInclusive<u64> = 0..=10_000_000;

impl RateLimit {
    /// The rate as a parameter of whatever is limited.
    pub fn rate_parameter(self: &Arc<Self>, doc: &'static str) -> Parameter {
        let (get, set) = (self.clone(), self.clone());
        Parameter::writable(
            doc,
            move || (get.bytes_per_second() >> 20).to_string(),
            move |text| {
                set.set_bytes_per_second(parse_number(text, &LIMIT_MBPS)? << 20);
                Ok(())
            },
        )
        .within(LIMIT_MBPS)
    }

    fn latency_parameter(self: &Arc<Self>, doc: &'static str) -> Parameter {
        let (get, set) = (self.clone(), self.clone());
        Parameter::writable(
            doc,
            move || get.latency().as_micros().to_string(),
            move |text| {
                set.set_latency(Duration::from_micros(parse_number(text, &LIMIT_LATENCY_US)?));
                Ok(())
            },
        )
        .within(LIMIT_LATENCY_US)
    }

    fn burst_parameter(self: &Arc<Self>, doc: &'static str) -> Parameter {
        let (get, set) = (self.clone(), self.clone());
        Parameter::writable(
            doc,
            move || get.burst().as_micros().to_string(),
            move |text| {
                set.set_burst(Duration::from_micros(parse_number(text, &LIMIT_LATENCY_US)?));
                Ok(())
            },
        )
        .within(LIMIT_LATENCY_US)
    }
}

impl Ost {
    /// Adds this target's parameters to a tree; they keep the target alive until they are
    /// unregistered ([`Ost::unregister_parameters`]).
    pub fn register_parameters(self: &Arc<Self>, tree: &ParameterTree) -> Result<(), ParameterError> {
        let all = [
            self.conditions(),
            self.settings(),
            self.limits(),
            self.space_parameters(),
            self.statistics_parameters(),
            self.allocator_parameters(),
            self.scrub_parameters(),
        ];
        for (name, parameter) in all.into_iter().flatten() {
            tree.register(&format!("obdfilter.{}.{name}", self.name()), parameter)?;
        }
        Ok(())
    }

    /// Takes them out again.
    pub fn unregister_parameters(&self, tree: &ParameterTree) {
        tree.unregister(&format!("obdfilter.{}", self.name()));
    }

    fn conditions(self: &Arc<Self>) -> Vec<(&'static str, Parameter)> {
        let flag = |doc, flag: fn(&Ost) -> &AtomicBool| {
            let (get, set) = (self.clone(), self.clone());
            Parameter::writable(
                doc,
                move || u8::from(flag(&get).load(Ordering::Relaxed)).to_string(),
                move |text| {
                    flag(&set).store(parse_number(text, &(0..=1))? == 1, Ordering::Relaxed);
                    Ok(())
                },
            )
            .within(0..=1)
        };
        vec![
            ("degraded", flag("1: an underlying device works, but is degraded", |ost| &ost.degraded)),
            ("no_create", flag("1: new files get no objects on this target", |ost| &ost.no_create)),
            ("readonly", flag("1: changes are refused", |ost| &ost.read_only)),
            ("failure", self.shown("why changes are refused after a device failure", |ost| ost.failure())),
        ]
    }

    fn settings(self: &Arc<Self>) -> Vec<(&'static str, Parameter)> {
        let interval = |doc, field: fn(&mut OstOptions) -> &mut Duration| {
            let get = move |options: &mut OstOptions| field(options).as_millis() as u64;
            let set = move |options: &mut OstOptions, ms| *field(options) = Duration::from_millis(ms);
            self.setting(doc, |text| parse_number(text, &INTERVALS_MS), get, set).within(INTERVALS_MS)
        };
        let space = |doc, field: fn(&mut OstOptions) -> &mut u64| {
            let get = move |options: &mut OstOptions| *field(options) >> 20;
            let set = move |options: &mut OstOptions, mebibytes: u64| *field(options) = mebibytes << 20;
            self.setting(doc, |text| parse_size(text, 1 << 20, &MEBIBYTES), get, set).within(MEBIBYTES)
        };
        let (get, set) = (self.clone(), self.clone());
        let discard = Parameter::writable(
            "1: the device is told which blocks became free (a block device by BLKDISCARD, a file gets holes)",
            move || u8::from(get.directory.discards()).to_string(),
            move |text| {
                let wanted = parse_number(text, &(0..=1))? == 1;
                if let Some(reason) = set.directory.refuses_discards().filter(|_| wanted) {
                    return Err(reason.to_owned());
                }
                set.options.lock().discard = wanted;
                Ok(())
            },
        );
        let defrag = |doc, range: RangeInclusive<u64>, get: fn(&OstOptions) -> u64, set: fn(&mut OstOptions, u64)| {
            let (read, written, allowed) = (self.clone(), self.clone(), range.clone());
            let shown = move || match read.directory.refuses_defrag() {
                Some(reason) => reason.to_owned(),
                None => get(&read.options.lock()).to_string(),
            };
            let changed = move |text: &str| {
                let value = parse_number(text, &allowed)?;
                written.directory.refuses_defrag().map_or(Ok(()), |reason| Err(reason.to_owned()))?;
                set(&mut written.options.lock(), value);
                Ok(())
            };
            Parameter::writable(doc, shown, changed).within(range)
        };
        vec![
            ("discard", discard.within(0..=1)),
            (
                "defrag_mbps",
                defrag(
                    "MiB/s that are moved on the device to merge extents of objects that are read; 0: none",
                    LIMIT_MBPS,
                    |options| options.defrag_bytes_per_second >> 20,
                    |options, mebibytes| options.defrag_bytes_per_second = mebibytes << 20,
                ),
            ),
            (
                "defrag_busy_pct",
                defrag(
                    "merges extents only while requests keep the device busy for at most this percentage of the time",
                    PERCENT,
                    |options| options.defrag_busy_percent,
                    |options, percent| options.defrag_busy_percent = percent,
                ),
            ),
            (
                "commit_interval_ms",
                interval("longest time in ms that written data stay unflushed", |options| &mut options.commit_interval),
            ),
            (
                "writeback_idle_ms",
                interval("idle time in ms after which inline data are written back to host files", |options| {
                    &mut options.write_back_idle
                }),
            ),
            (
                "writeback_mb",
                space("inline data of large objects, in MiB, above which they are written back", |options| {
                    &mut options.write_back_bytes
                }),
            ),
            (
                "overwrite_kb",
                self.setting(
                    "shortest overwrites in KiB that go to new places on the device at once; shorter ones are inline",
                    |text| parse_size(text, 1 << 10, &OVERWRITE_KIBIBYTES),
                    |options| options.overwrite_bytes_min >> 10,
                    |options, kibibytes| options.overwrite_bytes_min = kibibytes << 10,
                )
                .within(OVERWRITE_KIBIBYTES),
            ),
            (
                "reserved_mb",
                space("space in MiB kept free for tables, overwriting and deletes", |options| {
                    &mut options.reserve_bytes
                }),
            ),
        ]
    }

    fn limits(self: &Arc<Self>) -> Vec<(&'static str, Parameter)> {
        let rate = "limit in MiB/s of this target for reads and writes, for studies; 0: none";
        let latency = "microseconds added to every read and write, for studies";
        let burst = "microseconds that the limits of an idle target save up, for studies";
        vec![
            ("limit_burst_us", self.limit().burst_parameter(burst)),
            ("limit_mbps", self.limit().rate_parameter(rate)),
            ("limit_latency_us", self.limit().latency_parameter(latency)),
        ]
    }

    fn space_parameters(self: &Arc<Self>) -> Vec<(&'static str, Parameter)> {
        let number = |doc, number: fn(SpaceUsage) -> u64| {
            self.shown(doc, move |ost| number(ost.directory.last_space()).to_string())
        };
        vec![
            ("kbytestotal", number("size in KiB", |space| space.bytes_total / 1024)),
            ("kbytesfree", number("free KiB", |space| space.bytes_free / 1024)),
            ("kbytesavail", number("free KiB for users", |space| space.bytes_available / 1024)),
            ("filestotal", number("objects it can hold", |space| space.inodes_total)),
            ("filesfree", number("number of objects that can still be created", |space| space.inodes_free)),
        ]
    }

    fn statistics_parameters(self: &Arc<Self>) -> Vec<(&'static str, Parameter)> {
        let table = |doc, table: fn(&Ost) -> String| {
            let (get, set) = (self.clone(), self.clone());
            let reset = move |_: &str| {
                set.statistics().reset();
                Ok(())
            };
            Parameter::writable(doc, move || table(&get), reset)
        };
        let (get, set) = (self.clone(), self.clone());
        let defrag_stats = Parameter::writable(
            "extents that were merged, and what was left alone; writing anything resets the counts",
            move || get.directory.defrag_stats(),
            move |_| {
                set.directory.reset_defrag_stats();
                Ok(())
            },
        );
        vec![
            ("defrag_stats", defrag_stats),
            (
                "stats",
                table("requests and bytes; writing anything resets them", |ost| {
                    ost.statistics().counters().to_string()
                }),
            ),
            (
                "brw_stats",
                table("requests by size; writing anything resets them", |ost| ost.statistics().counters().brw_stats()),
            ),
            ("uuid", self.shown("identity", |ost| ost.uuid())),
            ("dirty_files", self.shown("files with unflushed data", |ost| ost.directory.dirty_files().to_string())),
            (
                "undurable_age_ms",
                self.shown("age of the oldest change that a power loss could lose", |ost| {
                    ost.undurable_age().as_millis().to_string()
                }),
            ),
            (
                "writeback_pending_bytes",
                self.shown("inline data waiting for write-back", |ost| ost.directory.write_back_bytes().to_string()),
            ),
            (
                "mb_stats",
                self.shown("blocks of the device, as its allocator counts them", |ost| ost.directory.mb_stats()),
            ),
            (
                "write_stats",
                self.shown("bytes written to the device and the journal, by cause", |ost| ost.directory.write_stats()),
            ),
            (
                "mb_groups",
                self.shown("free blocks of each allocation group of the device", |ost| ost.directory.mb_groups()),
            ),
            (
                "evicted_clients",
                self.shown("clients that are refused permanently", |ost| ost.evictions.count().to_string()),
            ),
        ]
    }

    pub(crate) fn shown(
        self: &Arc<Self>,
        doc: &'static str,
        show: impl Fn(&Ost) -> String + Send + Sync + 'static,
    ) -> Parameter {
        let ost = self.clone();
        Parameter::read_only(doc, move || show(&ost))
    }

    pub(crate) fn setting(
        self: &Arc<Self>,
        doc: &'static str,
        parse: impl Fn(&str) -> Result<u64, String> + Send + Sync + 'static,
        get: impl Fn(&mut OstOptions) -> u64 + Send + Sync + 'static,
        set: impl Fn(&mut OstOptions, u64) + Send + Sync + 'static,
    ) -> Parameter {
        let (read, written) = (self.clone(), self.clone());
        Parameter::writable(
            doc,
            move || get(&mut read.options.lock()).to_string(),
            move |text| {
                let value = parse(text)?;
                set(&mut written.options.lock(), value);
                Ok(())
            },
        )
    }
}
