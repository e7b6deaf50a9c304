//! Components added to files and deleted from them, and layouts replaced.

use crate::common;

use std::sync::Arc;

use common::{ost::NotingOst, *};
use layout::{
    Backing, BackingSpec, Component, ComponentId, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, StripeCount,
    StripeSpec,
};
use mds::Parameters;
use rpc::{
    Endpoint,
    message::{
        MdtReply, MdtRequest,
        mdt::{Create, Instantiate, LayoutChange, LayoutInfo, OpenFlags, OpenId},
    },
};
use rt::memory::MemoryTransport;
use types::{FsError, FsResult, InodeNumber, NodeKind, OstIndex, Refusal};

const MIB: u64 = 1 << 20;

async fn with_osts(count: u16) -> (Fixture, Vec<Arc<NotingOst>>) {
    let network = MemoryTransport::new();
    let served: Vec<(Arc<NotingOst>, Endpoint)> =
        (0..count).map(|index| NotingOst::serve(&network, OstIndex(index))).collect();
    let map = served.iter().zip(0..).map(|((_, endpoint), index)| (OstIndex(index), endpoint.clone(), true)).collect();
    let fs = Fixture::on_network(&network, map).await;
    (fs, served.into_iter().map(|(ost, _)| ost).collect())
}

fn striped(end: u64, count: u32) -> ComponentSpec {
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(count), ..StripeSpec::default() };
    ComponentSpec { end, backing: BackingSpec::Striped(stripes) }
}

/// A file of these components; with `open`, opened for writing.
async fn file(fs: &Fixture, name: &str, components: Vec<ComponentSpec>, open: Option<OpenId>) -> InodeNumber {
    let open = open.map(|open| (open, OpenFlags(READ | WRITE)));
    let request = create_request(ROOT, name, NodeKind::Regular, 0o644, open);
    let layout = Some(LayoutSpec::Composite(components));
    let request = MdtRequest::Create(root(), Create { layout, ..request });
    created(fs.call(ALICE, request).await.unwrap()).entry.attributes.inode
}

async fn layout(fs: &Fixture, inode: InodeNumber) -> Layout {
    match fs.call(ALICE, MdtRequest::GetLayout(inode)).await.unwrap() {
        MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) => layout,
        other => panic!("{other:?}"),
    }
}

async fn change(fs: &Fixture, inode: InodeNumber, change: LayoutChange) -> FsResult<()> {
    match fs.call(ALICE, MdtRequest::ChangeLayout(root(), inode, change)).await? {
        MdtReply::Done => Ok(()),
        other => panic!("{other:?}"),
    }
}

async fn delete(fs: &Fixture, inode: InodeNumber, ids: &[u32]) -> FsResult<()> {
    let generation = layout(fs, inode).await.generation;
    let components = ids.iter().map(|id| ComponentId(*id)).collect();
    change(fs, inode, LayoutChange::Delete { components, generation }).await
}

#[tokio::test]
async fn components_are_added_under_open_files() {
    let fs = Fixture::new().await;
    let open = fs.open_id();
    let inode = file(&fs, "f", vec![striped(4 * MIB, 1)], Some(open)).await;
    change(&fs, inode, LayoutChange::Add(vec![striped(8 * MIB, 2), striped(64 * MIB, 4)])).await.unwrap();
    let added = layout(&fs, inode).await;
    assert_eq!((added.generation.0, added.end(), added.components.len()), (3, 64 * MIB, 3));
    let grow = Instantiate { inode, open, start: 5 * MIB, end: 6 * MIB };
    fs.call(ALICE, MdtRequest::Instantiate(grow)).await.unwrap();
    assert!(layout(&fs, inode).await.components[1].is_instantiated());
    for wrong in [vec![], vec![striped(64 * MIB, 1)], vec![striped(65 * MIB + 1, 1)]] {
        assert_eq!(change(&fs, inode, LayoutChange::Add(wrong)).await, Err(FsError::Invalid));
    }
    let plain = fs.file(ROOT, "plain").await;
    assert_eq!(change(&fs, plain, LayoutChange::Add(vec![striped(MIB, 1)])).await, Err(FsError::Invalid));
}

#[tokio::test]
async fn only_the_last_components_can_be_deleted() {
    let fs = Fixture::new().await;
    let components = vec![striped(4 * MIB, 1), striped(8 * MIB, 1), striped(END_OF_FILE, 1)];
    let inode = file(&fs, "f", components, None).await;
    for wrong in [&[1][..], &[2], &[1, 3], &[4], &[3, 3], &[]] {
        assert_eq!(delete(&fs, inode, wrong).await, Err(FsError::Invalid), "{wrong:?}");
    }
    delete(&fs, inode, &[3, 2]).await.unwrap();
    let left = layout(&fs, inode).await;
    assert_eq!((left.components.len(), left.ids_next), (1, 4), "numbers are not used twice");
    let stale = LayoutChange::Delete { components: vec![ComponentId(1)], generation: types::Generation(1) };
    assert_eq!(change(&fs, inode, stale).await, Err(FsError::WouldBlock));
    delete(&fs, inode, &[1]).await.unwrap();
    assert_eq!(layout(&fs, inode).await.components, []);
    change(&fs, inode, LayoutChange::Add(vec![striped(8 * MIB, 1)])).await.unwrap();
    assert_eq!(layout(&fs, inode).await.components[0].id, ComponentId(4));
}

#[tokio::test]
async fn data_go_with_their_component_once_nobody_has_the_file_open() {
    let (fs, osts) = with_osts(3).await;
    let open = fs.open_id();
    let inode = file(&fs, "f", vec![striped(4 * MIB, 1), striped(END_OF_FILE, 3)], Some(open)).await;
    let grow = Instantiate { inode, open, start: 4 * MIB, end: 5 * MIB };
    fs.call(ALICE, MdtRequest::Instantiate(grow)).await.unwrap();
    assert_eq!(delete(&fs, inode, &[2]).await, Err(FsError::Busy));
    fs.close(ALICE, inode, open, None).await.unwrap();
    delete(&fs, inode, &[2]).await.unwrap();
    let slots = || {
        let destroyed = osts.iter().flat_map(|ost| ost.destroyed.lock().clone());
        let mut slots: Vec<u32> = destroyed.filter(|object| object.inode == inode).map(|object| object.slot).collect();
        slots.sort_unstable();
        slots
    };
    eventually("its objects go, and no other", async || slots() == [1, 2, 3]).await;
    let entry = fs.stat(inode).await.unwrap();
    assert!(entry.size_unknown.is_some(), "what is left must say how long the file is");
    assert_eq!(layout(&fs, inode).await.slots_next, 4, "names of objects are not used twice");
}

#[tokio::test]
async fn a_layout_is_replaced_before_the_first_opening_for_writing_only() {
    let fs = Fixture::new().await;
    let wide = || LayoutChange::Replace(LayoutSpec::Composite(vec![striped(MIB, 1), striped(END_OF_FILE, 4)]));
    let inode = fs.file(ROOT, "fresh").await;
    let reader = fs.open(ALICE, &root(), inode, READ).await.unwrap().0;
    assert_eq!(change(&fs, inode, wide()).await, Err(FsError::Busy));
    fs.close(ALICE, inode, reader, None).await.unwrap();
    let before = layout(&fs, inode).await.generation;
    change(&fs, inode, wide()).await.unwrap();
    let replaced = layout(&fs, inode).await;
    assert_eq!(replaced.components.len(), 2);
    assert!(replaced.generation > before);
    let writer = fs.open(ALICE, &root(), inode, WRITE).await.unwrap().0;
    assert_eq!(change(&fs, inode, wide()).await, Err(FsError::Exists));
    fs.close(ALICE, inode, writer, None).await.unwrap();
    assert_eq!(change(&fs, inode, wide()).await, Err(FsError::Exists));
}

#[tokio::test]
async fn changes_need_write_permission_and_pools_that_exist() {
    let fs = Fixture::new().await;
    let inode = file(&fs, "f", vec![striped(MIB, 1)], None).await;
    let request = MdtRequest::ChangeLayout(user(7), inode, LayoutChange::Add(vec![striped(2 * MIB, 1)]));
    assert_eq!(fs.call(ALICE, request).await.unwrap_err(), FsError::AccessDenied);
    let pool = StripeSpec { pool: Some("nopool".to_owned()), ..StripeSpec::default() };
    let add = LayoutChange::Add(vec![ComponentSpec { end: 2 * MIB, backing: BackingSpec::Striped(pool) }]);
    assert_eq!(change(&fs, inode, add).await, Err(Refusal::UnknownPool("nopool".to_owned()).into()));
}

/// New files begin with the first epoch of their era, which is not 0 after a power loss.
#[tokio::test]
async fn a_layout_is_replaced_after_a_loss_of_power_too() {
    let (mut fs, _osts) = with_osts(2).await;
    fs.lose_power().await;
    fs.recover().await;
    let inode = file(&fs, "f", vec![striped(END_OF_FILE, 1)], None).await;
    change(&fs, inode, LayoutChange::Replace(LayoutSpec::Composite(vec![striped(MIB, 2)]))).await.unwrap();
    assert_eq!(layout(&fs, inode).await.end(), MIB);
}

/// What a directory gives goes by the limit of today; only what somebody asks for now is refused.
#[tokio::test]
async fn a_directory_gives_as_much_on_the_mdt_as_may_lie_there_now() {
    const ON_MDT: u64 = 2 * 65536;
    let fs = Fixture::new().await;
    assert_eq!(fs.mdt.bytes_on_mdt_limit(), ON_MDT, "of a small store");
    let on_mdt = ComponentSpec { end: ON_MDT, backing: BackingSpec::Mdt };
    let asked = LayoutSpec::Composite(vec![on_mdt.clone(), striped(END_OF_FILE, 2)]);
    let directory = fs.mkdir(ROOT, "d").await;
    let set = MdtRequest::SetDefaultLayout(root(), directory, Some(asked.clone()));
    assert_eq!(fs.call(ALICE, set).await, Ok(MdtReply::Done));
    let alone = fs.mkdir(ROOT, "alone").await;
    let set = MdtRequest::SetDefaultLayout(root(), alone, Some(LayoutSpec::Composite(vec![on_mdt])));
    assert_eq!(fs.call(ALICE, set).await, Ok(MdtReply::Done));
    // Limit -> how much is on the MDT.
    for (bytes_on_mdt_max, expected) in [(ON_MDT, ON_MDT), (100_000, 65536), (65536, 65536), (65535, 0), (0, 0)] {
        fs.mdt.set_parameters(Parameters { bytes_on_mdt_max, ..fs.mdt.parameters() });
        for (parent, end) in [(directory, END_OF_FILE), (alone, ON_MDT)] {
            let made = layout(&fs, fs.file(parent, &format!("f{bytes_on_mdt_max}")).await).await;
            assert_eq!(made.validate(), Ok(()));
            let is_on_mdt = |one: &&Component| matches!(one.backing, Backing::Mdt { .. });
            let bytes: u64 = made.components.iter().filter(is_on_mdt).map(|one| one.extent.end).sum();
            assert_eq!((bytes, made.end()), (expected, end), "of {bytes_on_mdt_max}");
        }
        let request = create_request(ROOT, &format!("f{bytes_on_mdt_max}"), NodeKind::Regular, 0o644, None);
        let request = MdtRequest::Create(root(), Create { layout: Some(asked.clone()), ..request });
        let refused = fs.call(ALICE, request).await.err();
        assert_eq!(refused, (bytes_on_mdt_max < ON_MDT).then_some(FsError::Invalid), "asked for now");
    }
}
