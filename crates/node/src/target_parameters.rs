//! The parameters that a mount has for each target: they come with the targets, which are added
//! while it is mounted, and stay.

use std::{collections::BTreeSet, sync::Arc};

use client::FileSystem;
use rpc::message::mgs::TargetRole;
use rt::parameters::{ParameterError, ParameterTree};
use tokio::sync::watch;

use super::{Node, parameters};

/// Keeps them.
pub struct TargetParameters {
    tree: ParameterTree,
    mount: Option<Mount>,
}

struct Mount {
    fsname: String,
    client: Arc<FileSystem>,
    updates: watch::Receiver<()>,
    /// Targets that have theirs.
    registered: BTreeSet<TargetRole>,
}

impl TargetParameters {
    /// None yet, of the mount of this process if it has one.
    pub fn new(tree: &ParameterTree, node: &Node) -> Self {
        let client = node.clients.lock().expect("no panic while locked").first().cloned();
        let mount = client.map(|client| Mount {
            fsname: node.fsname().to_owned(),
            updates: client.target_updates(),
            client,
            registered: BTreeSet::new(),
        });
        Self { tree: tree.clone(), mount }
    }

    /// Registers those of the targets to which the mount has begun to connect. At the first that
    /// cannot be registered the others wait for the next time.
    pub fn follow(&mut self) -> Result<(), ParameterError> {
        let Some(mount) = &mut self.mount else { return Ok(()) };
        mount.updates.mark_unchanged();
        for (role, ..) in mount.client.connections() {
            if mount.registered.insert(role) {
                parameters::register_target(&self.tree, &mount.fsname, &mount.client, role)?;
            }
        }
        Ok(())
    }

    /// Waits until there may be further targets.
    pub async fn changed(&mut self) {
        let ended = match &mut self.mount {
            Some(mount) => mount.updates.changed().await.is_err(),
            None => true,
        };
        if ended {
            std::future::pending().await
        }
    }
}
