//! The arithmetic of layouts holds for every valid layout: file bytes and object bytes are in
//! bijection wherever there are objects, ranges cover them once, sizes agree, and growth leaves
//! existing data in place.

#![allow(missing_docs)]

use crate::common;

use std::collections::BTreeSet;

use common::*;
use layout::{
    BackingSpec, ComponentSpec, Coverage, END_OF_FILE, Layout, LayoutSpec, Location, Piece, StripeCount, StripeSpec,
};
use proptest::prelude::*;
use types::{
    Generation, OstIndex,
    limits::{BLOCK_BYTES, FILE_BYTES_MAX},
};

/// Places in a file: near its beginning, where the components are, and anywhere.
fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..=(8u64 << 20), 1 => 0..=(1u64 << 40), 1 => 0..=FILE_BYTES_MAX]
}

fn runs(pieces: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut pieces: Vec<(u64, u64)> = pieces.into_iter().collect();
    pieces.sort_unstable();
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (start, bytes) in pieces {
        match runs.last_mut() {
            Some((from, length)) if *from + *length == start => *length += bytes,
            _ => runs.push((start, bytes)),
        }
    }
    runs
}

proptest! {
    #[test]
    fn layouts_as_made_are_valid(layout in layouts()) {
        prop_assert_eq!(layout.validate(), Ok(()));
        prop_assert_eq!(layout.objects().count(), layout.object_count());
        let slots: BTreeSet<u32> = layout.objects().map(|(slot, _)| slot).collect();
        prop_assert_eq!(slots.len(), layout.object_count(), "no slot twice");
        for (slot, location) in layout.objects() {
            prop_assert_eq!(layout.location(slot), Some(location));
            prop_assert!(slot < layout.slots_next);
        }
        prop_assert_eq!(layout.location(layout.slots_next), None);
    }

    #[test]
    fn file_and_object_bytes_are_in_bijection(layout in layouts(), offset in offsets()) {
        let found: Vec<_> = layout.ranges(offset, 1).collect();
        if !has_object(&layout, offset) {
            prop_assert_eq!(found, []);
            return Ok(());
        }
        prop_assert_eq!(found.len(), 1);
        let range = found[0];
        prop_assert_eq!(range.bytes, 1);
        prop_assert_eq!(range.file_offset(), offset);
        prop_assert_eq!(Some(range.location), layout.location(range.slot));
        prop_assert_eq!(layout.file_offset(range.slot, range.offset), offset);
        prop_assert_eq!(layout.object_position(range.slot, offset), range.offset);
        prop_assert_eq!(layout.file_size(range.slot, range.offset + 1), offset + 1);
        prop_assert_eq!(layout.object_size(range.slot, offset + 1), range.offset + 1);
        let extent = layout.extent_of(range.slot);
        prop_assert!(extent.start <= offset && offset < extent.end);
    }

    #[test]
    fn ranges_cover_what_has_objects_once(
        layout in layouts(),
        offset in offsets(),
        bytes in 0u64..(64 << 20),
        bytes_max in BLOCK_BYTES..(8 << 20),
    ) {
        let offset = offset.min(FILE_BYTES_MAX - (64 << 20));
        let mut pieces = Vec::new();
        let mut slots = BTreeSet::new();
        for range in layout.ranges(offset, bytes) {
            prop_assert!(range.bytes > 0);
            prop_assert!(slots.insert(range.slot), "slot {} twice", range.slot);
            let mut expected = range.offset;
            for piece in range.pieces() {
                prop_assert!(piece.bytes > 0);
                prop_assert_eq!(piece.object_offset, expected);
                prop_assert_eq!(layout.file_offset(range.slot, piece.object_offset), piece.file_offset);
                expected += piece.bytes;
                pieces.push((piece.file_offset, piece.bytes));
            }
            prop_assert_eq!(expected, range.offset + range.bytes);
            let mut next = range.offset;
            let mut chunked = Vec::new();
            for chunk in range.chunks(bytes_max) {
                prop_assert_eq!((chunk.offset, chunk.slot, chunk.location), (next, range.slot, range.location));
                prop_assert!(chunk.bytes > 0 && chunk.bytes <= bytes_max);
                next += chunk.bytes;
                prop_assert!(next == range.offset + range.bytes || next.is_multiple_of(BLOCK_BYTES));
                chunked.extend(chunk.pieces().map(|piece| (piece.file_offset, piece.bytes)));
            }
            prop_assert_eq!(next, range.offset + range.bytes);
            prop_assert_eq!(runs(chunked), runs(range.pieces().map(|piece| (piece.file_offset, piece.bytes))));
        }
        let total: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
        let expected = instantiated(&layout, offset, offset + bytes);
        prop_assert_eq!(total, expected.iter().map(|part| part.bytes()).sum::<u64>(), "nothing twice");
        prop_assert_eq!(runs(pieces), runs(expected.iter().map(|part| (part.start, part.bytes()))));
    }

    #[test]
    fn sizes_agree(layout in layouts(), size in offsets()) {
        let mut implied = 0;
        let mut held = 0;
        for (slot, _) in layout.objects() {
            let object_size = layout.object_size(slot, size);
            prop_assert!(layout.file_size(slot, object_size) <= size);
            implied = implied.max(layout.file_size(slot, object_size));
            let start = layout.extent_of(slot).start;
            held += object_size - layout.object_position(slot, start).min(object_size);
        }
        let expected: u64 = instantiated(&layout, 0, size).iter().map(|part| part.bytes()).sum();
        prop_assert_eq!(held, expected, "every byte below the size is in one object");
        if size > 0 && has_object(&layout, size - 1) {
            prop_assert_eq!(implied, size);
        }
    }

    #[test]
    fn coverage_gaps_and_pending_components_agree(layout in layouts(), offset in offsets(), bytes in 1u64..(16 << 20)) {
        let end = (offset + bytes).min(FILE_BYTES_MAX);
        let (gap, pending) = (layout.next_gap(offset), layout.pending(offset, end));
        prop_assert_eq!(gap.is_some_and(|gap| gap < end), !pending.is_empty());
        if let Some(gap) = gap {
            prop_assert!(gap >= offset && !has_object(&layout, gap));
            prop_assert!(layout.may_grow());
        }
        match layout.coverage(offset, end - offset) {
            Coverage::Beyond(at) => prop_assert!(at == layout.end() && end > at),
            Coverage::Pending => prop_assert!(!pending.is_empty() && end <= layout.end()),
            Coverage::Complete => prop_assert!(pending.is_empty() && end <= layout.end()),
        }
    }

    /// What a client knows of an older layout stays true.
    #[test]
    fn growth_moves_nothing(layout in layouts(), start in offsets(), bytes in 1u64..(8 << 20), offset in offsets()) {
        let mut grown = layout.clone();
        if !instantiate(&mut grown, start, start.saturating_add(bytes), 3) {
            return Ok(());
        }
        prop_assert_eq!(grown.validate(), Ok(()));
        for (slot, location) in layout.objects() {
            prop_assert_eq!(grown.location(slot), Some(location));
            prop_assert_eq!(grown.file_offset(slot, offset), layout.file_offset(slot, offset));
            prop_assert_eq!(grown.object_size(slot, offset), layout.object_size(slot, offset));
        }
        let known: Vec<_> = layout.ranges(offset, bytes).collect();
        let now: Vec<_> = grown.ranges(offset, bytes).collect();
        prop_assert!(known.iter().all(|range| now.contains(range)));
        prop_assert!(!layout.has_grown_from(&grown));
        if grown != layout {
            prop_assert!(grown.has_grown_from(&layout));
            prop_assert!(grown.slots_next > layout.slots_next && grown.generation > layout.generation);
        }
    }

    /// Objects of any size, as a damaged target may tell them, break nothing.
    #[test]
    fn absurd_objects_break_nothing(layout in layouts(), size in any::<u64>(), offset in any::<u64>()) {
        for (slot, _) in layout.objects() {
            let _ = (layout.file_size(slot, size), layout.file_offset(slot, size));
            let _ = (layout.object_size(slot, size), layout.object_position(slot, offset));
        }
        let _ = (layout.coverage(offset, size), layout.next_gap(offset), layout.pending(offset, size));
        prop_assert!(layout.ranges(offset, size).all(|range| range.bytes > 0));
    }
}

#[test]
fn walks_three_stripes() {
    let layout = Layout::plain(Generation(1), stripes(65536, 3, 0), StripeSpec::default());
    let ranges: Vec<_> = layout.ranges(65536 * 2 + 100, 65536 * 2).collect();
    let summary: Vec<_> = ranges.iter().map(|range| (range.slot, range.offset, range.bytes)).collect();
    assert_eq!(summary, [(2, 100, 65436), (0, 65536, 65536), (1, 65536, 100)]);
    assert_eq!(layout.object_size(0, 65536 * 3 + 5), 65541);
    assert_eq!(layout.file_size(1, 1), 65537);
    assert_eq!(layout.file_size(1, 0), 0);
    assert_eq!(layout.ranges(12345, 0).count(), 0);
}

#[test]
fn one_stripe_is_one_piece() {
    let layout = Layout::plain(Generation(1), stripes(65536, 1, 0), StripeSpec::default());
    let range = layout.ranges(1000, 10 << 20).next().unwrap();
    let piece = Piece { file_offset: 1000, object_offset: 1000, bytes: 10 << 20 };
    assert_eq!(range.pieces().collect::<Vec<_>>(), [piece]);
    let chunks: Vec<_> = range.chunks(4 << 20).map(|chunk| (chunk.offset, chunk.bytes)).collect();
    assert_eq!(chunks[0], (1000, (4 << 20) - 1000), "cut at the block boundary below 4 MiB + 1000");
    assert_eq!(chunks.iter().map(|chunk| chunk.1).sum::<u64>(), 10 << 20);
}

/// A component of one stripe up to 64 KiB, then two stripes of 64 KiB: as in Lustre, stripes are
/// counted from the file's beginning, so the second component begins in the middle of a round, on
/// its second object.
#[test]
fn a_late_component_begins_where_the_file_has_its_stripe() {
    let spec = LayoutSpec::Composite(vec![
        layout::ComponentSpec { end: 65536, backing: layout::BackingSpec::Striped(StripeSpec::default()) },
        layout::ComponentSpec {
            end: layout::END_OF_FILE,
            backing: layout::BackingSpec::Striped(StripeSpec::default()),
        },
    ]);
    let LayoutSpec::Composite(components) = &spec else { unreachable!() };
    let mut layout = Layout::composite(components);
    assert_eq!(layout.ranges(0, 1 << 20).count(), 0, "nothing has objects yet");
    layout.instantiate(1, stripes(65536, 2, 0), StripeSpec::default()).unwrap();
    layout.instantiate(0, stripes(65536, 1, 5), StripeSpec::default()).unwrap();
    let summary: Vec<_> =
        layout.ranges(65000, 2 * 65536).map(|range| (range.slot, range.location, range.offset, range.bytes)).collect();
    let ost = |index| Location::Ost(OstIndex(index));
    assert_eq!(summary, [(2, ost(5), 65000, 536), (1, ost(1), 0, 65536), (0, ost(0), 65536, 65000)]);
    assert_eq!(layout.object_size(0, 65536), 0, "the file ends before the component");
    assert_eq!(layout.object_size(0, 65537), 65536, "its first object begins with a hole");
    assert_eq!(layout.object_size(1, 65537), 1);
}

#[test]
fn the_only_object_of_the_beginning_keeps_a_length_that_nothing_else_can() {
    let rest = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic };
    let on_mdt = |following: &[ComponentSpec]| {
        let mut asked = vec![ComponentSpec { end: 65536, backing: BackingSpec::Mdt }];
        asked.extend_from_slice(following);
        Layout::composite(&asked)
    };
    let undecided = on_mdt(std::slice::from_ref(&rest));
    let kept = |layout: &Layout, size| layout.keeper_of_length(size);
    assert_eq!([0, 1, 65536].map(|size| kept(&undecided, size)), [None; 3], "it ends where it has an object");
    assert_eq!([65537, 1 << 40].map(|size| kept(&undecided, size)), [Some(0); 2]);
    assert_eq!(undecided.object_position(0, 1 << 40), 1 << 40, "an offset in the object is one in the file");

    let two_stripes = StripeSpec { stripe_count: StripeCount::Exactly(2), ..StripeSpec::default() };
    let asked_for = ComponentSpec { end: 1 << 20, backing: BackingSpec::Striped(two_stripes) };
    let pending = on_mdt(&[asked_for.clone(), rest.clone()]);
    assert_eq!(kept(&pending, 65537), None, "what was asked for gets its objects");
    assert_eq!(kept(&pending, (1 << 20) + 1), Some(0));

    let mut two = Layout::composite(&[asked_for, rest]);
    assert_eq!(kept(&two, 2 << 20), None, "no object at all");
    two.instantiate(0, stripes(65536, 2, 0), StripeSpec::default()).unwrap();
    assert_eq!(kept(&two, 2 << 20), None, "either of two knows only every other stripe");
    assert_eq!(kept(&two, u64::MAX), None);
}
