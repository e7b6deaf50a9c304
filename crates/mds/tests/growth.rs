//! Layouts that grow: instantiation, its repetition, and what a power loss takes away from it.

use crate::{
    check::{inode_of, put_inode},
    common,
};

use std::collections::BTreeSet;

use common::*;
use layout::{
    Backing, BackingSpec, ComponentId, ComponentSpec, END_OF_FILE, Layout, LayoutSpec, StripeCount, StripeSpec,
};
use mds::tables::inode::InodeData;
use rpc::{
    SessionEvent,
    message::{
        MdtReply, MdtRequest,
        mdt::{
            ExclusiveBegin, ExclusivePurpose, Instantiate, LayoutChange, LayoutInfo, NotReclaimed, OpenFlags, OpenId,
            Reclaim,
        },
    },
};
use types::{
    ClientId, FsError, FsResult, Generation, InodeNumber, NodeKind, OstIndex, Slot, Xid, limits::FILE_BYTES_MAX,
};

const UNIT: u64 = 65536;
const FIRST: u64 = UNIT;
const SECOND: u64 = 4 * UNIT;

fn composite(end: u64) -> LayoutSpec {
    let component = |end, stripe_count| {
        let stripes = StripeSpec { stripe_count, stripe_bytes: Some(UNIT), ..StripeSpec::default() };
        ComponentSpec { end, backing: BackingSpec::Striped(stripes) }
    };
    LayoutSpec::Composite(vec![
        component(FIRST, StripeCount::Exactly(1)),
        component(SECOND, StripeCount::Exactly(2)),
        component(end, StripeCount::All),
    ])
}

/// A composite file, open for writing by ALICE.
async fn grown_file(fs: &Fixture, name: &str, end: u64) -> (OpenId, InodeNumber, Layout) {
    let open = fs.open_id();
    let mut request = create_request(ROOT, name, NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    request.layout = Some(composite(end));
    let created = created(fs.call(ALICE, MdtRequest::Create(root(), request)).await.unwrap());
    (open, created.entry.attributes.inode, created.opened.unwrap().layout.unwrap())
}

fn told(reply: MdtReply) -> Layout {
    match reply {
        MdtReply::Layout(LayoutInfo { layout: Some(layout), .. }) => layout,
        other => panic!("answered {other:?}"),
    }
}

async fn layout(fs: &Fixture, inode: InodeNumber) -> Layout {
    told(fs.call(ALICE, MdtRequest::GetLayout(inode)).await.unwrap())
}

async fn grow(fs: &Fixture, client: ClientId, inode: InodeNumber, open: OpenId, end: u64) -> FsResult<Layout> {
    let request = Instantiate { inode, open, start: end - 1, end };
    fs.call(client, MdtRequest::Instantiate(request)).await.map(told)
}

fn claim(inode: InodeNumber, open: OpenId, layout: &Layout) -> Reclaim {
    let opens = vec![(inode, open, OpenFlags(WRITE))];
    Reclaim { opens, layouts: vec![(inode, layout.clone())], done: true, ..Reclaim::default() }
}

#[tokio::test]
async fn who_comes_later_gets_what_the_first_one_got() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, inode, first) = grown_file(&fs, "f", END_OF_FILE).await;
    let (other, _) = fs.open(BOB, &root(), inode, WRITE).await.unwrap();
    let (reader, _) = fs.open(BOB, &root(), inode, READ).await.unwrap();
    let grown = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    assert!(grown.has_grown_from(&first));
    assert_eq!(grown.object_count(), 1 + 4, "the component between stays without objects");
    assert_eq!(grow(&fs, BOB, inode, other, FILE_BYTES_MAX).await.unwrap(), grown);
    assert_eq!(grow(&fs, BOB, inode, reader, FIRST + 1).await, Err(FsError::BadHandle));
    assert_eq!(grow(&fs, ALICE, inode, other, FIRST + 1).await, Err(FsError::BadHandle), "not its own open");
    assert!(grow(&fs, BOB, inode, other, FIRST + 1).await.unwrap().has_grown_from(&grown));
    assert_eq!(fs.check(false).await, []);
}

#[tokio::test]
async fn a_repetition_after_a_crash_finds_it_done() {
    let mut fs = Fixture::new().await;
    let (open, inode, _) = grown_file(&fs, "f", END_OF_FILE).await;
    let request = MdtRequest::Instantiate(Instantiate { inode, open, start: 0, end: FIRST + 1 });
    let first = fs.call_as(ALICE, Slot(3), Xid(9), request.clone()).await.unwrap();
    fs.restart().await;
    let before = told(first.clone());
    fs.reclaim(ALICE, claim(inode, open, &before)).await.unwrap();
    assert_eq!(fs.call_as(ALICE, Slot(3), Xid(9), request).await, Ok(first));
}

#[tokio::test]
async fn nothing_is_written_or_truncated_behind_the_last_component() {
    let fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, inode, _) = grown_file(&fs, "f", 6 * UNIT).await;
    assert_eq!(grow(&fs, ALICE, inode, open, 6 * UNIT + 1).await, Err(FsError::NoData));
    let truncate = |size| {
        let begin = ExclusiveBegin { inode, open: Some(open), purpose: ExclusivePurpose::Truncate(size) };
        fs.call(ALICE, MdtRequest::ExclusiveBegin(root(), begin))
    };
    assert_eq!(truncate(6 * UNIT + 1).await, Err(FsError::NoData));
    let begin = ExclusiveBegin { inode, open: None, purpose: ExclusivePurpose::Truncate(6 * UNIT) };
    match fs.call(BOB, MdtRequest::ExclusiveBegin(root(), begin)).await.unwrap() {
        MdtReply::ExclusiveGranted(granted) => assert_eq!(granted.layout.object_count(), 1 + 4),
        other => panic!("the refusal kept the lock: {other:?}"),
    }
}

#[tokio::test]
async fn growth_lost_with_the_power_is_taken_over_from_who_knows_it() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, inode, first) = grown_file(&fs, "f", END_OF_FILE).await;
    let (other, _) = fs.open(BOB, &root(), inode, WRITE).await.unwrap();
    fs.call(ALICE, MdtRequest::Commit).await.unwrap();
    let grown = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    fs.lose_power().await;
    assert_eq!(layout(&fs, inode).await, first, "the growth was not durable");
    // BOB does not know of it, and gets nothing before ALICE is back: the slots are hers.
    fs.reclaim(BOB, claim(inode, other, &first)).await.unwrap();
    let early = Instantiate { inode, open: other, start: 0, end: FIRST + 1 };
    assert_eq!(fs.call(BOB, MdtRequest::Instantiate(early)).await, Ok(MdtReply::Waiting));
    fs.reclaim(ALICE, claim(inode, open, &grown)).await.unwrap();
    assert_eq!(layout(&fs, inode).await, grown);
    let more = grow(&fs, BOB, inode, other, FIRST + 1).await.unwrap();
    assert!(more.has_grown_from(&grown), "further slots after those");
    assert_eq!(fs.check(false).await, []);
}

/// Else they would be taken for what the layout of a client that comes back later has grown to, and
/// its objects be nobody's.
#[tokio::test]
async fn components_are_added_and_deleted_when_all_have_told_their_layouts() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, inode, first) = grown_file(&fs, "f", 6 * UNIT).await;
    fs.call(ALICE, MdtRequest::Commit).await.unwrap();
    let grown = grow(&fs, ALICE, inode, open, FIRST + 1).await.unwrap();
    fs.lose_power().await;
    fs.reclaim(BOB, Reclaim { done: true, ..Reclaim::default() }).await.unwrap();
    let change = |change: LayoutChange| MdtRequest::ChangeLayout(root(), inode, change);
    let stripes = StripeSpec { stripe_bytes: Some(UNIT), ..StripeSpec::default() };
    let added = ComponentSpec { end: 8 * UNIT, backing: BackingSpec::Striped(stripes) };
    let add = || change(LayoutChange::Add(vec![added.clone()]));
    let delete = |components: &[u32], generation: Generation| {
        let components = components.iter().map(|id| ComponentId(*id)).collect();
        change(LayoutChange::Delete { components, generation })
    };
    assert_eq!(fs.call(BOB, add()).await, Ok(MdtReply::Waiting));
    assert_eq!(fs.call(BOB, delete(&[3], first.generation)).await, Ok(MdtReply::Waiting));
    fs.reclaim(ALICE, claim(inode, open, &grown)).await.unwrap();
    assert_eq!(layout(&fs, inode).await, grown);
    assert_eq!(fs.call(BOB, delete(&[3], grown.generation)).await, Ok(MdtReply::Done));
    assert_eq!(fs.call(BOB, add()).await, Ok(MdtReply::Done));
    assert!(layout(&fs, inode).await.generation > grown.generation);
}

/// Else what is written there without a sync, and closed, would be back when the component grows
/// there again.
#[tokio::test]
async fn bytes_that_an_object_got_are_not_lost_with_the_power() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let open = fs.open_id();
    let stripes = StripeSpec { stripe_bytes: Some(UNIT), ..StripeSpec::default() };
    let backing = BackingSpec::Extended(stripes, 64 << 20);
    let mut request = create_request(ROOT, "f", NodeKind::Regular, 0o644, Some((open, OpenFlags(WRITE))));
    request.layout = Some(LayoutSpec::Composite(vec![ComponentSpec { end: END_OF_FILE, backing }]));
    let created = created(fs.call(ALICE, MdtRequest::Create(root(), request)).await.unwrap());
    let (inode, first) = (created.entry.attributes.inode, created.opened.unwrap().layout.unwrap());
    let longer = grow(&fs, ALICE, inode, open, 65 << 20).await.unwrap();
    assert_eq!((first.object_count(), longer.object_count()), (1, 1));
    assert_ne!(first.components[0].extent, longer.components[0].extent);
    fs.lose_power().await;
    assert_eq!(layout(&fs, inode).await, longer, "any client that comes back");
}

#[tokio::test]
async fn a_layout_that_lost_objects_is_not_taken_over_but_superseded() {
    let mut fs = Fixture::new().await;
    let (open, inode, _) = grown_file(&fs, "f", END_OF_FILE).await;
    let grown = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    fs.restart().await;
    let mut told = grown.clone();
    told.components.pop();
    told.generation = grown.generation.next();
    let unknown = InodeNumber(inode.0 + 1000);
    let mut invalid = grown.clone();
    invalid.generation = grown.generation.next().next();
    invalid.components.clear();
    let layouts = vec![(inode, told.clone()), (unknown, grown.clone()), (inode, invalid)];
    let reclaim = MdtRequest::Reclaim(Reclaim { layouts, done: false, ..claim(inode, open, &grown) });
    let undone = MdtReply::NotReclaimed(NotReclaimed { undone: vec![inode, inode], ..NotReclaimed::default() });
    assert_eq!(fs.call(ALICE, reclaim.clone()).await, Ok(undone.clone()));
    assert_eq!(fs.call(ALICE, reclaim).await, Ok(undone), "once more, if the first answer did not arrive");
    fs.recover().await;
    let now = layout(&fs, inode).await;
    assert_eq!(now.components, grown.components);
    assert!(now.generation > told.generation, "so that its teller learns of it");
}

/// Such a record could not be written, or not be read any more.
#[tokio::test]
async fn a_request_for_stripes_that_nobody_can_make_is_not_taken_over() {
    let mut fs = Fixture::new().await;
    let (open, inode, first) = grown_file(&fs, "f", END_OF_FILE).await;
    let in_pool = |bytes: usize| StripeSpec { pool: Some("p".repeat(bytes)), ..StripeSpec::default() };
    let on_osts = |count: usize| StripeSpec { osts: vec![OstIndex(0); count], ..StripeSpec::default() };
    for spec in [in_pool(16), in_pool(300), on_osts(2001), on_osts(70_000)] {
        fs.restart().await;
        let mut pending = first.clone();
        pending.generation = first.generation.next();
        let mut striped = pending.clone();
        pending.components[2].backing = Backing::Pending(spec.clone());
        let Backing::Striped { spec: asked, .. } = &mut striped.components[0].backing else { panic!("has objects") };
        *asked = spec;
        let layouts = vec![(inode, pending), (inode, striped)];
        fs.reclaim(ALICE, Reclaim { layouts, ..claim(inode, open, &first) }).await.unwrap();
        assert_eq!(layout(&fs, inode).await, first);
    }
}

/// Of such a layout no change could be told any more.
#[tokio::test]
async fn a_generation_without_a_next_one_is_not_taken_over() {
    let mut fs = Fixture::new().await;
    let (open, inode, first) = grown_file(&fs, "f", END_OF_FILE).await;
    for generation in [Layout::GENERATION_MAX.0, u64::MAX] {
        fs.restart().await;
        let mut told = first.clone();
        told.generation = Generation(generation);
        told.components.pop();
        fs.reclaim(ALICE, claim(inode, open, &told)).await.unwrap();
        assert_eq!(layout(&fs, inode).await, first);
    }
}

#[tokio::test]
async fn who_has_a_file_open_whose_creation_was_lost_is_told() {
    let mut fs = Fixture::new().await;
    let (kept_open, kept, _) = grown_file(&fs, "kept", END_OF_FILE).await;
    fs.commit().await;
    let (open, lost, layout) = grown_file(&fs, "lost", END_OF_FILE).await;
    fs.lose_power().await;
    let opens = vec![(kept, kept_open, OpenFlags(WRITE)), (lost, open, OpenFlags(WRITE))];
    let reclaim = Reclaim { opens, layouts: vec![(lost, layout)], ..Reclaim::default() };
    let refused = NotReclaimed { lost: vec![lost], ..NotReclaimed::default() };
    let answer = fs.call(ALICE, MdtRequest::Reclaim(reclaim)).await;
    assert_eq!(answer, Ok(MdtReply::NotReclaimed(refused)));
    fs.recover().await;
    assert!(grow(&fs, ALICE, kept, kept_open, FIRST + 1).await.is_ok(), "the other one is open");
}

#[tokio::test]
async fn a_layout_is_taken_over_only_from_who_has_the_file() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, inode, _) = grown_file(&fs, "f", END_OF_FILE).await;
    fs.call(ALICE, MdtRequest::Commit).await.unwrap();
    let durable = layout(&fs, inode).await;
    let grown = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    fs.lose_power().await;
    let claim = Reclaim { layouts: vec![(inode, grown)], done: true, ..Reclaim::default() };
    fs.reclaim(BOB, claim).await.unwrap();
    assert_eq!(layout(&fs, inode).await, durable);
}

/// Found by thinking about a seed of the lab: the file was closed when the MDT lost its growth, so
/// that nobody claims it, then or after the next start. What is left in its objects must not come
/// back.
#[tokio::test]
async fn slots_of_a_closed_file_that_were_lost_are_not_given_again() {
    let mut fs = Fixture::new().await;
    let (open, inode, first) = grown_file(&fs, "f", END_OF_FILE).await;
    fs.commit().await;
    let lost = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    fs.close(ALICE, inode, open, None).await.unwrap();
    fs.lose_power().await;
    fs.recover().await;
    fs.restart_and_recover().await;
    let (open, _) = fs.open(ALICE, &root(), inode, WRITE).await.unwrap();
    assert_eq!(layout(&fs, inode).await.components, first.components, "the growth was lost");
    let grown = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    let slots = |layout: &Layout| layout.objects().map(|(slot, _)| slot).collect::<BTreeSet<u32>>();
    let known = slots(&first);
    assert!(slots(&grown).difference(&known).all(|slot| !slots(&lost).contains(slot)), "{grown:?}");
}

/// The one who grew the file died with the power of the MDT: its objects, to which late writes of
/// it may still be in progress, are nobody's.
#[tokio::test]
async fn slots_that_nobody_claims_are_not_given_again() {
    let mut fs = Fixture::new().await;
    fs.begin(BOB).await;
    let (open, inode, first) = grown_file(&fs, "f", END_OF_FILE).await;
    let (other, _) = fs.open(BOB, &root(), inode, WRITE).await.unwrap();
    fs.call(ALICE, MdtRequest::Commit).await.unwrap();
    let lost = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    fs.lose_power().await;
    fs.reclaim(BOB, claim(inode, other, &first)).await.unwrap();
    fs.event(SessionEvent::Evicted(ALICE)).await;
    let grown = grow(&fs, BOB, inode, other, SECOND + 1).await.unwrap();
    let slots = |layout: &Layout| layout.objects().map(|(slot, _)| slot).collect::<BTreeSet<u32>>();
    let known = slots(&first);
    assert!(slots(&grown).difference(&known).all(|slot| !slots(&lost).contains(slot)), "{grown:?}");
    assert_eq!(fs.check(false).await, []);
}

/// Slots that an MDT has given which lost its power five times. The file is on another one now,
/// which never did.
const FOREIGN_SLOTS: u32 = 5 * 512_000;

/// A file that came from there.
async fn foreign_file(fs: &mut Fixture) -> (InodeNumber, Layout) {
    let (open, inode, _) = grown_file(fs, "f", END_OF_FILE).await;
    fs.close(ALICE, inode, open, None).await.unwrap();
    fs.damage(|store, batch| {
        let mut file = inode_of(store, inode);
        let InodeData::Regular(layout) = &mut file.data else { panic!("a file") };
        layout.slots_next += FOREIGN_SLOTS;
        put_inode(batch, &file);
    })
    .await;
    let first = layout(fs, inode).await;
    (inode, first)
}

/// It has more to do with them than with its own, which begin anew with each loss of its power.
#[tokio::test]
async fn slots_after_those_of_another_mdt_are_not_given_again() {
    let mut fs = Fixture::new().await;
    let (inode, first) = foreign_file(&mut fs).await;
    let slots = |layout: &Layout| layout.objects().map(|(slot, _)| slot).collect::<BTreeSet<u32>>();
    let mut given = slots(&first);
    for losses in 0..3 {
        let (open, _) = fs.open(ALICE, &root(), inode, WRITE).await.unwrap();
        assert_eq!(layout(&fs, inode).await.components, first.components, "the growth was lost");
        if losses == 1 {
            // It is as durable as an open for writing makes it.
            fs.commit().await;
        }
        let grown = slots(&grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap());
        let new: BTreeSet<u32> = grown.difference(&slots(&first)).copied().collect();
        assert!(!new.is_empty() && new.is_disjoint(&given), "{losses}: {new:?} of {given:?}");
        given.extend(new);
        fs.close(ALICE, inode, open, None).await.unwrap();
        fs.lose_power().await;
        fs.recover().await;
    }
}

#[tokio::test]
async fn growth_after_the_slots_of_another_mdt_is_taken_over_from_who_knows_it() {
    let mut fs = Fixture::new().await;
    let (inode, first) = foreign_file(&mut fs).await;
    fs.begin(BOB).await;
    let (open, _) = fs.open(ALICE, &root(), inode, WRITE).await.unwrap();
    let (other, _) = fs.open(BOB, &root(), inode, WRITE).await.unwrap();
    fs.commit().await;
    let grown = grow(&fs, ALICE, inode, open, SECOND + 1).await.unwrap();
    fs.lose_power().await;
    fs.reclaim(BOB, claim(inode, other, &first)).await.expect("it is as he knows it");
    fs.reclaim(ALICE, claim(inode, open, &grown)).await.expect("hers has grown from it");
    let found = layout(&fs, inode).await;
    assert_eq!((&found.components, found.generation), (&grown.components, grown.generation));
    let more = grow(&fs, BOB, inode, other, FIRST + 1).await.unwrap();
    assert!(more.has_grown_from(&grown) && more.object_count() > grown.object_count());
    fs.restart().await;
    fs.reclaim(BOB, claim(inode, other, &more)).await.expect("nothing was lost");
    fs.reclaim(ALICE, claim(inode, open, &grown)).await.expect("nor of what she knows");
}
