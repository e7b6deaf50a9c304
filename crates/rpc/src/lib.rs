//! Remote procedure calls: messages, sessions, and the two ends of a call.

pub mod auth;
pub mod checksum;
pub mod codec;
mod cost;
pub mod handler;
pub mod histogram;
pub mod import;
pub mod message;
pub mod server;
pub mod service;
pub mod session;
pub mod stored_reply;
pub mod tuning;

pub use auth::{Key, Keyring, Principal, Role, Secret};
pub use handler::{Answer, Call, Clients, Handler, SessionEvent};
pub use histogram::Histogram;
pub use import::{
    Answered, Ask, Cause, Endpoint, Import, ImportOptions, ImportState, ImportStatistics, LateOutcome, Lease, Question,
    Recovery, unexpected,
};
pub use server::{Server, ServerOptions, SessionInfo};
pub use service::{Admission, Parked, Permit, QueueFull, Service, ServiceStatistics, Waiting};
pub use tuner::Decision;
pub use tuning::{Mode, ProcessorUse, Tuning};
