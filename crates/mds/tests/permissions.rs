//! Who may do what, through the handler: errors as a local file system gives them.

use crate::common;

use common::*;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{Create, ExclusiveBegin, ExclusivePurpose, RenameMode, SetXattr, XattrMode, open_flag},
};
use types::{Attributes, Credentials, FsError, FsResult, InodeNumber, NodeKind, SetAttributes, SetTime, Timestamp};

const ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// Tags of access lists on the wire.
const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

async fn set(fs: &Fixture, who: &Credentials, inode: InodeNumber, changes: SetAttributes) -> FsResult<Attributes> {
    Ok(entry(fs.call(ALICE, MdtRequest::SetAttributes(who.clone(), inode, changes)).await?)?.attributes)
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

fn owner(uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
    SetAttributes { uid, gid, ..SetAttributes::default() }
}

/// A file of user 5 (group 5) in a directory that everybody may write.
async fn file_of_five(fs: &Fixture, bits: u32) -> (InodeNumber, InodeNumber) {
    let public = fs.create(&root(), ROOT, "public", NodeKind::Directory, 0o777).await.unwrap();
    (public, fs.create(&user(5), public, "f", NodeKind::Regular, bits).await.unwrap())
}

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

async fn set_xattr(fs: &Fixture, who: &Credentials, inode: InodeNumber, name: &[u8], value: &[u8]) -> FsResult<()> {
    set_xattr_as(fs, who, inode, name, value, XattrMode::Any).await
}

async fn set_xattr_as(
    fs: &Fixture,
    who: &Credentials,
    inode: InodeNumber,
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> FsResult<()> {
    let set = SetXattr { inode, name: name.to_vec(), value: value.to_vec(), mode };
    done(fs.call(ALICE, MdtRequest::SetXattr(who.clone(), set)).await?)
}

async fn xattr(fs: &Fixture, who: &Credentials, inode: InodeNumber, name: &[u8]) -> FsResult<Vec<u8>> {
    match fs.call(ALICE, MdtRequest::GetXattr(who.clone(), inode, name.to_vec())).await? {
        MdtReply::Value(value) => Ok(value),
        MdtReply::Absent => Err(FsError::NoData),
        other => panic!("{other:?}"),
    }
}

async fn access(fs: &Fixture, who: &Credentials, inode: InodeNumber, mask: u32) -> FsResult<()> {
    done(fs.call(ALICE, MdtRequest::Access(who.clone(), inode, mask)).await?)
}

#[tokio::test]
async fn every_lookup_needs_search_permission() {
    let fs = Fixture::new().await;
    let closed = fs.create(&root(), ROOT, "closed", NodeKind::Directory, 0o700).await.unwrap();
    fs.file(closed, "f").await;
    assert_eq!(fs.lookup(&user(5), closed, "f").await, Err(FsError::AccessDenied));
    assert_eq!(fs.lookup(&user(5), closed, "missing").await, Err(FsError::AccessDenied));
    set(&fs, &root(), closed, mode(0o701)).await.unwrap();
    fs.lookup(&user(5), closed, "f").await.unwrap();
    assert_eq!(fs.open(ALICE, &user(5), closed, READ).await, Err(FsError::AccessDenied), "listing needs reading");
}

#[tokio::test]
async fn supplementary_groups_are_asked_for_when_they_decide() {
    let fs = Fixture::new().await;
    let file = fs.create(&root(), ROOT, "f", NodeKind::Regular, 0o640).await.unwrap();
    set(&fs, &root(), file, owner(Some(1), Some(9))).await.unwrap();
    let unknown = Credentials { uid: 5, gid: 5, groups: None };
    assert_eq!(access(&fs, &unknown, file, 4).await, Err(FsError::GroupsNeeded));
    assert_eq!(access(&fs, &unknown, file, 2).await, Err(FsError::AccessDenied));
    let member = Credentials { groups: Some(vec![9]), ..unknown };
    access(&fs, &member, file, 4).await.unwrap();
}

#[tokio::test]
async fn open_checks_what_it_asks_for() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o444).await;
    fs.open(ALICE, &user(5), file, READ).await.unwrap();
    assert_eq!(fs.open(ALICE, &user(5), file, WRITE).await, Err(FsError::AccessDenied));
    assert_eq!(fs.open(ALICE, &user(6), file, READ | open_flag::TRUNCATE).await, Err(FsError::AccessDenied));
    assert_eq!(fs.open(ALICE, &root(), file, open_flag::EXECUTE).await, Err(FsError::AccessDenied));
    fs.open(ALICE, &root(), file, READ | WRITE).await.unwrap();
}

#[tokio::test]
async fn an_open_for_execution_needs_no_read_permission() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o111).await;
    for who in [user(5), user(6), root()] {
        fs.open(ALICE, &who, file, open_flag::EXECUTE).await.unwrap();
    }
    for flags in [READ, READ | open_flag::EXECUTE] {
        assert_eq!(fs.open(ALICE, &user(6), file, flags).await, Err(FsError::AccessDenied));
    }
    set(&fs, &root(), file, mode(0o110)).await.unwrap();
    assert_eq!(fs.open(ALICE, &user(6), file, open_flag::EXECUTE).await, Err(FsError::AccessDenied));
}

#[tokio::test]
async fn a_creator_may_write_what_its_mode_forbids() {
    let fs = Fixture::new().await;
    let (open, flags) = (fs.open_id(), rpc::message::mdt::OpenFlags(WRITE));
    let request = create_request(ROOT, "f", NodeKind::Regular, 0o400, Some((open, flags)));
    assert!(created(fs.call(ALICE, MdtRequest::Create(root(), request)).await.unwrap()).opened.is_some());
}

#[tokio::test]
async fn chmod_is_the_owners_and_keeps_setgid_for_members_only() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o644).await;
    assert_eq!(set(&fs, &user(6), file, mode(0o600)).await, Err(FsError::NotPermitted));
    assert_eq!(set(&fs, &user(5), file, mode(0o6755)).await.unwrap().mode, 0o6755);
    set(&fs, &root(), file, owner(None, Some(77))).await.unwrap();
    assert_eq!(set(&fs, &user(5), file, mode(0o2755)).await.unwrap().mode, 0o755);
    let unknown = Credentials { uid: 5, gid: 5, groups: None };
    assert_eq!(set(&fs, &unknown, file, mode(0o2755)).await, Err(FsError::GroupsNeeded));
    let link = fs.create(&root(), ROOT, "l", NodeKind::Symlink(b"x".to_vec()), 0).await.unwrap();
    assert_eq!(set(&fs, &root(), link, mode(0o600)).await, Err(FsError::NotSupported));
}

#[tokio::test]
async fn chown_is_roots_except_for_ones_own_groups() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o755).await;
    assert_eq!(set(&fs, &user(5), file, owner(Some(6), None)).await, Err(FsError::NotPermitted));
    assert_eq!(set(&fs, &user(5), file, owner(None, Some(6))).await, Err(FsError::NotPermitted));
    assert_eq!(set(&fs, &user(6), file, owner(None, Some(6))).await, Err(FsError::NotPermitted));
    let member = Credentials { groups: Some(vec![6]), ..user(5) };
    set(&fs, &root(), file, mode(0o6755)).await.unwrap();
    let after = set(&fs, &member, file, owner(Some(5), Some(6))).await.unwrap();
    assert_eq!((after.gid, after.mode), (6, 0o755), "set-id bits go");
    let directory = fs.create(&root(), ROOT, "d", NodeKind::Directory, 0o755).await.unwrap();
    set(&fs, &root(), directory, mode(0o2755)).await.unwrap();
    assert_eq!(set(&fs, &root(), directory, owner(Some(1), Some(1))).await.unwrap().mode, 0o2755);
}

#[tokio::test]
async fn times_are_the_owners_but_now_is_any_writers() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o646).await;
    let time = Timestamp { seconds: -5, nanoseconds: 7 };
    let to = SetAttributes { atime: Some(SetTime::To(time)), mtime: Some(SetTime::To(time)), ..Default::default() };
    let now = SetAttributes { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..Default::default() };
    let one_now = SetAttributes { mtime: Some(SetTime::Now), ..Default::default() };
    assert_eq!(set(&fs, &user(6), file, to).await, Err(FsError::NotPermitted));
    assert_eq!(set(&fs, &user(6), file, one_now).await, Err(FsError::NotPermitted));
    set(&fs, &user(6), file, now).await.unwrap();
    set(&fs, &root(), file, mode(0o644)).await.unwrap();
    assert_eq!(set(&fs, &user(6), file, now).await, Err(FsError::AccessDenied));
    let after = set(&fs, &user(5), file, to).await.unwrap();
    assert_eq!((after.atime, after.mtime), (time, time));
    assert!(after.ctime > time);
}

#[tokio::test]
async fn sticky_directories_protect_names() {
    let fs = Fixture::new().await;
    let tmp = fs.create(&root(), ROOT, "tmp", NodeKind::Directory, 0o1777).await.unwrap();
    assert_eq!(fs.stat(tmp).await.unwrap().attributes.mode, 0o1777);
    fs.create(&user(5), tmp, "f", NodeKind::Regular, 0o666).await.unwrap();
    fs.create(&user(6), tmp, "g", NodeKind::Regular, 0o666).await.unwrap();
    assert_eq!(fs.unlink(&user(6), tmp, "f").await, Err(FsError::NotPermitted));
    let replace = RenameMode::Replace;
    assert_eq!(fs.rename(&user(6), (tmp, "f"), (tmp, "h"), replace).await, Err(FsError::NotPermitted));
    assert_eq!(fs.rename(&user(6), (tmp, "g"), (tmp, "f"), replace).await, Err(FsError::NotPermitted));
    fs.rename(&user(6), (tmp, "g"), (tmp, "h"), replace).await.unwrap();
    fs.unlink(&user(5), tmp, "f").await.unwrap();
    fs.unlink(&root(), tmp, "h").await.unwrap();
}

#[tokio::test]
async fn removing_needs_a_writable_directory() {
    let fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    fs.file(directory, "f").await;
    assert_eq!(fs.unlink(&user(5), directory, "f").await, Err(FsError::AccessDenied));
    assert_eq!(fs.unlink(&user(5), directory, "missing").await, Err(FsError::NotFound));
    assert_eq!(
        fs.create(&user(5), directory, "f", NodeKind::Regular, 0).await,
        Err(FsError::Exists),
        "an existing name comes before permission"
    );
    let replace = RenameMode::Replace;
    assert_eq!(fs.rename(&user(5), (directory, "f"), (directory, "g"), replace).await, Err(FsError::AccessDenied));
}

#[tokio::test]
async fn moving_a_directory_of_others_needs_its_write_permission() {
    let fs = Fixture::new().await;
    let a = fs.create(&root(), ROOT, "a", NodeKind::Directory, 0o777).await.unwrap();
    let b = fs.create(&root(), ROOT, "b", NodeKind::Directory, 0o777).await.unwrap();
    fs.mkdir(a, "roots").await;
    let replace = RenameMode::Replace;
    assert_eq!(fs.rename(&user(5), (a, "roots"), (b, "x"), replace).await, Err(FsError::AccessDenied));
    fs.rename(&user(5), (a, "roots"), (a, "x"), replace).await.unwrap();
}

#[tokio::test]
async fn setgid_directories_give_their_group_on() {
    let fs = Fixture::new().await;
    let directory = fs.create(&root(), ROOT, "d", NodeKind::Directory, 0o777).await.unwrap();
    set(&fs, &root(), directory, owner(None, Some(9))).await.unwrap();
    set(&fs, &root(), directory, mode(0o2777)).await.unwrap();
    let file = fs.create(&user(5), directory, "f", NodeKind::Regular, 0o2755).await.unwrap();
    let attributes = fs.stat(file).await.unwrap().attributes;
    assert_eq!((attributes.gid, attributes.mode), (9, 0o755), "no member keeps no bit");
    let inner = fs.create(&user(5), directory, "e", NodeKind::Directory, 0o755).await.unwrap();
    let attributes = fs.stat(inner).await.unwrap().attributes;
    assert_eq!((attributes.gid, attributes.mode), (9, 0o2755));
}

#[tokio::test]
async fn access_lists_decide_show_as_mode_and_follow_chmod() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o640).await;
    let value = list(&[(OWNER, 6, !0), (USER, 7, 8), (GROUP, 4, !0), (MASK, 5, !0), (OTHER, 0, !0)]);
    assert_eq!(set_xattr(&fs, &user(6), file, ACL, &value).await, Err(FsError::NotPermitted));
    set_xattr(&fs, &user(5), file, ACL, &value).await.unwrap();
    assert_eq!(fs.stat(file).await.unwrap().attributes.mode, 0o650);
    access(&fs, &user(8), file, 5).await.unwrap();
    assert_eq!(access(&fs, &user(8), file, 2).await, Err(FsError::AccessDenied));
    set(&fs, &user(5), file, mode(0o600)).await.unwrap();
    assert_eq!(access(&fs, &user(8), file, 4).await, Err(FsError::AccessDenied), "chmod closed the mask");
    let stored = xattr(&fs, &user(8), file, ACL).await.unwrap();
    assert_eq!(stored, list(&[(OWNER, 6, !0), (USER, 7, 8), (GROUP, 4, !0), (MASK, 0, !0), (OTHER, 0, !0)]));
    let minimal = list(&[(OWNER, 6, !0), (GROUP, 4, !0), (OTHER, 4, !0)]);
    set_xattr(&fs, &user(5), file, ACL, &minimal).await.unwrap();
    assert_eq!(fs.stat(file).await.unwrap().attributes.mode, 0o644);
    assert_eq!(xattr(&fs, &user(5), file, ACL).await, Err(FsError::NoData), "the mode says it all");
    let broken = list(&[(OWNER, 6, !0), (USER, 7, 8), (GROUP, 4, !0), (OTHER, 0, !0)]);
    assert_eq!(set_xattr(&fs, &user(5), file, ACL, &broken).await, Err(FsError::Invalid));
    assert_eq!(set_xattr(&fs, &user(5), file, DEFAULT_ACL, &minimal).await, Err(FsError::AccessDenied));
}

#[tokio::test]
async fn default_access_lists_are_inherited_instead_of_the_umask() {
    let fs = Fixture::new().await;
    let directory = fs.create(&user(0), ROOT, "d", NodeKind::Directory, 0o777).await.unwrap();
    let defaults = list(&[(OWNER, 7, !0), (USER, 6, 8), (GROUP, 5, !0), (MASK, 7, !0), (OTHER, 0, !0)]);
    set_xattr(&fs, &root(), directory, DEFAULT_ACL, &defaults).await.unwrap();
    let create = |name: &str, kind| Create { umask: 0o077, ..create_request(directory, name, kind, 0o664, None) };
    let make = async |name: &str, kind| {
        let request = MdtRequest::Create(user(5), create(name, kind));
        created(fs.call(ALICE, request).await.unwrap()).entry.attributes
    };
    let file = make("f", NodeKind::Regular).await;
    assert_eq!(file.mode, 0o660, "mode and default list, no umask");
    access(&fs, &user(8), file.inode, 6).await.unwrap();
    let inner = make("e", NodeKind::Directory).await;
    assert_eq!(xattr(&fs, &root(), inner.inode, DEFAULT_ACL).await.unwrap(), defaults);
    let plain = fs.mkdir(ROOT, "plain").await;
    let request = Create { umask: 0o027, ..create_request(plain, "f", NodeKind::Regular, 0o666, None) };
    let created = created(fs.call(ALICE, MdtRequest::Create(root(), request)).await.unwrap());
    assert_eq!(created.entry.attributes.mode, 0o640);
}

#[tokio::test]
async fn extended_attributes_by_namespace() {
    let fs = Fixture::new().await;
    let (public, file) = file_of_five(&fs, 0o644).await;
    let five = user(5);
    set_xattr(&fs, &five, file, b"user.a", b"1").await.unwrap();
    set_xattr(&fs, &five, file, b"user.empty", b"").await.unwrap();
    assert_eq!(xattr(&fs, &user(6), file, b"user.a").await.unwrap(), b"1");
    assert_eq!(xattr(&fs, &user(6), file, b"user.empty").await.unwrap(), b"");
    assert_eq!(set_xattr(&fs, &user(6), file, b"user.a", b"2").await, Err(FsError::AccessDenied));
    let mode = |mode| set_xattr_as(&fs, &five, file, b"user.a", b"2", mode);
    assert_eq!(mode(XattrMode::Create).await, Err(FsError::Exists));
    mode(XattrMode::Replace).await.unwrap();
    let missing = set_xattr_as(&fs, &five, file, b"user.b", b"2", XattrMode::Replace).await;
    assert_eq!(missing, Err(FsError::NoData));
    assert_eq!(set_xattr(&fs, &five, file, b"trusted.t", b"").await, Err(FsError::NotPermitted));
    set_xattr(&fs, &root(), file, b"trusted.t", b"x").await.unwrap();
    assert_eq!(xattr(&fs, &five, file, b"trusted.t").await, Err(FsError::NoData));
    assert_eq!(set_xattr(&fs, &five, file, b"security.s", b"").await, Err(FsError::NotPermitted));
    assert_eq!(set_xattr(&fs, &root(), file, b"nonsense.s", b"").await, Err(FsError::NotSupported));
    let largest = vec![1; 65536];
    set_xattr(&fs, &five, file, b"user.large", &largest).await.unwrap();
    assert_eq!(xattr(&fs, &five, file, b"user.large").await.unwrap(), largest);
    assert_eq!(set_xattr(&fs, &five, file, b"user.large", &[0; 65537]).await, Err(FsError::TooBig));
    let names = |who: Credentials| fs.call(ALICE, MdtRequest::ListXattr(who, file));
    let MdtReply::Names(seen) = names(user(6)).await.unwrap() else { panic!() };
    assert_eq!(seen, [&b"user.a"[..], b"user.empty", b"user.large", b"lustre.lov"]);
    let MdtReply::Names(seen) = names(root()).await.unwrap() else { panic!() };
    assert!(seen.contains(&b"trusted.t".to_vec()));
    let remove = |name: &[u8]| fs.call(ALICE, MdtRequest::RemoveXattr(five.clone(), file, name.to_vec()));
    remove(b"user.large").await.unwrap();
    assert_eq!(remove(b"user.large").await, Err(FsError::NoData));
    let fifo = fs.create(&five, public, "fifo", NodeKind::Fifo, 0o666).await.unwrap();
    assert_eq!(set_xattr(&fs, &five, fifo, b"user.a", b"").await, Err(FsError::NotPermitted));
    assert_eq!(xattr(&fs, &five, fifo, b"user.a").await, Err(FsError::NoData));
    fs.unlink(&five, public, "f").await.unwrap();
    assert_eq!(fs.check(false).await, [], "attributes go with their inode");
}

/// Linux shows no list that is longer than 65536 bytes, of whose names with their NULs it consists.
#[tokio::test]
async fn names_of_attributes_stay_few_enough_to_be_listed() {
    let fs = Fixture::new().await;
    let directory = fs.mkdir(ROOT, "d").await;
    let name = |number: u32| format!("user.{number:0250}").into_bytes();
    let set = async |name: &[u8]| set_xattr(&fs, &root(), directory, name, b"").await;
    let listed = async || match fs.call(ALICE, MdtRequest::ListXattr(root(), directory)).await {
        Ok(MdtReply::Names(names)) => names.iter().map(|name| name.len() + 1).sum::<usize>(),
        other => panic!("{other:?}"),
    };
    let mut count = 0;
    while set(&name(count)).await.is_ok() {
        count += 1;
    }
    assert_eq!(set(&name(count)).await, Err(FsError::NoSpace));
    assert!(count >= 250, "{count}");
    set(&name(0)).await.expect("it has its place");
    set(b"user.a").await.expect("a shorter one fits");
    // What is not chosen by its name fits in any case.
    for list_name in [ACL, DEFAULT_ACL] {
        let entries = list(&[(OWNER, 7, !0), (USER, 6, 8), (GROUP, 5, !0), (MASK, 7, !0), (OTHER, 0, !0)]);
        set_xattr(&fs, &root(), directory, list_name, &entries).await.unwrap();
    }
    let yaml = set_xattr(&fs, &root(), directory, b"stria.layout", b"stripe_count: 1\n").await;
    assert_eq!(yaml, Ok(()), "the default layout is listed by two names");
    assert!((65_000..=65_536).contains(&listed().await), "{}", listed().await);
    fs.call(ALICE, MdtRequest::RemoveXattr(root(), directory, name(7))).await.unwrap();
    assert_eq!(set(&name(count)).await, Ok(()), "there is room again");
}

/// Not even root's changes leave them, and all who open the file for writing learn of them.
#[tokio::test]
async fn truncations_and_changes_of_owner_take_capabilities_away() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o755).await;
    let give = async || set_xattr(&fs, &root(), file, b"security.capability", b"cap").await.unwrap();
    let gone = async || xattr(&fs, &root(), file, b"security.capability").await == Err(FsError::NoData);
    give().await;
    let (open, opened) = fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    assert!(opened.capabilities && !gone().await);
    fs.close(ALICE, file, open, None).await.unwrap();
    let (open, opened) = fs.open(ALICE, &root(), file, WRITE | open_flag::TRUNCATE).await.unwrap();
    assert!(!opened.capabilities && gone().await, "O_TRUNC");
    fs.close(ALICE, file, open, None).await.unwrap();
    give().await;
    let purpose = ExclusivePurpose::Truncate(5);
    let begin = ExclusiveBegin { inode: file, open: None, purpose };
    fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap();
    assert!(gone().await, "truncate");
    give().await;
    set(&fs, &root(), file, mode(0o700)).await.unwrap();
    assert!(!gone().await, "chmod does not");
    set(&fs, &root(), file, owner(Some(6), None)).await.unwrap();
    assert!(gone().await, "chown");
}

#[tokio::test]
async fn writing_takes_set_id_bits_and_capabilities_away() {
    let fs = Fixture::new().await;
    let (_, file) = file_of_five(&fs, 0o755).await;
    set(&fs, &root(), file, mode(0o6755)).await.unwrap();
    set_xattr(&fs, &root(), file, b"security.capability", b"cap").await.unwrap();
    fs.open(ALICE, &root(), file, WRITE).await.unwrap();
    done(fs.call(ALICE, MdtRequest::ClearPrivileges(file)).await.unwrap()).unwrap();
    assert_eq!(fs.stat(file).await.unwrap().attributes.mode, 0o755);
    assert_eq!(xattr(&fs, &root(), file, b"security.capability").await, Err(FsError::NoData));
}
