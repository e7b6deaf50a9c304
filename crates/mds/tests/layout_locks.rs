//! The lock on a layout: it comes with every reply that shows the layout, and a change of the
//! layout waits until all others have given it back.

use crate::common;

use std::sync::Arc;

use common::{caching::*, *};
use layout::{Coverage, Layout};
use rpc::message::{
    MdtReply, MdtRequest, RequestExtension,
    lock::inode_bit::*,
    mdt::{
        Close, DataVersion, ExclusiveBegin, ExclusivePurpose, Instantiate, LayoutInfo, Open, OpenFlags, OpenId,
        SizeUpdate, SwapLayouts, SwapSide, Unlink,
    },
};
use types::{ClientId, InodeNumber, NodeKind};

const MIB: u64 = 1 << 20;
/// After the first component of an automatic layout.
const GROWING: u64 = 64 * MIB;

struct File {
    test: Arc<Test>,
    inode: InodeNumber,
    open: OpenId,
    /// The write epoch of that open.
    epoch: u64,
}

impl File {
    /// ALICE writes it and has the lock on its layout.
    async fn new() -> File {
        let test = Test::new().await;
        let create = create_request(ROOT, "file", NodeKind::Regular, 0o644, Some((OpenId(1), OpenFlags(WRITE))));
        let (reply, granted) = test.asking(ALICE, MdtRequest::Create(root(), create), ROOT, LAYOUT).await;
        let MdtReply::Created(created) = reply else { panic!("{reply:?}") };
        let inode = created.entry.attributes.inode;
        assert_eq!(resources(&granted), [(inode, LAYOUT)]);
        let epoch = created.opened.expect("it was opened").epoch;
        File { test, inode, open: OpenId(1), epoch }
    }

    fn growth(&self) -> MdtRequest {
        let Self { inode, open, .. } = *self;
        MdtRequest::Instantiate(Instantiate { inode, open, start: GROWING, end: GROWING + 1 })
    }

    /// The layout, and the parts that come with it.
    async fn layout(&self, client: ClientId) -> (Layout, u32) {
        let (reply, granted) = self.test.asking(client, MdtRequest::GetLayout(self.inode), self.inode, ALL).await;
        let MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) = reply else { panic!("{reply:?}") };
        (layout, resources(&granted).iter().fold(0, |bits, (_, more)| bits | more))
    }

    async fn is_grown(&self, client: ClientId) -> bool {
        self.layout(client).await.0.coverage(GROWING, 1) == Coverage::Complete
    }
}

#[tokio::test]
async fn it_comes_with_replies_that_show_the_layout() {
    let File { test, inode, open, .. } = File::new().await;
    let open_for = |flags| MdtRequest::Open(root(), Open { inode, open: OpenId(2), flags: OpenFlags(flags) });
    let of = |granted: Vec<_>| resources(&granted).iter().fold(0, |bits, (_, more)| bits | more);
    assert_eq!(of(test.wanting(BOB, open_for(READ), inode, LAYOUT | OPEN).await), LAYOUT | OPEN);
    assert_eq!(of(test.wanting(CAROL, open_for(WRITE), inode, ALL).await) & LAYOUT, LAYOUT);
    test.holders.heard_so_far();
    let begin = ExclusiveBegin { inode, open: Some(open), purpose: ExclusivePurpose::Append };
    let granted = test.wanting(ALICE, MdtRequest::ExclusiveBegin(root(), begin), inode, LAYOUT).await;
    assert_eq!(of(granted), 0, "ALICE has it since the creation");
    assert_eq!(of(test.wanting(CAROL, MdtRequest::GetLayout(ROOT), ROOT, ALL).await), 0, "a directory has none");
}

#[tokio::test]
async fn growth_is_not_visible_before_others_gave_it_back() {
    let file = File::new().await;
    let test = &file.test;
    assert_eq!(file.layout(BOB).await.1, LAYOUT);
    assert_eq!(file.layout(CAROL).await.1, LAYOUT);
    let growth = test.begin(file.growth());
    let mut asked = test.holders.heard(2).await;
    asked.sort_by_key(|(client, _)| *client);
    assert_eq!(asked.iter().map(|(client, _)| *client).collect::<Vec<_>>(), [BOB, CAROL]);
    test.cancel(BOB, vec![asked[0].1.handle]).await;
    assert!(!growth.is_finished());
    assert!(!file.is_grown(BOB).await, "nobody sees it");
    assert_eq!(file.layout(BOB).await.1, 0, "nor gets a lock on what is about to change");
    test.cancel(CAROL, vec![asked[1].1.handle]).await;
    growth.await.unwrap().unwrap();
    assert_eq!(file.layout(BOB).await.1, LAYOUT);
    assert!(file.is_grown(BOB).await && file.is_grown(CAROL).await);
    assert_eq!(file.layout(ALICE).await.1, 0, "the client that changes it keeps its lock");
}

#[tokio::test]
async fn a_write_that_needs_no_growth_asks_for_nothing() {
    let file = File::new().await;
    file.test.fs.call(ALICE, file.growth()).await.unwrap();
    assert_eq!(file.layout(BOB).await.1, LAYOUT);
    file.test.fs.call(ALICE, file.growth()).await.unwrap();
    assert_eq!(file.test.holders.heard_so_far(), 0);
}

#[tokio::test]
async fn an_unnamed_file_is_without() {
    let file = File::new().await;
    let unlink = Unlink { parent: ROOT, name: b"file".to_vec(), directory: false };
    let (reply, _) = file.test.send(ALICE, MdtRequest::Unlink(root(), unlink), RequestExtension::default()).await;
    reply.unwrap();
    assert_eq!(file.layout(BOB).await.1, 0);
    file.test.fs.call(ALICE, file.growth()).await.unwrap();
    assert!(file.is_grown(BOB).await);
}

/// As a migration does: the copy is made in a file that only the tool has open.
#[tokio::test]
async fn a_swap_is_not_visible_before_others_gave_it_back() {
    let file = File::new().await;
    let test = &file.test;
    let update = SizeUpdate { epoch: file.epoch, size: 0, blocks: 0, mtime: None, changes: 0 };
    let close = Close { inode: file.inode, open: file.open, update: Some(update), flock_owner: None };
    test.fs.call(ALICE, MdtRequest::Close(close)).await.unwrap();
    let other = test.fs.file(ROOT, "other").await;
    let before = file.layout(BOB).await;
    assert_eq!(before.1, LAYOUT);
    let epoch = |inode| async move {
        let version = DataVersion { inode, hold_writers: None };
        match test.fs.call(ALICE, MdtRequest::DataVersion(root(), version)).await.unwrap() {
            MdtReply::Version(epoch) => epoch,
            reply => panic!("{reply:?}"),
        }
    };
    let side = |inode, epoch| SwapSide {
        inode,
        open: None,
        known: SizeUpdate { epoch, size: 0, blocks: 0, mtime: None, changes: 0 },
    };
    let swap =
        SwapLayouts { first: side(file.inode, epoch(file.inode).await), second: side(other, epoch(other).await) };
    let swap = test.begin(MdtRequest::SwapLayouts(root(), swap));
    let (client, blocking) = test.holders.heard(1).await.remove(0);
    assert_eq!(client, BOB);
    assert!(!swap.is_finished());
    assert_eq!(file.layout(BOB).await, (before.0.clone(), 0), "nobody sees it");
    test.cancel(BOB, vec![blocking.handle]).await;
    swap.await.unwrap().unwrap();
    let (after, bits) = file.layout(BOB).await;
    assert_eq!((after.named_by, bits), (Some(other), LAYOUT));
}
