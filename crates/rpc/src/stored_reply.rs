//! The reply of a change as a target stores it in its tables, in the batch of the change, so that a
//! repetition has one effect also across a restart of the server
//! ([`Handler::persistent_reply`](crate::Handler::persistent_reply)).
//!
//! | part | bytes |
//! |---|---|
//! | key | client (8) and slot (2), big endian |
//! | value | version 1 (1), xid (8, little endian), reply as on the wire |
//!
//! A slot has one request at a time, so only its last reply can be requested again: the next one
//! replaces it.

use serde::{Serialize, de::DeserializeOwned};
use types::{ClientId, Damage, FsResult, RecordDamage, Slot, Xid};

use crate::codec;

/// Length of a key.
pub const KEY_BYTES: usize = 10;

const VERSION: u8 = 1;
/// Of damaged ones.
const WHAT: &str = "reply";

/// The key of a slot's last reply. The keys of one client are together, in order of its slots.
pub fn key(client: ClientId, slot: Slot) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&client.0.to_be_bytes());
    key[8..].copy_from_slice(&slot.0.to_be_bytes());
    key
}

/// Client and slot of a key.
pub fn parse_key(key: &[u8]) -> FsResult<(ClientId, Slot)> {
    let parse = || {
        let (client, slot) = key.split_first_chunk()?;
        Some((ClientId(u64::from_be_bytes(*client)), Slot(u16::from_be_bytes(slot.try_into().ok()?))))
    };
    parse().ok_or_else(|| Damage::new(WHAT, "malformed key").into())
}

/// The value. Fails if the reply is too large to be sent.
pub fn encode<R: Serialize>(xid: Xid, reply: &R) -> FsResult<Vec<u8>> {
    let body = codec::encode(reply)?;
    Ok([&[VERSION], &xid.0.to_le_bytes()[..], &body].concat())
}

/// Only the transaction number of a value.
pub fn decode_xid(value: &[u8]) -> FsResult<Xid> {
    split(value).map(|(xid, _)| xid)
}

/// Transaction number and reply.
pub fn decode<R: DeserializeOwned>(value: &[u8]) -> FsResult<(Xid, R)> {
    let (xid, body) = split(value)?;
    let reply = codec::decode(body).map_err(|error| Damage::new(WHAT, error.to_string()))?;
    Ok((xid, reply))
}

fn split(value: &[u8]) -> FsResult<(Xid, &[u8])> {
    let damaged = |problem| Err(Damage::new(WHAT, problem).into());
    match value.split_first() {
        Some((&VERSION, rest)) => match rest.split_first_chunk() {
            Some((xid, body)) => Ok((Xid(u64::from_le_bytes(*xid)), body)),
            None => damaged(RecordDamage::Short),
        },
        Some((&found, _)) => damaged(RecordDamage::Version { found, expected: VERSION }),
        None => damaged(RecordDamage::Short),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MdtReply;

    #[test]
    fn round_trips() {
        let place = key(ClientId(77), Slot(300));
        assert_eq!(parse_key(&place), Ok((ClientId(77), Slot(300))));
        let reply = MdtReply::Target(b"somewhere".to_vec());
        let value = encode(Xid(9), &reply).unwrap();
        assert_eq!(decode(&value), Ok((Xid(9), reply)));
        assert_eq!(decode_xid(&value), Ok(Xid(9)));
    }

    #[test]
    fn what_is_damaged_is_an_error() {
        let (place, value) = (key(ClientId(1), Slot(2)), encode(Xid(9), &MdtReply::Done).unwrap());
        assert!([&place[1..], &[0; 11], b""].into_iter().all(|key| parse_key(key).is_err()));
        for bytes in [&value[..value.len() - 1], &value[..5], b"", b"\x02", &[&value[..], b"more"].concat()] {
            assert!(decode::<MdtReply>(bytes).is_err(), "{bytes:?}");
        }
    }
}
