//! Locks that this client holds at MDTs: the exclusive data lock of a file, and the advisory locks
//! of its users.

pub(crate) mod exclusive;
pub(crate) mod held_locks;
pub(crate) mod lock_request;
pub(crate) mod lock_waits;
