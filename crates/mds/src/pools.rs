//! Pools of OSTs as placement sees them, and where their files go when they fill up
//! (`lod.*.pool.*.spill_*`, lctl(8)).
//!
//! A pool whose used space reaches its threshold spills: a file that asks for it gets the pool to
//! which it spills instead, and shows that one from then on. No file spills to a pool of which no
//! OST accepts new objects (an empty one, for example). Pools may spill in chains; there are no
//! cycles.
//!
//! The settings of a pool are kept as long as the pool exists. They are volatile, and are restored
//! from permanent parameters.

use std::collections::BTreeMap;

use rpc::message::mgs::Pool;
use types::OstIndex;

/// Most pools that one request is passed on through (Lustre's LOD_SPILL_MAX).
const SPILLS_MAX: usize = 10;

/// Where a pool spills to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spill {
    /// The pool used instead (`spill_target`).
    pub target: Option<String>,
    /// Percent of the pool's space in use from which on it spills; 0: never
    /// (`spill_threshold_pct`).
    pub threshold_pct: u32,
    /// Requests that were passed on (`spill_hit`).
    pub hits: u64,
}

/// Why a pool cannot spill to another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpillError {
    /// There is no such pool.
    #[error("pool '{0}' does not exist")]
    NoPool(String),
    /// The target spills, by itself or through others, to the pool.
    #[error("pool '{0}' would spill to itself")]
    Circle(String),
    /// More than a hundred percent.
    #[error("{0} is not a percentage")]
    Threshold(u32),
}

#[derive(Debug, Default)]
struct Members {
    /// In ascending order.
    osts: Vec<OstIndex>,
    spill: Spill,
}

/// All pools by name.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    pools: BTreeMap<String, Members>,
}

impl Pools {
    /// Takes the pools of a map over; those that stay keep what was set for them.
    pub fn set(&mut self, pools: &[Pool]) {
        let mut known = std::mem::take(&mut self.pools);
        for Pool { name, osts } in pools {
            let spill = known.remove(name).map(|members| members.spill).unwrap_or_default();
            self.pools.insert(name.clone(), Members { osts: osts.clone(), spill });
        }
    }

    /// Whether there is such a pool.
    pub fn is_pool(&self, name: &str) -> bool {
        self.pools.contains_key(name)
    }

    /// Whether an OST is in a pool. A pool that was removed since it was asked for restricts
    /// nothing, as in Lustre.
    pub fn contains(&self, ost: OstIndex, pool: Option<&str>) -> bool {
        pool.and_then(|name| self.pools.get(name)).is_none_or(|members| members.osts.binary_search(&ost).is_ok())
    }

    /// What is set for a pool.
    pub fn spill(&self, pool: &str) -> Option<Spill> {
        self.pools.get(pool).map(|members| members.spill.clone())
    }

    /// Sets where a pool spills to; `None`: nowhere.
    pub fn set_target(&mut self, pool: &str, target: Option<&str>) -> Result<(), SpillError> {
        let absent = [Some(pool), target].into_iter().flatten().find(|name| !self.is_pool(name));
        if let Some(name) = absent {
            return Err(SpillError::NoPool(name.to_owned()));
        }
        if target.is_some_and(|target| self.leads_to(target, pool)) {
            return Err(SpillError::Circle(pool.to_owned()));
        }
        self.spill_mut(pool)?.target = target.map(str::to_owned);
        Ok(())
    }

    /// Sets from which use on a pool spills, in percent. 0 forgets where to, as Lustre does.
    pub fn set_threshold(&mut self, pool: &str, threshold_pct: u32) -> Result<(), SpillError> {
        if threshold_pct > 100 {
            return Err(SpillError::Threshold(threshold_pct));
        }
        let spill = self.spill_mut(pool)?;
        spill.threshold_pct = threshold_pct;
        if threshold_pct == 0 {
            spill.target = None;
        }
        Ok(())
    }

    /// The pool that a request for `pool` gets; `used_pct` says how much of some OSTs' space is in
    /// use, `takes_objects` whether one of them takes new objects: else nothing ends there, but
    /// goes on to a pool after it, or stays.
    pub fn pass_on(
        &mut self,
        pool: &str,
        used_pct: impl Fn(&[OstIndex]) -> Option<u32>,
        takes_objects: impl Fn(&[OstIndex]) -> bool,
    ) -> String {
        let mut name = pool.to_owned();
        // Those passed since the last pool that a request could end in.
        let (mut last, mut passed) = (name.clone(), Vec::new());
        for _ in 0..SPILLS_MAX {
            let Some(members) = self.pools.get(&name) else { break };
            let Spill { target: Some(target), threshold_pct: threshold @ 1.., .. } = &members.spill else { break };
            // A target that was removed takes nothing.
            if !self.is_pool(target) || used_pct(&members.osts).is_none_or(|used| used < *threshold) {
                break;
            }
            let target = target.clone();
            passed.push(std::mem::replace(&mut name, target));
            if self.pools.get(&name).is_some_and(|members| takes_objects(&members.osts)) {
                last.clone_from(&name);
                for pool in passed.drain(..) {
                    self.pools.entry(pool).and_modify(|members| members.spill.hits += 1);
                }
            }
        }
        last
    }

    fn spill_mut(&mut self, pool: &str) -> Result<&mut Spill, SpillError> {
        let absent = || SpillError::NoPool(pool.to_owned());
        self.pools.get_mut(pool).map(|members| &mut members.spill).ok_or_else(absent)
    }

    /// Whether `from` is `pool`, or spills to it. Ends, since there is no cycle yet.
    fn leads_to(&self, from: &str, pool: &str) -> bool {
        let next = |name: &&str| self.pools.get(*name).and_then(|members| members.spill.target.as_deref());
        let mut chain = std::iter::successors(Some(from), next);
        chain.any(|name| name == pool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pools(names: &[&str]) -> Pools {
        let of_name =
            |(index, name): (usize, &&str)| Pool { name: (*name).to_owned(), osts: vec![OstIndex(index as u16)] };
        let mut pools = Pools::default();
        pools.set(&names.iter().enumerate().map(of_name).collect::<Vec<_>>());
        pools
    }

    #[test]
    fn a_pool_spills_from_its_threshold_on_through_others() {
        let mut pools = pools(&["a", "b", "c"]);
        for (from, to) in [("a", "b"), ("b", "c")] {
            pools.set_threshold(from, 80).unwrap();
            pools.set_target(from, Some(to)).unwrap();
        }
        let used = |used: [u32; 3]| move |osts: &[OstIndex]| Some(used[usize::from(osts[0].0)]);
        assert_eq!(pools.pass_on("a", used([79, 99, 0]), |_| true), "a");
        assert_eq!(pools.pass_on("a", used([80, 79, 0]), |_| true), "b");
        assert_eq!(pools.pass_on("a", used([80, 80, 99]), |_| true), "c");
        assert_eq!(pools.pass_on("a", |_| None, |_| true), "a", "nothing is known of it");
        assert_eq!(pools.pass_on("absent", used([0; 3]), |_| true), "absent");
        assert_eq!((pools.spill("a").unwrap().hits, pools.spill("b").unwrap().hits), (2, 1));
        pools.set_threshold("a", 0).unwrap();
        assert_eq!(pools.pass_on("a", used([100; 3]), |_| true), "a");
        assert_eq!(pools.spill("a").unwrap().target, None);
    }

    #[test]
    fn nothing_ends_in_a_pool_that_takes_no_objects() {
        let mut pools = pools(&["a", "b", "c"]);
        for (from, to) in [("a", "b"), ("b", "c")] {
            pools.set_threshold(from, 1).unwrap();
            pools.set_target(from, Some(to)).unwrap();
        }
        let hits = |pools: &Pools| ["a", "b"].map(|pool| pools.spill(pool).unwrap().hits);
        let only = |osts: &'static [u16]| move |pool: &[OstIndex]| osts.contains(&pool[0].0);
        assert_eq!(pools.pass_on("a", |_| Some(100), only(&[0])), "a");
        assert_eq!(hits(&pools), [0, 0]);
        assert_eq!(pools.pass_on("a", |_| Some(100), only(&[0, 1])), "b");
        assert_eq!(hits(&pools), [1, 0]);
        assert_eq!(pools.pass_on("a", |_| Some(100), only(&[0, 2])), "c", "through one that is full");
        assert_eq!(hits(&pools), [2, 1]);
    }

    #[test]
    fn targets_exist_and_do_not_lead_back() {
        let mut pools = pools(&["a", "b", "c"]);
        assert_eq!(pools.set_target("a", Some("x")), Err(SpillError::NoPool("x".to_owned())));
        assert_eq!(pools.set_target("x", None), Err(SpillError::NoPool("x".to_owned())));
        assert_eq!(pools.set_target("a", Some("a")), Err(SpillError::Circle("a".to_owned())));
        assert_eq!(pools.set_threshold("a", 101), Err(SpillError::Threshold(101)));
        pools.set_target("a", Some("b")).unwrap();
        pools.set_target("b", Some("c")).unwrap();
        assert_eq!(pools.set_target("c", Some("a")), Err(SpillError::Circle("c".to_owned())));
        pools.set_target("b", None).unwrap();
        pools.set_target("c", Some("a")).unwrap();
    }

    #[test]
    fn what_is_set_stays_as_long_as_the_pool() {
        let mut pools = pools(&["a", "b"]);
        pools.set_threshold("a", 1).unwrap();
        pools.set_target("a", Some("b")).unwrap();
        let pool = |name: &str| Pool { name: name.to_owned(), osts: vec![OstIndex(0)] };
        pools.set(&[pool("a")]);
        assert_eq!(pools.pass_on("a", |_| Some(100), |_| true), "a", "there is no b");
        pools.set(&[pool("a"), pool("b")]);
        assert_eq!(pools.pass_on("a", |_| Some(100), |_| true), "b");
        pools.set(&[pool("b")]);
        pools.set(&[pool("a"), pool("b")]);
        assert_eq!(pools.spill("a"), Some(Spill::default()));
    }
}
