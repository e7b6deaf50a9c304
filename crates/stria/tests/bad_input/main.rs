//! Bad input: wrong configurations, foreign directories, full and failing devices, damaged files,
//! garbage on the port, names out of bounds, wrong options. Each gives a clear error, and nothing
//! is lost.
//!
//! Needs root: every test has a network namespace and a mount of its own.

#[path = "../common/mod.rs"]
mod common;
mod configuration;
mod control;
mod damage;
mod directories;
mod full_tables;
mod names;
mod site;
mod space;
mod tables;
mod wire;

/// 1 MiB in which every piece of eight bytes occurs once.
fn large_contents() -> Vec<u8> {
    (0..(1u64 << 20) / 8).flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}
