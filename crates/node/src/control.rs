//! What `stria ctl` can ask a running process: parameters, targets, states.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use mgs::Watcher;
use rpc::{
    Import,
    message::{
        MgsReply, MgsRequest,
        mgs::{ClusterMap, MapTarget, Pool, TargetRole, TargetState},
    },
};
use rt::{
    parameters::{NodeKind, ParameterError, ParameterTree},
    real::Cores,
};
use tokio::sync::watch;
use types::{FsError, FsResult, MdtIndex, OstIndex};

use super::{Node, parameter_names, parameters, reachability, settings, target_parameters::TargetParameters};
use crate::ctl::{
    protocol::{CtlReply, CtlRequest, DaemonInfo, Parameter, PoolChange, PoolLine, TargetLine},
    run_dir::Registration,
    socket::{ControlSocket, Responder},
};

/// The control socket of a process and what keeps its parameters current. Ends when dropped.
pub struct NodeControl {
    _socket: ControlSocket,
    registration: Option<Registration>,
    _stop: watch::Sender<()>,
}

/// Where a process is controlled, and what it says of itself there.
pub struct Presence<'a> {
    /// Directory of its socket.
    pub run_dir: &'a Path,
    /// See [`DaemonInfo::source`].
    pub source: String,
    /// See [`DaemonInfo::role`].
    pub role: String,
}

impl NodeControl {
    /// Opens the socket, after setting `assignments` (`NAME=VALUE`), and makes it known to its
    /// user's `stria ctl`.
    pub fn open(node: &Node, presence: Presence<'_>, assignments: &[String]) -> anyhow::Result<Self> {
        let Presence { run_dir, source, role } = presence;
        let tree = ParameterTree::new();
        parameters::register(&tree, node)?;
        let mut targets = TargetParameters::new(&tree, node);
        targets.follow()?;
        let mut own = Vec::new();
        for assignment in assignments {
            let (name, value) = parameter_names::set(&tree, assignment)?;
            own.push((name.to_owned(), value.to_owned()));
        }
        let stop = settings::keep(targets, &tree, node, own)?;
        let responder = NodeResponder {
            tree,
            cores: node.cores().clone(),
            watcher: node.watcher.clone(),
            mgs: node.mgs_import.clone(),
            own: node.own_targets(),
            connections: node.clients.lock().expect("no panic while locked").first().cloned(),
            info: DaemonInfo {
                fsname: node.fsname().to_owned(),
                file_system: None,
                mgs: node.mgs_address(),
                source,
                role,
            },
        };
        let socket = ControlSocket::open(run_dir, Arc::new(responder))
            .with_context(|| format!("cannot open a control socket in {}", run_dir.display()))?;
        let registration = Registration::make(socket.path()).inspect_err(|error| {
            tracing::warn!("stria ctl needs --run-dir {} to find this process: {error}", run_dir.display());
        });
        Ok(Self { _socket: socket, registration: registration.ok(), _stop: stop })
    }

    /// Whether `stria ctl` of this user finds the process on its own.
    pub fn is_found(&self) -> bool {
        self.registration.is_some()
    }
}

struct NodeResponder {
    tree: ParameterTree,
    cores: Cores,
    watcher: Watcher,
    mgs: Import,
    own: std::collections::BTreeSet<TargetRole>,
    connections: Option<Arc<client::FileSystem>>,
    /// All but what the cluster map tells.
    info: DaemonInfo,
}

impl Responder for NodeResponder {
    fn respond(&self, request: CtlRequest) -> CtlReply {
        match request {
            CtlRequest::Get { pattern } => self.parameters(&pattern, true),
            CtlRequest::List { pattern } => self.parameters(&pattern, false),
            CtlRequest::Set { pattern, value } => match self.tree.set(&pattern, &value) {
                Ok(changed) => self.changed(&pattern, changed),
                Err(ParameterError::Unknown(_)) => CtlReply::Parameters(Vec::new()),
                Err(error) => CtlReply::Error(error.to_string()),
            },
            CtlRequest::SetPermanent { name, value } => self.set_permanent(name, value),
            CtlRequest::RemovePermanent { name } => self.remove_permanent(name),
            CtlRequest::Permanent => self.permanent(),
            CtlRequest::Targets => CtlReply::Targets(self.targets()),
            CtlRequest::SetState { target, active } => self.set_state(&target, active),
            CtlRequest::ChangePool { fsname, pool, change } => self.change_pool(&fsname, pool, change),
            CtlRequest::Pools => CtlReply::Pools(self.pools()),
            CtlRequest::Describe => CtlReply::Daemon(self.describe()),
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
            let value = match (node.kind, values) {
                (NodeKind::Branch, _) => return None,
                (_, true) => self.tree.get(&node.name).ok()?.into_iter().next()?.1,
                (_, false) => String::new(),
            };
            Some(described(node, value))
        };
        CtlReply::Parameters(nodes.into_iter().filter_map(leaf).collect())
    }

    /// Those of the parameters that match which have changed, with their values.
    fn changed(&self, pattern: &str, changed: Vec<(String, String)>) -> CtlReply {
        let mut values: BTreeMap<String, String> = changed.into_iter().collect();
        let nodes = self.tree.list(pattern).unwrap_or_default().into_iter();
        let changed = nodes.filter_map(|node| values.remove(&node.name).map(|value| described(node, value)));
        CtlReply::Parameters(changed.collect())
    }

    fn set_permanent(&self, name: String, value: String) -> CtlReply {
        let map = match self.newest_map() {
            Ok(map) => map,
            Err(reply) => return reply,
        };
        if let Some(refusal) = parameter_names::not_permanent(&name, &self.tree) {
            return CtlReply::Error(refusal);
        }
        // This process may have what cannot be known of others: its own mount's name.
        if self.tree.list(&name).is_err()
            && let Err(refusal) = parameter_names::check_permanent(&name, &value, &map)
        {
            return CtlReply::Error(refusal);
        }
        self.ask_mgs(MgsRequest::SetParameter(name, value), |error| error.to_string())
    }

    fn remove_permanent(&self, name: String) -> CtlReply {
        let map = match self.newest_map() {
            Ok(map) => map,
            Err(reply) => return reply,
        };
        if map.parameters.iter().all(|(stored, _)| *stored != name) {
            return CtlReply::Error(format!(
                "no permanent parameter '{name}' is stored; to list those that are: stria ctl get_param -P"
            ));
        }
        self.ask_mgs(MgsRequest::SetParameter(name, String::new()), |error| error.to_string())
    }

    /// The permanent parameters, in the order in which they were set.
    fn permanent(&self) -> CtlReply {
        let map = match self.newest_map() {
            Ok(map) => map,
            Err(reply) => return reply,
        };
        let stored = |(name, value): &(String, String)| Parameter {
            name: name.clone(),
            value: value.clone(),
            writable: true,
            doc: String::new(),
            min: None,
            max: None,
            default: None,
        };
        CtlReply::Parameters(map.parameters.iter().map(stored).collect())
    }

    fn describe(&self) -> DaemonInfo {
        let map = self.watcher.map();
        let root = map.targets.iter().find(|target| target.role == TargetRole::Mdt(MdtIndex(0)));
        DaemonInfo { file_system: root.map(|root| root.uuid.clone()), ..self.info.clone() }
    }

    fn targets(&self) -> Vec<TargetLine> {
        let map = self.watcher.map();
        let states = self.connections.as_ref().map(|client| client.connections()).unwrap_or_default();
        let line = |target: &rpc::message::mgs::MapTarget| {
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
                address: target.addresses.join(","),
            }
        };
        map.targets.iter().map(line).collect()
    }

    fn change_pool(&self, fsname: &str, pool: String, change: PoolChange) -> CtlReply {
        let map = self.watcher.map();
        if map.version == 0 {
            return CtlReply::Error(reachability::cannot_reach(&self.mgs));
        }
        let own = &map.fsname;
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
        let reply = self.ask_mgs(MgsRequest::SetState(target.role, state), |error| error.to_string());
        let is_used = |other: &MapTarget| {
            matches!(other.role, TargetRole::Ost(_)) && other.role != target.role && other.state == TargetState::Active
        };
        let is_last = matches!(target.role, TargetRole::Ost(_)) && !map.targets.iter().any(is_used);
        match reply {
            CtlReply::Done if !active && is_last => CtlReply::Warned(format!(
                "{plain} was the last active OST: until one is activated, files get no data beyond what fits on the MDT"
            )),
            reply => reply,
        }
    }

    /// `describe` says what a refusal means.
    fn ask_mgs(&self, request: MgsRequest, describe: impl FnOnce(FsError) -> String) -> CtlReply {
        match self.call_mgs(request) {
            Some(Ok(_)) => CtlReply::Done,
            Some(Err(FsError::NotPermitted)) => CtlReply::Error(
                "this needs the server key, which a mount does not have: use stria ctl on a host that serves targets"
                    .to_owned(),
            ),
            Some(Err(error)) => CtlReply::Error(describe(error)),
            None => CtlReply::Error(reachability::cannot_reach(&self.mgs)),
        }
    }

    /// The map as the management service has it now: this process may not have heard of the last
    /// change yet.
    fn newest_map(&self) -> Result<ClusterMap, CtlReply> {
        /// No map has it, so the answer comes at once.
        const NONE: u64 = 0;
        match self.call_mgs(MgsRequest::GetMap(NONE)) {
            Some(Ok(MgsReply::Map(map))) => Ok(map),
            Some(Ok(_)) => Err(CtlReply::Error(
                "unexpected answer from the management service; does it run another version of stria?".to_owned(),
            )),
            Some(Err(error)) => Err(CtlReply::Error(error.to_string())),
            None => Err(CtlReply::Error(reachability::cannot_reach(&self.mgs))),
        }
    }

    /// `None` if no answer came.
    fn call_mgs(&self, request: MgsRequest) -> Option<FsResult<MgsReply>> {
        /// How long a person waits for an answer.
        const TIMEOUT: Duration = Duration::from_secs(10);
        let seams = super::seams(&self.cores);
        let deadline = seams.clock.now() + TIMEOUT;
        let answer = self.cores.block_on(rt::clock::timeout_at(&*seams.clock, deadline, self.mgs.call(request)))?;
        Some(answer.map(|answered| answered.reply))
    }
}

/// A parameter with all that is known of it.
fn described(node: rt::parameters::Node, value: String) -> Parameter {
    Parameter {
        name: node.name,
        value,
        writable: node.kind == NodeKind::Writable,
        doc: node.doc.to_owned(),
        min: node.range.as_ref().map(|range| *range.start()),
        max: node.range.as_ref().map(|range| *range.end()),
        default: node.default,
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
