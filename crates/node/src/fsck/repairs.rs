//! Repairs that concern several MDTs, each by a request to the MDT that decides. That one looks
//! again, with everything locked, so nothing is repaired that has become right meanwhile.
//!
//! | found | repaired by |
//! |---|---|
//! | a name and an inode on another MDT contradict each other | [`NameRepair::Settle`] |
//! | an inode on another MDT than 0 has no name | [`NameRepair::Rescue`] |
//! | a name is in the wrong shard of its directory | an ordinary rename within the directory |
//!
//! Cycles of directories are only reported ([`super::cycles`]).

use std::{collections::BTreeSet, time::Duration};

use rpc::{
    Import,
    message::{
        MdtReply, MdtRequest,
        mdt::{
            DirectoryEntry, Finding, Lookup, OpenFlags, OpenId, ReadDirectory, Rename, RenameMode, SourceData,
            open_flag,
        },
        name_repair::{MISPLACED, NAMELESS, NameRepair},
    },
    unexpected,
};
use rt::Clock;
use types::{Credentials, DirectoryMap, FsError, FsResult, InodeNumber, limits::NAME_BYTES_MAX};

use super::{
    names,
    targets::{PAGE, Targets},
};

/// Repairs of one name: its kind, and what has it.
const REPAIRS_MAX: usize = 4;
/// Before an MDT is asked again that waits for another one.
const PAUSE: Duration = Duration::from_millis(50);

/// Settles what names and inodes on different MDTs say of each other. Inodes come first: a
/// directory with a wrong name can take the right one then. If it cannot be freed of the wrong one,
/// the right one would seem to be too many, so it is left.
pub(super) async fn settle(
    targets: &Targets,
    clock: &dyn Clock,
    differences: names::Differences,
) -> FsResult<Vec<Finding>> {
    let (mut findings, mut refused) = (Vec::new(), BTreeSet::new());
    for (is_name, name) in differences {
        let (inode, mut found) = (name.inode, names::finding(is_name, &name));
        if is_name && refused.contains(&inode) {
            found.problem.push_str("; not repaired: another name of this inode could not be");
            findings.push(found);
            continue;
        }
        let mdt = targets.mdt_of(name.parent)?;
        let settled = repair(mdt, clock, NameRepair::Settle(name), found).await?;
        if !is_name && settled.iter().any(|finding| !finding.repaired) {
            refused.insert(inode);
        }
        findings.extend(settled);
    }
    Ok(findings)
}

/// Repairs what an MDT has found and could not repair by itself.
pub(super) async fn finish(targets: &Targets, clock: &dyn Clock, found: Vec<Finding>) -> FsResult<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut shards = BTreeSet::new();
    for finding in found {
        let inode = finding.inode;
        if finding.repaired {
            findings.push(finding);
        } else if is_nameless(&finding.problem) && !inode.is_shard() && inode.mdt() != InodeNumber::ROOT.mdt() {
            let root = targets.mdt_of(InodeNumber::ROOT)?;
            let rescued = repair(root, clock, NameRepair::Rescue(inode), finding.clone()).await?;
            findings.extend(if rescued.is_empty() { vec![finding] } else { rescued });
        } else if inode.is_shard() && is_misplaced(&finding.problem) {
            // All names of a shard are put in place at once, at the first one.
            if shards.insert(inode) {
                findings.extend(put_in_place(targets, clock, inode).await?);
            }
        } else {
            findings.push(finding);
        }
    }
    Ok(findings)
}

/// Whether a finding says that an inode has no name. Those that quote a name do not begin with a
/// number.
fn is_nameless(problem: &str) -> bool {
    let words = problem.trim_start_matches(|character: char| character.is_ascii_digit());
    words.len() < problem.len() && words.strip_prefix(" links, but ").is_some_and(|words| words.starts_with(NAMELESS))
}

/// Whether a finding says that a name is in the wrong shard. None ends with a name that it quotes.
fn is_misplaced(problem: &str) -> bool {
    let words = problem.strip_prefix("name '").and_then(|words| words.strip_suffix(MISPLACED));
    words.is_some_and(|words| words.ends_with("' "))
}

/// One repair: what was repaired, or `found` with the reason why not. It is asked for again until
/// nothing is left: that answer comes when the other MDT has carried out what was decided.
async fn repair(mdt: &Import, clock: &dyn Clock, repair: NameRepair, found: Finding) -> FsResult<Vec<Finding>> {
    let mut findings = Vec::new();
    for _ in 0..REPAIRS_MAX {
        match ask(mdt, clock, MdtRequest::RepairName(Credentials::root(), repair.clone())).await {
            Ok(MdtReply::Findings(repaired)) if repaired.is_empty() => break,
            Ok(MdtReply::Findings(repaired)) => findings.extend(repaired),
            Ok(reply) => return Err(unexpected(reply)),
            Err(error @ FsError::Unreachable { .. }) => return Err(error),
            Err(error) => {
                findings.push(unrepaired(found, &error));
                break;
            }
        }
    }
    Ok(findings)
}

/// A finding with the reason why it was not repaired.
fn unrepaired(found: Finding, error: &FsError) -> Finding {
    let reason = match error {
        FsError::Busy => "names of the directory are moving to or from stripes: check again later".to_owned(),
        FsError::NotSupported => "/lost+found must be a directory without stripes on MDT0000 that only root can \
                                  change, with a free name for the inode (rename another one), and all metadata \
                                  servers must be updated"
            .to_owned(),
        FsError::Exists if found.inode.is_shard() => "the stripe belongs to another directory".to_owned(),
        FsError::Exists => "the directory has another name on another metadata target, which may be right".to_owned(),
        FsError::NotEmpty => "the stripe has names, which no directory leads to".to_owned(),
        error => error.to_string(),
    };
    Finding { problem: format!("{}; not repaired: {reason}", found.problem), ..found }
}

/// Asks an MDT, as often as it waits for another one.
pub(super) async fn ask(mdt: &Import, clock: &dyn Clock, request: MdtRequest) -> FsResult<MdtReply> {
    loop {
        match mdt.call(request.clone()).await {
            Err(FsError::AwaitsMdt(_)) => rt::clock::sleep(clock, PAUSE).await,
            answered => return Ok(answered?.reply),
        }
    }
}

/// Renames all names of a shard that belong into another one.
async fn put_in_place(targets: &Targets, clock: &dyn Clock, shard: InodeNumber) -> FsResult<Vec<Finding>> {
    let failed = |error: &FsError| {
        let found = Finding { inode: shard, problem: format!("a name {MISPLACED}"), repaired: false };
        Ok(vec![unrepaired(found, error)])
    };
    let map = match map_of(targets, clock, shard).await {
        Err(error @ FsError::Unreachable { .. }) => return Err(error),
        Err(error) => return failed(&error),
        Ok(map) => map,
    };
    let entries = match misplaced(targets, clock, (shard, &map)).await {
        Err(error @ FsError::Unreachable { .. }) => return Err(error),
        Err(error) => return failed(&error),
        Ok(entries) => entries,
    };
    let mut findings = Vec::new();
    for entry in entries {
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        let finding = Finding { inode: shard, problem: format!("name '{name}' {MISPLACED}"), repaired: true };
        findings.push(match move_name(targets, clock, (shard, &map), &entry).await {
            Ok(new) if new == entry.name => finding,
            Ok(new) => {
                let new = String::from_utf8_lossy(&new);
                Finding { problem: format!("{}, and exists there; it is '{new}' now", finding.problem), ..finding }
            }
            Err(error @ FsError::Unreachable { .. }) => return Err(error),
            Err(error) => unrepaired(Finding { repaired: false, ..finding }, &error),
        });
    }
    Ok(findings)
}

/// The map of the striped directory of a shard.
async fn map_of(targets: &Targets, clock: &dyn Clock, shard: InodeNumber) -> FsResult<DirectoryMap> {
    let above = MdtRequest::Lookup(Credentials::root(), Lookup { parent: shard, name: b"..".to_vec() });
    let master = match ask(targets.mdt_of(shard)?, clock, above).await? {
        MdtReply::Remote(master) => master,
        MdtReply::Entry(entry) => entry.attributes.inode,
        reply => return Err(unexpected(reply)),
    };
    match ask(targets.mdt_of(master)?, clock, MdtRequest::GetLayout(master)).await? {
        MdtReply::Layout(info) => match info.map {
            Some(map) if map.is_possible() && map.shards.contains(&shard) => Ok(map),
            _ => Err(FsError::Stale),
        },
        reply => Err(unexpected(reply)),
    }
}

/// The names of a shard that belong into another one.
async fn misplaced(
    targets: &Targets,
    clock: &dyn Clock,
    (shard, map): (InodeNumber, &DirectoryMap),
) -> FsResult<Vec<DirectoryEntry>> {
    let (mut found, mut cookie) = (Vec::new(), 0);
    loop {
        let request = MdtRequest::ReadDirectory(ReadDirectory {
            inode: shard,
            open: OpenId(0),
            cookie,
            entries_max: PAGE,
            attributes: false,
            unasked: Some(OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME)),
        });
        let (page, is_end) = match ask(targets.mdt_of(shard)?, clock, request).await? {
            MdtReply::Directory(page, is_end) => (page, is_end),
            MdtReply::MovingNames(_) | MdtReply::ReturningNames(_) => return Err(FsError::Busy),
            reply => return Err(unexpected(reply)),
        };
        cookie = page.last().map_or(cookie, |last| last.cookie);
        let is_over = is_end || page.is_empty();
        found.extend(page.into_iter().filter(|entry| map.shard_of(&entry.name) != Some(shard)));
        if is_over {
            return Ok(found);
        }
    }
}

/// Moves a name to its shard. Returns the name that it has there: another one if it is taken.
async fn move_name(
    targets: &Targets,
    clock: &dyn Clock,
    (shard, map): (InodeNumber, &DirectoryMap),
    entry: &DirectoryEntry,
) -> FsResult<Vec<u8>> {
    match rename(targets, clock, (shard, map), (entry, &entry.name)).await {
        Err(FsError::Exists) => {}
        outcome => return outcome.map(|()| entry.name.clone()),
    }
    let suffix = format!(".#{:x}", entry.inode.0).into_bytes();
    let kept = entry.name.len().min(NAME_BYTES_MAX - suffix.len());
    let other = [&entry.name[..kept], &suffix[..]].concat();
    rename(targets, clock, (shard, map), (entry, &other)).await?;
    Ok(other)
}

async fn rename(
    targets: &Targets,
    clock: &dyn Clock,
    (shard, map): (InodeNumber, &DirectoryMap),
    (entry, new_name): (&DirectoryEntry, &[u8]),
) -> FsResult<()> {
    let new_parent = map.shard_of(new_name).ok_or(FsError::Stale)?;
    let rename = Rename {
        parent: shard,
        name: entry.name.clone(),
        new_parent,
        new_name: new_name.to_vec(),
        mode: RenameMode::NoReplace,
        source_data: SourceData::AsIs,
        mdt_era: None,
        same_directory: true,
    };
    match ask(targets.mdt_of(new_parent)?, clock, MdtRequest::Rename(Credentials::root(), rename)).await? {
        MdtReply::Done => Ok(()),
        reply => Err(unexpected(reply)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users choose names that findings quote.
    #[test]
    fn names_do_not_change_what_a_finding_says() {
        assert!(is_nameless("1 links, but no name refers to it; more"));
        assert!(is_misplaced("name 'x' is in a shard to which it does not belong"));
        let forged = [
            "name '1 links, but no name refers to it' in directory 5 is unknown to its inode",
            "attribute 'user.no name refers to it' of an inode that does not exist",
            "name 'x' is in a shard to which it does not belong' in directory 5 does not refer to it",
            " links, but no name refers to it",
        ];
        for problem in forged {
            assert!(!is_nameless(problem) && !is_misplaced(problem), "{problem}");
        }
    }
}
