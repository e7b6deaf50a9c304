//! What is sent along with a message: facts about a request or a reply that do not depend on its
//! kind.
//!
//! An empty extension takes no bytes. Any other is encoded as a struct with named fields, so it
//! grows as messages do; it is in the same frame, before the message, and under the same checksum.

use serde::{Deserialize, Serialize};
use types::{FileKind, InodeNumber, LockHandle, Lsn, MdtIndex, Timestamp};

use super::{
    lock::{Enqueue, Granted},
    mdt::{Close, Entry},
    ost::ReadDone,
};

/// The extension of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestExtension {
    /// The user and group for whom the client asks: for schedulers and accounts, not for
    /// permission.
    pub uid: u32,
    /// See `uid`.
    pub gid: u32,
    /// Name of the job it belongs to, at most [`JOB_NAME_BYTES_MAX`] printable bytes; empty: none.
    ///
    /// [`JOB_NAME_BYTES_MAX`]: types::limits::JOB_NAME_BYTES_MAX
    pub job: String,
    /// The lock under which data are read or written.
    #[serde(default)]
    pub lock: Option<LockHandle>,
    /// A lock that the client would like to have with the reply.
    #[serde(default)]
    pub wanted: Option<Enqueue>,
    /// Locks that the client gives back.
    #[serde(default)]
    pub cancels: Vec<LockHandle>,
    /// What the client says of space it was granted.
    #[serde(default)]
    pub space: Option<SpaceReport>,
    /// A change that the target acknowledged before it lost power: it is made again, with the same
    /// outcome. With [`frame_flag::REPLAY`](super::session::frame_flag::REPLAY).
    #[serde(default)]
    pub replay: Option<Change>,
    /// The place of a request among those of one MDT to this target, so that it is applied once
    /// across restarts of either.
    #[serde(default)]
    pub sequence: Option<Sequence>,
    /// Opens that end before the request is executed, at most [`CLOSES_PER_MESSAGE_MAX`]; none of
    /// them ends a lock. With [`CLOSES_BESIDE`](super::session::feature::CLOSES_BESIDE).
    ///
    /// [`CLOSES_PER_MESSAGE_MAX`]: types::limits::CLOSES_PER_MESSAGE_MAX
    #[serde(default)]
    pub closes: Vec<Close>,
    /// The project of the file whose data are read or changed, as the client knows it: for
    /// schedulers; 0: none.
    #[serde(default)]
    pub project: u32,
}

/// The extension of a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyExtension {
    /// What the request changed.
    pub change: Option<Change>,
    /// Every change of this target up to this one survives a power loss.
    pub committed: Lsn,
    /// Locks that the client holds from now on.
    #[serde(default)]
    pub granted: Vec<Granted>,
    /// Bytes of data that the client may cache and be sure to write: added to what it had.
    #[serde(default)]
    pub space: u64,
    /// Inodes that the request changed and that the reply does not show, as they are after the
    /// change: those of which the client has the lock on attributes, and which are known to this
    /// target. A reply that is repeated shows none. At most [`VERSIONS_PER_CHANGE_MAX`].
    ///
    /// [`VERSIONS_PER_CHANGE_MAX`]: types::limits::VERSIONS_PER_CHANGE_MAX
    #[serde(default)]
    pub changed: Vec<Entry>,
    /// The bulk data are all bytes of the file's object on this MDT, at most
    /// [`SMALL_FILE_BYTES_MAX`]; the client has the lock on them. A reply that is repeated brings
    /// none.
    ///
    /// [`SMALL_FILE_BYTES_MAX`]: types::limits::SMALL_FILE_BYTES_MAX
    #[serde(default)]
    pub data: Option<ReadDone>,
    /// The open that was asked for with [`UNREGISTERED`](super::mdt::open_flag::UNREGISTERED) is
    /// granted and not registered. A reply that is repeated says so, too, without the lock.
    #[serde(default)]
    pub unregistered: bool,
    /// Names that the request changed, in order, in directories on whose names and attributes the
    /// client has locks. If they are more than [`NAMES_PER_CHANGE_MAX`], none is told.
    ///
    /// [`NAMES_PER_CHANGE_MAX`]: types::limits::NAMES_PER_CHANGE_MAX
    #[serde(default)]
    pub names: Vec<ChangedName>,
    /// What became of the closes that came with the request, in order; `None`: nothing, the client
    /// repeats it by itself. A reply that is repeated, or an error, tells nothing of them: to
    /// repeat a close does no harm.
    #[serde(default)]
    pub closed: Vec<Option<ClosedBeside>>,
}

/// What became of a close that came with a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedBeside {
    /// The last writer is gone but the size is not known: glimpse the objects and send `ReportSize`
    /// with this epoch.
    pub size_wanted: Option<u64>,
    /// How it changed the inode, if it did.
    pub version: Option<InodeVersion>,
    /// The inode after that, as in [`ReplyExtension::changed`].
    pub entry: Option<Entry>,
}

/// What a request did to a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedName {
    /// The directory.
    pub directory: InodeNumber,
    /// The name.
    pub name: Vec<u8>,
    /// Its position: the cookie after it in a listing. It keeps it for as long as it exists.
    pub cookie: u64,
    /// Where it leads from now on; `None`: it is gone.
    pub target: Option<(InodeNumber, FileKind)>,
}

/// A change of a target, and all that is needed to make it again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Its place in the target's journal.
    pub lsn: Lsn,
    /// The power-loss era of the target in which it was made.
    pub era: u64,
    /// Versions of the inodes it changed, at most [`VERSIONS_PER_CHANGE_MAX`].
    ///
    /// [`VERSIONS_PER_CHANGE_MAX`]: types::limits::VERSIONS_PER_CHANGE_MAX
    pub versions: Vec<InodeVersion>,
    /// What the target chose.
    #[serde(default)]
    pub chosen: Chosen,
}

/// How the version of an inode changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeVersion {
    /// The inode.
    pub inode: InodeNumber,
    /// Before the change; 0: it did not exist.
    pub before: u64,
    /// After it; 0: it does not exist any more.
    pub after: u64,
}

/// Values that a target chose in a change, and must choose again when it is replayed. Stripe slots
/// are in the layout that the reply carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Number of a new inode.
    pub inode: Option<InodeNumber>,
    /// The time of the change.
    pub time: Option<Timestamp>,
}

/// What a client says of the space that an OST granted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceReport {
    /// Bytes that it may still cache.
    pub held: u64,
    /// Bytes that it has cached and not written.
    pub dirty: u64,
    /// Bytes that it would like to have.
    pub wanted: u64,
}

/// See [`RequestExtension::sequence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    /// The MDT that sends it.
    pub source: MdtIndex,
    /// Its number among those to this target.
    pub number: u64,
    /// The power-loss era of the sender in which it was decided.
    pub era: u64,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use types::{
        ObjectId,
        limits::{CLOSES_PER_MESSAGE_MAX, EXTENSION_BYTES_MAX, LOCKS_PER_MESSAGE_MAX},
    };

    use super::*;
    use crate::{
        codec::{self, opcode},
        message::{
            ClientReply, ClientRequest, MdtReply, MdtRequest, Reply, Request,
            client::{Blocking, Glimpsed, LockCompleted},
            lock::{CacheMode, InodeBits, Resource, inode_bit},
            mdt::{LockRange, OpenId, SizeUpdate, WaitTicket},
        },
    };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn change() -> Change {
        let versions = vec![InodeVersion { inode: InodeNumber(2), before: 3, after: 4 }];
        let time = Some(Timestamp { seconds: 5, nanoseconds: 6 });
        let chosen = Chosen { inode: Some(InodeNumber(7)), time };
        Change { lsn: Lsn(9), era: 1, versions, chosen }
    }

    fn wanted() -> Enqueue {
        let resource = Resource::Inode(InodeNumber(2), InodeBits(inode_bit::LOOKUP | inode_bit::ATTRIBUTES));
        Enqueue { resource, mode: CacheMode::Read, opportunistic: true }
    }

    fn request() -> RequestExtension {
        RequestExtension {
            uid: 1000,
            gid: 100,
            job: "cc.1000".to_owned(),
            lock: Some(LockHandle(11)),
            wanted: Some(wanted()),
            cancels: vec![LockHandle(12), LockHandle(300)],
            space: Some(SpaceReport { held: 1, dirty: 2, wanted: 3 }),
            replay: Some(change()),
            sequence: Some(Sequence { source: MdtIndex(4), number: 5, era: 6 }),
            closes: vec![close(7)],
            project: 300,
        }
    }

    fn close(number: u64) -> Close {
        let mtime = Some(Timestamp { seconds: number as i64, nanoseconds: 6 });
        let update = SizeUpdate { epoch: number, size: number, blocks: number, mtime, changes: number };
        Close { inode: InodeNumber(number), open: OpenId(number), update: Some(update), flock_owner: None }
    }

    fn reply() -> ReplyExtension {
        let range = LockRange { start: 0, end: 9 };
        let resource = Resource::Object(ObjectId::default(), range);
        let granted = vec![Granted { handle: LockHandle(13), resource, mode: CacheMode::Write, version: 6 }];
        let (changed, data) = (Vec::new(), Some(ReadDone { checksums: vec![9], size: 5 }));
        ReplyExtension {
            change: Some(change()),
            committed: Lsn(8),
            granted,
            space: 4096,
            changed,
            data,
            unregistered: true,
            names: vec![changed_name(None), changed_name(Some((InodeNumber(7), FileKind::Directory)))],
            closed: vec![None, Some(ClosedBeside { size_wanted: Some(300), ..ClosedBeside::default() })],
        }
    }

    fn changed_name(target: Option<(InodeNumber, FileKind)>) -> ChangedName {
        ChangedName { directory: InodeNumber(2), name: b"n".to_vec(), cookie: 300, target }
    }

    #[test]
    fn bytes_are_the_published_ones() {
        let ping = Request::Mdt(MdtRequest::Ping);
        let body = codec::encode_request(&request(), &ping).unwrap();
        let (extension, message) = body.bytes.split_at(usize::from(body.extension_bytes));
        assert_eq!(
            hex(extension),
            "43e807640763632e31303030010b01050002030001020cac020103010203010e0901010302030406010701020a060103040506010d0707010807070701020e060700ac02"
        );
        assert_eq!(hex(message), "1e");
        assert_eq!(codec::decode_extension(extension), Ok(request()));
        let body = codec::encode_reply(&reply(), &Reply::Mdt(MdtReply::Done)).unwrap();
        let (extension, message) = body.bytes.split_at(usize::from(body.extension_bytes));
        assert_eq!(
            hex(extension),
            "41010e0901010302030406010701020a0608010b0d01030000000200090106802000010301090501020602016eac02000802016eac020107010200010501ac020000"
        );
        assert_eq!(hex(message), "00");
        assert_eq!(codec::decode_extension(extension), Ok(reply()));
    }

    #[test]
    fn an_extension_that_says_nothing_takes_no_bytes() {
        let body = codec::encode_request(&RequestExtension::default(), &Request::Mdt(MdtRequest::Ping)).unwrap();
        assert_eq!(body, Bytes::from_static(b"\x1e").into());
        assert_eq!(codec::decode_extension::<RequestExtension>(b""), Ok(RequestExtension::default()));
    }

    #[test]
    fn the_largest_extension_fits_and_a_larger_one_is_an_error() {
        let cancels = vec![LockHandle(u64::MAX); LOCKS_PER_MESSAGE_MAX];
        let closes = vec![close(u64::MAX); CLOSES_PER_MESSAGE_MAX];
        let largest = RequestExtension { cancels, closes, job: "j".repeat(31), ..request() };
        let body = codec::encode_request(&largest, &Request::Mdt(MdtRequest::Ping)).unwrap();
        assert!(usize::from(body.extension_bytes) <= EXTENSION_BYTES_MAX);
        let larger = RequestExtension { job: "j".repeat(EXTENSION_BYTES_MAX), ..largest };
        assert!(codec::encode_request(&larger, &Request::Mdt(MdtRequest::Ping)).is_err());
    }

    /// What a peer that knows fewer fields sends, and how it reads ours.
    #[test]
    fn extensions_grow() {
        #[derive(Serialize, Deserialize, PartialEq, Debug, Default)]
        struct Older {
            uid: u32,
            gid: u32,
            job: String,
        }
        let older = Older { uid: 1000, gid: 100, job: "cc.1000".to_owned() };
        let received: RequestExtension = codec::decode_extension(&codec::encode(&older).unwrap()).unwrap();
        let job = older.job.clone();
        assert_eq!(received, RequestExtension { uid: 1000, gid: 100, job, ..RequestExtension::default() });
        assert_eq!(codec::decode_extension(&codec::encode(&request()).unwrap()), Ok(older));
    }

    #[test]
    fn callbacks_have_published_bytes_and_numbers() {
        let resource = Resource::Inode(InodeNumber(2), InodeBits(inode_bit::LAYOUT));
        let blocking = Blocking { handle: LockHandle(300), resource, mode: CacheMode::Write };
        let granted = Granted { handle: LockHandle(13), resource, mode: CacheMode::Read, version: 6 };
        let published = [
            (ClientRequest::Ping, 0x0400, "00"),
            (ClientRequest::Blocking(blocking), 0x0401, "0106ac0200020801"),
            (ClientRequest::Completion(granted), 0x0402, "02060d0002080006"),
            (ClientRequest::Glimpse(LockHandle(5)), 0x0403, "0305"),
            (
                ClientRequest::LockCompleted(LockCompleted { ticket: WaitTicket(7), outcome: Ok(()) }),
                0x0404,
                "04020700",
            ),
            (ClientRequest::AskAgain(Some(InodeNumber(9))), 0x0405, "050109"),
            (ClientRequest::AskAgain(None), 0x0405, "0500"),
        ];
        for (request, opcode, bytes) in published {
            let encoded = codec::encode(&request).unwrap();
            assert_eq!((opcode::of_callback(&request).0, hex(&encoded)), (opcode, bytes.to_owned()));
            assert_eq!(codec::decode(&encoded), Ok(request));
        }
        let glimpse = ClientReply::Glimpse(Glimpsed { size: 5, mtime: Some(Timestamp { seconds: 1, nanoseconds: 2 }) });
        let published = [(ClientReply::Done, "00"), (glimpse, "01050501020202"), (ClientReply::StillBusy, "02")];
        for (reply, bytes) in published {
            let encoded = codec::encode(&reply).unwrap();
            assert_eq!(hex(&encoded), bytes);
            assert_eq!(codec::decode(&encoded), Ok(reply));
        }
    }
}
