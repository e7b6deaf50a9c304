//! Compares names with the inodes on other MDTs to which they lead: each MDT knows one side.

use std::{collections::BTreeSet, time::Duration};

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

use super::Targets;

/// Decisions reach other MDTs within moments; what is not the same on both sides after this time is
/// wrong.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What both sides say, of MDTs that are in use.
struct Sides {
    names: BTreeSet<RemoteName>,
    inodes: BTreeSet<RemoteName>,
}

impl Sides {
    async fn read(targets: &Targets) -> FsResult<Self> {
        let mut sides = Sides { names: BTreeSet::new(), inodes: BTreeSet::new() };
        for (_, mdt) in &targets.mdts {
            sides.names.extend(read(mdt, true).await?);
            sides.inodes.extend(read(mdt, false).await?);
        }
        let is_used = |mdt: MdtIndex| targets.mdts.iter().any(|(role, _)| *role == TargetRole::Mdt(mdt));
        let is_known = |name: &RemoteName| is_used(name.inode.mdt()) && is_used(name.parent.mdt());
        sides.names.retain(is_known);
        sides.inodes.retain(is_known);
        Ok(sides)
    }

    /// What one side says and the other does not; true: a name.
    fn differences(&self) -> BTreeSet<(bool, RemoteName)> {
        let names = self.names.difference(&self.inodes).map(|name| (true, name.clone()));
        names.chain(self.inodes.difference(&self.names).map(|inode| (false, inode.clone()))).collect()
    }
}

async fn read(mdt: &Import, of_names: bool) -> FsResult<Vec<RemoteName>> {
    let (mut all, mut key) = (Vec::new(), None);
    loop {
        let request = MdtRequest::RemoteNames(Credentials::root(), RemoteNamesAfter { of_names, key });
        let answer = match mdt.call(request).await?.reply {
            MdtReply::RemoteNames(answer) => answer,
            reply => return Err(unexpected(reply)),
        };
        all.extend(answer.found);
        key = answer.next;
        if key.is_none() {
            return Ok(all);
        }
    }
}

/// Names that lead to nothing on another MDT, and inodes whose name another MDT does not have.
pub(super) async fn check(targets: &Targets, clock: &dyn Clock) -> FsResult<Vec<Finding>> {
    let deadline = clock.now() + TIMEOUT;
    let mut differences = Sides::read(targets).await?.differences();
    while !differences.is_empty() && clock.now() < deadline {
        rt::clock::sleep(clock, TIMEOUT / 10).await;
        let now = Sides::read(targets).await?.differences();
        differences.retain(|difference| now.contains(difference));
    }
    Ok(differences.into_iter().map(|(is_name, found)| finding(is_name, &found)).collect())
}

fn finding(is_name: bool, RemoteName { inode, parent, name, .. }: &RemoteName) -> Finding {
    let name = String::from_utf8_lossy(name);
    let problem = match is_name {
        true if inode.is_shard() => format!(
            "directory {parent} has this shard on {}, where it does not exist or is another directory's: names in it are lost",
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
        let (names, inodes) = ([name("a"), name("b")].into(), [name("b"), name("c")].into());
        let found = Sides { names, inodes }.differences();
        let problems: Vec<String> = found.iter().map(|(is_name, found)| finding(*is_name, found).problem).collect();
        assert_eq!(problems.len(), 2);
        assert!(problems[0].contains("name 'c'") && problems[0].contains("on MDT0000 does not refer"), "{problems:?}");
        assert!(problems[1].contains("name 'a'") && problems[1].contains("on MDT0001 that does not"), "{problems:?}");
    }
}
