//! OSTs that are full: what the MDT learns from clients, and when it gives objects other places.

use crate::common;

use std::{sync::Arc, time::Duration};

use common::{
    ALICE, BOB, Fixture, READ, ROOT, WRITE, create_request, created, done, eventually,
    ost::{GIB, NotingOst},
    root, size_update,
};
use layout::{LayoutSpec, StripeCount, StripeSpec};
use mds::{Mdt, Parameters};
use rpc::message::{
    LeaveFullOst, LeaveStep, MdtReply, MdtRequest, Relocation,
    mdt::{Create, ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, Instantiate, LayoutInfo, OpenFlags, OpenId},
};
use rt::{
    Clock,
    memory::{JumpingClock, MemoryTransport},
};
use types::{FsError, FsResult, Generation, InodeNumber, NodeKind, OstIndex};

/// An MDT with some OSTs, which it asks for their space only when it is told to.
async fn with_osts(count: u16) -> (Fixture, Vec<Arc<NotingOst>>) {
    with_refresh(count, Duration::from_secs(3600)).await
}

/// An MDT with some OSTs, which it asks for their space at these intervals.
async fn with_refresh(count: u16, ost_refresh: Duration) -> (Fixture, Vec<Arc<NotingOst>>) {
    let network = MemoryTransport::new();
    let (mut osts, mut map) = (Vec::new(), Vec::new());
    for index in (0..count).map(OstIndex) {
        let (ost, endpoint) = NotingOst::serve(&network, index);
        osts.push(ost);
        map.push((index, endpoint, true));
    }
    let fs = Fixture::on_network(&network, Vec::new()).await.with_plain_files();
    fs.mdt.set_parameters(Parameters { ost_refresh, ..fs.mdt.parameters() });
    fs.mdt.update_map(&map);
    eventually("all OSTs have answered", async || fs.mdt.osts().iter().all(|(_, view)| view.report.is_some())).await;
    (fs, osts)
}

fn osts_of(reply: MdtReply) -> (Generation, Vec<OstIndex>) {
    let MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) = reply else { panic!("{reply:?}") };
    (layout.generation, layout.as_plain().expect("a plain one").osts.clone())
}

async fn layout(fs: &Fixture, inode: InodeNumber) -> (Generation, Vec<OstIndex>) {
    osts_of(fs.call(ALICE, MdtRequest::GetLayout(inode)).await.unwrap())
}

/// A new file of ALICE, with the epoch of its open.
async fn new_file(fs: &Fixture, name: &str, spec: StripeSpec) -> (InodeNumber, OpenId, u64) {
    let (parent, name, open) = (ROOT, name.as_bytes().to_vec(), fs.open_id());
    let (kind, layout, open_flags) = (NodeKind::Regular, Some(LayoutSpec::Plain(spec)), OpenFlags(READ | WRITE));
    let create = Create { parent, name, kind, mode: 0o644, umask: 0, layout, open: Some((open, open_flags)) };
    let created = common::created(fs.call(ALICE, MdtRequest::Create(root(), create)).await.unwrap());
    (created.entry.attributes.inode, open, created.opened.unwrap().epoch)
}

async fn lock(fs: &Fixture, inode: InodeNumber, open: OpenId) {
    let begin = ExclusiveBegin { inode, open: Some(open), purpose: ExclusivePurpose::Append };
    let granted = fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap();
    assert!(matches!(granted, MdtReply::ExclusiveGranted(_)));
}

async fn unlock(fs: &Fixture, inode: InodeNumber) {
    let end = ExclusiveEnd { inode, update: None };
    done(fs.call(ALICE, MdtRequest::ExclusiveEnd(end)).await.unwrap()).unwrap();
}

/// Objects that are to get other OSTs.
#[derive(Clone)]
struct Moves {
    inode: InodeNumber,
    open: OpenId,
    generation: Generation,
    relocation: Relocation,
}

async fn relocate(fs: &Fixture, moves: Moves) -> FsResult<(Generation, Vec<OstIndex>)> {
    let Moves { inode, open, generation, relocation } = moves;
    let leave = LeaveFullOst { inode, open, generation, step: LeaveStep::Relocate(relocation) };
    fs.call(ALICE, MdtRequest::LeaveFullOst(leave)).await.map(osts_of)
}

fn request(inode: InodeNumber, open: OpenId, epoch: u64, slots: &[u32]) -> Moves {
    let relocation = Relocation { epoch, slots: slots.to_vec(), refused: Vec::new() };
    Moves { inode, open, generation: Generation(1), relocation }
}

/// The same without these OSTs.
fn without(moves: &Moves, refused: &[OstIndex]) -> Moves {
    let relocation = Relocation { refused: refused.to_vec(), ..moves.relocation.clone() };
    Moves { relocation, ..moves.clone() }
}

fn stripes(count: u32) -> StripeSpec {
    StripeSpec { stripe_count: StripeCount::Exactly(count), ..StripeSpec::default() }
}

/// With something open for writing, so that what clients say of full OSTs is heard.
async fn with_writers(count: u16) -> (Fixture, Vec<Arc<NotingOst>>) {
    let (fs, osts) = with_osts(count).await;
    let (_, created) = fs.create_open(ALICE, ROOT, "written", WRITE).await.unwrap();
    fs.open(BOB, &root(), created.entry.attributes.inode, WRITE).await.unwrap();
    (fs, osts)
}

fn available(mdt: &Mdt, ost: OstIndex) -> u64 {
    let osts = mdt.osts();
    let (_, view) = osts.iter().find(|(index, _)| *index == ost).expect("the OST is known");
    view.report.expect("it has answered").space.bytes_available
}

#[tokio::test]
async fn an_ost_that_is_said_to_be_full_is_asked_before_the_answer() {
    let (fs, osts) = with_writers(2).await;
    *osts[1].bytes_available.lock() = 0;
    assert_eq!(available(&fs.mdt, OstIndex(1)), GIB / 2, "nobody has told the MDT");
    done(fs.call(ALICE, MdtRequest::ReportFull(OstIndex(1))).await.unwrap()).unwrap();
    assert_eq!(available(&fs.mdt, OstIndex(1)), 0);
    for number in 0..8 {
        let inode = fs.file(ROOT, &number.to_string()).await;
        assert_eq!(layout(&fs, inode).await.1, [OstIndex(0)]);
    }
    // What clients say is not believed without asking, nor does it matter of whom.
    done(fs.call(ALICE, MdtRequest::ReportFull(OstIndex(0))).await.unwrap()).unwrap();
    done(fs.call(ALICE, MdtRequest::ReportFull(OstIndex(77))).await.unwrap()).unwrap();
    fs.file(ROOT, "still").await;
}

/// It has bytes, but perhaps no inodes, or a quota is used up: a client that asked it knows better
/// than its reports.
#[tokio::test]
async fn an_ost_that_refuses_although_it_has_bytes_comes_after_others() {
    let (fs, osts) = with_writers(2).await;
    *osts[0].bytes_available.lock() = GIB / 4;
    let places = async |prefix: &str| {
        let mut places = Vec::new();
        for number in 0..6 {
            let inode = fs.file(ROOT, &format!("{prefix}{number}")).await;
            places.extend(layout(&fs, inode).await.1);
        }
        places
    };
    done(fs.call(ALICE, MdtRequest::ReportFull(OstIndex(1))).await.unwrap()).unwrap();
    assert_eq!(available(&fs.mdt, OstIndex(1)), GIB / 2, "so it says");
    assert_eq!(places("while one refuses").await, [OstIndex(0); 6]);
    done(fs.call(ALICE, MdtRequest::ReportFull(OstIndex(0))).await.unwrap()).unwrap();
    assert_eq!(places("when both refuse").await, [OstIndex(1); 6], "it may have room by now");
}

#[tokio::test]
async fn many_reports_at_once_cost_two_questions() {
    let (fs, osts) = with_writers(1).await;
    let before = *osts[0].questions.lock();
    let hold = osts[0].hold.lock().await;
    let reports: Vec<_> = (0..20u64)
        .map(|_| {
            let mdt = fs.mdt.clone();
            tokio::spawn(async move {
                use rpc::Handler;
                let request = rpc::message::Request::Mdt(MdtRequest::ReportFull(OstIndex(0)));
                let (slot, xid) = (types::Slot(0), types::Xid(1));
                let call = rpc::Call::plain(BOB, slot, xid, request, bytes::Bytes::new());
                mdt.handle(call).await.reply.expect("a report succeeds");
            })
        })
        .collect();
    eventually("the first question is asked", async || *osts[0].questions.lock() > before).await;
    drop(hold);
    for report in reports {
        report.await.unwrap();
    }
    let asked = *osts[0].questions.lock() - before;
    assert!((1..=2).contains(&asked), "{asked} questions");
}

/// Each has less free than its reserve and has refused something, which only says whom to prefer.
#[tokio::test]
async fn the_last_space_is_used() {
    let (fs, osts) = with_writers(3).await;
    for (index, mebibytes) in [(1, 6), (0, 5), (2, 0)] {
        *osts[usize::from(index)].bytes_available.lock() = mebibytes << 20;
        done(fs.call(ALICE, MdtRequest::ReportFull(OstIndex(index))).await.unwrap()).unwrap();
    }
    let (inode, open, epoch) = new_file(&fs, "file", stripes(3)).await;
    assert_eq!(layout(&fs, inode).await.1, [OstIndex(1)]);
    lock(&fs, inode, open).await;
    let once = without(&request(inode, open, epoch, &[0]), &[OstIndex(1)]);
    assert_eq!(relocate(&fs, once.clone()).await, Ok((Generation(2), vec![OstIndex(0)])));
    let twice = Moves { generation: Generation(2), ..without(&once, &[OstIndex(0), OstIndex(1)]) };
    assert_eq!(relocate(&fs, twice).await, Err(FsError::NoSpace));
}

/// No OST takes objects as far as the MDT knows, until it asks.
async fn without_space(count: u16) -> (Fixture, Vec<Arc<NotingOst>>) {
    let (fs, osts) = with_writers(count).await;
    for (index, ost) in (0..).map(OstIndex).zip(&osts) {
        match index {
            OstIndex(0) => ost.condition.lock().no_create = true,
            _ => *ost.bytes_available.lock() = 0,
        }
        done(fs.call(ALICE, MdtRequest::ReportFull(index)).await.unwrap()).unwrap();
    }
    (fs, osts)
}

async fn try_create(mdt: &Arc<Mdt>, name: &str, slot: u16) -> FsResult<MdtReply> {
    use rpc::Handler;
    let create = common::create_request(ROOT, name, NodeKind::Regular, 0o644, None);
    let request = rpc::message::Request::Mdt(MdtRequest::Create(root(), create));
    let (slot, xid) = (types::Slot(slot), types::Xid(1000));
    let call = rpc::Call::plain(ALICE, slot, xid, request, bytes::Bytes::new());
    match mdt.clone().handle(call).await.reply? {
        rpc::message::Reply::Mdt(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

/// What it knows may be as old as the interval between its questions, an hour here.
#[tokio::test]
async fn all_osts_are_asked_before_anybody_is_told_that_there_is_no_space() {
    let (fs, osts) = without_space(3).await;
    assert_eq!(try_create(&fs.mdt, "none", 1).await, Err(FsError::NoSpace));
    *osts[0].condition.lock() = Default::default();
    let inode = common::created(try_create(&fs.mdt, "again", 2).await.unwrap()).entry.attributes.inode;
    assert_eq!(layout(&fs, inode).await.1, [OstIndex(0)]);
    // Likewise for what was placed, and is refused there.
    let (inode, open, epoch) = new_file(&fs, "moves", stripes(1)).await;
    lock(&fs, inode, open).await;
    assert_eq!(relocate(&fs, request(inode, open, epoch, &[0])).await, Err(FsError::NoSpace));
    *osts[2].bytes_available.lock() = GIB / 2;
    assert_eq!(relocate(&fs, request(inode, open, epoch, &[0])).await, Ok((Generation(2), vec![OstIndex(2)])));
}

#[tokio::test]
async fn many_who_find_no_space_ask_each_ost_twice_at_most() {
    let (fs, osts) = without_space(2).await;
    let asked = || osts.iter().map(|ost| *ost.questions.lock()).collect::<Vec<_>>();
    let before = asked();
    let hold = osts[1].hold.lock().await;
    let creations: Vec<_> = (1..=20u16)
        .map(|slot| {
            let mdt = fs.mdt.clone();
            tokio::spawn(async move { try_create(&mdt, &slot.to_string(), slot).await })
        })
        .collect();
    eventually("a question is asked", async || asked()[1] > before[1]).await;
    *osts[1].bytes_available.lock() = GIB / 2;
    drop(hold);
    for creation in creations {
        creation.await.unwrap().expect("there is space");
    }
    for (before, after) in before.into_iter().zip(asked()) {
        assert!((1..=2).contains(&(after - before)), "{} questions", after - before);
    }
}

#[tokio::test]
async fn objects_move_if_their_file_is_its_writers_alone() {
    let (fs, osts) = with_osts(4).await;
    let (inode, open, epoch) = new_file(&fs, "file", stripes(2)).await;
    let (_, first) = layout(&fs, inode).await;
    let good = request(inode, open, epoch, &[1]);
    assert_eq!(relocate(&fs, good.clone()).await, Err(FsError::NoLocks), "without the lock");
    lock(&fs, inode, open).await;
    assert_eq!(relocate(&fs, request(inode, open, epoch + 1, &[1])).await, Err(FsError::NoSpace));
    assert_eq!(relocate(&fs, Moves { open: OpenId(999), ..good.clone() }).await, Err(FsError::BadHandle));
    for slots in [&[][..], &[2], &[0, u32::MAX]] {
        assert_eq!(relocate(&fs, request(inode, open, epoch, slots)).await, Err(FsError::Invalid), "{slots:?}");
    }
    fs.begin(BOB).await;
    let (theirs, _) = fs.open(BOB, &root(), inode, READ).await.unwrap();
    assert_eq!(relocate(&fs, good.clone()).await, Err(FsError::NoSpace), "somebody else reads by the old layout");
    fs.close(BOB, inode, theirs, None).await.unwrap();
    assert_eq!(layout(&fs, inode).await, (Generation(1), first.clone()), "so far nothing changed");

    let spare: Vec<OstIndex> = (0..4).map(OstIndex).filter(|ost| !first.contains(ost)).collect();
    let moved = relocate(&fs, without(&good, &spare[..1])).await.unwrap();
    assert_eq!(moved, (Generation(2), vec![first[0], spare[1]]));
    assert_eq!(relocate(&fs, good).await, Ok(moved.clone()), "asked again, the same");
    unlock(&fs, inode).await;
    let both = Moves { generation: Generation(2), ..request(inode, open, epoch, &[0, 1]) };
    lock(&fs, inode, open).await;
    *osts[usize::from(spare[0].0)].bytes_available.lock() = 0;
    done(fs.call(ALICE, MdtRequest::ReportFull(spare[0])).await.unwrap()).unwrap();
    assert_eq!(relocate(&fs, both).await, Err(FsError::NoSpace), "there are not two others with space");
    assert_eq!(layout(&fs, inode).await, moved);
}

/// A truncation by path, even by the same client, ends what the writer knows: an object may exist
/// by then.
#[tokio::test]
async fn a_truncation_in_between_keeps_objects_where_they_are() {
    let (fs, _osts) = with_osts(2).await;
    let (inode, open, epoch) = new_file(&fs, "file", stripes(1)).await;
    let begin = ExclusiveBegin { inode, open: None, purpose: ExclusivePurpose::Truncate(100) };
    fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap();
    unlock(&fs, inode).await;
    lock(&fs, inode, open).await;
    assert_eq!(relocate(&fs, request(inode, open, epoch, &[0])).await, Err(FsError::NoSpace));
}

#[tokio::test]
async fn a_chosen_first_ost_is_not_exchanged() {
    let (fs, _osts) = with_osts(3).await;
    let spec = StripeSpec { first_ost: Some(OstIndex(1)), ..stripes(2) };
    let (inode, open, epoch) = new_file(&fs, "file", spec).await;
    assert_eq!(layout(&fs, inode).await.1, [OstIndex(1), OstIndex(2)]);
    lock(&fs, inode, open).await;
    assert_eq!(relocate(&fs, request(inode, open, epoch, &[0])).await, Err(FsError::NoSpace));
    let second = relocate(&fs, request(inode, open, epoch, &[1])).await;
    assert_eq!(second, Ok((Generation(2), vec![OstIndex(1), OstIndex(0)])));
    let spec = StripeSpec { osts: vec![OstIndex(0), OstIndex(2)], ..StripeSpec::default() };
    let (inode, open, epoch) = new_file(&fs, "listed", spec).await;
    lock(&fs, inode, open).await;
    assert_eq!(relocate(&fs, request(inode, open, epoch, &[1])).await, Err(FsError::NoSpace));
}

/// The client continues under the new layout, so it must outlast whatever happens to the MDT.
#[tokio::test]
async fn a_move_is_durable_when_it_is_answered() {
    let (mut fs, _osts) = with_osts(2).await;
    let (inode, open, epoch) = new_file(&fs, "file", stripes(1)).await;
    lock(&fs, inode, open).await;
    let moved = relocate(&fs, request(inode, open, epoch, &[0])).await.unwrap();
    fs.lose_power().await;
    assert_eq!(layout(&fs, inode).await, moved);
}

/// Before it counts as dead, which here it never does.
#[tokio::test]
async fn new_files_prefer_other_osts_as_soon_as_a_connection_is_interrupted() {
    let network = MemoryTransport::new();
    let (_steady, endpoint) = NotingOst::serve(&network, OstIndex(0));
    let ost = Arc::new(NotingOst::default());
    let (server, remote) = ost.listen(&network, OstIndex(1)).await;
    let fs = Fixture::on_network(&network, Vec::new()).await.with_plain_files();
    let hour = Duration::from_secs(3600);
    fs.mdt.set_parameters(Parameters { ost_refresh: hour, ost_silence: hour, ..fs.mdt.parameters() });
    fs.mdt.update_map(&[(OstIndex(0), endpoint, true), (OstIndex(1), remote, true)]);
    eventually("all OSTs have answered", async || fs.mdt.osts().iter().all(|(_, view)| view.report.is_some())).await;

    server.stop().await;
    eventually("the MDT knows", async || fs.mdt.osts()[1].1.interrupted).await;
    assert!(fs.mdt.osts()[1].1.connected, "it may be back in a moment");
    let everywhere = StripeSpec { stripe_count: StripeCount::All, ..StripeSpec::default() };
    let (wide, ..) = new_file(&fs, "wide", everywhere.clone()).await;
    assert_eq!(layout(&fs, wide).await.1, [OstIndex(0)]);
    let (both, ..) = new_file(&fs, "both", stripes(2)).await;
    assert_eq!(layout(&fs, both).await.1.len(), 2, "somebody asked for two");
    for number in 0..8 {
        let inode = fs.file(ROOT, &number.to_string()).await;
        assert_eq!(layout(&fs, inode).await.1, [OstIndex(0)]);
    }

    let _again = ost.listen(&network, OstIndex(1)).await;
    eventually("it is asked at once", async || !fs.mdt.osts()[1].1.interrupted).await;
    let (wide, ..) = new_file(&fs, "wide again", everywhere).await;
    assert_eq!(layout(&fs, wide).await.1.len(), 2);
}

/// An OST that was asked just before the MDT was stopped has not been silent for as long as that
/// lasted.
#[tokio::test]
async fn no_ost_counts_as_dead_because_the_mdt_stood_still() {
    let network = MemoryTransport::new();
    let ost = Arc::new(NotingOst::default());
    let (server, remote) = ost.listen(&network, OstIndex(0)).await;
    let mut fs = Fixture::on_network(&network, Vec::new()).await;
    let clock = JumpingClock::default();
    fs.seams.clock = Arc::new(clock.clone());
    fs.restart_and_recover().await;
    let silence = Duration::from_secs(30);
    fs.mdt.set_parameters(Parameters { ost_silence: silence, ..fs.mdt.parameters() });
    fs.mdt.update_map(&[(OstIndex(0), remote, true)]);
    eventually("the OST has answered", async || fs.mdt.osts()[0].1.report.is_some()).await;
    server.stop().await;
    eventually("a question is under way", async || fs.mdt.osts()[0].1.interrupted).await;
    // Less than the timeout of calls.
    clock.jump(2 * silence);
    let later = clock.now() + Duration::from_millis(50);
    eventually("time for a decision", async || clock.now() > later).await;
    assert!(fs.mdt.osts()[0].1.connected, "it may be back in a moment");
    let dead = async || {
        clock.jump(silence / 8);
        !fs.mdt.osts()[0].1.connected
    };
    eventually("it does not come back", dead).await;
}

/// A copy in the background must not take what others need.
#[tokio::test]
async fn a_file_without_space_for_a_second_copy_is_not_moved() {
    const BYTES: u64 = 144 << 20;
    let (fs, osts) = with_refresh(4, Duration::from_millis(5)).await;
    fs.mdt.set_parameters(Parameters { bytes_on_mdt_max: 0, ..fs.mdt.parameters() });
    let open = fs.open_id();
    let mut request = create_request(ROOT, "file", NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    request.layout = Some(LayoutSpec::Automatic);
    let opened = created(fs.call(ALICE, MdtRequest::Create(root(), request)).await.unwrap()).opened.unwrap();
    let inode = opened.entry.attributes.inode;
    for start in [4 << 20, 64 << 20] {
        let grow = Instantiate { inode, open, start, end: start + 1 };
        fs.call(ALICE, MdtRequest::Instantiate(grow)).await.unwrap();
    }
    fs.close(ALICE, inode, open, Some(size_update(opened.epoch, BYTES))).await.unwrap();
    let leave = async |mebibytes: [u64; 4]| {
        let bytes = mebibytes.map(|mebibytes| mebibytes << 20);
        osts.iter().zip(bytes).for_each(|(ost, bytes)| *ost.bytes_available.lock() = bytes);
        let known = || (0..).map(OstIndex).zip(bytes).all(|(ost, bytes)| available(&fs.mdt, ost) == bytes);
        eventually("the MDT knows", async || known()).await;
    };
    // 36 MiB of it come to each OST.
    for (mebibytes, has_space) in [(60, false), (512, true)] {
        leave([mebibytes; 4]).await;
        for _ in 0..8 {
            let (reader, _) = fs.open(ALICE, &root(), inode, READ).await.unwrap();
            fs.close(ALICE, inode, reader, None).await.unwrap();
        }
        assert_eq!(fs.mdt.moves_waiting(), usize::from(has_space), "{mebibytes} MiB free");
        assert_eq!(fs.mdt.has_space_for_copy(0, BYTES, &[]), has_space);
    }
    // The less is still to be copied, the less is needed; and nothing goes on on an OST that takes
    // nothing.
    leave([512, 60, 512, 512]).await;
    for (start, osts, has_space) in [
        (0, vec![], false),
        (80 << 20, vec![OstIndex(1)], true),
        (80 << 20, vec![OstIndex(0), OstIndex(9)], false),
        (BYTES, vec![OstIndex(9)], true),
    ] {
        assert_eq!(fs.mdt.has_space_for_copy(start, BYTES, &osts), has_space, "{start}, {osts:?}");
    }
}
