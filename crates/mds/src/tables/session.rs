//! SESSIONS and REPLIES: the clients that may come back after a restart, and the replies to their
//! last mutations.
//!
//! | table | key | value |
//! |---|---|---|
//! | SESSIONS | client (8) | version 2 (1), time of opening (12), the MDT's process if the client runs in it (8), else 0 |
//! | REPLIES | client (8), slot (2) | see [`rpc::stored_reply`] |
//!
use types::{
    ClientId, FsResult, Timestamp,
    record::{RecordReader, RecordWriter},
};

use crate::options::ProcessId;

const SESSION_VERSION: u8 = 2;

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
        RecordWriter::new(SESSION_VERSION).time(self.opened).u64(process).finish()
    }

    /// The record of a value.
    pub fn decode(value: &[u8]) -> FsResult<Self> {
        const WHAT: &str = "session";
        let mut reader = RecordReader::new(WHAT, value, SESSION_VERSION)?;
        let (opened, process) = (reader.time()?, reader.u64()?);
        reader.finish()?;
        Ok(Self { opened, process: ProcessId::new(process) })
    }
}

/// The key of a session.
pub fn session_key(client: ClientId) -> Vec<u8> {
    client.0.to_be_bytes().to_vec()
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
        let old = RecordWriter::new(1).time(opened).finish();
        assert!([&[][..], &[1], &old, &[2]].into_iter().all(|value| SessionRecord::decode(value).is_err()));
    }
}
