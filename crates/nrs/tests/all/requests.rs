//! Requests for tests, and queues driven with them.

use std::sync::Arc;

use nrs::{ClassBy, DataRange, Direction, Entry, Facts, Field, PolicyName, Scheduled, Scheduler, Selection};
use types::{ClientId, InodeNumber, JobName, ObjectId};

/// Every policy, tbf with every way to tell classes apart.
pub fn all_selections() -> Vec<Selection> {
    let single = Field::ALL.map(ClassBy::of);
    let several = ["nid+jobid", "jobid+opcode+uid"].map(|fields| ClassBy::parse(fields).unwrap());
    let tbf = single.into_iter().chain(several).map(|class_by| Selection { name: PolicyName::Tbf, class_by });
    PolicyName::ALL.map(Selection::of).into_iter().chain(tbf).collect()
}

/// A write.
pub fn write(client: u64, object: u64, offset: u64) -> Facts {
    Facts {
        client: ClientId(client),
        nid: Arc::from(format!("10.0.0.{client}@tcp")),
        job: JobName::new(&format!("dd.{client}")),
        uid: client as u32,
        gid: 100,
        project: object as u32,
        opcode: "ost_write",
        target: (object % 2) as u32,
        data: Some(DataRange { object: object_id(object), offset, direction: Direction::Write }),
    }
}

/// A request that is not for data.
pub fn statfs(client: u64) -> Facts {
    Facts { opcode: "ost_statfs", data: None, ..write(client, 0, 0) }
}

pub fn object_id(object: u64) -> ObjectId {
    ObjectId::new(InodeNumber(object), 0)
}

/// A queue with this policy.
pub fn queue(policy: &str) -> Scheduler<()> {
    let mut queue = Scheduler::default();
    queue.select(0, policy.parse().unwrap(), 7);
    queue
}

/// The next request, which must not be held back.
pub fn next(queue: &mut Scheduler<()>, now_ns: u64) -> Entry<()> {
    match queue.pop(now_ns) {
        Scheduled::Request(_, entry) => entry,
        other => panic!("{other:?}"),
    }
}

/// Tickets in the order in which they come out at this moment.
pub fn tickets(queue: &mut Scheduler<()>, now_ns: u64) -> Vec<u64> {
    let next = || match queue.pop(now_ns) {
        Scheduled::Request(_, entry) => Some(entry.ticket),
        Scheduled::NotBefore(_) | Scheduled::Nothing => None,
    };
    std::iter::from_fn(next).collect()
}
