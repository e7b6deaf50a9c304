//! The paths of an inode, put together from what several MDTs know.
//!
//! Each MDT tells a path up to the first directory whose name is on another one, and checks search
//! permission on those directories that it has. So this client asks for permission on each
//! directory from which a path goes on elsewhere.

use std::collections::BTreeSet;

use rpc::message::{MdtReply, MdtRequest};
use types::{Credentials, FsError, FsResult, InodeNumber, permission};

use super::namespace::LOOKUPS;
use crate::{FileSystem, targets::connection::unexpected};

/// How often MDTs are asked for parts of paths.
const PATHS_ASKED: usize = 4096;

/// What becomes of a part of a path.
enum Part {
    /// Whole paths, and those that go on above a directory.
    Found(Vec<(InodeNumber, Vec<u8>)>),
    /// The caller may not search a directory of it.
    Refused,
    /// It is another one by now.
    Changed,
}

impl FileSystem {
    /// All paths of an inode, relative to the root, without a leading slash. Others than root see
    /// those whose directories they may search.
    pub async fn paths(&self, credentials: &Credentials, inode: InodeNumber) -> FsResult<Vec<Vec<u8>>> {
        for _ in 0..LOOKUPS {
            if let Some(paths) = self.paths_now(credentials, inode).await? {
                return Ok(paths);
            }
        }
        Err(FsError::Stale)
    }

    /// The same, unless a shard ends on the way, since names are in its directory from then on, or
    /// a directory on the way moves.
    async fn paths_now(&self, credentials: &Credentials, inode: InodeNumber) -> FsResult<Option<Vec<Vec<u8>>>> {
        // Not every MDT has the root.
        self.access(credentials, InodeNumber::ROOT, permission::EXECUTE).await?;
        let (mut paths, mut refused, mut searched) = (Vec::new(), false, BTreeSet::from([InodeNumber::ROOT]));
        // Directories on the way whose name is on another MDT, and what comes below them.
        let mut below: Vec<(InodeNumber, Option<Vec<u8>>)> = vec![(inode, None)];
        for _ in 0..PATHS_ASKED {
            let Some((at, rest)) = below.pop() else { break };
            let joined = |path: Vec<u8>| match &rest {
                // Of a shard of a striped directory.
                Some(rest) if path.is_empty() => rest.clone(),
                Some(rest) => [path, Vec::clone(rest)].join(&b'/'),
                None => path,
            };
            let is_first = rest.is_none();
            match self.part_of_paths(credentials, at, is_first, &mut searched).await? {
                Part::Found(found) => {
                    for (top, path) in found {
                        match top {
                            InodeNumber::ROOT => paths.push(joined(path)),
                            top => below.push((top, Some(joined(path)))),
                        }
                    }
                }
                Part::Refused => refused = true,
                Part::Changed => return Ok(None),
            }
        }
        match (below.is_empty(), paths.is_empty()) {
            (false, _) => Err(FsError::NameTooLong),
            (true, true) if refused => Err(FsError::AccessDenied),
            (true, _) => Ok(Some(paths)),
        }
    }

    /// What one MDT knows of them. `searched`: directories on which permission was found.
    async fn part_of_paths(
        &self,
        credentials: &Credentials,
        at: InodeNumber,
        is_first: bool,
        searched: &mut BTreeSet<InodeNumber>,
    ) -> FsResult<Part> {
        let asked = async {
            if !is_first && !searched.contains(&at) {
                self.access(credentials, at, permission::EXECUTE).await?;
                searched.insert(at);
            }
            self.call(at, MdtRequest::InodePaths(credentials.clone(), at)).await
        };
        match asked.await.map(|answered| answered.reply) {
            Ok(MdtReply::Paths(found)) => {
                Ok(Part::Found(found.into_iter().map(|path| (InodeNumber::ROOT, path)).collect()))
            }
            Ok(MdtReply::PathsBelow(found)) => Ok(Part::Found(found)),
            Ok(reply) => Err(unexpected(reply)),
            Err(FsError::Stale) if at.is_shard() || !is_first => Ok(Part::Changed),
            Err(FsError::AccessDenied) => Ok(Part::Refused),
            Err(error) => Err(error),
        }
    }

    /// Fails unless `credentials` may come to this inode by a path, if it has a name.
    pub(super) async fn require_path(&self, credentials: &Credentials, inode: InodeNumber) -> FsResult<()> {
        if credentials.is_root() || self.get_attributes(inode, None).await?.links == 0 {
            return Ok(());
        }
        self.paths(credentials, inode).await.map(drop)
    }
}
