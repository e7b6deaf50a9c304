//! Moves a file's data to another layout, in the steps of `lfs migrate`, or as the metadata target
//! does it in the background.

use std::{sync::Arc, time::Duration};

use client::{
    FileSystem,
    migration::{Background, Rest, Restraint, Throttle},
};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeCount, StripeSpec};
use rt::BoxFuture;
use types::{Credentials, FsError, FsResult, InodeNumber};

/// How often a file in use is tried again before it stays where it is.
const ATTEMPTS: usize = 20;
/// What moving in the background may take of the disks.
const BACKGROUND_BYTES_PER_SECOND: u64 = 32 << 20;
/// Always the same.
struct Budget;

impl Restraint for Budget {
    fn allowance(&self, _rest: Rest) -> BoxFuture<'_, u64> {
        Box::pin(async { BACKGROUND_BYTES_PER_SECOND })
    }
}

/// Before it tries to swap again.
const SWAP_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

/// How a move goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Writers are held off, and other users of the file are waited for, for a limited time.
    Tool,
    /// Yields to all others, and is not tried again.
    Background,
}

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

/// Moves the file, which this client does not have open; true if it has moved, false if other users
/// prevented it.
pub async fn migrate(
    file_system: &Arc<FileSystem>,
    inode: InodeNumber,
    spec: LayoutSpec,
    manner: Manner,
) -> FsResult<bool> {
    let (attempts, holds) = match manner {
        Manner::Tool => (ATTEMPTS, true),
        Manner::Background => (1, false),
    };
    for _ in 0..attempts {
        let mut background = (manner == Manner::Background).then(|| Background {
            throttle: Throttle::default(),
            restraint: &Budget,
            swap_pauses: &SWAP_PAUSES,
        });
        match file_system.migrate(&Credentials::root(), inode, spec.clone(), holds, background.as_mut()).await {
            Ok(_) => return Ok(true),
            Err(FsError::Busy | FsError::WouldBlock) => {}
            // Data on the MDT of both files do not fit into one batch of a small journal.
            Err(FsError::TooBig) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
