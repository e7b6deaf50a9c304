//! A copy of the cluster map that follows the management service's.
//!
//! One task asks for the map with its current version; the MGS answers when there is a newer one,
//! or after a second. After errors it tries again: the last map stays valid until a newer one
//! arrives.
//!
//! Life cycle: the task ends when the watcher and all its subscriptions are dropped.

use std::{sync::Arc, time::Duration};

use rpc::{
    Import,
    message::{
        MgsReply, MgsRequest,
        mgs::{ClusterMap, TargetRole},
    },
    unexpected,
};
use rt::{Clock, Seams};
use tokio::sync::watch;
use types::{FsResult, ProtocolError};

use crate::race::unless;

/// Pause after a request that failed. The import has waited already; this keeps a refusing server
/// from being flooded.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps a cluster map up to date. Cheap to clone.
#[derive(Clone)]
pub struct Watcher {
    maps: watch::Receiver<Arc<ClusterMap>>,
}

impl Watcher {
    /// Starts to follow the management service that `import` reaches. Until the first answer the
    /// map is empty, version 0.
    pub fn start(seams: &Seams, import: Import) -> Watcher {
        let (sender, maps) = watch::channel(Arc::new(ClusterMap::default()));
        let clock = seams.clock.clone();
        seams.spawn.spawn("mgs_watcher", Box::pin(follow(clock, import, sender)));
        Watcher { maps }
    }

    /// A watcher that shows what is published to `maps`, for processes that have the map already.
    pub fn of(maps: watch::Receiver<Arc<ClusterMap>>) -> Watcher {
        Watcher { maps }
    }

    /// The map as known now; version 0 if nothing is known yet.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.maps.borrow().clone()
    }

    /// A receiver that sees every further map (or the latest of several).
    pub fn subscribe(&self) -> watch::Receiver<Arc<ClusterMap>> {
        self.maps.clone()
    }

    /// Waits for the first map that `wanted` says yes to. The caller bounds the time.
    pub async fn wait_for(&self, mut wanted: impl FnMut(&ClusterMap) -> bool) -> FsResult<Arc<ClusterMap>> {
        let mut maps = self.maps.clone();
        let found = maps.wait_for(|map| wanted(map)).await.map(|map| map.clone());
        found.map_err(|_| ProtocolError::MapNotFollowed.into())
    }

    /// Waits for the first map.
    pub async fn first(&self) -> FsResult<Arc<ClusterMap>> {
        self.wait_for(|map| map.version > 0).await
    }

    /// Where a target is now, or `None` if the map does not name it.
    pub fn addresses(&self, role: TargetRole) -> Option<Vec<String>> {
        let maps = self.maps.borrow();
        maps.targets.iter().find(|target| target.role == role).map(|target| target.addresses.clone())
    }
}

async fn follow(clock: Arc<dyn Clock>, import: Import, sender: watch::Sender<Arc<ClusterMap>>) {
    loop {
        let known = sender.borrow().version;
        match unless(sender.closed(), get_map(&import, known)).await {
            None => return,
            Some(Ok(map)) => {
                sender.send_if_modified(|published| {
                    let differs = map.version != published.version;
                    if differs {
                        *published = Arc::new(map);
                    }
                    differs
                });
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "cluster map");
                if unless(sender.closed(), rt::clock::sleep(&*clock, PAUSE)).await.is_none() {
                    return;
                }
            }
        }
    }
}

/// Asks the management service for its map, once; it answers when its version differs from `known`,
/// or after a second.
pub async fn get_map(import: &Import, known: u64) -> FsResult<ClusterMap> {
    match import.call(MgsRequest::GetMap(known)).await?.reply {
        MgsReply::Map(map) => Ok(map),
        reply => Err(unexpected(reply)),
    }
}
