//! The protocol between `stria ctl` and a daemon on the control socket: one JSON object per line, a
//! request, a reply.

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
    /// Remove a permanent parameter at the management service.
    RemovePermanent { name: String },
    /// The permanent parameters as they are stored: names may be patterns.
    Permanent,
    /// The targets this daemon knows.
    Targets,
    /// Deactivate a target: no client or server uses it any more (false) or into use again.
    SetState { target: String, active: bool },
    /// Change a pool of the file system.
    ChangePool { fsname: String, pool: String, change: PoolChange },
    /// All pools.
    Pools,
    /// Which daemon this is.
    Describe,
}

/// Which daemon answers, and of which file system it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Name of its file system.
    pub fsname: String,
    /// Identity of its file system: two of one name differ in it. `None` until the daemon has heard
    /// from the management service.
    pub file_system: Option<String>,
    /// Where the management service is, as this daemon was told; `None` if only its own process
    /// reaches it.
    pub mgs: Option<String>,
    /// Its file system as a mount names it: `10.0.0.1:988:/stria`, or of `stria up`
    /// `/srv/stria:/stria`.
    pub source: String,
    /// What it does: `stria serve`, `stria up`, `stria mount at /mnt/stria`.
    pub role: String,
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
    /// What it means, with its unit.
    #[serde(default)]
    pub doc: String,
    /// Least value, of a number that can be set.
    #[serde(default)]
    pub min: Option<u64>,
    /// Most value.
    #[serde(default)]
    pub max: Option<u64>,
    /// Value as long as it is not set.
    #[serde(default)]
    pub default: Option<String>,
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
    /// Answer to `Describe`.
    Daemon(DaemonInfo),
    /// Success.
    Done,
    /// Success, of which something should be known.
    Warned(String),
    /// Failure, in words.
    Error(String),
}
