//! Remote procedure calls: messages, sessions, and the two ends of a call.

pub mod message;
