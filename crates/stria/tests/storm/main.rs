//! Many mounts of one file system at work in one small tree, with caches as warm as they get.
//!
//! `./test` runs this with few mounts for a few seconds, `./test soak` with eight mounts for an
//! hour.

#[path = "../common/mod.rs"]
mod common;

mod accidents;
mod at_once;
mod owned;
mod registers;
mod renames;
mod tokens;
mod turns;

use std::{path::PathBuf, time::Duration};

use common::{FileSystem, Transport};

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Mounts of the file system.
fn mounts() -> usize {
    setting("STRIA_STORM_MOUNTS", 4) as usize
}

/// How long each test lasts.
fn duration() -> Duration {
    Duration::from_secs(setting("STRIA_STORM_SECONDS", 10))
}

/// A file system with all its mounts, and a directory on each of them. Below the mount point: when
/// a mount is killed, the mount point is an empty local directory for a moment.
fn start() -> (FileSystem, Vec<PathBuf>) {
    // Files have the modes that operations ask for.
    rustix::process::umask(rustix::fs::Mode::empty());
    let system = FileSystem::start(Transport::Tcp, mounts());
    std::fs::create_dir(system.root().join("storm")).expect("a new directory");
    let points = (0..mounts()).map(|mount| system.path(mount).join("storm")).collect();
    (system, points)
}
