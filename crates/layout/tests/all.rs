//! All tests of this crate, in one program: each program would compile what it uses of the crates
//! again.

mod arithmetic;
mod common;
mod model;
mod refusals;
