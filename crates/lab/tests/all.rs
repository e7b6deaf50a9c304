//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod blocks;
mod commits;
mod common;
mod elsewhere;
mod given_up;
mod growth;
mod moved;
mod moved_inodes;
mod rate_limit;
mod reference_model;
mod seeds;
mod shared_server;
mod slow;
mod split;
mod striped;
mod watched;
