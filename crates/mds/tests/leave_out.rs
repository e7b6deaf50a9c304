//! Ranges of components whose OSTs are full: who may leave them out, and what clients refused by a
//! fence wait for.

use crate::common;

use common::{ALICE, BOB, Fixture, READ, ROOT, WRITE, absent_osts, done, root};
use layout::{Backing, ComponentId, Extent, Layout};
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, Instantiate, LayoutInfo, LeaveOut, OpenId, RenewLayout},
};
use types::{ClientId, FsError, FsResult, Generation, InodeNumber};

const MIB: u64 = 1 << 20;

struct File {
    inode: InodeNumber,
    open: OpenId,
    layout: Layout,
}

fn layout_in(reply: MdtReply) -> Layout {
    let MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) = reply else { panic!("{reply:?}") };
    layout.validate().expect("a layout stays valid");
    layout
}

/// A file of ALICE whose second component has an object.
async fn file(fs: &Fixture) -> File {
    let (open, created) = fs.create_open(ALICE, ROOT, "f", WRITE).await.unwrap();
    let inode = created.entry.attributes.inode;
    let request = Instantiate { inode, open, start: MIB, end: MIB + 1 };
    let layout = layout_in(fs.call(ALICE, MdtRequest::Instantiate(request)).await.unwrap());
    assert!(matches!(layout.components[1].backing, Backing::Striped { .. }), "{layout:?}");
    File { inode, open, layout }
}

async fn lock(fs: &Fixture, file: &File) {
    let begin = ExclusiveBegin { inode: file.inode, open: Some(file.open), purpose: ExclusivePurpose::Append };
    let granted = fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap();
    assert!(matches!(granted, MdtReply::ExclusiveGranted(_)));
}

async fn unlock(fs: &Fixture, file: &File) {
    let end = ExclusiveEnd { inode: file.inode, update: None };
    done(fs.call(ALICE, MdtRequest::ExclusiveEnd(end)).await.unwrap()).unwrap();
}

fn request(file: &File, start: u64, end: u64) -> LeaveOut {
    let File { inode, open, layout } = file;
    let component = layout.components[1].id;
    LeaveOut { inode: *inode, open: *open, generation: layout.generation, component, hole: Extent { start, end } }
}

async fn leave_out(fs: &Fixture, request: LeaveOut) -> FsResult<Layout> {
    fs.call(ALICE, MdtRequest::LeaveOut(request)).await.map(layout_in)
}

async fn renew(fs: &Fixture, client: ClientId, file: &File, exclusive: bool) -> MdtReply {
    let renew = RenewLayout { inode: file.inode, generation: file.layout.generation, exclusive };
    fs.call(client, MdtRequest::RenewLayout(renew)).await.unwrap()
}

#[tokio::test]
async fn a_part_is_left_out_by_the_holder_of_the_lock_alone() {
    let mut fs = Fixture::with_osts(absent_osts(4)).await;
    let file = file(&fs).await;
    let good = request(&file, 2 * MIB, 3 * MIB);
    assert_eq!(leave_out(&fs, good).await, Err(FsError::NoLocks));
    lock(&fs, &file).await;
    let end = file.layout.components[1].extent.end;
    for wrong in [
        LeaveOut { component: ComponentId(77), ..good },
        LeaveOut { component: file.layout.components[0].id, ..request(&file, 0, 4096) },
        LeaveOut { component: file.layout.components[2].id, ..request(&file, end, end + 4096) },
        request(&file, 2 * MIB, 2 * MIB),
        request(&file, 2 * MIB + 1, 3 * MIB),
        request(&file, 2 * MIB, 3 * MIB - 1),
        request(&file, 0, 3 * MIB),
        request(&file, 3 * MIB, end + 4096),
    ] {
        assert_eq!(leave_out(&fs, wrong).await, Err(FsError::Invalid), "{wrong:?}");
    }
    assert_eq!(leave_out(&fs, LeaveOut { open: OpenId(99), ..good }).await, Err(FsError::BadHandle));
    let old = LeaveOut { generation: Generation(1), ..good };
    assert_eq!(leave_out(&fs, old).await.as_ref(), Ok(&file.layout), "the layout is another one: here it is");

    let parts = leave_out(&fs, good).await.unwrap();
    assert_eq!(parts.generation, file.layout.generation.next());
    let extents: Vec<_> = parts.components.iter().map(|component| component.extent.start).collect();
    assert_eq!(extents, [0, 64 << 10, 2 * MIB, 3 * MIB, end]);
    assert_eq!(parts.components[3].slots(), parts.components[1].slots());
    assert_eq!(leave_out(&fs, good).await.as_ref(), Ok(&parts), "asked again, the same");
    fs.lose_power().await;
    fs.recover().await;
    let MdtReply::Layout(found) = fs.call(ALICE, MdtRequest::GetLayout(file.inode)).await.unwrap() else { panic!() };
    assert_eq!(found.layout, Some(parts), "durable when it was answered");
}

#[tokio::test]
async fn a_file_takes_a_bounded_number_of_parts() {
    let fs = Fixture::with_osts(absent_osts(4)).await;
    let mut file = file(&fs).await;
    lock(&fs, &file).await;
    let mut parts = 0;
    let refused = loop {
        let start = ((2 + 2 * parts) * 64) << 10;
        let position =
            file.layout.components.iter().position(|one| one.extent.start <= start && start < one.extent.end);
        let component = file.layout.components[position.expect("within the layout")].id;
        match leave_out(&fs, LeaveOut { component, ..request(&file, start, start + (64 << 10)) }).await {
            Ok(layout) => file.layout = layout,
            Err(error) => break error,
        }
        parts += 1;
    };
    assert_eq!((refused, parts > 100), (FsError::NoSpace, true), "{parts}");
    // Any growth still fits.
    for shift in 20..63 {
        let (inode, open, start) = (file.inode, file.open, 1u64 << shift);
        let instantiate = MdtRequest::Instantiate(Instantiate { inode, open, start, end: start + 1 });
        layout_in(fs.call(ALICE, instantiate).await.unwrap());
    }
}

/// Of many stripes, far fewer components fit into the inode's record than a layout can have.
#[tokio::test]
async fn parts_of_wide_components_are_left_out_as_long_as_they_fit_the_record() {
    let fs = Fixture::with_osts(absent_osts(1000)).await;
    let wide = 20 << 30;
    let mut file = file(&fs).await;
    let grow = async |file: &File, start: u64| {
        let (inode, open) = (file.inode, file.open);
        let instantiate = MdtRequest::Instantiate(Instantiate { inode, open, start, end: start + 1 });
        fs.call(ALICE, instantiate).await.map(layout_in)
    };
    file.layout = grow(&file, wide).await.unwrap();
    assert_eq!(file.layout.component_at(wide).unwrap().slots().len(), 1000);
    lock(&fs, &file).await;
    let mut parts = Vec::new();
    let refused = loop {
        let start = wide + (2 * parts.len() as u64) * 4 * MIB;
        let component = file.layout.component_at(start).expect("within the layout").id;
        match leave_out(&fs, LeaveOut { component, ..request(&file, start, start + 4 * MIB) }).await {
            Ok(layout) => file.layout = layout,
            Err(error) => break error,
        }
        parts.push(start);
    };
    assert_eq!((refused, parts.len() > 10), (FsError::NoSpace, true), "{}", parts.len());
    // Any growth still fits.
    for start in parts.into_iter().chain((20..63).map(|shift| 1 << shift)) {
        assert!(grow(&file, start).await.is_ok(), "{start}");
    }
}

#[tokio::test]
async fn who_is_refused_waits_for_the_holder_or_counts_on() {
    let fs = Fixture::with_osts(absent_osts(4)).await;
    fs.begin(BOB).await;
    let file = file(&fs).await;
    fs.open(BOB, &root(), file.inode, READ).await.unwrap();
    lock(&fs, &file).await;
    assert_eq!(renew(&fs, BOB, &file, false).await, MdtReply::Waiting);
    assert_eq!(renew(&fs, ALICE, &file, false).await, MdtReply::Waiting, "another user of the client that holds it");
    assert_eq!(renew(&fs, BOB, &file, true).await, MdtReply::Waiting, "it does not hold it");
    let parts = leave_out(&fs, request(&file, 2 * MIB, 3 * MIB)).await.unwrap();
    assert_eq!(layout_in(renew(&fs, BOB, &file, false).await), parts, "nothing to wait for");
    unlock(&fs, &file).await;

    let file = File { layout: parts, ..file };
    let next = layout_in(renew(&fs, BOB, &file, false).await);
    assert_eq!(next, Layout { generation: file.layout.generation.next(), ..file.layout.clone() });
    assert_eq!(layout_in(renew(&fs, ALICE, &file, false).await), next, "once for all");
    let file = File { layout: next, ..file };
    lock(&fs, &file).await;
    let own = layout_in(renew(&fs, ALICE, &file, true).await);
    assert_eq!(own.generation, file.layout.generation.next());
}
