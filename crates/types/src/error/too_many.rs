//! The tables of servers that clients can fill.

use crate::{ClientId, counted};

/// A table that is full, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// A target has the maximum number of sessions.
    #[error(
        "{target} has {}, the maximum: unmount some, or try again when the leases of clients that are gone have \
         expired",
        counted(*clients, "client")
    )]
    Clients {
        /// The target.
        target: String,
        /// Its sessions.
        clients: usize,
    },
    /// A client has the maximum number of files open.
    #[error("client {client} has {} open on {target}, the maximum: close some", counted(*files, "file"))]
    OpenFiles {
        /// The client.
        client: ClientId,
        /// The target.
        target: String,
        /// Its open files.
        files: u32,
    },
    /// In the words of a server in another process.
    #[error("{0}")]
    Told(String),
}
