//! Shared by the end-to-end tests: file systems of the shipped binary, started, mounted, checked
//! and removed again.
//!
//! A test starts a [`FileSystem`], works on its mounts and calls [`FileSystem::finish`], which
//! stops everything and lets `stria fsck` check the result. If something that a test needs is
//! missing (root, `/dev/fuse`, a program), the test fails and names it: nothing is skipped. No test
//! sleeps to be right: tests wait for the lines that daemons print.

#![allow(dead_code, unused_imports, reason = "every test binary compiles this module and uses a part of it")]

pub mod agent;
pub mod commands;
pub mod console;
pub mod daemon;
pub mod file_system;
pub mod keys;
pub mod layouts;
pub mod load;
pub mod network;
pub mod place;
pub mod port;
pub mod programs;
pub mod wait;

pub use agent::{Agent, User};
pub use daemon::Daemon;
pub use file_system::{FileSystem, Transport};
pub use place::Place;
pub use port::Port;
pub use programs::{Output, Program};
pub use wait::{TIMEOUT, wait_for};

/// Whether the longer forms of tests are asked for.
pub fn long() -> bool {
    std::env::var_os("STRIA_TEST_LONG").is_some_and(|value| value == "1")
}
