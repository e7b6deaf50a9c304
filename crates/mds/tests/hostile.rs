//! What is refused to a client that does not follow the rules, through ordinary sessions.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::*;
use layout::{BackingSpec, ComponentId, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, StripeSpec};
use rpc::{
    Endpoint, Import, ImportOptions, Question, Server, ServerOptions,
    checksum::checksums,
    message::{
        Compound, LeaveFullOst, LeaveStep, MdtReply, MdtRequest, OstRequest, Step, StepInode,
        mdt::{
            Close, Create, ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, HeldLock, LockFamily, LockMode, LockRange,
            Open, OpenFlags, OpenId, ReadDirectory, Reclaim, ReportSize, SetLock, SizeUpdate,
        },
        ost::{SpaceChange, Write},
    },
};
use types::{
    ClientId, Credentials, FsError, FsResult, InodeNumber, NodeKind, ObjectId, OstIndex, Owner,
    limits::{COMPOUND_DATA_BYTES_MAX, COMPOUND_STEPS_MAX, FILE_BYTES_MAX, GROUPS_MAX, RECLAIM_ENTRIES_MAX},
};

const MALLORY: ClientId = ClientId(0x666);
const WHOLE: LockRange = LockRange { start: 0, end: u64::MAX };

/// An MDT behind a server, and two of its clients.
struct Scene {
    fs: Fixture,
    server: Arc<Server>,
    honest: Import,
    hostile: Import,
}

impl Scene {
    async fn new() -> Self {
        Self::with(Fixture::new().await)
    }

    fn with(fs: Fixture) -> Self {
        let server = Server::new(fs.seams.clone(), ServerOptions::new(rpc::Keyring::of_test()));
        server.add_target("test-MDT0000", fs.mdt.clone(), Duration::from_secs(3600));
        let (honest, hostile) = (connect(&fs, &server, BOB), connect(&fs, &server, MALLORY));
        Self { fs, server, honest, hostile }
    }
}

fn connect(fs: &Fixture, server: &Arc<Server>, client: ClientId) -> Import {
    let endpoint = Endpoint::Local(server.clone());
    Import::new(fs.seams.clone(), "test-MDT0000", endpoint, principal(client), ImportOptions::default(), None)
}

async fn ask_with(import: &Import, request: MdtRequest, bulk: Bytes) -> FsResult<MdtReply> {
    Ok(import.call(Question::with_bulk(request, bulk)).await?.reply)
}

async fn ask(import: &Import, request: MdtRequest) -> FsResult<MdtReply> {
    ask_with(import, request, Bytes::new()).await
}

async fn open(import: &Import, inode: InodeNumber, open: u64, flags: u32) -> FsResult<MdtReply> {
    ask(import, MdtRequest::Open(root(), Open { inode, open: OpenId(open), flags: OpenFlags(flags) })).await
}

async fn close(import: &Import, inode: InodeNumber, open: u64, update: Option<SizeUpdate>) -> MdtReply {
    let close = Close { inode, open: OpenId(open), update, flock_owner: None };
    ask(import, MdtRequest::Close(close)).await.expect("a close never fails")
}

fn lock(inode: InodeNumber) -> MdtRequest {
    let (family, mode) = (LockFamily::Posix, LockMode::Exclusive);
    MdtRequest::SetLock(SetLock { inode, family, owner: 1, pid: 1, range: WHOLE, mode, ticket: None })
}

fn report_size(inode: InodeNumber, update: SizeUpdate) -> MdtRequest {
    MdtRequest::ReportSize(ReportSize { inode, update })
}

#[tokio::test]
async fn a_client_opens_as_many_files_as_it_may_and_others_go_on() {
    let mut fs = Fixture::new().await;
    fs.options.opens_per_client_max = 3;
    fs.restart_and_recover().await;
    let file = fs.file(ROOT, "f").await;
    let Scene { honest, hostile, fs, .. } = Scene::with(fs);
    for number in 0..3 {
        open(&hostile, file, number, READ).await.unwrap();
    }
    let create = |open| create_request(ROOT, "new", NodeKind::Regular, 0o644, Some((OpenId(open), OpenFlags(WRITE))));
    for refused in [open(&hostile, file, 3, READ).await, ask(&hostile, MdtRequest::Create(root(), create(3))).await] {
        let Err(FsError::TooMany(full)) = refused else { panic!("{refused:?}") };
        let text = full.to_string();
        assert!(text.contains("3 files open on test-MDT0000") && text.contains("close some"), "{text}");
    }
    assert_eq!(fs.names(ROOT).await, ["f"], "what cannot be opened is not made");
    open(&hostile, file, 2, READ).await.expect("it is open already");
    open(&honest, file, 3, READ).await.expect("another client's");
    close(&hostile, file, 0, None).await;
    open(&hostile, file, 3, READ).await.expect("one was closed");
}

/// An open ends by a close, so that all that depends on it is told.
#[tokio::test]
async fn a_number_that_is_in_use_is_given_to_no_other_open() {
    let Scene { hostile, fs, .. } = Scene::new().await;
    let (file, other) = (fs.file(ROOT, "f").await, fs.file(ROOT, "g").await);
    open(&hostile, file, 1, WRITE).await.unwrap();
    let create = create_request(ROOT, "new", NodeKind::Regular, 0o644, Some((OpenId(1), OpenFlags(WRITE))));
    assert_eq!(ask(&hostile, MdtRequest::Create(root(), create)).await, Err(FsError::Invalid));
    assert_eq!(open(&hostile, other, 1, READ).await, Err(FsError::Invalid));
    assert_eq!(fs.names(ROOT).await, ["f", "g"]);
    open(&hostile, file, 1, WRITE).await.expect("the same file");
    close(&hostile, file, 1, None).await;
    open(&hostile, other, 1, READ).await.expect("the number is free");
}

#[tokio::test]
async fn only_who_was_told_to_reports_a_size() {
    let Scene { honest, hostile, fs, .. } = Scene::new().await;
    let file = fs.file(ROOT, "f").await;
    open(&honest, file, 1, WRITE).await.unwrap();
    let MdtReply::Closed(closed) = close(&honest, file, 1, None).await else { panic!("a close") };
    let (epoch, _) = closed.size_wanted.expect("the last writer is asked");
    for guessed in [epoch - 1, epoch, epoch + 1] {
        assert_eq!(ask(&hostile, report_size(file, size_update(guessed, 1 << 40))).await, Err(FsError::NotPermitted));
    }
    let impossible = SizeUpdate { size: FILE_BYTES_MAX + 1, ..size_update(epoch, 0) };
    assert_eq!(ask(&honest, report_size(file, impossible)).await, Err(FsError::FileTooLarge));
    done(ask(&honest, report_size(file, size_update(epoch, 700))).await.unwrap()).unwrap();
    assert_eq!(fs.stat(file).await.unwrap().attributes.size, 700);
}

#[tokio::test]
async fn impossible_sizes_are_not_believed_and_the_file_is_closed() {
    let Scene { honest, fs, .. } = Scene::new().await;
    let file = fs.file(ROOT, "f").await;
    let MdtReply::Opened(opened) = open(&honest, file, 1, WRITE).await.unwrap() else { panic!("an open") };
    let impossible = SizeUpdate { size: u64::MAX, ..size_update(opened.epoch, 0) };
    let MdtReply::Closed(closed) = close(&honest, file, 1, Some(impossible)).await else { panic!("a close") };
    assert!(closed.size_wanted.is_some(), "its objects are to be asked");
    let entry = fs.stat(file).await.unwrap();
    assert!(entry.attributes.size == 0 && entry.size_unknown.is_some());
    assert_eq!(fs.mdt.open_files(), 0);
}

/// The end of a truncation makes the size known, even if nobody began one.
#[tokio::test]
async fn the_end_of_a_truncation_is_told_by_who_began_it() {
    let Scene { honest, hostile, fs, .. } = Scene::new().await;
    let file = fs.file(ROOT, "f").await;
    open(&honest, file, 1, WRITE).await.unwrap();
    let MdtReply::Closed(closed) = close(&honest, file, 1, None).await else { panic!("a close") };
    let (epoch, _) = closed.size_wanted.expect("its size is unknown");
    let end = |update| MdtRequest::ExclusiveEnd(ExclusiveEnd { inode: file, update: Some(update) });
    done(ask(&hostile, end(size_update(epoch, 1 << 40))).await.unwrap()).unwrap();
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some());
    let begin = ExclusiveBegin { inode: file, open: None, purpose: ExclusivePurpose::Truncate(10) };
    let granted = ask(&honest, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap();
    let MdtReply::ExclusiveGranted(granted) = granted else { panic!("{granted:?}") };
    done(ask(&honest, end(size_update(granted.epoch, 10))).await.unwrap()).unwrap();
    let entry = fs.stat(file).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size), (None, 10));
}

#[tokio::test]
async fn what_concerns_an_open_file_takes_an_open_of_it() {
    let Scene { honest, hostile, fs, .. } = Scene::new().await;
    let file = fs.file(ROOT, "f").await;
    open(&honest, file, 1, READ | WRITE).await.unwrap();
    let requests = [lock(file), MdtRequest::ClearPrivileges(file)];
    for request in requests {
        assert_eq!(ask(&hostile, request.clone()).await, Err(FsError::BadHandle), "{request:?}");
        let granted = ask(&honest, request.clone()).await;
        assert!(granted.is_ok(), "{request:?}: {granted:?}");
    }
    let (open_of_others, generation) = (OpenId(1), Layout::FIRST_GENERATION);
    let step = LeaveStep::Fence(ComponentId(1));
    let leave = LeaveFullOst { inode: file, open: open_of_others, generation, step };
    assert_eq!(ask(&hostile, MdtRequest::LeaveFullOst(leave)).await, Err(FsError::BadHandle));
    // To read does not suffice to write.
    open(&hostile, file, 1, READ).await.unwrap();
    assert_eq!(ask(&hostile, MdtRequest::ClearPrivileges(file)).await, Err(FsError::BadHandle));
    assert_eq!(ask(&hostile, MdtRequest::ReportFull(OstIndex(0))).await, Err(FsError::NotPermitted));
    done(ask(&honest, MdtRequest::ReportFull(OstIndex(0))).await.unwrap()).unwrap();
}

#[tokio::test]
async fn a_directory_that_is_not_open_for_reading_is_not_read() {
    let Scene { hostile, fs, .. } = Scene::new().await;
    let secret = fs.create(&root(), ROOT, "d", NodeKind::Directory, 0o700).await.unwrap();
    let open = Open { inode: secret, open: OpenId(1), flags: OpenFlags(0) };
    ask(&hostile, MdtRequest::Open(user(5), open)).await.expect("it asks for no permission");
    let read =
        ReadDirectory { inode: secret, open: OpenId(1), cookie: 0, entries_max: 10, attributes: false, unasked: None };
    assert_eq!(ask(&hostile, MdtRequest::ReadDirectory(read)).await, Err(FsError::BadHandle));
}

#[tokio::test]
async fn data_on_the_mdt_are_changed_by_writers_only() {
    let Scene { honest, hostile, .. } = Scene::new().await;
    let layout = LayoutSpec::Composite(vec![
        ComponentSpec { end: 64 << 10, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ]);
    let opens = Some((OpenId(1), OpenFlags(WRITE)));
    let create = Create { layout: Some(layout), ..create_request(ROOT, "f", NodeKind::Regular, 0o644, opens) };
    let inode = created(ask(&honest, MdtRequest::Create(root(), create)).await.unwrap()).entry.attributes.inode;
    let object = ObjectId::new(inode, 0);
    let write = async |import: &Import, offset| {
        let data = Bytes::from_static(b"data");
        let write = Write {
            object,
            offset,
            checksums: checksums(0, &data),
            sync: false,
            layout_generation: 0,
            owner: Owner::default(),
        };
        ask_with(import, MdtRequest::ChangeData(OstRequest::Write(write)), data).await
    };
    let space = |change| MdtRequest::ChangeData(OstRequest::Space(object, change, 0, Owner::default()));
    let truncate = space(SpaceChange::Truncate { size: 0 });
    write(&honest, 0).await.unwrap();
    assert_eq!(write(&hostile, 0).await, Err(FsError::BadHandle));
    assert_eq!(ask(&hostile, truncate.clone()).await, Err(FsError::BadHandle));
    open(&hostile, inode, 1, READ).await.unwrap();
    assert_eq!(ask(&hostile, truncate.clone()).await, Err(FsError::BadHandle));
    // Nor does anybody go beyond what there is.
    for offset in [64 << 10, FILE_BYTES_MAX, u64::MAX - 4, u64::MAX] {
        assert!(write(&honest, offset).await.is_err(), "{offset}");
    }
    for change in [
        SpaceChange::Truncate { size: u64::MAX },
        SpaceChange::Allocate { offset: u64::MAX, bytes: u64::MAX, extend: true },
        SpaceChange::Punch { offset: 1, bytes: u64::MAX },
        SpaceChange::Zero { offset: u64::MAX, bytes: 1, extend: true },
    ] {
        assert!(ask(&honest, space(change)).await.is_err(), "{change:?}");
    }
    ask(&honest, truncate).await.unwrap();
}

#[tokio::test]
async fn lists_have_an_end() {
    let Scene { hostile, fs, .. } = Scene::new().await;
    let file = fs.file(ROOT, "f").await;
    let many = Credentials { groups: Some(vec![7; GROUPS_MAX + 1]), ..user(5) };
    assert_eq!(ask(&hostile, MdtRequest::Access(many, file, 4)).await, Err(FsError::TooBig));
    let opens = (0..=RECLAIM_ENTRIES_MAX as u64).map(|number| (file, OpenId(number), OpenFlags(READ))).collect();
    let reclaim = Reclaim { opens, ..Reclaim::default() };
    assert_eq!(ask(&hostile, MdtRequest::Reclaim(reclaim)).await, Err(FsError::TooBig));
}

#[tokio::test]
async fn oversized_compounds_are_refused_and_others_are_served() {
    let Scene { honest, hostile, fs, .. } = Scene::new().await;
    let root_directory = StepInode::Known(ROOT);
    let compound = |steps| MdtRequest::Compound(Compound { who: root(), steps });
    let create = |number: usize| Step::Create {
        parent: root_directory,
        name: number.to_string().into_bytes(),
        kind: NodeKind::Directory,
        mode: 0o755,
        umask: 0,
        layout: None,
        open: None,
    };
    let many = compound((0..=COMPOUND_STEPS_MAX).map(create).collect());
    assert_eq!(ask(&hostile, many).await, Err(FsError::TooBig));
    let data = Bytes::from(vec![7; COMPOUND_DATA_BYTES_MAX + 1]);
    let bytes = data.len() as u32;
    let write = Step::Write { inode: root_directory, offset: 0, bytes, checksums: checksums(0, &data) };
    assert_eq!(ask_with(&hostile, compound(vec![write]), data).await, Err(FsError::TooBig));
    let read = Step::Read { inode: root_directory, offset: 0, bytes: u32::MAX };
    assert_eq!(ask(&hostile, compound(vec![read; 2])).await, Err(FsError::TooBig));
    assert_eq!(fs.names(ROOT).await, Vec::<String>::new());
    let most = compound((0..COMPOUND_STEPS_MAX).map(create).collect());
    assert!(matches!(ask(&honest, most).await, Ok(MdtReply::Compound(reply)) if reply.error.is_none()));
    assert_eq!(fs.names(ROOT).await.len(), COMPOUND_STEPS_MAX);
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn a_lock_is_claimed_back_with_its_file() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    fs.restart().await;
    let (family, mode) = (LockFamily::Posix, LockMode::Exclusive);
    let held = HeldLock { inode: file, family, client: ALICE, owner: 1, pid: 1, range: WHOLE, mode };
    fs.reclaim(ALICE, Reclaim { locks: vec![held], done: true, ..Reclaim::default() }).await.unwrap();
    let Scene { honest, server, .. } = Scene::with(fs);
    open(&honest, file, 1, READ).await.unwrap();
    done(ask(&honest, lock(file)).await.unwrap()).unwrap();
    assert_eq!(server.sessions("test-MDT0000").len(), 1);
}
