//! All tests of this crate, in one program.

mod alone;
mod arrays;
mod lumps;
mod together;
mod world;
