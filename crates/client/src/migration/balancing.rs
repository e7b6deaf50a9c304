//! Directories move to another MDT although nobody has asked for it: as `lfs migrate -m` moves them
//! ([`DirectoryMigration`]), but by a client within the process of their MDT, and slowly.
//!
//! What it leaves alone, with what is in it: directories that are in use, striped ones, those with
//! more names than move at once (their names would move in batches, outside of the budget), and
//! whatever is on a third MDT.
//!
//! Downside: the client knows nothing of what users have mounted on directories.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rpc::message::mdt::{OpenFlags, open_flag};
use rt::clock;
use types::{Attributes, Credentials, FileKind, FsError, FsResult, InodeNumber, MdtIndex, Stripes};

use super::{
    directories::DirectoryMigration,
    inode_pace::InodePace,
    tree::{Cause, Left, Place, Tree},
};
use crate::{EntryAttributes, FileSystem, OpenFile};

/// How often a name is looked up again that led elsewhere in the meantime.
const TRIES_MAX: u32 = 4;
/// Names that are read of a directory at once.
const NAMES_PER_PAGE: u32 = 1024;
/// How often, and after which pause, a directory is tried again that was open a moment ago.
const BUSY_TRIES_MAX: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// What came of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balanced {
    /// Inodes that have moved.
    pub moved: u64,
    /// Of what stays: because it is in use.
    pub in_use: u64,
    /// For any other reason.
    pub failed: u64,
}

/// That no more is to move: the budget became 0, enough has moved, or a target does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enough;

/// Inodes that are to move from one MDT to another.
pub struct Balancing<'a> {
    client: &'a Arc<FileSystem>,
    from: MdtIndex,
    to: MdtIndex,
    /// How many may move.
    inodes_max: u64,
    /// The budget; asked after each inode.
    inodes_per_second: &'a (dyn Fn() -> u64 + Send + Sync),
    pace: &'a Mutex<InodePace>,
    /// Of all directories.
    balanced: Mutex<Balanced>,
}

/// A directory whose names are read.
pub struct Listing {
    opened: Arc<OpenFile>,
    cookie: u64,
    is_at_end: bool,
}

impl<'a> Balancing<'a> {
    /// At most so many inodes; `pace`: that of those before.
    pub fn new(
        client: &'a Arc<FileSystem>,
        (from, to): (MdtIndex, MdtIndex),
        inodes_max: u64,
        inodes_per_second: &'a (dyn Fn() -> u64 + Send + Sync),
        pace: &'a Mutex<InodePace>,
    ) -> Self {
        Self { client, from, to, inodes_max, inodes_per_second, pace, balanced: Mutex::default() }
    }

    /// Moves a directory with what is below it; nothing if that is enough.
    pub async fn move_directory(&self, directory: InodeNumber) -> FsResult<Balanced> {
        if self.rate().is_none() {
            return Ok(Balanced::default());
        }
        let paths = self.client.paths(&Credentials::root(), directory).await?;
        let path = PathBuf::from(OsString::from_vec(paths.into_iter().next().ok_or(FsError::NotFound)?));
        let before = *self.balanced.lock();
        // What is behind its early end is not known.
        let (Ok(()) | Err(Enough)) =
            Box::pin(DirectoryMigration::in_background(self, self.to).run(&path, true, false)).await;
        let Balanced { moved, in_use, failed } = *self.balanced.lock();
        Ok(Balanced { moved: moved - before.moved, in_use: in_use - before.in_use, failed: failed - before.failed })
    }

    /// Inodes per second; `None`: no more are to move.
    fn rate(&self) -> Option<u64> {
        let rate = (self.inodes_per_second)();
        (rate > 0 && self.balanced.lock().moved < self.inodes_max).then_some(rate)
    }

    /// Attributes of what has this path.
    async fn find(&self, path: &Path) -> FsResult<Attributes> {
        let root = Credentials::root();
        let mut found = None;
        for name in path.as_os_str().as_bytes().split(|byte| *byte == b'/') {
            let above = found.map_or(InodeNumber::ROOT, |found: Attributes| found.inode);
            found = Some(self.client.lookup(&root, above, name).await?);
        }
        found.ok_or(FsError::Invalid)
    }

    /// False if it is not on the MDT that has too much.
    async fn move_once(&self, path: &Path, to: MdtIndex) -> FsResult<bool> {
        let found = self.find(path).await?;
        if found.inode.mdt() != self.from {
            return Ok(false);
        }
        let is_directory = found.kind == FileKind::Directory;
        if is_directory && self.client.directory_map(found.inode).await?.is_some() {
            // Somebody wanted its stripes, or they are of use.
            return Err(FsError::NotSupported);
        }
        let clock = &self.client.seams.clock;
        let begun = clock.now();
        self.client.move_inode(&Credentials::root(), found.inode, to).await?;
        if !is_directory {
            self.pace.lock().file_moved(clock.now().since(begun));
        }
        Ok(true)
    }
}

impl Tree for Balancing<'_> {
    type Error = FsError;
    type Stop = Enough;
    type Listing = Listing;

    fn cause(error: &FsError) -> Cause {
        match error {
            FsError::Busy => Cause::InUse,
            FsError::Stale => Cause::Stale,
            FsError::NotFound => Cause::Gone,
            FsError::TooBig => Cause::TooBig,
            FsError::Invalid => Cause::Fixed,
            _ => Cause::Other,
        }
    }

    fn refusal(cause: Cause) -> FsError {
        match cause {
            Cause::InUse => FsError::Busy,
            Cause::Stale => FsError::Stale,
            Cause::Gone => FsError::NotFound,
            Cause::TooBig => FsError::TooBig,
            Cause::Fixed | Cause::Other => FsError::Invalid,
        }
    }

    fn is_mount_point(&self, _path: &Path) -> bool {
        false
    }

    async fn layout_of(&self, path: &Path) -> FsResult<Place> {
        let inode = self.find(path).await?.inode;
        let map = self.client.directory_map(inode).await?;
        Ok((inode, map.map(|map| (*map).clone())))
    }

    async fn list(&self, path: &Path) -> FsResult<Listing> {
        let flags = OpenFlags(open_flag::READ | open_flag::NO_ACCESS_TIME | open_flag::UNCOUNTED);
        let opened = self.client.open(&Credentials::root(), self.find(path).await?.inode, flags).await?;
        Ok(Listing { opened, cookie: 0, is_at_end: false })
    }

    async fn next_names(&self, listing: &mut Listing) -> FsResult<Vec<(OsString, bool)>> {
        let mut names = Vec::new();
        while names.is_empty() && !listing.is_at_end {
            let Listing { opened, cookie, is_at_end } = listing;
            let page = self.client.read_directory(opened, *cookie, NAMES_PER_PAGE, EntryAttributes::None).await?;
            *cookie = page.items.last().map_or(*cookie, |last| last.cookie);
            *is_at_end = page.end;
            let others = page.items.into_iter().filter(|item| !matches!(&item.name[..], b"." | b".."));
            names.extend(others.map(|item| (OsString::from_vec(item.name), item.kind == FileKind::Directory)));
        }
        Ok(names)
    }

    async fn end_listing(&self, listing: Listing) -> FsResult<()> {
        self.client.close(listing.opened, None).await
    }

    async fn move_one(&self, path: &Path, to: MdtIndex) -> FsResult<bool> {
        let mut tries = 1;
        loop {
            match self.move_once(path, to).await {
                // Where the name leads may have changed a moment ago.
                Err(FsError::Stale) if tries < TRIES_MAX => tries += 1,
                moved => return moved,
            }
        }
    }

    async fn split(&self, _path: &Path, _stripes: Stripes) -> FsResult<()> {
        Err(FsError::TooBig)
    }

    async fn tried(&self, _path: &Path, moved: bool) -> Result<(), Enough> {
        self.balanced.lock().moved += u64::from(moved);
        let inodes_per_second = self.rate().ok_or(Enough)?;
        let clock = &*self.client.seams.clock;
        let pause = self.pace.lock().pause(clock.now(), inodes_per_second);
        clock::sleep(clock, pause).await;
        Ok(())
    }

    async fn left(&self, Left { path, error, .. }: &Left<FsError>) -> Result<(), Enough> {
        tracing::debug!(path = %path.display(), %error, "stays on its MDT while others move to balance them");
        let mut balanced = self.balanced.lock();
        match Self::cause(error) {
            Cause::InUse => balanced.in_use += 1,
            _ => balanced.failed += 1,
        }
        // All others would wait as long for an MDT that is not there.
        if matches!(error, FsError::Unreachable { .. }) { Err(Enough) } else { Ok(()) }
    }

    async fn pause(&self, tries: u32) -> bool {
        clock::sleep(&*self.client.seams.clock, BUSY_PAUSE).await;
        tries < BUSY_TRIES_MAX
    }
}
