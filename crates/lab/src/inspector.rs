//! A tool's connection to every target: sends the requests that `stria fsck` sends.

use std::{collections::BTreeMap, time::Duration};

use layout::Location;
use rpc::{
    Endpoint, Import,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest,
        mdt::{Finding, GetLock, HeldLock, LockMode, LockRange, ScannedInode},
        mdt_peer::{RemoteName, RemoteNames, RemoteNamesAfter},
        ost::ObjectAttributes,
    },
    unexpected,
};
use types::{Credentials, FsResult, InodeNumber, MdtIndex, ObjectId, OstIndex};

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
    mdts: BTreeMap<MdtIndex, Import>,
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
        let mdts = (0..cluster.options().mdts).map(|index| (MdtIndex(index), import(Role::Mds(index)))).collect();
        Self { mdts, osts, process }
    }

    /// Ends the sessions and the process.
    pub async fn close(self) {
        for import in self.mdts.values().chain(self.osts.values()) {
            import.close().await;
        }
        self.process.kill();
    }

    /// The targets that may hold objects: the MDTs, as if they were one, and the OSTs.
    pub fn holders(&self) -> Vec<Location> {
        let osts = self.osts.keys().map(|ost| Location::Ost(*ost));
        std::iter::once(Location::Mdt).chain(osts).collect()
    }

    /// Those that may hold objects of a location.
    fn imports(&self, holder: Location) -> Vec<&Import> {
        match holder {
            Location::Ost(ost) => vec![&self.osts[&ost]],
            Location::Mdt => self.mdts.values().collect(),
        }
    }

    /// Asks the holder of an object: an OST, or the MDT that has the file.
    async fn ask(&self, holder: Location, object: ObjectId, request: OstRequest) -> FsResult<OstReply> {
        let import = match holder {
            Location::Ost(ost) => &self.osts[&ost],
            Location::Mdt => &self.mdts[&object.inode.mdt()],
        };
        Ok(import.call(request).await?.reply)
    }

    /// What the MDTs' own checks find; nothing is repaired.
    pub async fn findings(&self) -> FsResult<Vec<Finding>> {
        let mut all = Vec::new();
        for mdt in self.mdts.values() {
            match mdt.call(MdtRequest::Check(Credentials::root(), false)).await?.reply {
                MdtReply::Findings(findings) => all.extend(findings),
                reply => return Err(unexpected(reply)),
            }
        }
        Ok(all)
    }

    /// Names that lead to other MDTs (`of_names`), or inodes that have their names there.
    pub async fn remote_names(&self, of_names: bool) -> FsResult<Vec<RemoteName>> {
        let mut all = Vec::new();
        for mdt in self.mdts.values() {
            let mut after = RemoteNamesAfter { of_names, key: None };
            loop {
                match mdt.call(MdtRequest::RemoteNames(Credentials::root(), after.clone())).await?.reply {
                    MdtReply::RemoteNames(RemoteNames { found, next }) => {
                        all.extend(found);
                        after.key = next;
                    }
                    reply => return Err(unexpected(reply)),
                }
                if after.key.is_none() {
                    break;
                }
            }
        }
        all.sort();
        Ok(all)
    }

    /// All inodes.
    pub async fn inodes(&self) -> FsResult<Vec<ScannedInode>> {
        let mut all = Vec::new();
        for mdt in self.mdts.values() {
            all.extend(Self::inodes_of(mdt).await?);
        }
        Ok(all)
    }

    async fn inodes_of(mdt: &Import) -> FsResult<Vec<ScannedInode>> {
        let (mut inodes, mut after) = (Vec::new(), InodeNumber(0));
        loop {
            match mdt.call(MdtRequest::ScanInodes(Credentials::root(), after, PAGE)).await?.reply {
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
        let mut all = Vec::new();
        for import in self.imports(holder) {
            all.extend(Self::objects_of(import).await?);
        }
        Ok(all)
    }

    async fn objects_of(import: &Import) -> FsResult<Vec<(ObjectId, ObjectAttributes)>> {
        let (mut objects, mut after) = (Vec::new(), None);
        loop {
            match import.call(OstRequest::ListObjects(after, PAGE)).await?.reply {
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
        self.ask(holder, object, OstRequest::Verify(object)).await.map(drop)
    }

    /// Destroys an object of an OST, as `stria fsck --repair` does.
    pub async fn destroy(&self, holder: Location, object: ObjectId) -> FsResult<()> {
        self.ask(holder, object, OstRequest::Destroy(vec![object], None)).await.map(drop)
    }

    /// An fcntl lock that is held on a file.
    pub async fn lock_on(&self, inode: InodeNumber) -> FsResult<Option<HeldLock>> {
        let (range, mode) = (LockRange::WHOLE, LockMode::Exclusive);
        loop {
            let mdt = &self.mdts[&inode.mdt()];
            match mdt.call(MdtRequest::GetLock(GetLock { inode, owner: 1, range, mode })).await?.reply {
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
