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
        fs.mdt.set_parameters(mds::Parameters { open_locks: true, ..fs.mdt.parameters() });
        fs.begin(BOB).await;
        let holders = Holders::of(&fs.mdt, fs.seams.clock.clone(), std::time::Duration::from_secs(3600));
        Arc::new(Self { fs, holders })
    }

    /// Locks that come with a reply to a request that names this inode.
    async fn wanting(&self, client: ClientId, request: MdtRequest, inode: InodeNumber) -> Vec<Granted> {
        let resource = Resource::Inode(inode, InodeBits(inode_bit::OPEN));
        let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
        let extension = RequestExtension { wanted, ..Default::default() };
        let xid = self.fs.next_xid(client);
        let call = Call { extension, ..Call::plain(client, Slot(0), xid, Request::Mdt(request), Bytes::new()) };
        let answer = self.fs.mdt.clone().handle(call).await;
        answer.reply.expect("it succeeds");
        answer.extension.granted
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
        let heard = test.holders.heard(1).await;
        assert_eq!((heard[0].0, heard[0].1.handle), (BOB, handle), "asked for its own lock");
        assert!(test.exists(file).await, "it may be open");
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
    assert_eq!(writes, Err(FsError::Invalid));
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
