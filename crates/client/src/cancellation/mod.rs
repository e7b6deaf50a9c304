//! Callers that go away: operations that must come to their end, waits that may be interrupted, and grants that nobody uses.

pub(crate) mod finish;
pub(crate) mod given_up;
pub(crate) mod interruption;
