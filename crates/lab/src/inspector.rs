//! A tool's connection to every target: sends the requests that `stria fsck` sends.

use std::{collections::BTreeMap, time::Duration};

use layout::Location;
use rpc::{
    Endpoint, Import,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest,
        mdt::{Finding, GetLock, HeldLock, LockMode, LockRange, ScannedInode},
        ost::ObjectAttributes,
    },
    unexpected,
};
use types::{Credentials, FsResult, InodeNumber, ObjectId, OstIndex};

use crate::{Process, cluster::Cluster, server::Role};

/// Inodes or objects asked for at once: few, so that scans take several requests.
const PAGE: u32 = 50;
/// Between two questions to an MDT that recovers.
const PAUSE: Duration = Duration::from_millis(100);
/// The tool's host.
const HOST: &str = "tool";

/// Connections to all targets of a cluster. Ends with [`Inspector::close`].
pub struct Inspector {
    process: Process,
    mdt: Import,
    osts: BTreeMap<OstIndex, Import>,
}

impl Inspector {
    /// Connects.
    pub fn open(cluster: &Cluster) -> Self {
        let process = cluster.process(HOST);
        let seams = process.seams();
        let principal = crate::server::principal(&seams, rpc::Role::Repair, HOST);
        let import = |role: Role| {
            let options = cluster.options().settings.import.clone();
            let endpoint = Endpoint::Remote(role.address().into());
            Import::new(seams.clone(), &role.target_name(), endpoint, principal.clone(), options, None)
        };
        let osts = (0..cluster.options().osts).map(|index| (OstIndex(index), import(Role::Oss(index)))).collect();
        Self { mdt: import(Role::Mds), osts, process }
    }

    /// Ends the sessions and the process.
    pub async fn close(self) {
        self.mdt.close().await;
        for import in self.osts.values() {
            import.close().await;
        }
        self.process.kill();
    }

    /// The targets that may hold objects: the MDT and the OSTs.
    pub fn holders(&self) -> Vec<Location> {
        let osts = self.osts.keys().map(|ost| Location::Ost(*ost));
        std::iter::once(Location::Mdt).chain(osts).collect()
    }

    /// Asks for objects: those of an OST, or data on the MDT.
    async fn ask(&self, holder: Location, request: OstRequest) -> FsResult<OstReply> {
        let import = match holder {
            Location::Ost(ost) => &self.osts[&ost],
            Location::Mdt => &self.mdt,
        };
        Ok(import.call(request).await?.reply)
    }

    /// What the MDT's own check finds; nothing is repaired.
    pub async fn findings(&self) -> FsResult<Vec<Finding>> {
        match self.mdt.call(MdtRequest::Check(Credentials::root(), false)).await?.reply {
            MdtReply::Findings(findings) => Ok(findings),
            reply => Err(unexpected(reply)),
        }
    }

    /// All inodes.
    pub async fn inodes(&self) -> FsResult<Vec<ScannedInode>> {
        let (mut inodes, mut after) = (Vec::new(), InodeNumber(0));
        loop {
            match self.mdt.call(MdtRequest::ScanInodes(Credentials::root(), after, PAGE)).await?.reply {
                MdtReply::Scanned(page) => match page.last() {
                    None => return Ok(inodes),
                    Some(last) => {
                        after = last.entry.attributes.inode;
                        inodes.extend(page);
                    }
                },
                reply => return Err(unexpected(reply)),
            }
        }
    }

    /// All objects of a holder.
    pub async fn objects(&self, holder: Location) -> FsResult<Vec<(ObjectId, ObjectAttributes)>> {
        let (mut objects, mut after) = (Vec::new(), None);
        loop {
            match self.ask(holder, OstRequest::ListObjects(after, PAGE)).await? {
                OstReply::Objects(page) => match page.last() {
                    None => return Ok(objects),
                    Some((last, _)) => {
                        after = Some(*last);
                        objects.extend(page);
                    }
                },
                reply => return Err(unexpected(reply)),
            }
        }
    }

    /// Reads an object whole and compares its checksums.
    pub async fn verify(&self, holder: Location, object: ObjectId) -> FsResult<()> {
        self.ask(holder, OstRequest::Verify(object)).await.map(drop)
    }

    /// Destroys an object of an OST, as `stria fsck --repair` does.
    pub async fn destroy(&self, holder: Location, object: ObjectId) -> FsResult<()> {
        self.ask(holder, OstRequest::Destroy(vec![object], None)).await.map(drop)
    }

    /// An fcntl lock that is held on a file.
    pub async fn lock_on(&self, inode: InodeNumber) -> FsResult<Option<HeldLock>> {
        let (range, mode) = (LockRange::WHOLE, LockMode::Exclusive);
        loop {
            match self.mdt.call(MdtRequest::GetLock(GetLock { inode, owner: 1, range, mode })).await?.reply {
                MdtReply::Lock(held) => return Ok(held),
                // It recovers. This tool has no state that a callback could find.
                MdtReply::Waiting => {
                    self.process.seams().clock.sleep_until(self.process.seams().clock.now() + PAUSE).await
                }
                reply => return Err(unexpected(reply)),
            }
        }
    }
}
