//! Requests to the management service.

use std::fmt;

use serde::{Deserialize, Serialize};
use types::{MdtIndex, OstIndex, SpaceUsage};

use super::ost::TargetCondition;

/// Role and index of a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TargetRole {
    /// Metadata target.
    Mdt(MdtIndex),
    /// Object storage target.
    Ost(OstIndex),
}

impl TargetRole {
    /// The target's name, such as `stria-OST0003`.
    pub fn target_name(self, fsname: &str) -> String {
        format!("{fsname}-{self}")
    }
}

impl fmt::Display for TargetRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetRole::Mdt(index) => index.fmt(f),
            TargetRole::Ost(index) => index.fmt(f),
        }
    }
}

impl fmt::Debug for TargetRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Whether the administrators want a target to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetState {
    /// In use.
    Active,
    /// Deactivated by an administrator: clients do not wait for it; access to its data returns an
    /// error.
    Inactive,
}

/// One target of the cluster map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapTarget {
    /// Role and index.
    pub role: TargetRole,
    /// Identity written at format time; a target with another one cannot take this index.
    pub uuid: String,
    /// `host:port` of the process that serves it now: one or several addresses of the same process,
    /// in the order to be tried.
    pub addresses: Vec<String>,
    /// Wanted state.
    pub state: TargetState,
}

/// A named set of OSTs that files can be restricted to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name, without the file system's.
    pub name: String,
    /// Its OSTs in ascending order; they need not be in use.
    pub osts: Vec<OstIndex>,
}

/// The cluster map. It has versions; a client with an old one asks for the new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// Version; grows with every change.
    pub version: u64,
    /// File system name, 1-8 characters.
    pub fsname: String,
    /// Targets: MDTs by index, then OSTs by index.
    pub targets: Vec<MapTarget>,
    /// Permanent parameters (`set_param -P`), by pattern, in the order they were set.
    pub parameters: Vec<(String, String)>,
    /// Pools by name.
    #[serde(default)]
    pub pools: Vec<Pool>,
}

/// A target's own report, sent on start and repeated: it keeps the target "seen" at the MGS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// File system it was formatted for.
    pub fsname: String,
    /// Role and index.
    pub role: TargetRole,
    /// Identity.
    pub uuid: String,
    /// Where it listens: at least one address, at most
    /// [`ADDRESSES_PER_TARGET_MAX`](types::limits::ADDRESSES_PER_TARGET_MAX).
    pub addresses: Vec<String>,
    /// Space.
    pub space: SpaceUsage,
    /// Condition.
    pub condition: TargetCondition,
}

/// Requests to the management service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MgsRequest {
    /// -> Map
    Register(Register),
    /// The map, as soon as its version differs from this one, or unchanged after a second. -> Map
    GetMap(u64),
    /// Set a permanent parameter; an empty value removes it. -> Done
    SetParameter(String, String),
    /// Set a target's wanted state. -> Done
    SetState(TargetRole, TargetState),
    /// Keep the session. -> Done
    Ping,
    /// Create an empty pool. -> Done; `Exists`
    PoolNew(String),
    /// Add OSTs to a pool. -> Done, also for those that are already in it; `NotFound` without the
    /// pool, `NoDevice` without an OST
    PoolAdd(String, Vec<OstIndex>),
    /// Remove OSTs from a pool; files keep their objects. -> Done, also for those that are not in
    /// it; `NotFound`
    PoolRemove(String, Vec<OstIndex>),
    /// Remove an empty pool. -> Done; `NotFound`, `NotEmpty`
    PoolDestroy(String),
    /// End the session. -> Done
    Disconnect,
}

/// Answers of the management service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MgsReply {
    /// Success without data.
    Done,
    /// The map.
    Map(ClusterMap),
}
