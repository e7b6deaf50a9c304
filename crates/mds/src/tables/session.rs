//! SESSIONS and REPLIES: who may come back after a restart, and what the last mutations were answered.
//!
//! | table | key | value |
//! |---|---|---|
//! | SESSIONS | client (8) | version 2 (1), time of opening (12), the MDT's process if the client lives in it (8), else 0 |
//! | REPLIES | client (8), slot (2) | version 1 (1), xid (8), reply as on the wire (postcard) |
//!
//! Version 1 of a session, before 2026-11-20, says nothing of processes.

use rpc::message::MdtReply;
use types::{ClientId, FsError, FsResult, Slot, Timestamp, Xid};

use super::codec::{Reader, Writer, split_number};
use crate::options::ProcessId;

const SESSION_VERSION: u8 = 2;
const REPLY_VERSION: u8 = 1;

/// A session that may outlast a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// When it was opened.
    pub opened: Timestamp,
    /// The process of the MDT, if the client lives in it: it ends with the process.
    pub process: Option<ProcessId>,
}

impl SessionRecord {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let process = self.process.map_or(0, ProcessId::get);
        Writer::new(SESSION_VERSION).time(self.opened).u64(process).finish()
    }

    /// The record of a value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        const WHAT: &str = "session";
        let without_process = value.first() == Some(&1);
        let mut reader = Reader::new(WHAT, value, if without_process { 1 } else { SESSION_VERSION })?;
        let opened = reader.time()?;
        let process = if without_process { 0 } else { reader.u64()? };
        reader.finish()?;
        Ok(Self { opened, process: ProcessId::new(process) })
    }
}

/// The key of a session.
pub fn session_key(client: ClientId) -> Vec<u8> {
    client.0.to_be_bytes().to_vec()
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
    Writer::new(REPLY_VERSION).u64(xid.0).rest(&body).finish()
}

/// Only the transaction number of a reply.
pub fn decode_reply_xid(value: &[u8]) -> FsResult<Xid> {
    Ok(Xid(Reader::new("reply", value, REPLY_VERSION)?.u64()?))
}

/// Transaction number and reply.
pub fn decode_reply(value: &[u8]) -> FsResult<(Xid, MdtReply)> {
    let mut reader = Reader::new("reply", value, REPLY_VERSION)?;
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
        let opened = Timestamp { seconds: 5, nanoseconds: 6 };
        for process in [None, ProcessId::new(7)] {
            let record = SessionRecord { opened, process };
            assert_eq!(SessionRecord::decode(&record.encode()), Ok(record));
        }
        let old = Writer::new(1).time(opened).finish();
        assert_eq!(SessionRecord::decode(&old), Ok(SessionRecord { opened, process: None }));
        let key = reply_key(ClientId(77), Slot(300));
        assert_eq!(decode_reply_key(&key), Ok((ClientId(77), Slot(300))));
        let reply = MdtReply::Target(b"somewhere".to_vec());
        let value = encode_reply(Xid(9), &reply);
        assert_eq!(decode_reply(&value), Ok((Xid(9), reply)));
        assert_eq!(decode_reply_xid(&value), Ok(Xid(9)));
        assert!(decode_reply(&value[..12]).is_err());
        assert!(decode_reply_key(&key[1..]).is_err());
        assert!([&[][..], &[1], &old[1..], &[2]].into_iter().all(|value| SessionRecord::decode(value).is_err()));
    }
}
