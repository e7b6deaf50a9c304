//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod calls;
mod common;
mod faults;
mod given_up;
mod greeting;
mod leases;
mod limits;
mod panic;
mod timeouts;
mod trouble;
