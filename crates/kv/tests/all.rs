//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod cold_contract;
mod common;
mod crashes;
mod damage;
mod space;
mod store;
