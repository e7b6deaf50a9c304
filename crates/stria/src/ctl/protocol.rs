//! What `stria ctl` and a daemon say to each other over the control socket: one JSON object per line, a request, a reply.

use serde::{Deserialize, Serialize};

#[allow(missing_docs, reason = "the fields are named after what they hold")]
/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CtlRequest {
    /// Parameters whose names match, with values.
    Get { pattern: String },
    /// Names of parameters that match.
    List { pattern: String },
    /// Set all parameters that match.
    Set { pattern: String, value: String },
    /// Set a permanent parameter at the management service.
    SetPermanent { name: String, value: String },
    /// The targets this daemon knows.
    Targets,
    /// Take a target out of use (false) or into use again.
    SetState { target: String, active: bool },
    /// Change a pool of the file system.
    ChangePool { fsname: String, pool: String, change: PoolChange },
    /// All pools.
    Pools,
}

/// What becomes of a pool; OSTs by index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolChange {
    /// It is made.
    New,
    /// OSTs are put into it.
    Add(Vec<u16>),
    /// OSTs are taken out of it.
    Remove(Vec<u16>),
    /// It is removed.
    Destroy,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolLine {
    /// `FSNAME.POOL`
    pub name: String,
    /// Its OSTs, as `stria-OST0003_UUID`.
    pub members: Vec<String>,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// Dotted name.
    pub name: String,
    /// Value; empty where only names were asked for.
    pub value: String,
    /// Whether it can be set.
    pub writable: bool,
}

/// A target as a daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetLine {
    /// `UP`, `DISCONN`, `IN` (inactive): state as `lctl dl` abbreviates it.
    pub state: String,
    /// `obdfilter`, `mdt`, `osc`, `mdc`, `mgs`: what this daemon has of it.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Address.
    pub address: String,
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CtlReply {
    /// Parameters, sorted by name.
    Parameters(Vec<Parameter>),
    /// Targets.
    Targets(Vec<TargetLine>),
    /// Pools by name.
    Pools(Vec<PoolLine>),
    /// Success.
    Done,
    /// Failure, in words.
    Error(String),
}
