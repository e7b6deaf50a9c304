//! Versions of inodes, and project ids.

use crate::common::*;

use mds::tables::{INODES, inode::Inode};
use rpc::{
    Call, Handler,
    message::{
        MdtRequest, Request,
        extension::InodeVersion,
        mdt::{RenameMode, SetXattr, Unlink, XattrMode},
    },
};
use types::{FsError, FsResult, InodeNumber, NodeKind, SetAttributes, Slot, Xid, attributes::file_flag};

/// The version of an inode as the MDT stores it; `None`: it does not exist.
fn version(fs: &Fixture, inode: InodeNumber) -> Option<u64> {
    let mut found = None;
    let scanned = fs.mdt.scan_table(INODES, |key, value| {
        if key == Inode::key(inode) {
            found = Some(Inode::decode(inode, value)?.version);
        }
        Ok(())
    });
    scanned.expect("a table can be read");
    found
}

async fn set(fs: &Fixture, inode: InodeNumber, changes: SetAttributes) -> FsResult<()> {
    entry(fs.call(ALICE, MdtRequest::SetAttributes(root(), inode, changes)).await?).map(drop)
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

#[tokio::test]
async fn each_change_of_an_inode_is_one_version() {
    let fs = Fixture::new().await;
    let before = version(&fs, ROOT).unwrap();
    let directory = fs.mkdir(ROOT, "d").await;
    assert_eq!((version(&fs, ROOT), version(&fs, directory)), (Some(before + 1), Some(1)));
    let file = fs.file(directory, "f").await;
    assert_eq!((version(&fs, directory), version(&fs, file)), (Some(2), Some(1)));

    set(&fs, file, mode(0o600)).await.unwrap();
    assert_eq!(version(&fs, file), Some(2), "attributes");
    fs.link(&root(), file, directory, "g").await.unwrap();
    assert_eq!((version(&fs, directory), version(&fs, file)), (Some(3), Some(3)), "a name and the link count");
    let xattr = SetXattr { inode: file, name: b"user.a".to_vec(), value: b"1".to_vec(), mode: XattrMode::Any };
    done(fs.call(ALICE, MdtRequest::SetXattr(root(), xattr)).await.unwrap()).unwrap();
    assert_eq!(version(&fs, file), Some(4), "an extended attribute");
    fs.rename(&root(), (directory, "g"), (ROOT, "h"), RenameMode::Replace).await.unwrap();
    let after = (version(&fs, ROOT), version(&fs, directory), version(&fs, file));
    assert_eq!(after, (Some(before + 2), Some(4), Some(5)), "both directories, and what moves");
    fs.unlink(&root(), directory, "f").await.unwrap();
    assert_eq!((version(&fs, directory), version(&fs, file)), (Some(5), Some(6)));
}

#[tokio::test]
async fn what_changes_nothing_keeps_the_version_and_a_restart_does() {
    let mut fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    set(&fs, file, mode(0o600)).await.unwrap();
    let before = (version(&fs, ROOT), version(&fs, file));
    fs.lookup(&root(), ROOT, "f").await.unwrap();
    fs.stat(file).await.unwrap();
    assert_eq!(fs.create(&root(), ROOT, "f", NodeKind::Directory, 0o755).await.err(), Some(FsError::Exists));
    assert_eq!((version(&fs, ROOT), version(&fs, file)), before);
    fs.restart_and_recover().await;
    assert_eq!((version(&fs, ROOT), version(&fs, file)), before);
    set(&fs, file, mode(0o640)).await.unwrap();
    assert_eq!(version(&fs, file), before.1.map(|version| version + 1));
}

#[tokio::test]
async fn project_ids_are_inherited_and_survive_a_restart() {
    let mut fs = Fixture::new().await;
    let project = |id, flags| SetAttributes { project: Some(id), flags: Some(flags), ..SetAttributes::default() };
    let (plain, passes_on) = (fs.mkdir(ROOT, "plain").await, fs.mkdir(ROOT, "passes-on").await);
    set(&fs, plain, project(7, 0)).await.unwrap();
    set(&fs, passes_on, project(8, file_flag::PROJECT_INHERIT)).await.unwrap();
    let of_plain = fs.file(plain, "f").await;
    let directory = fs.mkdir(passes_on, "d").await;
    let file = fs.file(directory, "f").await;
    fs.restart_and_recover().await;
    let mut found = Vec::new();
    for inode in [plain, of_plain, passes_on, directory, file] {
        let attributes = fs.stat(inode).await.unwrap().attributes;
        found.push((attributes.project, attributes.flags));
    }
    let flag = file_flag::PROJECT_INHERIT;
    assert_eq!(found, [(7, 0), (0, 0), (8, flag), (8, flag), (8, 0)]);
}

#[tokio::test]
async fn only_root_decides_whom_space_is_accounted_to() {
    let fs = Fixture::new().await;
    let file = fs.file(ROOT, "f").await;
    let owner = SetAttributes { uid: Some(5), ..SetAttributes::default() };
    set(&fs, file, owner).await.unwrap();
    let project = SetAttributes { project: Some(7), ..SetAttributes::default() };
    let asked = fs.call(ALICE, MdtRequest::SetAttributes(user(5), file, project)).await;
    assert_eq!(asked, Err(FsError::NotPermitted));
    let inherit = SetAttributes { flags: Some(file_flag::PROJECT_INHERIT), ..SetAttributes::default() };
    assert_eq!(set(&fs, file, inherit).await, Err(FsError::Invalid), "a file passes nothing on");
    assert_eq!(fs.stat(file).await.unwrap().attributes.project, 0);
}

/// What a client will need to make a change again: place, era, versions and what the MDT chose.
#[tokio::test]
async fn the_answer_to_a_change_tells_of_it() {
    let fs = Fixture::new().await;
    let removed = fs.file(ROOT, "old").await;
    let directory = fs.stat(ROOT).await.unwrap();
    let answer = async |xid: u64, request: MdtRequest| {
        let call = Call::plain(ALICE, Slot(9), Xid(xid), Request::Mdt(request), bytes::Bytes::new());
        let answer = fs.mdt.clone().handle(call).await;
        answer.reply.unwrap();
        answer.extension
    };
    let before = version(&fs, ROOT).unwrap();
    let unlink = Unlink { parent: ROOT, name: b"old".to_vec(), directory: false };
    let told = answer(1, MdtRequest::Unlink(root(), unlink)).await;
    let change = told.change.expect("something changed");
    let parent = InodeVersion { inode: ROOT, before, after: before + 1 };
    assert!(change.versions.contains(&parent), "{change:?}");
    let of_removed = change.versions.iter().find(|version| version.inode == removed);
    assert_eq!(of_removed.map(|version| version.before), Some(1), "{change:?}");
    assert!(change.chosen.time >= Some(directory.attributes.mtime));
    assert!(told.committed < change.lsn, "nothing was flushed yet");
    let next = answer(2, MdtRequest::Commit).await;
    assert_eq!(next.change, None, "a commit changes nothing");
    let made = answer(3, MdtRequest::Create(root(), create_request(ROOT, "new", NodeKind::Regular, 0o644, None)))
        .await
        .change
        .expect("something changed");
    assert!(made.lsn > change.lsn);
    let number = fs.lookup(&root(), ROOT, "new").await.unwrap().attributes.inode;
    assert_eq!(made.chosen.inode, Some(number));
    assert!(made.versions.contains(&InodeVersion { inode: number, before: 0, after: 1 }), "{made:?}");
    let read = answer(4, MdtRequest::GetAttributes(number)).await;
    assert_eq!(read, Default::default(), "a client that only looks is told nothing");
}
