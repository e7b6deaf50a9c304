//! Requests over io_uring: what the kernel writes into the memory of a ring entry, and the commands
//! that pass entries to the kernel.
//!
//! ```text
//! entry's header, 288 bytes:                              entry's payload:
//! | InHeader or OutHeader, 128 | structure, 128 | EntryState, 32 |   | names, data; body of the answer |
//! ```
//! A request is split: its header and the fixed structure of its opcode are in the first two parts,
//! names and data in the payload. Of an answer only [`OutHeader`] is in the first part; its body,
//! structures included, is in the payload. Source: `fuse.h` and
//! `Documentation/filesystems/fuse/fuse-io-uring.rst` of Linux 6.18.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::decode::{Incoming, RequestDecodeError, decode_body};
use super::reply::OutHeader;
use super::request::InHeader;

/// Bytes of the first and of the second part of an entry's header (FUSE_URING_IN_OUT_HEADER_SZ,
/// FUSE_URING_OP_IN_OUT_SZ).
const PART_BYTES: usize = 128;

/// Gives an entry to the kernel for its first request (FUSE_IO_URING_CMD_REGISTER).
pub const REGISTER: u32 = 1;
/// Answers the request of an entry and gives the entry back for the next one
/// (FUSE_IO_URING_CMD_COMMIT_AND_FETCH).
pub const COMMIT_AND_FETCH: u32 = 2;

/// `fuse_uring_req_header`.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EntryHeader {
    /// [`InHeader`] of the request, then [`OutHeader`] of the answer.
    pub in_out: [u8; PART_BYTES],
    /// The fixed structure of the request.
    pub structure: [u8; PART_BYTES],
    /// Sizes, and what to call the request.
    pub state: EntryState,
}

/// `fuse_uring_ent_in_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct EntryState {
    /// 0.
    pub flags: u64,
    /// Names the request in [`RingCommand::commit_id`].
    pub commit_id: u64,
    /// Bytes of the payload, of the request or of the answer.
    pub payload_bytes: u32,
    /// Padding.
    pub padding: u32,
    /// Reserved.
    pub reserved: u64,
}

/// `fuse_uring_cmd_req`: the command in a submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct RingCommand {
    /// 0.
    pub flags: u64,
    /// Of [`COMMIT_AND_FETCH`]: which request is answered.
    pub commit_id: u64,
    /// Queue: one per possible processor.
    pub queue: u16,
    /// Padding.
    pub padding: [u8; 6],
}

/// Sizes are the kernel's ABI.
const _: () = {
    assert!(size_of::<EntryHeader>() == 288);
    assert!(size_of::<EntryState>() == 32);
    assert!(size_of::<RingCommand>() == 24);
};

impl EntryHeader {
    /// Writes the header of an answer with a body of `payload_bytes`.
    pub fn answer(&mut self, header: &OutHeader, payload_bytes: u32) {
        self.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.state.payload_bytes = payload_bytes;
    }
}

/// Decodes the request in an entry's header and its payload, which may be longer than the
/// request's.
pub fn decode_entry<'a>(entry: &'a EntryHeader, payload: &'a [u8]) -> Result<Incoming<'a>, RequestDecodeError> {
    let Ok((header, _)) = InHeader::read_from_prefix(&entry.in_out) else {
        return Err(RequestDecodeError::NoHeader { bytes: PART_BYTES });
    };
    let parts = || {
        let payload = payload.get(..entry.state.payload_bytes as usize)?;
        let body = (header.length as usize).checked_sub(size_of::<InHeader>())?;
        // Opcodes without a fixed structure leave an old one there.
        let structure = entry.structure.get(..body.checked_sub(payload.len())?)?;
        Some((structure, payload))
    };
    let (structure, payload) = parts().ok_or(RequestDecodeError::Length {
        unique: header.unique,
        claimed: header.length,
        read: entry.state.payload_bytes as usize,
    })?;
    decode_body(header, structure, payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::decode::decode;
    use crate::protocol::request::{Rename2In, WriteIn};
    use crate::protocol::{Opcode, Operation};

    fn entry(opcode: Opcode, structure: &[u8], payload: &[u8]) -> EntryHeader {
        let mut entry = EntryHeader { in_out: [0; 128], structure: [0xee; 128], state: EntryState::default() };
        let length = (size_of::<InHeader>() + structure.len() + payload.len()) as u32;
        let header = InHeader { length, opcode: opcode as u32, unique: 7, node: 1, ..InHeader::default() };
        entry.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        entry.structure[..structure.len()].copy_from_slice(structure);
        entry.state.payload_bytes = payload.len() as u32;
        entry
    }

    #[test]
    fn both_transports_decode_alike() {
        let write = WriteIn { size: 4, offset: 9, ..WriteIn::default() };
        let rename = Rename2In { new_parent: 9, ..Rename2In::default() };
        let requests: [(Opcode, &[u8], &[u8]); 4] = [
            (Opcode::Lookup, &[], b"name\0"),
            (Opcode::Rename2, rename.as_bytes(), b"a\0b\0"),
            (Opcode::Write, write.as_bytes(), b"data"),
            (Opcode::ReadLink, &[], &[]),
        ];
        for (opcode, structure, payload) in requests {
            let entry = entry(opcode, structure, payload);
            let room = [payload, &[1; 100]].concat();
            let over_ring = decode_entry(&entry, &room).unwrap();
            let bytes = [over_ring.header.as_bytes(), structure, payload].concat();
            let over_device = decode(&bytes).unwrap();
            assert_eq!(format!("{over_ring:?}"), format!("{over_device:?}"));
        }
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let lookup = entry(Opcode::Lookup, &[], b"name\0");
        assert!(matches!(decode_entry(&lookup, b"name"), Err(RequestDecodeError::Length { unique: 7, .. })));
        let mut short = lookup;
        short.in_out[0] = 39;
        assert!(matches!(decode_entry(&short, b"name\0"), Err(RequestDecodeError::Length { claimed: 39, .. })));
        let mut long = lookup;
        long.in_out[1] = 1;
        assert!(decode_entry(&long, b"name\0").is_err(), "no fixed structure has more than 128 bytes");
        let lying = WriteIn { size: 5, ..WriteIn::default() };
        let write = entry(Opcode::Write, lying.as_bytes(), b"four");
        assert!(matches!(decode_entry(&write, b"four, and old data"), Err(RequestDecodeError::Malformed { .. })));
    }

    #[test]
    fn an_answer_replaces_the_request() {
        let mut answered = entry(Opcode::Lookup, &[], b"name\0");
        answered.answer(&OutHeader { length: 24, error: 0, unique: 7 }, 8);
        let (header, _) = OutHeader::read_from_prefix(&answered.in_out).unwrap();
        assert_eq!((header.unique, header.length, answered.state.payload_bytes), (7, 24, 8));
    }

    proptest! {
        #[test]
        fn random_entries_never_panic(
            header in proptest::collection::vec(any::<u8>(), 288),
            opcode in 0_u32..60,
            lengths in (0_u32..400, 0_u32..200),
            payload in proptest::collection::vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200),
        ) {
            let mut entry = EntryHeader::read_from_bytes(&header).unwrap();
            entry.in_out[..4].copy_from_slice(&lengths.0.to_ne_bytes());
            entry.in_out[4..8].copy_from_slice(&opcode.to_ne_bytes());
            entry.state.payload_bytes = lengths.1;
            if let Ok(Incoming { operation: Operation::Write { write, data }, .. }) = decode_entry(&entry, &payload) {
                prop_assert_eq!(write.size as usize, data.len());
            }
        }
    }
}
