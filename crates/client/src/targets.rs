//! All targets of the cluster map, by index.
//!
//! Targets are added as the map grows and never removed: files lie on them, and an index is never given to another
//! target. Life cycle: filled at the mount, then updated by a task that follows the map.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::RwLock;
use rpc::{
    Import, ImportOptions,
    message::mgs::{ClusterMap, TargetRole},
};
use rt::Seams;
use types::{ClientId, FsError, FsResult, InodeNumber, MdtIndex, OstIndex};

use crate::{
    options::Resolver,
    recovery::{MdtRecovery, OstRecovery, Volatile},
    target::{Restarts, Target, target_name},
};

/// What connections are made with.
pub(crate) struct Connector {
    pub seams: Seams,
    pub client: ClientId,
    pub client_name: String,
    pub options: ImportOptions,
    pub resolve: Resolver,
    pub volatile: Arc<Volatile>,
}

/// See the module documentation.
pub(crate) struct Targets {
    connector: Connector,
    by_role: RwLock<BTreeMap<TargetRole, Arc<Target>>>,
}

impl Targets {
    pub fn new(connector: Connector) -> Self {
        Self { connector, by_role: RwLock::default() }
    }

    /// Takes over a (newer) cluster map.
    pub fn update(&self, map: &ClusterMap) {
        let mut by_role = self.by_role.write();
        for entry in &map.targets {
            if let Some(target) = by_role.get(&entry.role) {
                if target.update(entry) {
                    target.import().set_address((self.connector.resolve)(entry));
                }
                continue;
            }
            let restarts = Arc::new(Restarts::default());
            let import = self.connect(&target_name(&map.fsname, entry.role), entry, restarts.clone());
            by_role.insert(entry.role, Arc::new(Target::new(entry, import, restarts)));
        }
    }

    fn connect(&self, name: &str, entry: &rpc::message::mgs::Target, restarts: Arc<Restarts>) -> Import {
        let connector = &self.connector;
        let recovery: Arc<dyn rpc::Recovery> = match entry.role {
            TargetRole::Mdt(mdt) => Arc::new(MdtRecovery::new(mdt, connector.volatile.clone(), restarts)),
            TargetRole::Ost(_) => Arc::new(OstRecovery::new(restarts)),
        };
        Import::new(
            connector.seams.clone(),
            name,
            (connector.resolve)(entry),
            connector.client,
            &connector.client_name,
            connector.options.clone(),
            Some(recovery),
        )
    }

    fn get(&self, role: TargetRole) -> FsResult<Arc<Target>> {
        self.by_role.read().get(&role).cloned().ok_or(FsError::NoDevice)
    }

    /// The MDT that holds an inode.
    pub fn mdt_of(&self, inode: InodeNumber) -> FsResult<Arc<Target>> {
        self.mdt(inode.mdt())
    }

    pub fn mdt(&self, index: MdtIndex) -> FsResult<Arc<Target>> {
        self.get(TargetRole::Mdt(index))
    }

    pub fn ost(&self, index: OstIndex) -> FsResult<Arc<Target>> {
        self.get(TargetRole::Ost(index))
    }

    /// MDTs by index, then OSTs by index.
    pub fn all(&self) -> Vec<Arc<Target>> {
        self.by_role.read().values().cloned().collect()
    }
}
