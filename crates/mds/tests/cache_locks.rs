//! Locks under which clients cache: what is granted with replies, what changes wait for, and how
//! locks end.

use crate::common;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use common::{caching::*, holders::Holders, *};
use rpc::{
    Call, Handler,
    message::{
        MdtRequest, Request, RequestExtension,
        lock::{CacheMode, Enqueue, InodeBits, Resource, inode_bit::*},
        mdt::{Close, Link, Open, OpenFlags, Rename, RenameMode, SetXattr, SourceData, Unlink, XattrMode},
    },
};
use types::{InodeNumber, LockHandle, NodeKind, Slot};

#[tokio::test]
async fn locks_come_with_replies_once() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let granted = test.look_up(BOB, ROOT, "file").await;
    assert_eq!(resources(&granted), [(ROOT, DIRECTORY), (file, SHOWN)]);
    assert_eq!(test.look_up(BOB, ROOT, "file").await, [], "it has them");
    let second = test.look_up(CAROL, ROOT, "file").await;
    assert_eq!(resources(&second), [(ROOT, DIRECTORY), (file, SHOWN)], "so may others");
    assert!(second[0].handle > granted[1].handle);
    assert_eq!(test.wanting(ALICE, lookup(ROOT, "file"), file, ALL).await, [], "not what the request names");
    assert_eq!(
        resources(&test.wanting(ALICE, lookup(ROOT, "."), ROOT, ALL).await),
        [(ROOT, ATTRIBUTES | XATTRS | OPEN)]
    );
    assert_eq!(resources(&test.stat(ALICE, ROOT).await), [(ROOT, LOOKUP), (ROOT, DIRECTORY)]);
    test.cancel(BOB, granted.iter().map(|granted| granted.handle).collect()).await;
    assert_eq!(resources(&test.look_up(BOB, ROOT, "file").await), [(ROOT, DIRECTORY), (file, SHOWN)], "again");
    let off = mds::Parameters { cache_locks: false, ..test.fs.mdt.parameters() };
    test.fs.mdt.set_parameters(off);
    assert_eq!(test.look_up(ALICE, ROOT, "file").await, []);
}

#[tokio::test]
async fn what_was_made_is_locked_and_attributes_of_written_files_are_not() {
    let test = Test::new().await;
    let create =
        |name: &str, open| MdtRequest::Create(root(), create_request(ROOT, name, NodeKind::Regular, 0o644, open));
    let made = test.wanting(BOB, create("made", None), ROOT, ALL).await;
    let Resource::Inode(made_inode, _) = made[1].resource else { panic!("an inode") };
    assert_eq!(resources(&made), [(ROOT, DIRECTORY), (made_inode, SHOWN)]);
    let open = test.fs.open_id();
    let resource = Resource::Inode(ROOT, InodeBits(ALL));
    let wanted = Some(Enqueue { resource, mode: CacheMode::Read, opportunistic: true });
    let request = create("written", Some((open, OpenFlags(WRITE))));
    let (reply, written) = test.send(BOB, request, RequestExtension { wanted, ..Default::default() }).await;
    let epoch = created(reply.unwrap()).opened.unwrap().epoch;
    let Resource::Inode(file, bits) = written[0].resource else { panic!("an inode") };
    assert_eq!(bits.0, SHOWN | LAYOUT, "it has the directory, and only this client changes the size");
    assert_eq!(resources(&test.stat(CAROL, file).await), [(file, LOOKUP | XATTRS)], "others do not know it");
    // The one who wrote tells the size: it is known.
    let close = Close { inode: file, open, update: Some(size_update(epoch, 5)), flock_owner: None };
    test.fs.call(BOB, MdtRequest::Close(close)).await.unwrap();
    assert_eq!(resources(&test.stat(CAROL, file).await), [(file, ATTRIBUTES)]);
    assert_eq!(test.holders.heard_so_far(), 0);
    // A second writer: the first one does not know the size any more.
    let again = test.wanting(BOB, create("again", Some((test.fs.open_id(), OpenFlags(WRITE)))), ROOT, ALL).await;
    let Resource::Inode(file, _) = again[0].resource else { panic!("an inode") };
    let open = Open { inode: file, open: test.fs.open_id(), flags: OpenFlags(WRITE) };
    let second = test.begin(MdtRequest::Open(root(), open));
    let heard = test.holders.heard(1).await;
    assert_eq!((heard[0].0, heard[0].1.handle), (BOB, again[0].handle));
    test.cancel(BOB, vec![again[0].handle]).await;
    second.await.unwrap().unwrap();
}

/// Before BOB has given the attributes back, nobody sees the change, and nobody gets them.
#[tokio::test]
async fn a_change_is_not_visible_before_others_gave_their_locks_back() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let granted = test.look_up(BOB, ROOT, "file").await;
    let change = test.begin(chmod(file, 0o600));
    let heard = test.holders.heard(1).await;
    let (holder, blocking) = &heard[0];
    assert_eq!((*holder, blocking.handle, blocking.mode), (BOB, granted[1].handle, CacheMode::Write));
    assert_eq!(blocking.resource, Resource::Inode(file, InodeBits(ATTRIBUTES)));
    let (reply, _) = test.send(CAROL, MdtRequest::GetAttributes(file), RequestExtension::default()).await;
    assert_eq!(entry(reply.unwrap()).unwrap().attributes.mode, 0o644);
    assert_eq!(resources(&test.stat(CAROL, file).await), [(file, LOOKUP | XATTRS)]);
    test.cancel(CAROL, vec![granted[1].handle, LockHandle(u64::MAX)]).await;
    assert!(!change.is_finished(), "it is not CAROL's to give back");
    let cancels = vec![granted[1].handle];
    let (reply, _) = test.send(BOB, MdtRequest::Ping, RequestExtension { cancels, ..Default::default() }).await;
    reply.unwrap();
    entry(change.await.unwrap().unwrap()).unwrap();
    assert_eq!(resources(&test.stat(CAROL, file).await), [(file, ATTRIBUTES)]);
    assert_eq!(test.fs.stat(file).await.unwrap().attributes.mode, 0o600);
}

#[tokio::test]
async fn who_changes_keeps_its_locks() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    test.look_up(ALICE, ROOT, "file").await;
    test.fs.call(ALICE, chmod(file, 0o600)).await.unwrap();
    test.fs.unlink(&root(), ROOT, "file").await.unwrap();
    assert_eq!(test.holders.heard_so_far(), 0);
    test.fs.file(ROOT, "other").await;
    assert_eq!(test.look_up(ALICE, ROOT, "other").await.len(), 1, "it still has the directory");
}

/// BOB has cached a directory that contains two files and a directory. This is what each change
/// asks BOB to give back.
#[tokio::test]
async fn changes_ask_for_what_they_change() {
    type Asked = &'static [(&'static str, u32)];
    type Make = fn(&Inodes) -> MdtRequest;
    struct Inodes {
        directory: InodeNumber,
        file: InodeNumber,
    }
    const NAMES: u32 = DIRECTORY | ATTRIBUTES;
    let cases: &[(&str, Make, Asked)] = &[
        ("chmod", |at| chmod(at.file, 0o600), &[("file", ATTRIBUTES)]),
        (
            "setxattr",
            |at| {
                let (name, value) = (b"user.a".to_vec(), b"1".to_vec());
                MdtRequest::SetXattr(root(), SetXattr { inode: at.file, name, value, mode: XattrMode::Any })
            },
            &[("file", ATTRIBUTES | XATTRS)],
        ),
        (
            "create",
            |at| MdtRequest::Create(root(), create_request(at.directory, "new", NodeKind::Regular, 0o644, None)),
            &[("directory", NAMES)],
        ),
        (
            "link",
            |at| MdtRequest::Link(root(), Link { inode: at.file, parent: at.directory, name: b"new".to_vec() }),
            &[("directory", NAMES), ("file", ATTRIBUTES)],
        ),
        (
            "unlink",
            |at| MdtRequest::Unlink(root(), Unlink { parent: at.directory, name: b"file".to_vec(), directory: false }),
            &[("directory", NAMES), ("file", SHOWN)],
        ),
        (
            "rmdir",
            |at| MdtRequest::Unlink(root(), Unlink { parent: at.directory, name: b"inner".to_vec(), directory: true }),
            &[("directory", NAMES), ("inner", SHOWN | DIRECTORY | OPEN)],
        ),
        (
            "rename onto another file",
            |at| {
                let (parent, new_parent) = (at.directory, at.directory);
                let (name, new_name) = (b"file".to_vec(), b"other".to_vec());
                let (mode, source_data) = (RenameMode::Replace, SourceData::AsIs);
                let rename = Rename {
                    parent,
                    name,
                    new_parent,
                    new_name,
                    mode,
                    source_data,
                    mdt_era: None,
                    same_directory: false,
                };
                MdtRequest::Rename(root(), rename)
            },
            &[("directory", NAMES), ("file", LOOKUP | ATTRIBUTES), ("other", SHOWN)],
        ),
        (
            "open for writing",
            |at| MdtRequest::Open(root(), Open { inode: at.file, open: Default::default(), flags: OpenFlags(WRITE) }),
            &[("file", ATTRIBUTES)],
        ),
    ];
    for (what, make, asked) in cases {
        let test = Test::new().await;
        let directory = test.fs.mkdir(ROOT, "directory").await;
        let file = test.fs.file(directory, "file").await;
        let other = test.fs.file(directory, "other").await;
        let inner = test.fs.mkdir(directory, "inner").await;
        test.look_up(BOB, ROOT, "directory").await;
        for name in ["file", "other", "inner"] {
            test.look_up(BOB, directory, name).await;
        }
        test.stat(BOB, inner).await;
        let named = |name: &str| match name {
            "directory" => directory,
            "file" => file,
            "other" => other,
            _ => inner,
        };
        let mut expected: Vec<(InodeNumber, u32)> = asked.iter().map(|(name, bits)| (named(name), *bits)).collect();
        expected.sort_by_key(|(inode, _)| inode.0);
        let change = test.begin(make(&Inodes { directory, file }));
        let mut found: Vec<(InodeNumber, u32)> = Vec::new();
        while found.iter().map(|(_, bits)| bits.count_ones()).sum::<u32>()
            < expected.iter().map(|(_, bits)| bits.count_ones()).sum::<u32>()
        {
            for (client, blocking) in test.holders.heard(1).await {
                assert_eq!(client, BOB);
                let Resource::Inode(inode, bits) = blocking.resource else { panic!("an inode") };
                match found.iter_mut().find(|(known, _)| *known == inode) {
                    Some((_, known)) => *known |= bits.0,
                    None => found.push((inode, bits.0)),
                }
                assert!(!change.is_finished(), "{what} waits");
                test.cancel(BOB, vec![blocking.handle]).await;
            }
        }
        found.sort_by_key(|(inode, _)| inode.0);
        assert_eq!(found, expected, "{what}");
        change.await.unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(test.holders.heard_so_far(), 0, "{what}");
    }
}

#[tokio::test]
async fn reading_waits_for_nobody_although_it_changes_access_times() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let granted = test.stat(BOB, file).await;
    let (open, _) = test.fs.open(ALICE, &root(), file, READ).await.unwrap();
    let heard = test.holders.heard(1).await;
    assert_eq!(heard[0].1.handle, granted[0].handle, "asked for, without waiting");
    test.fs.close(ALICE, file, open, None).await.unwrap();
}

#[tokio::test]
async fn a_client_that_keeps_nothing_holds_nobody_up() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    test.stat(BOB, file).await;
    test.holders.keeps_nothing(BOB);
    test.fs.call(ALICE, chmod(file, 0o600)).await.unwrap();
}

#[tokio::test]
async fn locks_end_with_the_connection_and_the_session() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    test.stat(BOB, file).await;
    let change = test.begin(chmod(file, 0o600));
    test.holders.heard(1).await;
    test.fs.mdt.connection_begun(BOB);
    change.await.unwrap().unwrap();
    assert_eq!(resources(&test.stat(BOB, file).await), [(file, SHOWN)], "it has none");
    let change = test.begin(chmod(file, 0o640));
    test.holders.heard(1).await;
    test.fs.event(rpc::SessionEvent::Closed(BOB)).await;
    change.await.unwrap().unwrap();
    assert_eq!(test.holders.evicted(), []);
}

/// It serves from its cache until its lease ends, so the change waits until then.
#[tokio::test]
async fn a_client_that_never_answers_is_evicted_and_the_change_goes_on_after_its_lease() {
    let lease = Duration::from_millis(200);
    let test = Test::with_lease(lease).await;
    let file = test.fs.file(ROOT, "file").await;
    test.stat(BOB, file).await;
    test.set_timeout(Duration::from_millis(50));
    test.begin(chmod(file, 0o600)).await.unwrap().unwrap();
    let evicted = test.holders.evicted();
    assert_eq!(evicted.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [BOB]);
    assert!(test.fs.seams.clock.now() >= evicted[0].1 + lease);
}

/// It is neither done nor answered: the client sends it to the next start of the target.
#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_locks() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    test.stat(BOB, file).await;
    let waiting = {
        let test = test.clone();
        let xid = test.fs.next_xid(ALICE);
        let call = Call::plain(ALICE, Slot(0), xid, Request::Mdt(chmod(file, 0o600)), Bytes::new());
        tokio::spawn(async move { test.fs.mdt.clone().handle(call).await })
    };
    test.holders.heard(1).await;
    test.holders.stop();
    assert!(waiting.await.unwrap().is_withheld);
    assert_eq!(test.fs.stat(file).await.unwrap().attributes.mode, 0o644);
    assert_eq!(resources(&test.stat(CAROL, file).await), [(file, SHOWN)], "nothing is in preparation");
}

#[tokio::test]
async fn after_a_restart_nobody_has_a_lock_and_handles_are_new() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let before = test.stat(BOB, file).await;
    let Ok(Test { mut fs, .. }) = Arc::try_unwrap(test) else { panic!("nothing is under way") };
    fs.restart().await;
    let holders = Holders::of(&fs.mdt, fs.seams.clock.clone(), LONG);
    let test = Test { fs, holders };
    test.fs.reclaim(BOB, rpc::message::mdt::Reclaim { done: true, ..Default::default() }).await.unwrap();
    assert_eq!(test.stat(BOB, file).await, [], "not while others may come back");
    for client in [ALICE, CAROL] {
        test.fs.reclaim(client, rpc::message::mdt::Reclaim { done: true, ..Default::default() }).await.unwrap();
    }
    test.fs.call(ALICE, chmod(file, 0o600)).await.unwrap();
    assert_eq!(test.holders.heard_so_far(), 0);
    let after = test.stat(BOB, file).await;
    assert!(after[0].handle > before[0].handle);
}
