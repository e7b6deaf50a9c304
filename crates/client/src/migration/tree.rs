//! What a migration of directories asks of the file system, by paths: of a mount
//! (`lfs migrate -m`), or of a client of its own process ([`super::client_tree`]).

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use types::{DirectoryMap, InodeNumber, MdtIndex, Stripes};

/// Number and map of a directory.
pub type Place = (InodeNumber, Option<DirectoryMap>);

/// Why something failed, as far as it matters to what is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is in use, and may not be later.
    InUse,
    /// It was moved by somebody else meanwhile.
    Stale,
    /// There is no such name any more.
    Gone,
    /// It is more than moves at once.
    TooBig,
    /// The root, and whatever else does not move.
    Fixed,
    /// Anything else.
    Other,
}

/// What has a name, and where it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A directory.
    Directory,
    /// Anything else, to this MDT.
    Other(MdtIndex),
    /// A directory that is there, but not its names.
    Names,
    /// What is in a directory that cannot be listed.
    Below,
    /// Something is mounted on it.
    Mounted,
}

/// Something that is not where it is to be.
#[derive(Clone, Debug)]
pub struct Left<E> {
    /// Its path.
    pub path: PathBuf,
    /// What it is.
    pub what: What,
    /// Why.
    pub error: E,
}

/// A file system with directories over several MDTs.
pub trait Tree {
    /// Why one inode or directory fails: the others go on.
    type Error: Clone + Send;
    /// What ends the whole migration.
    type Stop: Send;
    /// A directory that is being listed. It is open meanwhile, so it stays where it is.
    type Listing: Send;

    /// Why that is.
    fn cause(error: &Self::Error) -> Cause;

    /// That something does not move.
    fn refusal(cause: Cause) -> Self::Error;

    /// Whether something is mounted on this path, rather than in the directory above.
    fn is_mount_point(&self, path: &Path) -> bool;

    /// Number and map of the directory with this name, which is not opened; of the root, which has
    /// none.
    fn layout_of(&self, path: &Path) -> impl Future<Output = Result<Place, Self::Error>> + Send;

    /// Begins to list a directory.
    fn list(&self, path: &Path) -> impl Future<Output = Result<Self::Listing, Self::Error>> + Send;

    /// Its next names, and which of them are directories: few enough to be in memory. No names:
    /// these were all.
    fn next_names(
        &self,
        listing: &mut Self::Listing,
    ) -> impl Future<Output = Result<Vec<(OsString, bool)>, Self::Error>> + Send;

    /// The directory is not open any more.
    fn end_listing(&self, listing: Self::Listing) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Moves what has this name; false if it is there already.
    fn move_one(&self, path: &Path, to: MdtIndex) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Moves the names of a directory, and returns when all have moved.
    fn split(&self, path: &Path, stripes: Stripes) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// What has this name was tried to be moved; whether it has.
    fn tried(&self, path: &Path, moved: bool) -> impl Future<Output = Result<(), Self::Stop>> + Send;

    /// Something stays, and is not tried again. What is an error of all that follows, too, ends the
    /// migration.
    fn left(&self, left: &Left<Self::Error>) -> impl Future<Output = Result<(), Self::Stop>> + Send;

    /// Pauses before what is in use is tried again, after so many tries; false: enough of that.
    fn pause(&self, tries: u32) -> impl Future<Output = bool> + Send;
}
