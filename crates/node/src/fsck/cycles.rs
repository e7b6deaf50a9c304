//! Finds directories that are below themselves by way of several MDTs: nobody can reach them. (A
//! cycle within one MDT is found by the check of that MDT.)
//!
//! Each such cycle has directories whose parent is on another MDT. From each of these the way up is
//! followed, one request for each change of MDT, as far as no earlier way has come. A cycle counts
//! when it is still there after the time that decisions take. It is reported and never cut: the way
//! is not read at one moment, so renames in between could show a cycle that never was.
//!
//! Downside: memory for one number for each directory that has subdirectories on other MDTs.

use std::collections::HashSet;

use rpc::{
    message::{
        MdtReply, MdtRequest,
        mdt::Finding,
        mdt_peer::{RemoteName, RemoteNamesAfter},
    },
    unexpected,
};
use rt::Clock;
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber};

use super::{names, progress::Progress, repairs::ask, targets::Targets};

/// Finds all cycles.
pub(super) async fn check(targets: &Targets, clock: &dyn Clock, progress: &mut Progress) -> FsResult<Vec<Finding>> {
    let (suspects, mut findings) = suspects(targets, clock, progress).await?;
    if suspects.is_empty() {
        return Ok(findings);
    }
    rt::clock::sleep(clock, names::TIMEOUT).await;
    let mut reported = HashSet::new();
    for name in suspects {
        let way = Walk::default().cycle_of(targets, clock, &name).await;
        let Some(way) = followed(way, &name, &mut findings)?.flatten() else { continue };
        if way.iter().any(|directory| reported.contains(directory)) {
            continue;
        }
        let shown = String::from_utf8_lossy(&name.name);
        let problem = format!(
            "directory '{shown}' in {} is below itself, by way of several MDTs: nobody can reach it, and it is not repaired",
            name.parent
        );
        findings.push(Finding { inode: name.inode, problem, repaired: false });
        reported.extend(way);
    }
    Ok(findings)
}

/// What following a way has shown; `None`: it failed, which is a finding. Only an MDT that cannot
/// be reached ends the check.
fn followed<T>(outcome: FsResult<T>, name: &RemoteName, findings: &mut Vec<Finding>) -> FsResult<Option<T>> {
    match outcome {
        Ok(shown) => Ok(Some(shown)),
        Err(error @ FsError::Unreachable { .. }) => Err(error),
        Err(error) => {
            let shown = String::from_utf8_lossy(&name.name);
            let problem = format!("directory '{shown}' in {} cannot be followed to the root: {error}", name.parent);
            findings.push(Finding { inode: name.inode, problem, repaired: false });
            Ok(None)
        }
    }
}

/// Directories with a parent on another MDT that seem to be in a cycle, and findings about others.
async fn suspects(
    targets: &Targets,
    clock: &dyn Clock,
    progress: &mut Progress,
) -> FsResult<(Vec<RemoteName>, Vec<Finding>)> {
    let (mut walk, mut suspects, mut findings) = (Walk::default(), Vec::new(), Vec::new());
    for (_, mdt) in &targets.mdts {
        let mut key = None;
        loop {
            let (found, next) = names::page(mdt, RemoteNamesAfter { of_names: false, key }).await?;
            progress.advance(found.len() as u64);
            for name in found.into_iter().filter(|name| name.kind == FileKind::Directory && !name.inode.is_shard()) {
                let way = walk.cycle_of(targets, clock, &name).await;
                if followed(way, &name, &mut findings)?.flatten().is_some() {
                    suspects.push(name);
                }
            }
            key = next;
            if key.is_none() {
                break;
            }
        }
    }
    Ok((suspects, findings))
}

/// What is known of ways up.
#[derive(Default)]
struct Walk {
    /// Directories that are below the root.
    anchored: HashSet<InodeNumber>,
}

/// Where the way up from a directory ends on its MDT.
enum Top {
    Root,
    /// At this directory of another MDT, with the path from there.
    Elsewhere(InodeNumber, Vec<u8>),
    /// At something that does not exist or has no name, which is found in other ways.
    Nowhere,
}

impl Walk {
    /// If a directory is in a cycle: directories of it, one on each MDT that the way comes to.
    async fn cycle_of(
        &mut self,
        targets: &Targets,
        clock: &dyn Clock,
        name: &RemoteName,
    ) -> FsResult<Option<Vec<InodeNumber>>> {
        let (mut way, mut at) = (Vec::new(), name.parent);
        while at != InodeNumber::ROOT && !self.anchored.contains(&at) {
            if way.contains(&at) {
                // It hangs below a cycle.
                return Ok(None);
            }
            way.push(at);
            match top(targets, clock, at).await? {
                Top::Root => break,
                Top::Nowhere => return Ok(None),
                Top::Elsewhere(next, path) => {
                    if next == name.parent && path.split(|byte| *byte == b'/').next() == Some(&name.name) {
                        return Ok(Some(way));
                    }
                    at = next;
                }
            }
        }
        self.anchored.extend(way);
        Ok(None)
    }
}

async fn top(targets: &Targets, clock: &dyn Clock, directory: InodeNumber) -> FsResult<Top> {
    let Ok(mdt) = targets.mdt_of(directory) else { return Ok(Top::Nowhere) };
    match ask(mdt, clock, MdtRequest::InodePaths(Credentials::root(), directory)).await {
        Ok(MdtReply::Paths(_)) => Ok(Top::Root),
        Ok(MdtReply::PathsBelow(paths)) => {
            Ok(paths.into_iter().next().map_or(Top::Nowhere, |(next, path)| Top::Elsewhere(next, path)))
        }
        Ok(reply) => Err(unexpected(reply)),
        Err(FsError::NotFound | FsError::Stale | FsError::NotDirectory | FsError::Damaged(_)) => Ok(Top::Nowhere),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use types::MdtIndex;

    use super::*;

    #[test]
    fn a_way_that_cannot_be_followed_is_a_finding_and_others_are_followed() {
        let (inode, parent) = (InodeNumber::new(MdtIndex(1), 7), InodeNumber::ROOT);
        let name = RemoteName { inode, parent, name: b"d".to_vec(), kind: FileKind::Directory };
        let mut findings = Vec::new();
        assert_eq!(followed(Ok(5), &name, &mut findings), Ok(Some(5)));
        assert_eq!(findings, []);
        assert_eq!(followed::<u8>(Err(FsError::Busy), &name, &mut findings), Ok(None));
        assert!(findings.len() == 1 && findings[0].inode == inode && !findings[0].repaired, "{findings:?}");
    }
}
