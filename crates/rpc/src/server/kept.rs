//! Answers as they go out, and as they are kept in the slots of sessions for copies of their
//! requests.

use bytes::Bytes;
use types::FsError;

use crate::{codec, handler::Answer, message::Reply, session::KeptReply};

/// The answer as it goes out.
pub(super) fn keep(Answer { reply, bulk, extension, .. }: Answer) -> KeptReply {
    let encoded = match &reply {
        Ok(reply) => codec::encode_reply(&extension, reply),
        Err(error) => return keep_error(error),
    };
    match encoded {
        Ok(body) => KeptReply { error: false, body, bulk },
        Err(error) => keep_error(&FsError::from(error)),
    }
}

/// The answer as it goes out, and as it is kept for copies of its request. Only the former grants
/// locks, and shows what is held under locks: a copy may come through a later connection, on which
/// the client has none.
pub(super) fn keep_for_copies(answer: Answer) -> (KeptReply, KeptReply) {
    if !depends_on_connection(&answer) {
        let reply = keep(answer);
        return (reply.clone(), reply);
    }
    let mut copy = answer.clone();
    (copy.extension.granted, copy.extension.changed) = (Vec::new(), Vec::new());
    copy.extension.names = Vec::new();
    copy.extension.closed.iter_mut().flatten().for_each(|closed| closed.entry = None);
    if copy.extension.data.take().is_some() {
        copy.bulk = Bytes::new();
    }
    if let Ok(Reply::Mdt(reply)) = &mut copy.reply {
        reply.take_locks();
    }
    (keep(answer), keep(copy))
}

/// Whether an answer says something about locks, which live as long as a connection.
fn depends_on_connection(Answer { reply, extension, .. }: &Answer) -> bool {
    let has_locks = matches!(reply, Ok(Reply::Mdt(reply)) if reply.grants_locks());
    has_locks
        || !extension.granted.is_empty()
        || !extension.changed.is_empty()
        || !extension.names.is_empty()
        || extension.closed.iter().flatten().any(|closed| closed.entry.is_some())
        || extension.data.is_some()
}

/// An error as it goes out.
pub(super) fn keep_error(error: &FsError) -> KeptReply {
    let body = codec::encode(error).or_else(|_| codec::encode(&FsError::TooBig));
    KeptReply { error: true, body: body.expect("a bare error fits any frame").into(), bulk: Bytes::new() }
}

#[cfg(test)]
mod tests {
    use types::{
        Attributes, FileKind, InodeNumber, LockHandle, Timestamp,
        limits::{
            BLOCK_BYTES, CLOSES_PER_MESSAGE_MAX, EXTENSION_BYTES_MAX, NAME_BYTES_MAX, NAMES_PER_CHANGE_MAX,
            SMALL_FILE_BYTES_MAX, VERSIONS_PER_CHANGE_MAX,
        },
    };

    use super::*;
    use crate::{
        codec::opcode,
        message::{
            MdtReply, ReplyExtension,
            extension::{Change, ChangedName, Chosen, ClosedBeside, InodeVersion},
            lock::{CacheMode, Granted, InodeBits, Resource, inode_bit},
            mdt::{DirectoryEntry, Entry},
            ost::ReadDone,
        },
    };

    fn entry() -> Entry {
        let zeroed = Attributes::zeroed(InodeNumber(2), FileKind::Directory);
        let attributes = Attributes { mode: 0o755, links: 2, uid: 1, gid: 2, size: 4096, blocks: 8, ..zeroed };
        Entry { no_public_xattrs: true, ..Entry::of(attributes) }
    }

    #[test]
    fn a_copy_of_a_reply_grants_nothing_and_shows_nothing_under_locks() {
        let bits = InodeBits(inode_bit::LOOKUP);
        let resource = Resource::Inode(InodeNumber(7), bits);
        let granted = vec![Granted { handle: LockHandle(5), resource, mode: CacheMode::Read, version: 6 }];
        let changed = vec![entry()];
        let data = ReadDone { checksums: vec![7], size: 4 };
        let plain = ReplyExtension { committed: types::Lsn(9), ..ReplyExtension::default() };
        let found = |lock| DirectoryEntry {
            name: b"name".to_vec(),
            inode: InodeNumber(7),
            kind: FileKind::Regular,
            cookie: 9,
            entry: None,
            locks: Vec::from_iter(lock),
            version: 0,
        };
        let page = |lock| Reply::Mdt(MdtReply::Directory(vec![found(None), found(lock)], true));
        let told = |kept: &KeptReply| -> (ReplyExtension, Reply) {
            let (extension, reply) = kept.body.bytes.split_at(usize::from(kept.body.extension_bytes));
            (codec::decode_extension(extension).unwrap(), codec::decode_reply(opcode::Family::Mdt, reply).unwrap())
        };
        for (extension, lock) in [
            (ReplyExtension { granted, ..plain.clone() }, None),
            (ReplyExtension { changed, ..plain.clone() }, None),
            (ReplyExtension { data: Some(data), ..plain.clone() }, None),
            (plain.clone(), Some((LockHandle(6), bits))),
            (plain.clone(), None),
        ] {
            let bulk = if extension.data.is_some() { Bytes::from_static(b"data") } else { Bytes::new() };
            let answer = Answer { extension: extension.clone(), ..Answer::with_bulk(Ok(page(lock)), bulk.clone()) };
            let (reply, kept) = keep_for_copies(answer);
            assert_eq!((&reply.bulk, kept.bulk.len()), (&bulk, 0));
            assert_eq!(told(&reply), (extension, page(lock)));
            assert_eq!(told(&kept), (plain.clone(), page(None)));
        }
    }

    #[test]
    fn the_extension_of_a_reply_fits() {
        let mut largest = entry();
        let time = Timestamp { seconds: i64::MIN, nanoseconds: u32::MAX };
        largest.attributes = Attributes {
            inode: InodeNumber(u64::MAX),
            mode: u32::MAX,
            links: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            device: u32::MAX,
            size: u64::MAX,
            blocks: u64::MAX,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            flags: u32::MAX,
            project: u32::MAX,
            ..largest.attributes
        };
        let largest = Entry {
            accounted: time,
            quiet: Some(u64::MAX),
            changes: u64::MAX,
            records: u32::MAX,
            map_version: u64::MAX,
            ..largest
        };
        let version = InodeVersion { inode: InodeNumber(u64::MAX), before: u64::MAX, after: u64::MAX };
        let versions = vec![version; VERSIONS_PER_CHANGE_MAX];
        let lsn = types::Lsn(u64::MAX);
        let resource = Resource::Inode(InodeNumber(u64::MAX), InodeBits::ALL);
        let granted = Granted { handle: LockHandle(u64::MAX), resource, mode: CacheMode::Read, version: 6 };
        let name = ChangedName {
            directory: InodeNumber(u64::MAX),
            name: vec![b'n'; NAME_BYTES_MAX],
            cookie: u64::MAX,
            target: Some((InodeNumber(u64::MAX), FileKind::Directory)),
        };
        let blocks = (u64::from(SMALL_FILE_BYTES_MAX) / BLOCK_BYTES) as usize;
        let (version, entry) = (versions.first().copied(), Some(largest.clone()));
        let closed = Some(ClosedBeside { size_wanted: Some(u64::MAX), version, entry });
        let extension = ReplyExtension {
            change: Some(Change { lsn, era: u64::MAX, versions, chosen: Chosen::default() }),
            committed: lsn,
            granted: vec![granted; 2],
            space: u64::MAX,
            changed: vec![largest; VERSIONS_PER_CHANGE_MAX],
            data: Some(ReadDone { checksums: vec![u32::MAX; blocks], size: u64::MAX }),
            unregistered: true,
            names: vec![name; NAMES_PER_CHANGE_MAX],
            closed: vec![closed; CLOSES_PER_MESSAGE_MAX],
        };
        let kept = keep(Answer { extension, ..Answer::new(Ok(Reply::Mdt(MdtReply::Done))) });
        assert!(!kept.error && usize::from(kept.body.extension_bytes) <= EXTENSION_BYTES_MAX);
    }
}
