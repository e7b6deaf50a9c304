//! Every message of the protocol. A request struct and its reply struct are next to each other.
//!
//! Growing a message: append a field with `#[serde(default)]`; old receivers skip it, new receivers
//! default it. Growing the protocol: append a variant, and its row ([`kind`]). Never reorder; what
//! is removed keeps its place ([`removed`]). docs/wire_protocol.md has the table.

pub mod bounds;
pub mod client;
pub mod compound;
pub mod control;
pub mod entry;
pub mod extension;
pub mod full_ost;
pub mod kind;
pub mod lock;
pub mod mdt;
pub mod mdt_peer;
pub mod mgs;
pub mod moved_inode;
pub mod name_repair;
pub mod ost;
pub mod removed;
pub mod session;
pub mod volatile_name;

use serde::{Deserialize, Serialize};

pub use client::{ClientReply, ClientRequest};
pub use compound::{Compound, CompoundReply, Step, StepInode, StepReply};
pub use extension::{ReplyExtension, RequestExtension};
pub use full_ost::{LeaveFullOst, LeaveStep, Relocation};
pub use mdt::{MdtReply, MdtRequest};
pub use mgs::{MgsReply, MgsRequest};
pub use ost::{OstReply, OstRequest};
pub use removed::Removed;

/// A request to a target, as handlers see it and as the in-process transport passes it. Bulk data
/// travel with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// To a metadata target.
    Mdt(MdtRequest),
    /// To an object storage target.
    Ost(OstRequest),
    /// To the management service.
    Mgs(MgsRequest),
}

/// The answer to a [`Request`] of the same family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// From a metadata target.
    Mdt(MdtReply),
    /// From an object storage target.
    Ost(OstReply),
    /// From the management service.
    Mgs(MgsReply),
}
