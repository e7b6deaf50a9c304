//! What OSTs are told, and what they report about themselves.

use crate::common;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use common::{ost::NotingOst, *};
use layout::{LayoutSpec, StripeCount, StripeSpec};
use rpc::{
    Endpoint, SessionEvent,
    message::{
        MdtReply, MdtRequest,
        mdt::{Create, LayoutInfo, LockFamily, LockMode, LockRange, OpenFlags, ReportSize, SetLock},
        ost::TargetCondition,
    },
};
use rt::memory::MemoryTransport;
use types::{FsError, InodeNumber, MdtIndex, NodeKind, OstIndex};

async fn with_osts(count: u16) -> (Fixture, Vec<Arc<NotingOst>>) {
    let network = MemoryTransport::new();
    let served: Vec<(Arc<NotingOst>, Endpoint)> =
        (0..count).map(|index| NotingOst::serve(&network, OstIndex(index))).collect();
    let map = served.iter().zip(0..).map(|((_, endpoint), index)| (OstIndex(index), endpoint.clone(), true)).collect();
    let fs = Fixture::on_network(&network, map).await.with_plain_files();
    (fs, served.into_iter().map(|(ost, _)| ost).collect())
}

/// A file with `count` stripes that was opened for writing.
async fn striped(fs: &Fixture, name: &str, count: u32) -> (rpc::message::mdt::OpenId, InodeNumber) {
    let open = fs.open_id();
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(count), ..StripeSpec::default() };
    let request = create_request(ROOT, name, NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    let request = MdtRequest::Create(root(), Create { layout: Some(LayoutSpec::Plain(stripes)), ..request });
    (open, created(fs.call(ALICE, request).await.unwrap()).entry.attributes.inode)
}

fn destroyed(osts: &[Arc<NotingOst>], inode: InodeNumber) -> usize {
    osts.iter().map(|ost| ost.destroyed.lock().iter().filter(|object| object.inode == inode).count()).sum()
}

/// Asks for the whole of a file, without waiting.
fn flock(inode: InodeNumber) -> MdtRequest {
    let (family, mode, range) = (LockFamily::Flock, LockMode::Exclusive, LockRange { start: 0, end: u64::MAX });
    MdtRequest::SetLock(SetLock { inode, family, owner: 1, pid: 1, range, mode, ticket: None })
}

#[tokio::test]
async fn objects_are_destroyed_after_the_last_close() {
    let (fs, osts) = with_osts(3).await;
    let (open, file) = striped(&fs, "f", 3).await;
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    assert_eq!(destroyed(&osts, file), 0);
    fs.close(ALICE, file, open, None).await.unwrap();
    eventually("all objects go", async || destroyed(&osts, file) == 3).await;
    let slots: Vec<u32> = osts.iter().flat_map(|ost| ost.destroyed.lock().clone()).map(|object| object.slot).collect();
    assert_eq!(slots.iter().sum::<u32>(), 3, "each slot once");
}

#[tokio::test]
async fn a_file_never_written_has_nothing_to_destroy() {
    let (fs, osts) = with_osts(1).await;
    let empty = fs.file(ROOT, "empty").await;
    fs.unlink(&root(), ROOT, "empty").await.unwrap();
    let (open, file) = striped(&fs, "f", 1).await;
    fs.close(ALICE, file, open, None).await.unwrap();
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    eventually("the written one goes", async || destroyed(&osts, file) == 1).await;
    assert_eq!(destroyed(&osts, empty), 0);
}

/// Nobody knows whether it was opened for writing meanwhile.
#[tokio::test]
async fn a_file_never_written_may_have_something_to_destroy_after_a_loss_of_power() {
    let (mut fs, osts) = with_osts(1).await;
    let file = fs.file(ROOT, "f").await;
    fs.commit().await;
    let (open, _) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    fs.lose_power().await;
    fs.recover().await;
    fs.close(ALICE, file, open, None).await.unwrap();
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    eventually("what may be there goes", async || destroyed(&osts, file) == 1).await;
}

#[tokio::test]
async fn deferred_operations_survive_a_restart_and_a_dead_ost_holds_up_nobody() {
    let (mut fs, osts) = with_osts(2).await;
    *osts[0].refuses.lock() = true;
    let mut files = Vec::new();
    for number in 0..20 {
        let name = format!("f{number}");
        let (open, file) = striped(&fs, &name, 2).await;
        fs.close(ALICE, file, open, None).await.unwrap();
        fs.unlink(&root(), ROOT, &name).await.unwrap();
        files.push(file);
    }
    eventually("the living one is told", async || files.iter().all(|file| destroyed(&osts[1..], *file) >= 1)).await;
    assert!(osts[0].destroyed.lock().is_empty());
    fs.restart_and_recover().await;
    *osts[0].refuses.lock() = false;
    eventually("the other hears it later", async || files.iter().all(|file| destroyed(&osts, *file) >= 2)).await;
}

/// An OST tells repeated operations from new ones by their numbers: those are never used twice,
/// although the log is empty in between, and follow each other without a gap.
#[tokio::test]
async fn sequence_numbers_continue_after_a_restart_and_a_loss_of_power() {
    let (mut fs, osts) = with_osts(1).await;
    let mut removed = 0;
    for restart in 0..3 {
        for _ in 0..3 {
            let (open, file) = striped(&fs, "f", 1).await;
            fs.close(ALICE, file, open, None).await.unwrap();
            fs.unlink(&root(), ROOT, "f").await.unwrap();
            removed += 1;
            eventually("its object goes", async || destroyed(&osts, file) >= 1).await;
        }
        fs.commit().await;
        match restart {
            0 => fs.restart_and_recover().await,
            _ => {
                fs.lose_power().await;
                fs.recover().await;
            }
        }
    }
    let mut next = BTreeMap::new();
    for (origin, count) in osts[0].origins.lock().iter() {
        assert_eq!(origin.source, MdtIndex(0));
        assert!(next.keys().all(|first| *first <= origin.first), "{origin:?} after {next:?}");
        next.insert(origin.first, origin.first + *count as u64);
    }
    let mut expected = 1;
    for (first, end) in &next {
        assert_eq!(*first, expected, "{next:?}");
        expected = *end;
    }
    assert_eq!(expected - 1, removed);
    let eras: BTreeSet<u64> = osts[0].origins.lock().iter().map(|(origin, _)| origin.era).collect();
    assert_eq!(eras.len(), 2, "of before the loss and after it: {eras:?}");
}

#[tokio::test]
async fn locks_of_an_evicted_writer_wait_until_osts_refuse_it() {
    let (fs, osts) = with_osts(1).await;
    fs.begin(BOB).await;
    let (_, created) = fs.create_open(BOB, ROOT, "f", WRITE).await.unwrap();
    let file = created.entry.attributes.inode;
    let lock = flock(file);
    done(fs.call(BOB, lock.clone()).await.unwrap()).unwrap();
    *osts[0].refuses.lock() = true;
    fs.event(SessionEvent::Evicted(BOB)).await;
    eventually("the OST was asked", async || *osts[0].refusals.lock() > 0).await;
    let (_, opened) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    assert_eq!(fs.call(ALICE, lock.clone()).await, Err(FsError::WouldBlock));
    assert!(opened.entry.size_unknown.is_some());
    *osts[0].refuses.lock() = false;
    eventually("the lock is free", async || fs.call(ALICE, lock.clone()).await == Ok(MdtReply::Done)).await;
    assert_eq!(*osts[0].evicted.lock(), [BOB]);
}

/// The OST had heard of the eviction before the evicting task learned that it was written down.
#[tokio::test]
async fn locks_are_free_although_the_ost_was_told_at_once() {
    let (mut fs, osts) = with_osts(1).await;
    let gate = fs.restart_behind_a_gate().await;
    fs.recover().await;
    fs.begin(BOB).await;
    let (_, created) = fs.create_open(BOB, ROOT, "f", WRITE).await.unwrap();
    let lock = flock(created.entry.attributes.inode);
    done(fs.call(BOB, lock.clone()).await.unwrap()).unwrap();
    gate.close();
    let mut first = Box::pin(fs.mkdir(ROOT, "first"));
    let mut eviction = Box::pin(fs.event(SessionEvent::Evicted(BOB)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending(), "it writes, for both");
    assert!(eviction.as_mut().poll(&mut context).is_pending());
    gate.open();
    first.await;
    eventually("the OST was told", async || *osts[0].evicted.lock() == [BOB]).await;
    // What it is told after that shows that the answer has been heeded.
    let (open, marker) = striped(&fs, "marker", 1).await;
    fs.close(ALICE, marker, open, None).await.unwrap();
    fs.unlink(&root(), ROOT, "marker").await.unwrap();
    eventually("later operations arrive", async || destroyed(&osts, marker) == 1).await;
    eviction.await;
    fs.open(ALICE, &root(), created.entry.attributes.inode, READ).await.unwrap();
    assert_eq!(fs.call(ALICE, lock).await, Ok(MdtReply::Done));
}

#[tokio::test]
async fn a_dead_writers_file_is_quiet_once_no_late_write_can_come() {
    let (fs, osts) = with_osts(1).await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let quiet =
        async |fs: &Fixture| (fs.stat(file).await.unwrap().quiet, fs.lookup(&root(), ROOT, "f").await.unwrap().quiet);
    fs.open(BOB, &root(), file, WRITE).await.unwrap();
    assert_eq!(quiet(&fs).await, (None, None));
    *osts[0].refuses.lock() = true;
    fs.event(SessionEvent::Evicted(BOB)).await;
    eventually("the OST was asked", async || *osts[0].refusals.lock() > 0).await;
    assert_eq!(quiet(&fs).await, (None, None));
    *osts[0].refuses.lock() = false;
    eventually("it is quiet", async || quiet(&fs).await.0.is_some()).await;
    let epoch = fs.stat(file).await.unwrap().quiet.unwrap();
    assert_eq!(quiet(&fs).await, (Some(epoch), Some(epoch)));
    let report = ReportSize { inode: file, update: size_update(epoch, 4711) };
    done(fs.call(ALICE, MdtRequest::ReportSize(report)).await.unwrap()).unwrap();
    let entry = fs.stat(file).await.unwrap();
    assert_eq!((entry.attributes.size, entry.size_unknown, entry.quiet), (4711, None, None));
}

#[tokio::test]
async fn a_client_without_writes_needs_no_fence() {
    let (fs, osts) = with_osts(1).await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.open(BOB, &root(), file, READ).await.unwrap();
    fs.event(SessionEvent::Evicted(BOB)).await;
    let (open, marker) = striped(&fs, "marker", 1).await;
    fs.close(ALICE, marker, open, None).await.unwrap();
    fs.unlink(&root(), ROOT, "marker").await.unwrap();
    eventually("later operations arrive", async || destroyed(&osts, marker) == 1).await;
    assert!(osts[0].evicted.lock().is_empty());
}

#[tokio::test]
async fn new_files_avoid_targets_that_take_none() {
    let (fs, osts) = with_osts(2).await;
    *osts[0].condition.lock() = TargetCondition { no_create: true, ..TargetCondition::default() };
    let mut parameters = fs.mdt.parameters();
    parameters.ost_refresh = std::time::Duration::from_millis(1);
    fs.mdt.set_parameters(parameters);
    // The tasks sleep their first interval still: a new map starts none, so a new MDT takes the
    // parameter.
    let mut fs = fs;
    fs.options.parameters = parameters;
    fs.restart_and_recover().await;
    eventually("the condition is known", async || {
        let view = fs.mdt.osts().into_iter().find(|(ost, _)| *ost == OstIndex(0)).unwrap().1;
        view.report.is_some_and(|report| report.condition.no_create)
    })
    .await;
    for number in 0..6 {
        let file = fs.file(ROOT, &format!("f{number}")).await;
        assert_eq!(osts_of(&fs, file).await, [OstIndex(1)]);
    }
}

async fn layout_of(fs: &Fixture, inode: InodeNumber) -> LayoutInfo {
    match fs.call(ALICE, MdtRequest::GetLayout(inode)).await.unwrap() {
        MdtReply::Layout(info) => info,
        other => panic!("{other:?}"),
    }
}

async fn osts_of(fs: &Fixture, inode: InodeNumber) -> Vec<OstIndex> {
    let layout = layout_of(fs, inode).await.layout.unwrap();
    let plain = layout.as_plain().unwrap().clone();
    plain.osts
}

#[tokio::test]
async fn layouts_are_inherited_from_directory_root_and_file_system() {
    let fs = Fixture::new().await.with_plain_files();
    let directory = fs.mkdir(ROOT, "d").await;
    assert_eq!(osts_of(&fs, fs.file(directory, "one").await).await.len(), 1);
    let set = |who, inode, spec| fs.call(ALICE, MdtRequest::SetDefaultLayout(who, inode, spec));
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(2), ..StripeSpec::default() };
    let two = LayoutSpec::Plain(stripes);
    assert_eq!(set(user(5), directory, Some(two.clone())).await, Err(FsError::NotPermitted));
    set(root(), directory, Some(two.clone())).await.unwrap();
    assert_eq!(osts_of(&fs, fs.file(directory, "two").await).await.len(), 2);
    let inner = fs.mkdir(directory, "inner").await;
    set(root(), directory, None).await.unwrap();
    assert_eq!(layout_of(&fs, inner).await.own_default.as_deref(), Some(&two), "inherited when it was made");
    assert_eq!(osts_of(&fs, fs.file(inner, "two").await).await.len(), 2);
    let stripes = StripeSpec { stripe_count: StripeCount::All, stripe_bytes: Some(1 << 20), ..StripeSpec::default() };
    let all = LayoutSpec::Plain(stripes);
    set(root(), ROOT, Some(all)).await.unwrap();
    assert_eq!(osts_of(&fs, fs.file(directory, "all").await).await.len(), 4, "the root's default holds for all");
    let effective = layout_of(&fs, inner).await.effective_default.unwrap();
    let LayoutSpec::Plain(effective) = *effective else { panic!("plain defaults stay plain") };
    assert_eq!((effective.stripe_count, effective.stripe_bytes), (StripeCount::Exactly(2), Some(1 << 20)));
    let bad = LayoutSpec::Plain(StripeSpec { first_ost: Some(OstIndex(77)), ..StripeSpec::default() });
    assert_eq!(set(root(), directory, Some(bad)).await, Err(FsError::Invalid));
}

#[tokio::test]
async fn creation_without_usable_targets_is_no_space() {
    let fs = Fixture::with_osts(Vec::new()).await.with_plain_files();
    fs.mdt.update_map(&[(types::OstIndex(0), rpc::Endpoint::Remote("nowhere:1".into()), false)]);
    let made = fs.create(&root(), ROOT, "f", NodeKind::Regular, 0).await;
    assert_eq!(made, Err(FsError::NoSpace));
    fs.mkdir(ROOT, "directories need none").await;
}
