//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod churn;
mod common;
mod damaged_groups;
mod defrag;
mod device;
mod hostile;
mod load_first;
mod local;
mod model;
mod origins;
mod overwrites;
mod repetition;
mod requests;
mod reserved;
mod scrub;
mod service_threads;
mod small_writers;
