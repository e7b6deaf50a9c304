//! What the requests of one connection may take between their arrival and the sending of their replies.
//!
//! Their number is bounded, by more than a client that keeps to the protocol ever has; and so is the memory of those that
//! need much: a request is let in when there is room for itself and for the largest reply it may get. So a client that asks
//! for more than it reads stops being read from, and holds no more than [`BYTES_MAX`], what small requests take, and the
//! transport's queue ([`rt::transport::QUEUED_BYTES_MAX`]).
//!
//! Small requests pass without: a client can always give a lock back or say that it lives, as long as it is read from.
//!
//! Downside: what a reply may take is declared here by kind of request, not by who makes it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::limits::{BODY_BYTES_MAX, BULK_BYTES_MAX, XATTR_VALUE_BYTES_MAX};

use crate::message::{MdtRequest, MgsRequest, OstRequest, Request, mdt::ReadFile};

/// Memory of all large requests: eight of the largest reads.
pub const BYTES_MAX: usize = 32 << 20;
/// Requests in work per slot of the session: one, and a copy.
const CREDITS_PER_SLOT: usize = 2;
/// Up to so many bytes, with its reply, a request is small.
const SMALL_BYTES: usize = 4096;
/// Beside the data of a read: checksums of up to five bytes per block.
const READ_BODY_BYTES: usize = 8192;

const _: () = assert!(2 * (BODY_BYTES_MAX + BULK_BYTES_MAX) <= BYTES_MAX, "the largest request and reply fit");

/// See the module documentation.
pub(super) struct Budget {
    credits: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

/// One request's part of the budget; given back when dropped.
pub(super) struct Share {
    _credit: OwnedSemaphorePermit,
    room: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// Of a connection whose session has so many slots.
    pub fn new(slots: u16) -> Self {
        let credits = Semaphore::new(CREDITS_PER_SLOT * usize::from(slots));
        Self { credits: Arc::new(credits), room: Arc::new(Semaphore::new(BYTES_MAX)) }
    }

    /// Waits until there is room for a request that arrived in so many bytes.
    pub async fn admit(&self, request: &Request, request_bytes: usize) -> Share {
        let credit = self.credits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let bytes = request_bytes + reply_bytes_max(request);
        let room = match u32::try_from(bytes) {
            Ok(bytes) if bytes as usize > SMALL_BYTES => {
                Some(self.room.clone().acquire_many_owned(bytes).await.expect("the semaphore is never closed"))
            }
            _ => None,
        };
        Share { _credit: credit, room }
    }
}

impl Share {
    /// The request is gone, and its reply takes this much.
    pub fn shrink_to(&mut self, reply_bytes: usize) {
        if let Some(room) = &mut self.room {
            let surplus = room.num_permits().saturating_sub(reply_bytes);
            drop(room.split(surplus));
        }
    }
}

/// The most a reply can take, for those that are not small whoever asks.
fn reply_bytes_max(request: &Request) -> usize {
    match request {
        Request::Ost(request) | Request::Mdt(MdtRequest::ReadData(request)) => match request {
            OstRequest::Read(read) => READ_BODY_BYTES + bulk_bytes(read.bytes),
            OstRequest::ListObjects(..) | OstRequest::Glimpse(_) => BODY_BYTES_MAX,
            _ => 0,
        },
        Request::Mdt(request) => match request {
            MdtRequest::ReadFile(_, ReadFile { bytes_max, .. }) => READ_BODY_BYTES + bulk_bytes(*bytes_max),
            MdtRequest::ReadDirectory(_)
            | MdtRequest::ScanInodes(..)
            | MdtRequest::Check(..)
            | MdtRequest::InodePaths(..) => BODY_BYTES_MAX,
            MdtRequest::GetXattr(..) | MdtRequest::ListXattr(..) => XATTR_VALUE_BYTES_MAX,
            _ => 0,
        },
        Request::Mgs(MgsRequest::GetMap(..)) => BODY_BYTES_MAX,
        Request::Mgs(_) => 0,
    }
}

/// More than the limit is never sent.
fn bulk_bytes(asked: u32) -> usize {
    (asked as usize).min(BULK_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use types::{InodeNumber, ObjectId};

    use super::*;
    use crate::message::ost::Read;

    fn admit(budget: &Budget, request: &Request) -> Option<Share> {
        let mut admission = std::pin::pin!(budget.admit(request, 100));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match admission.as_mut().poll(&mut context) {
            std::task::Poll::Ready(share) => Some(share),
            std::task::Poll::Pending => None,
        }
    }

    fn read(bytes: u32) -> Request {
        let object = ObjectId { inode: InodeNumber(1), slot: 0 };
        Request::Ost(OstRequest::Read(Read { object, offset: 0, bytes, layout_generation: 0 }))
    }

    #[test]
    fn large_requests_wait_for_room_and_small_ones_do_not() {
        let budget = Budget::new(256);
        let mut held: Vec<Share> = std::iter::from_fn(|| admit(&budget, &read(u32::MAX))).collect();
        assert_eq!(held.len(), BYTES_MAX / (BULK_BYTES_MAX + READ_BODY_BYTES + 100));
        let small = Request::Mdt(MdtRequest::Ping);
        held.extend(admit(&budget, &small));
        assert_eq!(held.len(), 8, "it did not wait");
        held[0].shrink_to(1000);
        let next = admit(&budget, &read(u32::MAX));
        assert!(next.is_some(), "a short reply gave room back");
        held.clear();
        drop(next);
        assert_eq!(budget.room.available_permits(), BYTES_MAX);
    }

    #[test]
    fn copies_of_small_requests_are_bounded_too() {
        let budget = Budget::new(2);
        let small = Request::Mdt(MdtRequest::Ping);
        let held: Vec<Share> = std::iter::from_fn(|| admit(&budget, &small)).collect();
        assert_eq!(held.len(), 4);
    }
}
