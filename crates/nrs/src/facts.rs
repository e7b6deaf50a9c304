//! What policies know of requests.

use std::sync::Arc;

use types::{ClientId, JobName, ObjectId};

/// What policies may know of a request. Nothing in it is allocated for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The client that sent it.
    pub client: ClientId,
    /// The client's address, as `192.168.0.1@tcp`; `0@lo` in the same process.
    pub nid: Arc<str>,
    /// The job that it belongs to.
    pub job: JobName,
    /// The user for whom the client asks.
    pub uid: u32,
    /// The group for which the client asks.
    pub gid: u32,
    /// The project of the file whose data it reads or changes; 0: none.
    pub project: u32,
    /// Its kind, such as `ost_write`.
    pub opcode: &'static str,
    /// Number of its target in this process.
    pub target: u32,
    /// The data it reads or writes.
    pub data: Option<DataRange>,
}

/// Where a request reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRange {
    /// The object.
    pub object: ObjectId,
    /// First byte within the object.
    pub offset: u64,
    /// Whether they are read or written.
    pub direction: Direction,
}

/// Whether data are read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Read.
    Read,
    /// Written.
    Write,
}

/// A request in a queue.
#[derive(Debug)]
pub struct Entry<T> {
    /// Its number: requests are numbered in order of arrival.
    pub ticket: u64,
    /// No policy may hold it back: it is in the fallback, whatever the policy.
    pub is_free: bool,
    /// What is known of it.
    pub facts: Facts,
    /// What waits in its name.
    pub waiter: T,
}
