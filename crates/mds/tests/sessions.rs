//! Sessions, restarts, exactly-once, unlinked files, locks.

use crate::common;

use std::{sync::Arc, time::Duration};

use common::{holders::Holders, *};
use mds::ProcessId;
use rpc::{
    Clients, Handler, SessionEvent,
    message::{
        ClientRequest, MdtReply, MdtRequest, Reply,
        client::LockCompleted,
        mdt::{
            CancelLock, Close, Create, CreateUnnamed, ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, GetLock,
            HeldLock, LockFamily, LockMode, LockRange, Lookup, OpenFlags, Reclaim, ReportSize, SetLock, Unlink,
            WaitTicket, open_flag,
        },
    },
};
use rt::{Clock, memory::JumpingClock};
use types::{ClientId, FsError, FsResult, InodeNumber, NodeKind, Slot, Xid};

const WHOLE: LockRange = LockRange { start: 0, end: u64::MAX };

fn lock(inode: InodeNumber, owner: u64, mode: LockMode, wait: bool) -> MdtRequest {
    let family = LockFamily::Posix;
    let ticket = wait.then_some(WaitTicket(owner));
    MdtRequest::SetLock(SetLock { inode, family, owner, pid: owner as u32, range: WHOLE, mode, ticket })
}

async fn unnamed(fs: &Fixture, flags: u32) -> (rpc::message::mdt::OpenId, InodeNumber) {
    let open = fs.open_id();
    let request = CreateUnnamed { parent: ROOT, mode: 0o600, umask: 0, open: (open, OpenFlags(flags)) };
    let reply = fs.call(ALICE, MdtRequest::CreateUnnamed(root(), request)).await.unwrap();
    (open, created(reply).entry.attributes.inode)
}

fn opens(inode: InodeNumber, open: rpc::message::mdt::OpenId) -> Reclaim {
    Reclaim { opens: vec![(inode, open, OpenFlags(READ))], done: true, ..Reclaim::default() }
}

#[tokio::test]
async fn an_unlinked_file_lives_until_its_last_close() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let (first, _) = fs.open(ALICE, &root(), file, READ).await.unwrap();
    let (second, _) = fs.open(BOB, &root(), file, READ).await.unwrap();
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    assert_eq!(fs.links(file).await, 0);
    assert_eq!(fs.link(&root(), file, ROOT, "g").await, Err(FsError::NotFound), "it cannot come back");
    assert_eq!(fs.check(false).await, []);
    fs.close(ALICE, file, first, None).await.unwrap();
    assert_eq!(fs.links(file).await, 0);
    fs.close(BOB, file, second, None).await.unwrap();
    assert_eq!(fs.stat(file).await, Err(FsError::Stale));
}

#[tokio::test]
async fn unnamed_files_can_be_named_unless_exclusive() {
    let fs = Fixture::new().await;
    let (open, file) = unnamed(&fs, WRITE).await;
    assert_eq!(fs.links(file).await, 0);
    fs.link(&root(), file, ROOT, "named").await.unwrap();
    fs.close(ALICE, file, open, None).await.unwrap();
    assert_eq!(fs.links(file).await, 1);
    let (open, file) = unnamed(&fs, WRITE | open_flag::EXCLUSIVE).await;
    assert_eq!(fs.link(&root(), file, ROOT, "other").await, Err(FsError::NotFound));
    fs.close(ALICE, file, open, None).await.unwrap();
    assert_eq!(fs.stat(file).await, Err(FsError::Stale));
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn unlinked_files_survive_a_crash_if_they_are_claimed() {
    let mut fs = Fixture::new().await;
    let (kept, lost) = (fs.file(ROOT, "kept").await, fs.file(ROOT, "lost").await);
    let (open, _) = fs.open(ALICE, &root(), kept, READ).await.unwrap();
    fs.open(ALICE, &root(), lost, READ).await.unwrap();
    fs.unlink(&root(), ROOT, "kept").await.unwrap();
    fs.unlink(&root(), ROOT, "lost").await.unwrap();
    fs.restart().await;
    assert_eq!(fs.links(lost).await, 0, "nothing ends during recovery");
    fs.reclaim(ALICE, opens(kept, open)).await.unwrap();
    eventually("unclaimed files end", async || fs.stat(lost).await == Err(FsError::Stale)).await;
    assert_eq!(fs.links(kept).await, 0);
    fs.close(ALICE, kept, open, None).await.unwrap();
    assert_eq!(fs.stat(kept).await, Err(FsError::Stale));
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn a_repeated_mutation_has_one_effect_and_the_same_reply_after_a_crash() {
    let mut fs = Fixture::new().await;
    let open = fs.open_id();
    let flags = OpenFlags(WRITE | open_flag::EXCLUSIVE);
    let create = |open| {
        let create = create_request(ROOT, "f", NodeKind::Regular, 0o444, Some((open, flags)));
        MdtRequest::Create(root(), create)
    };
    let (slot, xid) = (Slot(3), Xid(17));
    let first = fs.call_as(ALICE, slot, xid, create(open)).await.unwrap();
    let file = created(first.clone()).entry.attributes.inode;
    let unlink = MdtRequest::Unlink(root(), Unlink { parent: ROOT, name: b"g".to_vec(), directory: false });
    fs.file(ROOT, "g").await;
    fs.call_as(ALICE, Slot(4), Xid(1), unlink.clone()).await.unwrap();
    fs.restart().await;
    fs.reclaim(ALICE, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    assert_eq!(fs.mdt.persistent_reply(ALICE, slot), None, "the handler itself repeats what opened a file");
    assert_eq!(fs.mdt.answers_repetition(ALICE, slot), Some(xid));
    assert_eq!(fs.mdt.persistent_reply(ALICE, Slot(4)), Some((Xid(1), Reply::Mdt(MdtReply::Done))));
    assert_eq!(fs.call_as(ALICE, slot, xid, create(open)).await, Ok(first));
    assert_eq!(fs.call_as(ALICE, Slot(4), Xid(1), unlink.clone()).await, Ok(MdtReply::Done));
    assert_eq!(fs.mdt.open_files(), 1, "the open is there again");
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    assert_eq!(fs.links(file).await, 0, "and keeps the file");
    assert_eq!(fs.call_as(ALICE, Slot(4), Xid(2), unlink).await, Err(FsError::NotFound), "a new one is executed");
    let again = create(fs.open_id());
    assert!(created(fs.call_as(ALICE, slot, Xid(18), again).await.unwrap()).created);
}

/// A client that has to ask again does so with a new request: it would be told that the name of its
/// own file is taken.
#[tokio::test]
async fn a_repeated_creation_is_answered_before_the_map_is_known() {
    let mut fs = Fixture::new().await;
    let flags = OpenFlags(WRITE | open_flag::EXCLUSIVE);
    let create =
        |open| MdtRequest::Create(root(), create_request(ROOT, "f", NodeKind::Regular, 0o444, Some((open, flags))));
    let (slot, xid, first) = (Slot(3), Xid(17), create(fs.open_id()));
    let answered = fs.call_as(ALICE, slot, xid, first.clone()).await.unwrap();
    fs.restart_without_map().await;
    fs.reclaim(ALICE, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    let second = create(fs.open_id());
    assert_eq!(fs.call_as(ALICE, Slot(4), Xid(1), second.clone()).await, Ok(MdtReply::Waiting), "a new one waits");
    assert_eq!(fs.call_as(ALICE, slot, xid, first).await, Ok(answered));
    assert_eq!(fs.mdt.open_files(), 1);
    fs.update_map();
    assert_eq!(fs.call_as(ALICE, Slot(4), Xid(2), second).await, Err(FsError::Exists));
}

#[tokio::test]
async fn an_unnamed_file_whose_creation_was_not_answered_before_a_crash_is_there_when_it_is_asked_for_again() {
    let mut fs = Fixture::new().await;
    let (open, slot, xid) = (fs.open_id(), Slot(3), Xid(17));
    let request = CreateUnnamed { parent: ROOT, mode: 0o600, umask: 0, open: (open, OpenFlags(WRITE)) };
    let request = MdtRequest::CreateUnnamed(root(), request);
    let first = created(fs.call_as(ALICE, slot, xid, request.clone()).await.unwrap()).entry.attributes.inode;
    fs.restart().await;
    fs.reclaim(ALICE, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    eventually("the one nobody claimed ends", async || fs.stat(first).await == Err(FsError::Stale)).await;
    let again = created(fs.call_as(ALICE, slot, xid, request).await.unwrap()).entry.attributes.inode;
    fs.stat(again).await.unwrap();
    assert_eq!(fs.mdt.open_files(), 1);
    assert_eq!(fs.check(false).await, []);
}

/// A seed of the lab: the creation of a shared name failed with a stale handle.
#[tokio::test]
async fn a_file_that_somebody_removed_before_its_creator_heard_of_it_is_made_again() {
    let mut fs = Fixture::new().await;
    let (open, slot, xid) = (fs.open_id(), Slot(3), Xid(17));
    let request = create_request(ROOT, "f", NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    let request = MdtRequest::Create(root(), request);
    let first = created(fs.call_as(ALICE, slot, xid, request.clone()).await.unwrap()).entry.attributes.inode;
    fs.restart().await;
    fs.recover().await;
    fs.begin(BOB).await;
    let unlink = MdtRequest::Unlink(root(), Unlink { parent: ROOT, name: b"f".to_vec(), directory: false });
    assert_eq!(fs.call(BOB, unlink).await, Ok(MdtReply::Done));
    assert_eq!(fs.stat(first).await, Err(FsError::Stale));
    let again = created(fs.call_as(ALICE, slot, xid, request).await.unwrap());
    assert!(again.created && again.entry.attributes.inode != first);
    assert_eq!((fs.mdt.open_files(), fs.links(again.entry.attributes.inode).await), (1, 1));
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn a_close_of_what_was_not_reclaimed_asks_for_the_size() {
    let mut fs = Fixture::new().await;
    let (open, opened) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let (file, epoch) = (opened.entry.attributes.inode, opened.opened.unwrap().epoch);
    fs.restart().await;
    fs.reclaim(ALICE, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    let closed = fs.close(ALICE, file, open, Some(size_update(epoch, 77))).await.unwrap();
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some(), "it may never have had it open");
    let (epoch, _) = closed.size_wanted.expect("it is to look");
    let report = ReportSize { inode: file, update: size_update(epoch, 77) };
    assert_eq!(fs.call(ALICE, MdtRequest::ReportSize(report)).await, Ok(MdtReply::Done));
    assert_eq!(fs.stat(file).await.unwrap().attributes.size, 77);
}

#[tokio::test]
async fn an_evicted_client_is_not_believed_and_holds_nothing() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, opened) = fs.create_open(BOB, ROOT, "f", WRITE).await.unwrap();
    let (file, epoch) = (opened.entry.attributes.inode, opened.opened.unwrap().epoch);
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    let (_, named) = fs.create_open(BOB, ROOT, "g", WRITE).await.unwrap();
    let named_file = named.entry.attributes.inode;
    fs.event(SessionEvent::Evicted(BOB)).await;
    assert_eq!(fs.mdt.open_files(), 0);
    assert_eq!(fs.stat(file).await, Err(FsError::Stale));
    fs.begin(BOB).await;
    fs.close(BOB, file, open, Some(size_update(epoch, 5))).await.unwrap();
    let named_epoch = named.opened.unwrap().epoch;
    fs.close(BOB, named_file, open, Some(size_update(named_epoch, 5))).await.unwrap();
    assert!(fs.stat(named_file).await.unwrap().size_unknown.is_some());
    let late = Reclaim { opens: vec![(named_file, open, OpenFlags(WRITE))], done: true, ..Reclaim::default() };
    assert_eq!(fs.reclaim(BOB, late).await, Err(FsError::Evicted));
}

/// After the death of a process with everything in it, nobody waits for the recovery window.
#[tokio::test]
async fn a_client_that_ended_with_the_servers_process_is_not_waited_for() {
    let mut fs = Fixture::new().await;
    fs.begin_in_process(BOB).await;
    let (_, opened) = fs.create_open(BOB, ROOT, "f", WRITE).await.unwrap();
    let file = opened.entry.attributes.inode;
    fs.restart().await;
    assert!(fs.mdt.recovering_clients().contains(&BOB), "the MDT alone was started again");
    fs.options.process = ProcessId::MAX;
    fs.restart().await;
    eventually("recovery waits for ALICE only", async || fs.mdt.recovering_clients() == [ALICE]).await;
    assert!(!fs.mdt.may_resume(BOB));
    fs.recover().await;
    fs.begin_in_process(BOB).await;
    fs.restart().await;
    assert!(fs.mdt.recovering_clients().contains(&BOB), "it lives in the new process");
    assert!(fs.stat(file).await.unwrap().size_unknown.is_some(), "its size is not known");
}

#[tokio::test]
async fn who_does_not_come_back_in_time_is_forgotten() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.open(BOB, &root(), file, READ).await.unwrap();
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    fs.options.recovery_window = std::time::Duration::from_millis(1);
    fs.restart().await;
    eventually("recovery is over", async || fs.mdt.recovering_clients().is_empty()).await;
    fs.begin(ALICE).await;
    eventually("the file ends", async || fs.stat(file).await == Err(FsError::Stale)).await;
    assert!(!fs.mdt.may_resume(BOB));
    fs.restart().await;
    assert_eq!(fs.mdt.recovering_clients(), [ALICE], "the other session is gone");
}

/// Others' changes wait until all of them are evicted.
#[tokio::test]
async fn many_clients_that_do_not_come_back_are_evicted() {
    let mut fs = Fixture::new().await;
    let clients: Vec<ClientId> = (0x1000..0x1100).map(ClientId).collect();
    for client in &clients {
        fs.begin(*client).await;
    }
    fs.options.recovery_window = Duration::from_millis(1);
    fs.restart().await;
    assert!(clients.iter().all(|client| fs.mdt.may_resume(*client)), "they may come back");
    eventually("recovery is over", async || fs.mdt.recovering_clients().is_empty()).await;
    assert!(!clients.iter().any(|client| fs.mdt.may_resume(*client)));
    fs.restart().await;
    assert_eq!(fs.mdt.recovering_clients(), [], "no session is left");
}

/// How many evicted clients are on disk.
fn evicted(fs: &Fixture) -> usize {
    let mut count = 0;
    let counted = fs.mdt.scan_table(mds::tables::EVICTED, |_, _| {
        count += 1;
        Ok(())
    });
    counted.map(|()| count).unwrap()
}

/// An eviction was forgotten with a restart: the locks of the client, which it may use until its
/// lease ends, were in memory only. Found by the lab.
#[tokio::test]
async fn a_start_does_not_change_what_a_client_that_was_evicted_may_serve_until_its_lease_has_ended() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let clock = JumpingClock::default();
    fs.seams.clock = Arc::new(clock.clone());
    let lease = Duration::from_secs(500);
    Holders::of(&fs.mdt, fs.seams.clock.clone(), lease).evict(BOB).await;
    assert!(!fs.mdt.spares(BOB), "this start knows its locks");
    fs.restart().await;
    let _clients = Holders::of(&fs.mdt, fs.seams.clock.clone(), lease);
    fs.recover().await;
    assert!(fs.mdt.recovering_clients().is_empty() && fs.mdt.spares(BOB) && !fs.mdt.may_resume(BOB));
    assert_eq!(fs.links(file).await, 1, "nobody waits to see it");
    let began = clock.now();
    let removed = async {
        fs.unlink(&root(), ROOT, "f").await.unwrap();
        clock.now()
    };
    let passes = async || {
        clock.jump(fs.options.recovery_window / 8);
        !fs.mdt.spares(BOB)
    };
    let (removed, ()) = tokio::join!(removed, eventually("the lease ends", passes));
    assert!(removed.since(began) >= fs.options.recovery_window);
    eventually("that is on disk, too", async || evicted(&fs) == 0).await;
}

/// Also one that never heard that it had a session: what it opens would be lost with its first
/// request to an OST. Found by the lab.
#[tokio::test]
async fn no_session_begins_under_an_id_that_osts_refuse() {
    let mut fs = Fixture::new().await;
    for client in [BOB, ClientId(0xc)] {
        fs.begin(client).await;
    }
    let (_, opened) = fs.create_open(BOB, ROOT, "f", WRITE).await.unwrap();
    for client in [BOB, ClientId(0xc)] {
        fs.event(SessionEvent::Evicted(client)).await;
    }
    assert!(opened.created);
    // Once more, as after an error of the store.
    Holders::of(&fs.mdt, fs.seams.clock.clone(), Duration::from_secs(500)).evict(BOB).await;
    for _ in 0..2 {
        assert_eq!(
            (fs.mdt.may_begin(BOB), fs.mdt.may_begin(ClientId(0xc)), fs.mdt.may_begin(ALICE)),
            (false, true, true)
        );
        fs.restart_and_recover().await;
    }
    assert_eq!(evicted(&fs), 1, "the other one left nothing at an OST");
}

/// Who is missing is decided when the map is there and the sessions end, not when the window
/// closes.
#[tokio::test]
async fn a_client_that_comes_back_while_the_map_is_awaited_stays() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let (open, _) = fs.open(BOB, &root(), file, READ).await.unwrap();
    fs.options.recovery_window = Duration::from_millis(1);
    fs.restart_without_map().await;
    let window_over = fs.seams.clock.now() + Duration::from_millis(50);
    eventually("the window is over", async || fs.seams.clock.now() > window_over).await;
    fs.reclaim(BOB, opens(file, open)).await.unwrap();
    fs.update_map();
    eventually("recovery is over", async || fs.mdt.recovering_clients().is_empty()).await;
    assert_eq!((fs.mdt.may_resume(ALICE), fs.mdt.may_resume(BOB)), (false, true));
    assert_eq!(fs.mdt.open_files(), 1, "what it reclaimed");
    assert_eq!(fs.call(BOB, MdtRequest::Ping).await, Ok(MdtReply::Done));
    fs.restart().await;
    assert!(fs.mdt.recovering_clients().contains(&BOB), "its session is recorded");
}

/// While the server stood still nobody could come back: that time is not part of the recovery
/// window.
#[tokio::test]
async fn a_recovery_window_does_not_pass_while_the_server_stands_still() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let (open, _) = fs.open(BOB, &root(), file, READ).await.unwrap();
    let clock = JumpingClock::default();
    fs.seams.clock = Arc::new(clock.clone());
    fs.options.recovery_window = Duration::from_secs(600);
    fs.restart().await;
    for _ in 0..3 {
        clock.jump(Duration::from_secs(3600));
        let later = clock.now() + Duration::from_millis(50);
        eventually("time for a check", async || clock.now() > later).await;
    }
    assert_eq!(fs.mdt.recovering_clients(), [ALICE, BOB]);
    fs.reclaim(BOB, opens(file, open)).await.unwrap();
    let passes = async || {
        clock.jump(fs.options.recovery_window / 8);
        fs.mdt.recovering_clients().is_empty()
    };
    eventually("the window is over for those who stay away", passes).await;
    assert_eq!((fs.mdt.may_resume(ALICE), fs.mdt.may_resume(BOB)), (false, true));
}

#[tokio::test]
async fn an_evicted_client_learns_it_from_any_request_until_it_begins_anew() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.options.recovery_window = Duration::from_millis(1);
    fs.restart().await;
    eventually("recovery is over", async || fs.mdt.recovering_clients().is_empty()).await;
    let lookup = Lookup { parent: ROOT, name: b"f".to_vec() };
    for request in [
        MdtRequest::Ping,
        MdtRequest::Reclaim(Reclaim::default()),
        MdtRequest::Reclaim(Reclaim { done: true, ..Reclaim::default() }),
        MdtRequest::Lookup(root(), lookup),
        MdtRequest::GetAttributes(file),
        MdtRequest::StatFs,
        MdtRequest::Commit,
        MdtRequest::Create(root(), create_request(ROOT, "g", NodeKind::Regular, 0o644, None)),
        lock(file, 1, LockMode::Exclusive, false),
    ] {
        assert_eq!(fs.call(BOB, request.clone()).await, Err(FsError::Evicted), "{request:?}");
    }
    fs.begin(BOB).await;
    assert_eq!(fs.call(BOB, MdtRequest::Ping).await, Ok(MdtReply::Done));
    fs.open(BOB, &root(), file, READ).await.unwrap();
}

#[tokio::test]
async fn disconnect_ends_everything_of_a_client() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.open(BOB, &root(), file, READ).await.unwrap();
    done(fs.call(BOB, lock(file, 1, LockMode::Exclusive, false)).await.unwrap()).unwrap();
    let (open, _) = fs.open(ALICE, &root(), file, READ).await.unwrap();
    assert_eq!(fs.call(ALICE, lock(file, 1, LockMode::Shared, false)).await, Err(FsError::WouldBlock));
    done(fs.call(BOB, MdtRequest::Disconnect).await.unwrap()).unwrap();
    fs.event(SessionEvent::Closed(BOB)).await;
    done(fs.call(ALICE, lock(file, 1, LockMode::Shared, false)).await.unwrap()).unwrap();
    fs.close(ALICE, file, open, None).await.unwrap();
    assert_eq!(fs.mdt.open_files(), 0);
    fs.restart().await;
    assert_eq!(fs.mdt.recovering_clients(), [ALICE]);
}

fn completed(client: ClientId, ticket: u64) -> (ClientId, ClientRequest) {
    (client, ClientRequest::LockCompleted(LockCompleted { ticket: WaitTicket(ticket), outcome: Ok(()) }))
}

#[tokio::test]
async fn locks_wait_in_order_and_their_clients_are_told() {
    let fs = Fixture::new().await;
    let clients = Holders::of(&fs.mdt, fs.seams.clock.clone(), Duration::ZERO);
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.open(ALICE, &root(), file, READ).await.unwrap();
    fs.open(BOB, &root(), file, READ).await.unwrap();
    done(fs.call(ALICE, lock(file, 1, LockMode::Exclusive, true)).await.unwrap()).unwrap();
    let get = GetLock { inode: file, owner: 2, range: WHOLE, mode: LockMode::Shared };
    let MdtReply::Lock(Some(held)) = fs.call(BOB, MdtRequest::GetLock(get)).await.unwrap() else { panic!() };
    let nobody = ClientId(0);
    assert_eq!((held.client, held.owner, held.mode), (nobody, 1, LockMode::Exclusive));
    for _ in 0..2 {
        assert_eq!(fs.call(BOB, lock(file, 2, LockMode::Exclusive, true)).await, Ok(MdtReply::Queued));
    }
    assert_eq!(fs.call(BOB, lock(file, 3, LockMode::Exclusive, true)).await, Ok(MdtReply::Queued));
    done(fs.call(ALICE, lock(file, 1, LockMode::Unlock, false)).await.unwrap()).unwrap();
    assert_eq!(clients.told(1).await, [completed(BOB, 2)]);
    assert_eq!(fs.call(ALICE, lock(file, 1, LockMode::Exclusive, true)).await, Ok(MdtReply::Queued));
    let cancel = |ticket| {
        MdtRequest::CancelLock(CancelLock { inode: file, family: LockFamily::Posix, ticket: WaitTicket(ticket) })
    };
    done(fs.call(BOB, cancel(3)).await.unwrap()).unwrap();
    assert_eq!(fs.call(BOB, cancel(3)).await, Err(FsError::NotFound), "it has left");
    assert_eq!(fs.call(BOB, cancel(2)).await, Err(FsError::NotFound), "it was granted");
    assert_eq!(fs.call(BOB, cancel(1)).await, Err(FsError::NotFound), "another client's");
    // Its locks go with its session.
    fs.event(SessionEvent::Closed(BOB)).await;
    assert_eq!(clients.told(1).await, [completed(ALICE, 1)]);
}

/// A request that is refused when it is sent again must not keep its place.
#[tokio::test]
async fn nothing_of_a_refused_request_stays_in_the_queue() {
    let fs = Fixture::new().await;
    let clients = Holders::of(&fs.mdt, fs.seams.clock.clone(), Duration::ZERO);
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.open(ALICE, &root(), file, READ).await.unwrap();
    let (open, _) = fs.open(BOB, &root(), file, READ).await.unwrap();
    done(fs.call(ALICE, lock(file, 1, LockMode::Shared, true)).await.unwrap()).unwrap();
    assert_eq!(fs.call(BOB, lock(file, 2, LockMode::Exclusive, true)).await, Ok(MdtReply::Queued));
    assert_eq!(fs.call(ALICE, lock(file, 3, LockMode::Shared, true)).await, Ok(MdtReply::Queued), "after BOB");
    fs.close(BOB, file, open, None).await.unwrap();
    assert_eq!(fs.call(BOB, lock(file, 2, LockMode::Exclusive, true)).await, Err(FsError::BadHandle));
    assert_eq!(clients.told(1).await, [completed(ALICE, 3)]);
}

#[tokio::test]
async fn the_next_client_is_told_of_a_free_exclusive_data_lock() {
    let fs = Fixture::new().await;
    let clients = Holders::of(&fs.mdt, fs.seams.clock.clone(), Duration::ZERO);
    let carol = ClientId(0xc);
    let file = fs.file(ROOT, "f").await;
    let begin = || ExclusiveBegin { inode: file, open: None, purpose: ExclusivePurpose::Truncate(4096) };
    let begin = async |client| fs.call(client, MdtRequest::ExclusiveBegin(root(), begin())).await;
    let end = async |client| {
        let end = MdtRequest::ExclusiveEnd(ExclusiveEnd { inode: file, update: None });
        done(fs.call(client, end).await.unwrap()).unwrap();
    };
    let again = |client| (client, ClientRequest::AskAgain(Some(file)));
    for client in [BOB, carol] {
        fs.begin(client).await;
    }
    assert!(matches!(begin(ALICE).await, Ok(MdtReply::ExclusiveGranted(_))));
    for client in [BOB, carol] {
        assert_eq!(begin(client).await, Ok(MdtReply::Waiting));
    }
    end(ALICE).await;
    assert_eq!(clients.told(1).await, [again(BOB)], "only the first");
    assert_eq!(begin(ALICE).await, Ok(MdtReply::Waiting), "it is BOB's turn");
    assert_eq!(begin(carol).await, Ok(MdtReply::Waiting));
    assert!(matches!(begin(BOB).await, Ok(MdtReply::ExclusiveGranted(_))));
    // Gives its place up.
    end(carol).await;
    assert_eq!(clients.told(1).await, [again(carol)], "for its other users");
    end(BOB).await;
    assert_eq!(clients.told(1).await, [again(ALICE)]);
    assert!(matches!(begin(ALICE).await, Ok(MdtReply::ExclusiveGranted(_))));
}

#[tokio::test]
async fn a_client_that_is_told_and_does_not_ask_is_skipped() {
    let mut fs = Fixture::new().await;
    let clock = JumpingClock::default();
    fs.seams.clock = Arc::new(clock.clone());
    fs.restart_and_recover().await;
    let clients = Holders::of(&fs.mdt, fs.seams.clock.clone(), Duration::ZERO);
    let carol = ClientId(0xc);
    let file = fs.file(ROOT, "f").await;
    let begin = || ExclusiveBegin { inode: file, open: None, purpose: ExclusivePurpose::Truncate(4096) };
    for client in [BOB, carol] {
        fs.begin(client).await;
    }
    for client in [ALICE, BOB, carol] {
        fs.call(client, MdtRequest::ExclusiveBegin(root(), begin())).await.unwrap();
    }
    let end = MdtRequest::ExclusiveEnd(ExclusiveEnd { inode: file, update: None });
    done(fs.call(ALICE, end).await.unwrap()).unwrap();
    let again = |client| (client, ClientRequest::AskAgain(Some(file)));
    assert_eq!(clients.told(1).await, [again(BOB)]);
    eventually("BOB is skipped", async || {
        clock.jump(Duration::from_secs(1));
        clients.told_so_far() == 1
    })
    .await;
    assert_eq!(clients.told(1).await, [again(carol)]);
}

#[tokio::test]
async fn flock_ends_with_the_close_of_its_owner() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.open(BOB, &root(), file, READ).await.unwrap();
    let (open, _) = fs.open(ALICE, &root(), file, READ).await.unwrap();
    let flock = |owner| {
        let (family, mode) = (LockFamily::Flock, LockMode::Exclusive);
        MdtRequest::SetLock(SetLock { inode: file, family, owner, pid: 1, range: WHOLE, mode, ticket: None })
    };
    done(fs.call(ALICE, flock(9)).await.unwrap()).unwrap();
    assert_eq!(fs.call(BOB, flock(1)).await, Err(FsError::WouldBlock));
    let close = Close { inode: file, open, update: None, flock_owner: Some(9) };
    fs.call(ALICE, MdtRequest::Close(close)).await.unwrap();
    done(fs.call(BOB, flock(1)).await.unwrap()).unwrap();
}

#[tokio::test]
async fn locks_are_reclaimed_before_new_ones_are_granted() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    let (open, _) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    done(fs.call(ALICE, lock(file, 1, LockMode::Exclusive, false)).await.unwrap()).unwrap();
    fs.restart().await;
    let other = fs.call(BOB, lock(file, 2, LockMode::Exclusive, false)).await;
    assert_eq!(other, Ok(MdtReply::Waiting), "the holder may still come back");
    let get = || MdtRequest::GetLock(GetLock { inode: file, owner: 2, range: WHOLE, mode: LockMode::Shared });
    assert_eq!(fs.call(BOB, get()).await, Ok(MdtReply::Waiting), "what is locked is not known");
    let clients = Holders::of(&fs.mdt, fs.seams.clock.clone(), Duration::ZERO);
    let (client, owner, pid) = (ALICE, 1, 1);
    let family = LockFamily::Posix;
    let held = HeldLock { inode: file, family, client, owner, pid, range: WHOLE, mode: LockMode::Exclusive };
    let opens = vec![(file, open, OpenFlags(WRITE))];
    let reclaim =
        Reclaim { opens, locks: vec![held], exclusives: vec![(file, None)], done: true, ..Reclaim::default() };
    fs.reclaim(ALICE, reclaim).await.unwrap();
    fs.reclaim(BOB, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    assert_eq!(clients.told(1).await, [(BOB, ClientRequest::AskAgain(None))]);
    fs.open(BOB, &root(), file, READ).await.unwrap();
    let MdtReply::Lock(Some(found)) = fs.call(BOB, get()).await.unwrap() else { panic!() };
    let nobody = ClientId(0);
    assert_eq!((found.client, found.owner, found.mode), (nobody, 1, LockMode::Exclusive), "not ALICE's secret");
    let refused = fs.call(BOB, lock(file, 2, LockMode::Exclusive, false)).await;
    assert_eq!(refused, Err(FsError::WouldBlock));
    let truncate = rpc::message::mdt::ExclusivePurpose::Truncate(0);
    let begin = rpc::message::mdt::ExclusiveBegin { inode: file, open: None, purpose: truncate };
    let waiting = fs.call(BOB, MdtRequest::ExclusiveBegin(root(), begin)).await;
    assert_eq!(waiting, Ok(MdtReply::Waiting), "the data lock was reclaimed too");
}

#[tokio::test]
async fn a_failed_operation_leaves_nothing_behind() {
    let fs = Fixture::new().await;
    let no_such_ost = layout::StripeSpec { first_ost: Some(types::OstIndex(99)), ..layout::StripeSpec::default() };
    let create = create_request(ROOT, "f", NodeKind::Regular, 0o644, Some((fs.open_id(), OpenFlags(WRITE))));
    let create = Create { layout: Some(layout::LayoutSpec::Plain(no_such_ost)), ..create };
    let before = fs.mdt.store_statistics().applied;
    assert_eq!(fs.call(ALICE, MdtRequest::Create(root(), create)).await, Err(FsError::Invalid));
    assert_eq!(fs.mdt.store_statistics().applied, before);
    assert_eq!(fs.mdt.open_files(), 0);
    assert_eq!(fs.names(ROOT).await, Vec::<String>::new());
    let unknown: FsResult<MdtReply> = fs.call(ClientId(99), MdtRequest::Ping).await;
    assert_eq!(unknown, Ok(MdtReply::Done));
}

/// The store refuses for a while: nobody gets the lock before the end of its holder is written
/// down.
#[tokio::test]
async fn a_lock_outlives_its_holder_until_the_store_takes_the_end_of_the_session() {
    let fs = Fixture::that_commits().await;
    fs.begin(BOB).await;
    let file = fs.file(ROOT, "f").await;
    fs.open(ALICE, &root(), file, READ).await.unwrap();
    fs.open(BOB, &root(), file, READ).await.unwrap();
    fs.call(BOB, lock(file, 1, LockMode::Exclusive, false)).await.unwrap();
    // With a reply in each of these slots, the end of the session takes more room than anything
    // that fills the journal.
    for slot in 1..50 {
        let request = create_request(ROOT, &format!("b{slot}"), NodeKind::Regular, 0o644, None);
        fs.call_as(BOB, Slot(slot), Xid(1), MdtRequest::Create(root(), request)).await.unwrap();
    }
    fill(&fs).await;
    let ends = tokio::spawn(fs.mdt.clone().session_event(SessionEvent::Evicted(BOB)));
    for _ in 0..20 {
        tokio::task::yield_now().await;
        let asked = fs.call(ALICE, lock(file, 2, LockMode::Exclusive, false)).await;
        assert_eq!(asked, Err(FsError::WouldBlock));
    }
    fs.cold.fail_writes(None);
    ends.await.unwrap();
    assert_eq!(fs.call(ALICE, lock(file, 2, LockMode::Exclusive, false)).await, Ok(MdtReply::Done));
}

/// Fills the journal, the reserve included, until the cold store works again. The store's own tasks
/// get their turns meanwhile: what they free is filled, too.
async fn fill(fs: &Fixture) {
    fs.cold.fail_writes(Some(std::io::ErrorKind::StorageFull));
    let mut made = 0;
    while fs.create(&root(), ROOT, &format!("x{made}"), NodeKind::Regular, 0o644).await.is_ok() {
        made += 1;
        assert!(made < 100_000, "the journal never fills");
        tokio::task::yield_now().await;
    }
    let mut removed = 0;
    while fs.unlink(&root(), ROOT, &format!("x{removed}")).await.is_ok() {
        removed += 1;
        assert!(removed < made, "the reserve never ends");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_full_device_refuses_creation_and_allows_removal() {
    let fs = Fixture::that_commits().await;
    fs.cold.limit_space(Some(1000));
    let mut made = Vec::new();
    let error = loop {
        let name = format!("f{}", made.len());
        match fs.create(&root(), ROOT, &name, NodeKind::Regular, 0o644).await {
            Ok(_) => made.push(name),
            Err(error) => break error,
        }
        assert!(made.len() < 100_000, "the tables never fill");
    };
    assert_eq!(error, FsError::NoSpace);
    assert_eq!(fs.lookup(&root(), ROOT, &format!("f{}", made.len())).await, Err(FsError::NotFound));
    for name in made.iter().take(10) {
        fs.unlink(&root(), ROOT, name).await.unwrap();
    }
    fs.cold.limit_space(None);
    eventually("there is room again", async || fs.create(&root(), ROOT, "new", NodeKind::Regular, 0o644).await.is_ok())
        .await;
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn only_the_end_of_the_host_without_an_end_of_the_mdt_is_a_loss() {
    let mut fs = Fixture::new().await;
    assert_eq!(fs.mdt.era(), 0);
    fs.restart().await;
    assert_eq!(fs.mdt.era(), 0, "the process died");
    fs.lose_power().await;
    assert_eq!(fs.mdt.era(), 1);
    fs.mdt.stop().await.unwrap();
    fs.lose_power().await;
    assert_eq!(fs.mdt.era(), 1, "it had stopped in good order");
    fs.lose_power().await;
    assert_eq!(fs.mdt.era(), 2, "the count itself is durable");
}

#[tokio::test]
async fn a_client_is_known_after_a_loss_of_power_right_after_its_mount() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    fs.lose_power().await;
    assert!(fs.mdt.recovering_clients().contains(&BOB));
}
