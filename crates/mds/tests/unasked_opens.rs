//! Opens that clients make without asking, under locks on the opens of inodes: what withdraws these
//! locks, and how long an inode is taken to be open because it may be.

use crate::common;

use std::sync::Arc;

use bytes::Bytes;
use common::{holders::Holders, *};
use rpc::{
    Call, Handler, SessionEvent,
    message::{
        MdtReply, MdtRequest, Request, RequestExtension,
        lock::{CacheMode, Enqueue, Granted, InodeBits, Resource, inode_bit},
        mdt::{Close, Lookup, NotReclaimed, OpenFlags, OpenId, ReadDirectory, RegisterOpens, Unlink, open_flag},
    },
};
use types::{ClientId, FsError, FsResult, InodeNumber, LockHandle, NodeKind, Slot};

const OPEN: OpenId = OpenId(77);

struct Test {
    fs: Fixture,
    holders: Arc<Holders>,
}

impl Test {
    async fn new() -> Arc<Self> {
        let fs = Fixture::new().await;
        fs.begin(BOB).await;
        let holders = Holders::of(&fs.mdt, fs.seams.clock.clone(), std::time::Duration::from_secs(3600));
        Arc::new(Self { fs, holders })
    }

    /// Locks that come with a reply to a request that names this inode.
    async fn wanting(&self, client: ClientId, request: MdtRequest, inode: InodeNumber) -> Vec<Granted> {
        self.asking(client, request, inode, InodeBits(inode_bit::OPEN)).await.1
    }

    /// The same for these parts, with the reply.
    async fn asking(
        &self,
        client: ClientId,
        request: MdtRequest,
        inode: InodeNumber,
        bits: InodeBits,
    ) -> (MdtReply, Vec<Granted>) {
        let wanted =
            Some(Enqueue { resource: Resource::Inode(inode, bits), mode: CacheMode::Read, opportunistic: true });
        let extension = RequestExtension { wanted, ..Default::default() };
        let xid = self.fs.next_xid(client);
        let call = Call { extension, ..Call::plain(client, Slot(0), xid, Request::Mdt(request), Bytes::new()) };
        let answer = self.fs.mdt.clone().handle(call).await;
        let rpc::message::Reply::Mdt(reply) = answer.reply.expect("it succeeds") else { panic!("of another target") };
        (reply, answer.extension.granted)
    }

    /// A directory, and BOB's lock on its opens.
    async fn directory(&self, client: ClientId, name: &str) -> (InodeNumber, LockHandle) {
        let directory = self.fs.mkdir(ROOT, name).await;
        let lookup = MdtRequest::Lookup(root(), Lookup { parent: ROOT, name: name.into() });
        let granted = self.wanting(client, lookup, ROOT).await;
        assert_eq!(granted.len(), 1);
        assert_eq!(granted[0].resource, Resource::Inode(directory, InodeBits(inode_bit::OPEN)));
        (directory, granted[0].handle)
    }

    /// A file, and the client's lock on its opens.
    async fn file(&self, client: ClientId, name: &str) -> (InodeNumber, LockHandle) {
        let file = self.fs.file(ROOT, name).await;
        let (open, flags) = (OpenId(1000 + file.0), OpenFlags(READ));
        let request = MdtRequest::Open(root(), rpc::message::mdt::Open { inode: file, open, flags });
        let granted = self.wanting(client, request, file).await;
        assert_eq!(granted[0].resource, Resource::Inode(file, InodeBits(inode_bit::OPEN)));
        self.close(client, file, open).await;
        (file, granted[0].handle)
    }

    async fn close(&self, client: ClientId, inode: InodeNumber, open: OpenId) {
        let close = Close { inode, open, update: None, flock_owner: None };
        self.fs.call(client, MdtRequest::Close(close)).await.unwrap();
    }

    async fn register(&self, client: ClientId, inode: InodeNumber, complete: bool) -> FsResult<MdtReply> {
        self.tell(client, vec![(inode, OPEN, OpenFlags(READ))], complete).await
    }

    async fn tell(
        &self,
        client: ClientId,
        opens: Vec<(InodeNumber, OpenId, OpenFlags)>,
        complete: bool,
    ) -> FsResult<MdtReply> {
        self.fs.call(client, MdtRequest::RegisterOpens(RegisterOpens { opens, complete })).await
    }

    async fn cancel(&self, client: ClientId, handle: LockHandle) {
        done(self.fs.call(client, MdtRequest::CancelLocks(vec![handle])).await.unwrap()).unwrap();
    }

    async fn unlink(&self, client: ClientId, name: &str, directory: bool) -> FsResult<MdtReply> {
        let unlink = Unlink { parent: ROOT, name: name.into(), directory };
        self.fs.call(client, MdtRequest::Unlink(root(), unlink)).await
    }

    async fn exists(&self, inode: InodeNumber) -> bool {
        match self.fs.call(ALICE, MdtRequest::GetAttributes(inode)).await {
            Ok(MdtReply::Entry(entry)) => {
                assert_eq!(entry.attributes.links, 0, "it was removed");
                true
            }
            Err(FsError::Stale) => false,
            other => panic!("an inode was answered {other:?}"),
        }
    }

    /// Waits until an inode that nobody has open is ended.
    async fn gone(&self, inode: InodeNumber) {
        while self.exists(inode).await {
            tokio::task::yield_now().await;
        }
    }

    /// A client connects again; its session continues.
    fn reconnect(&self, client: ClientId) {
        self.fs.mdt.connection_begun(client);
    }
}

#[tokio::test]
async fn the_removal_of_a_last_name_waits_for_what_others_opened() {
    let test = Test::new().await;
    let (file, handle) = test.file(BOB, "file").await;
    let remover = test.clone();
    let removal = tokio::spawn(async move { remover.unlink(ALICE, "file", false).await });
    let heard = test.holders.heard(1).await;
    assert_eq!((heard[0].0, heard[0].1.handle), (BOB, handle));
    assert!(!removal.is_finished());
    assert_eq!(test.register(BOB, file, false).await, Ok(MdtReply::Done));
    assert_eq!(test.register(BOB, file, false).await, Ok(MdtReply::Done), "it may be repeated");
    test.cancel(BOB, handle).await;
    removal.await.unwrap().unwrap();
    assert!(test.exists(file).await, "it is open");
    test.close(BOB, file, OPEN).await;
    assert!(!test.exists(file).await);
}

#[tokio::test]
async fn who_removes_a_last_name_itself_tells_afterwards() {
    for has_open in [true, false] {
        let test = Test::new().await;
        let (file, handle) = test.file(BOB, "file").await;
        test.unlink(BOB, "file", false).await.unwrap();
        assert!(test.exists(file).await, "it may be open");
        assert_eq!(test.holders.heard_so_far(), 0, "it gives the lock back by itself");
        if has_open {
            assert_eq!(test.register(BOB, file, false).await, Ok(MdtReply::Done));
            test.cancel(BOB, handle).await;
            assert!(test.exists(file).await);
            test.close(BOB, file, OPEN).await;
        } else {
            test.cancel(BOB, handle).await;
        }
        test.gone(file).await;
    }
}

/// No request arrives meanwhile.
#[tokio::test]
async fn who_removes_a_last_name_and_keeps_the_lock_is_asked_for_it() {
    let test = Test::new().await;
    let (file, handle) = test.file(BOB, "file").await;
    test.unlink(BOB, "file", false).await.unwrap();
    let heard = test.holders.heard(1).await;
    assert_eq!((heard[0].0, heard[0].1.handle), (BOB, handle));
    test.cancel(BOB, handle).await;
    test.gone(file).await;
}

#[tokio::test]
async fn a_new_connection_says_what_is_open_before_anything_is_ended() {
    for has_open in [true, false] {
        let test = Test::new().await;
        let (file, _) = test.file(BOB, "file").await;
        let (directory, _) = test.directory(BOB, "directory").await;
        test.reconnect(BOB);
        test.unlink(ALICE, "file", false).await.unwrap();
        test.unlink(ALICE, "directory", true).await.unwrap();
        assert!(test.exists(file).await && test.exists(directory).await, "both may be open");
        if has_open {
            assert_eq!(test.register(BOB, file, true).await, Ok(MdtReply::Done));
            test.gone(directory).await;
            assert!(test.exists(file).await);
            test.close(BOB, file, OPEN).await;
        } else {
            assert_eq!(test.tell(BOB, Vec::new(), true).await, Ok(MdtReply::Done));
        }
        test.gone(file).await;
        test.gone(directory).await;
    }
}

#[tokio::test]
async fn nothing_is_presumed_of_a_session_that_ended() {
    let test = Test::new().await;
    let (file, _) = test.file(BOB, "file").await;
    test.reconnect(BOB);
    test.unlink(ALICE, "file", false).await.unwrap();
    assert!(test.exists(file).await);
    test.fs.mdt.clone().session_event(SessionEvent::Closed(BOB)).await;
    test.gone(file).await;
}

#[tokio::test]
async fn only_the_holder_of_a_lock_may_open_without_asking() {
    let test = Test::new().await;
    let (file, handle) = test.file(BOB, "file").await;
    let refused = Ok(MdtReply::NotReclaimed(NotReclaimed { lost: vec![file], undone: Vec::new() }));
    assert_eq!(test.register(ALICE, file, true).await, refused);
    test.cancel(BOB, handle).await;
    assert_eq!(test.register(BOB, file, false).await, refused);
    let (file, _) = test.file(BOB, "other").await;
    let writes = test.tell(BOB, vec![(file, OPEN, OpenFlags(READ | WRITE))], false).await;
    let refused = NotReclaimed { lost: vec![file], undone: Vec::new() };
    assert_eq!(writes, Ok(MdtReply::NotReclaimed(refused)));
    assert_eq!(test.fs.mdt.open_files(), 0);
}

#[tokio::test]
async fn a_directory_is_read_under_the_lock_on_its_opens() {
    let test = Test::new().await;
    let (directory, handle) = test.directory(BOB, "directory").await;
    let read = |unasked| {
        let inode = directory;
        let read = ReadDirectory { inode, open: OPEN, cookie: 0, entries_max: 9, attributes: false, unasked };
        test.fs.call(BOB, MdtRequest::ReadDirectory(read))
    };
    let (asked, unasked) = (None, Some(OpenFlags(READ)));
    assert!(matches!(read(unasked).await, Ok(MdtReply::Directory(names, true)) if names.len() == 2));
    assert_eq!(read(Some(OpenFlags(open_flag::EXECUTE))).await, Err(FsError::BadHandle), "not for reading");
    assert_eq!(read(asked).await, Err(FsError::BadHandle));
    test.register(BOB, directory, false).await.unwrap();
    test.cancel(BOB, handle).await;
    assert_eq!(read(unasked).await, Err(FsError::BadHandle));
    assert!(matches!(read(asked).await, Ok(MdtReply::Directory(..))));
}

#[tokio::test]
async fn opens_of_files_come_with_an_open_for_reading_only() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let lookup = || MdtRequest::Lookup(root(), Lookup { parent: ROOT, name: b"file".to_vec() });
    assert_eq!(test.wanting(BOB, lookup(), ROOT).await, [], "its layout is not shown");
    let open = |flags| {
        let open = rpc::message::mdt::Open { inode: file, open: OPEN, flags: OpenFlags(flags) };
        test.wanting(BOB, MdtRequest::Open(root(), open), file)
    };
    assert_eq!(open(WRITE).await, []);
    assert_eq!(open(READ).await.len(), 1);
    let made = create_request(ROOT, "made", NodeKind::Directory, 0o755, None);
    assert_eq!(test.wanting(BOB, MdtRequest::Create(root(), made), ROOT).await.len(), 1);
}

/// More locks than are removed at once.
const DIRECTORIES: usize = 1100;

impl Test {
    /// Directories, and BOB's locks on their opens, in order of age.
    async fn many_directories(&self) -> Vec<(String, InodeNumber)> {
        for number in 0..DIRECTORIES {
            self.fs.mkdir(ROOT, &format!("d{number}")).await;
        }
        let (open, _) = self.fs.open(BOB, &root(), ROOT, READ).await.unwrap();
        let entries_max = 2 * DIRECTORIES as u32;
        let read = ReadDirectory { inode: ROOT, open, cookie: 0, entries_max, attributes: true, unasked: None };
        let bits = InodeBits(inode_bit::OPEN | inode_bit::ATTRIBUTES);
        let reply = self.asking(BOB, MdtRequest::ReadDirectory(read), ROOT, bits).await.0;
        let MdtReply::Directory(page, true) = reply else { panic!("all of it") };
        self.close(BOB, ROOT, open).await;
        let locked = page.into_iter().filter(|found| found.locks.iter().any(|(_, granted)| *granted == bits));
        let directories: Vec<_> = locked.map(|found| (String::from_utf8(found.name).unwrap(), found.inode)).collect();
        assert_eq!((directories.len(), self.fs.mdt.cache_locks().0), (DIRECTORIES, DIRECTORIES));
        directories
    }

    /// A removal by ALICE under way.
    fn removal(self: &Arc<Self>, name: &str) -> tokio::task::JoinHandle<FsResult<MdtReply>> {
        let (test, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move { test.unlink(ALICE, &name, true).await })
    }
}

/// The namespace is not held up while the locks of a connection that ended become presumptions; a
/// change waits for the step that it needs, and finds the inode open.
#[tokio::test]
async fn many_locks_become_presumptions_in_steps() {
    for has_open in [true, false] {
        let test = Test::new().await;
        let directories = test.many_directories().await;
        let (first, last) = (directories.first().unwrap().clone(), directories.last().unwrap().clone());
        test.reconnect(BOB);
        assert!(test.fs.mdt.cache_locks().0 > 0, "some are removed later");
        let removals = [&first, &last].map(|(name, _)| test.removal(name));
        for removal in removals {
            removal.await.unwrap().unwrap();
        }
        assert!(test.exists(first.1).await && test.exists(last.1).await, "both may be open");
        // Once more, while it has not told.
        test.reconnect(BOB);
        assert!(test.exists(first.1).await && test.exists(last.1).await);
        let opens = if has_open { vec![(last.1, OPEN, OpenFlags(READ))] } else { Vec::new() };
        assert_eq!(test.tell(BOB, opens, true).await, Ok(MdtReply::Done));
        test.gone(first.1).await;
        if has_open {
            assert!(test.exists(last.1).await);
            test.close(BOB, last.1, OPEN).await;
        }
        test.gone(last.1).await;
        // Nothing is left of it: what it did not open is removed at once, and it gets locks again.
        let (name, inode) = &directories[1];
        test.unlink(ALICE, name, true).await.unwrap();
        assert!(!test.exists(*inode).await);
        test.directory(BOB, "new").await;
    }
}

/// A client tells what it has open before all of its former locks are removed.
#[tokio::test]
async fn a_client_may_tell_before_its_former_locks_are_removed() {
    let test = Test::new().await;
    let directories = test.many_directories().await;
    let (name, inode) = directories.last().unwrap();
    test.reconnect(BOB);
    assert_eq!(test.register(BOB, directories[0].1, true).await, Ok(MdtReply::Done));
    assert!(test.fs.mdt.cache_locks().0 > 0, "some are removed later");
    test.removal(name).await.unwrap().unwrap();
    assert!(!test.exists(*inode).await, "it has told all that it has open");
    test.unlink(ALICE, &directories[0].0, true).await.unwrap();
    assert!(test.exists(directories[0].1).await);
    test.close(BOB, directories[0].1, OPEN).await;
    test.gone(directories[0].1).await;
}

/// The same client removes what it may have open, under a lock of its former connection.
#[tokio::test]
async fn a_request_of_the_former_connection_removes_what_may_be_open() {
    let test = Test::new().await;
    let directories = test.many_directories().await;
    let (name, inode) = directories.last().unwrap();
    test.reconnect(BOB);
    test.unlink(BOB, name, true).await.unwrap();
    while test.fs.mdt.cache_locks().0 > 0 {
        tokio::task::yield_now().await;
    }
    assert!(test.exists(*inode).await, "the lock is not what it waits for: it has not told");
    assert_eq!(test.register(BOB, *inode, true).await, Ok(MdtReply::Done));
    assert!(test.exists(*inode).await);
    test.close(BOB, *inode, OPEN).await;
    test.gone(*inode).await;
}

/// All of a session's presumptions end with it, however many there are, before a new one begins.
#[tokio::test]
async fn many_presumptions_end_with_their_session() {
    let test = Test::new().await;
    let directories = test.many_directories().await;
    test.reconnect(BOB);
    let removed = [&directories[0], &directories[1], &directories[DIRECTORIES - 1]];
    for (name, inode) in removed {
        test.removal(name).await.unwrap().unwrap();
        assert!(test.exists(*inode).await);
    }
    test.fs.mdt.clone().session_event(SessionEvent::Closed(BOB)).await;
    for (_, inode) in removed {
        test.gone(*inode).await;
    }
    test.fs.begin(BOB).await;
    test.directory(BOB, "new").await;
}

/// The message of a client that is not right about one open must not be refused as a whole: it has
/// to be done with it before it can go on.
#[tokio::test]
async fn an_open_that_needs_a_request_is_refused_and_no_other() {
    let test = Test::new().await;
    let (file, _) = test.file(BOB, "file").await;
    let (other, _) = test.file(BOB, "other").await;
    let opens = vec![(file, OPEN, OpenFlags(READ | open_flag::APPEND)), (other, OpenId(OPEN.0 + 1), OpenFlags(READ))];
    let refused = NotReclaimed { lost: vec![file], undone: Vec::new() };
    assert_eq!(test.tell(BOB, opens, true).await, Ok(MdtReply::NotReclaimed(refused)));
    assert_eq!(test.fs.mdt.open_files(), 1);
}
