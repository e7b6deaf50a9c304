//! How much the requests of one connection may take between their arrival and the sending of their
//! replies.
//!
//! Their number is bounded, above what a client that follows the protocol ever has. The memory of
//! large ones is bounded too: a request is admitted when there is memory for itself and for the
//! largest reply it may get. So a client that requests more than it reads is no longer read from,
//! and occupies at most [`BYTES_MAX`], the memory of small requests, and the transport's queue
//! ([`rt::transport::QUEUED_BYTES_MAX`]).
//!
//! A client counts the same ([`memory_of`]) and sends nothing for which there is no memory, so a
//! client that follows the protocol is always read from: what it sends after a large request, for
//! example the release of a lock, is never left unread because of it. Urgent requests have a budget
//! of their own on both sides, so they do not wait for memory that requests hold which may wait for
//! them.
//!
//! 1. The client's share of a request ends when its answer arrives, the server's when the answer
//!    has been passed to the transport: the server has memory when the client believes that it has.
//! 2. A copy of a request in progress takes no memory; the client holds one share for both.
//! 3. A client that sends more waits for itself only. Small requests need none of it, and requests
//!    that take or release locks are small (a test here lists them); other handlers wait for their
//!    own devices and for earlier requests, and for anything else only for a bounded time, see
//!    [`crate::Handler::handle`]. So the wait ends as long as the client reads replies.
//! 4. Credits do not run out for a client that follows the protocol: each slot has one request in
//!    progress, and a copy of it is answered before the next frame is read.
//!
//! Downside: the largest size of a reply is declared by the kind of request
//! ([`crate::message::kind`]), not by the code that makes it. An ordinary request after a
//! large one is delayed by all that is before it; a client that needs low latency should share its
//! connection with less traffic. Urgent ones pass what is queued ([`rt::transport`]).

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::limits::{BODY_BYTES_MAX, BULK_BYTES_MAX, COMPOUND_REPLY_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use crate::message::{Request, kind::ReplySize};

/// Memory of all large requests of a connection: eight of the largest reads. A client sends no
/// more.
pub const BYTES_MAX: usize = 32 << 20;
/// The same of urgent requests.
pub const URGENT_BYTES_MAX: usize = 16 << 20;
/// Requests in work per slot of the session: one, and a copy.
const CREDITS_PER_SLOT: usize = 2;
/// Up to so many bytes, with its reply, a request is small.
const SMALL_BYTES: usize = 4096;
/// Beside the data of a read: checksums of up to five bytes per block.
const READ_BODY_BYTES: usize = 8192;

const _: () = assert!(2 * (BODY_BYTES_MAX + BULK_BYTES_MAX) <= URGENT_BYTES_MAX, "the largest request and reply fit");
const _: () = assert!(URGENT_BYTES_MAX <= BYTES_MAX, "most requests are not urgent");

/// See the module documentation.
pub(super) struct Budget {
    credits: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

/// One request's part of the budget; given back when dropped.
pub(super) struct Share {
    _credit: OwnedSemaphorePermit,
    memory: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// Of requests in so many slots, with so much memory.
    pub fn new(slots: u16, bytes: usize) -> Self {
        let credits = Semaphore::new(CREDITS_PER_SLOT * usize::from(slots));
        Self { credits: Arc::new(credits), memory: Arc::new(Semaphore::new(bytes)) }
    }

    /// Waits until there is memory for a request of so many bytes ([`memory_of`]).
    pub async fn admit(&self, bytes: u32) -> Share {
        let credit = self.credits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let memory = match bytes {
            0 => None,
            bytes => Some(self.memory.clone().acquire_many_owned(bytes).await.expect("the semaphore is never closed")),
        };
        Share { _credit: credit, memory }
    }
}

/// Memory that a request takes until it is answered, which arrives in so many bytes; 0: it is
/// small.
pub(crate) fn memory_of(request: &Request, request_bytes: usize) -> u32 {
    let bytes = request_bytes + reply_bytes_max(request);
    if bytes > SMALL_BYTES { bytes as u32 } else { 0 }
}

impl Share {
    /// The request is gone, and its reply takes this much.
    pub fn shrink_to(&mut self, reply_bytes: usize) {
        if let Some(memory) = &mut self.memory {
            let surplus = memory.num_permits().saturating_sub(reply_bytes);
            drop(memory.split(surplus));
        }
    }
}

/// The largest size of a reply, for replies that are not always small.
fn reply_bytes_max(request: &Request) -> usize {
    match request.row().reply {
        ReplySize::Small => 0,
        ReplySize::Xattr => XATTR_VALUE_BYTES_MAX,
        ReplySize::Body => BODY_BYTES_MAX,
        ReplySize::Data(bytes) => READ_BODY_BYTES + bulk_bytes(bytes),
        ReplySize::Compound(bytes) => COMPOUND_REPLY_BYTES_MAX + bulk_bytes(bytes),
    }
}

/// More than the limit is never sent.
fn bulk_bytes(asked: u32) -> usize {
    (asked as usize).min(BULK_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use layout::{ComponentId, Extent};
    use types::{
        Credentials, Generation, InodeNumber, LockHandle, ObjectId, Timestamp,
        limits::{ACCESSES_PER_MESSAGE_MAX, LOCKS_PER_MESSAGE_MAX, OPENS_PER_MESSAGE_MAX},
    };

    use super::*;
    use crate::{
        codec,
        message::{
            LeaveFullOst, LeaveStep, MdtRequest, OstRequest, RequestExtension,
            mdt::{
                Access, CancelLock, Close, DataVersion, ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, Instantiate,
                LockFamily, LockMode, LockRange, Open, OpenFlags, OpenId, RegisterOpens, SetLock, SizeUpdate,
                SwapLayouts, SwapSide, WaitTicket,
            },
            ost::Read,
        },
    };

    fn admit(budget: &Budget, request: &Request) -> Option<Share> {
        let mut admission = std::pin::pin!(budget.admit(memory_of(request, 100)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match admission.as_mut().poll(&mut context) {
            std::task::Poll::Ready(share) => Some(share),
            std::task::Poll::Pending => None,
        }
    }

    fn read(bytes: u32) -> Request {
        let object = ObjectId::new(InodeNumber(1), 0);
        Request::Ost(OstRequest::Read(Read { object, offset: 0, bytes, layout_generation: 0 }))
    }

    #[test]
    fn large_requests_wait_for_memory_and_small_ones_do_not() {
        let budget = Budget::new(256, BYTES_MAX);
        let mut held: Vec<Share> = std::iter::from_fn(|| admit(&budget, &read(u32::MAX))).collect();
        assert_eq!(held.len(), BYTES_MAX / (BULK_BYTES_MAX + READ_BODY_BYTES + 100));
        let small = Request::Mdt(MdtRequest::Ping);
        held.extend(admit(&budget, &small));
        assert_eq!(held.len(), 8, "it did not wait");
        held[0].shrink_to(1000);
        let next = admit(&budget, &read(u32::MAX));
        assert!(next.is_some(), "a short reply gave memory back");
        held.clear();
        drop(next);
        assert_eq!(budget.memory.available_permits(), BYTES_MAX);
    }

    /// Else one that waits for a lock could hold the memory that what is read before its release
    /// waits for.
    #[test]
    fn what_takes_part_in_locks_never_holds_memory() {
        let (inode, open, generation) = (InodeNumber(u64::MAX), OpenId(u64::MAX), Generation(u64::MAX));
        let (owner, family, mode) = (u64::MAX, LockFamily::Posix, LockMode::Exclusive);
        let (range, ticket) = (LockRange { start: 0, end: u64::MAX }, Some(WaitTicket(u64::MAX)));
        let known = SizeUpdate {
            epoch: u64::MAX,
            size: u64::MAX,
            blocks: u64::MAX,
            mtime: Some(Timestamp::default()),
            changes: u64::MAX,
        };
        // As many groups as most systems let a user have.
        let who = || Credentials { groups: Some(vec![u32::MAX; 512]), ..Credentials::root() };
        let side = SwapSide { inode, open: Some(open), known };
        let time = Timestamp { seconds: i64::MIN, nanoseconds: u32::MAX };
        let access = Access { inode, lock: LockHandle(u64::MAX), time };
        let purpose = ExclusivePurpose::Truncate(u64::MAX);
        let requests = [
            MdtRequest::SetLock(SetLock { inode, family, owner, pid: u32::MAX, range, mode, ticket }),
            MdtRequest::CancelLock(CancelLock { inode, family, ticket: WaitTicket(u64::MAX) }),
            MdtRequest::ExclusiveBegin(who(), ExclusiveBegin { inode, open: Some(open), purpose }),
            MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update: Some(known) }),
            MdtRequest::Open(who(), Open { inode, open, flags: OpenFlags(u32::MAX) }),
            MdtRequest::Close(Close { inode, open, update: Some(known), flock_owner: Some(owner) }),
            MdtRequest::Instantiate(Instantiate { inode, open, start: 0, end: u64::MAX }),
            MdtRequest::DataVersion(who(), DataVersion { inode, hold_writers: Some(open) }),
            MdtRequest::SwapLayouts(who(), SwapLayouts { first: side, second: side }),
            MdtRequest::LeaveFullOst(LeaveFullOst {
                inode,
                open,
                generation,
                step: LeaveStep::LeaveOut(ComponentId(u32::MAX), Extent { start: 0, end: u64::MAX }),
            }),
            MdtRequest::CancelLocks(vec![LockHandle(u64::MAX); LOCKS_PER_MESSAGE_MAX]),
            MdtRequest::RegisterOpens(RegisterOpens {
                opens: vec![(inode, open, OpenFlags(u32::MAX)); OPENS_PER_MESSAGE_MAX],
                complete: true,
            }),
            MdtRequest::NoteAccesses(vec![access; ACCESSES_PER_MESSAGE_MAX]),
            MdtRequest::Ping,
            MdtRequest::Disconnect,
        ];
        for request in requests.map(Request::Mdt) {
            let bytes = codec::encode_request(&RequestExtension::default(), &request).unwrap().bytes.len()
                + reply_bytes_max(&request);
            assert!(bytes <= SMALL_BYTES, "{bytes} bytes: {request:?}");
        }
    }

    #[test]
    fn copies_of_small_requests_are_bounded_too() {
        let budget = Budget::new(2, BYTES_MAX);
        let small = Request::Mdt(MdtRequest::Ping);
        let held: Vec<Share> = std::iter::from_fn(|| admit(&budget, &small)).collect();
        assert_eq!(held.len(), 4);
    }
}
