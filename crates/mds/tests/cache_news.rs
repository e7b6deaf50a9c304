//! What replies bring to those that cache: locks with what does not exist and with pages of
//! directories, and inodes that a change touched besides.

use crate::common;

use std::sync::Arc;

use common::{caching::*, *};
use rpc::Handler;
use rpc::message::{
    Compound, MdtReply, MdtRequest, RequestExtension, Step, StepInode,
    extension::ChangedName,
    lock::{Resource, inode_bit::*},
    mdt::{
        DirectoryEntry, Entry, Link, Open, OpenFlags, OpenId, ReadDirectory, Rename, RenameMode, SetXattr, SourceData,
        Unlink, XattrMode,
    },
};
use types::{FileKind, FsError, InodeNumber, LockHandle, NodeKind};

const NAMES: u32 = SHOWN | DIRECTORY;

fn xattr(inode: InodeNumber, name: &[u8]) -> MdtRequest {
    MdtRequest::GetXattr(root(), inode, name.to_vec())
}

fn set_xattr(inode: InodeNumber) -> MdtRequest {
    let (name, value) = (b"security.a".to_vec(), b"1".to_vec());
    MdtRequest::SetXattr(root(), SetXattr { inode, name, value, mode: XattrMode::Any })
}

fn create(parent: InodeNumber, name: &str) -> MdtRequest {
    MdtRequest::Create(root(), create_request(parent, name, NodeKind::Regular, 0o644, None))
}

fn unlink(parent: InodeNumber, name: &str) -> MdtRequest {
    MdtRequest::Unlink(root(), Unlink { parent, name: name.into(), directory: false })
}

#[tokio::test]
async fn a_name_that_does_not_exist_brings_the_lock_on_names() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    let (reply, granted) = test.asking(BOB, lookup(directory, "x"), directory, ALL).await;
    assert_eq!((reply, resources(&granted)), (MdtReply::Absent, vec![(directory, DIRECTORY)]));
    let making = test.begin(create(directory, "x"));
    let heard = test.holders.heard(1).await;
    assert_eq!((heard[0].0, heard[0].1.handle), (BOB, granted[0].handle));
    let (reply, granted) = test.asking(CAROL, lookup(directory, "x"), directory, ALL).await;
    assert_eq!((reply, granted), (MdtReply::Absent, vec![]), "the name is being made");
    test.cancel(BOB, vec![heard[0].1.handle]).await;
    created(making.await.unwrap().unwrap());
    let (reply, _) = test.asking(BOB, lookup(directory, "x"), directory, ALL).await;
    assert!(matches!(reply, MdtReply::Entry(_)));
}

#[tokio::test]
async fn what_is_not_absent_is_an_error() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    for (request, error) in [
        (lookup(file, "x"), FsError::NotDirectory),
        (lookup(InodeNumber(u64::MAX), "x"), FsError::Stale),
        (xattr(file, b"user.x"), FsError::NoData),
        (xattr(file, b"trusted.x"), FsError::NoData),
        (xattr(file, b"security."), FsError::Invalid),
    ] {
        let (reply, granted) = test.send(BOB, request.clone(), wanted(file, ALL)).await;
        assert_eq!((reply, granted), (Err(error), vec![]), "{request:?}");
    }
}

#[tokio::test]
async fn an_attribute_that_does_not_exist_brings_the_lock_on_attributes() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    let (reply, granted) = test.asking(BOB, xattr(file, b"security.a"), file, ALL).await;
    assert_eq!((reply, resources(&granted)), (MdtReply::Absent, vec![(file, XATTRS)]));
    let setting = test.begin(set_xattr(file));
    assert_eq!(test.holders.heard(1).await[0].1.handle, granted[0].handle);
    test.cancel(BOB, vec![granted[0].handle]).await;
    done(setting.await.unwrap().unwrap()).unwrap();
    let (reply, _) = test.asking(BOB, xattr(file, b"security.a"), file, ALL).await;
    assert_eq!(reply, MdtReply::Value(b"1".to_vec()));
    let (reply, _) = test.asking(BOB, xattr(file, b"system.posix_acl_access"), file, ALL).await;
    assert_eq!(reply, MdtReply::Absent);
}

/// Nothing tells its holder when the inode goes.
#[tokio::test]
async fn nothing_is_granted_of_a_directory_without_a_name() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    let open = open_directory(&test, directory).await;
    test.fs.rmdir(&root(), ROOT, "directory").await.unwrap();
    let (reply, granted) = test.asking(BOB, lookup(directory, "x"), directory, ALL).await;
    assert_eq!((reply, granted), (MdtReply::Absent, vec![]));
    let (page, granted) = page(&test, directory, open, 0, 10, ALL).await;
    assert_eq!((page.len(), granted), (2, vec![]));
}

async fn open_directory(test: &Test, inode: InodeNumber) -> OpenId {
    let (open, _) = test.fs.open(BOB, &root(), inode, READ).await.unwrap();
    open
}

/// A page of BOB's, and the bits granted beside it.
async fn page(
    test: &Test,
    inode: InodeNumber,
    open: OpenId,
    cookie: u64,
    count: u32,
    bits: u32,
) -> (Vec<DirectoryEntry>, Vec<(InodeNumber, u32)>) {
    let read = ReadDirectory { inode, open, cookie, entries_max: count, attributes: true, unasked: None };
    let (reply, granted) = test.asking(BOB, MdtRequest::ReadDirectory(read), inode, bits).await;
    let MdtReply::Directory(entries, _) = reply else { panic!("a page was answered {reply:?}") };
    (entries, resources(&granted))
}

fn locks(page: &[DirectoryEntry]) -> Vec<Option<u32>> {
    page.iter().map(|found| found.locks.first().map(|(_, bits)| bits.0)).collect()
}

#[tokio::test]
async fn pages_bring_locks_on_what_they_show() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    for name in ["a", "b", "c", "d"] {
        test.fs.file(directory, name).await;
    }
    let open = open_directory(&test, directory).await;
    let (first, granted) = page(&test, directory, open, 0, 4, NAMES).await;
    assert_eq!(granted, [(directory, DIRECTORY | XATTRS)]);
    assert_eq!(locks(&first), [None, None, Some(SHOWN), Some(SHOWN)], "none on . and ..");
    let (again, granted) = page(&test, directory, open, 0, 4, NAMES).await;
    assert_eq!((locks(&again), granted), (vec![None; 4], vec![]), "it has them");
    let (second, _) = page(&test, directory, open, first[3].cookie, 4, DIRECTORY).await;
    assert_eq!(locks(&second), [None; 2], "not wanted");
    let (second, _) = page(&test, directory, open, first[3].cookie, 4, LOOKUP | ATTRIBUTES).await;
    assert_eq!(locks(&second), [Some(LOOKUP | ATTRIBUTES); 2]);
    let handles: Vec<LockHandle> =
        first.iter().chain(&second).filter_map(|found| Some(found.locks.first()?.0)).collect();
    let change = test.begin(chmod(second[0].inode, 0o600));
    assert_eq!(test.holders.heard(1).await[0].1.handle, handles[2]);
    test.cancel(BOB, vec![handles[2]]).await;
    entry(change.await.unwrap().unwrap()).unwrap();
}

/// The lock on names comes with any page, since the client may have lost it since the first.
#[tokio::test]
async fn later_pages_bring_the_lock_on_names() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    test.fs.file(directory, "a").await;
    let open = open_directory(&test, directory).await;
    let (_, granted) = page(&test, directory, open, 2, 10, DIRECTORY).await;
    assert_eq!(granted, [(directory, DIRECTORY)]);
}

#[tokio::test]
async fn a_page_brings_no_lock_on_attributes_of_a_file_that_is_written() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    test.fs.create_open(ALICE, directory, "written", WRITE).await.unwrap();
    let open = open_directory(&test, directory).await;
    let (found, _) = page(&test, directory, open, 0, 10, NAMES).await;
    assert_eq!(locks(&found), [None, None, Some(LOOKUP | XATTRS)]);
}

/// What ALICE is shown beside the reply, after the request succeeded.
async fn changed(test: &Arc<Test>, request: MdtRequest) -> Vec<Entry> {
    let what = format!("{request:?}");
    let (reply, told) = test.send_and_hear(ALICE, request, RequestExtension::default()).await;
    reply.unwrap_or_else(|error| panic!("{what}: {error}"));
    let versions = told.change.map(|change| change.versions).unwrap_or_default();
    for entry in &told.changed {
        let inode = entry.attributes.inode;
        assert!(versions.iter().any(|version| version.inode == inode), "{what}: its version is told");
        assert_eq!(test.fs.stat(inode).await.unwrap(), *entry, "{what}: as it is");
    }
    told.changed
}

fn inodes(changed: &[Entry]) -> Vec<InodeNumber> {
    changed.iter().map(|entry| entry.attributes.inode).collect()
}

#[tokio::test]
async fn a_reply_shows_what_else_was_changed() {
    let test = Test::new().await;
    let (one, two) = (test.fs.mkdir(ROOT, "one").await, test.fs.mkdir(ROOT, "two").await);
    let file = test.fs.file(one, "file").await;
    assert_eq!(changed(&test, create(one, "a")).await, [], "nobody has a lock");
    test.stat(BOB, file).await;
    assert_eq!(changed(&test, create(one, "b")).await, [], "ALICE has none");
    test.fs.mdt.connection_begun(BOB);
    for inode in [one, two, file] {
        test.stat(ALICE, inode).await;
    }
    assert_eq!(inodes(&changed(&test, create(one, "c")).await), [one]);
    let link = Link { inode: file, parent: two, name: b"other".to_vec() };
    assert_eq!(inodes(&changed(&test, MdtRequest::Link(root(), link)).await), [two], "the reply shows the file");
    assert_eq!(inodes(&changed(&test, unlink(two, "other")).await), [two, file]);
    let rename = |from, name: &str, to, new_name: &str| {
        let (name, new_name, mode) = (name.into(), new_name.into(), RenameMode::Replace);
        let source_data = SourceData::AsIs;
        let rename = Rename {
            parent: from,
            name,
            new_parent: to,
            new_name,
            mode,
            source_data,
            mdt_era: None,
            same_directory: false,
        };
        MdtRequest::Rename(root(), rename)
    };
    let mut renamed = inodes(&changed(&test, rename(one, "file", two, "new")).await);
    assert_eq!(renamed.pop(), Some(file));
    renamed.sort();
    assert_eq!(renamed, [one, two]);
    assert_eq!(inodes(&changed(&test, set_xattr(file)).await), [file]);
    assert_eq!(inodes(&changed(&test, unlink(two, "new")).await), [two], "the file has no name any more");
}

#[tokio::test]
async fn a_file_that_is_written_is_not_shown() {
    let test = Test::new().await;
    let file = test.fs.file(ROOT, "file").await;
    test.stat(ALICE, file).await;
    test.fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    assert_eq!(changed(&test, set_xattr(file)).await, []);
}

#[tokio::test]
async fn a_compound_shows_its_directory_as_it_is_after_all_steps() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    test.stat(ALICE, directory).await;
    let make = |name: &str| Step::Create {
        parent: StepInode::Known(directory),
        name: name.into(),
        kind: NodeKind::Directory,
        mode: 0o755,
        umask: 0,
        layout: None,
        open: None,
    };
    let compound = Compound { who: root(), steps: vec![make("a"), make("b")] };
    let shown = changed(&test, MdtRequest::Compound(compound)).await;
    assert_eq!(shown.iter().map(|entry| entry.attributes.links).collect::<Vec<_>>(), [4]);
}

/// Reading changes the access time.
#[tokio::test]
async fn reading_shows_the_access_time() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    let request = Open { inode: directory, open: OpenId(77), flags: OpenFlags(READ) };
    test.fs.call(ALICE, MdtRequest::Open(root(), request)).await.unwrap();
    test.fs.file(directory, "a").await;
    test.stat(ALICE, directory).await;
    let read = ReadDirectory {
        inode: directory,
        open: OpenId(77),
        cookie: 0,
        entries_max: 10,
        attributes: false,
        unasked: None,
    };
    assert_eq!(inodes(&changed(&test, MdtRequest::ReadDirectory(read)).await), [directory]);
}

/// The name of a directory stays known while other clients change what is in it.
#[tokio::test]
async fn names_of_directories_have_locks_of_their_own() {
    let test = Test::new().await;
    let directory = test.fs.mkdir(ROOT, "directory").await;
    let (_, granted) = test.asking(BOB, lookup(ROOT, "directory"), ROOT, NAMES).await;
    let at = resources(&granted).iter().position(|found| *found == (directory, LOOKUP)).expect("the name alone");
    let making = test.begin(create(directory, "new"));
    let heard = test.holders.heard(1).await;
    assert!(heard.iter().all(|(_, blocking)| blocking.handle != granted[at].handle), "{heard:?}");
    test.cancel(BOB, heard.into_iter().map(|(_, blocking)| blocking.handle).collect()).await;
    created(making.await.unwrap().unwrap());
    let open = open_directory(&test, ROOT).await;
    let (page, _) = page(&test, ROOT, open, 0, 3, NAMES).await;
    let bits: Vec<u32> = page[2].locks.iter().map(|(_, bits)| bits.0).collect();
    assert_eq!(bits, [SHOWN & !LOOKUP], "it still has that on the name");
}

/// What ALICE is told of names.
async fn names(test: &Arc<Test>, request: MdtRequest) -> Vec<ChangedName> {
    let (reply, told) = test.send_and_hear(ALICE, request, RequestExtension::default()).await;
    reply.unwrap();
    told.names
}

#[tokio::test]
async fn a_reply_tells_where_names_are_in_directories_whose_names_are_known() {
    let test = Test::new().await;
    let make = MdtRequest::Create(root(), create_request(ROOT, "made", NodeKind::Directory, 0o755, None));
    let granted = test.wanting(ALICE, make, ROOT, ALL).await;
    let directory = granted.iter().find_map(|lock| match lock.resource {
        Resource::Inode(inode, bits) if inode != ROOT && bits.0 == ATTRIBUTES | DIRECTORY | XATTRS | OPEN => {
            Some(inode)
        }
        _ => None,
    });
    let directory = directory.expect("a new directory comes with its names");
    let other = test.fs.mkdir(ROOT, "other").await;
    assert_eq!(names(&test, create(other, "a")).await, [], "ALICE does not know its names");
    let told = |name: &str, cookie, target| ChangedName { directory, name: name.into(), cookie, target };
    let made = names(&test, create(directory, "a")).await;
    let [ChangedName { cookie, target: Some((file, FileKind::Regular)), .. }] = made[..] else { panic!("{made:?}") };
    assert_eq!(made, [told("a", cookie, Some((file, FileKind::Regular)))]);
    let listed = test.fs.list(directory, 10).await;
    let found = listed.iter().find(|found| found.name == b"a").expect("it was made");
    assert_eq!((found.cookie, found.inode), (cookie, file));
    let (source_data, mode) = (SourceData::AsIs, RenameMode::Replace);
    let (name, new_name) = (b"a".to_vec(), b"b".to_vec());
    let rename = Rename {
        parent: directory,
        name,
        new_parent: directory,
        new_name,
        mode,
        source_data,
        mdt_era: None,
        same_directory: false,
    };
    let renamed = names(&test, MdtRequest::Rename(root(), rename)).await;
    let [_, ChangedName { cookie: new_cookie, .. }] = renamed[..] else { panic!("{renamed:?}") };
    assert_eq!(renamed, [told("a", cookie, None), told("b", new_cookie, Some((file, FileKind::Regular)))]);
    assert_eq!(names(&test, unlink(directory, "b")).await, [told("b", new_cookie, None)]);
    assert_eq!(names(&test, chmod(directory, 0o700)).await, []);
}
