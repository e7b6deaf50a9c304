//! The names of the parameters that a process will have, before there is anything of it: so that who asks for one that does not
//! exist is refused before targets are made.
//!
//! Values are checked by whom they belong to, once it is there.
//!
//! Downside: the names stand here a second time. A test compares them with those that a process registers.

use anyhow::Context;
use rt::parameters::{Parameter, ParameterError, ParameterTree};

use super::{
    config::{Role, TargetConfig},
    control::split_assignment,
    parameters::SERVICES,
};

/// Below a service.
const OF_SERVICE: &[&str] = &["stats", "threads_max"];
/// Of a metadata target (`mdt`), of its choice of object storage targets (`lod`), and of its ways to them (`osp`). What ends
/// with a space can only be read.
const OF_MDT: &[&str] = &["md_stats", "migration ", "open_files ", "recovery_status ", "removal_grace_ms"];
const OF_LOD: &[&str] = &[
    "automatic",
    "dom_stripesize",
    "migrate_mbps",
    "qos_prio_free",
    "qos_threshold_rr",
    "reserved_mib",
    "reserved_permille",
    "stripecount",
    "stripesize",
];
const OF_OSP: &[&str] = &["maxage_ms"];
/// Of an object storage target.
const OF_OST: &[&str] = &[
    "brw_stats",
    "commit_interval_ms",
    "degraded",
    "dirty_files ",
    "evicted_clients ",
    "failure ",
    "filesfree ",
    "filestotal ",
    "kbytesavail ",
    "kbytesfree ",
    "kbytestotal ",
    "limit_latency_us",
    "limit_mbps",
    "no_create",
    "readonly",
    "reserved_mb",
    "stats",
    "uuid ",
    "writeback_idle_ms",
    "writeback_mb",
    "writeback_pending_bytes ",
];
/// Of a client, and of each of its connections.
const OF_CLIENT: &[&str] = &["opencount ", "stats"];
const OF_CONNECTION: &[&str] = &["max_rpcs_in_flight", "rpc_stats ", "state "];

/// The name of a client that is not there yet: the digits are drawn when it is.
pub const CLIENT: &str = "stria-0000000000000000";

/// Refuses assignments (`NAME=VALUE`) whose names nothing will have, or nobody can set, in a process that serves these targets
/// and, with `has_client`, mounts the file system.
pub fn check(assignments: &[String], targets: &[TargetConfig], fsname: &str, has_client: bool) -> anyhow::Result<()> {
    let tree = tree(targets, fsname, has_client)?;
    for assignment in assignments {
        let (name, value) = split_assignment(assignment)?;
        tree.set(name, value).with_context(|| format!("cannot set {assignment}"))?;
    }
    Ok(())
}

/// The names as parameters that take any value.
fn tree(targets: &[TargetConfig], fsname: &str, has_client: bool) -> Result<ParameterTree, ParameterError> {
    let tree = ParameterTree::new();
    let add = |prefix: &str, leaves: &[&str]| {
        leaves.iter().try_for_each(|leaf| {
            let (leaf, parameter) = match leaf.strip_suffix(' ') {
                Some(leaf) => (leaf, Parameter::read_only("", String::new)),
                None => (*leaf, Parameter::writable("", String::new, |_| Ok(()))),
            };
            tree.register(&[prefix, leaf].concat(), parameter)
        })
    };
    let serves = |role: Role| targets.iter().any(|target| target.role == role);
    add("", &["version "])?;
    for (_, prefix) in SERVICES {
        let role = match prefix.split('.').next() {
            Some("ost") => Role::Ost,
            Some("mds") => Role::Mdt,
            _ => Role::Mgs,
        };
        if serves(role) {
            add(&format!("{prefix}."), OF_SERVICE)?;
        }
    }
    if serves(Role::Ost) {
        add("oss.OSS.", &["limit_mbps"])?;
    }
    for target in targets {
        let name = target.name(fsname);
        let kind = match target.role {
            Role::Mgs => continue,
            Role::Mdt => {
                add(&format!("mdt.{name}."), OF_MDT)?;
                add(&format!("lod.{name}-mdtlov."), OF_LOD)?;
                add(&format!("osp.{name}-mdtlov."), OF_OSP)?;
                "mdc"
            }
            Role::Ost => {
                add(&format!("obdfilter.{name}."), OF_OST)?;
                "osc"
            }
        };
        if has_client {
            add(&format!("{kind}.{name}-{kind}."), OF_CONNECTION)?;
        }
    }
    if has_client {
        add("", &["timeout"])?;
        add(&format!("llite.{CLIENT}."), OF_CLIENT)?;
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use rt::{parameters::NodeKind, real::Cores};

    use super::*;
    use crate::node::{Node, NodeOptions, parameters};

    /// Names of values, with whether they can be set.
    fn names(tree: &ParameterTree) -> Vec<(String, bool)> {
        let nodes = tree.list_recursive("*").unwrap().into_iter();
        let mut names: Vec<(String, bool)> = nodes
            .filter(|node| node.kind != NodeKind::Branch)
            .map(|node| (node.name, node.kind == NodeKind::Writable))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_process_has_the_names_that_are_expected() {
        let place = tempfile::tempdir().unwrap();
        let options = NodeOptions::up(place.path().join("data"), 2);
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
            let found =
                names(&found).into_iter().map(|(name, writable)| (name.replace(&client_name, CLIENT), writable));
            let expected = names(&tree(&options.targets, "stria", has_client).unwrap());
            assert_eq!(found.collect::<Vec<_>>(), expected);
        }
        cores.block_on(node.stop()).unwrap();
        cores.shutdown();
    }

    #[test]
    fn wrong_names_are_refused_before_there_is_anything() {
        let targets = NodeOptions::up("/nonexistent".into(), 2).targets;
        let refusal = |assignment: &str, has_client: bool| {
            let refused = check(&[assignment.to_owned()], &targets, "stria", has_client);
            refused.map_err(|error| format!("{error:#}"))
        };
        for good in ["obdfilter.*.readonly=0", "ost.OSS.ost_io.threads_max=2", "lod/stria-MDT0000-mdtlov/stripesize=4M"]
        {
            assert_eq!(refusal(good, false), Ok(()), "{good}");
        }
        for (wrong, said) in [
            ("no.such=1", "cannot set no.such=1: no parameter matches 'no.such'"),
            ("version=2", "cannot set version=2: 'version' is read-only"),
            ("obdfilter.*OST0002.readonly=0", "no parameter matches 'obdfilter.*OST0002.readonly'"),
            ("timeout=3", "no parameter matches 'timeout'"),
            ("timeout", "expected NAME=VALUE"),
        ] {
            let refused = refusal(wrong, false).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
        assert_eq!(refusal("timeout=3", true), Ok(()));
        assert_eq!(refusal("llite.*.stats=0", true), Ok(()));
    }
}
