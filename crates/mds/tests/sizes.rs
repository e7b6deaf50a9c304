//! Sizes: whose reports are accepted, and who has to ask the OSTs.

use crate::common;

use common::*;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{
        ExclusiveBegin, ExclusiveEnd, ExclusiveGranted, ExclusivePurpose, OpenId, ReportSize, ScannedInode, SizeUpdate,
        open_flag,
    },
};
use types::{DataChanges, FsError, FsResult, InodeNumber, SeenChanges, SeenProof, SetAttributes, SetTime, Timestamp};

async fn begin(
    fs: &Fixture,
    client: types::ClientId,
    inode: InodeNumber,
    open: Option<OpenId>,
    purpose: ExclusivePurpose,
) -> FsResult<ExclusiveGranted> {
    let begin = ExclusiveBegin { inode, open, purpose };
    match fs.call(client, MdtRequest::ExclusiveBegin(root(), begin)).await? {
        MdtReply::ExclusiveGranted(granted) => Ok(*granted),
        MdtReply::Waiting => Err(FsError::WouldBlock),
        other => panic!("{other:?}"),
    }
}

async fn end(fs: &Fixture, client: types::ClientId, inode: InodeNumber, update: Option<SizeUpdate>) {
    done(fs.call(client, MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update })).await.unwrap()).unwrap();
}

async fn report_size(fs: &Fixture, client: types::ClientId, inode: InodeNumber, update: SizeUpdate) {
    done(fs.call(client, MdtRequest::ReportSize(ReportSize { inode, update })).await.unwrap()).unwrap();
}

#[tokio::test]
async fn a_sole_writer_reports_with_its_close() {
    let fs = Fixture::new().await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    assert_eq!(opened.entry.size_unknown, None, "the writer starts from an exact size");
    assert!(!opened.truncate);
    assert_eq!(
        fs.stat(inode).await.unwrap().size_unknown.as_deref(),
        opened.layout.as_ref(),
        "others must ask the OSTs"
    );
    let closed = fs.close(ALICE, inode, open, Some(size_update(opened.epoch, 5000))).await.unwrap();
    assert_eq!(closed.size_wanted, None);
    let entry = fs.stat(inode).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size, entry.attributes.blocks), (None, 5000, 10));
}

#[tokio::test]
async fn readers_change_nothing() {
    let fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    let (open, opened) = fs.open(ALICE, &root(), file, READ).await.unwrap();
    assert_eq!(opened.entry.size_unknown, None);
    let closed = fs.close(ALICE, file, open, Some(size_update(opened.epoch, 99))).await.unwrap();
    assert_eq!(closed.size_wanted, None);
    assert_eq!(fs.stat(file).await.unwrap().attributes.size, 0);
}

#[tokio::test]
async fn writers_that_meet_leave_the_size_to_a_glimpse() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let (first, one) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    let (second, two) = fs.open(BOB, &root(), file, WRITE).await.unwrap();
    assert!(two.entry.size_unknown.is_some());
    assert_eq!(fs.close(ALICE, file, first, Some(size_update(one.epoch, 1))).await.unwrap().size_wanted, None);
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some(), "the report of a mixed epoch is ignored");
    let closed = fs.close(BOB, file, second, Some(size_update(two.epoch, 2))).await.unwrap();
    let (epoch, layout) = closed.size_wanted.expect("the last writer is asked for a glimpse");
    assert_eq!(Some(layout), two.layout);
    report_size(&fs, BOB, file, size_update(epoch, 700)).await;
    let entry = fs.stat(file).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size), (None, 700));
    report_size(&fs, BOB, file, size_update(epoch, 1)).await;
    assert_eq!(fs.stat(file).await.unwrap().attributes.size, 700, "a report counts once");
}

#[tokio::test]
async fn a_late_glimpse_does_not_count_for_what_is_written_again() {
    let fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    let (first, _) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    let (epoch, _) = fs.close(ALICE, file, first, None).await.unwrap().size_wanted.unwrap();
    let (second, opened) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    report_size(&fs, ALICE, file, size_update(epoch, 1)).await;
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some());
    fs.close(ALICE, file, second, Some(size_update(opened.epoch, 9))).await.unwrap();
    assert_eq!(fs.stat(file).await.unwrap().attributes.size, 9);
}

#[tokio::test]
async fn truncation_by_path_makes_the_size_known_unless_somebody_writes() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let granted = begin(&fs, ALICE, file, None, ExclusivePurpose::Truncate(10)).await.unwrap();
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some());
    end(&fs, ALICE, file, Some(size_update(granted.epoch, 10))).await;
    let entry = fs.stat(file).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size), (None, 10));
    let granted = begin(&fs, ALICE, file, None, ExclusivePurpose::Truncate(20)).await.unwrap();
    let (open, opened) = fs.open(BOB, &root(), file, WRITE).await.unwrap();
    assert!(opened.entry.size_unknown.is_some(), "a truncation is under way");
    end(&fs, ALICE, file, Some(size_update(granted.epoch, 20))).await;
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some());
    let closed = fs.close(BOB, file, open, Some(size_update(opened.epoch, 30))).await.unwrap();
    assert!(closed.size_wanted.is_some(), "its epoch began during the truncation: it knows nothing");
}

#[tokio::test]
async fn a_sole_writer_keeps_its_epoch_through_its_own_truncations_and_appends() {
    let fs = Fixture::new().await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let file = opened.entry.attributes.inode;
    for purpose in [ExclusivePurpose::Truncate(100), ExclusivePurpose::Append] {
        let granted = begin(&fs, ALICE, file, Some(open), purpose).await.unwrap();
        assert_eq!(granted.epoch, opened.epoch);
        end(&fs, ALICE, file, None).await;
    }
    fs.begin(BOB).await;
    let (_, other) = fs.open(BOB, &root(), file, WRITE).await.unwrap();
    let granted = begin(&fs, ALICE, file, Some(open), ExclusivePurpose::Append).await.unwrap();
    assert!(granted.epoch != opened.epoch && granted.epoch != other.epoch, "both must ask where the end is");
}

#[tokio::test]
async fn the_exclusive_lock_is_granted_in_order() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let truncate = ExclusivePurpose::Truncate(1);
    begin(&fs, ALICE, file, None, truncate).await.unwrap();
    assert_eq!(begin(&fs, BOB, file, None, truncate).await.err(), Some(FsError::WouldBlock));
    end(&fs, ALICE, file, None).await;
    assert_eq!(begin(&fs, ALICE, file, None, truncate).await.err(), Some(FsError::WouldBlock), "BOB is next");
    begin(&fs, BOB, file, None, truncate).await.expect("it is next");
    end(&fs, BOB, file, None).await;
    assert_eq!(begin(&fs, ALICE, ROOT, None, truncate).await.err(), Some(FsError::IsDirectory));
    let too_large = ExclusivePurpose::Truncate(u64::MAX);
    assert_eq!(begin(&fs, ALICE, file, None, too_large).await.err(), Some(FsError::FileTooLarge));
    assert_eq!(begin(&fs, ALICE, file, None, ExclusivePurpose::Append).await.err(), Some(FsError::BadHandle));
    let (open, _) = fs.open(ALICE, &root(), file, READ).await.unwrap();
    assert_eq!(begin(&fs, ALICE, file, Some(open), truncate).await.err(), Some(FsError::BadHandle));
}

#[tokio::test]
async fn opening_with_truncation_takes_the_lock_and_starts_from_nothing() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let first = created.opened.unwrap();
    let file = first.entry.attributes.inode;
    fs.close(ALICE, file, open, Some(size_update(first.epoch, 4096))).await.unwrap();
    let (open, opened) = fs.open(ALICE, &root(), file, WRITE | open_flag::TRUNCATE).await.unwrap();
    assert!(opened.truncate);
    assert_eq!((opened.entry.size_unknown, opened.entry.attributes.size), (None, 0));
    assert_eq!(begin(&fs, BOB, file, None, ExclusivePurpose::Truncate(1)).await.err(), Some(FsError::WouldBlock));
    end(&fs, ALICE, file, None).await;
    fs.close(ALICE, file, open, Some(size_update(opened.epoch, 7))).await.unwrap();
    let entry = fs.stat(file).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size), (None, 7));
    let empty = fs.file(ROOT, "empty").await;
    let (_, opened) = fs.open(ALICE, &root(), empty, WRITE | open_flag::TRUNCATE).await.unwrap();
    assert!(!opened.truncate, "there is nothing to cut off");
}

#[tokio::test]
async fn an_explicit_mtime_survives_the_close() {
    let fs = Fixture::new().await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    let time = Timestamp { seconds: 1000, nanoseconds: 0 };
    // By the clock of its target a day in advance.
    let now = fs.seams.clock.wall();
    let written = Timestamp { seconds: now.seconds + 86_400, ..now };
    let set = async |proof: Option<SeenProof>| {
        let changes = DataChanges { count: 2, last: written };
        let seen = proof.map(|proof| SeenChanges { changes, proof });
        let changes = SetAttributes { mtime: Some(SetTime::To(time)), seen, ..SetAttributes::default() };
        fs.call(ALICE, MdtRequest::SetAttributes(root(), inode, changes)).await.unwrap()
    };
    let generation = opened.layout.expect("a file has a layout").generation;
    for unknown in [
        None,
        Some(SeenProof::Alone { epoch: opened.epoch + 1 }),
        Some(SeenProof::Asked { generation: generation.next() }),
    ] {
        assert!(matches!(set(unknown).await, MdtReply::AskObjects(_)), "{unknown:?}");
        assert_ne!(fs.stat(inode).await.unwrap().attributes.mtime, time);
    }
    for known in [SeenProof::Alone { epoch: opened.epoch }, SeenProof::Asked { generation }] {
        assert!(matches!(set(Some(known)).await, MdtReply::Entry(_)));
    }
    let update = SizeUpdate { mtime: Some(written), changes: 2, ..size_update(opened.epoch, 10) };
    fs.close(ALICE, inode, open, Some(update)).await.unwrap();
    let entry = fs.stat(inode).await.unwrap();
    assert_eq!(entry.attributes.mtime, time);
    assert!(entry.accounted >= written, "the object's time is history");
    let (open, opened) = fs.open(ALICE, &root(), inode, WRITE).await.unwrap();
    let past = Timestamp { seconds: now.seconds - 86_400, ..now };
    let update = SizeUpdate { mtime: Some(past), changes: 3, ..size_update(opened.epoch, 10) };
    fs.close(ALICE, inode, open, Some(update)).await.unwrap();
    let after = fs.stat(inode).await.unwrap().attributes;
    assert!(after.mtime > written && after.ctime > entry.attributes.ctime, "a later change, whatever its clock says");
}

async fn reclaim_open(fs: &Fixture, client: types::ClientId, inode: InodeNumber, open: OpenId) {
    let flags = rpc::message::mdt::OpenFlags(WRITE);
    let reclaim = rpc::message::mdt::Reclaim { opens: vec![(inode, open, flags)], done: true, ..Default::default() };
    fs.reclaim(client, reclaim).await.unwrap();
}

#[tokio::test]
async fn unknown_sizes_survive_a_crash_and_so_do_reports_of_sole_writers() {
    let mut fs = Fixture::new().await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    fs.restart().await;
    assert!(fs.stat(inode).await.unwrap().size_unknown.is_some());
    reclaim_open(&fs, ALICE, inode, open).await;
    let closed = fs.close(ALICE, inode, open, Some(size_update(opened.epoch, 123))).await.unwrap();
    assert_eq!(closed.size_wanted, None, "nothing was lost: the sole writer knows");
    let entry = fs.stat(inode).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size), (None, 123));
}

/// A client that was there before the restart closes what it never had open, under the epoch of
/// another one's writes.
#[tokio::test]
async fn a_close_of_an_unknown_open_sets_no_size() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (_, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    fs.restart().await;
    fs.recover().await;
    fs.reclaim(BOB, rpc::message::mdt::Reclaim { done: true, ..Default::default() }).await.unwrap();
    fs.close(BOB, inode, fs.open_id(), Some(size_update(opened.epoch, 1 << 40))).await.unwrap();
    let entry = fs.stat(inode).await.unwrap();
    assert!(entry.size_unknown.is_some() && entry.attributes.size == 0, "{entry:?}");
}

/// A program rewrites a file; the objects keep it, the MDT forgets that the file was open and what
/// size it had then.
#[tokio::test]
async fn after_power_loss_the_objects_are_asked_for_the_size_of_a_file_that_seems_known() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    let write = async |fs: &Fixture, size| {
        let (open, opened) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
        fs.close(ALICE, file, open, Some(size_update(opened.epoch, size))).await.unwrap();
        assert_eq!(fs.stat(file).await.unwrap().size_unknown, None);
    };
    write(&fs, 4096).await;
    fs.commit().await;
    write(&fs, 8192).await;
    fs.lose_power().await;
    let entry = fs.stat(file).await.unwrap();
    assert!(entry.size_unknown.is_some());
    assert_eq!(entry.quiet, None, "a writer may still come back");
    fs.recover().await;
    let epoch = fs.stat(file).await.unwrap().quiet.expect("nobody writes: the next look finds it");
    report_size(&fs, ALICE, file, size_update(epoch, 8192)).await;
    let entry = fs.stat(file).await.unwrap();
    assert_eq!((entry.size_unknown, entry.quiet, entry.attributes.size), (None, None, 8192));
    fs.restart_and_recover().await;
    assert_eq!(fs.stat(file).await.unwrap().size_unknown, None, "the death of a process loses nothing");
}

#[tokio::test]
async fn a_number_that_power_loss_took_back_is_not_given_again() {
    let mut fs = Fixture::new().await;
    fs.commit().await;
    let lost = fs.file(ROOT, "lost").await;
    fs.lose_power().await;
    fs.recover().await;
    assert_eq!(fs.names(ROOT).await, Vec::<String>::new());
    let new = fs.file(ROOT, "new").await;
    assert!(new > lost, "its objects may be left: {lost}, {new}");
}

/// Alice and Bob write one file; the MDT forgets that they met, both come back, and the record has
/// Alice's epoch again.
#[tokio::test]
async fn a_writer_is_not_believed_after_power_loss_took_its_rivals_epoch_back() {
    for durable in [false, true] {
        let mut fs = Fixture::new().await;
        fs.begin(BOB).await;
        let file = fs.file(ROOT, "f").await;
        fs.commit().await;
        let (first, one) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
        if durable {
            fs.commit().await;
        }
        let (second, _) = fs.open(BOB, &root(), file, WRITE).await.unwrap();
        fs.lose_power().await;
        reclaim_open(&fs, ALICE, file, first).await;
        reclaim_open(&fs, BOB, file, second).await;
        let granted = begin(&fs, ALICE, file, Some(first), ExclusivePurpose::Append).await.unwrap();
        assert_ne!(granted.epoch, one.epoch, "Alice would append where it believes the end to be");
        end(&fs, ALICE, file, None).await;
        fs.close(BOB, file, second, None).await.unwrap();
        let closed = fs.close(ALICE, file, first, Some(size_update(one.epoch, 1))).await.unwrap();
        assert!(closed.size_wanted.is_some(), "only the objects know what Bob wrote");
        assert!(fs.stat(file).await.unwrap().size_unknown.is_some());
    }
}

#[tokio::test]
async fn a_truncation_under_way_when_power_is_lost_leaves_the_size_to_the_objects() {
    let mut fs = Fixture::new().await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let file = opened.entry.attributes.inode;
    fs.close(ALICE, file, open, Some(size_update(opened.epoch, 4096))).await.unwrap();
    fs.commit().await;
    let granted = begin(&fs, ALICE, file, None, ExclusivePurpose::Truncate(10)).await.unwrap();
    fs.lose_power().await;
    assert_eq!(fs.stat(file).await.unwrap().attributes.size, 4096, "as it was durably");
    let exclusives = vec![(file, None)];
    fs.reclaim(ALICE, rpc::message::mdt::Reclaim { exclusives, done: true, ..Default::default() }).await.unwrap();
    end(&fs, ALICE, file, Some(size_update(granted.epoch, 10))).await;
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some());
}

#[tokio::test]
async fn a_size_that_fsck_found_is_set_while_nobody_writes() {
    let fs = Fixture::new().await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let inode = created.entry.attributes.inode;
    let repair = |who, epoch| fs.call(ALICE, MdtRequest::RepairSize(who, inode, size_update(epoch, 42)));
    let epoch = created.opened.unwrap().epoch;
    assert_eq!(scan(&fs).await[1].entry.quiet, None, "somebody writes");
    assert_eq!(repair(user(5), epoch).await, Err(FsError::NotPermitted));
    assert_eq!(repair(root(), epoch).await, Err(FsError::Busy));
    fs.close(ALICE, inode, open, None).await.unwrap();
    let scanned = scan(&fs).await;
    assert_eq!(scanned.iter().map(|inode| inode.entry.attributes.inode).collect::<Vec<_>>(), [ROOT, inode]);
    assert!(scanned.iter().all(|inode| !inode.busy));
    repair(root(), scanned[1].entry.quiet.unwrap()).await.unwrap();
    let entry = fs.stat(inode).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size), (None, 42));
}

/// fsck asks the objects of a file of unknown size; before it reports, somebody appends to it and
/// closes it.
#[tokio::test]
async fn a_size_that_fsck_found_is_refused_when_somebody_wrote_since() {
    let fs = Fixture::new().await;
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let inode = created.entry.attributes.inode;
    fs.close(ALICE, inode, open, None).await.unwrap();
    let told = scan(&fs).await[1].entry.quiet.unwrap();
    let (open, opened) = fs.open(ALICE, &root(), inode, WRITE).await.unwrap();
    fs.close(ALICE, inode, open, Some(size_update(opened.epoch, 150))).await.unwrap();
    let repair = |epoch| fs.call(ALICE, MdtRequest::RepairSize(root(), inode, size_update(epoch, 100)));
    assert_eq!(repair(told).await, Err(FsError::Busy));
    assert_eq!(fs.stat(inode).await.unwrap().attributes.size, 150);
    // A known size can be wrong too, and is repaired under its epoch.
    repair(scan(&fs).await[1].entry.quiet.unwrap()).await.unwrap();
    assert_eq!(fs.stat(inode).await.unwrap().attributes.size, 100);
}

/// All inodes of a small file system.
async fn scan(fs: &Fixture) -> Vec<ScannedInode> {
    match fs.call(ALICE, MdtRequest::ScanInodes(root(), InodeNumber(0), 10)).await.unwrap() {
        MdtReply::Scanned(scanned) => scanned,
        reply => panic!("{reply:?}"),
    }
}
