//! Callers that go away: operations that must be completed, waits that may be interrupted, and
//! grants that are not used.

pub(crate) mod finish;
pub(crate) mod given_up;
pub(crate) mod interruption;
