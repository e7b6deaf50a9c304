//! What a mount needs to know.

use std::sync::Arc;

use rpc::{
    Endpoint, ImportOptions, Principal,
    message::mgs::{ClusterMap, MapTarget, TargetRole, TargetState},
};
use tokio::sync::watch;
use types::limits::OPENS_PER_CLIENT_MAX;

/// Finds the way to a target of the cluster map: over the network, or within this process.
pub type Resolver = Arc<dyn Fn(&MapTarget) -> Endpoint + Send + Sync>;

/// Settings of a mount.
#[derive(Clone)]
pub struct MountOptions {
    /// The cluster map, kept up to date by the creator of these options.
    pub map: watch::Receiver<Arc<ClusterMap>>,
    /// The way to each target.
    pub resolve: Resolver,
    /// The client that this mount is. Never use one twice.
    pub principal: Principal,
    /// Settings of the connections: timeout, requests in flight and so on.
    pub import: ImportOptions,
    /// With as many files open, none is opened without asking its MDT, which has a limit of its
    /// own.
    pub unasked_opens_max: usize,
}

impl MountOptions {
    /// Mounts the file system of this cluster map, with `resolve` leading to its targets.
    pub fn new(map: watch::Receiver<Arc<ClusterMap>>, resolve: Resolver, principal: Principal) -> Self {
        let import = ImportOptions::default();
        Self { map, resolve, principal, import, unasked_opens_max: OPENS_PER_CLIENT_MAX }
    }

    /// Mounts a fixed set of targets, without an MGS.
    pub fn fixed(fsname: &str, targets: Vec<(TargetRole, Endpoint)>, principal: Principal) -> Self {
        let target = |(role, endpoint): &(TargetRole, Endpoint)| MapTarget {
            role: *role,
            uuid: format!("{}_UUID", crate::targets::connection::target_name(fsname, *role)),
            addresses: vec![endpoint.to_string()],
            state: TargetState::Active,
        };
        let map = ClusterMap {
            version: 1,
            fsname: fsname.to_owned(),
            targets: targets.iter().map(target).collect(),
            parameters: Vec::new(),
            pools: Vec::new(),
        };
        let resolve = move |target: &MapTarget| {
            let found = targets.iter().find(|(role, _)| *role == target.role);
            found.map(|(_, endpoint)| endpoint.clone()).expect("the map was made from these targets")
        };
        Self::new(watch::channel(Arc::new(map)).1, Arc::new(resolve), principal)
    }
}
