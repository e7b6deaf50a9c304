//! What `stria ctl` can ask a running process: parameters, targets, states.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use bytes::Bytes;
use mgs::Watcher;
use rpc::{
    Import,
    message::{
        MgsRequest, Request,
        mgs::{ClusterMap, Pool, TargetRole, TargetState},
    },
};
use rt::{
    parameters::{NodeKind, ParameterError, ParameterTree},
    real::Cores,
};
use tokio::sync::watch;
use types::{FsError, OstIndex};

use super::{Node, parameters, pool_parameters::PoolParameters};
use crate::ctl::{
    protocol::{CtlReply, CtlRequest, Parameter, PoolChange, PoolLine, TargetLine},
    socket::{ControlSocket, Responder},
};

/// The control socket of a process and what keeps its parameters current. Ends when dropped.
pub struct NodeControl {
    _socket: ControlSocket,
    _stop: watch::Sender<()>,
}

impl NodeControl {
    /// Opens the socket in `run_dir`, after setting `assignments` (`NAME=VALUE`).
    pub fn open(node: &Node, run_dir: &Path, assignments: &[String]) -> anyhow::Result<Self> {
        let tree = ParameterTree::new();
        parameters::register(&tree, node)?;
        for assignment in assignments {
            let (name, value) = split_assignment(assignment)?;
            tree.set(name, value).with_context(|| format!("cannot set {assignment}"))?;
        }
        let stop = follow_permanent(&tree, node)?;
        let responder = NodeResponder {
            tree,
            cores: node.cores().clone(),
            watcher: node.watcher.clone(),
            mgs: node.mgs_import.clone(),
            own: node.own_targets(),
            connections: node.clients.lock().expect("no panic while locked").first().cloned(),
        };
        let socket = ControlSocket::open(run_dir, Arc::new(responder))
            .with_context(|| format!("cannot open a control socket in {}", run_dir.display()))?;
        Ok(Self { _socket: socket, _stop: stop })
    }
}

/// The parts of `NAME=VALUE`.
pub fn split_assignment(assignment: &str) -> anyhow::Result<(&str, &str)> {
    assignment.split_once('=').with_context(|| format!("'{assignment}': expected NAME=VALUE"))
}

/// Keeps the parameters of pools, and sets permanent ones, now and whenever the cluster map brings others. Names that this
/// process does not have are for others. On a thread of its own, because reading a parameter may wait.
fn follow_permanent(tree: &ParameterTree, node: &Node) -> anyhow::Result<watch::Sender<()>> {
    let (stop, stopped) = watch::channel(());
    let (tree, cores, mut maps) = (tree.clone(), node.cores().clone(), node.watcher.subscribe());
    let mut applied = node.applied.clone();
    let mdts = node.mdts.iter().map(|mdt| Arc::clone(&mdt.target)).collect();
    let mut pools = PoolParameters::new(&tree, mdts);
    std::thread::Builder::new().name("parameters".to_owned()).spawn(move || {
        let mut known: Vec<(String, String)> = Vec::new();
        loop {
            let map = maps.borrow_and_update().clone();
            let mut ended = stopped.clone();
            // The metadata targets must know of a pool before anything is set for it.
            let goes_on = cores.block_on(async {
                tokio::select! {
                    applied = applied.wait_for(|version| *version >= map.version) => applied.is_ok(),
                    _ = ended.changed() => false,
                }
            });
            if !goes_on {
                return;
            }
            if pools.follow(&map.pools) {
                known.retain(|(pattern, _)| !pattern.contains(POOL_PARAMETERS));
            }
            let permanent = map.parameters.clone();
            for (pattern, value) in permanent.iter().filter(|setting| !known.contains(setting)) {
                match tree.set(pattern, value) {
                    Ok(_) | Err(ParameterError::Unknown(_)) => {}
                    Err(error) => tracing::warn!("permanent parameter {pattern}={value}: {error}"),
                }
            }
            known = permanent;
            let mut stopped = stopped.clone();
            let goes_on = cores.block_on(async {
                tokio::select! {
                    changed = maps.changed() => changed.is_ok(),
                    _ = stopped.changed() => false,
                }
            });
            if !goes_on {
                return;
            }
        }
    })?;
    Ok(stop)
}

/// Part of the names of pools' parameters.
const POOL_PARAMETERS: &str = ".pool.";

struct NodeResponder {
    tree: ParameterTree,
    cores: Cores,
    watcher: Watcher,
    mgs: Import,
    own: std::collections::BTreeSet<TargetRole>,
    connections: Option<Arc<client::FileSystem>>,
}

impl Responder for NodeResponder {
    fn respond(&self, request: CtlRequest) -> CtlReply {
        match request {
            CtlRequest::Get { pattern } => self.parameters(&pattern, true),
            CtlRequest::List { pattern } => self.parameters(&pattern, false),
            CtlRequest::Set { pattern, value } => match self.tree.set(&pattern, &value) {
                Ok(changed) => CtlReply::Parameters(
                    changed.into_iter().map(|(name, value)| Parameter { name, value, writable: true }).collect(),
                ),
                Err(ParameterError::Unknown(_)) => CtlReply::Parameters(Vec::new()),
                Err(error) => CtlReply::Error(error.to_string()),
            },
            CtlRequest::SetPermanent { name, value } => {
                self.ask_mgs(MgsRequest::SetParameter(name, value), |error| error.to_string())
            }
            CtlRequest::Targets => CtlReply::Targets(self.targets()),
            CtlRequest::SetState { target, active } => self.set_state(&target, active),
            CtlRequest::ChangePool { fsname, pool, change } => self.change_pool(&fsname, pool, change),
            CtlRequest::Pools => CtlReply::Pools(self.pools()),
        }
    }
}

impl NodeResponder {
    fn parameters(&self, pattern: &str, values: bool) -> CtlReply {
        let nodes = match self.tree.list_recursive(pattern) {
            Ok(nodes) => nodes,
            Err(ParameterError::Unknown(_)) => return CtlReply::Parameters(Vec::new()),
            Err(error) => return CtlReply::Error(error.to_string()),
        };
        let leaf = |node: rt::parameters::Node| {
            let writable = match node.kind {
                NodeKind::Branch => return None,
                kind => kind == NodeKind::Writable,
            };
            let value = match values {
                true => self.tree.get(&node.name).ok()?.into_iter().next()?.1,
                false => String::new(),
            };
            Some(Parameter { name: node.name, value, writable })
        };
        CtlReply::Parameters(nodes.into_iter().filter_map(leaf).collect())
    }

    fn targets(&self) -> Vec<TargetLine> {
        let map = self.watcher.map();
        let states = self.connections.as_ref().map(|client| client.connections()).unwrap_or_default();
        let line = |target: &rpc::message::mgs::Target| {
            let own = self.own.contains(&target.role);
            let connected =
                states.iter().any(|(role, state, _)| *role == target.role && *state == rpc::ImportState::Full);
            let state = match (target.state, own, states.is_empty(), connected) {
                (TargetState::Inactive, ..) => "IN",
                (_, true, ..) | (_, _, _, true) => "UP",
                (_, false, true, _) => "-",
                (_, false, false, false) => "DISCONN",
            };
            let kind = match (target.role, own) {
                (TargetRole::Mdt(_), true) => "mdt",
                (TargetRole::Ost(_), true) => "obdfilter",
                (TargetRole::Mdt(_), false) => "mdc",
                (TargetRole::Ost(_), false) => "osc",
            };
            TargetLine {
                state: state.to_owned(),
                kind: kind.to_owned(),
                name: target.role.target_name(&map.fsname),
                address: target.address.clone(),
            }
        };
        map.targets.iter().map(line).collect()
    }

    fn change_pool(&self, fsname: &str, pool: String, change: PoolChange) -> CtlReply {
        let own = &self.watcher.map().fsname;
        if own != fsname {
            return CtlReply::Error(format!("this daemon serves file system '{own}', not '{fsname}'"));
        }
        let osts = |indices: &[u16]| indices.iter().copied().map(OstIndex).collect();
        let name = pool.clone();
        let request = match &change {
            PoolChange::New => MgsRequest::PoolNew(pool),
            PoolChange::Add(indices) => MgsRequest::PoolAdd(pool, osts(indices)),
            PoolChange::Remove(indices) => MgsRequest::PoolRemove(pool, osts(indices)),
            PoolChange::Destroy => MgsRequest::PoolDestroy(pool),
        };
        self.ask_mgs(request, |error| pool_problem(fsname, &name, &change, &error))
    }

    fn pools(&self) -> Vec<PoolLine> {
        let map = self.watcher.map();
        let member = |ost: &OstIndex| format!("{}_UUID", TargetRole::Ost(*ost).target_name(&map.fsname));
        let line = |pool: &Pool| PoolLine {
            name: format!("{}.{}", map.fsname, pool.name),
            members: pool.osts.iter().map(member).collect(),
        };
        map.pools.iter().map(line).collect()
    }

    fn set_state(&self, name: &str, active: bool) -> CtlReply {
        let map: Arc<ClusterMap> = self.watcher.map();
        let plain = name.trim_end_matches("_UUID");
        let Some(target) = map.targets.iter().find(|target| target.role.target_name(&map.fsname) == plain) else {
            return CtlReply::Error(format!("there is no target '{name}'; see: stria ctl dl"));
        };
        let state = if active { TargetState::Active } else { TargetState::Inactive };
        self.ask_mgs(MgsRequest::SetState(target.role, state), |error| error.to_string())
    }

    /// `describe` says what a refusal means.
    fn ask_mgs(&self, request: MgsRequest, describe: impl FnOnce(FsError) -> String) -> CtlReply {
        /// How long a person waits for an answer.
        const PATIENCE: Duration = Duration::from_secs(10);
        let seams = super::seams(&self.cores);
        let deadline = seams.clock.now() + PATIENCE;
        let call = self.mgs.call(Request::Mgs(request), Bytes::new());
        match self.cores.block_on(rt::clock::timeout_at(&*seams.clock, deadline, call)) {
            Some(Ok(_)) => CtlReply::Done,
            Some(Err(error)) => CtlReply::Error(describe(error)),
            None => CtlReply::Error("the management service does not answer".to_owned()),
        }
    }
}

/// Why a pool was not changed, in lctl's words.
fn pool_problem(fsname: &str, pool: &str, change: &PoolChange, error: &FsError) -> String {
    let names = |indices: &[u16]| {
        let names =
            indices.iter().map(|index| format!("{}_UUID", TargetRole::Ost(OstIndex(*index)).target_name(fsname)));
        names.collect::<Vec<_>>().join(", ")
    };
    match (change, error) {
        (PoolChange::New, FsError::Exists) => format!("Pool {fsname}.{pool} already exists"),
        (PoolChange::Add(_) | PoolChange::Remove(_) | PoolChange::Destroy, FsError::NotFound) => {
            format!("Pool {fsname}.{pool} not found")
        }
        (PoolChange::Destroy, FsError::NotEmpty) => {
            format!("Pool {fsname}.{pool} not empty, please remove all members")
        }
        (PoolChange::Add(osts), FsError::Exists) => {
            format!("OST {} is already in pool {fsname}.{pool}", names(osts))
        }
        (PoolChange::Add(osts), FsError::NoDevice) => format!("OST {} is not part of the '{fsname}' fs.", names(osts)),
        (PoolChange::Remove(osts), FsError::NoDevice) => {
            format!("OST {} not found in pool {fsname}.{pool}", names(osts))
        }
        (_, error) => format!("pool {fsname}.{pool}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_changes_of_pools_are_told_in_lctls_words() {
        let told = |change: PoolChange, error| pool_problem("stria", "p1", &change, &error);
        assert_eq!(told(PoolChange::New, FsError::Exists), "Pool stria.p1 already exists");
        assert_eq!(told(PoolChange::Destroy, FsError::NotFound), "Pool stria.p1 not found");
        assert_eq!(told(PoolChange::Destroy, FsError::NotEmpty), "Pool stria.p1 not empty, please remove all members");
        let one = || vec![10];
        let words = "OST stria-OST000a_UUID is already in pool stria.p1";
        assert_eq!(told(PoolChange::Add(one()), FsError::Exists), words);
        let words = "OST stria-OST000a_UUID is not part of the 'stria' fs.";
        assert_eq!(told(PoolChange::Add(one()), FsError::NoDevice), words);
        assert_eq!(told(PoolChange::Add(one()), FsError::NotFound), "Pool stria.p1 not found");
        let words = "OST stria-OST000a_UUID not found in pool stria.p1";
        assert_eq!(told(PoolChange::Remove(one()), FsError::NoDevice), words);
        assert_eq!(told(PoolChange::New, FsError::NoSpace), "pool stria.p1: no space left on device");
    }
}
