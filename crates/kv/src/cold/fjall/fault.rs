//! Why a write of a fjall store failed, and whether it may be tried again.

use std::io;

/// Why a write failed.
pub(super) enum Fault {
    /// Background work failed before, for lack of space as it seems: nothing was tried.
    Background,
    /// What was written before is to be merged, for which there is no room: nothing was tried.
    NoSpaceToMerge,
    /// The write itself.
    Now(io::Error),
}

impl Fault {
    /// `StorageFull` if it may be tried again later.
    pub fn into_error(self) -> io::Error {
        match self {
            Fault::Background => {
                let text = "background work of the cold store failed, and its device is nearly full";
                io::Error::new(io::ErrorKind::StorageFull, text)
            }
            Fault::NoSpaceToMerge => {
                io::Error::new(io::ErrorKind::StorageFull, "there is no space to merge the tables of the cold store")
            }
            Fault::Now(error) => error,
        }
    }
}
