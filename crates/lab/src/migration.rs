//! Moving a file's data to another layout, step by step as `lfs migrate` does it through the mount.

use std::sync::Arc;

use bytes::Bytes;
use client::{FileSystem, OpenFile, WriteOptions};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeCount, StripeSpec};
use rpc::message::mdt::{OpenFlags, open_flag};
use types::{Credentials, FsError, FsResult, InodeNumber};

/// How often a file in use is tried again before it stays where it is.
const ATTEMPTS: usize = 20;
/// No workload writes a larger file.
const BYTES_MAX: usize = 64 << 20;

/// One of some layouts.
pub fn layout(choice: u8) -> LayoutSpec {
    let stripes = |count, stripe_bytes| StripeSpec {
        stripe_count: StripeCount::Exactly(count),
        stripe_bytes: Some(stripe_bytes),
        ..StripeSpec::default()
    };
    let component = |end, backing| ComponentSpec { end, backing };
    match choice % 4 {
        0 => LayoutSpec::Automatic,
        1 => LayoutSpec::Plain(stripes(1, 1 << 20)),
        2 => LayoutSpec::Plain(stripes(3, 64 << 10)),
        _ => LayoutSpec::Composite(vec![
            component(64 << 10, BackingSpec::Mdt),
            component(256 << 10, BackingSpec::Striped(stripes(1, 64 << 10))),
            component(END_OF_FILE, BackingSpec::Striped(stripes(2, 64 << 10))),
        ]),
    }
}

/// Moves the file, which this client has not open; true if it has moved, false if somebody was in the way.
pub async fn migrate(
    file_system: &Arc<FileSystem>,
    directory: InodeNumber,
    inode: InodeNumber,
    spec: LayoutSpec,
) -> FsResult<bool> {
    let root = Credentials::root();
    let file = file_system.open(&root, inode, OpenFlags(open_flag::READ)).await?;
    let moved = match begin(file_system, inode).await {
        Ok(version) => move_data(file_system, directory, (&file, version), spec).await,
        Err(error) => Err(error),
    };
    file_system.close(file, None).await?;
    match moved {
        Ok(()) => Ok(true),
        // Data on the MDT of both files do not fit into one batch of a small journal.
        Err(FsError::TooBig) => Ok(false),
        Err(FsError::Busy | FsError::WouldBlock) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The version of the data, with writers held off.
async fn begin(file_system: &Arc<FileSystem>, inode: InodeNumber) -> FsResult<u64> {
    let mut outcome = Err(FsError::Busy);
    for _ in 0..ATTEMPTS {
        outcome = file_system.data_version(&Credentials::root(), inode, true, true).await;
        if outcome != Err(FsError::Busy) {
            break;
        }
    }
    outcome
}

async fn move_data(
    file_system: &Arc<FileSystem>,
    directory: InodeNumber,
    (file, version): (&Arc<OpenFile>, u64),
    spec: LayoutSpec,
) -> FsResult<()> {
    let flags = OpenFlags(open_flag::READ | open_flag::WRITE | open_flag::EXCLUSIVE);
    let volatile = file_system.create_unnamed(&Credentials::root(), directory, 0o600, 0, flags).await?.file;
    let moved = copy_and_swap(file_system, (file, version), &volatile, spec).await;
    file_system.close(volatile, None).await?;
    moved
}

async fn copy_and_swap(
    file_system: &Arc<FileSystem>,
    (file, version): (&Arc<OpenFile>, u64),
    volatile: &Arc<OpenFile>,
    spec: LayoutSpec,
) -> FsResult<()> {
    let root = Credentials::root();
    file_system.begin_layout(&root, volatile.inode(), spec, file.inode()).await?;
    let data: Bytes = file_system.read(file, 0, BYTES_MAX).await?.into_bytes();
    if !data.is_empty() {
        let bytes = data.len();
        if file_system.write(volatile, 0, data, WriteOptions::default()).await? < bytes {
            return Err(FsError::NoSpace);
        }
    }
    let mut outcome = Err(FsError::Busy);
    for _ in 0..ATTEMPTS {
        outcome = file_system.swap_layouts(&root, (file.inode(), version, true), (volatile.inode(), None)).await;
        if outcome != Err(FsError::Busy) {
            break;
        }
    }
    outcome
}
