//! `lfs migrate -m`: moves a directory and everything below it to another MDT
//! ([`client::migration::DirectoryMigration`]), and tells users what is left.

use std::path::Path;

use client::migration::DirectoryMigration;
use types::Stripes;

use super::{
    copy::Stop,
    tree::{Asked, done},
};

/// Moves what has this name, to the first of these MDTs; with stripes if there are several.
/// `is_directory`: it is one; `only`: without what is below it. What is left was named; fails with
/// the last error then.
pub fn migrate(asked: &Asked<'_>, stripes: Stripes, path: &Path, is_directory: bool, only: bool) -> Result<(), Stop> {
    let migrated = done(DirectoryMigration::new(asked, stripes).run(path, is_directory, only));
    asked.hide_progress();
    migrated?;
    let Some(error) = asked.last_error() else { return Ok(()) };
    eprintln!("lfs migrate: {}: {} moved, {} left", path.display(), asked.moved(), asked.left_count());
    Err(error.into())
}

#[cfg(test)]
#[path = "directories_tests.rs"]
mod tests;
