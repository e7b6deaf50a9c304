//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod addresses;
mod allocations;
mod callbacks;
mod calls;
mod common;
mod earlier_release;
mod faults;
mod given_up;
mod greeting;
mod handshake;
mod held_back;
mod leases;
mod limits;
mod moves;
mod panic;
mod strangers;
mod timeouts;
mod trouble;
mod tuner;
