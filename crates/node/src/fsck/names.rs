//! Compares names with the inodes on other MDTs to which they lead: each MDT knows one side.
//!
//! There may be hundreds of millions of them, in different orders. So they are not kept: each name
//! is counted in one of [`BUCKETS`] sums by a hash, up by the MDT that has it and down by the MDT
//! of the inode. Buckets that are not balanced after that are read again, with what is in them.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use rpc::{
    Import,
    message::{
        MdtReply, MdtRequest,
        mdt::Finding,
        mdt_peer::{RemoteName, RemoteNamesAfter},
        mgs::TargetRole,
    },
    unexpected,
};
use rt::Clock;
use types::{Credentials, FsResult, MdtIndex};

use super::{progress::Progress, targets::Targets};

/// Decisions reach other MDTs within moments; what is not the same on both sides after this time is
/// wrong.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// The first pause before both sides are read again; then twice as long each time.
const PAUSE: Duration = Duration::from_millis(100);
/// Memory for sums: 16 MiB.
const BUCKETS: usize = 1 << 20;
/// Buckets that differ by changes that were made meanwhile are counted again as long as there are
/// more, and the next time fewer.
const DOUBTFUL_MAX: usize = 1024;

/// What both sides say, added up: two hashes of each name, with keys of this check.
struct Balance {
    keys: [RandomState; 2],
    sums: Vec<[u64; 2]>,
}

impl Balance {
    fn new() -> Self {
        Self { keys: [RandomState::new(), RandomState::new()], sums: vec![[0; 2]; BUCKETS] }
    }

    fn hashes(&self, RemoteName { inode, parent, name, kind }: &RemoteName) -> [u64; 2] {
        self.keys.each_ref().map(|key| key.hash_one((inode.0, parent.0, name, *kind as u8)))
    }

    fn bucket(&self, name: &RemoteName) -> usize {
        self.hashes(name)[0] as usize % BUCKETS
    }

    /// A name; or an inode that has it.
    fn add(&mut self, is_name: bool, name: &RemoteName) {
        let (hashes, bucket) = (self.hashes(name), self.bucket(name));
        for (sum, hash) in self.sums[bucket].iter_mut().zip(hashes) {
            *sum = if is_name { sum.wrapping_add(hash) } else { sum.wrapping_sub(hash) };
        }
    }

    /// Nothing is counted yet.
    fn begin(&mut self) {
        self.sums.fill([0; 2]);
    }

    /// The buckets in which the sides differ.
    fn unbalanced(&self) -> BTreeSet<usize> {
        let sums = self.sums.iter().enumerate();
        sums.filter(|(_, sum)| **sum != [0; 2]).map(|(bucket, _)| bucket).collect()
    }
}

/// What both sides say.
#[derive(Default)]
struct Sides {
    names: BTreeSet<RemoteName>,
    inodes: BTreeSet<RemoteName>,
}

impl Sides {
    fn add(&mut self, is_name: bool, name: RemoteName) {
        let side = if is_name { &mut self.names } else { &mut self.inodes };
        side.insert(name);
    }

    fn differences(&self) -> Differences {
        let names = self.names.difference(&self.inodes).map(|name| (true, name.clone()));
        names.chain(self.inodes.difference(&self.names).map(|inode| (false, inode.clone()))).collect()
    }
}

/// Reads both sides of all MDTs in use; true: a name.
async fn read(targets: &Targets, progress: &mut Progress, mut visit: impl FnMut(bool, RemoteName)) -> FsResult<()> {
    let is_used = |mdt: MdtIndex| targets.mdts.iter().any(|(role, _)| *role == TargetRole::Mdt(mdt));
    for (_, mdt) in &targets.mdts {
        for of_names in [true, false] {
            let mut key = None;
            loop {
                let (found, next) = page(mdt, RemoteNamesAfter { of_names, key }).await?;
                progress.advance(found.len() as u64);
                let known = found.into_iter().filter(|name| is_used(name.inode.mdt()) && is_used(name.parent.mdt()));
                known.for_each(|name| visit(of_names, name));
                key = next;
                if key.is_none() {
                    break;
                }
            }
        }
    }
    Ok(())
}

pub(super) async fn page(mdt: &Import, after: RemoteNamesAfter) -> FsResult<(Vec<RemoteName>, Option<Vec<u8>>)> {
    match mdt.call(MdtRequest::RemoteNames(Credentials::root(), after)).await?.reply {
        MdtReply::RemoteNames(answer) => Ok((answer.found, answer.next)),
        reply => Err(unexpected(reply)),
    }
}

/// What one side says and the other does not; true: a name. A name that leads to nothing on another
/// MDT, or an inode whose name another MDT does not have.
pub(super) type Differences = BTreeSet<(bool, RemoteName)>;

/// Finds the differences that last.
pub(super) async fn compare(targets: &Targets, clock: &dyn Clock, progress: &mut Progress) -> FsResult<Differences> {
    let mut balance = Balance::new();
    read(targets, progress, |is_name, name| balance.add(is_name, &name)).await?;
    let mut buckets = balance.unbalanced();
    while buckets.len() > DOUBTFUL_MAX {
        balance.begin();
        read(targets, progress, |is_name, name| balance.add(is_name, &name)).await?;
        let now = balance.unbalanced();
        let left: BTreeSet<_> = buckets.intersection(&now).copied().collect();
        let is_less = left.len() < buckets.len();
        buckets = left;
        if !is_less {
            break;
        }
    }
    let (mut deadline, mut pause) = (None, PAUSE);
    let mut differences: Option<Differences> = None;
    while !buckets.is_empty() {
        let mut sides = Sides::default();
        let add = |is_name, name| {
            if buckets.contains(&balance.bucket(&name)) {
                sides.add(is_name, name);
            }
        };
        read(targets, progress, add).await?;
        let now = sides.differences();
        let left: BTreeSet<_> = match differences {
            Some(before) => before.into_iter().filter(|difference| now.contains(difference)).collect(),
            None => now,
        };
        buckets = left.iter().map(|(_, name)| balance.bucket(name)).collect();
        differences = Some(left);
        // What both looks at a name show that are so far apart was not on its way.
        match deadline {
            None => deadline = Some(clock.now() + TIMEOUT),
            Some(deadline) if clock.now() >= deadline => break,
            Some(_) => {}
        }
        rt::clock::sleep(clock, pause).await;
        pause *= 2;
    }
    Ok(differences.unwrap_or_default())
}

/// A difference, in words.
pub(super) fn finding(is_name: bool, RemoteName { inode, parent, name, .. }: &RemoteName) -> Finding {
    let name = String::from_utf8_lossy(name);
    let problem = match is_name {
        true if inode.is_shard() => format!(
            "directory {parent} has this shard on {}, where it does not exist or is another directory's: names in it may be lost",
            inode.mdt()
        ),
        false if inode.is_shard() => format!("a shard that directory {parent} on {} does not know", parent.mdt()),
        true => format!(
            "name '{name}' in directory {parent} refers to an inode on {} that does not have this name",
            inode.mdt()
        ),
        false => format!("name '{name}' in directory {parent} on {} does not refer to it", parent.mdt()),
    };
    Finding { inode: *inode, problem, repaired: false }
}

#[cfg(test)]
mod tests {
    use types::{FileKind, InodeNumber};

    use super::*;

    #[test]
    fn what_one_side_does_not_have_is_found() {
        let inode = InodeNumber::new(MdtIndex(1), 7);
        let name = |name: &str| RemoteName {
            inode,
            parent: InodeNumber::ROOT,
            name: name.as_bytes().to_vec(),
            kind: FileKind::Directory,
        };
        let (mut sides, mut balance) = (Sides::default(), Balance::new());
        for (is_name, name) in [("a", true), ("b", true), ("b", false), ("c", false)].map(|(of, is)| (is, name(of))) {
            balance.add(is_name, &name);
            sides.add(is_name, name);
        }
        let expected = ["a", "c"].map(|of| balance.bucket(&name(of)));
        assert_eq!(balance.unbalanced(), expected.into());
        let found = sides.differences();
        let problems: Vec<String> = found.iter().map(|(is_name, found)| finding(*is_name, found).problem).collect();
        assert_eq!(problems.len(), 2);
        assert!(problems[0].contains("name 'c'") && problems[0].contains("on MDT0000 does not refer"), "{problems:?}");
        assert!(problems[1].contains("name 'a'") && problems[1].contains("on MDT0001 that does not"), "{problems:?}");
    }
}
