//! The names of the parameters that a process will have, known before it starts, so that unknown
//! names are refused before targets are formatted.
//!
//! The same names show whether any part of the file system has a permanent parameter.
//!
//! Downside: names and ranges are repeated here. A test compares them with those that a process
//! registers.

use std::{ops::RangeInclusive, path::PathBuf};

use anyhow::{Context, bail};
use client::JobSource;
use oss::allocator_parameters::{GROUPS, OBJECT_BLOCKS, SCANNED_RUNS, STARTS, WINDOW_BLOCKS, parse_table};
use oss::parameters::{
    INTERVALS_MS, LIMIT_LATENCY_US, LIMIT_MBPS, MEBIBYTES, OVERWRITE_KIBIBYTES, PERCENT as PERCENT_OF_TIME,
};
use oss::scrub_parameters::AUTO_SCRUB_SECONDS;
use rpc::message::mgs::{ClusterMap, TargetRole};
use rt::{
    parameters::{Parameter, ParameterError, ParameterTree, near, parse_number, parse_size},
    real::IdlePoll,
};
use types::{MdtIndex, OstIndex, limits::SESSION_SLOTS_MAX};

use super::{
    absent_parameters,
    config::{Role, TargetConfig},
    mdt_parameters, pages,
    pool_parameters::PERCENT,
    processors::CpuList,
    service_parameters::{self, SERVICES, ServerKind},
    tuner_parameters,
};

/// Seconds a call may wait for a server.
pub const TIMEOUT_SECONDS: RangeInclusive<u64> = 1..=86400;
/// Requests outstanding on one connection: as many as with Lustre are accepted, and as many are
/// outstanding as the session has slots for.
pub const RPCS_IN_FLIGHT: RangeInclusive<u64> = 1..=SESSION_SLOTS_MAX as u64;
/// Of these, those that change names or attributes at an MDT.
pub const CHANGES_IN_FLIGHT: RangeInclusive<u64> = 1..=*RPCS_IN_FLIGHT.end() - 1;
/// How long a close waits for a request that takes it along.
pub const CLOSE_DELAYS_MS: RangeInclusive<u64> = 0..=100;
/// Names whose attributes are asked for at once: an MDT answers with as many at most.
pub const STATAHEAD_NAMES: RangeInclusive<u64> = 0..=4096;
/// How long a lock is kept that is not used: ten seconds to a day.
pub const LOCK_AGES_MS: RangeInclusive<u64> = 10_000..=86_400_000;
/// Locks that a mount caches under: some 7 GiB of memory at most.
pub const LOCKS_CACHED: RangeInclusive<u64> = 0..=10_000_000;
/// `mdc.*.max_cached_small_mb`: up to a tebibyte.
pub const SMALL_CACHED_MB: RangeInclusive<u64> = 0..=1 << 20;

/// A parameter below the name of its owner, and what it takes.
struct Leaf {
    name: &'static str,
    takes: Takes,
}

/// What a parameter can be set to.
enum Takes {
    /// Nothing: it can only be read.
    Nothing,
    /// Any text.
    Text,
    /// A source of the names of jobs.
    JobSource,
    /// Whether a tuner is on.
    Tuner,
    /// Pages of a request.
    Pages,
    /// Sizes of windows.
    PreallocTable,
    /// Processors.
    Processors,
    /// When idle processors are kept from halting.
    IdlePoll,
    /// A number.
    Number(RangeInclusive<u64>),
    /// A number of KiB, or a size with a unit of its own.
    Kibibytes(RangeInclusive<u64>),
    /// A number of MiB, or a size with a unit of its own.
    Mebibytes(RangeInclusive<u64>),
}

const fn shown(name: &'static str) -> Leaf {
    Leaf { name, takes: Takes::Nothing }
}

const fn text(name: &'static str) -> Leaf {
    Leaf { name, takes: Takes::Text }
}

const fn number(name: &'static str, range: RangeInclusive<u64>) -> Leaf {
    Leaf { name, takes: Takes::Number(range) }
}

const fn mebibytes(name: &'static str, range: RangeInclusive<u64>) -> Leaf {
    Leaf { name, takes: Takes::Mebibytes(range) }
}

/// Of a process.
const OF_PROCESS: &[Leaf] = &[
    shown("cores"),
    shown("cpu_partition_table"),
    Leaf { name: "cpu_pattern", takes: Takes::Processors },
    Leaf { name: "idle_poll", takes: Takes::IdlePoll },
    shown("idle_poll_stats"),
    shown("panics"),
    shown("version"),
];
/// Of all object storage targets of a process.
const OF_OSS: &[Leaf] = &[number("limit_mbps", LIMIT_MBPS)];
/// Of a metadata target, besides the numbers that its module has.
const OF_MDT: &[Leaf] = &[
    shown("lock_count"),
    shown("lock_stats"),
    text("md_stats"),
    shown("balance"),
    shown("migration"),
    shown("open_files"),
    shown("panics"),
    shown("recovery_status"),
    shown("undurable_age_ms"),
];
/// Of the locks that a metadata target has granted.
const OF_LOCK_NAMESPACE: &[Leaf] =
    &[shown("lock_count"), shown("lock_timeouts"), shown("lock_unused_count"), shown("resource_count")];
/// Of a pool, at a metadata target.
const OF_POOL: &[Leaf] = &[shown("spill_hit"), text("spill_target"), number("spill_threshold_pct", PERCENT)];
/// Of an object storage target.
const OF_OST: &[Leaf] = &[
    number("auto_scrub", AUTO_SCRUB_SECONDS),
    text("brw_stats"),
    number("commit_interval_ms", INTERVALS_MS),
    number("defrag_busy_pct", PERCENT_OF_TIME),
    number("defrag_mbps", LIMIT_MBPS),
    text("defrag_stats"),
    number("degraded", 0..=1),
    shown("dirty_files"),
    number("discard", 0..=1),
    shown("evicted_clients"),
    shown("failure"),
    shown("filesfree"),
    shown("filestotal"),
    shown("kbytesavail"),
    shown("kbytesfree"),
    shown("kbytestotal"),
    number("limit_burst_us", LIMIT_LATENCY_US),
    number("limit_latency_us", LIMIT_LATENCY_US),
    number("limit_mbps", LIMIT_MBPS),
    number("mb_group_prealloc", WINDOW_BLOCKS),
    shown("mb_groups"),
    number("mb_large_req", OBJECT_BLOCKS),
    number("mb_last_group", GROUPS),
    number("mb_last_start", STARTS),
    number("mb_max_to_scan", SCANNED_RUNS),
    number("mb_small_req", WINDOW_BLOCKS),
    shown("mb_stats"),
    number("no_create", 0..=1),
    Leaf { name: "overwrite_kb", takes: Takes::Kibibytes(OVERWRITE_KIBIBYTES) },
    shown("panics"),
    Leaf { name: "prealloc_table", takes: Takes::PreallocTable },
    number("readonly", 0..=1),
    mebibytes("reserved_mb", MEBIBYTES),
    text("scrub"),
    number("scrub_mbps", LIMIT_MBPS),
    shown("scrub_report"),
    text("stats"),
    shown("undurable_age_ms"),
    shown("uuid"),
    shown("write_stats"),
    number("writeback_idle_ms", INTERVALS_MS),
    mebibytes("writeback_mb", MEBIBYTES),
    shown("writeback_pending_bytes"),
];
/// Of a client, and of each of its connections.
const OF_CLIENT: &[Leaf] = &[
    number("close_delay_ms", CLOSE_DELAYS_MS),
    shown("kernel_cache"),
    shown("opencount"),
    number("statahead_max", STATAHEAD_NAMES),
    text("statahead_stats"),
    text("stats"),
];
const OF_CONNECTION: &[Leaf] = &[
    Leaf { name: "max_pages_per_rpc", takes: Takes::Pages },
    number("max_rpcs_in_flight", RPCS_IN_FLIGHT),
    shown("rpc_stats"),
    shown("state"),
    Leaf { name: "tuner", takes: Takes::Tuner },
    shown("tuner_log"),
    shown("tuner_state"),
];
const OF_MOUNTS: &[Leaf] = &[
    shown("fuse.ring_entries_refused"),
    shown("fuse.transport"),
    text("jobid_name"),
    Leaf { name: "jobid_var", takes: Takes::JobSource },
    number("timeout", TIMEOUT_SECONDS),
];
/// The same, to an MDT.
const OF_MDT_CONNECTION: &[Leaf] = &[number("max_mod_rpcs_in_flight", CHANGES_IN_FLIGHT)];
/// Locks of a mount at an MDT.
const OF_LOCKS: &[Leaf] = &[
    shown("lock_count"),
    shown("lock_unused_count"),
    number("lru_max_age", LOCK_AGES_MS),
    number("lru_size", LOCKS_CACHED),
    shown("resource_count"),
];
/// Data of small files that a mount has cached of an MDT.
const OF_SMALL_FILES: &[Leaf] = &[shown("cached_small_bytes"), number("max_cached_small_mb", SMALL_CACHED_MB)];

/// The name of a client that is not there yet: the digits are drawn when it is.
pub const CLIENT: &str = "stria-0000000000000000";

/// The parts of `NAME=VALUE`.
pub fn split_assignment(assignment: &str) -> anyhow::Result<(&str, &str)> {
    assignment.split_once('=').with_context(|| format!("'{assignment}': expected NAME=VALUE"))
}

/// Refuses assignments (`NAME=VALUE`) whose names nothing will have, or that cannot be set, in a
/// process that serves these targets and, with `has_client`, mounts the file system.
pub fn check(assignments: &[String], targets: &[TargetConfig], fsname: &str, has_client: bool) -> anyhow::Result<()> {
    let tree = tree(targets, fsname, has_client)?;
    for assignment in assignments {
        set(&tree, assignment)?;
    }
    Ok(())
}

/// Sets what an assignment (`NAME=VALUE`) names; returns both parts.
pub fn set<'a>(tree: &ParameterTree, assignment: &'a str) -> anyhow::Result<(&'a str, &'a str)> {
    let (name, value) = split_assignment(assignment)?;
    if let Some(reason) = absent_parameters::reason(name) {
        bail!("cannot set {assignment}: there is no '{name}': {reason}");
    }
    tree.set(name, value).with_context(|| format!("cannot set {assignment}"))?;
    Ok((name, value))
}

/// Refuses a permanent parameter that nothing in the file system has, neither a target, also one
/// that is still to come if it is named, nor a mount; that cannot be set; or whose value its
/// owners refuse.
pub fn check_permanent(pattern: &str, value: &str, map: &ClusterMap) -> Result<(), String> {
    let mut roles: Vec<TargetRole> = map.targets.iter().map(|target| target.role).collect();
    roles.extend(named_target(pattern, &map.fsname).filter(|named| !roles.contains(named)));
    let of_role = |role: &TargetRole| match role {
        TargetRole::Mdt(mdt) => TargetConfig { role: Role::Mdt, index: mdt.0, dir: PathBuf::new(), on_device: false },
        TargetRole::Ost(ost) => TargetConfig { role: Role::Ost, index: ost.0, dir: PathBuf::new(), on_device: false },
    };
    let service = TargetConfig { role: Role::Mgs, index: 0, dir: PathBuf::new(), on_device: false };
    let targets: Vec<TargetConfig> = std::iter::once(service).chain(roles.iter().map(of_role)).collect();
    let tree = tree(&targets, &map.fsname, true).map_err(|error| error.to_string())?;
    for mdt in targets.iter().filter(|target| target.role == Role::Mdt) {
        for pool in &map.pools {
            let prefix = format!("lod.{}-mdtlov.pool.{}.", mdt.name(&map.fsname), pool.name);
            // A pool whose name cannot be part of a parameter's has none.
            let _ = add(&tree, &prefix, OF_POOL);
        }
    }
    if let Some(refusal) = not_permanent(pattern, &tree) {
        return Err(refusal);
    }
    match tree.set(pattern, value) {
        Ok(_) => Ok(()),
        Err(ParameterError::Unknown(_)) => Err(unknown(pattern, &tree)),
        Err(error) => Err(error.to_string()),
    }
}

/// Why what matches a pattern among these parameters is not set permanently, if it is so: of a
/// pattern only the last value is stored, and a rule does not replace the rule before.
pub fn not_permanent(pattern: &str, tree: &ParameterTree) -> Option<String> {
    let found = tree.list(pattern).unwrap_or_default();
    found.iter().any(|node| node.name.ends_with(".nrs_tbf_rule")).then(|| {
        "rules of tbf are not stored permanently: they are lost when the policy changes or the process stops, so set \
         them without -P on each server, after each start"
            .to_owned()
    })
}

/// The target that the second part of a name is of, as `stria-OST0007` or `stria-OST0007-osc`.
fn named_target(pattern: &str, fsname: &str) -> Option<TargetRole> {
    let rest = pattern.split(['.', '/']).nth(1)?.strip_prefix(fsname)?.strip_prefix('-')?;
    let (kind, rest) = rest.split_at_checked(3)?;
    let (digits, rest) = rest.split_at_checked(4)?;
    let is_whole = (rest.is_empty() || rest.starts_with('-')) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let index = u16::from_str_radix(digits, 16).ok().filter(|index| is_whole && *index != u16::MAX)?;
    match kind {
        "MDT" => Some(TargetRole::Mdt(MdtIndex(index))),
        "OST" => Some(TargetRole::Ost(OstIndex(index))),
        _ => None,
    }
}

/// That nothing has such a name, with what may be meant.
fn unknown(pattern: &str, tree: &ParameterTree) -> String {
    if let Some(reason) = absent_parameters::reason(pattern) {
        return format!("there is no '{pattern}': {reason}");
    }
    let nodes = tree.list_recursive("*").unwrap_or_default();
    let near = near(pattern, nodes.iter().map(|node| node.name.as_str()));
    let meant = if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(", ")) };
    format!("no target or mount of this file system has a parameter '{pattern}'{meant}; see: stria ctl list_param")
}

/// Adds parameters below `prefix` to a tree.
fn add(tree: &ParameterTree, prefix: &str, leaves: &[Leaf]) -> Result<(), ParameterError> {
    leaves.iter().try_for_each(|Leaf { name, takes }| {
        let parameter = match takes {
            Takes::Nothing => Parameter::read_only("", String::new),
            Takes::Text => Parameter::writable("", String::new, |_| Ok(())),
            Takes::JobSource => Parameter::writable("", String::new, |text| text.parse::<JobSource>().map(drop)),
            Takes::Processors => Parameter::writable("", String::new, |text| text.parse::<CpuList>().map(drop)),
            Takes::IdlePoll => Parameter::writable("", String::new, |text| text.parse::<IdlePoll>().map(drop)),
            Takes::Tuner => Parameter::writable("", String::new, |text| tuner_parameters::parse(text).map(drop)),
            Takes::PreallocTable => Parameter::writable("", String::new, |text| parse_table(text).map(drop)),
            Takes::Pages => checked(&pages::PAGES_PER_RPC, |text, _| pages::parse(text)),
            Takes::Number(range) => checked(range, parse_number),
            Takes::Kibibytes(range) => checked(range, |text, range| parse_size(text, 1 << 10, range)),
            Takes::Mebibytes(range) => checked(range, |text, range| parse_size(text, 1 << 20, range)),
        };
        tree.register(&[prefix, name].concat(), parameter)
    })
}

/// A parameter that takes what its owner would take, and keeps nothing.
fn checked(range: &RangeInclusive<u64>, parse: fn(&str, &RangeInclusive<u64>) -> Result<u64, String>) -> Parameter {
    let allowed = range.clone();
    Parameter::writable("", String::new, move |text| parse(text, &allowed).map(drop)).within(range.clone())
}

/// The names as parameters that check their values and keep none.
fn tree(targets: &[TargetConfig], fsname: &str, has_client: bool) -> Result<ParameterTree, ParameterError> {
    let tree = ParameterTree::new();
    let add = |prefix: &str, leaves: &[Leaf]| add(&tree, prefix, leaves);
    let serves = |role: Role| targets.iter().any(|target| target.role == role);
    add("", OF_PROCESS)?;
    for service in SERVICES {
        let exists = match service.server {
            ServerKind::Oss => serves(Role::Ost),
            ServerKind::Mds => serves(Role::Mdt),
            ServerKind::Mgs => serves(Role::Mgs),
            ServerKind::Any => !targets.is_empty(),
        };
        if exists {
            service_parameters::register_checks(&tree, service)?;
        }
    }
    if serves(Role::Ost) {
        add("oss.OSS.", OF_OSS)?;
    }
    for target in targets {
        let name = target.name(fsname);
        let kind = match target.role {
            Role::Mgs => continue,
            Role::Mdt => {
                add(&format!("mdt.{name}."), OF_MDT)?;
                add(&format!("{}.", mdt_parameters::lock_namespace(&name)), OF_LOCK_NAMESPACE)?;
                mdt_parameters::register_checks(&tree, &name)?;
                "mdc"
            }
            Role::Ost => {
                add(&format!("obdfilter.{name}."), OF_OST)?;
                "osc"
            }
        };
        if has_client {
            add(&format!("{kind}.{name}-{kind}."), OF_CONNECTION)?;
            if target.role == Role::Mdt {
                add(&format!("ldlm.namespaces.{name}-mdc."), OF_LOCKS)?;
                add(&format!("{kind}.{name}-{kind}."), OF_MDT_CONNECTION)?;
                add(&format!("{kind}.{name}-{kind}."), OF_SMALL_FILES)?;
            }
        }
    }
    if has_client {
        add("", OF_MOUNTS)?;
        add(&format!("llite.{CLIENT}."), OF_CLIENT)?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use rpc::message::mgs::{MapTarget, Pool, TargetState};
    use rt::{parameters::NodeKind, real::Cores};

    use super::*;
    use crate::{Node, NodeOptions, parameters, target_parameters::TargetParameters};

    /// Names of values, with whether they can be set and to what.
    fn names(tree: &ParameterTree) -> Vec<(String, bool, Option<RangeInclusive<u64>>)> {
        let nodes = tree.list_recursive("*").unwrap().into_iter();
        let mut names: Vec<_> = nodes
            .filter(|node| node.kind != NodeKind::Branch)
            .map(|node| (node.name, node.kind == NodeKind::Writable, node.range))
            .collect();
        names.sort_by(|one, other| one.0.cmp(&other.0));
        names
    }

    #[test]
    fn a_process_has_the_names_that_are_expected() {
        let place = tempfile::tempdir().unwrap();
        let options = NodeOptions::up(place.path().join("data"), 2, 2);
        options.format_missing().unwrap();
        let cores = Cores::start(2).unwrap();
        let node = cores.block_on(Node::start(cores.clone(), options.clone())).unwrap();
        for has_client in [false, true] {
            let mut client_name = CLIENT.to_owned();
            if has_client {
                client_name = cores.block_on(node.mount_client()).unwrap().name();
            }
            let found = ParameterTree::new();
            parameters::register(&found, &node).unwrap();
            TargetParameters::new(&found, &node).follow().unwrap();
            let renamed =
                |(name, writable, range): (String, _, _)| (name.replace(&client_name, CLIENT), writable, range);
            let found: Vec<_> = names(&found).into_iter().map(renamed).collect();
            let expected = names(&tree(&options.targets, "stria", has_client).unwrap());
            assert_eq!(found, expected);
        }
        cores.block_on(node.stop()).unwrap();
        cores.shutdown();
    }

    #[test]
    fn wrong_names_are_refused_before_there_is_anything() {
        let targets = NodeOptions::up("/nonexistent".into(), 1, 2).targets;
        let refusal = |assignment: &str, has_client: bool| {
            let refused = check(&[assignment.to_owned()], &targets, "stria", has_client);
            refused.map_err(|error| format!("{error:#}"))
        };
        for good in [
            "obdfilter.*.readonly=0",
            "ost.OSS.ost_io.threads_max=2",
            "mds.MDS.mdt.nrs_policies=tbf jobid",
            "ost.OSS.*.nrs_tbf_rule=start a jobid={dd.*} rate=5",
            "lod/stria-MDT0000-mdtlov/stripesize=4M",
        ] {
            assert_eq!(refusal(good, false), Ok(()), "{good}");
        }
        for (wrong, said) in [
            ("no.such=1", "cannot set no.such=1: no parameter matches 'no.such'"),
            ("version=2", "cannot set version=2: 'version' is read-only"),
            ("obdfilter.*OST0002.readonly=0", "no parameter matches 'obdfilter.*OST0002.readonly'"),
            ("timeout=3", "no parameter matches 'timeout'"),
            ("timeout", "expected NAME=VALUE"),
            ("obdfilter.*.readonly=2", "expected a number from 0 to 1"),
            ("obdfilter.*.reserved_mb=1X", "'1X' is not a value for 'obdfilter.stria-OST0000.reserved_mb'"),
            ("ost.OSS.ost_io.threads_max=many", "expected a number from 1 to 1024"),
            ("ost.OSS.ost.threads_max=0", "expected a number from 1 to 4096"),
            ("mds.MDS.mdt.threads_min=10000", "expected a number from 1 to 4096"),
            ("ost.OSS.ost_io.threads_started=3", "is read-only"),
            ("ost.OSS.ost_io.threads_max=0", "expected a number from 1 to 1024"),
            ("mds.MDS.mdt.threads_max=10000", "expected a number from 1 to 4096"),
            ("ost.OSS.ost_io.tuner=perhaps", "expected on or off"),
            ("ost.OSS.ost_io.tuner_log=", "is read-only"),
            (
                "osc.*.max_dirty_mb=32",
                "there is no 'osc.*.max_dirty_mb': a write reaches its targets before it returns",
            ),
            ("cpu_pattern=N", "expected processors such as 0-3,8, found 'N'; a process has one CPU partition"),
            ("idle_poll=always", "expected auto, on or off, found 'always'"),
            ("cores=1", "'cores' is read-only"),
            ("max_ptlrpcds=4", "there is no 'max_ptlrpcds': the number of cores, its ptlrpcd threads, is fixed"),
            ("ldlm.services.ldlm_canceld.tuner=on", "no parameter matches"),
            (
                "ost.OSS.ost_io.nrs_policies=nosuch",
                "allowed: fifo, crrn, orr, trr, tbf [nid|jobid|opcode|uid|gid|projid, or several joined by +], delay",
            ),
            ("mds.MDS.mdt.nrs_tbf_rule=start a jobid={x}", "a rule has a rate"),
            ("mds.MDS.mdt.nrs_tbf_rule=start a opcode={mds_x} rate=1", "allowed: mdt_lookup, "),
            ("ost.OSS.ost_io.nrs_orr_offset_type=physical", "allowed: logical"),
            ("ldlm.services.ldlm_canceld.nrs_policies=tbf", "no parameter matches"),
            ("lod.*.stripesize=65537", "expected a multiple of 65536"),
            ("ldlm.namespaces.mdt-*.lock_count=0", "is read-only"),
            ("ldlm.namespaces.mdt-*.contended_locks=8", "there is no 'ldlm.namespaces.mdt-*.contended_locks': a lock"),
            ("ldlm.namespaces.*.resource_count=0", "is read-only"),
            ("ldlm.namespaces.*.lock_unused_count=0", "is read-only"),
            (
                "ldlm.namespaces.*.pool.limit=100",
                "there is no 'ldlm.namespaces.*.pool.limit': there is no pool of locks",
            ),
            ("osp.*.maxage_ms=1", "expected a number from 10 to 3600000"),
        ] {
            let refused = refusal(wrong, false).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
        assert_eq!(refusal("timeout=3", true), Ok(()));
        assert!(refusal("timeout=soon", true).unwrap_err().contains("expected a number from 1 to 86400"));
        assert_eq!(refusal("llite.*.stats=0", true), Ok(()));
        assert_eq!(refusal("jobid_var=procname_uid", true), Ok(()));
        assert!(refusal("jobid_var=procname", true).unwrap_err().contains("expected one of disable, procname_uid"));
    }

    fn map() -> ClusterMap {
        let target = |role| MapTarget { role, uuid: String::new(), addresses: Vec::new(), state: TargetState::Active };
        let targets = [TargetRole::Mdt(MdtIndex(0)), TargetRole::Ost(OstIndex(0))].map(target).to_vec();
        let pools = vec![Pool { name: "fast".to_owned(), osts: Vec::new() }];
        ClusterMap { version: 1, fsname: "stria".to_owned(), targets, parameters: Vec::new(), pools }
    }

    #[test]
    fn permanent_parameters_are_those_of_any_process_of_the_file_system() {
        for good in [
            "lod.*.migrate_mbps",
            "osc/*/max_rpcs_in_flight",
            "mdc.*.max_mod_rpcs_in_flight",
            "*.*.max_pages_per_rpc",
            "timeout",
            "mgs.MGS.mgs.threads_max",
            "lod.*.pool.fast.spill_target",
            "obdfilter.stria-OST0007.no_create",
            "osc.stria-OST0007-osc.max_rpcs_in_flight",
        ] {
            assert_eq!(check_permanent(good, "1", &map()), Ok(()), "{good}");
        }
        for (pattern, value, said) in [
            ("mdc.*.max_mod_rpcs_in_flight", "256", "expected a number from 1 to 255"),
            ("osc.*.max_pages_per_rpc", "1025", "expected a number from 1 to 1024"),
            ("osc.*.max_pages_per_rpc", "5M", "4096 to 4194304 bytes"),
        ] {
            let refused = check_permanent(pattern, value, &map()).unwrap_err();
            assert!(refused.contains(said), "{pattern}={value}: {refused}");
        }
        assert_eq!(check_permanent("osc.*.max_pages_per_rpc", "1M", &map()), Ok(()));
        let refused = check_permanent("osc.*.max_rpcs_in_flight", "0", &map()).unwrap_err();
        assert!(refused.contains("'0' is not a value for 'osc.stria-OST0000-osc.max_rpcs_in_flight'"), "{refused}");
        for (wrong, said) in [
            ("lod.*.nonsense", "has a parameter 'lod.*.nonsense'; see: stria ctl list_param"),
            ("lod.*.stripcount", "(did you mean lod.*.stripecount?)"),
            ("osc.*.max_mod_rpcs_in_flight", "no target or mount"),
            ("obdfilter.stria-OST0007.nonsense", "no target or mount"),
            ("obdfilter.other-OST0007.no_create", "no target or mount"),
            ("obdfilter.stria-OSTffff.no_create", "no target or mount"),
            ("lod.*.pool.fats.spill_target", "(did you mean lod.*.pool.fast.spill_target?)"),
            ("obdfilter.*.uuid", "'obdfilter.stria-OST0000.uuid' is read-only"),
            ("ost.OSS.*.nrs_tbf_rule", "set them without -P on each server"),
            ("mds/MDS/mdt/nrs_t*", "set them without -P on each server"),
        ] {
            let refused = check_permanent(wrong, "1", &map()).unwrap_err();
            assert!(refused.contains(said), "{wrong}: {refused}");
        }
    }
}
