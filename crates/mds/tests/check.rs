//! Check and repair: every kind of damage is found, repaired, and gone afterwards.

use crate::common;

use std::sync::Arc;

use common::*;
use kv::{Batch, Store};
use layout::{BackingSpec, ComponentSpec, LayoutSpec, StripeCount, StripeSpec};
use mds::tables::{
    DATA, ENTRIES, INODES, LINKS, ORPHANS, XATTRS,
    data::{self, ObjectRecord},
    entry::{EntryRecord, NamedInode, Position},
    inode::{Inode, Link},
    link, orphan, xattr,
};
use rpc::message::{
    MdtReply, MdtRequest, Reply,
    mdt::{Create, Finding, Instantiate, Open, OpenFlags, ScannedInode},
};
use types::{FileKind, FsError, InodeNumber, NodeKind, ObjectId, SetAttributes, Timestamp, limits::BODY_BYTES_MAX};

impl Fixture {
    /// Changes the tables without the MDT's knowledge.
    pub async fn damage(&mut self, change: impl FnOnce(&Store, &mut Batch)) {
        // They would find it.
        self.options.audits = false;
        self.damage_unseen(change).await;
    }

    /// As [`Fixture::damage`], and what commits leave is checked.
    async fn damage_unseen(&mut self, change: impl FnOnce(&Store, &mut Batch)) {
        self.mdt.stop().await.expect("it stops");
        let (device, cold) = (Arc::new(self.device.clone()), Arc::new(self.cold.clone()));
        let config = self.options.store.clone();
        let store = Store::open(self.seams.clone(), device, cold, config, &mut |_, _| {}).await.unwrap();
        let mut batch = Batch::default();
        change(&store, &mut batch);
        let lsn = store.apply(batch).unwrap();
        store.durable(lsn).await.unwrap();
        store.close().await.unwrap();
        self.restart_and_recover().await;
    }
}

pub fn inode_of(store: &Store, number: InodeNumber) -> Inode {
    let value = store.get(INODES, &Inode::key(number)).unwrap().expect("the inode exists");
    Inode::decode(number, &value).unwrap()
}

pub fn put_inode(batch: &mut Batch, inode: &Inode) {
    batch.put(INODES, Inode::key(inode.number()), inode.encode());
}

pub fn entry_key(directory: InodeNumber, name: &str) -> Vec<u8> {
    EntryRecord::key(directory, Position::of(name.as_bytes()))
}

pub fn entry_record(name: &str, inode: InodeNumber, kind: FileKind) -> Vec<u8> {
    EntryRecord { more: false, target: Some(NamedInode { name: name.as_bytes().to_vec(), inode, kind }) }.encode()
}

/// Finds exactly one problem that says `text`, repairs it, and finds nothing more.
async fn finds_and_repairs(fs: &Fixture, text: &str) {
    let found = fs.check(false).await;
    assert!(found.iter().any(|finding| finding.problem.contains(text)), "{text}: {found:?}");
    assert!(found.iter().all(|finding| !finding.repaired));
    assert_eq!(fs.check(false).await, found, "looking changes nothing");
    let repaired = fs.check(true).await;
    assert!(repaired.iter().all(|finding| finding.repaired), "{repaired:?}");
    assert_eq!(fs.check(false).await, Vec::<Finding>::new());
}

#[tokio::test]
async fn only_root_may_check() {
    let fs = Fixture::new().await;
    assert_eq!(fs.call(ALICE, MdtRequest::Check(user(5), false)).await, Err(FsError::NotPermitted));
}

/// The check after each commit of the tests sees what this one sees.
#[tokio::test]
#[should_panic(expected = "1 links, but 2 names")]
async fn an_audit_finds_what_a_commit_leaves() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    fs.damage_unseen(|_, batch| {
        let named = Link { parent: ROOT, name: b"x".to_vec() };
        batch.put(ENTRIES, entry_key(ROOT, "x"), entry_record("x", file, FileKind::Regular));
        batch.put(LINKS, link::key(file, &named), link::value());
    })
    .await;
    let touch = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    fs.call(ALICE, MdtRequest::SetAttributes(root(), file, touch)).await.unwrap();
}

/// Of what is in the cold store alone, a record is looked at again with each of those it names.
#[tokio::test]
async fn what_several_attempts_find_is_reported_once() {
    let mut fs = Fixture::new().await;
    // Far less than the files need.
    fs.options.store.memory_bytes = 64 << 10;
    fs.options.store.dirty_bytes = 64 << 10;
    fs.restart_and_recover().await;
    let directory = fs.mkdir(ROOT, "d").await;
    let file = fs.file(directory, "f").await;
    fs.link(&root(), file, directory, "g").await.unwrap();
    for number in 0..600 {
        fs.file(ROOT, &format!("{number}")).await;
    }
    fs.damage(|_, batch| batch.put(ENTRIES, entry_key(directory, "g"), entry_record("g", file, FileKind::Fifo))).await;
    let found = fs.check(false).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].problem.contains("says"), "{found:?}");
}

/// It has forgotten that it is unlinked, and not its last name.
#[tokio::test]
async fn an_inode_that_ends_is_not_stored_again() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    fs.damage(|store, batch| {
        let mut inode = inode_of(store, file);
        inode.attributes.links = 0;
        put_inode(batch, &inode);
        batch.delete(ENTRIES, entry_key(ROOT, "f"));
    })
    .await;
    finds_and_repairs(&fs, "not recorded as unlinked").await;
    assert_eq!(fs.call(ALICE, MdtRequest::GetAttributes(file)).await, Err(FsError::Stale));
}

#[tokio::test]
async fn a_name_that_leads_nowhere_is_removed() {
    let mut fs = Fixture::new().await;
    fs.damage(|_, batch| {
        batch.put(ENTRIES, entry_key(ROOT, "x"), entry_record("x", InodeNumber(0x999), FileKind::Fifo))
    })
    .await;
    assert!(matches!(fs.lookup(&root(), ROOT, "x").await, Err(FsError::Damaged(_))));
    finds_and_repairs(&fs, "refers to an inode that does not exist").await;
    assert_eq!(fs.names(ROOT).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_name_unknown_to_its_inode_becomes_a_link() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    fs.damage(|_, batch| batch.put(ENTRIES, entry_key(ROOT, "x"), entry_record("x", file, FileKind::Regular))).await;
    finds_and_repairs(&fs, "unknown to its inode").await;
    assert_eq!(fs.links(file).await, 2);
    fs.unlink(&root(), ROOT, "f").await.unwrap();
    fs.unlink(&root(), ROOT, "x").await.unwrap();
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn a_second_name_of_a_directory_is_removed() {
    let mut fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    let inner = fs.mkdir(directory, "inner").await;
    fs.damage(|_, batch| batch.put(ENTRIES, entry_key(ROOT, "x"), entry_record("x", inner, FileKind::Directory))).await;
    finds_and_repairs(&fs, "two names").await;
    assert_eq!(fs.lookup(&root(), ROOT, "x").await, Err(FsError::NotFound));
    assert_eq!(fs.lookup(&root(), directory, "inner").await.unwrap().attributes.inode, inner);
}

#[tokio::test]
async fn wrong_kinds_and_counts_are_corrected() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    let directory = fs.mkdir(ROOT, "d").await;
    fs.damage(|store, batch| {
        batch.put(ENTRIES, entry_key(ROOT, "f"), entry_record("f", file, FileKind::Fifo));
        for number in [file, directory, ROOT] {
            let mut inode = inode_of(store, number);
            inode.attributes.links += 5;
            put_inode(batch, &inode);
        }
    })
    .await;
    let found = fs.check(false).await;
    assert_eq!(found.len(), 4, "{found:?}");
    finds_and_repairs(&fs, "the inode is Regular").await;
    assert_eq!((fs.links(file).await, fs.links(directory).await, fs.links(ROOT).await), (1, 2, 3));
}

#[tokio::test]
async fn nameless_inodes_go_to_lost_and_found() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    let directory = fs.mkdir(ROOT, "d").await;
    let inside = fs.file(directory, "inside").await;
    fs.damage(|_, batch| {
        batch.delete(ENTRIES, entry_key(ROOT, "f"));
        batch.delete(ENTRIES, entry_key(ROOT, "d"));
    })
    .await;
    finds_and_repairs(&fs, "no name refers to it").await;
    let lost = fs.lookup(&root(), ROOT, "lost+found").await.unwrap().attributes.inode;
    let mut expected = vec![format!("#{:x}", file.0), format!("#{:x}", directory.0)];
    expected.sort();
    assert_eq!(fs.names(lost).await, expected);
    assert_eq!(fs.lookup(&root(), directory, "inside").await.unwrap().attributes.inode, inside);
}

#[tokio::test]
async fn circles_of_directories_are_cut() {
    let mut fs = Fixture::new().await;
    let a = fs.mkdir(ROOT, "a").await;
    let b = fs.mkdir(a, "b").await;
    fs.damage(|store, batch| {
        let (mut first, mut second) = (inode_of(store, a), inode_of(store, ROOT));
        first.first_link = Some(Link { parent: b, name: b"a".to_vec() });
        second.attributes.links -= 1;
        let mut inner = inode_of(store, b);
        inner.attributes.links += 1;
        for inode in [&first, &second, &inner] {
            put_inode(batch, inode);
        }
        batch.delete(ENTRIES, entry_key(ROOT, "a"));
        batch.put(ENTRIES, entry_key(b, "a"), entry_record("a", a, FileKind::Directory));
    })
    .await;
    finds_and_repairs(&fs, "cycle").await;
    let lost = fs.lookup(&root(), ROOT, "lost+found").await.unwrap().attributes.inode;
    assert_eq!(fs.names(lost).await.len(), 1);
}

#[tokio::test]
async fn leftovers_are_removed() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    let gone = InodeNumber(0x999);
    let nameless = fs.file(ROOT, "g").await;
    fs.damage(|store, batch| {
        batch.put(LINKS, link::key(gone, &Link { parent: ROOT, name: b"l".to_vec() }), link::value());
        batch.put(XATTRS, xattr::key(gone, b"user.x"), xattr::encode(b"1"));
        batch.put(ORPHANS, orphan::key(file), orphan::value());
        let mut inode = inode_of(store, nameless);
        inode.attributes.links = 0;
        inode.first_link = None;
        put_inode(batch, &inode);
        batch.delete(ENTRIES, entry_key(ROOT, "g"));
    })
    .await;
    let found = fs.check(false).await;
    for text in ["name 'l' of an inode", "attribute 'user.x'", "not recorded as unlinked"] {
        assert!(found.iter().any(|finding| finding.problem.contains(text)), "{text}: {found:?}");
    }
    finds_and_repairs(&fs, "attribute 'user.x'").await;
    assert_eq!(fs.stat(nameless).await, Err(FsError::Stale));
    assert_eq!(fs.links(file).await, 1);
}

#[tokio::test]
async fn a_record_that_does_not_decode_is_reported_and_its_neighbours_are_served() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    fs.file(ROOT, "g").await;
    fs.damage(|_, batch| batch.put(INODES, Inode::key(file), vec![1, 2, 3])).await;
    assert!(matches!(fs.lookup(&root(), ROOT, "f").await, Err(FsError::Damaged(_))));
    fs.lookup(&root(), ROOT, "g").await.unwrap();
    let found = fs.check(true).await;
    assert!(found.iter().any(|finding| finding.inode == file && !finding.repaired), "{found:?}");
    let MdtReply::Scanned(page) = fs.call(ALICE, MdtRequest::ScanInodes(root(), InodeNumber(0), 64)).await.unwrap()
    else {
        panic!()
    };
    let damaged = |inode: &ScannedInode| inode.damaged;
    assert_eq!(page.iter().map(damaged).collect::<Vec<_>>(), [false, true, false], "the root, f, g: {page:?}");
    assert!(page[1].entry.attributes.inode == file && page[1].busy);
}

#[tokio::test]
async fn data_that_no_file_has_are_found() {
    let mut fs = Fixture::new().await.with_plain_files();
    let striped = fs.file(ROOT, "striped").await;
    let record = ObjectRecord { size: 5, mtime: Timestamp::default(), blocks: 1, changes: 1 };
    for inode in [striped, InodeNumber(0x7777)] {
        let object = ObjectId::new(inode, 0);
        fs.damage(|_, batch| {
            batch.put(DATA, data::object_key(object), record.encode());
            batch.put(DATA, data::block_key(object, 0), data::encode_block(0, b"stray"));
        })
        .await;
        finds_and_repairs(&fs, "5 bytes that belong to no file").await;
        fs.damage(|store, batch| {
            assert_eq!(store.get(DATA, &data::block_key(object, 0)).unwrap(), None);
            batch.put(DATA, data::block_key(object, 7), data::encode_block(0, b"stray"));
        })
        .await;
        finds_and_repairs(&fs, "block 7 of data without an object").await;
    }
}

/// Anybody can make files with layouts as heavy as this; what is asked for all inodes must
/// continue.
#[tokio::test]
async fn a_scan_goes_on_however_heavy_the_layouts_are() {
    const FILES: usize = 12;
    let fs = Fixture::with_osts(absent_osts(2000)).await;
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(2000), ..StripeSpec::default() };
    let component = |number: u64| ComponentSpec { end: number << 20, backing: BackingSpec::Striped(stripes.clone()) };
    let spec = LayoutSpec::Composite((1..=20).map(component).collect());
    for number in 0..FILES {
        let open = fs.open_id();
        let name = format!("f{number}");
        let request = create_request(ROOT, &name, NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
        let request = MdtRequest::Create(root(), Create { layout: Some(spec.clone()), ..request });
        let inode = created(fs.call(ALICE, request).await.unwrap()).entry.attributes.inode;
        let all = Instantiate { inode, open, start: 0, end: 20 << 20 };
        fs.call(ALICE, MdtRequest::Instantiate(all)).await.unwrap();
    }
    let (mut after, mut seen) = (InodeNumber(0), 0);
    loop {
        let reply = fs.call(ALICE, MdtRequest::ScanInodes(root(), after, 64)).await.unwrap();
        let bytes = rpc::codec::encode_reply(&Default::default(), &Reply::Mdt(reply.clone()))
            .expect("an answer fits a message")
            .bytes
            .len();
        assert!(bytes <= BODY_BYTES_MAX);
        let MdtReply::Scanned(page) = reply else { panic!() };
        let Some(last) = page.last() else { break };
        (after, seen) = (last.entry.attributes.inode, seen + page.len());
    }
    assert_eq!(seen, 1 + FILES);
}

/// Else the file could be written, but neither opened nor checked afterwards.
#[tokio::test]
async fn messages_carry_the_heaviest_layout_that_fits_a_record() {
    let mut fs = Fixture::with_osts(absent_osts(2000)).await;
    // As large as a real one, so that its batches are not what ends the growth.
    fs.options.store.segment_bytes = kv::Config::default().segment_bytes;
    fs.restart_and_recover().await;
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(2000), ..StripeSpec::default() };
    let component = |number: u64| ComponentSpec { end: number << 20, backing: BackingSpec::Striped(stripes.clone()) };
    let spec = LayoutSpec::Composite((1..=64).map(component).collect());
    let open = fs.open_id();
    let request = create_request(ROOT, "f", NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    let request = MdtRequest::Create(root(), Create { layout: Some(spec), ..request });
    let inode = created(fs.call(ALICE, request).await.unwrap()).entry.attributes.inode;
    let mut components = 64;
    loop {
        let end = components << 20;
        match fs.call(ALICE, MdtRequest::Instantiate(Instantiate { inode, open, start: 0, end })).await {
            Ok(_) => break,
            Err(error) => assert_eq!(error, FsError::TooBig, "{components} components"),
        }
        components -= 1;
    }
    assert!((20..64).contains(&components), "{components} components are the most");
    let again = Open { inode, open: fs.open_id(), flags: OpenFlags(WRITE) };
    let requests = [
        MdtRequest::Open(root(), again),
        MdtRequest::ScanInodes(root(), InodeNumber(0), 64),
        MdtRequest::GetAttributes(inode),
        MdtRequest::GetLayout(inode),
    ];
    for request in requests {
        let reply = fs.call(ALICE, request).await.unwrap();
        let bytes = rpc::codec::encode_reply(&Default::default(), &Reply::Mdt(reply))
            .expect("an answer fits a message")
            .bytes
            .len();
        assert!(bytes > 100_000, "{bytes} bytes: it has the layout");
    }
}
