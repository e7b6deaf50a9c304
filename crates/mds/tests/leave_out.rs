//! Ranges of components whose OSTs are full: who may leave them out, what is fenced before, and
//! what other clients wait for.

use crate::common;

use std::{sync::Arc, time::Duration};

use common::{ALICE, BOB, Fixture, READ, ROOT, WRITE, done, eventually, ost::NotingOst, root};
use layout::{Backing, ComponentId, Extent, Layout, Location};
use rpc::{
    SessionEvent,
    message::{
        LeaveFullOst, LeaveStep, MdtReply, MdtRequest,
        mdt::{
            ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, Instantiate, LayoutInfo, Open, OpenFlags, OpenId, Reclaim,
        },
    },
};
use rt::memory::{JumpingClock, MemoryTransport};
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

/// An MDT with OSTs that do as they are told, and never say how much space they have.
async fn with_osts(count: u16) -> (Fixture, Arc<NotingOst>) {
    let network = MemoryTransport::new();
    let (ost, map) = NotingOst::serve_as(&network, count);
    std::mem::forget(ost.hold.try_lock().expect("nobody asks yet"));
    (Fixture::on_network(&network, map).await, ost)
}

fn request(file: &File, step: LeaveStep) -> LeaveFullOst {
    LeaveFullOst { inode: file.inode, open: file.open, generation: file.layout.generation, step }
}

async fn leave(fs: &Fixture, request: LeaveFullOst) -> FsResult<Layout> {
    fs.call(ALICE, MdtRequest::LeaveFullOst(request)).await.map(layout_in)
}

/// The file after the fence at the component with this byte.
async fn fence(fs: &Fixture, file: &File, offset: u64) -> FsResult<File> {
    let component = file.layout.component_at(offset).expect("within the layout").id;
    let layout = leave(fs, request(file, LeaveStep::Fence(component))).await?;
    assert_eq!((layout.generation, &layout.components), (file.layout.generation.next(), &file.layout.components));
    Ok(File { inode: file.inode, open: file.open, layout })
}

/// Both steps.
async fn leave_out(fs: &Fixture, file: &File, hole: Extent) -> FsResult<Layout> {
    let file = fence(fs, file, hole.start).await?;
    let component = file.layout.component_at(hole.start).expect("within the layout").id;
    leave(fs, request(&file, LeaveStep::LeaveOut(component, hole))).await
}

async fn ask_layout(fs: &Fixture, client: ClientId, file: &File) -> MdtReply {
    fs.call(client, MdtRequest::GetLayout(file.inode)).await.unwrap()
}

#[tokio::test]
async fn a_part_is_left_out_by_the_holder_of_the_lock_alone() {
    let (mut fs, ost) = with_osts(4).await;
    let file = file(&fs).await;
    let component = file.layout.components[1].id;
    let good = request(&file, LeaveStep::Fence(component));
    assert_eq!(leave(&fs, good.clone()).await, Err(FsError::NoLocks));
    lock(&fs, &file).await;
    for wrong in [ComponentId(77), file.layout.components[0].id, file.layout.components[2].id] {
        assert_eq!(leave(&fs, request(&file, LeaveStep::Fence(wrong))).await, Err(FsError::Invalid), "{wrong:?}");
    }
    assert_eq!(leave(&fs, LeaveFullOst { open: OpenId(99), ..good.clone() }).await, Err(FsError::BadHandle));
    let old = LeaveFullOst { generation: Generation(1), ..good };
    assert_eq!(leave(&fs, old).await.as_ref(), Ok(&file.layout), "the layout is another one: here it is");
    let hole = Extent { start: 2 * MIB, end: 3 * MIB };
    let unfenced = request(&file, LeaveStep::LeaveOut(component, hole));
    assert_eq!(leave(&fs, unfenced).await, Err(FsError::WouldBlock));
    assert_eq!(*ost.fenced.lock(), []);

    let end = file.layout.components[1].extent.end;
    let mut file = file;
    for (component, (start, end)) in [
        (ComponentId(77), (2 * MIB, 3 * MIB)),
        (file.layout.components[0].id, (0, 4096)),
        (file.layout.components[2].id, (end, end + 4096)),
        (component, (2 * MIB, 2 * MIB)),
        (component, (2 * MIB + 1, 3 * MIB)),
        (component, (2 * MIB, 3 * MIB - 1)),
        (component, (0, 3 * MIB)),
        (component, (3 * MIB, end + 4096)),
    ] {
        file = fence(&fs, &file, 2 * MIB).await.unwrap();
        let wrong = LeaveStep::LeaveOut(component, Extent { start, end });
        assert_eq!(leave(&fs, request(&file, wrong.clone())).await, Err(FsError::Invalid), "{wrong:?}");
        let MdtReply::Layout(_) = ask_layout(&fs, ALICE, &file).await else { panic!("the change has ended") };
    }
    let fenced = fence(&fs, &file, 2 * MIB).await.unwrap();
    let slot = file.layout.components[1].slots().start;
    assert_eq!(ost.fenced.lock().last(), Some(&(file.layout.object(file.inode, slot), fenced.layout.generation.0)));
    assert!(matches!(file.layout.location(slot), Some(Location::Ost(_))));
    let parts = leave(&fs, request(&fenced, LeaveStep::LeaveOut(component, hole))).await.unwrap();
    assert_eq!(parts.generation, fenced.layout.generation.next());
    let extents: Vec<_> = parts.components.iter().map(|component| component.extent.start).collect();
    assert_eq!(extents, [0, 64 << 10, 2 * MIB, 3 * MIB, end]);
    assert_eq!(parts.components[3].slots(), parts.components[1].slots());
    let again = request(&fenced, LeaveStep::LeaveOut(component, hole));
    assert_eq!(leave(&fs, again).await.as_ref(), Ok(&parts), "asked again, the same");
    fs.lose_power().await;
    fs.recover().await;
    assert_eq!(layout_in(ask_layout(&fs, ALICE, &file).await), parts, "durable when it was answered");
}

#[tokio::test]
async fn a_file_takes_a_bounded_number_of_parts() {
    let (fs, _ost) = with_osts(4).await;
    let mut file = file(&fs).await;
    lock(&fs, &file).await;
    let mut parts = 0;
    let refused = loop {
        let start = ((2 + 2 * parts) * 64) << 10;
        match leave_out(&fs, &file, Extent { start, end: start + (64 << 10) }).await {
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
    let (fs, _ost) = with_osts(200).await;
    let wide = 20 << 30;
    let mut file = file(&fs).await;
    let grow = async |file: &File, start: u64| {
        let (inode, open) = (file.inode, file.open);
        let instantiate = MdtRequest::Instantiate(Instantiate { inode, open, start, end: start + 1 });
        fs.call(ALICE, instantiate).await.map(layout_in)
    };
    file.layout = grow(&file, wide).await.unwrap();
    assert_eq!(file.layout.component_at(wide).unwrap().slots().len(), 200);
    lock(&fs, &file).await;
    let mut parts = Vec::new();
    let refused = loop {
        let start = wide + (2 * parts.len() as u64) * 4 * MIB;
        match leave_out(&fs, &file, Extent { start, end: start + 4 * MIB }).await {
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
async fn nobody_is_shown_a_layout_that_is_being_changed() {
    let (fs, _ost) = with_osts(4).await;
    fs.begin(BOB).await;
    let file = file(&fs).await;
    let (theirs, _) = fs.open(BOB, &root(), file.inode, READ | WRITE).await.unwrap();
    lock(&fs, &file).await;
    assert_eq!(layout_in(ask_layout(&fs, BOB, &file).await), file.layout, "not yet");
    let fenced = fence(&fs, &file, 2 * MIB).await.unwrap();
    let open = Open { inode: file.inode, open: OpenId(700), flags: OpenFlags(READ) };
    let grow = Instantiate { inode: file.inode, open: theirs, start: 1 << 40, end: (1 << 40) + 1 };
    for client in [BOB, ALICE] {
        assert_eq!(ask_layout(&fs, client, &file).await, MdtReply::Waiting, "{client:?}");
        assert_eq!(fs.call(client, MdtRequest::Open(root(), open.clone())).await, Ok(MdtReply::Waiting), "{client:?}");
    }
    assert_eq!(fs.call(BOB, MdtRequest::Instantiate(grow)).await, Ok(MdtReply::Waiting));
    let (component, hole) = (file.layout.components[1].id, Extent { start: 2 * MIB, end: 3 * MIB });
    let parts = leave(&fs, request(&fenced, LeaveStep::LeaveOut(component, hole))).await.unwrap();
    assert_eq!(layout_in(ask_layout(&fs, BOB, &file).await), parts, "nothing to wait for");
    assert!(matches!(fs.call(BOB, MdtRequest::Open(root(), open.clone())).await, Ok(MdtReply::Opened(_))));
    unlock(&fs, &file).await;
}

/// Whatever happens to the client that had the objects fenced, the layout is the one that they
/// take.
#[tokio::test]
async fn a_change_that_is_not_made_holds_nobody_up() {
    let (mut fs, ost) = with_osts(4).await;
    fs.begin(BOB).await;
    let mut file = file(&fs).await;
    let shown = async |fs: &Fixture, file: &File| {
        let layout = layout_in(ask_layout(fs, BOB, file).await);
        assert_eq!(ost.fenced.lock().last().map(|(_, generation)| *generation), Some(layout.generation.0));
        assert_eq!(layout, file.layout);
    };
    lock(&fs, &file).await;
    file = fence(&fs, &file, 2 * MIB).await.unwrap();
    unlock(&fs, &file).await;
    shown(&fs, &file).await;

    lock(&fs, &file).await;
    file = fence(&fs, &file, 2 * MIB).await.unwrap();
    let component = file.layout.components[1].id;
    let old = LeaveFullOst { generation: Generation(1), ..request(&file, LeaveStep::Fence(component)) };
    assert_eq!(leave(&fs, old).await.as_ref(), Ok(&file.layout));
    shown(&fs, &file).await;
    unlock(&fs, &file).await;

    lock(&fs, &file).await;
    file = fence(&fs, &file, 2 * MIB).await.unwrap();
    fs.lose_power().await;
    fs.recover().await;
    fs.reclaim(BOB, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    shown(&fs, &file).await;
    let hole = LeaveStep::LeaveOut(component, Extent { start: 2 * MIB, end: 3 * MIB });
    assert_eq!(leave(&fs, request(&file, hole)).await, Err(FsError::BadHandle), "its opens are gone");

    let (open, opened) = fs.open(ALICE, &root(), file.inode, WRITE).await.unwrap();
    let file = File { open, layout: opened.layout.unwrap(), ..file };
    lock(&fs, &file).await;
    let file = fence(&fs, &file, 2 * MIB).await.unwrap();
    assert_eq!(ask_layout(&fs, BOB, &file).await, MdtReply::Waiting);
    fs.event(SessionEvent::Closed(ALICE)).await;
    shown(&fs, &file).await;
}

/// A client that goes on renewing its lease must not keep a file closed to all others.
#[tokio::test]
async fn a_change_that_takes_too_long_ends() {
    let (mut fs, _ost) = with_osts(4).await;
    let clock = JumpingClock::default();
    fs.seams.clock = Arc::new(clock.clone());
    fs.restart_and_recover().await;
    fs.begin(BOB).await;
    let file = file(&fs).await;
    lock(&fs, &file).await;
    let file = fence(&fs, &file, 2 * MIB).await.unwrap();
    assert_eq!(ask_layout(&fs, BOB, &file).await, MdtReply::Waiting);
    let continues = async || {
        clock.jump(Duration::from_secs(5));
        ask_layout(&fs, BOB, &file).await != MdtReply::Waiting
    };
    eventually("others continue", continues).await;
    let hole = Extent { start: 2 * MIB, end: 3 * MIB };
    let component = file.layout.components[1].id;
    let late = leave(&fs, request(&file, LeaveStep::LeaveOut(component, hole))).await;
    assert_eq!(late, Err(FsError::WouldBlock), "others may have written there");
    assert!(leave_out(&fs, &file, hole).await.is_ok(), "once more from the beginning");
}

/// Only the client that makes the change sees the layout meanwhile.
#[tokio::test]
async fn another_writer_waits_for_the_change() {
    let (fs, _ost) = with_osts(4).await;
    fs.begin(BOB).await;
    let file = file(&fs).await;
    let (theirs, _) = fs.open(BOB, &root(), file.inode, READ | WRITE).await.unwrap();
    lock(&fs, &file).await;
    fence(&fs, &file, 2 * MIB).await.unwrap();
    let component = file.layout.components[1].id;
    let old = LeaveFullOst { open: theirs, ..request(&file, LeaveStep::Fence(component)) };
    assert_eq!(fs.call(BOB, MdtRequest::LeaveFullOst(old)).await, Ok(MdtReply::Waiting));
}
