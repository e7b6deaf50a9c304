//! Layouts that grow: automatic ones according to the writers and the space of the OSTs,
//! self-extending ones in steps.

use crate::common;

use std::{sync::Arc, time::Duration};

use common::{ALICE, BOB, Fixture, ROOT, WRITE, absent_osts, create_request, eventually, ost::NotingOst, root};
use layout::{
    BackingSpec, ComponentSpec, Coverage, END_OF_FILE, Layout, LayoutSpec, Location, StripeCount, StripeSpec,
    automatic::is_automatic,
};
use mds::Parameters;
use rpc::message::{
    MdtReply, MdtRequest,
    mdt::{ExclusiveBegin, ExclusiveEnd, ExclusivePurpose, Instantiate, LayoutInfo, OpenFlags, OpenId},
};
use rt::memory::MemoryTransport;
use types::{ClientId, FsError, InodeNumber, NodeKind, OstIndex, limits::FILE_BYTES_MAX};

const MIB: u64 = 1 << 20;

async fn with_osts(count: u16) -> Fixture {
    let fs = Fixture::with_osts(absent_osts(count)).await;
    keep_off_mdt(&fs);
    fs
}

/// Files have an object from the start.
fn keep_off_mdt(fs: &Fixture) {
    fs.mdt.set_parameters(Parameters { bytes_on_mdt_max: 0, ..fs.mdt.parameters() });
}

async fn new_file(fs: &Fixture, name: &str) -> (InodeNumber, OpenId, Layout) {
    let (open, created) = fs.create_open(ALICE, ROOT, name, WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    (opened.entry.attributes.inode, open, opened.layout.unwrap())
}

/// Asks for objects at `offset`.
async fn write(fs: &Fixture, client: ClientId, inode: InodeNumber, open: OpenId, offset: u64) -> Layout {
    let request = Instantiate { inode, open, start: offset, end: offset + 1 };
    let MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) =
        fs.call(client, MdtRequest::Instantiate(request)).await.unwrap()
    else {
        panic!("an instantiation is answered with the layout")
    };
    assert_eq!((layout.validate(), layout.coverage(offset, 1)), (Ok(()), Coverage::Complete));
    layout
}

/// Ends in MiB and counts of the components with objects.
fn shape(layout: &Layout) -> Vec<(u64, usize)> {
    let striped = layout.components.iter().filter(|component| component.is_instantiated());
    striped.map(|component| (component.extent.end / MIB, component.slots().len())).collect()
}

#[tokio::test]
async fn a_file_grows_through_the_watermarks() {
    let mut fs = with_osts(8).await;
    let (inode, open, created) = new_file(&fs, "f").await;
    assert_eq!(shape(&created), [(4, 1)]);
    let grown = write(&fs, ALICE, inode, open, 4 * MIB).await;
    assert_eq!(shape(&grown), [(64, 1)]);
    assert_eq!(grown.location(0), created.location(0), "the same object");
    assert!(grown.generation > created.generation);
    let again = write(&fs, ALICE, inode, open, 63 * MIB).await;
    assert_eq!(again, grown, "nothing was needed");
    let wide = write(&fs, ALICE, inode, open, 64 * MIB).await;
    assert_eq!(shape(&wide), [(64, 1), (1024, 4)]);
    let wider = write(&fs, ALICE, inode, open, 1024 * MIB).await;
    assert_eq!(shape(&wider), [(64, 1), (1024, 4), (16 << 10, 8)], "all there are");
    assert!(is_automatic(&wider));
    fs.restart_and_recover().await;
    let MdtReply::Layout(info) = fs.call(ALICE, MdtRequest::GetLayout(inode)).await.unwrap() else { panic!() };
    assert_eq!(info.layout, Some(wider));
}

/// No component can be cut there: the MDT once looked for one forever.
#[tokio::test]
async fn no_objects_are_given_for_nothing_or_behind_the_largest_file() {
    let fs = with_osts(8).await;
    let (inode, open, created) = new_file(&fs, "f").await;
    let ask = |start: u64, end: u64| fs.call(ALICE, MdtRequest::Instantiate(Instantiate { inode, open, start, end }));
    let last_end = FILE_BYTES_MAX.next_multiple_of(4 * MIB);
    for (start, end) in [
        (last_end, last_end + 1),
        (last_end + MIB, last_end + MIB + 1),
        (0, u64::MAX),
        (u64::MAX - 1, u64::MAX),
        (FILE_BYTES_MAX, FILE_BYTES_MAX + 1),
    ] {
        assert_eq!(ask(start, end).await, Err(FsError::FileTooLarge), "{start} {end}");
    }
    for (start, end) in [(7, 7), (8, 7), (u64::MAX, 0)] {
        assert_eq!(ask(start, end).await, Err(FsError::Invalid), "{start} {end}");
    }
    let MdtReply::Layout(info) = fs.call(ALICE, MdtRequest::GetLayout(inode)).await.unwrap() else { panic!() };
    assert_eq!(info.layout, Some(created));
    write(&fs, ALICE, inode, open, FILE_BYTES_MAX - 1).await;
}

#[tokio::test]
async fn a_file_that_several_clients_write_goes_wide_behind_its_beginning() {
    let fs = with_osts(8).await;
    fs.begin(BOB).await;
    let (inode, first, created) = new_file(&fs, "f").await;
    assert_eq!(shape(&created), [(4, 1)]);
    for _ in 0..5 {
        fs.open(BOB, &root(), inode, WRITE).await.unwrap();
    }
    assert_eq!(shape(&write(&fs, ALICE, inode, first, 5 * MIB).await), [(4, 1), (64, 8)]);
}

#[tokio::test]
async fn files_that_are_written_at_a_time_stay_narrow() {
    let fs = with_osts(8).await;
    let mut files = Vec::new();
    for name in 0..8 {
        files.push(new_file(&fs, &name.to_string()).await);
    }
    let (inode, open, _) = files[0];
    assert_eq!(shape(&write(&fs, ALICE, inode, open, 63 * MIB).await), [(64, 1)]);
    assert_eq!(shape(&write(&fs, ALICE, inode, open, 2048 * MIB).await).last(), Some(&(16 << 10, 1)));
    for (inode, open, _) in &files[1..] {
        fs.close(ALICE, *inode, *open, None).await.unwrap();
    }
    assert_eq!(shape(&write(&fs, ALICE, inode, open, 64 * MIB).await)[1], (1024, 4), "alone again");
}

#[tokio::test]
async fn a_small_file_needs_no_ost() {
    let fs = with_osts(4).await;
    fs.mdt.set_parameters(Parameters { bytes_on_mdt_max: 1 << 20, ..fs.mdt.parameters() });
    let (inode, open, created) = new_file(&fs, "f").await;
    assert_eq!(created.coverage(0, 64 << 10), Coverage::Complete);
    assert!(created.objects().all(|(_, location)| location == Location::Mdt), "{created:?}");
    let grown = write(&fs, ALICE, inode, open, 64 << 10).await;
    assert_eq!(shape(&grown), [(0, 1), (64, 1)]);
}

/// As MPI-IO and HDF5 begin a shared file: one rank gives it its length, then all write.
#[tokio::test]
async fn a_length_given_first_leaves_the_decision_to_the_first_write() {
    let fs = with_osts(16).await;
    fs.mdt.set_parameters(Parameters { bytes_on_mdt_max: 1 << 20, ..fs.mdt.parameters() });
    fs.begin(BOB).await;
    let (inode, first, created) = new_file(&fs, "f").await;
    let granted = truncate(&fs, inode, first, 40 * MIB).await;
    assert_eq!(granted, created, "no object was needed");
    for _ in 0..7 {
        fs.open(BOB, &root(), inode, WRITE).await.unwrap();
    }
    let decided = write(&fs, ALICE, inode, first, 20 * MIB).await;
    assert_eq!(shape(&decided), [(0, 1), (64, 8)]);
    assert_eq!(truncate(&fs, inode, first, 50 * MIB).await, decided, "it ends in a component with objects");
}

#[tokio::test]
async fn a_length_given_first_counts_for_who_writes_alone() {
    let fs = with_osts(16).await;
    fs.mdt.set_parameters(Parameters { bytes_on_mdt_max: 1 << 20, ..fs.mdt.parameters() });
    let (inode, open, _) = new_file(&fs, "f").await;
    truncate(&fs, inode, open, 2048 * MIB).await;
    assert_eq!(shape(&write(&fs, ALICE, inode, open, MIB).await), [(0, 1), (64, 16)]);
}

/// Writes a file of its own up to `size` and closes it.
async fn finish_file(fs: &Fixture, name: &str, size: u64) {
    let (open, created) = fs.create_open(ALICE, ROOT, name, WRITE).await.unwrap();
    let opened = created.opened.unwrap();
    let inode = opened.entry.attributes.inode;
    write(fs, ALICE, inode, open, MIB).await;
    fs.close(ALICE, inode, open, Some(common::size_update(opened.epoch, size))).await.unwrap();
}

#[tokio::test]
async fn files_begin_as_wide_as_the_last_of_such_names_became() {
    let mut fs = with_osts(16).await;
    fs.mdt.set_parameters(Parameters { bytes_on_mdt_max: 1 << 20, ..fs.mdt.parameters() });
    let mut widths = Vec::new();
    for number in 0..3 {
        finish_file(&fs, &format!("step-{number}.h5"), 2048 * MIB).await;
        let (inode, open, _) = new_file(&fs, &format!("step-{number}-next.h5")).await;
        let other = shape(&write(&fs, ALICE, inode, open, MIB).await)[1];
        fs.close(ALICE, inode, open, None).await.unwrap();
        let (inode, open, _) = new_file(&fs, &format!("step-1{number}.h5")).await;
        widths.push((shape(&write(&fs, ALICE, inode, open, MIB).await)[1], other));
        fs.close(ALICE, inode, open, None).await.unwrap();
        fs.unlink(&root(), ROOT, &format!("step-1{number}.h5")).await.unwrap();
    }
    assert_eq!(widths, [((64, 1), (64, 1)), ((64, 16), (64, 1)), ((64, 16), (64, 1))]);
    fs.restart_and_recover().await;
    let (inode, open, _) = new_file(&fs, "step-20.h5").await;
    assert_eq!(shape(&write(&fs, ALICE, inode, open, MIB).await)[1], (64, 1), "forgotten");
}

#[tokio::test]
async fn new_objects_go_where_nobody_writes() {
    let fs = with_osts(4).await;
    fs.mdt.set_parameters(Parameters { bytes_on_mdt_max: 1 << 20, ..fs.mdt.parameters() });
    let mut open_files = Vec::new();
    let mut used = Vec::new();
    for name in ["a", "b", "c"] {
        let (inode, open, _) = new_file(&fs, name).await;
        used.push(write(&fs, ALICE, inode, open, MIB).await.location(1));
        open_files.push((inode, open));
    }
    // Others come and go: what is free is taken again and again.
    let mut free = Vec::new();
    for name in ["d", "e", "f"] {
        let (inode, open, _) = new_file(&fs, name).await;
        free.push(write(&fs, ALICE, inode, open, MIB).await.location(1));
        fs.close(ALICE, inode, open, None).await.unwrap();
    }
    assert!(free.iter().all(|ost| *ost == free[0] && !used.contains(ost)), "{used:?} {free:?}");
    let (inode, open) = open_files[0];
    fs.close(ALICE, inode, open, None).await.unwrap();
    let (inode, open, _) = new_file(&fs, "g").await;
    let next = write(&fs, ALICE, inode, open, MIB).await.location(1);
    assert!(next == used[0] || next == free[0], "{next:?}");
}

/// Truncates as a client does, but for the objects.
async fn truncate(fs: &Fixture, inode: InodeNumber, open: OpenId, size: u64) -> Layout {
    let begin = ExclusiveBegin { inode, open: Some(open), purpose: ExclusivePurpose::Truncate(size) };
    let MdtReply::ExclusiveGranted(granted) = fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap()
    else {
        panic!("nobody else has the lock")
    };
    fs.call(ALICE, MdtRequest::ExclusiveEnd(ExclusiveEnd { inode, update: None })).await.unwrap();
    granted.layout
}

#[tokio::test]
async fn osts_added_are_used_by_the_next_component() {
    let fs = with_osts(1).await;
    let (inode, open, _) = new_file(&fs, "f").await;
    assert_eq!(
        shape(&write(&fs, ALICE, inode, open, 64 * MIB).await),
        [(1024, 1)],
        "the same object: there is no other OST"
    );
    fs.mdt.update_map(&absent_osts(6));
    assert_eq!(shape(&write(&fs, ALICE, inode, open, 1024 * MIB).await)[1], (16 << 10, 6));
}

#[tokio::test]
async fn the_far_end_of_a_sparse_file_leaves_the_middle_open() {
    let fs = with_osts(4).await;
    let (inode, open, _) = new_file(&fs, "f").await;
    let layout = write(&fs, ALICE, inode, open, 16 << 40).await;
    assert_eq!(layout.coverage(5 * MIB, 1), Coverage::Pending);
    let middle = write(&fs, ALICE, inode, open, 5 * MIB).await;
    assert_eq!(middle.coverage(16 << 40, 1), Coverage::Complete);
    assert!(middle.components.len() < 8, "{middle:?}");
}

#[tokio::test]
async fn a_component_grows_by_steps_into_its_extension() {
    let fs = Fixture::with_osts(absent_osts(4)).await;
    let stripes = StripeSpec { stripe_count: StripeCount::Exactly(2), ..StripeSpec::default() };
    let backing = BackingSpec::Extended(stripes, 64 * MIB);
    let spec = LayoutSpec::Composite(vec![ComponentSpec { end: END_OF_FILE, backing }]);
    let open = fs.open_id();
    let mut create = create_request(ROOT, "f", NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    create.layout = Some(spec);
    let created = common::created(fs.call(ALICE, MdtRequest::Create(root(), create)).await.unwrap());
    assert_eq!(shape(&created.opened.unwrap().layout.unwrap()), [(64, 2)]);
    let inode = created.entry.attributes.inode;
    assert_eq!(shape(&write(&fs, ALICE, inode, open, 64 * MIB).await), [(128, 2)]);
    let far = write(&fs, ALICE, inode, open, 1000 * MIB).await;
    assert_eq!(shape(&far), [(1024, 2)], "one component, the same objects");
    assert_eq!(write(&fs, ALICE, inode, open, 0).await, far);
}

/// An MDT with two OSTs that answer, and a file that extends itself by 64 MiB at a time, on one of
/// them.
async fn extended(following: Option<ComponentSpec>) -> (Fixture, Vec<Arc<NotingOst>>, InodeNumber, OpenId, OstIndex) {
    let network = MemoryTransport::new();
    let served: Vec<_> = (0..2).map(|index| NotingOst::serve(&network, OstIndex(index))).collect();
    let map = (0u16..).zip(&served).map(|(index, (_, endpoint))| (OstIndex(index), endpoint.clone(), true)).collect();
    let fs = Fixture::on_network(&network, map).await;
    fs.mdt.set_parameters(Parameters { ost_refresh: Duration::from_millis(1), ..fs.mdt.parameters() });
    let end = if following.is_some() { 1 << 30 } else { END_OF_FILE };
    let backing = BackingSpec::Extended(StripeSpec::default(), 64 * MIB);
    let components = [Some(ComponentSpec { end, backing }), following].into_iter().flatten().collect();
    let open = fs.open_id();
    let mut create = create_request(ROOT, "f", NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    create.layout = Some(LayoutSpec::Composite(components));
    let created = common::created(fs.call(ALICE, MdtRequest::Create(root(), create)).await.unwrap());
    let layout = created.opened.unwrap().layout.unwrap();
    let Some(Location::Ost(ost)) = layout.location(0) else { panic!("{layout:?}") };
    (fs, served.into_iter().map(|(ost, _)| ost).collect(), created.entry.attributes.inode, open, ost)
}

/// The OST takes no new objects from now on, and the MDT knows it.
async fn close_down(fs: &Fixture, osts: &[Arc<NotingOst>], ost: OstIndex) {
    osts[usize::from(ost.0)].condition.lock().no_create = true;
    let known = async || {
        fs.mdt
            .osts()
            .iter()
            .any(|(index, view)| *index == ost && view.report.is_some_and(|report| report.condition.no_create))
    };
    eventually("the MDT knows", known).await;
}

#[tokio::test]
async fn a_component_without_space_is_repeated_on_other_osts() {
    let (fs, osts, inode, open, first) = extended(None).await;
    close_down(&fs, &osts, first).await;
    let layout = write(&fs, ALICE, inode, open, 64 * MIB).await;
    assert_eq!(shape(&layout), [(64, 1), (128, 1)]);
    assert_eq!(layout.location(1), Some(Location::Ost(OstIndex(1 - first.0))));
    assert_eq!(shape(&write(&fs, ALICE, inode, open, 130 * MIB).await), [(64, 1), (192, 1)]);
}

#[tokio::test]
async fn a_component_without_space_spills_over_to_the_next() {
    let next = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(StripeSpec::default()) };
    let (fs, osts, inode, open, first) = extended(Some(next)).await;
    close_down(&fs, &osts, first).await;
    let layout = write(&fs, ALICE, inode, open, 64 * MIB).await;
    let extents: Vec<_> = layout.components.iter().map(|component| component.extent.start / MIB).collect();
    assert_eq!(extents, [0, 64], "{layout:?}");
    assert!(layout.is_endless());
    assert_eq!(layout.location(1), Some(Location::Ost(OstIndex(1 - first.0))));
}
