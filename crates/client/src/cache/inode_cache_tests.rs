//! One test for each race and rule.

use rpc::message::{
    extension::{Change, InodeVersion},
    lock::{CacheMode, Granted},
    mdt::{
        Access, Close, Create, Created, Link, Lookup, NotedAccess, Open, OpenFlags, OpenId, Opened, Unlink, open_flag,
    },
};
use types::{Attributes, Credentials, FileKind, FsResult, Generation, NodeKind, SetAttributes, permission};

use super::*;

pub(crate) const ROOT: InodeNumber = InodeNumber(1);
const FILE: InodeNumber = InodeNumber(7);
const NOW: Timestamp = Timestamp { seconds: 1_000_000, nanoseconds: 0 };
const CONNECTION: ConnectionId = (ClientId(1), Generation(1));
pub(crate) const SHOWN: u32 = inode_bit::LOOKUP | inode_bit::ATTRIBUTES | inode_bit::XATTRS;

pub(crate) fn entry(inode: InodeNumber, kind: FileKind, size: u64) -> Entry {
    let attributes = Attributes { mode: 0o755, links: 1, size, ..Attributes::zeroed(inode, kind) };
    Entry { accounted: NOW, ..Entry::of(attributes) }
}

fn directory() -> Entry {
    entry(ROOT, FileKind::Directory, 0)
}

fn file(size: u64) -> Entry {
    entry(FILE, FileKind::Regular, size)
}

fn nobody() -> Credentials {
    Credentials { uid: 1000, gid: 1000, groups: Some(Vec::new()) }
}

pub(crate) fn granted(handle: u64, inode: InodeNumber, bits: u32) -> Granted {
    let resource = Resource::Inode(inode, InodeBits(bits));
    Granted { handle: LockHandle(handle), resource, mode: CacheMode::Read, version: 0 }
}

pub(crate) fn look_up(name: &str) -> MdtRequest {
    MdtRequest::Lookup(Credentials::root(), Lookup { parent: ROOT, name: name.into() })
}

pub(crate) fn unlink(name: &str) -> MdtRequest {
    MdtRequest::Unlink(Credentials::root(), Unlink { parent: ROOT, name: name.into(), directory: false })
}

/// A change of an inode whose reply does not show it.
fn set_times(inode: InodeNumber) -> MdtRequest {
    MdtRequest::ClearPrivileges(inode)
}

fn set_attributes() -> MdtRequest {
    MdtRequest::SetAttributes(Credentials::root(), FILE, SetAttributes::default())
}

/// A cache and the steps of its questions.
pub(crate) struct Client(pub InodeCache);

impl Client {
    /// Knows the directory and, under its name, the file.
    fn warm() -> Self {
        let mut client = Self::cold();
        let directory_locks = [granted(1, ROOT, SHOWN | inode_bit::DIRECTORY)];
        client.asks(&MdtRequest::GetAttributes(ROOT), &MdtReply::Entry(directory()), &directory_locks);
        client.asks(&look_up("file"), &MdtReply::Entry(file(5)), &[granted(2, FILE, SHOWN)]);
        assert_eq!((client.size("file"), client.0.lock_count()), (Some(5), 2));
        client
    }

    pub(crate) fn cold() -> Self {
        let mut cache = InodeCache::default();
        cache.connect(Some(CONNECTION));
        Self(cache)
    }

    pub(crate) fn ask(&mut self, request: &MdtRequest) -> Pending {
        self.0.ask(request, NOW, |_| false)
    }

    fn answered(&mut self, pending: Pending, reply: &MdtReply, granted: &[Granted]) -> Vec<LockHandle> {
        self.told(pending, reply, ReplyExtension { granted: granted.to_vec(), ..ReplyExtension::default() })
    }

    fn told(&mut self, pending: Pending, reply: &MdtReply, beside: ReplyExtension) -> Vec<LockHandle> {
        let answer = self
            .0
            .answer(pending, Ok(Reply { reply, beside: &beside, connection: CONNECTION, data: None, taken_back: &[] }));
        answer.released.into_iter().map(|released| released.handle).collect()
    }

    pub(crate) fn asks(&mut self, request: &MdtRequest, reply: &MdtReply, granted: &[Granted]) -> Vec<LockHandle> {
        let pending = self.ask(request);
        self.answered(pending, reply, granted)
    }

    fn fails(&mut self, request: &MdtRequest, error: FsError) {
        let pending = self.ask(request);
        self.0.answer(pending, Err(&error));
    }

    fn begins_to_tell(&mut self) -> Vec<Access> {
        let last = self.0.accesses.last();
        self.0.begin_telling_accesses(last)
    }

    fn looked_up(&mut self, name: &str) -> Option<FsResult<Attributes>> {
        self.0.lookup(&nobody(), (ROOT, name.as_bytes()), |_| false)
    }

    fn size(&mut self, name: &str) -> Option<u64> {
        self.looked_up(name).map(|found| found.unwrap().size)
    }
}

#[test]
fn a_question_asks_for_what_is_not_held() {
    let mut client = Client::cold();
    let everything = SHOWN | inode_bit::DIRECTORY | inode_bit::OPEN;
    let wanted = |inode, bits| {
        let resource = Resource::Inode(inode, InodeBits(bits));
        Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true })
    };
    assert_eq!(client.ask(&look_up("file")).wanted, wanted(ROOT, everything));
    let mut client = Client::warm();
    assert_eq!(client.ask(&look_up("other")).wanted, wanted(ROOT, SHOWN | inode_bit::OPEN), "of the other inode");
    assert_eq!(client.ask(&MdtRequest::GetAttributes(ROOT)).wanted, wanted(ROOT, inode_bit::OPEN));
    let more = inode_bit::DIRECTORY | inode_bit::OPEN;
    assert_eq!(client.ask(&MdtRequest::GetAttributes(FILE)).wanted, wanted(FILE, more));
    client.0.set_locks_max(0);
    assert_eq!(client.ask(&look_up("other")).wanted, None);
}

#[test]
fn nothing_is_kept_without_a_lock() {
    let mut client = Client::warm();
    client.asks(&look_up("other"), &MdtReply::Entry(entry(InodeNumber(8), FileKind::Regular, 1)), &[]);
    assert_eq!(client.looked_up("other"), None);
    let only_attributes = [granted(3, InodeNumber(8), inode_bit::ATTRIBUTES)];
    client.asks(&look_up("other"), &MdtReply::Entry(entry(InodeNumber(8), FileKind::Regular, 1)), &only_attributes);
    assert_eq!(client.looked_up("other"), None, "its names may change");
    assert_eq!(client.0.attributes(InodeNumber(8), |_| false).map(|attributes| attributes.size), Some(1));
}

#[test]
fn a_withdrawn_lock_takes_everything_under_it_along() {
    let mut client = Client::warm();
    client.fails(&look_up("missing"), FsError::NotFound);
    assert_eq!(client.looked_up("missing"), Some(Err(FsError::NotFound)));
    assert!(client.0.withdraw(LockHandle(2)).is_some());
    assert_eq!(client.looked_up("file"), None);
    assert_eq!(client.looked_up("missing"), Some(Err(FsError::NotFound)));
    assert!(client.0.withdraw(LockHandle(1)).is_some());
    assert_eq!(client.looked_up("missing"), None);
    assert!(client.0.names.is_empty() && client.0.inodes.is_empty() && client.0.recency.oldest().is_none());
}

#[test]
fn where_a_name_on_another_mdt_leads_goes_with_the_lock_on_the_names() {
    let elsewhere = |client: &mut Client| client.0.lookup_elsewhere(&nobody(), ROOT, b"far");
    let far = InodeNumber::new(types::MdtIndex(1), 0x200);
    let mut client = Client::cold();
    client.asks(&MdtRequest::GetAttributes(ROOT), &MdtReply::Entry(directory()), &[granted(1, ROOT, SHOWN)]);
    client.asks(&look_up("far"), &MdtReply::Remote(far), &[]);
    assert_eq!(elsewhere(&mut client), None, "without a lock");
    client.asks(&look_up("far"), &MdtReply::Remote(far), &[granted(2, ROOT, inode_bit::DIRECTORY)]);
    assert_eq!((elsewhere(&mut client), client.looked_up("far")), (Some(far), None));
    let removal = client.ask(&unlink("far"));
    assert_eq!(elsewhere(&mut client), None, "it is being removed");
    client.answered(removal, &MdtReply::Done, &[]);
    assert_eq!((elsewhere(&mut client), client.looked_up("far")), (None, Some(Err(FsError::NotFound))));
    client.asks(&look_up("far"), &MdtReply::Remote(far), &[]);
    assert_eq!(elsewhere(&mut client), Some(far));
    assert!(client.0.withdraw(LockHandle(2)).is_some());
    assert_eq!(elsewhere(&mut client), None);
}

#[test]
fn a_withdrawal_may_overtake_the_reply_that_grants() {
    let mut client = Client::cold();
    client.asks(&MdtRequest::GetAttributes(ROOT), &MdtReply::Entry(directory()), &[granted(1, ROOT, SHOWN)]);
    let pending = client.ask(&look_up("file"));
    assert!(client.0.withdraw(LockHandle(2)).is_none(), "it is not known yet");
    let other = client.ask(&look_up("other"));
    client.answered(pending, &MdtReply::Entry(file(5)), &[granted(2, FILE, SHOWN)]);
    assert_eq!((client.looked_up("file"), client.0.lock_count()), (None, 1));
    assert_eq!(client.0.early.len(), 0, "the only question that can bring it was answered");
    client.answered(other, &MdtReply::Entry(file(5)), &[granted(3, FILE, SHOWN)]);
    assert_eq!(client.size("other"), Some(5));
}

#[test]
fn an_answer_that_was_given_before_a_lock_was_held_is_not_kept() {
    let mut client = Client::cold();
    let early = client.ask(&MdtRequest::GetAttributes(FILE));
    client.asks(&MdtRequest::GetAttributes(FILE), &MdtReply::Entry(file(6)), &[granted(2, FILE, inode_bit::LOOKUP)]);
    client.asks(
        &MdtRequest::GetAttributes(FILE),
        &MdtReply::Entry(file(6)),
        &[granted(3, FILE, inode_bit::ATTRIBUTES)],
    );
    client.answered(early, &MdtReply::Entry(file(5)), &[]);
    assert_eq!(client.0.attributes(FILE, |_| false).map(|attributes| attributes.size), Some(6));
}

#[test]
fn an_answer_from_before_a_change_of_this_client_is_not_kept() {
    let mut client = Client::warm();
    let early = client.ask(&MdtRequest::GetAttributes(FILE));
    let change = client.ask(&set_attributes());
    assert_eq!(client.looked_up("file"), None, "the change may have happened or not");
    let between = client.ask(&MdtRequest::GetAttributes(FILE));
    client.answered(change, &MdtReply::Entry(file(6)), &[]);
    assert_eq!(client.size("file"), Some(6), "the answer to a change says what it made");
    client.answered(early, &MdtReply::Entry(file(5)), &[]);
    client.answered(between, &MdtReply::Entry(file(5)), &[]);
    assert_eq!(client.size("file"), Some(6));
}

#[test]
fn locks_end_with_their_connection() {
    let mut client = Client::warm();
    let pending = client.ask(&look_up("file"));
    client.0.connect(None);
    client.0.connect(Some((ClientId(1), Generation(2))));
    assert_eq!((client.looked_up("file"), client.0.lock_count()), (None, 0), "nothing was claimed");
    client.answered(pending, &MdtReply::Entry(file(5)), &[granted(3, FILE, SHOWN)]);
    assert_eq!(client.0.lock_count(), 0, "it was granted to the connection before");
}

/// It dropped what the present session had cached, but not from the cache above; and what this
/// session had given back early was served when its grant came.
#[test]
fn an_earlier_session_that_connects_again_changes_nothing() {
    let mut client = Client::cold();
    let earlier = ClientId(9);
    client.0.begin_session(CONNECTION.0);
    assert!(client.0.connect_by(CONNECTION.0, Some(CONNECTION.1)));
    let directory_locks = [granted(1, ROOT, SHOWN | inode_bit::DIRECTORY)];
    client.asks(&MdtRequest::GetAttributes(ROOT), &MdtReply::Entry(directory()), &directory_locks);
    let pending = client.ask(&look_up("file"));
    assert_eq!(client.0.withdraw(LockHandle(2)), None, "the callback overtakes the reply");
    assert!(!client.0.connect_by(earlier, Some(Generation(7))));
    client.answered(pending, &MdtReply::Entry(file(5)), &[granted(2, FILE, SHOWN)]);
    assert_eq!((client.looked_up("file"), client.0.lock_count()), (None, 1), "it was given back");
    client.asks(&look_up("file"), &MdtReply::Entry(file(5)), &[granted(3, FILE, SHOWN)]);
    assert!(!client.0.connect_by(earlier, Some(Generation(8))) && !client.0.connect_by(earlier, None));
    assert_eq!((client.size("file"), client.0.lock_count()), (Some(5), 2));
    let next = ClientId(CONNECTION.0.0 + 1);
    client.0.begin_session(next);
    assert!(client.0.connect_by(next, Some(Generation(1))));
    assert_eq!(client.looked_up("file"), None, "locks end with their session");
}

#[test]
fn permissions_are_checked_as_the_mdt_checks_them() {
    let mut client = Client::warm();
    let restricted = |mode, access_list| {
        let mut entry = directory();
        (entry.attributes.mode, entry.access_list) = (mode, access_list);
        MdtReply::Entry(entry)
    };
    let unknown_groups = Credentials { groups: None, ..nobody() };
    for (mode, access_list, expected, expected_of_unknown) in [
        (0o755, false, None, None),
        (0o754, false, Some(FsError::AccessDenied), Some(FsError::GroupsNeeded)),
        (0o700, false, Some(FsError::AccessDenied), Some(FsError::AccessDenied)),
    ] {
        client.asks(&MdtRequest::GetAttributes(ROOT), &restricted(mode, access_list), &[]);
        let mut outcome = |who: &Credentials| client.0.lookup(who, (ROOT, b"file"), |_| false).unwrap().err();
        assert_eq!((outcome(&nobody()), outcome(&unknown_groups)), (expected, expected_of_unknown), "{mode:o}");
        assert_eq!(outcome(&Credentials::root()), None);
    }
    client.asks(&MdtRequest::GetAttributes(ROOT), &restricted(0o755, true), &[]);
    assert_eq!(client.looked_up("file"), None, "the access list decides");
    assert_eq!(client.0.access(&nobody(), ROOT, permission::EXECUTE), None);
    assert!(client.0.lookup(&Credentials::root(), (ROOT, b"file"), |_| false).is_some(), "it does not bind the owner");
}

#[test]
fn a_creation_keeps_what_the_directory_allows() {
    let mut client = Client::warm();
    client.fails(&look_up("new"), FsError::NotFound);
    let create = |name: &str, open| {
        let name = name.as_bytes().to_vec();
        let create = Create { parent: ROOT, name, kind: NodeKind::Regular, mode: 0, umask: 0, layout: None, open };
        MdtRequest::Create(Credentials::root(), create)
    };
    let new = entry(InodeNumber(8), FileKind::Regular, 0);
    let created = MdtReply::Created(Box::new(Created { entry: new.clone(), created: true, opened: None }));
    let pending = client.ask(&create("new", None));
    assert_eq!(client.looked_up("new"), None);
    assert_eq!(client.size("file"), Some(5), "other names are not concerned");
    client.answered(pending, &created, &[granted(3, InodeNumber(8), SHOWN)]);
    assert_eq!(client.size("new"), Some(0));
    assert_eq!(client.0.attributes(ROOT, |_| false), None, "its times changed");
    let writing = Some((OpenId(1), OpenFlags(open_flag::WRITE)));
    let opened = Opened { entry: new.clone(), layout: None, epoch: 1, truncate: false, capabilities: false };
    let created = MdtReply::Created(Box::new(Created { entry: new, created: false, opened: Some(opened) }));
    client.asks(&create("new", writing), &created, &[]);
    assert_eq!(client.looked_up("new"), None, "its size is not known while it is written");
}

#[test]
fn a_removed_file_is_given_up_and_its_name_is_missing() {
    let mut client = Client::warm();
    let cancelled = client.asks(&unlink("file"), &MdtReply::Done, &[]);
    assert_eq!(cancelled, [LockHandle(2)]);
    assert_eq!(client.looked_up("file"), Some(Err(FsError::NotFound)));
}

#[test]
fn the_removal_of_an_unknown_name_concerns_every_inode() {
    let mut client = Client::warm();
    let pending = client.ask(&unlink("another name of it"));
    assert_eq!(client.looked_up("file"), None);
    client.answered(pending, &MdtReply::Done, &[]);
    assert_eq!(client.looked_up("file"), None);
    client.asks(&MdtRequest::GetAttributes(FILE), &MdtReply::Entry(file(5)), &[]);
    assert_eq!(client.size("file"), Some(5));
}

#[test]
fn the_removal_of_a_name_that_another_client_moved_concerns_every_inode() {
    let mut client = Client::warm();
    let other = entry(InodeNumber(8), FileKind::Regular, 1);
    client.asks(&look_up("other"), &MdtReply::Entry(other), &[granted(3, InodeNumber(8), SHOWN)]);
    let pending = client.ask(&unlink("file"));
    client.0.withdraw(LockHandle(2));
    client.answered(pending, &MdtReply::Done, &[]);
    assert_eq!(client.looked_up("other"), None, "it may have been what was removed");
}

#[test]
fn a_new_link_is_known_with_its_count() {
    let mut client = Client::warm();
    let link = Link { inode: FILE, parent: ROOT, name: b"link".to_vec() };
    let mut linked = file(5);
    linked.attributes.links = 2;
    let request = MdtRequest::Link(Credentials::root(), link);
    client.asks(&request, &MdtReply::Entry(linked), &[]);
    assert_eq!(client.looked_up("link").unwrap().unwrap().links, 2);
    assert_eq!(client.looked_up("file").unwrap().unwrap().links, 2);
    client.fails(&request, FsError::NotFound);
    assert_ne!(client.looked_up("link"), Some(Err(FsError::NotFound)), "that was said of the inode");
}

#[test]
fn a_file_that_this_client_writes_is_not_served() {
    let mut client = Client::warm();
    let written = |cache: &mut InodeCache| cache.lookup(&nobody(), (ROOT, b"file"), |_| true);
    assert_eq!(written(&mut client.0), None);
    let open = Open { inode: FILE, open: OpenId(1), flags: OpenFlags(open_flag::WRITE) };
    let opened = Opened { entry: file(5), layout: None, epoch: 1, truncate: false, capabilities: false };
    client.asks(&MdtRequest::Open(Credentials::root(), open), &MdtReply::Opened(Box::new(opened)), &[]);
    assert_eq!(client.looked_up("file"), None);
    client.asks(&MdtRequest::GetAttributes(FILE), &MdtReply::Entry(file(9)), &[]);
    let close = Close { inode: FILE, open: OpenId(1), update: None, flock_owner: None };
    let pending = client.0.ask(&MdtRequest::Close(close), NOW, |_| true);
    assert_eq!(client.looked_up("file"), None);
    client.0.answer(pending, Err(&FsError::Stale));
    assert_eq!(client.looked_up("file"), None, "the close reported its size");
}

#[test]
fn reading_changes_the_access_time_once() {
    let mut client = Client::warm();
    let mut link = entry(FILE, FileKind::Symlink, 6);
    client.asks(&MdtRequest::GetAttributes(FILE), &MdtReply::Entry(link.clone()), &[]);
    client.asks(&MdtRequest::ReadLink(FILE), &MdtReply::Target(b"target".to_vec()), &[]);
    assert_eq!(client.looked_up("file"), None, "its access time changed");
    link.attributes.atime = NOW;
    client.asks(&MdtRequest::GetAttributes(FILE), &MdtReply::Entry(link), &[]);
    assert_eq!(client.0.target(FILE, NOW), Some(b"target".to_vec()));
    let tomorrow = Timestamp { seconds: NOW.seconds + 86_400, ..NOW };
    assert_eq!(client.0.target(FILE, tomorrow), None, "it changes again");
    client.asks(&MdtRequest::ReadLink(FILE), &MdtReply::Target(b"target".to_vec()), &[]);
    assert_eq!(client.size("file"), Some(6), "reading it again today changes nothing");
}

#[test]
fn an_access_that_changes_the_access_time_is_noted_if_the_mdt_takes_it() {
    let mut client = Client::warm();
    client.0.accesses.set_supported(true);
    let mut link = entry(FILE, FileKind::Symlink, 6);
    client.asks(&MdtRequest::ReadLink(FILE), &MdtReply::Target(b"target".to_vec()), &[]);
    (link.attributes.atime, link.attributes.ctime) = (NOW, NOW);
    client.asks(&MdtRequest::GetAttributes(FILE), &MdtReply::Entry(link), &[]);
    let atime = |client: &mut Client| client.looked_up("file").unwrap().unwrap().atime;
    let earlier = Timestamp { seconds: NOW.seconds - 3600, ..NOW };
    assert_eq!(client.0.target(FILE, earlier), Some(b"target".to_vec()));
    assert_eq!(atime(&mut client), NOW.next(), "after the last change, by whatever clock");
    assert!(client.0.target(FILE, NOW).is_some());
    let sent = client.begins_to_tell();
    assert_eq!(sent, [Access { inode: FILE, lock: LockHandle(2), time: NOW.next() }]);
    let asked_before = client.ask(&MdtRequest::GetAttributes(FILE));
    let noted = NotedAccess { version: 9, time: NOW.plus(5) };
    client.0.told_accesses(&sent, &[Some(noted)]);
    assert_eq!((atime(&mut client), client.0.inode(FILE).version), (noted.time, 9));
    client.answered(asked_before, &MdtReply::Entry(entry(FILE, FileKind::Symlink, 7)), &[]);
    assert_eq!(client.size("file"), Some(6), "that may be from before");
    for (hours, is_served) in [(11, true), (13, false), (23, false), (25, true)] {
        let later = Timestamp { seconds: NOW.seconds + hours * 3600, ..NOW };
        assert_eq!(client.0.target(FILE, later).is_some(), is_served, "{hours}: the MDT may decide otherwise");
    }
    assert_eq!(client.begins_to_tell().len(), 1);
    client.0.failed_to_tell_accesses(true);
    client.0.withdraw(LockHandle(2));
    assert_eq!(client.begins_to_tell().len(), 1, "before the lock is given back");
    client.0.failed_to_tell_accesses(true);
    assert!(client.0.accesses.is_empty());
}

#[test]
fn an_access_that_the_mdt_does_not_take_leaves_the_time_unknown() {
    let mut client = Client::warm();
    client.0.accesses.set_supported(true);
    client.asks(&MdtRequest::ReadLink(FILE), &MdtReply::Target(b"target".to_vec()), &[]);
    client.asks(&MdtRequest::GetAttributes(FILE), &MdtReply::Entry(entry(FILE, FileKind::Symlink, 6)), &[]);
    assert!(client.0.target(FILE, NOW).is_some());
    let sent = client.begins_to_tell();
    client.0.told_accesses(&sent, &[None]);
    assert_eq!((client.looked_up("file"), client.0.accesses.is_empty()), (None, true));
}

/// Another client may have set the time since, and replies show the access until it is known that
/// it does not count.
#[test]
fn an_access_that_does_not_count_is_not_shown_under_a_later_lock() {
    type End = fn(&mut Client, &[Access]);
    const LATER: LockHandle = LockHandle(9);
    let refused = |client: &mut Client, sent: &[Access]| client.0.told_accesses(sent, &[None]);
    let failed = |client: &mut Client, _: &[Access]| client.0.failed_to_tell_accesses(true);
    let unsupported = |client: &mut Client, _: &[Access]| client.0.set_accesses_supported(false);
    let corrected = |client: &mut Client, sent: &[Access]| {
        client.0.told_accesses(sent, &[Some(NotedAccess { version: 9, time: NOW.plus(5) })]);
    };
    let unchanged = |client: &mut Client, sent: &[Access]| {
        client.0.told_accesses(sent, &[Some(NotedAccess { version: 9, time: sent[0].time })]);
    };
    let ends: [(End, bool); 5] =
        [(refused, false), (failed, false), (unsupported, false), (corrected, false), (unchanged, true)];
    for (number, (end, is_known)) in ends.into_iter().enumerate() {
        let mut client = Client::warm();
        client.0.accesses.set_supported(true);
        client.asks(&MdtRequest::ReadLink(FILE), &MdtReply::Target(b"target".to_vec()), &[]);
        let link = MdtReply::Entry(entry(FILE, FileKind::Symlink, 6));
        client.asks(&MdtRequest::GetAttributes(FILE), &link, &[]);
        assert!(client.0.target(FILE, NOW).is_some());
        let sent = client.begins_to_tell();
        client.0.withdraw(LockHandle(2));
        let (mut shown, mut beside) = (link.clone(), ReplyExtension::default());
        client.0.accesses.show(&mut shown, &mut beside);
        client.asks(&MdtRequest::GetAttributes(FILE), &shown, &[granted(LATER.0, FILE, SHOWN)]);
        let access_time = |client: &mut Client| client.0.attributes(FILE, |_| false).map(|known| known.atime);
        assert_eq!(access_time(&mut client), Some(NOW));
        end(&mut client, &sent);
        assert_eq!(access_time(&mut client), is_known.then_some(NOW), "{number}");
        assert!(client.0.accesses.is_empty());
        if !is_known {
            client.asks(&MdtRequest::GetAttributes(FILE), &link, &[]);
            assert!(access_time(&mut client).is_some_and(|time| time < NOW), "{number}: the MDT's");
        }
    }
}

#[test]
fn extended_attributes_and_their_absence_are_kept() {
    const NAME: &[u8] = b"security.capability";
    let mut client = Client::warm();
    let ask = |name: &[u8]| MdtRequest::GetXattr(Credentials::root(), FILE, name.to_vec());
    client.fails(&ask(NAME), FsError::NoData);
    client.fails(&ask(b"user.private"), FsError::NoData);
    assert_eq!(client.0.xattr(FILE, NAME), Some(Err(FsError::NoData)));
    assert_eq!(client.0.xattr(FILE, b"user.private"), None, "who may read it depends on permissions");
    client.asks(&set_attributes(), &MdtReply::Entry(file(5)), &[]);
    assert_eq!(client.0.xattr(FILE, NAME), None, "a new owner takes capabilities away");
    client.asks(&ask(NAME), &MdtReply::Value(b"value".to_vec()), &[]);
    assert_eq!(client.0.xattr(FILE, NAME), Some(Ok(b"value".to_vec())));
}

#[test]
fn what_was_not_used_for_the_longest_time_is_given_up() {
    let mut client = Client::warm();
    client.0.set_locks_max(4);
    for inode in 10..20 {
        assert!(client.size("file").is_some(), "it is used all the time");
        let found = entry(InodeNumber(inode), FileKind::Regular, inode);
        client.asks(
            &look_up(&inode.to_string()),
            &MdtReply::Entry(found),
            &[granted(inode, InodeNumber(inode), SHOWN)],
        );
        assert!(client.0.lock_count() <= 4);
    }
    assert_eq!((client.size("19"), client.size("10")), (Some(19), None));
    for missing in 0..10 {
        client.fails(&look_up(&format!("missing {missing}")), FsError::NotFound);
    }
    assert!(client.0.lock_count() + client.0.names.by_directory_count() <= 4);
    let handles = client.0.set_locks_max(0);
    assert_eq!((client.0.lock_count(), handles.is_empty()), (0, false));
    let late = client.asks(&look_up("file"), &MdtReply::Entry(file(5)), &[granted(50, FILE, SHOWN)]);
    assert_eq!(late, [LockHandle(50)], "it was asked for before the limit changed");
}

#[test]
fn further_names_of_an_inode_count_towards_the_limit() {
    let mut client = Client::warm();
    client.0.set_locks_max(4);
    for (name, kept) in [("link 1", (2, 1)), ("link 2", (2, 2))] {
        client.asks(&look_up(name), &MdtReply::Entry(file(5)), &[]);
        assert_eq!((client.0.lock_count(), client.0.names.further_count()), kept);
    }
    let released = client.asks(&look_up("link 3"), &MdtReply::Entry(file(5)), &[]);
    assert!(!released.is_empty() && client.0.lock_count() + client.0.names.further_count() <= 4);
}

#[test]
fn an_inode_without_a_name_is_not_kept() {
    let mut client = Client::warm();
    let mut gone = file(5);
    gone.attributes.links = 0;
    client.asks(&set_attributes(), &MdtReply::Entry(gone), &[]);
    assert_eq!(client.0.attributes(FILE, |_| false), None);
}

fn changed(inode: InodeNumber, after: u64, entry: Option<Entry>) -> ReplyExtension {
    let versions = vec![InodeVersion { inode, before: after - 1, after }];
    let change = Some(Change { versions, ..Change::default() });
    ReplyExtension { change, changed: entry.into_iter().collect(), ..ReplyExtension::default() }
}

fn size_of_root(client: &mut Client) -> Option<u64> {
    client.0.attributes(ROOT, |_| false).map(|attributes| attributes.size)
}

#[test]
fn a_change_brings_the_attributes_of_its_directory() {
    let mut client = Client::warm();
    let grown = |size| Some(entry(ROOT, FileKind::Directory, size));
    let one = client.ask(&unlink("file"));
    let other = client.ask(&unlink("other"));
    client.told(other, &MdtReply::Done, changed(ROOT, 9, grown(9)));
    assert_eq!(size_of_root(&mut client), None, "another change is under way");
    client.told(one, &MdtReply::Done, changed(ROOT, 8, grown(8)));
    // The removal of a name that is not known leaves doubts.
    assert_eq!(size_of_root(&mut client), None);
    let (one, other) = (client.ask(&set_times(ROOT)), client.ask(&set_times(ROOT)));
    client.told(other, &MdtReply::Done, changed(ROOT, 12, grown(12)));
    client.told(one, &MdtReply::Done, changed(ROOT, 11, grown(11)));
    assert_eq!(size_of_root(&mut client), Some(12));
    let repeated = client.ask(&set_times(ROOT));
    client.told(repeated, &MdtReply::Done, ReplyExtension::default());
    assert_eq!(size_of_root(&mut client), None);
}

#[test]
fn a_lock_that_was_withdrawn_meanwhile_leaves_a_directory_unknown() {
    let mut client = Client::warm();
    let pending = client.ask(&set_times(ROOT));
    client.0.withdraw(LockHandle(1));
    let again = [granted(3, ROOT, SHOWN | inode_bit::DIRECTORY)];
    client.asks(&MdtRequest::GetAttributes(ROOT), &MdtReply::Entry(directory()), &again);
    client.told(pending, &MdtReply::Done, changed(ROOT, 9, Some(directory())));
    assert_eq!(size_of_root(&mut client), None, "another client may have changed it before the lock came");
}

#[test]
fn absence_comes_with_locks() {
    let mut client = Client::warm();
    client.0.withdraw(LockHandle(1));
    let again = [granted(3, ROOT, SHOWN)];
    client.asks(&MdtRequest::GetAttributes(ROOT), &MdtReply::Entry(directory()), &again);
    client.asks(&look_up("none"), &MdtReply::Absent, &[granted(4, ROOT, inode_bit::DIRECTORY)]);
    assert_eq!(client.looked_up("none"), Some(Err(FsError::NotFound)));
    let plain = Entry { no_public_xattrs: true, ..file(5) };
    assert_eq!(client.0.xattr(FILE, b"security.selinux"), None);
    client.asks(&look_up("file"), &MdtReply::Entry(plain), &[]);
    assert_eq!(client.0.xattr(FILE, b"security.selinux"), Some(Err(FsError::NoData)));
    assert_eq!(client.0.xattr(FILE, b"user.name"), None, "who may read it is not known");
    let names = MdtReply::Names(vec![b"lustre.lov".to_vec()]);
    client.asks(&MdtRequest::ListXattr(nobody(), FILE), &names, &[]);
    assert_eq!(client.0.xattr_names(&nobody(), FILE, |_| false), Some(vec![b"lustre.lov".to_vec()]));
    assert_eq!(client.0.xattr_names(&Credentials::root(), FILE, |_| false), None, "root sees others");
    client.0.withdraw(LockHandle(2));
    assert_eq!(client.0.xattr(FILE, b"security.selinux"), None);
    assert_eq!(client.0.xattr_names(&nobody(), FILE, |_| false), None);
}

/// Between two locks on opens the MDT takes nothing for open.
#[test]
fn an_open_that_is_not_registered_needs_the_very_lock_that_came_with_it() {
    let mut client = Client::warm();
    let set_times = set_times(FILE);
    client.asks(&set_times, &MdtReply::Done, &[granted(5, FILE, inode_bit::OPEN)]);
    assert!(client.0.may_open_by(FILE, LockHandle(5)));
    assert!(!client.0.may_open_by(FILE, LockHandle(2)), "it is about other parts");
    client.0.withdraw(LockHandle(5));
    client.asks(&set_times, &MdtReply::Done, &[granted(6, FILE, inode_bit::OPEN)]);
    assert!(!client.0.may_open_by(FILE, LockHandle(5)) && client.0.may_open_by(FILE, LockHandle(6)));
}

#[path = "inode_cache_data.rs"]
mod data;
