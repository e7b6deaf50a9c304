//! Locks that clients claim on a new connection, by the versions of their inodes: after a restart
//! of the MDT, and in the same incarnation.

use crate::common;

use std::sync::Arc;

use common::{caching::*, holders::Holders, *};
use rpc::{
    Handler,
    message::{
        MdtReply, MdtRequest,
        lock::{Granted, Resource, inode_bit::*},
        mdt::{ClaimLocks, LockClaim, Open, OpenFlags, Reclaim, RegisterOpens, ReportSize},
    },
};
use types::{ClientId, LockHandle};

/// Claims locks; returns which are granted.
async fn claim_in(test: &Test, client: ClientId, era: u64, locks: &[Granted]) -> Vec<Option<LockHandle>> {
    let claim = |granted: &Granted| {
        let Resource::Inode(inode, bits) = granted.resource else { panic!("an MDT has no objects") };
        LockClaim { handle: granted.handle, inode, bits, version: granted.version }
    };
    let request = ClaimLocks { era, locks: locks.iter().map(claim).collect() };
    match test.fs.call(client, MdtRequest::ClaimLocks(request)).await {
        Ok(MdtReply::LocksClaimed(granted)) => granted,
        other => panic!("a claim was answered {other:?}"),
    }
}

async fn claim(test: &Test, client: ClientId, locks: &[Granted]) -> Vec<bool> {
    let granted = claim_in(test, client, test.fs.mdt.era(), locks).await;
    granted.iter().map(Option::is_some).collect()
}

async fn done(test: &Test, client: ClientId) {
    test.fs.reclaim(client, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
}

/// The MDT's process dies, or its host loses power.
async fn restart(test: Arc<Test>, loses_power: bool) -> Arc<Test> {
    let Ok(Test { mut fs, .. }) = Arc::try_unwrap(test) else { panic!("nothing is under way") };
    let parameters = fs.mdt.parameters();
    if loses_power {
        fs.lose_power().await;
    } else {
        fs.restart().await;
    }
    fs.mdt.set_parameters(parameters);
    let holders = Holders::of(&fs.mdt, fs.seams.clock.clone(), LONG);
    Arc::new(Test { fs, holders })
}

/// Before they are claimed, a change of another client waits for the client; after that, for the
/// lock.
#[tokio::test]
async fn locks_survive_a_restart() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let held = test.look_up(BOB, ROOT, "file").await;
    assert!(held.iter().all(|granted| granted.version > 0));
    let test = restart(test, false).await;
    done(&test, ALICE).await;
    done(&test, CAROL).await;
    let change = test.begin(chmod(file, 0o600));
    let granted = claim_in(&test, BOB, test.fs.mdt.era(), &held).await;
    let new: Vec<LockHandle> = granted.into_iter().map(|handle| handle.expect("nothing has changed")).collect();
    assert!(new.iter().zip(&held).all(|(new, held)| *new > held.handle), "handles are given once");
    assert!(!change.is_finished() && test.holders.heard_so_far() == 0);
    done(&test, BOB).await;
    let heard = test.holders.heard(1).await;
    assert_eq!((heard[0].0, heard[0].1.handle), (BOB, new[1]));
    test.cancel(BOB, vec![new[1]]).await;
    change.await.unwrap().unwrap();
    assert_eq!(resources(&test.stat(BOB, file).await), [(file, SHOWN)], "it has the directory's names");
}

#[tokio::test]
async fn what_has_changed_is_not_granted_again() {
    let test = Test::new().await;
    let (file, _) = (test.fs.file(ROOT, "file").await, test.fs.file(ROOT, "other").await);
    let mut held = test.look_up(BOB, ROOT, "file").await;
    held.extend(test.look_up(BOB, ROOT, "other").await);
    assert_eq!(held.len(), 3);
    // The connection breaks, and another client changes something before the next one.
    test.fs.mdt.connection_begun(BOB);
    test.fs.call(ALICE, chmod(file, 0o600)).await.unwrap();
    assert_eq!(claim(&test, BOB, &held).await, [true, false, true]);
    assert_eq!(claim(&test, BOB, &held).await, [false; 3], "it has them");
    test.fs.mdt.connection_begun(BOB);
    test.fs.unlink(&root(), ROOT, "other").await.unwrap();
    assert_eq!(claim(&test, BOB, &held).await, [false; 3]);
    let never_told = Granted { version: 0, ..held[0] };
    assert_eq!(claim(&test, BOB, &[never_told]).await, [false]);
}

/// A power loss takes changes, and their versions are given to others.
#[tokio::test]
async fn versions_of_another_era_say_nothing() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    test.fs.commit().await;
    test.fs.call(ALICE, chmod(file, 0o600)).await.unwrap();
    let (held, era) = (test.stat(BOB, file).await, test.fs.mdt.era());
    let test = restart(test, true).await;
    assert!(test.fs.mdt.era() > era);
    done(&test, ALICE).await;
    // None of BOB and CAROL will come back with anything else.
    done(&test, CAROL).await;
    assert_eq!(claim_in(&test, BOB, era, &held).await, [None]);
    done(&test, BOB).await;
    test.fs.call(ALICE, chmod(file, 0o640)).await.unwrap();
    assert_eq!(claim_in(&test, BOB, era, &held).await, [None], "it has the same version again");
}

/// Nothing of what a change waits for may be granted again, by a claim neither.
#[tokio::test]
async fn what_is_about_to_change_is_not_granted_again() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let of_bob = test.stat(BOB, file).await;
    let of_carol = test.stat(CAROL, file).await;
    let change = test.begin(chmod(file, 0o600));
    test.holders.heard(2).await;
    test.fs.mdt.connection_begun(BOB);
    assert_eq!(claim(&test, BOB, &of_bob).await, [false]);
    assert!(!change.is_finished());
    test.cancel(CAROL, of_carol.iter().map(|granted| granted.handle).collect()).await;
    change.await.unwrap().unwrap();
    assert_eq!(claim(&test, BOB, &of_bob).await, [false]);
}

/// A file that another client has opened for writing has another version; one whose own writer has
/// come back has the same.
#[tokio::test]
async fn attributes_of_written_files_belong_to_the_writer() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let open = Open { inode: file, open: test.fs.open_id(), flags: OpenFlags(WRITE) };
    let before = test.stat(CAROL, file).await;
    test.cancel(CAROL, before.iter().map(|granted| granted.handle).collect()).await;
    let (name, flags) = (open.open, open.flags);
    let held = test.wanting(BOB, MdtRequest::Open(root(), open), file, ATTRIBUTES).await;
    assert_eq!(resources(&held), [(file, ATTRIBUTES)], "only this client changes the size");
    let test = restart(test, false).await;
    assert_eq!(claim(&test, CAROL, &before).await, [false]);
    assert_eq!(claim(&test, BOB, &held).await, [false], "the MDT does not know yet that it writes");
    let opens = vec![(file, name, flags)];
    test.fs.reclaim(BOB, Reclaim { opens, ..Reclaim::default() }).await.unwrap();
    assert_eq!(claim(&test, BOB, &held).await, [true]);
}

/// What the client has open under the lost lock comes first.
#[tokio::test]
async fn opens_are_registered_before_locks_are_claimed() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    let held = test.wanting(BOB, lookup(ROOT, "directory"), ROOT, OPEN | ATTRIBUTES).await;
    assert_eq!(resources(&held), [(directory, OPEN | ATTRIBUTES)]);
    test.fs.mdt.connection_begun(BOB);
    assert_eq!(claim(&test, BOB, &held).await, [false]);
    let registered = RegisterOpens { opens: Vec::new(), complete: true };
    assert_eq!(test.fs.call(BOB, MdtRequest::RegisterOpens(registered)).await, Ok(MdtReply::Done));
    assert_eq!(claim(&test, BOB, &held).await, [true]);
    let switched_off = mds::Parameters { open_locks: false, ..test.fs.mdt.parameters() };
    test.fs.mdt.connection_begun(BOB);
    test.fs.mdt.set_parameters(switched_off);
    let registered = RegisterOpens { opens: Vec::new(), complete: true };
    assert_eq!(test.fs.call(BOB, MdtRequest::RegisterOpens(registered)).await, Ok(MdtReply::Done));
    assert_eq!(claim(&test, BOB, &held).await, [false]);
}

/// The connection of a client that comes back after a restart breaks before it hears that it is
/// done, so it begins again on the next one: it is granted its locks once more, and no file stays
/// open for it. It may have said that it was done, or not.
#[tokio::test]
async fn a_client_that_comes_back_twice_keeps_no_file_open() {
    for was_done in [false, true] {
        let test = Test::new().await;
        let directory = test.fs.mkdir(ROOT, "directory").await;
        let held = test.wanting(BOB, lookup(ROOT, "directory"), ROOT, OPEN | ATTRIBUTES).await;
        assert_eq!(resources(&held), [(directory, OPEN | ATTRIBUTES)]);
        let test = restart(test, false).await;
        done(&test, ALICE).await;
        done(&test, CAROL).await;
        let mut granted = Vec::new();
        for is_last in [false, true] {
            test.fs.mdt.connection_begun(BOB);
            test.fs.reclaim(BOB, Reclaim::default()).await.unwrap();
            granted = claim_in(&test, BOB, test.fs.mdt.era(), &held).await;
            assert!(granted[0].is_some(), "it said before that it was done: {was_done}; the last time: {is_last}");
            if is_last || was_done {
                done(&test, BOB).await;
            }
        }
        test.cancel(BOB, granted.into_iter().flatten().collect()).await;
        test.fs.rmdir(&root(), ROOT, "directory").await.unwrap();
        eventually("no client has it open", async || !test.fs.mdt.has_inode(directory)).await;
    }
}

/// A client that says after the restart that it writes a file, or appends to it, though another one
/// has claimed the attributes: these are withdrawn first, and the size is not known any more. It
/// does not wait for clients that did not come back.
#[tokio::test]
async fn attributes_are_given_back_before_a_claimed_writer_is_believed() {
    for is_open in [true, false] {
        let test = Test::new().await;
        let file = test.fs.file(ROOT, "file").await;
        let held = test.stat(BOB, file).await;
        assert_eq!(resources(&held), [(file, SHOWN)]);
        let test = restart(test, false).await;
        let granted = claim_in(&test, BOB, test.fs.mdt.era(), &held).await[0].expect("nothing has changed");
        let reclaim = match is_open {
            true => Reclaim { opens: vec![(file, test.fs.open_id(), OpenFlags(WRITE))], ..Reclaim::default() },
            false => Reclaim { exclusives: vec![(file, None)], ..Reclaim::default() },
        };
        let reclaimed = test.begin(MdtRequest::Reclaim(reclaim));
        let heard = test.holders.heard(1).await;
        assert_eq!((heard[0].0, heard[0].1.handle), (BOB, granted));
        assert!(!reclaimed.is_finished());
        test.cancel(BOB, vec![granted]).await;
        assert_eq!(reclaimed.await.unwrap(), Ok(MdtReply::Done), "before BOB and CAROL are done");
        assert!(test.fs.stat(file).await.unwrap().size_unknown.is_some(), "the objects are asked");
        for client in [ALICE, BOB, CAROL] {
            done(&test, client).await;
        }
        assert_eq!(resources(&test.stat(BOB, file).await), [(file, SHOWN & !ATTRIBUTES)]);
    }
}

/// The close was executed, and its client did not hear so: it claims the open once more, then
/// closes again. The size is found as after any other close of a writer that is not believed.
#[tokio::test]
async fn a_close_that_was_executed_before_the_restart_is_repeated() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let (open, opened) = test.fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    let update = size_update(opened.epoch, 5);
    test.fs.close(ALICE, file, open, Some(update)).await.unwrap();
    let held = test.stat(BOB, file).await;
    assert_eq!(resources(&held), [(file, SHOWN)]);
    let test = restart(test, false).await;
    let granted = claim_in(&test, BOB, test.fs.mdt.era(), &held).await[0].expect("nothing has changed");
    let opens = vec![(file, open, OpenFlags(WRITE))];
    let reclaimed = test.begin(MdtRequest::Reclaim(Reclaim { opens, ..Reclaim::default() }));
    test.holders.heard(1).await;
    test.cancel(BOB, vec![granted]).await;
    assert_eq!(reclaimed.await.unwrap(), Ok(MdtReply::Done));
    for client in [ALICE, BOB, CAROL] {
        done(&test, client).await;
    }
    let closed = test.fs.close(ALICE, file, open, Some(update)).await.unwrap();
    let (epoch, _) = closed.size_wanted.expect("nobody writes it any more");
    let report = ReportSize { inode: file, update: size_update(epoch, 5) };
    assert_eq!(test.fs.call(ALICE, MdtRequest::ReportSize(report)).await, Ok(MdtReply::Done));
    let entry = test.fs.stat(file).await.unwrap();
    assert_eq!((entry.size_unknown, entry.attributes.size), (None, 5));
}
