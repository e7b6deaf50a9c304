//! The client half: an import is a client's view of one target (Lustre's word).
//!
//! A call takes a slot, sends its request with the slot's next transaction number, and waits. What the network does to
//! frames and connections is invisible to the caller, as long as the server gives a sign of life within the patience:
//!
//! - A request without a reply is sent again on the same connection, at growing intervals. A server that still executes
//!   it says so.
//! - A broken or silent connection is opened anew, with back-off. What is outstanding is sent again with its old (slot,
//!   xid), so it takes effect once.
//! - After a restart of the server the [`Recovery`] hook claims again what was open there; other calls wait for it.
//! - After an eviction every outstanding call ends with [`FsError::Evicted`](types::FsError::Evicted), the hook is told, and a new session begins.
//!
//! A caller that drops its call gives up the result, not the slot: that stays taken until the request's fate is known. A caller
//! that is told that the server does not answer may go on: what he asked has been executed by then, or never will be (see
//! `core`).
//!
//! Requests that the server keeps until somebody else gives something up ([`RequestRow::waits`]) get at most three quarters of
//! the slots: what they wait for may be this client's, and must find a slot. Not fewer, because a lock goes to who asked
//! first, and he has to be asking then.
//!
//! [`RequestRow::waits`]: crate::message::kind::RequestRow::waits
//!
//! ```text
//! NEW -> CONNECTING -> [RECOVER ->] FULL -> DISCONN -> CONNECTING ...      any -> EVICTED -> CONNECTING, any -> CLOSED
//! ```
//!
//! One task per import connects, reads replies, repeats and pings; callers send their requests themselves. In process,
//! a call awaits the handler itself, in the caller's task.
//!
//! Downside: one connection per import, so one core reads all replies of a target.

mod call;
mod core;
mod driver;
mod handle;
mod inner;
mod options;
mod permits;
mod question;
mod slots;
mod statistics;
mod trouble;
mod waiting;

pub use handle::{Import, Recovery};
pub use options::{Endpoint, ImportOptions, ImportState};
pub use question::{Answered, Ask, LateOutcome, Question};
pub use statistics::{ImportStatistics, OpcodeStatistics};
pub use trouble::Cause;
