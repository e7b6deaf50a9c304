//! Why a write of a fjall store failed, and whether it may be tried again.

use std::io;

/// Why a write failed.
pub(super) enum Fault {
    /// Background work failed before, for want of space as it seems: nothing was tried.
    Background,
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
            Fault::Now(error) => error,
        }
    }
}
