//! What an operation consists of: which parts at which MDT, in the order in which they are locked.

use std::collections::BTreeMap;

use super::{
    rules::{Rule, Rules},
    tables::Tables,
    vocabulary::{Ino, Part, Place, ROOT, Request, Target},
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Lock, check and, at another MDT, prepare.
    Acquire(Target, Vec<Part>),
    /// From a directory up to the root: `forbidden` must not be met.
    Walk { at: Ino, forbidden: Ino },
}

/// What follows when all steps have succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    Commit,
    /// It was as the coordinator believed, so there is nothing to change.
    Nothing,
    /// It was as the coordinator believed, so the operation fails.
    Refuse,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub outcome: Outcome,
}

#[derive(Default)]
struct Parts(BTreeMap<Target, Vec<Part>>);

impl Parts {
    fn add(&mut self, target: Target, part: Part) {
        self.0.entry(target).or_default().push(part);
    }

    fn set_name(&mut self, at: Place, from: Option<Ino>, to: Option<Ino>) {
        self.add(at.target(), Part::SetName { at, from, to });
    }

    /// What a name leads to goes with the name.
    fn remove(&mut self, ino: Ino, at: Place, rules: Rules) {
        if !ino.is_directory() {
            return self.add(ino.home(), Part::DropLink(ino, at));
        }
        self.add(ino.home(), Part::RemoveInode(ino, at));
        for shard in ino.shards() {
            if shard == ino.home() || rules.hold(Rule::EveryShardIsAsked) {
                self.add(shard, Part::RemoveShard(ino));
            }
        }
    }

    fn steps(self, me: Target, rules: Rules) -> Vec<Step> {
        let mut steps: Vec<Step> = self.0.into_iter().map(|(target, parts)| Step::Acquire(target, parts)).collect();
        if !rules.hold(Rule::Ordered) && me == 0 {
            steps.reverse();
        }
        steps
    }
}

/// Makes sure of names, all at one moment, without changing them.
fn only_names(names: &[(Place, Option<Ino>)], me: Target, outcome: Outcome, rules: Rules) -> Plan {
    let mut parts = Parts::default();
    names.iter().for_each(|(at, ino)| parts.set_name(*at, *ino, *ino));
    Plan { steps: parts.steps(me, rules), outcome }
}

/// `source`: what the source of a rename or exchange is believed to be.
pub fn plan(tables: &Tables, me: Target, request: Request, source: Option<Ino>, rules: Rules) -> Plan {
    let found = |at: Place| tables.entries.get(&at).copied();
    let refuse = |at: Place, found: Option<Ino>| only_names(&[(at, found)], me, Outcome::Refuse, rules);
    let mut parts = Parts::default();
    match request {
        Request::Create(at, ino) | Request::Mkdir(at, ino) => {
            if let Some(ino) = found(at) {
                return refuse(at, Some(ino));
            }
            parts.set_name(at, None, Some(ino));
            parts.add(ino.home(), Part::MakeInode(ino, at));
            if ino.is_directory() {
                ino.shards().into_iter().for_each(|shard| parts.add(shard, Part::MakeShard(ino)));
            }
        }
        Request::Unlink(at) | Request::Rmdir(at) => {
            let Some(ino) = found(at) else { return refuse(at, None) };
            if ino.is_directory() != matches!(request, Request::Rmdir(_)) {
                return refuse(at, Some(ino));
            }
            parts.set_name(at, Some(ino), None);
            parts.remove(ino, at, rules);
        }
        Request::Link(ino, at) => {
            if let Some(ino) = found(at) {
                return refuse(at, Some(ino));
            }
            parts.set_name(at, None, Some(ino));
            parts.add(ino.home(), Part::AddLink(ino, at));
        }
        Request::Rename(from, to) => {
            let Some(source) = source else { return refuse(from, None) };
            return rename(tables, me, (from, to), source, rules);
        }
        Request::Exchange(from, to) => {
            let Some(one) = source else { return refuse(from, None) };
            let Some(two) = found(to) else { return refuse(to, None) };
            if one == two {
                return only_names(&[(from, source), (to, source)], me, Outcome::Nothing, rules);
            }
            parts.set_name(from, Some(one), Some(two));
            parts.set_name(to, Some(two), Some(one));
            parts.add(one.home(), Part::MoveLink(one, from, to));
            parts.add(two.home(), Part::MoveLink(two, to, from));
            let walks = [(to.0, one), (from.0, two)];
            return with_tree(walks, from.0 != to.0, parts, me, rules);
        }
        Request::Lookup(_) | Request::Links(_) => unreachable!("reads have no plan"),
    }
    Plan { steps: parts.steps(me, rules), outcome: Outcome::Commit }
}

fn rename(tables: &Tables, me: Target, (from, to): (Place, Place), moved: Ino, rules: Rules) -> Plan {
    let replaced = tables.entries.get(&to).copied();
    if let Some(replaced) = replaced {
        let names = [(from, Some(moved)), (to, Some(replaced))];
        if moved == replaced {
            return only_names(&names, me, Outcome::Nothing, rules);
        }
        if moved.is_directory() != replaced.is_directory() {
            return only_names(&names, me, Outcome::Refuse, rules);
        }
    }
    let mut parts = Parts::default();
    parts.set_name(from, Some(moved), None);
    parts.set_name(to, replaced, Some(moved));
    parts.add(moved.home(), Part::MoveLink(moved, from, to));
    if let Some(replaced) = replaced {
        parts.remove(replaced, to, rules);
    }
    with_tree([(to.0, moved), (to.0, moved)], from.0 != to.0, parts, me, rules)
}

/// Before its steps, a rename of directories to other parents takes the tree, and looks for loops.
fn with_tree(walks: [(Ino, Ino); 2], moves: bool, parts: Parts, me: Target, rules: Rules) -> Plan {
    let is_local = parts.0.keys().all(|target| *target == me);
    let mut steps = parts.steps(me, rules);
    let walks: Vec<(Ino, Ino)> = walks.into_iter().filter(|(_, moved)| moves && moved.is_directory()).collect();
    let locks = rules.hold(Rule::TreeLock) && (!is_local || rules.hold(Rule::TreeLockAlways));
    if rules.hold(Rule::LoopCheck) {
        let mut known = Vec::new();
        for (at, forbidden) in walks.iter().copied().filter(|(at, _)| *at != ROOT) {
            if !known.contains(&(at, forbidden)) {
                known.push((at, forbidden));
                steps.insert(0, Step::Walk { at, forbidden });
            }
        }
    }
    if !walks.is_empty() && locks {
        steps.insert(0, Step::Acquire(0, vec![Part::Tree]));
    }
    Plan { steps, outcome: Outcome::Commit }
}
