//! Compounds: what their steps see of each other, what remains when one fails, and what a client
//! that does not follow the rules gets.

use crate::common;

use bytes::Bytes;
use common::{ALICE, BOB, Fixture, READ, ROOT, WRITE, root, user};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, LayoutSpec, StripeSpec};
use rpc::{
    checksum::{checksums, verify},
    message::{
        Compound, CompoundReply, MdtReply, MdtRequest, Step, StepInode, StepReply,
        compound::StepNumber,
        mdt::{DataVersion, Entry, Instantiate, OpenFlags, OpenId, SetXattr, SizeUpdate, XattrMode},
    },
};
use types::{
    ClientId, Credentials, FsError, FsResult, InodeNumber, NodeKind, SetAttributes, Slot, Xid,
    limits::{COMPOUND_DATA_BYTES_MAX, COMPOUND_STEPS_MAX, XATTR_VALUE_BYTES_MAX},
};

/// Bytes of a test's files that are on the MDT.
const ON_MDT: u64 = 64 << 10;

fn known(inode: InodeNumber) -> StepInode {
    StepInode::Known(inode)
}

fn of(step: StepNumber) -> StepInode {
    StepInode::Of(step)
}

fn lookup(parent: StepInode, name: &str) -> Step {
    Step::Lookup { parent, name: name.as_bytes().to_vec() }
}

fn create(parent: StepInode, name: &str, kind: NodeKind, open: Option<(OpenId, u32)>) -> Step {
    let open = open.map(|(open, flags)| (open, OpenFlags(flags)));
    Step::Create { parent, name: name.as_bytes().to_vec(), kind, mode: 0o755, umask: 0, layout: None, open }
}

fn open(inode: StepInode, open: OpenId, flags: u32) -> Step {
    Step::Open { inode, open, flags: OpenFlags(flags) }
}

fn write(inode: StepInode, offset: u64, data: &[u8]) -> Step {
    Step::Write { inode, offset, bytes: data.len() as u32, checksums: checksums(offset, data) }
}

fn read(inode: StepInode, offset: u64, bytes: u32) -> Step {
    Step::Read { inode, offset, bytes }
}

fn close(inode: StepInode, open: OpenId, written: Option<StepNumber>) -> Step {
    Step::Close { inode, open, written }
}

fn request(who: Credentials, steps: Vec<Step>) -> MdtRequest {
    MdtRequest::Compound(Compound { who, steps })
}

/// Files with their first bytes on the MDT.
async fn fixture() -> Fixture {
    let fixture = Fixture::new().await;
    let spec = LayoutSpec::Composite(vec![
        ComponentSpec { end: ON_MDT, backing: BackingSpec::Mdt },
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) },
    ]);
    let request = MdtRequest::SetDefaultLayout(root(), ROOT, Some(spec));
    assert_eq!(fixture.call(ALICE, request).await, Ok(MdtReply::Done));
    fixture
}

async fn ask_as(
    fixture: &Fixture,
    client: ClientId,
    request: MdtRequest,
    data: &[u8],
) -> FsResult<(CompoundReply, Bytes)> {
    let xid = fixture.next_xid(client);
    match fixture.call_with(client, Slot(0), xid, request, Bytes::copy_from_slice(data)).await? {
        (MdtReply::Compound(reply), bulk) => Ok((reply, bulk)),
        other => panic!("a compound was answered {other:?}"),
    }
}

async fn ask(fixture: &Fixture, steps: Vec<Step>) -> CompoundReply {
    ask_as(fixture, ALICE, request(root(), steps), &[]).await.expect("it is executed").0
}

fn entry(reply: &StepReply) -> &Entry {
    match reply {
        StepReply::Entry(entry) => entry,
        other => panic!("expected an inode, got {other:?}"),
    }
}

/// The steps that make a file with these data.
fn make(name: &str, open: OpenId, data: &[u8]) -> Vec<Step> {
    let created = create(known(ROOT), name, NodeKind::Regular, Some((open, WRITE)));
    vec![created, write(of(0), 0, data), close(of(0), open, Some(1)), Step::GetAttributes { inode: of(0) }]
}

async fn make_file(fixture: &Fixture, name: &str, data: &[u8]) -> Entry {
    let request = request(root(), make(name, fixture.open_id(), data));
    let (reply, _) = ask_as(fixture, ALICE, request, data).await.unwrap();
    assert_eq!(reply.error, None);
    entry(reply.replies.last().unwrap()).clone()
}

/// Looks a file up, opens, reads and closes it.
async fn read_file(fixture: &Fixture, who: Credentials, name: &str) -> (CompoundReply, Bytes) {
    let id = fixture.open_id();
    let steps = vec![lookup(known(ROOT), name), open(of(0), id, READ), read(of(1), 0, 65536), close(of(1), id, None)];
    ask_as(fixture, ALICE, request(who, steps), &[]).await.unwrap()
}

#[tokio::test]
async fn a_file_is_made_with_its_data_and_read_whole() {
    let fixture = fixture().await;
    for bytes in [0, 1, 4096, 5000, ON_MDT as usize] {
        let (name, data) = (bytes.to_string(), vec![5; bytes]);
        let made = make_file(&fixture, &name, &data).await;
        let expected = (bytes as u64, (bytes as u64).div_ceil(4096) * 8);
        assert_eq!((made.attributes.size, made.attributes.blocks, made.size_unknown), (expected.0, expected.1, None));
        let (reply, found) = read_file(&fixture, root(), &name).await;
        assert_eq!((&reply.error, &found[..]), (&None, &data[..]));
        let [StepReply::Entry(_), StepReply::Opened(opened), StepReply::Read(done), StepReply::Closed(_)] =
            &reply.replies[..]
        else {
            panic!("{reply:?}");
        };
        assert_eq!((opened.entry.attributes.size, done.size), (bytes as u64, bytes as u64));
        verify(0, &found, &done.checksums).unwrap();
    }
    assert_eq!(fixture.mdt.open_files(), 0);
    assert_eq!(fixture.check(false).await, []);
}

#[tokio::test]
async fn a_path_is_walked_and_made_in_one_request() {
    let fixture = fixture().await;
    let directory = |parent, name| create(parent, name, NodeKind::Directory, None);
    let steps = vec![
        directory(known(ROOT), "a"),
        directory(of(0), "b"),
        create(of(1), "link", NodeKind::Symlink(b"to".to_vec()), None),
    ];
    let made = ask(&fixture, steps).await;
    assert_eq!((made.replies.len(), &made.error), (3, &None));
    let steps =
        vec![lookup(known(ROOT), "a"), lookup(of(0), "b"), lookup(of(1), "link"), Step::ReadLink { inode: of(2) }];
    let walked = ask(&fixture, steps).await;
    assert_eq!(walked.replies[3], StepReply::Target(b"to".to_vec()));
    let inodes = |reply: &CompoundReply| reply.replies.iter().filter_map(StepReply::inode).collect::<Vec<_>>();
    assert_eq!(inodes(&walked), inodes(&made));
    let missing = ask(&fixture, vec![lookup(known(ROOT), "a"), lookup(of(0), "c"), lookup(of(1), "d")]).await;
    assert_eq!((missing.replies.len(), missing.error), (1, Some(FsError::NotFound)), "it says where the path ends");
    assert_eq!(fixture.links(ROOT).await, 3);
    assert_eq!(fixture.check(false).await, []);
}

/// Each kind of step after a creation, by a reference to it.
#[tokio::test]
async fn every_kind_of_step_takes_an_inode_from_an_earlier_one() {
    let fixture = fixture().await;
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let id = fixture.open_id();
    let steps = vec![
        create(known(ROOT), "file", NodeKind::Regular, None),
        Step::SetAttributes { inode: of(0), set },
        Step::Access { inode: of(1), mask: 6 },
        open(of(0), id, READ | WRITE),
        write(of(3), 0, b"data"),
        close(of(3), id, Some(4)),
        Step::GetAttributes { inode: of(3) },
    ];
    let (reply, _) = ask_as(&fixture, ALICE, request(root(), steps), b"data").await.unwrap();
    assert_eq!((reply.replies.len(), &reply.error), (7, &None), "{reply:?}");
    let last = entry(&reply.replies[6]);
    assert_eq!((last.attributes.mode, last.attributes.size, &last.size_unknown), (0o600, 4, &None));
    let value = Step::GetXattr { inode: of(0), name: b"user.none".to_vec() };
    let reply = ask(&fixture, vec![lookup(known(ROOT), "file"), value]).await;
    assert_eq!(reply.error, Some(FsError::NoData));
    assert_eq!(fixture.check(false).await, []);
}

#[tokio::test]
async fn the_step_that_fails_leaves_nothing_and_those_before_it_remain() {
    let mut fixture = fixture().await;
    let id = fixture.open_id();
    let steps = vec![
        create(known(ROOT), "kept", NodeKind::Directory, None),
        create(of(0), "open", NodeKind::Regular, Some((id, WRITE))),
        create(of(0), "open", NodeKind::Directory, None),
        create(of(0), "never", NodeKind::Directory, None),
    ];
    let reply = ask(&fixture, steps).await;
    assert_eq!((reply.replies.len(), reply.error), (2, Some(FsError::Exists)));
    let kept = reply.replies[0].inode().unwrap();
    assert_eq!((fixture.names(kept).await, fixture.mdt.open_files()), (vec!["open".to_owned()], 1));
    // The data do not fit on the MDT: the file is there, open and empty.
    let id = fixture.open_id();
    let steps = vec![
        create(known(ROOT), "empty", NodeKind::Regular, Some((id, WRITE))),
        write(of(0), ON_MDT, b"data"),
        close(of(0), id, Some(1)),
    ];
    let (reply, _) = ask_as(&fixture, ALICE, request(root(), steps), b"data").await.unwrap();
    assert_eq!((reply.replies.len(), reply.error), (1, Some(FsError::NotSupported)));
    assert_eq!(fixture.mdt.open_files(), 2);
    assert_eq!(fixture.check(false).await, []);
    fixture.restart_and_recover().await;
    assert_eq!(fixture.names(ROOT).await, ["empty", "kept"]);
    assert_eq!(fixture.check(false).await, []);
}

#[tokio::test]
async fn permissions_are_those_of_each_step() {
    let fixture = fixture().await;
    make_file(&fixture, "file", b"secret").await;
    let private = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    ask(&fixture, vec![lookup(known(ROOT), "file"), Step::SetAttributes { inode: of(0), set: private }]).await;
    let (reply, data) = read_file(&fixture, user(1000), "file").await;
    assert_eq!((reply.replies.len(), reply.error, data.len()), (1, Some(FsError::AccessDenied), 0));
    let steps = vec![create(known(ROOT), "mine", NodeKind::Directory, None)];
    let (reply, _) = ask_as(&fixture, ALICE, request(user(1000), steps), &[]).await.unwrap();
    assert_eq!((reply.replies.len(), reply.error), (0, Some(FsError::AccessDenied)));
    fixture.mkdir(ROOT, "directory").await;
    let (reply, _) = read_file(&fixture, root(), "directory").await;
    assert_eq!((reply.replies.len(), reply.error), (2, Some(FsError::NotSupported)), "it is open, as a directory is");
    // To write takes an open for writing of the same client.
    let file = fixture.lookup(&root(), ROOT, "file").await.unwrap().attributes.inode;
    let steps = vec![write(known(file), 0, b"data")];
    let (reply, _) = ask_as(&fixture, ALICE, request(root(), steps), b"data").await.unwrap();
    assert_eq!(reply.error, Some(FsError::BadHandle));
}

#[tokio::test]
async fn a_compound_that_is_repeated_after_a_crash_is_executed_once() {
    let mut fixture = fixture().await;
    let (left, closed) = (fixture.open_id(), fixture.open_id());
    let mut steps = make("file", closed, b"data");
    steps.push(create(known(ROOT), "open", NodeKind::Regular, Some((left, WRITE))));
    steps.push(create(known(ROOT), "file", NodeKind::Directory, None));
    let (request, data) = (request(root(), steps), Bytes::from_static(b"data"));
    let first = fixture.call_with(ALICE, Slot(3), Xid(1), request.clone(), data.clone()).await.unwrap();
    let MdtReply::Compound(reply) = &first.0 else { panic!("{first:?}") };
    assert_eq!((reply.replies.len(), &reply.error), (5, &Some(FsError::Exists)));
    fixture.restart_and_recover().await;
    assert_eq!(fixture.mdt.open_files(), 0);
    let again = fixture.call_with(ALICE, Slot(3), Xid(1), request, data).await.unwrap();
    assert_eq!(again, first);
    assert_eq!(fixture.names(ROOT).await, ["file", "open"]);
    assert_eq!(fixture.mdt.open_files(), 1, "what it left open is open again, and nothing else");
    let opened = reply.replies[4].inode().unwrap();
    fixture.close(ALICE, opened, left, None).await.unwrap();
    assert_eq!(fixture.mdt.open_files(), 0);
    assert_eq!(fixture.check(false).await, []);
}

#[tokio::test]
async fn all_changes_of_a_compound_are_lost_together() {
    let mut fixture = fixture().await;
    fixture.commit().await;
    make_file(&fixture, "file", b"data").await;
    fixture.lose_power().await;
    fixture.recover().await;
    assert_eq!(fixture.names(ROOT).await, Vec::<String>::new());
    assert_eq!(fixture.check(false).await, []);
    make_file(&fixture, "file", b"data").await;
    fixture.commit().await;
    fixture.lose_power().await;
    fixture.recover().await;
    let (reply, data) = read_file(&fixture, root(), "file").await;
    assert_eq!((reply.error, &data[..]), (None, &b"data"[..]));
}

#[tokio::test]
async fn data_that_arrive_damaged_or_not_at_all_change_nothing() {
    let fixture = fixture().await;
    let make = || request(root(), make("file", OpenId(1), b"data"));
    assert_eq!(ask_as(&fixture, ALICE, make(), b"dAta").await.err(), Some(FsError::Transfer));
    for wrong in [&b""[..], b"dat", b"data and more"] {
        let outcome = ask_as(&fixture, ALICE, make(), wrong).await;
        assert!(matches!(outcome, Err(FsError::Protocol(_))), "{outcome:?}");
    }
    assert_eq!(fixture.names(ROOT).await, Vec::<String>::new());
    assert_eq!(fixture.mdt.open_files(), 0);
}

#[tokio::test]
async fn data_of_several_steps_follow_each_other() {
    let fixture = fixture().await;
    let id = fixture.open_id();
    let steps = vec![
        create(known(ROOT), "file", NodeKind::Regular, Some((id, WRITE))),
        write(of(0), 4096, b"later"),
        write(of(0), 0, b"first"),
    ];
    let (reply, _) = ask_as(&fixture, ALICE, request(root(), steps), b"laterfirst").await.unwrap();
    assert_eq!((reply.replies.len(), reply.error), (3, None));
    let file = known(reply.replies[0].inode().unwrap());
    let steps = vec![read(file, 4096, 100), read(file, 0, 5), read(file, 4100, 100), read(file, 9000, 5)];
    let (reply, data) = ask_as(&fixture, ALICE, request(root(), steps), &[]).await.unwrap();
    assert_eq!((reply.replies.len(), reply.error, &data[..]), (4, None, &b"laterfirstr"[..]));
}

/// A size that the client computed is believed of a file that only this MDT has data of.
#[tokio::test]
async fn a_size_is_not_known_if_an_ost_may_have_data() {
    let fixture = fixture().await;
    let (writer, created) = fixture.create_open(BOB, ROOT, "file", WRITE).await.unwrap();
    let inode = created.entry.attributes.inode;
    let instantiate = Instantiate { inode, open: writer, start: ON_MDT, end: ON_MDT + 1 };
    fixture.call(BOB, MdtRequest::Instantiate(instantiate)).await.unwrap();
    let id = fixture.open_id();
    let steps = || vec![open(known(inode), id, WRITE), write(of(0), 0, b"data"), close(of(0), id, Some(1))];
    let (reply, _) = ask_as(&fixture, ALICE, request(root(), steps()), b"data").await.unwrap();
    assert_eq!((reply.replies.len(), reply.error), (3, None));
    assert!(fixture.stat(inode).await.unwrap().size_unknown.is_some());
    let update = SizeUpdate { epoch: 0, size: 0, blocks: 0, mtime: None, changes: 0 };
    fixture.close(BOB, inode, writer, Some(update)).await.unwrap();
    // Nor of another file, or of an open that is not of this file.
    let other = fixture.file(ROOT, "other").await;
    for wrong in [
        vec![open(known(inode), id, WRITE), write(of(0), 0, b"data"), close(known(other), id, Some(1))],
        vec![
            open(known(other), id, WRITE),
            write(of(0), 0, b"data"),
            open(known(inode), OpenId(99), WRITE),
            close(of(2), id, Some(1)),
        ],
    ] {
        let (reply, _) = ask_as(&fixture, ALICE, request(root(), wrong), b"data").await.unwrap();
        assert_eq!(reply.error, Some(FsError::Invalid));
    }
    assert_eq!(fixture.check(false).await, []);
}

#[tokio::test]
async fn a_step_that_is_told_to_wait_is_the_last() {
    let fixture = fixture().await;
    fixture.begin(BOB).await;
    let made = make_file(&fixture, "file", b"data").await;
    let inode = made.attributes.inode;
    let (holder, _) = fixture.open(BOB, &root(), inode, READ).await.unwrap();
    let hold = MdtRequest::DataVersion(root(), DataVersion { inode, hold_writers: Some(holder) });
    assert!(matches!(fixture.call(BOB, hold).await, Ok(MdtReply::Version(_))));
    let id = fixture.open_id();
    let directory = create(known(ROOT), "before", NodeKind::Directory, None);
    let steps = vec![directory, open(known(inode), id, WRITE), create(known(ROOT), "after", NodeKind::Directory, None)];
    let reply = ask(&fixture, steps).await;
    assert_eq!((reply.replies.len(), reply.replies.last(), reply.error), (2, Some(&StepReply::Waiting), None));
    assert_eq!(fixture.names(ROOT).await, ["before", "file"]);
    assert_eq!(fixture.mdt.open_files(), 1);
}

#[tokio::test]
async fn replies_that_are_too_large_together_end_a_compound() {
    let fixture = fixture().await;
    let file = fixture.file(ROOT, "file").await;
    let (name, value) = (b"user.large".to_vec(), vec![7; XATTR_VALUE_BYTES_MAX / 2]);
    let set = SetXattr { inode: file, name: name.clone(), value, mode: XattrMode::Create };
    fixture.call(ALICE, MdtRequest::SetXattr(root(), set)).await.unwrap();
    let reply = ask(&fixture, vec![Step::GetXattr { inode: known(file), name }; 3]).await;
    assert_eq!((reply.replies.len(), reply.error), (1, Some(FsError::TooBig)));
}

/// Opens and ends of opens by the rules: each id opens once, and is closed once or not.
#[tokio::test]
async fn opens_and_closes_of_many_files_leave_what_they_say() {
    let fixture = fixture().await;
    let file = known(make_file(&fixture, "file", b"data").await.attributes.inode);
    let other_inode = fixture.file(ROOT, "other").await;
    let other = known(other_inode);
    let id = OpenId(50);
    let steps = vec![
        open(file, id, WRITE),
        write(file, 0, b"DATA"),
        close(file, id, Some(1)),
        open(file, OpenId(51), WRITE),
        open(other, OpenId(52), WRITE),
        open(other, OpenId(53), READ),
        close(other, OpenId(52), None),
    ];
    let (reply, _) = ask_as(&fixture, ALICE, request(root(), steps), b"DATA").await.unwrap();
    assert_eq!((reply.replies.len(), reply.error), (7, None));
    assert_eq!(fixture.mdt.open_files(), 2);
    let steps = vec![open(other, OpenId(54), WRITE), lookup(known(other_inode), "name")];
    let reply = ask(&fixture, steps).await;
    assert_eq!((reply.replies.len(), reply.error), (1, Some(FsError::NotDirectory)));
    assert_eq!(fixture.mdt.open_files(), 3, "the steps before it remain");
    let reply = ask(&fixture, vec![open(file, OpenId(53), READ)]).await;
    assert_eq!((reply.replies.len(), reply.error), (0, Some(FsError::Invalid)), "the id is in use");
    assert_eq!(fixture.mdt.open_files(), 3);
    assert_eq!(fixture.check(false).await, []);
}

#[tokio::test]
async fn what_no_compound_may_have_is_refused() {
    let fixture = fixture().await;
    let look = || lookup(known(ROOT), ".");
    let half = vec![0; COMPOUND_DATA_BYTES_MAX / 2 + 1];
    let cases = [
        (Vec::new(), FsError::Invalid),
        (vec![look(); COMPOUND_STEPS_MAX + 1], FsError::TooBig),
        (vec![lookup(of(0), "a")], FsError::Invalid),
        (vec![look(), lookup(of(2), "a"), look()], FsError::Invalid),
        (vec![Step::Access { inode: known(ROOT), mask: 4 }, lookup(of(0), "a")], FsError::Invalid),
        (vec![write(known(ROOT), 0, &half), write(known(ROOT), 0, &half)], FsError::TooBig),
        (vec![read(known(ROOT), 0, u32::MAX)], FsError::TooBig),
        (vec![read(known(ROOT), 0, 40_000), read(known(ROOT), 0, 40_000)], FsError::TooBig),
        (vec![open(known(ROOT), OpenId(1), WRITE | rpc::message::mdt::open_flag::TRUNCATE)], FsError::Invalid),
        (vec![create(known(ROOT), "a", NodeKind::Directory, None), read(known(ROOT), 0, 1)], FsError::Invalid),
    ];
    for (steps, error) in cases {
        assert_eq!(ask_as(&fixture, ALICE, request(root(), steps.clone()), &[]).await.err(), Some(error), "{steps:?}");
    }
    // What a step may ask for besides is as much as its request may.
    for step in [
        read(known(ROOT), u64::MAX, 1),
        lookup(known(InodeNumber(u64::MAX)), "a"),
        lookup(known(ROOT), &"n".repeat(300)),
        create(known(ROOT), "a", NodeKind::Directory, Some((OpenId(1), READ))),
    ] {
        let reply = ask(&fixture, vec![step]).await;
        assert!(reply.replies.is_empty() && reply.error.is_some(), "{reply:?}");
    }
    assert_eq!(fixture.names(ROOT).await, Vec::<String>::new());
    assert_eq!(fixture.mdt.open_files(), 0);
}
