//! The targets of the cluster map: connections, recovery after a restart, and changes that are not
//! durable yet.

pub(crate) mod awaited_mdts;
pub(crate) mod cached_call;
pub(crate) mod connection;
pub(crate) mod late_closes;
mod lock_ages;
mod lock_claims;
mod lock_returns;
pub(crate) mod named_mdts;
pub(crate) mod recovery;
pub(crate) mod repetitions;
pub(crate) mod target_table;
pub(crate) mod told_accesses;
pub(crate) mod told_opens;
pub(crate) mod uncommitted;
