//! The network: connections that carry frames.
//!
//! Contract: frames of one connection arrive whole, and if the transport is reliable (TCP), those
//! of one lane in order: urgent frames ([`Frame::is_urgent`]) are one lane, all others are another.
//! An urgent frame leaves before those of the other lane that are queued and have not begun to
//! leave, so it waits only for what the network itself has taken. The layers above do not rely on
//! it: the lab loses, duplicates, delays and reorders frames, and sessions (rpc) make calls
//! exactly-once nevertheless. An error ends the connection permanently; nothing is known about
//! frames sent before it.
//!
//! Life of a connection: it ends when either side calls [`Sender::close`], drops the last handle of
//! its sender or drops its receiver, or when the network breaks. Frames sent before an orderly end
//! are still received, followed by `None`; sending on an ended connection is a `BrokenPipe` error.
//! Frames must be sealed ([`Frame::new`]): a sender refuses wrong lengths with `InvalidInput`, a
//! receiver refuses a wrong body checksum with `InvalidData`.

use std::{fmt, io, sync::Arc};

use crate::{BoxFuture, Frame, frame::FRAME_BYTES_MAX};

/// Bytes that may be queued in one direction of a connection before [`Sender::send`] waits: three
/// of the largest frames, so that one waiting for the network never keeps the next from being
/// encoded.
pub const QUEUED_BYTES_MAX: usize = 16 << 20;
/// The same for urgent frames, which do not wait for others: one of the largest. Most are small.
pub const URGENT_QUEUED_BYTES_MAX: usize = 8 << 20;

const _: () = assert!(QUEUED_BYTES_MAX >= 3 * FRAME_BYTES_MAX, "the largest frames can be queued");
const _: () = assert!(URGENT_QUEUED_BYTES_MAX >= FRAME_BYTES_MAX, "the largest frame can be queued");

/// Where a process listens: `host:port`, or a node's name in the lab.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub Arc<str>);

impl Address {
    /// Port used where none is given (Lustre's).
    pub const PORT_DEFAULT: u16 = 988;

    /// `host:port`, with the default port added where there is none. An IPv6 address stands in
    /// brackets.
    pub fn with_port(text: &str) -> Self {
        let has_port = match text.rsplit_once(']') {
            Some((_, port)) => port.starts_with(':'),
            None => text.contains(':'),
        };
        if has_port { Self::from(text) } else { Self::from(format!("{text}:{}", Self::PORT_DEFAULT).as_str()) }
    }

    /// Whether it is a host and a port. Whether the host exists is checked when it is used.
    pub fn is_complete(&self) -> bool {
        let Some((host, port)) = self.0.rsplit_once(':') else { return false };
        let (bare, marks) = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(bare) => (bare, "-_.:%"),
            None => (host, "-_."),
        };
        let good = |letter: char| letter.is_alphanumeric() || marks.contains(letter);
        !bare.is_empty() && bare.chars().all(good) && port.parse::<u16>().is_ok()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        Address(text.into())
    }
}

/// The two halves of a connection.
pub struct Connection {
    /// Sends frames; shared by all callers.
    pub sender: Arc<dyn Sender>,
    /// Receives frames; owned by one reader.
    pub receiver: Box<dyn Receiver>,
    /// The other side, for people.
    pub peer: String,
}

/// The seam for the network.
pub trait Transport: Send + Sync {
    /// Opens a connection. Errors have the kind `NotFound` if the address has a name that does not
    /// resolve, else those of connect(2): `ConnectionRefused` where no process listens.
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Connection>>;
    /// Starts to listen. With port 0 the system chooses one; [`Listener::address`] returns it.
    fn listen(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;
}

/// A listening socket.
pub trait Listener: Send {
    /// The next connection.
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Connection>>;
    /// Where it listens.
    fn address(&self) -> Address;
}

/// Sending half. Frames queued by several callers in a short time are sent in one system call.
pub trait Sender: Send + Sync {
    /// Queues a frame at the end of its lane. Waits while more than the lane's bound of bytes is
    /// queued (a peer that does not read slows down only its sender). Success means queued, not
    /// delivered.
    fn send(&self, frame: Frame) -> BoxFuture<'_, io::Result<()>>;
    /// Ends the connection in both directions; the receiver sees an end.
    fn close(&self);
}

/// Receiving half.
pub trait Receiver: Send {
    /// The next frame; `None` when the peer closed the connection between frames. A frame whose
    /// header is malformed or too large is an `InvalidData` error.
    fn receive(&mut self) -> BoxFuture<'_, io::Result<Option<Frame>>>;
    /// From the next frame on, one whose body and bulk data together are longer than this is an
    /// `InvalidData` error, and no memory is allocated for it.
    fn limit(&mut self, bytes_max: usize);
    /// The next receive may be on another core: releases what this one provides.
    fn leave_core(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_once() {
        for (text, expected) in
            [("host", "host:988"), ("host:1", "host:1"), ("[::1]", "[::1]:988"), ("[::1]:2", "[::1]:2")]
        {
            assert_eq!(Address::with_port(text), Address::from(expected));
            assert!(Address::from(expected).is_complete());
        }
        for text in ["", "host", ":1", "host:", "host:port", "host:65536", "::1:1", "[::1:1", "a/b:1", "[::1]x:1"] {
            assert!(!Address::from(text).is_complete(), "{text}");
        }
    }
}
