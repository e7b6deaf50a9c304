//! Fuzz targets: everything that decodes bytes from a disk, a wire, the kernel or a user. Nothing
//! may panic, hang or allocate without bound; what decodes must survive being encoded again.
//!
//! The targets run in two ways, both from the same valid encodings ([`corpus`]):
//!
//! - `cargo test -p stria-fuzz` feeds a fixed number of inputs, damaged at random from a seed. It
//!   needs nothing and finds the same every time.
//! - `./test fuzz` lets libFuzzer choose the changes: it keeps the inputs that reach new code and
//!   continues from them. It needs a C++ compiler. `main.rs` connects the two.
//!
//! Most formats end in a checksum, which no random change gets past. A target therefore may have a
//! function that corrects checksums and lengths after a change ([`FuzzTarget::seal`]).
//!
//! An input that made a target fail becomes a named test in `tests/regressions.rs`.
//!
//! Downside: the crate stands above nearly all others, so a change anywhere builds it again.

pub mod corpus;
pub mod images;
pub mod targets;

pub use targets::{FuzzTarget, all};
