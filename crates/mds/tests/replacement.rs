//! Renames over files: when the source's objects must be durable first.

use crate::common;

use common::*;
use layout::Layout;
use rpc::{
    Handler,
    message::{
        MdtReply, MdtRequest,
        mdt::{Rename, RenameMode, SourceData, SyncFirst},
    },
};
use types::{FsError, FsResult, InodeNumber};

fn rename(name: &str, new_name: &str, source_data: SourceData) -> Rename {
    Rename {
        parent: ROOT,
        name: name.as_bytes().to_vec(),
        new_parent: ROOT,
        new_name: new_name.as_bytes().to_vec(),
        mode: RenameMode::Replace,
        source_data,
        mdt_era: None,
        same_directory: false,
    }
}

async fn ask(fs: &Fixture, rename: Rename) -> FsResult<MdtReply> {
    fs.call(ALICE, MdtRequest::Rename(root(), rename)).await
}

/// A file with data.
async fn written(fs: &Fixture, name: &str) -> InodeNumber {
    laid_out(fs, name).await.0
}

async fn laid_out(fs: &Fixture, name: &str) -> (InodeNumber, Layout) {
    let (open, created) = fs.create_open(ALICE, ROOT, name, WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    fs.close(ALICE, inode, open, Some(size_update(opened.epoch, 100_000))).await.unwrap();
    (inode, opened.layout.unwrap())
}

async fn inode_of(fs: &Fixture, name: &str) -> FsResult<InodeNumber> {
    fs.lookup(&root(), ROOT, name).await.map(|entry| entry.attributes.inode)
}

#[tokio::test]
async fn a_file_with_objects_replaces_another_only_once_they_are_durable() {
    let fs = Fixture::new().await.with_plain_files();
    let (old, (new, layout)) = (written(&fs, "file").await, laid_out(&fs, "new").await);
    for source_data in [SourceData::SyncIfAsked, SourceData::Synced(old)] {
        let reply = ask(&fs, rename("new", "file", source_data)).await;
        assert_eq!(reply, Ok(MdtReply::SyncFirst(SyncFirst { inode: new, layout: layout.clone() })));
        assert_eq!(
            (inode_of(&fs, "file").await, inode_of(&fs, "new").await),
            (Ok(old), Ok(new)),
            "nothing has happened"
        );
    }
    assert_eq!(ask(&fs, rename("new", "file", SourceData::Synced(new))).await, Ok(MdtReply::Done));
    assert_eq!(inode_of(&fs, "file").await, Ok(new));
    written(&fs, "newer").await;
    assert_eq!(ask(&fs, rename("newer", "file", SourceData::AsIs)).await, Ok(MdtReply::Done), "an old client");
}

#[tokio::test]
async fn no_rename_waits_for_data_without_need() {
    let fs = Fixture::new().await.with_plain_files();
    written(&fs, "file").await;
    fs.file(ROOT, "empty").await;
    assert_eq!(ask(&fs, rename("empty", "file", SourceData::SyncIfAsked)).await, Ok(MdtReply::Done), "no data");
    written(&fs, "one").await;
    assert_eq!(ask(&fs, rename("one", "free", SourceData::SyncIfAsked)).await, Ok(MdtReply::Done), "a new name");
    let exchange = Rename { mode: RenameMode::Exchange, ..rename("file", "free", SourceData::SyncIfAsked) };
    assert_eq!(ask(&fs, exchange).await, Ok(MdtReply::Done), "both stay");
    fs.mkdir(ROOT, "a").await;
    fs.mkdir(ROOT, "b").await;
    assert_eq!(ask(&fs, rename("a", "b", SourceData::SyncIfAsked)).await, Ok(MdtReply::Done), "directories");
    // With the first bytes on the MDT: they are in its journal before the rename.
    let fs = Fixture::new().await;
    written(&fs, "file").await;
    written(&fs, "new").await;
    assert_eq!(ask(&fs, rename("new", "file", SourceData::SyncIfAsked)).await, Ok(MdtReply::Done));
}

/// A seed of the lab: the rename was sent again to an MDT that had lost what was written to the new
/// file before.
#[tokio::test]
async fn a_rename_that_began_before_a_loss_of_power_replaces_nothing_after_it() {
    let mut fs = Fixture::new().await.with_plain_files();
    let old = written(&fs, "file").await;
    let new = written(&fs, "new").await;
    fs.commit().await;
    let mdt_era = Some(fs.mdt.era());
    fs.lose_power().await;
    fs.recover().await;
    let late = Rename { mdt_era, ..rename("new", "file", SourceData::Synced(new)) };
    assert!(matches!(ask(&fs, late.clone()).await, Err(FsError::Device { .. })));
    assert_eq!(inode_of(&fs, "file").await, Ok(old));
    let elsewhere = Rename { new_name: b"free".to_vec(), ..late };
    assert_eq!(ask(&fs, elsewhere).await, Ok(MdtReply::Done), "it replaces nothing");
    let again = Rename { mdt_era: Some(fs.mdt.era()), ..rename("free", "file", SourceData::Synced(new)) };
    assert_eq!(ask(&fs, again).await, Ok(MdtReply::Done));
    assert_eq!(inode_of(&fs, "file").await, Ok(new));
}
