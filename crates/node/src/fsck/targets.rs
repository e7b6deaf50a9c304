//! The targets that a check asks: all that are in use when it begins.

use std::collections::BTreeMap;

use layout::Location;
use mgs::watcher;
use rpc::{
    Endpoint, Import, ImportOptions, Role,
    message::{
        MdtReply, MdtRequest, OstReply, OstRequest,
        mdt::ScannedInode,
        mgs::{ClusterMap, MapTarget, TargetRole, TargetState},
        ost::CHECK_OBJECTS_MAX,
    },
    unexpected,
};
use types::{Credentials, FsError, FsResult, InodeNumber};

use crate::Node;

/// Inodes or objects asked for at a time.
pub(super) const PAGE: u32 = 1024;

const _: () = assert!(PAGE <= CHECK_OBJECTS_MAX, "a page of objects can be checked at once");

/// All inodes of an MDT, in order.
pub(super) async fn visit_inodes(mdt: &Import, mut visit: impl FnMut(ScannedInode)) -> FsResult<()> {
    let mut after = InodeNumber(0);
    loop {
        let request = MdtRequest::ScanInodes(Credentials::root(), after, PAGE);
        let page = match mdt.call(request).await?.reply {
            MdtReply::Scanned(page) => page,
            reply => return Err(unexpected(reply)),
        };
        let Some(last) = page.last() else { return Ok(()) };
        after = last.entry.attributes.inode;
        page.into_iter().for_each(&mut visit);
    }
}

/// The target that holds an object of a file.
pub(super) fn holder(inode: InodeNumber, location: Location) -> TargetRole {
    match location {
        Location::Ost(ost) => TargetRole::Ost(ost),
        Location::Mdt => TargetRole::Mdt(inode.mdt()),
    }
}

/// Whether a map has no other metadata targets than these, which are in use.
fn has_no_others(map: &ClusterMap, mut known: impl FnMut(TargetRole) -> bool) -> bool {
    let mut mdts = map.targets.iter().filter(|target| matches!(target.role, TargetRole::Mdt(_)));
    mdts.all(|target| target.state == TargetState::Active && known(target.role))
}

/// Connections to all targets in use.
pub(super) struct Targets {
    pub mgs: Import,
    pub mdts: Vec<(TargetRole, Import)>,
    pub osts: Vec<(TargetRole, Import)>,
    pub deactivated: Vec<TargetRole>,
}

impl Targets {
    pub async fn connect(node: &Node, role: Role) -> anyhow::Result<Self> {
        node.registered().await?;
        let map = node.known_map().await?;
        let principal = node.principal(role);
        let resolve = node.resolver();
        let is_active = |target: &&MapTarget| target.state == TargetState::Active;
        let import = |target: &MapTarget| {
            let name = target.role.target_name(&map.fsname);
            let endpoint: Endpoint = resolve(target);
            let options = ImportOptions::default();
            (target.role, Import::new(node.seams().clone(), &name, endpoint, principal.clone(), options, None))
        };
        let of = |map: &ClusterMap, mdt: bool| -> Vec<_> {
            let wanted = |target: &&MapTarget| matches!(target.role, TargetRole::Mdt(_)) == mdt;
            map.targets.iter().filter(is_active).filter(wanted).map(import).collect()
        };
        let deactivated = map.targets.iter().filter(|target| !is_active(target)).map(|target| target.role);
        let mgs = node.mgs_import.clone();
        Ok(Self { mgs, mdts: of(&map, true), osts: of(&map, false), deactivated: deactivated.collect() })
    }

    pub fn imports(&self) -> impl Iterator<Item = &Import> {
        self.mdts.iter().chain(&self.osts).map(|(_, import)| import)
    }

    pub fn mdt_of(&self, inode: InodeNumber) -> FsResult<&Import> {
        let role = TargetRole::Mdt(inode.mdt());
        self.mdts.iter().find(|(known, _)| *known == role).map(|(_, import)| import).ok_or(FsError::NoDevice)
    }

    /// Whether these are all MDTs there are now. To another one files may have moved, with their
    /// objects.
    pub async fn have_all_mdts(&self) -> bool {
        let map = watcher::get_map(&self.mgs, 0).await;
        map.is_ok_and(|map| has_no_others(&map, |role| self.mdts.iter().any(|(known, _)| *known == role)))
    }

    /// Whether all targets that have data of a file are connected.
    pub fn have_all_of(&self, file: &ScannedInode) -> bool {
        let inode = file.entry.attributes.inode;
        let mut objects = file.layout.iter().flat_map(|layout| layout.objects());
        objects.all(|(_, location)| {
            let role = holder(inode, location);
            self.mdts.iter().chain(&self.osts).any(|(known, _)| *known == role)
        })
    }

    /// A request to an OST, or one for data on an MDT.
    pub async fn objects(&self, role: TargetRole, request: OstRequest) -> FsResult<OstReply> {
        let mut all = self.mdts.iter().chain(&self.osts);
        let import = all.find(|(known, _)| *known == role).map(|(_, import)| import).ok_or(FsError::NoDevice)?;
        Ok(import.call(request).await?.reply)
    }

    /// The inode as it is now; `None` if there is none.
    pub async fn look_again(&self, inode: InodeNumber) -> FsResult<Option<ScannedInode>> {
        let before = InodeNumber(inode.0.saturating_sub(1));
        let request = MdtRequest::ScanInodes(Credentials::root(), before, 1);
        match self.mdt_of(inode)?.call(request).await?.reply {
            MdtReply::Scanned(page) => Ok(page.into_iter().find(|found| found.entry.attributes.inode == inode)),
            reply => Err(unexpected(reply)),
        }
    }

    /// The files whose objects bear the number of another one, by that number, as they are now.
    pub async fn holders(&self) -> FsResult<BTreeMap<InodeNumber, ScannedInode>> {
        let mut holders = BTreeMap::new();
        for (_, mdt) in &self.mdts {
            let note = |inode: ScannedInode| {
                if let Some(namer) = inode.layout.as_ref().and_then(|layout| layout.named_by) {
                    holders.insert(namer, inode);
                }
            };
            visit_inodes(mdt, note).await?;
        }
        Ok(holders)
    }

    pub async fn close(&self) {
        for import in self.imports() {
            import.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{MdtIndex, OstIndex};

    use super::*;

    /// Files may have moved there since the others were read.
    #[test]
    fn an_mdt_that_was_added_or_taken_out_of_use_is_noticed() {
        let target = |role, state| MapTarget { role, uuid: String::new(), addresses: Vec::new(), state };
        let mdt = |index, state| target(TargetRole::Mdt(MdtIndex(index)), state);
        let of = |targets: Vec<MapTarget>| ClusterMap { targets, ..ClusterMap::default() };
        let known = |role| [0, 1].map(|index| TargetRole::Mdt(MdtIndex(index))).contains(&role);
        let is_known = |targets| has_no_others(&of(targets), known);
        let [zero, one] = [0, 1].map(|index| mdt(index, TargetState::Active));
        let ost = target(TargetRole::Ost(OstIndex(7)), TargetState::Inactive);
        assert!(is_known(vec![zero.clone(), one.clone(), ost]));
        assert!(!is_known(vec![zero.clone(), one, mdt(2, TargetState::Active)]));
        assert!(!is_known(vec![zero, mdt(1, TargetState::Inactive)]));
    }
}
