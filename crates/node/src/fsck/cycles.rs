//! Finds directories that are below themselves by way of several MDTs: nobody can reach them. (A
//! cycle within one MDT is found by the check of that MDT.)
//!
//! Each such cycle has directories whose parent is on another MDT. From each of these the way up is
//! followed, one request for each change of MDT, as far as no earlier way has come. A cycle counts
//! when it is still there after the time that decisions take. It is cut by a rename of one directory
//! into `lost+found`, which no check for loops can pass.
//!
//! Downside: memory for one number for each directory that has subdirectories on other MDTs.

use std::collections::HashSet;

use rpc::{
    message::{
        MdtReply, MdtRequest,
        mdt::{Finding, Lookup, Rename, RenameMode, SourceData},
        mdt_peer::{MakeDirectory, RemoteName, RemoteNamesAfter},
    },
    unexpected,
};
use rt::Clock;
use types::{Credentials, FileKind, FsError, FsResult, InodeNumber, Stripes};

use super::{
    Progress, Targets, names,
    repairs::{ask, unrepaired},
};

const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Finds all cycles, and cuts them if `repair` says so.
pub(super) async fn check(
    targets: &Targets,
    clock: &dyn Clock,
    progress: &mut Progress,
    repair: bool,
) -> FsResult<Vec<Finding>> {
    let suspects = suspects(targets, clock, progress).await?;
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    rt::clock::sleep(clock, names::TIMEOUT).await;
    let (mut findings, mut reported) = (Vec::new(), HashSet::new());
    for name in suspects {
        let Some(way) = Walk::default().cycle_of(targets, clock, &name).await? else { continue };
        if way.iter().any(|directory| reported.contains(directory)) {
            continue;
        }
        let shown = String::from_utf8_lossy(&name.name);
        let problem = format!("directory '{shown}' in {} is below itself, by way of several MDTs", name.parent);
        let found = Finding { inode: name.inode, problem, repaired: false };
        let finding = match if repair { Some(cut(targets, clock, &name).await) } else { None } {
            Some(Ok(())) => Finding { repaired: true, ..found },
            Some(Err(error @ FsError::Unreachable { .. })) => return Err(error),
            Some(Err(error)) => unrepaired(found, &error),
            None => found,
        };
        if !finding.repaired {
            reported.extend(way);
        }
        findings.push(finding);
    }
    Ok(findings)
}

/// Directories with a parent on another MDT that seem to be in a cycle.
async fn suspects(targets: &Targets, clock: &dyn Clock, progress: &mut Progress) -> FsResult<Vec<RemoteName>> {
    let (mut walk, mut suspects) = (Walk::default(), Vec::new());
    for (_, mdt) in &targets.mdts {
        let mut key = None;
        loop {
            let (found, next) = names::page(mdt, RemoteNamesAfter { of_names: false, key }).await?;
            progress.advance(found.len() as u64);
            for name in found.into_iter().filter(|name| name.kind == FileKind::Directory && !name.inode.is_shard()) {
                if walk.cycle_of(targets, clock, &name).await?.is_some() {
                    suspects.push(name);
                }
            }
            key = next;
            if key.is_none() {
                break;
            }
        }
    }
    Ok(suspects)
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

/// Renames a directory into `lost+found`.
async fn cut(targets: &Targets, clock: &dyn Clock, name: &RemoteName) -> FsResult<()> {
    let root = targets.mdt_of(InodeNumber::ROOT)?;
    let rename = Rename {
        parent: name.parent,
        name: name.name.clone(),
        new_parent: lost_and_found(targets, clock).await?,
        new_name: format!("#{:x}", name.inode.0).into_bytes(),
        mode: RenameMode::NoReplace,
        source_data: SourceData::AsIs,
        mdt_era: None,
        same_directory: false,
    };
    match ask(root, clock, MdtRequest::Rename(Credentials::root(), rename)).await? {
        MdtReply::Done => Ok(()),
        reply => Err(unexpected(reply)),
    }
}

/// The directory in the root, made if there is none.
async fn lost_and_found(targets: &Targets, clock: &dyn Clock) -> FsResult<InodeNumber> {
    let (parent, who) = (InodeNumber::ROOT, Credentials::root());
    let root = targets.mdt_of(parent)?;
    let lookup = Lookup { parent, name: LOST_AND_FOUND.to_vec() };
    match ask(root, clock, MdtRequest::Lookup(who.clone(), lookup)).await? {
        MdtReply::Entry(entry) => return Ok(entry.attributes.inode),
        MdtReply::Absent => {}
        MdtReply::Remote(_) => return Err(FsError::NotSupported),
        reply => return Err(unexpected(reply)),
    }
    let name = LOST_AND_FOUND.to_vec();
    let make = MakeDirectory { parent, name, mode: 0o700, umask: 0, mdt: parent.mdt(), stripes: Stripes::default() };
    match ask(root, clock, MdtRequest::MakeDirectory(who, make)).await? {
        MdtReply::Created(made) => Ok(made.entry.attributes.inode),
        reply => Err(unexpected(reply)),
    }
}
