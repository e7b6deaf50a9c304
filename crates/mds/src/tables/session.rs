//! SESSIONS and REPLIES: who may come back after a restart, and what the last mutations were answered.
//!
//! | table | key | value, version 1 |
//! |---|---|---|
//! | SESSIONS | client (8) | version (1), time of opening (12) |
//! | REPLIES | client (8), slot (2) | version (1), xid (8), reply as on the wire (postcard) |

use rpc::message::MdtReply;
use types::{ClientId, FsError, FsResult, Slot, Timestamp, Xid};

use super::codec::{Reader, Writer, split_number};

const VERSION: u8 = 1;

/// The key of a session.
pub fn session_key(client: ClientId) -> Vec<u8> {
    client.0.to_be_bytes().to_vec()
}

/// The value of a session opened at this time.
pub fn encode_session(opened: Timestamp) -> Vec<u8> {
    Writer::new(VERSION).time(opened).finish()
}

/// When a session was opened.
pub fn decode_session(value: &[u8]) -> FsResult<Timestamp> {
    let mut reader = Reader::new("session", value, VERSION)?;
    let opened = reader.time()?;
    reader.finish()?;
    Ok(opened)
}

/// The key of a slot's last reply.
pub fn reply_key(client: ClientId, slot: Slot) -> Vec<u8> {
    let mut key = session_key(client);
    key.extend_from_slice(&slot.0.to_be_bytes());
    key
}

/// Client and slot of a key.
pub fn decode_reply_key(key: &[u8]) -> FsResult<(ClientId, Slot)> {
    let (client, rest) = split_number("reply", key)?;
    let slot = rest.try_into().map_err(|_| FsError::Damaged("reply: malformed key".to_owned()))?;
    Ok((ClientId(client), Slot(u16::from_be_bytes(slot))))
}

/// The value of a reply.
pub fn encode_reply(xid: Xid, reply: &MdtReply) -> Vec<u8> {
    let body = postcard::to_allocvec(reply).expect("replies are plain data that always encode");
    Writer::new(VERSION).u64(xid.0).rest(&body).finish()
}

/// Only the transaction number of a reply.
pub fn decode_reply_xid(value: &[u8]) -> FsResult<Xid> {
    Ok(Xid(Reader::new("reply", value, VERSION)?.u64()?))
}

/// Transaction number and reply.
pub fn decode_reply(value: &[u8]) -> FsResult<(Xid, MdtReply)> {
    let mut reader = Reader::new("reply", value, VERSION)?;
    let xid = Xid(reader.u64()?);
    let body = reader.rest();
    let reply = postcard::from_bytes(body).map_err(|error| FsError::Damaged(format!("reply: {error}")))?;
    Ok((xid, reply))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        let time = Timestamp { seconds: 5, nanoseconds: 6 };
        assert_eq!(decode_session(&encode_session(time)), Ok(time));
        let key = reply_key(ClientId(77), Slot(300));
        assert_eq!(decode_reply_key(&key), Ok((ClientId(77), Slot(300))));
        let reply = MdtReply::Target(b"somewhere".to_vec());
        let value = encode_reply(Xid(9), &reply);
        assert_eq!(decode_reply(&value), Ok((Xid(9), reply)));
        assert_eq!(decode_reply_xid(&value), Ok(Xid(9)));
        assert!(decode_reply(&value[..12]).is_err());
        assert!(decode_reply_key(&key[1..]).is_err());
        assert!(decode_session(&[1]).is_err());
    }
}
