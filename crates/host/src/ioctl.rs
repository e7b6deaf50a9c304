//! The control channel: one ioctl that carries [`ControlRequest`]s of tools into a mount and
//! [`ControlReply`]s back.
//!
//! FUSE passes on ioctls of unprivileged file systems only if their number says how many bytes are
//! passed in and out, so the argument is a page of fixed size. On a file of another file system the
//! ioctl fails with ENOTTY.
//!
//! ```text
//! offset bytes  request                            reply
//!      0     4  magic "SFIO"                       the same
//!      4     2  version, 2 (1: plain postcard)     the same
//!      6     2  0                                  0
//!      8     8  ticket: 0 a new request,           ticket under which the rest can be fetched; 0: this is all
//!               else fetch on with it
//!     16     4  offset within the reply            bytes of the whole reply
//!     20     4  bytes of the request               bytes of the reply in this page
//!     24   8168 request, as on the wire            reply from the offset on, likewise
//! ```
//! Requests and replies are encoded like messages on the wire (`rpc::codec`): structs can grow, so
//! tools of one version understand mounts of another, which keep running while a package is
//! upgraded. Integers are in the host's byte order: the page never leaves it. A reply longer than a
//! page is kept at the mount and fetched page by page with its ticket, only by the same user. So a
//! request is executed once however long its reply is. Downside: if a caller dies between two
//! pages, its reply is kept until there are [`PENDING_MAX`] newer ones.
//!
//! The mount's side is [`PendingReplies`], the tools' side [`call`].

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd},
};

use bytes::Bytes;
use parking_lot::Mutex;
use rpc::codec;
use rpc::message::control::{ControlReply, ControlRequest};
use types::{FsError, FsResult, ProtocolError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the argument, in both directions. The number of an ioctl leaves 14 bits for it.
pub const PAGE_BYTES: usize = 8192;
/// Number of the ioctl: `_IOWR('S', 0x17, char[8192])`.
pub const STRIA_IOC_CALL: u32 = (3 << 30) | ((PAGE_BYTES as u32) << 16) | ((b'S' as u32) << 8) | 0x17;
/// Most bytes of a request or reply in one page.
pub const PAYLOAD_BYTES_MAX: usize = PAGE_BYTES - size_of::<Head>();
/// Largest reply, in bytes: status of as many targets as a file system can have, several times
/// over.
pub const REPLY_BYTES_MAX: usize = 32 << 20;
/// Long replies kept at a mount for callers that have not fetched them to the end.
pub const PENDING_MAX: usize = 16;

const MAGIC: [u8; 4] = *b"SFIO";
const VERSION: u16 = 2;

const _: () = assert!(PAGE_BYTES < 1 << 14, "the size fits the ioctl's number");

/// Head of a page. `position` is an offset in requests and the total length in replies.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: u16,
    reserved: u16,
    ticket: u64,
    position: u32,
    bytes: u32,
}

impl Head {
    fn new(ticket: u64, position: usize, bytes: usize) -> Self {
        Self { magic: MAGIC, version: VERSION, reserved: 0, ticket, position: position as u32, bytes: bytes as u32 }
    }

    /// The head of a page and what it carries.
    fn parse(page: &[u8]) -> FsResult<(Head, &[u8])> {
        let (head, rest) = Head::read_from_prefix(page).map_err(|_| FsError::Invalid)?;
        if head.magic != MAGIC {
            return Err(FsError::Invalid);
        }
        if head.version != VERSION {
            return Err(ProtocolError::ControlVersion { found: head.version, expected: VERSION }.into());
        }
        let payload = rest.get(..head.bytes as usize).ok_or(FsError::Invalid)?;
        Ok((head, payload))
    }
}

/// The mount's side: executes requests and keeps replies that are longer than a page.
#[derive(Default)]
pub struct PendingReplies {
    state: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    last_ticket: u64,
    replies: VecDeque<PendingReply>,
}

struct PendingReply {
    ticket: u64,
    uid: u32,
    bytes: Bytes,
}

impl PendingReplies {
    /// Answers one page of `uid`. `execute` runs new requests. `Invalid`: not such a page.
    /// `Protocol`: another version, or a request of a newer tool. `Stale`: the rest of this reply
    /// is no longer kept.
    pub async fn serve<F>(&self, uid: u32, page: &[u8], execute: impl FnOnce(ControlRequest) -> F) -> FsResult<Vec<u8>>
    where
        F: Future<Output = FsResult<ControlReply>>,
    {
        let (head, payload) = Head::parse(page)?;
        if head.ticket != 0 {
            return self.fetch(uid, head.ticket, head.position as usize);
        }
        let unknown = |error| ProtocolError::Codec(format!("control request: {error}"));
        let request = codec::decode(payload).map_err(unknown)?;
        let reply = execute(request).await?;
        let unsendable = |error| ProtocolError::Codec(format!("control reply: {error}"));
        let reply = codec::encode(&reply).map_err(unsendable)?;
        if reply.len() > REPLY_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        if reply.len() <= PAYLOAD_BYTES_MAX {
            return Ok(reply_page(0, &reply, 0));
        }
        let ticket = self.keep(uid, reply.clone());
        Ok(reply_page(ticket, &reply, 0))
    }

    fn keep(&self, uid: u32, bytes: Bytes) -> u64 {
        let mut pending = self.state.lock();
        pending.last_ticket += 1;
        let ticket = pending.last_ticket;
        if pending.replies.len() == PENDING_MAX {
            pending.replies.pop_front();
        }
        pending.replies.push_back(PendingReply { ticket, uid, bytes });
        ticket
    }

    fn fetch(&self, uid: u32, ticket: u64, offset: usize) -> FsResult<Vec<u8>> {
        let mut pending = self.state.lock();
        let found = pending.replies.iter().position(|reply| reply.ticket == ticket && reply.uid == uid);
        let index = found.ok_or(FsError::Stale)?;
        let bytes = pending.replies[index].bytes.clone();
        if offset >= bytes.len() {
            return Err(FsError::Invalid);
        }
        if bytes.len() - offset <= PAYLOAD_BYTES_MAX {
            pending.replies.remove(index);
        }
        Ok(reply_page(ticket, &bytes, offset))
    }
}

/// The page of a reply that begins at `offset`.
fn reply_page(ticket: u64, reply: &[u8], offset: usize) -> Vec<u8> {
    let rest = &reply[offset..];
    let payload = &rest[..rest.len().min(PAYLOAD_BYTES_MAX)];
    [Head::new(ticket, reply.len(), payload.len()).as_bytes(), payload].concat()
}

/// Asks the mount that contains `file` (an open file or directory). Fails with ENOTTY if that is
/// another file system.
pub fn call(file: impl AsFd, request: &ControlRequest) -> io::Result<ControlReply> {
    let file = file.as_fd();
    call_through(request, |page| {
        // SAFETY: the number says that the kernel reads and writes PAGE_BYTES at the pointer, which
        // is the size of the array after it; the descriptor is borrowed for the call.
        let result = unsafe {
            libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(STRIA_IOC_CALL) as libc::Ioctl, page.as_mut_ptr())
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    })
}

/// [`call`] over any way to exchange a page.
fn call_through(
    request: &ControlRequest,
    mut exchange: impl FnMut(&mut [u8; PAGE_BYTES]) -> io::Result<()>,
) -> io::Result<ControlReply> {
    let payload = codec::encode(request).map_err(io::Error::other)?;
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(io::ErrorKind::ArgumentListTooLong.into());
    }
    let mut reply = Vec::new();
    let (mut head, mut payload) = (Head::new(0, 0, payload.len()), Vec::from(payload));
    loop {
        let mut page = [0; PAGE_BYTES];
        page[..size_of::<Head>()].copy_from_slice(head.as_bytes());
        page[size_of::<Head>()..][..payload.len()].copy_from_slice(&payload);
        exchange(&mut page)?;
        let (answer, part) = Head::parse(&page).map_err(|error| invalid(&error.to_string()))?;
        reply.extend_from_slice(part);
        let total = answer.position as usize;
        if reply.len() == total {
            return codec::decode(&reply).map_err(|error| invalid(&error.to_string()));
        }
        if part.is_empty() || answer.ticket == 0 || reply.len() > total {
            return Err(invalid("the lengths contradict each other"));
        }
        payload.clear();
        head = Head::new(answer.ticket, reply.len(), 0);
    }
}

fn invalid(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("reply of the control channel: {detail}"))
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use proptest::prelude::*;
    use rpc::message::{mgs::TargetRole, ost::TargetCondition};
    use types::InodeNumber;

    use super::*;

    fn serve(replies: &PendingReplies, uid: u32, page: &[u8], reply: ControlReply) -> FsResult<Vec<u8>> {
        let mut work = pin!(replies.serve(uid, page, |_| async { Ok(reply) }));
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("nothing to wait for"),
        }
    }

    /// A call of `uid` against a mount that answers `reply`; also returns how many pages it took.
    fn round_trip(replies: &PendingReplies, reply: &ControlReply) -> (io::Result<ControlReply>, usize) {
        let mut pages = 0;
        let result = call_through(&ControlRequest::Name, |page| {
            pages += 1;
            let answer = serve(replies, 5, page, reply.clone()).map_err(io::Error::other)?;
            page[..answer.len()].copy_from_slice(&answer);
            Ok(())
        });
        (result, pages)
    }

    #[test]
    fn the_number_is_what_c_says() {
        assert_eq!(STRIA_IOC_CALL, 0xe000_5317);
    }

    #[test]
    fn short_replies_take_one_page_and_long_ones_several() {
        let replies = PendingReplies::default();
        let path = vec![b'p'; 1000];
        for (count, pages_expected) in [(0, 1), (1, 1), (8, 1), (9, 2), (100, 13)] {
            let reply = ControlReply::Paths(vec![path.clone(); count]);
            let (result, pages) = round_trip(&replies, &reply);
            assert_eq!(result.unwrap(), reply);
            assert_eq!(pages, pages_expected, "{count} paths");
            assert!(replies.state.lock().replies.is_empty(), "fetched replies are not kept");
        }
    }

    #[test]
    fn the_rest_of_a_reply_belongs_to_its_user_and_is_kept_for_a_while() {
        let replies = PendingReplies::default();
        let long = ControlReply::Paths(vec![vec![b'p'; 5000]; 4]);
        let payload = codec::encode(&ControlRequest::Name).unwrap();
        let request = [Head::new(0, 0, payload.len()).as_bytes(), &payload].concat();
        let first = serve(&replies, 5, &request, long.clone()).unwrap();
        let (head, _) = Head::parse(&first).unwrap();
        let next = Head::new(head.ticket, PAYLOAD_BYTES_MAX, 0);
        assert_eq!(serve(&replies, 6, next.as_bytes(), ControlReply::Done), Err(FsError::Stale));
        assert!(serve(&replies, 5, next.as_bytes(), ControlReply::Done).is_ok());
        let beyond = Head::new(head.ticket, 1 << 30, 0);
        assert_eq!(serve(&replies, 5, beyond.as_bytes(), ControlReply::Done), Err(FsError::Invalid));
        for _ in 0..PENDING_MAX {
            serve(&replies, 5, &request, long.clone()).unwrap();
        }
        assert_eq!(serve(&replies, 5, next.as_bytes(), ControlReply::Done), Err(FsError::Stale));
        assert_eq!(replies.state.lock().replies.len(), PENDING_MAX);
    }

    /// Tools and mounts of one host need not be of one version: a package is upgraded below its
    /// mounts.
    #[test]
    fn replies_of_a_mount_that_knows_fewer_fields_are_understood() {
        /// `SpaceUsage` before targets told their devices.
        #[derive(serde::Serialize)]
        struct OlderSpace {
            bytes_total: u64,
            bytes_free: u64,
            bytes_available: u64,
            inodes_total: u64,
            inodes_free: u64,
        }
        #[derive(serde::Serialize)]
        struct OlderStatus {
            role: TargetRole,
            uuid: String,
            address: String,
            active: bool,
            connected: bool,
            condition: TargetCondition,
            space: Option<OlderSpace>,
        }
        let status = |index: u16| OlderStatus {
            role: TargetRole::Ost(types::OstIndex(index)),
            uuid: format!("{index}_UUID"),
            address: "10.0.0.1:988".to_owned(),
            active: true,
            connected: true,
            condition: TargetCondition::default(),
            space: Some(OlderSpace {
                bytes_total: 7,
                bytes_free: 6,
                bytes_available: 5,
                inodes_total: 4,
                inodes_free: 3,
            }),
        };
        // The number of the variant, then what it has.
        let number = codec::encode(&ControlReply::Targets(Vec::new())).unwrap()[0];
        let reply = [&[number][..], &codec::encode(&vec![status(0), status(1)]).unwrap()].concat();
        let understood = call_through(&ControlRequest::Name, |page| {
            let answer = reply_page(0, &reply, 0);
            page[..answer.len()].copy_from_slice(&answer);
            Ok(())
        });
        let ControlReply::Targets(targets) = understood.unwrap() else { panic!("another reply") };
        let spaces: Vec<_> = targets.iter().map(|target| target.space.unwrap()).collect();
        assert!(spaces.iter().all(|space| space.bytes_total == 7 && space.inodes_free == 3 && space.device.is_none()));
        assert_eq!(targets[1].uuid, "1_UUID");
    }

    #[test]
    fn foreign_pages_are_refused_by_cause() {
        let replies = PendingReplies::default();
        let refused = |page: &[u8]| serve(&replies, 5, page, ControlReply::Done).unwrap_err();
        assert_eq!(refused(&[0; PAGE_BYTES]), FsError::Invalid);
        assert_eq!(refused(b"SFIO"), FsError::Invalid);
        let newer = Head { version: VERSION + 1, ..Head::new(0, 0, 0) };
        assert!(matches!(refused(newer.as_bytes()), FsError::Protocol(_)));
        assert_eq!(refused(Head::new(0, 0, 1).as_bytes()), FsError::Invalid);
        assert!(matches!(refused(Head::new(0, 0, 0).as_bytes()), FsError::Protocol(_)));
    }

    #[test]
    fn a_file_elsewhere_is_not_a_terminal() {
        let file = tempfile::tempfile().unwrap();
        let error = call(&file, &ControlRequest::Name).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    proptest! {
        #[test]
        fn random_pages_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..100), ticket in 0_u64..3) {
            let replies = PendingReplies::default();
            let page = [Head::new(ticket, 7, tail.len()).as_bytes(), &tail].concat();
            let _ = serve(&replies, 5, &page, ControlReply::Inode(InodeNumber(1)));
        }
    }
}
