//! All paths of an inode (fid2path). One that comes from a directory whose name is on another MDT
//! is told up to there: the client asks the other MDT for the rest.

use rpc::message::MdtReply;
use types::{Credentials, Damage, FsError, FsResult, InodeNumber, limits, permission};

use crate::{
    tables::inode::{Inode, Link},
    transaction::Transaction,
};

/// Paths in one answer.
const PATHS_MAX: usize = 1024;
/// Bytes of all paths in one answer.
const ANSWER_BYTES_MAX: usize = limits::BODY_BYTES_MAX / 2;
/// Directories above a name: more than the kernel's longest path can name.
const DEPTH_MAX: usize = 65536;

/// Root sees all; others need search permission on every directory of a path, and see those paths
/// only.
pub(crate) fn run(txn: &mut Transaction<'_>, who: &Credentials, inode: InodeNumber) -> FsResult<MdtReply> {
    let inode = txn.inode(inode)?;
    if inode.number() == InodeNumber::ROOT {
        return Ok(MdtReply::Paths(vec![Vec::new()]));
    }
    if let Some(master) = inode.master() {
        // It has the path of its directory.
        return match txn.is_here(master) {
            true => run(txn, who, master),
            false => Ok(MdtReply::PathsBelow(vec![(master, Vec::new())])),
        };
    }
    if inode.number().is_shard() {
        // It has ended.
        return Err(FsError::Stale);
    }
    let paths = paths(txn, who, &inode, PATHS_MAX)?;
    Ok(match paths.iter().all(|path| path.top == InodeNumber::ROOT) {
        true => MdtReply::Paths(paths.into_iter().map(|path| path.names).collect()),
        false => MdtReply::PathsBelow(paths.into_iter().map(|path| (path.top, path.names)).collect()),
    })
}

/// A path from a directory on: the root, or one whose name is on another MDT.
struct Path {
    top: InodeNumber,
    names: Vec<u8>,
}

/// Fails unless `who` may come to this inode by a path, as far as this MDT knows.
pub(crate) fn require_path(txn: &Transaction<'_>, who: &Credentials, inode: &Inode) -> FsResult<()> {
    if who.is_root() { Ok(()) } else { paths(txn, who, inode, 1).map(drop) }
}

/// Some of the paths that `who` may see, at least one and at most `count`.
fn paths(txn: &Transaction<'_>, who: &Credentials, inode: &Inode, count: usize) -> FsResult<Vec<Path>> {
    let first = inode.first_link.clone().ok_or(FsError::NotFound)?;
    let further = txn.further_links(inode.number(), PATHS_MAX - 1)?;
    let (mut paths, mut bytes, mut refused) = (Vec::new(), 0, None);
    for link in std::iter::once(first).chain(further) {
        match path_of(txn, who, link) {
            Ok(path) => {
                bytes += path.names.len();
                paths.push(path);
            }
            Err(error @ (FsError::AccessDenied | FsError::GroupsNeeded)) => refused = Some(error),
            Err(error) => return Err(error),
        }
        if paths.len() >= count || bytes > ANSWER_BYTES_MAX {
            break;
        }
    }
    match refused {
        Some(FsError::GroupsNeeded) => Err(FsError::GroupsNeeded),
        Some(error) if paths.is_empty() => Err(error),
        _ => Ok(paths),
    }
}

fn path_of(txn: &Transaction<'_>, who: &Credentials, link: Link) -> FsResult<Path> {
    let mut names = vec![link.name];
    let mut at = link.parent;
    for _ in 0..DEPTH_MAX {
        if txn.is_here(at) {
            let directory = txn.directory(at)?;
            txn.require(who, &directory, permission::EXECUTE)?;
            if at != InodeNumber::ROOT {
                let link = directory.first_link.ok_or(FsError::NotFound)?;
                // A shard has no name.
                names.extend(Some(link.name).filter(|name| !name.is_empty()));
                at = link.parent;
                continue;
            }
        }
        names.reverse();
        return Ok(Path { top: at, names: names.join(&b'/') });
    }
    Err(Damage::Cycle(at).into())
}
