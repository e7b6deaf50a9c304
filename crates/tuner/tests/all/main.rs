//! All tests of this crate, in one program.

mod alone;
mod together;
mod world;
