//! The client half: an import (Lustre's term) is a client's view of one target.
//!
//! A call takes a slot, sends its request with the slot's next transaction number, and waits. The
//! caller does not notice what the network does to frames and connections, as long as the server
//! gives a sign of life within the timeout:
//!
//! - A request without a reply is sent again on the same connection, at growing intervals. A server
//!   that still executes it says so.
//! - A broken or silent connection is reopened, with back-off. Outstanding requests are sent again
//!   with their old (slot, xid), so they take effect once.
//! - After a restart of the server the [`Recovery`] hook reclaims what was open there; other calls
//!   wait for it.
//! - After an eviction every outstanding call ends with
//!   [`FsError::Evicted`](types::FsError::Evicted), the hook is told, and a new session begins.
//!
//! A caller that drops its call gives up the result, not the slot: the slot stays in use until the
//! outcome of the request is known. A caller that is told that the server does not answer may
//! continue: its request has been executed by then, or never will be (see `core`).
//!
//! No request waits at a target for another request that needs a slot of the same kind: one that
//! has to wait for other users is answered at once, and its client is called back.
//!
//! ```text
//! NEW -> CONNECTING -> [RECOVER ->] FULL -> DISCONN -> CONNECTING ...      any -> EVICTED -> CONNECTING, any -> CLOSED
//! ```
//!
//! One task per import connects, repeats and pings; callers send their requests themselves. Another
//! task reads the replies of the present connection, on the core whose tasks wait for them
//! (`reader`): usually a call begins, sends, receives and ends on one core. In process, a call
//! awaits the handler itself, in the caller's task.
//!
//! Downside: one connection per import, so one core at a time reads all replies of a target.

mod call;
mod core;
mod driver;
mod follow;
mod greeting;
mod handle;
mod inner;
mod lease;
mod options;
mod permits;
mod question;
mod reader;
mod slots;
mod start;
mod statistics;
mod trouble;
mod tuned;
mod waiting;

pub use handle::{Import, Recovery};
pub use lease::Lease;
pub use options::{Endpoint, ImportOptions, ImportState};
pub use question::{Answered, Ask, LateOutcome, Question, unexpected};
pub use statistics::{ImportStatistics, OpcodeStatistics};
pub use trouble::Cause;
