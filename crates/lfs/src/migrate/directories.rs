//! `lfs migrate -m`: moves a directory and everything below it to another MDT
//! ([`client::migration::DirectoryMigration`]), and tells users what is left.

use std::path::Path;

use client::migration::{DirectoryMigration, Left, Tree, What};
use types::{MdtIndex, Stripes};

use super::{
    copy::Stop,
    left,
    tree::{Asked, done},
};
use crate::channel::CallError;

/// Moves what has this name, to the first of these MDTs; with stripes if there are several.
/// `is_directory`: it is one; `only`: without what is below it. Names what is left, and fails with
/// the last error.
pub fn migrate(asked: &Asked<'_>, stripes: Stripes, path: &Path, is_directory: bool, only: bool) -> Result<(), Stop> {
    let to = stripes.mdts[0];
    let migrated = done(DirectoryMigration::new(asked, stripes).run(path, is_directory, only));
    let moved = asked.ends();
    let left = migrated?;
    let Some(Left { error, .. }) = left.last() else { return Ok(()) };
    told(asked, &left, to).iter().for_each(|line| eprintln!("lfs migrate: {line}"));
    eprintln!("lfs migrate: {}: {moved} moved, {} left", path.display(), left.len());
    Err(error.clone().into())
}

/// What is left, in words, as it is now.
fn told<T: Tree<Error = CallError>>(tree: &T, left: &[Left<CallError>], to: MdtIndex) -> Vec<String> {
    let told = |left: &Left<CallError>| {
        let is_directory = matches!(left.what, What::Directory | What::Names);
        let place = if is_directory { done(tree.layout_of(&left.path)).ok() } else { None };
        left::told(left, place.as_ref(), to)
    };
    left.iter().map(told).collect()
}

#[cfg(test)]
#[path = "directories_tests.rs"]
mod tests;
