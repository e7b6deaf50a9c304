//! The frame: the unit that a connection carries. A 64-byte header, a body, and bulk data out of
//! line. The body is an extension, which says more about the message than the header can and is
//! usually empty or short, and the encoded message.
//!
//! Byte table of the header, version 2, little endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `STRI` |
//! | 4 | 2 | version of the protocol |
//! | 6 | 2 | opcode |
//! | 8 | 2 | flags |
//! | 10 | 2 | slot |
//! | 12 | 4 | bytes of the body: extension and message |
//! | 16 | 4 | bytes of bulk data, at most [`BULK_BYTES_MAX`] |
//! | 20 | 4 | CRC-32C of the body |
//! | 24 | 8 | xid |
//! | 32 | 8 | connection generation |
//! | 40 | 8 | deadline, nanoseconds |
//! | 48 | 8 | trace id |
//! | 56 | 2 | bytes of the extension, at most [`EXTENSION_BYTES_MAX`]; the message has at most [`BODY_BYTES_MAX`] |
//! | 58 | 1 | scheduling class |
//! | 59 | 1 | reserved, 0 when sent, not interpreted when received |
//! | 60 | 4 | CRC-32C of bytes 0..60 |
//!
//! The header's own checksum is verified before its lengths are used, so garbage on a port never
//! makes a receiver wait for, or allocate memory for, data that are never sent. Downside: a frame
//! costs one more pass over 60 bytes at each end (about 10 ns).

use bytes::Bytes;
use types::limits::{BODY_BYTES_MAX, BULK_BYTES_MAX, EXTENSION_BYTES_MAX};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

/// Bytes of an encoded header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of the largest frame.
pub const FRAME_BYTES_MAX: usize = HEADER_BYTES + EXTENSION_BYTES_MAX + BODY_BYTES_MAX + BULK_BYTES_MAX;

/// First bytes of every frame.
const MAGIC: [u8; 4] = *b"STRI";
/// Bytes of the header that its checksum covers.
const CHECKED_BYTES: usize = 60;

const _: () = assert!(size_of::<WireHeader>() == HEADER_BYTES, "the byte table has 64 bytes");
const _: () = assert!(FRAME_BYTES_MAX <= u32::MAX as usize, "lengths are 32 bits");

/// Values of [`FrameHeader::class`]. Unknown ones are treated as [`class::NORMAL`].
pub mod class {
    /// A caller waits for it.
    pub const NORMAL: u8 = 0;
    /// No caller waits for it: migrations, checks.
    pub const BACKGROUND: u8 = 1;
    /// Others may wait for it: callbacks, what they ask for, and what gives something up. It leaves
    /// before queued frames of other classes.
    pub const URGENT: u8 = 2;
}

/// The byte table above.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireHeader {
    magic: [u8; 4],
    version: U16,
    opcode: U16,
    flags: U16,
    slot: U16,
    body_bytes: U32,
    bulk_bytes: U32,
    body_checksum: U32,
    xid: U64,
    connection: U64,
    deadline_ns: U64,
    trace: U64,
    extension_bytes: U16,
    class: u8,
    reserved: u8,
    header_checksum: U32,
}

/// Why bytes are not a frame, or a frame may not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes are not those of this protocol.
    #[error("the peer does not speak the StriaFS protocol, so it is not a StriaFS client or server: it begins with \"{}\"", .0.escape_ascii())]
    Magic([u8; 4]),
    /// The header was damaged on its way.
    #[error("checksum mismatch in a frame header: stored {stored:#010x}, computed {computed:#010x}")]
    HeaderChecksum {
        /// The checksum the header carries.
        stored: u32,
        /// The checksum of its bytes.
        computed: u32,
    },
    /// The body was damaged on its way, or its sender did not seal it.
    #[error("checksum mismatch in a frame body: stored {stored:#010x}, computed {computed:#010x}")]
    BodyChecksum {
        /// The checksum the header carries.
        stored: u32,
        /// The checksum of the body.
        computed: u32,
    },
    /// The message is larger than any may be.
    #[error("message of {0} bytes exceeds the limit of {BODY_BYTES_MAX}")]
    BodyTooLarge(usize),
    /// The extension is larger than any may be, or than the body that it is part of.
    #[error(
        "extension of {extension} bytes in a frame body of {body} bytes exceeds it, or the limit of {EXTENSION_BYTES_MAX}"
    )]
    ExtensionTooLarge {
        /// Bytes of the extension.
        extension: usize,
        /// Bytes of the body.
        body: usize,
    },
    /// The bulk data are larger than any request may carry.
    #[error("bulk data of {0} bytes exceed the limit of {BULK_BYTES_MAX}")]
    BulkTooLarge(usize),
    /// The frame is larger than its receiver takes at this time.
    #[error("frame of {bytes} bytes exceeds the limit of {bytes_max} before a session")]
    OverLimit {
        /// Bytes of body and bulk data.
        bytes: usize,
        /// Most bytes of both.
        bytes_max: usize,
    },
    /// The header's lengths are not those of body and bulk data.
    #[error("frame header announces {announced} bytes but {present} are present")]
    Lengths {
        /// Body and bulk bytes according to the header.
        announced: usize,
        /// Body and bulk bytes there are.
        present: usize,
    },
}

impl From<FrameError> for std::io::Error {
    fn from(error: FrameError) -> Self {
        std::io::Error::new(std::io::ErrorKind::InvalidData, error)
    }
}

/// Header of a frame, in host form. `encode` and `decode` implement the byte table above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// Protocol version of the sender (0 before negotiation).
    pub version: u16,
    /// What the body is: family and message number.
    pub opcode: u16,
    /// Bits: 1 reply, 2 body is an error; `rpc` has the others.
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
    /// On the target's clock, in nanoseconds. Of a request: when its caller gives up, so that it is
    /// not executed later; 0: never. Of a reply: when it left; 0: not told.
    pub deadline_ns: u64,
    /// Identifies the user's request from the mount to the last server's log.
    pub trace: u64,
    /// CRC-32C of the body, set by [`Frame::new`]. (Bulk data carry their own checksums.)
    pub body_checksum: u32,
    /// Bytes of the extension at the beginning of the body.
    pub extension_bytes: u16,
    /// How urgent the request is, for schedulers: one of [`class`]. A reply carries its request's.
    pub class: u8,
}

impl FrameHeader {
    /// Refuses a frame whose body and bulk data together are longer.
    pub fn check_limit(&self, bytes_max: usize) -> Result<(), FrameError> {
        let bytes = self.body_bytes as usize + self.bulk_bytes as usize;
        if bytes > bytes_max { Err(FrameError::OverLimit { bytes, bytes_max }) } else { Ok(()) }
    }

    /// The header's 64 bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let wire = WireHeader {
            magic: MAGIC,
            version: self.version.into(),
            opcode: self.opcode.into(),
            flags: self.flags.into(),
            slot: self.slot.into(),
            body_bytes: self.body_bytes.into(),
            bulk_bytes: self.bulk_bytes.into(),
            body_checksum: self.body_checksum.into(),
            xid: self.xid.into(),
            connection: self.connection.into(),
            deadline_ns: self.deadline_ns.into(),
            trace: self.trace.into(),
            extension_bytes: self.extension_bytes.into(),
            class: self.class,
            reserved: 0,
            header_checksum: 0.into(),
        };
        let mut bytes: [u8; HEADER_BYTES] = zerocopy::transmute!(wire);
        let checksum = crc_fast::crc32_iscsi(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header that these bytes encode, its lengths within the limits.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let wire: &WireHeader = zerocopy::transmute_ref!(bytes);
        if wire.magic != MAGIC {
            return Err(FrameError::Magic(wire.magic));
        }
        let (stored, computed) = (wire.header_checksum.get(), crc_fast::crc32_iscsi(&bytes[..CHECKED_BYTES]));
        if stored != computed {
            return Err(FrameError::HeaderChecksum { stored, computed });
        }
        let header = FrameHeader {
            version: wire.version.get(),
            opcode: wire.opcode.get(),
            flags: wire.flags.get(),
            slot: wire.slot.get(),
            xid: wire.xid.get(),
            connection: wire.connection.get(),
            body_bytes: wire.body_bytes.get(),
            bulk_bytes: wire.bulk_bytes.get(),
            deadline_ns: wire.deadline_ns.get(),
            trace: wire.trace.get(),
            body_checksum: wire.body_checksum.get(),
            extension_bytes: wire.extension_bytes.get(),
            class: wire.class,
        };
        header.check_limits()?;
        Ok(header)
    }

    /// Whether these first bytes can become a header, so that a peer of another protocol, which may
    /// never send as much as a header, is told from a slow one.
    pub fn check_beginning(bytes: &[u8]) -> Result<(), FrameError> {
        match bytes.first_chunk() {
            Some(magic) if *magic != MAGIC => Err(FrameError::Magic(*magic)),
            _ => Ok(()),
        }
    }

    fn check_limits(&self) -> Result<(), FrameError> {
        let (body, extension) = (self.body_bytes as usize, usize::from(self.extension_bytes));
        let message = body.checked_sub(extension).filter(|_| extension <= EXTENSION_BYTES_MAX);
        let message = message.ok_or(FrameError::ExtensionTooLarge { extension, body })?;
        if message > BODY_BYTES_MAX {
            return Err(FrameError::BodyTooLarge(message));
        }
        if self.bulk_bytes as usize > BULK_BYTES_MAX {
            return Err(FrameError::BulkTooLarge(self.bulk_bytes as usize));
        }
        Ok(())
    }
}

/// One frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Header; its lengths equal those of `body` and `bulk`.
    pub header: FrameHeader,
    /// Extension and encoded message.
    pub body: Bytes,
    /// Bulk data.
    pub bulk: Bytes,
}

impl Frame {
    /// A sealed frame: lengths and body checksum of `header` are filled in here, the rest is the
    /// caller's.
    pub fn new(header: FrameHeader, body: Bytes, bulk: Bytes) -> Result<Self, FrameError> {
        let body_checksum = crc_fast::crc32_iscsi(&body);
        let (body_bytes, bulk_bytes) = (announced(body.len()), announced(bulk.len()));
        let header = FrameHeader { body_bytes, bulk_bytes, body_checksum, ..header };
        header.check_limits()?;
        Ok(Frame { header, body, bulk })
    }

    /// The first part of the body.
    pub fn extension(&self) -> &[u8] {
        &self.body[..self.extension_end()]
    }

    /// The rest of the body.
    pub fn message(&self) -> &[u8] {
        &self.body[self.extension_end()..]
    }

    /// Receivers have checked that it is within the body.
    fn extension_end(&self) -> usize {
        usize::from(self.header.extension_bytes).min(self.body.len())
    }

    /// Whether it leaves before queued frames that are not.
    pub fn is_urgent(&self) -> bool {
        self.header.class == class::URGENT
    }

    /// Bytes of the whole frame on the wire.
    pub fn wire_bytes(&self) -> usize {
        HEADER_BYTES + self.body.len() + self.bulk.len()
    }

    /// Whether the header's lengths are true and within the limits: what a sender checks.
    pub fn check_lengths(&self) -> Result<(), FrameError> {
        let announced = self.header.body_bytes as usize + self.header.bulk_bytes as usize;
        if self.header.body_bytes as usize != self.body.len() || self.header.bulk_bytes as usize != self.bulk.len() {
            return Err(FrameError::Lengths { announced, present: self.body.len() + self.bulk.len() });
        }
        self.header.check_limits()
    }

    /// Whether the body is the one its header was sealed with: what a receiver checks.
    pub fn check_body(&self) -> Result<(), FrameError> {
        let (stored, computed) = (self.header.body_checksum, crc_fast::crc32_iscsi(&self.body));
        if stored != computed {
            return Err(FrameError::BodyChecksum { stored, computed });
        }
        Ok(())
    }
}

/// A length as it stands in a header; one that does not fit is above all limits.
fn announced(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> FrameHeader {
        FrameHeader {
            version: 0x0102,
            opcode: 0x0304,
            flags: 0x0506,
            slot: 0x0708,
            xid: 0x1112_1314_1516_1718,
            connection: 0x2122_2324_2526_2728,
            body_bytes: 0x000a_0b0c,
            bulk_bytes: 0x0030_0201,
            deadline_ns: 0x3132_3334_3536_3738,
            trace: 0x4142_4344_4546_4748,
            body_checksum: 0x5152_5354,
            extension_bytes: 0x0102,
            class: 0x61,
        }
    }

    #[test]
    fn wire_bytes_are_those_of_the_table() {
        let bytes = header().encode();
        assert_eq!(&bytes[0..4], b"STRI");
        assert_eq!(&bytes[4..12], [2, 1, 4, 3, 6, 5, 8, 7]);
        assert_eq!(&bytes[12..24], [0x0c, 0x0b, 0x0a, 0, 1, 2, 0x30, 0, 0x54, 0x53, 0x52, 0x51]);
        assert_eq!(&bytes[24..32], [0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11]);
        assert_eq!(bytes[32], 0x28);
        assert_eq!(bytes[40], 0x38);
        assert_eq!(bytes[48], 0x48);
        assert_eq!(&bytes[56..60], [2, 1, 0x61, 0]);
        assert_eq!(u32::from_le_bytes(bytes[60..].try_into().unwrap()), crc_fast::crc32_iscsi(&bytes[..60]));
        assert_eq!(FrameHeader::decode(&bytes), Ok(header()));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = header().encode();
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = good;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_protocol_is_recognised_by_its_first_bytes() {
        let web = FrameHeader::check_beginning(b"GET /").unwrap_err();
        assert_eq!(web, FrameError::Magic(*b"GET "));
        assert!(web.to_string().ends_with(": it begins with \"GET \""), "{web}");
        let encrypted = FrameError::Magic([0x16, 3, 1, 2]).to_string();
        assert!(encrypted.ends_with("\"\\x16\\x03\\x01\\x02\""), "{encrypted}");
        for bytes in [&b""[..], b"ST", b"GET", b"STRIA"] {
            assert_eq!(FrameHeader::check_beginning(bytes), Ok(()));
        }
    }

    #[test]
    fn lengths_above_the_limits_are_refused() {
        let body = FrameHeader { body_bytes: BODY_BYTES_MAX as u32 + 1, ..Default::default() };
        assert_eq!(FrameHeader::decode(&body.encode()), Err(FrameError::BodyTooLarge(BODY_BYTES_MAX + 1)));
        let extended = FrameHeader { body_bytes: 9, extension_bytes: 10, ..Default::default() };
        let error = FrameError::ExtensionTooLarge { extension: 10, body: 9 };
        assert_eq!(FrameHeader::decode(&extended.encode()), Err(error));
        assert_eq!(Frame::new(extended, Bytes::from_static(b"nine long"), Bytes::new()), Err(error));
        let whole = FrameHeader { body_bytes: (EXTENSION_BYTES_MAX + BODY_BYTES_MAX) as u32, ..Default::default() };
        let whole = FrameHeader { extension_bytes: EXTENSION_BYTES_MAX as u16, ..whole };
        assert_eq!(FrameHeader::decode(&whole.encode()), Ok(whole));
        let bulk = FrameHeader { bulk_bytes: BULK_BYTES_MAX as u32 + 1, ..Default::default() };
        assert_eq!(FrameHeader::decode(&bulk.encode()), Err(FrameError::BulkTooLarge(BULK_BYTES_MAX + 1)));
        let largest = Bytes::from(vec![0; BULK_BYTES_MAX + 1]);
        assert!(Frame::new(FrameHeader::default(), largest.clone(), Bytes::new()).is_err());
        assert!(Frame::new(FrameHeader::default(), Bytes::new(), largest).is_err());
    }

    #[test]
    fn a_sealed_frame_checks_and_a_changed_one_does_not() {
        let header = FrameHeader { extension_bytes: 1, ..header() };
        let mut frame =
            Frame::new(header, Bytes::from_static(b"body"), Bytes::from_static(b"bulk data")).expect("within limits");
        assert_eq!((frame.header.body_bytes, frame.header.bulk_bytes, frame.wire_bytes()), (4, 9, 77));
        assert_eq!((frame.check_lengths(), frame.check_body()), (Ok(()), Ok(())));
        assert_eq!((frame.extension(), frame.message()), (&b"b"[..], &b"ody"[..]));
        frame.body = Bytes::from_static(b"bodY");
        assert!(matches!(frame.check_body(), Err(FrameError::BodyChecksum { .. })));
        frame.bulk = Bytes::new();
        assert_eq!(frame.check_lengths(), Err(FrameError::Lengths { announced: 13, present: 4 }));
    }
}
