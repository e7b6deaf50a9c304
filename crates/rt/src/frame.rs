//! The frame: what a connection carries. A 64-byte header, a body (encoded message), and bulk data out of line.

use bytes::Bytes;

/// Header of a frame, in host form. The byte table is in docs/wire_protocol.md; `encode` and `decode` implement it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// Protocol version of the sender (0 before negotiation).
    pub version: u16,
    /// What the body is: family and message number.
    pub opcode: u16,
    /// Bits: 1 reply, 2 body is an error.
    pub flags: u16,
    /// Slot of the session.
    pub slot: u16,
    /// Transaction number; a reply carries its request's.
    pub xid: u64,
    /// Connection generation of the session; frames of older connections are dropped.
    pub connection: u64,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Bytes of bulk data.
    pub bulk_bytes: u32,
    /// Nanoseconds the sender is still willing to wait when it sends; 0: forever.
    pub deadline_ns: u64,
    /// Identifies the user's request from the mount to the last server's log.
    pub trace: u64,
    /// CRC-32C of the body. (Bulk data carry their own checksums.)
    pub body_checksum: u32,
}

/// One frame.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// Header; its lengths equal those of `body` and `bulk`.
    pub header: FrameHeader,
    /// Encoded message.
    pub body: Bytes,
    /// Bulk data.
    pub bulk: Bytes,
}
