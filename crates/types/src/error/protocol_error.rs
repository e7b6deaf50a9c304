//! What is wrong with a message, or with the peer that sent it.

use std::ops::RangeInclusive;

/// Why two processes do not understand each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// There is no protocol version that both sides speak.
    #[error(
        "{client} speaks {} of the protocol, {server} speaks {}; use the same release of StriaFS on all hosts",
        shown(client_versions),
        shown(server_versions)
    )]
    Versions {
        /// Name of the client.
        client: String,
        /// What it speaks.
        client_versions: RangeInclusive<u16>,
        /// Name of the target.
        server: String,
        /// What its server speaks.
        server_versions: RangeInclusive<u16>,
    },
    /// A tool and a mount with different versions of the control channel.
    #[error("control channel version {found}, expected {expected}")]
    ControlVersion {
        /// In the request.
        found: u16,
        /// The version that this release speaks.
        expected: u16,
    },
    /// The server grants fewer slots than a session needs.
    #[error("the server grants {granted} slots; a session needs at least {needed}")]
    Slots {
        /// By the server.
        granted: u16,
        /// The minimum.
        needed: u16,
    },
    /// A request of a newer version, by its opcode.
    #[error("unknown message {0:#06x}")]
    UnknownMessage(u16),
    /// A message that cannot be encoded or decoded, in the words of its codec.
    #[error("{0}")]
    Codec(String),
    /// A request for another kind of target.
    #[error("{target} accepts only {accepted}")]
    Misdirected {
        /// The target that received it.
        target: String,
        /// What belongs there, in the plural.
        accepted: &'static str,
    },
    /// A reply to another kind of request, for logs.
    #[error("unexpected reply {0}")]
    UnexpectedReply(String),
    /// Not one checksum for each piece of the data.
    #[error("{found} checksums for {pieces} pieces")]
    Checksums {
        /// In the message.
        found: usize,
        /// Pieces that the data have.
        pieces: usize,
    },
    /// More or fewer data than the rest of the reply says.
    #[error("{found} bytes of data, expected {expected}")]
    DataBytes {
        /// In the message.
        found: u64,
        /// By the reply.
        expected: u64,
    },
    /// The reply to a creation lacks the open that it asked for.
    #[error("the file was created but not opened as requested")]
    NotOpened,
    /// The reply to a write's request for objects has none for all of its range.
    #[error("the layout was not extended as requested")]
    LayoutNotGrown,
    /// The task that follows the cluster map has stopped.
    #[error("the cluster map is no longer followed")]
    MapNotFollowed,
    /// The task that registers a target has stopped.
    #[error("the target no longer registers")]
    NotRegistering,
    /// In the words of a peer in another process.
    #[error("{0}")]
    Told(String),
}

/// `version 2`, or `versions 2 to 3`.
fn shown(versions: &RangeInclusive<u16>) -> String {
    match (versions.start(), versions.end()) {
        (only, last) if only == last => format!("version {only}"),
        (first, last) => format!("versions {first} to {last}"),
    }
}

impl ProtocolError {
    /// `target` received a request for another kind of target.
    pub fn misdirected(target: impl Into<String>, accepted: &'static str) -> Self {
        ProtocolError::Misdirected { target: target.into(), accepted }
    }
}
