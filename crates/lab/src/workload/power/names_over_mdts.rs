//! What may be left of names over several MDTs after power losses.
//!
//! An operation is decided by one MDT, the one that has the name, and durable as a whole when its
//! decision is durable there: no other MDT has heard of it before. So each MDT that lost power has
//! lost the last of its own decisions, from some step on, and none of those that were acknowledged
//! longer ago than the commit interval; all decisions of the others are there. The operation in
//! progress may have happened.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use types::{FileKind, FsResult, InodeNumber, MdtIndex};

use super::{
    loss::Loss,
    names::{Candidate, Ledger},
};
use crate::{native::Native, reference::Operation};

/// More candidates would take too long: the workload syncs often enough.
const CANDIDATES_MAX: usize = 1 << 16;

/// The MDT that decides an operation: that of the directory, or shard of it, that has the name.
/// (The first one, if it is going to fail.)
pub(super) async fn decides(native: &Native, operation: &Operation) -> MdtIndex {
    let decided = match operation {
        Operation::SetMode { path, .. } | Operation::SetXattr { path, .. } | Operation::RemoveXattr { path, .. } => {
            native.resolve(path).await.map(|found| found.inode.mdt())
        }
        Operation::Rename { to: path, .. }
        | Operation::Link { to: path, .. }
        | Operation::Create { path, .. }
        | Operation::MakeDirectory { path, .. }
        | Operation::Symlink { path, .. }
        | Operation::MakeFifo { path, .. }
        | Operation::Unlink { path }
        | Operation::RemoveDirectory { path } => of_name(native, path).await,
        _ => Ok(InodeNumber::ROOT.mdt()),
    };
    decided.unwrap_or(InodeNumber::ROOT.mdt())
}

async fn of_name(native: &Native, path: &str) -> FsResult<MdtIndex> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let found = native.resolve(parent).await?;
    match found.kind {
        FileKind::Directory => native.mdt_of_name(found.inode, name).await,
        _ => Ok(InodeNumber::ROOT.mdt()),
    }
}

/// Waits until all that was decided is carried out and durable: what is seen then is left whatever
/// happens next. A sync may fail once for each MDT that has lost something.
pub(super) async fn settle(native: &Native) {
    let sync = async || -> FsResult<()> { native.file_system().sync_all().await };
    while sync().await.is_err() {}
}

/// Namespaces that may be left.
pub(super) fn candidates(ledger: &Ledger, loss: &Loss, bound: Duration) -> Result<Vec<Candidate>, String> {
    let mut possible: BTreeMap<MdtIndex, Vec<usize>> = BTreeMap::new();
    for (number, step) in ledger.steps.iter().enumerate() {
        let Some((_, mdt)) = &step.change else { continue };
        if !loss.hit(*mdt) {
            continue;
        }
        // Numbers of steps from which on all of this MDT is lost; beyond all: nothing.
        let lost_from = possible.entry(*mdt).or_insert_with(|| vec![usize::MAX]);
        if loss.at.since(step.acknowledged) > bound {
            lost_from.truncate(1);
        } else {
            lost_from.push(number);
        }
    }
    let count: usize = possible.values().map(Vec::len).product();
    if count > CANDIDATES_MAX {
        return Err(format!("{count} namespaces may be left: too many to look at"));
    }
    let mut kept: BTreeSet<Vec<bool>> = BTreeSet::new();
    for mut choice in 0..count {
        let mut lost_from = BTreeMap::new();
        for (mdt, possible) in &possible {
            lost_from.insert(*mdt, possible[choice % possible.len()]);
            choice /= possible.len();
        }
        let is_kept = |(number, (_, mdt)): (usize, &(Operation, MdtIndex))| {
            lost_from.get(mdt).is_none_or(|lost_from| number < *lost_from)
        };
        let changes =
            ledger.steps.iter().enumerate().filter_map(|(number, step)| Some((number, step.change.as_ref()?)));
        kept.insert(changes.map(is_kept).collect());
    }
    let mut candidates = Vec::new();
    for kept in kept {
        let mut model = ledger.steps[0].model.clone();
        let changes = ledger.steps.iter().filter_map(|step| step.change.as_ref());
        changes.zip(&kept).filter(|(_, kept)| **kept).for_each(|((operation, _), _)| drop(model.apply(operation)));
        let step = kept.iter().filter(|kept| **kept).count();
        if let Some(under_way) = &ledger.under_way {
            let mut model = model.clone();
            model.apply(under_way);
            candidates.push(Candidate { step, more: true, model });
        }
        candidates.push(Candidate { step, more: false, model });
    }
    candidates.sort_by_key(|candidate| candidate.step);
    Ok(candidates)
}

#[cfg(test)]
mod tests {
    use rt::Instant;

    use super::*;
    use crate::{
        reference::Model,
        server::Role,
        workload::power::{alarm::Alarm, names::Step},
    };

    fn step(path: &str, mdt: u16, at: u64) -> Step {
        let make = Operation::MakeDirectory { path: path.to_owned(), mode: 0o755 };
        Step { model: Model::new(), acknowledged: Instant(at), change: Some((make, MdtIndex(mdt))) }
    }

    fn left(roles: &[Role], under_way: Option<Operation>) -> BTreeSet<Vec<String>> {
        let first = Step { model: Model::new(), acknowledged: Instant(0), change: None };
        let steps = vec![first, step("a", 0, 1), step("b", 1, 500), step("c", 0, 600), step("d", 1, 700)];
        let ledger = Ledger { steps, under_way, alarm: Alarm::default() };
        let (roles, danger_max) = (roles.iter().copied().collect(), Duration::from_nanos(300));
        let loss = Loss { at: Instant(750), roles, clients: false, danger_max };
        let found = candidates(&ledger, &loss, danger_max).unwrap();
        found.into_iter().map(|candidate| candidate.model.paths()).collect()
    }

    fn sets(sets: &[&str]) -> BTreeSet<Vec<String>> {
        sets.iter().map(|set| set.chars().rev().map(String::from).collect()).collect()
    }

    #[test]
    fn each_mdt_loses_its_own_last_decisions() {
        let sorted = |found: BTreeSet<Vec<String>>| -> BTreeSet<Vec<String>> {
            let sort = |mut paths: Vec<String>| {
                paths.sort();
                paths.reverse();
                paths
            };
            found.into_iter().map(sort).collect()
        };
        assert_eq!(sorted(left(&[], None)), sets(&["abcd"]));
        assert_eq!(sorted(left(&[Role::Mds(0)], None)), sets(&["abd", "abcd"]), "the first is too old");
        assert_eq!(sorted(left(&[Role::Mds(1)], None)), sets(&["ac", "abc", "abcd"]));
        let all = sets(&["a", "ab", "ac", "abc", "abd", "abcd"]);
        assert_eq!(sorted(left(&[Role::Mds(0), Role::Mds(1)], None)), all);
        let under_way = Operation::RemoveDirectory { path: "a".to_owned() };
        assert_eq!(sorted(left(&[], Some(under_way))), sets(&["abcd", "bcd"]));
    }
}
