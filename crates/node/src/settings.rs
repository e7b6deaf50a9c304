//! Settings that last: those with which a process was started, and the permanent ones of the file
//! system, as the cluster map has them.
//!
//! Life cycle: a thread of their own, because reading a parameter may wait. After each cluster map,
//! and when the mount has begun to connect to further targets, it registers the parameters that
//! came with pools and targets, and sets what is to be set: new names by all settings, the others
//! by those that are new.
//!
//! Promise: a parameter has the value that it would have after a restart, unless it was set by hand
//! since the first cluster map, or a setting for it was removed: that changes nothing in a running
//! process.

use std::{collections::BTreeSet, sync::Arc};

use rt::parameters::{ParameterError, ParameterTree};
use tokio::sync::watch;

use super::{Node, pool_parameters::PoolParameters, target_parameters::TargetParameters};

/// A name or pattern, and a value.
pub type Setting = (String, String);

/// What is set in a tree.
pub struct Settings {
    tree: ParameterTree,
    /// Of this process: permanent ones come after them.
    own: Vec<Setting>,
    permanent: Vec<Setting>,
    /// Names for which all of these are set.
    names: BTreeSet<String>,
}

impl Settings {
    /// Those of this process, which are set already.
    pub fn new(tree: &ParameterTree, own: Vec<Setting>) -> Self {
        Self { tree: tree.clone(), own, permanent: Vec::new(), names: tree.names() }
    }

    /// Takes over the permanent settings. Names that this process does not have are for others.
    pub fn follow(&mut self, permanent: &[Setting]) {
        let names = self.tree.names();
        let (known, new) = permanent.split_at(still_set(&self.permanent, permanent));
        if !names.is_subset(&self.names) {
            let is_new = |name: &str| !self.names.contains(name);
            for setting in self.own.iter().chain(known) {
                self.set(setting, &is_new);
            }
        }
        for setting in new {
            self.set(setting, &|_| true);
        }
        self.permanent = permanent.to_vec();
        self.names = names;
    }

    fn set(&self, (pattern, value): &Setting, is_wanted: &dyn Fn(&str) -> bool) {
        match self.tree.set_those(pattern, value, is_wanted) {
            Ok(_) | Err(ParameterError::Unknown(_)) => {}
            Err(error) => tracing::warn!("cannot set {pattern}={value}: {error}"),
        }
    }
}

/// How many of the settings, from the first one on, were set before in the same order. From there
/// on they are set in order: a pattern that is set again wins over what was set since.
fn still_set(before: &[Setting], settings: &[Setting]) -> usize {
    let mut before = before.iter();
    settings.iter().take_while(|setting| before.any(|earlier| earlier == *setting)).count()
}

/// Keeps the parameters of pools and of a mount's targets, which the caller has registered as far
/// as they are known, and the settings, until the answer is dropped.
pub fn keep(
    mut targets: TargetParameters,
    tree: &ParameterTree,
    node: &Node,
    own: Vec<Setting>,
) -> std::io::Result<watch::Sender<()>> {
    let (stop, mut stopped) = watch::channel(());
    let (cores, mut maps, mut applied) = (node.cores().clone(), node.watcher.subscribe(), node.applied.clone());
    let mdts = node.mdts.iter().map(|mdt| Arc::clone(&mdt.target)).collect();
    let mut pools = PoolParameters::new(tree, mdts);
    let mut settings = Settings::new(tree, own);
    std::thread::Builder::new().name("parameters".to_owned()).spawn(move || {
        loop {
            let map = maps.borrow_and_update().clone();
            // The metadata targets must know of a pool before anything is set for it.
            let goes_on = cores.block_on(async {
                tokio::select! {
                    applied = applied.wait_for(|version| *version >= map.version) => applied.is_ok(),
                    _ = stopped.changed() => false,
                }
            });
            if !goes_on {
                return;
            }
            pools.follow(&map.pools);
            if let Err(error) = targets.follow() {
                tracing::warn!("parameters of a target: {error}");
            }
            settings.follow(&map.parameters);
            let goes_on = cores.block_on(async {
                tokio::select! {
                    changed = maps.changed() => changed.is_ok(),
                    () = targets.changed() => true,
                    _ = stopped.changed() => false,
                }
            });
            if !goes_on {
                return;
            }
        }
    })?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Duration,
    };

    use rpc::message::{
        MgsRequest,
        mgs::{Register, TargetRole},
        ost::TargetCondition,
    };
    use rt::{parameters::Parameter, real::Cores};
    use types::{OstIndex, SpaceUsage};

    use super::*;
    use crate::{NodeOptions, parameters};

    fn settings(settings: &[(&str, u64)]) -> Vec<Setting> {
        settings.iter().map(|(pattern, value)| ((*pattern).to_owned(), value.to_string())).collect()
    }

    fn register(tree: &ParameterTree, name: &str) -> Arc<AtomicU64> {
        let value = Arc::new(AtomicU64::new(64));
        tree.register(name, Parameter::number("", value.clone(), 1..=256)).unwrap();
        value
    }

    #[test]
    fn parameters_are_as_after_a_restart() {
        let tree = ParameterTree::new();
        let [one, two] = ["osc.a.in_flight", "osc.b.in_flight"].map(|name| register(&tree, name));
        let values = || [&one, &two].map(|value| value.load(Ordering::Relaxed));
        let mut kept = Settings::new(&tree, Vec::new());
        kept.follow(&settings(&[("osc.*.in_flight", 8)]));
        assert_eq!(values(), [8, 8]);
        kept.follow(&settings(&[("osc.*.in_flight", 8), ("osc.a.in_flight", 32)]));
        assert_eq!(values(), [32, 8]);
        // What becomes the last one again wins, as after a restart.
        kept.follow(&settings(&[("osc.a.in_flight", 32), ("osc.*.in_flight", 8)]));
        assert_eq!(values(), [8, 8]);
        // What stays is not set again over a value that was set by hand.
        one.store(5, Ordering::Relaxed);
        kept.follow(&settings(&[("osc.*.in_flight", 8)]));
        kept.follow(&settings(&[("osc.*.in_flight", 8), ("osc.b.in_flight", 9)]));
        assert_eq!(values(), [5, 9]);
        // Several changes at once.
        kept.follow(&settings(&[("osc.b.in_flight", 9), ("osc.*.in_flight", 7), ("osc.a.in_flight", 6)]));
        assert_eq!(values(), [6, 7]);
    }

    #[test]
    fn names_that_come_later_are_set_by_all_settings() {
        let tree = ParameterTree::new();
        let one = register(&tree, "osc.a.in_flight");
        let mut kept = Settings::new(&tree, settings(&[("osc.*.in_flight", 4), ("osc.*.size", 3)]));
        kept.follow(&settings(&[("osc.*.in_flight", 8), ("osc.b.in_flight", 32)]));
        one.store(5, Ordering::Relaxed);
        let [two, size] = ["osc.b.in_flight", "osc.b.size"].map(|name| register(&tree, name));
        kept.follow(&settings(&[("osc.*.in_flight", 8), ("osc.b.in_flight", 32)]));
        assert_eq!([&one, &two, &size].map(|value| value.load(Ordering::Relaxed)), [5, 32, 3]);
        // Of a pool that was destroyed and made again.
        tree.unregister("osc.b");
        kept.follow(&settings(&[("osc.*.in_flight", 8), ("osc.b.in_flight", 32)]));
        let two = register(&tree, "osc.b.in_flight");
        kept.follow(&settings(&[("osc.*.in_flight", 8), ("osc.b.in_flight", 32), ("osc.b.size", 2)]));
        assert_eq!(two.load(Ordering::Relaxed), 32);
    }

    /// A new OST gets the settings that hold for all of them, in mounts that are there already.
    #[test]
    fn a_target_that_is_added_has_parameters_and_the_values_that_were_set() {
        let place = tempfile::tempdir().unwrap();
        let options = NodeOptions::up(place.path().join("data"), 1, 1);
        options.format_missing().unwrap();
        let cores = Cores::start(2).unwrap();
        let node = cores.block_on(Node::start(cores.clone(), options)).unwrap();
        cores.block_on(node.mount_client()).unwrap();
        let tree = ParameterTree::new();
        parameters::register(&tree, &node).unwrap();
        let mut targets = TargetParameters::new(&tree, &node);
        targets.follow().unwrap();
        assert_eq!(tree.list("osc.*").unwrap().len(), 1);
        let own = ("osc.*.max_pages_per_rpc".to_owned(), "16".to_owned());
        let kept = keep(targets, &tree, &node, vec![own]).unwrap();
        let call = |request| cores.block_on(node.mgs_import.call(request)).unwrap();
        call(MgsRequest::SetParameter("osc.*.tuner".to_owned(), "off".to_owned()));
        let report = Register {
            fsname: node.fsname().to_owned(),
            role: TargetRole::Ost(OstIndex(1)),
            uuid: "another".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            space: SpaceUsage::default(),
            condition: TargetCondition::default(),
        };
        call(MgsRequest::Register(report));
        let of_new = |name: &str| tree.get(&format!("osc.*OST0001-osc.{name}")).map(|found| found[0].1.clone());
        let is_set =
            || [of_new("tuner"), of_new("max_pages_per_rpc")] == ["off", "16"].map(|value| Ok(value.to_owned()));
        // Ten seconds at most.
        for _ in 0..1000 {
            if is_set() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(is_set(), "{:?}, {:?}", of_new("tuner"), of_new("max_pages_per_rpc"));
        drop(kept);
        cores.block_on(node.stop()).unwrap();
        cores.shutdown();
    }
}
