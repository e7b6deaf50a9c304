//! Parameters of pools at metadata targets (`lod.*.pool.NAME.*`): they come and go with the pools.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc};

use mds::Mdt;
use rpc::message::mgs::Pool;
use rt::parameters::{Parameter, ParameterError, ParameterTree, parse_number};

/// Thresholds.
pub const PERCENT: RangeInclusive<u64> = 0..=100;

/// Keeps the tree's parameters of pools.
pub struct PoolParameters {
    tree: ParameterTree,
    mdts: Vec<Arc<Mdt>>,
    /// Pools that have theirs.
    registered: BTreeSet<String>,
}

impl PoolParameters {
    /// None yet.
    pub fn new(tree: &ParameterTree, mdts: Vec<Arc<Mdt>>) -> Self {
        Self { tree: tree.clone(), mdts, registered: BTreeSet::new() }
    }

    /// Takes over which pools there are, as the metadata targets know them already.
    pub fn follow(&mut self, pools: &[Pool]) {
        let present: BTreeSet<String> = pools.iter().map(|pool| pool.name.clone()).collect();
        for gone in self.registered.difference(&present) {
            for mdt in &self.mdts {
                self.tree.unregister(&prefix(mdt, gone));
            }
        }
        for pool in present.difference(&self.registered) {
            for mdt in &self.mdts {
                if let Err(error) = register(&self.tree, mdt, pool) {
                    tracing::warn!("parameters of pool {pool}: {error}");
                }
            }
        }
        self.registered = present;
    }
}

fn prefix(mdt: &Mdt, pool: &str) -> String {
    format!("lod.{}-mdtlov.pool.{pool}", mdt.name())
}

fn register(tree: &ParameterTree, mdt: &Arc<Mdt>, pool: &str) -> Result<(), ParameterError> {
    let prefix = prefix(mdt, pool);
    let (shown, changed, name, own) = (Arc::clone(mdt), Arc::clone(mdt), pool.to_owned(), pool.to_owned());
    let get = move || shown.spill(&name).and_then(|spill| spill.target).unwrap_or_default();
    let set = move |text: &str| {
        let target = Some(text.trim()).filter(|target| !target.is_empty());
        changed.set_spill_target(&own, target).map_err(|error| error.to_string())
    };
    let doc = "pool that gets new files while this pool's use is above its threshold; empty: none";
    tree.register(&format!("{prefix}.spill_target"), Parameter::writable(doc, get, set).with_default())?;
    let (shown, changed, name, own) = (Arc::clone(mdt), Arc::clone(mdt), pool.to_owned(), pool.to_owned());
    let get = move || shown.spill(&name).unwrap_or_default().threshold_pct.to_string();
    let set = move |text: &str| {
        let percent = parse_number(text, &PERCENT)? as u32;
        changed.set_spill_threshold(&own, percent).map_err(|error| error.to_string())
    };
    let doc =
        "percent of the pool's space in use above which new files go to its spill target; 0: never, and clears it";
    let parameter = Parameter::writable(doc, get, set).within(PERCENT);
    tree.register(&format!("{prefix}.spill_threshold_pct"), parameter)?;
    let (shown, name) = (Arc::clone(mdt), pool.to_owned());
    let get = move || shown.spill(&name).unwrap_or_default().hits.to_string();
    tree.register(&format!("{prefix}.spill_hit"), Parameter::read_only("requests that went to the spill target", get))
}
