//! Self-extending components whose OST refuses a write in the middle of a step, because the MDT's
//! knowledge of it was outdated. Servers are the shipped ones.

use crate::support;

use std::sync::Arc;

use client::{FileSystem, OpenFile, WriteOptions};
use layout::{BackingSpec, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, Location, StripeCount, StripeSpec};
use rpc::message::mdt::OpenFlags;
use support::{READ_WRITE, read, real::RealCluster, with_layout, write};
use types::{Credentials, FsError, InodeNumber, OstIndex};

const MIB: u64 = 1 << 20;
const STEP: u64 = 64 * MIB;

fn stripes() -> StripeSpec {
    StripeSpec { stripe_count: StripeCount::Exactly(1), stripe_bytes: Some(MIB), ..StripeSpec::default() }
}

fn extended(end: u64, stripes: StripeSpec) -> ComponentSpec {
    ComponentSpec { end, backing: BackingSpec::Extended(stripes, STEP) }
}

async fn mib(fs: &Arc<FileSystem>, file: &Arc<OpenFile>, number: u64) {
    write(fs, file, number * MIB, &vec![number as u8 + 1; MIB as usize]).await;
}

async fn assert_mib(fs: &Arc<FileSystem>, file: &OpenFile, numbers: &[u64]) {
    for number in numbers {
        assert!(
            read(fs, file, number * MIB, MIB as usize).await == vec![*number as u8 + 1; MIB as usize],
            "MiB {number}"
        );
    }
}

async fn layout(fs: &FileSystem, inode: InodeNumber) -> Layout {
    fs.layout_info(inode).await.unwrap().layout.expect("a file has a layout")
}

fn ost_of(layout: &Layout, offset: u64) -> OstIndex {
    let location = layout.ranges(offset, 1).next().map(|range| range.location);
    let Some(Location::Ost(ost)) = location else { panic!("{offset} is on {location:?}") };
    ost
}

#[tokio::test]
async fn what_follows_begins_where_a_step_was_refused() {
    let followers = [
        ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes()) },
        extended(END_OF_FILE, stripes()),
    ];
    for next in followers {
        let cluster = RealCluster::automatic(2).await;
        let (fs, other) = (cluster.mount().await, cluster.mount().await);
        let file =
            with_layout(&fs, "file", LayoutSpec::Composite(vec![extended(1 << 30, stripes()), next.clone()])).await;
        mib(&fs, &file, 0).await;
        let before = layout(&fs, file.inode()).await;
        assert_eq!(before.components[0].extent.end, STEP);
        let reader = other.open(&Credentials::root(), file.inode(), OpenFlags(READ_WRITE)).await.unwrap();
        assert_mib(&other, &reader, &[0]).await;
        cluster.fill(ost_of(&before, 0));
        mib(&fs, &file, 1).await;
        let after = layout(&fs, file.inode()).await;
        assert_eq!(after.components[1].extent.start, MIB, "{next:?}: {after:?}");
        assert_ne!(ost_of(&after, MIB), ost_of(&after, 0));
        assert_mib(&fs, &file, &[0, 1]).await;
        assert_mib(&other, &reader, &[0, 1]).await;
    }
}

#[tokio::test]
async fn a_component_that_nothing_follows_goes_on_elsewhere_until_all_is_full() {
    for first_ost in [None, Some(OstIndex(1))] {
        let cluster = RealCluster::automatic(3).await;
        let fs = cluster.mount().await;
        let spec = extended(END_OF_FILE, StripeSpec { first_ost, ..stripes() });
        let file = with_layout(&fs, "file", LayoutSpec::Composite(vec![spec])).await;
        mib(&fs, &file, 0).await;
        for number in 1..3 {
            cluster.fill(ost_of(&layout(&fs, file.inode()).await, (number - 1) * MIB));
            mib(&fs, &file, number).await;
        }
        assert_mib(&fs, &file, &[0, 1, 2]).await;
        let last = layout(&fs, file.inode()).await;
        assert_eq!(last.object_count(), 3, "{last:?}");
        cluster.fill(ost_of(&last, 2 * MIB));
        let refused = fs.write(&file, 3 * MIB, vec![4; MIB as usize].into(), WriteOptions::default()).await;
        assert_eq!(refused, Err(FsError::NoSpace));
        assert_mib(&fs, &file, &[0, 1, 2]).await;
    }
}

/// Some writers are ahead of others.
#[tokio::test]
async fn a_hole_before_data_is_filled_elsewhere() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let next = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes()) };
    let file = with_layout(&fs, "file", LayoutSpec::Composite(vec![extended(1 << 30, stripes()), next])).await;
    for number in [0, 4] {
        mib(&fs, &file, number).await;
    }
    let first = ost_of(&layout(&fs, file.inode()).await, 0);
    cluster.fill(first);
    for number in [2, 1, 3, 5] {
        mib(&fs, &file, number).await;
    }
    assert_mib(&fs, &file, &[0, 1, 2, 3, 4, 5]).await;
    let after = layout(&fs, file.inode()).await;
    let osts = [0, 1, 2, 3, 4, 5].map(|number| ost_of(&after, number * MIB) == first);
    assert_eq!(osts, [true, false, false, false, true, false], "{after:?}");
}

/// Its object is there, and in use by a client that does not know better.
#[tokio::test]
async fn a_file_that_became_empty_is_written_elsewhere() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let next = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes()) };
    let file = with_layout(&fs, "file", LayoutSpec::Composite(vec![extended(1 << 30, stripes()), next])).await;
    mib(&fs, &file, 0).await;
    fs.truncate(&Credentials::root(), file.inode(), Some(&file), 0).await.unwrap();
    let first = ost_of(&layout(&fs, file.inode()).await, 0);
    cluster.fill(first);
    mib(&fs, &file, 0).await;
    assert_mib(&fs, &file, &[0]).await;
    let after = layout(&fs, file.inode()).await;
    assert_eq!((after.object_count(), ost_of(&after, 0) == first), (2, false), "{after:?}");
}

#[tokio::test]
async fn named_osts_are_all_there_is() {
    let cluster = RealCluster::automatic(2).await;
    let fs = cluster.mount().await;
    let spec = extended(END_OF_FILE, StripeSpec { osts: vec![OstIndex(1)], ..stripes() });
    let file = with_layout(&fs, "file", LayoutSpec::Composite(vec![spec])).await;
    mib(&fs, &file, 0).await;
    cluster.fill(OstIndex(1));
    let refused = fs.write(&file, MIB, vec![2; MIB as usize].into(), WriteOptions::default()).await;
    assert_eq!(refused, Err(FsError::NoSpace));
    assert_mib(&fs, &file, &[0]).await;
}
