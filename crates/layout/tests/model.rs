//! Any sequence of writes, truncations, allocations, punches and instantiations on a composite file
//! reads back as it would from one array of bytes: objects are sparse vectors here, and [`Layout`]
//! alone decides everything, used as the client uses it.

#![allow(missing_docs)]

use crate::common;

use std::collections::BTreeMap;

use common::*;
use layout::{Backing, Component, Extent, Form, Layout, ObjectRange, StripeCount, StripeSpec};
use proptest::prelude::*;

/// No file of the model is larger.
const BYTES_MAX: u64 = 20 * 65536;

#[derive(Clone, Debug)]
enum Step {
    Write {
        offset: u64,
        bytes: u64,
        fill: u8,
    },
    Truncate(u64),
    Allocate {
        offset: u64,
        bytes: u64,
    },
    Punch {
        offset: u64,
        bytes: u64,
    },
    Instantiate {
        offset: u64,
        bytes: u64,
    },
    /// The OST of this byte is full.
    LeaveOut(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    // Often exactly at what may be a watermark.
    let offset = || {
        prop_oneof![
            0..BYTES_MAX,
            (0u64..20).prop_map(|unit| unit * 65536),
            (1u64..20).prop_map(|unit| unit * 65536 - 1)
        ]
    };
    let bytes = || prop_oneof![1u64..200, 1u64..(4 * 65536)];
    prop_oneof![
        4 => (offset(), bytes(), 1u8..).prop_map(|(offset, bytes, fill)| Step::Write { offset, bytes, fill }),
        3 => offset().prop_map(Step::Truncate),
        1 => (offset(), bytes()).prop_map(|(offset, bytes)| Step::Allocate { offset, bytes }),
        1 => (offset(), bytes()).prop_map(|(offset, bytes)| Step::Punch { offset, bytes }),
        1 => (offset(), bytes()).prop_map(|(offset, bytes)| Step::Instantiate { offset, bytes }),
        2 => offset().prop_map(Step::LeaveOut),
    ]
}

/// A file as its clients know it.
struct File {
    layout: Layout,
    objects: BTreeMap<u32, Vec<u8>>,
}

impl File {
    fn object(&mut self, slot: u32) -> &mut Vec<u8> {
        self.objects.entry(slot).or_default()
    }

    fn ranges(&self, offset: u64, bytes: u64) -> Vec<ObjectRange> {
        self.layout.ranges(offset, bytes).collect()
    }

    /// The part of the range within the layout.
    fn space(&self, offset: u64, bytes: u64) -> u64 {
        bytes.min(self.layout.end().saturating_sub(offset)).min(BYTES_MAX.saturating_sub(offset))
    }

    /// Nobody had decided on the parts without stripes that the range touches.
    fn decide(&mut self, offset: u64, bytes: u64) {
        let asked = StripeSpec {
            stripe_count: StripeCount::Overstriped(2),
            stripe_bytes: Some(65536),
            ..StripeSpec::default()
        };
        for position in self.layout.pending(offset, offset + bytes) {
            let component = &mut self.layout.components[position];
            if component.backing == Backing::Automatic {
                component.backing = Backing::Pending(asked.clone());
            }
        }
    }

    fn grow(&mut self, offset: u64, bytes: u64) {
        self.decide(offset, bytes);
        let first_ost = self.layout.slots_next as usize;
        assert!(instantiate(&mut self.layout, offset, offset + bytes, first_ost), "all kinds can be written");
        self.layout.validate().expect("a layout stays valid");
    }

    /// Whether the object of a byte has data there.
    fn has_data(&self, offset: u64) -> bool {
        self.ranges(offset, 1).iter().any(|range| {
            let object = self.objects.get(&range.slot);
            object.and_then(|object| object.get(range.offset as usize)).is_some_and(|byte| *byte != 0)
        })
    }

    /// What is free of data from `offset` on gets other objects when it is written next, if that is
    /// possible.
    fn leave_out(&mut self, offset: u64) {
        let holds = |component: &Component| {
            matches!(component.backing, Backing::Striped { .. })
                && component.extent.intersection(offset, offset + 1).is_some()
        };
        let Some(position) = self.layout.components.iter().position(holds) else { return };
        let whole = self.layout.components[position].extent;
        let end = (offset..whole.end.min(BYTES_MAX)).find(|offset| self.has_data(*offset)).unwrap_or(whole.end);
        let hole = Extent { start: offset, end };
        if self.layout.form == Form::Plain || hole.is_empty() {
            return;
        }
        self.layout.leave_out(position, hole).expect("there are fewer steps than components");
        self.layout.validate().expect("a layout stays valid");
    }

    fn write(&mut self, offset: u64, bytes: u64, fill: u8) {
        self.grow(offset, bytes);
        for range in self.ranges(offset, bytes) {
            for piece in range.pieces() {
                let (start, end) = (piece.object_offset as usize, (piece.object_offset + piece.bytes) as usize);
                let object = self.object(range.slot);
                object.resize(object.len().max(end), 0);
                object[start..end].fill(fill);
            }
        }
    }

    fn truncate(&mut self, size: u64) {
        let keeper = self.layout.keeper_of_length(size);
        if size > 0 && keeper.is_none() {
            self.grow(size - 1, 1);
        }
        let slots: Vec<u32> = self.layout.objects().map(|(slot, _)| slot).collect();
        for slot in slots {
            let share = self.layout.object_size(slot, size);
            let object_size = if keeper == Some(slot) { size } else { share };
            self.object(slot).resize(object_size as usize, 0);
        }
    }

    fn allocate(&mut self, offset: u64, bytes: u64) {
        self.grow(offset, bytes);
        for range in self.ranges(offset, bytes) {
            let object = self.object(range.slot);
            object.resize(object.len().max((range.offset + range.bytes) as usize), 0);
        }
    }

    fn punch(&mut self, offset: u64, bytes: u64) {
        for range in self.ranges(offset, bytes) {
            let object = self.object(range.slot);
            let start = object.len().min(range.offset as usize);
            let end = object.len().min((range.offset + range.bytes) as usize);
            object[start..end].fill(0);
        }
    }

    fn size(&self) -> u64 {
        let sizes = self.objects.iter().map(|(slot, object)| self.layout.file_size(*slot, object.len() as u64));
        sizes.max().unwrap_or(0)
    }

    fn read(&self) -> Vec<u8> {
        let size = self.size();
        let mut data = vec![0; size as usize];
        for range in self.ranges(0, size) {
            let Some(object) = self.objects.get(&range.slot) else { continue };
            for piece in range.pieces() {
                let start = object.len().min(piece.object_offset as usize);
                let end = object.len().min((piece.object_offset + piece.bytes) as usize);
                let at = piece.file_offset as usize;
                data[at..at + end - start].copy_from_slice(&object[start..end]);
            }
        }
        data
    }
}

/// The same on one array.
fn expect(data: &mut Vec<u8>, step: &Step, space: u64) {
    let resized = |data: &mut Vec<u8>, end: u64| data.resize(data.len().max(end as usize), 0);
    match *step {
        Step::Write { offset, fill, .. } => {
            resized(data, offset + space);
            data[offset as usize..(offset + space) as usize].fill(fill);
        }
        Step::Truncate(size) => data.resize(size as usize, 0),
        Step::Allocate { offset, .. } => resized(data, offset + space),
        Step::Punch { offset, bytes } => {
            let (start, end) = (data.len().min(offset as usize), data.len().min((offset + bytes) as usize));
            data[start..end].fill(0);
        }
        Step::Instantiate { .. } | Step::LeaveOut(_) => {}
    }
}

fn run(layout: Layout, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut file = File { layout, objects: BTreeMap::new() };
    let mut data = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let space = match *step {
            Step::Write { offset, bytes, .. }
            | Step::Allocate { offset, bytes }
            | Step::Instantiate { offset, bytes } => file.space(offset, bytes),
            Step::Truncate(size) => u64::from(size <= file.layout.end()),
            Step::Punch { bytes, .. } => bytes,
            Step::LeaveOut(_) => 1,
        };
        // Refused: beyond the last component.
        if space == 0 {
            continue;
        }
        match *step {
            Step::Write { offset, fill, .. } => file.write(offset, space, fill),
            Step::Truncate(size) => file.truncate(size),
            Step::Allocate { offset, .. } => file.allocate(offset, space),
            Step::Punch { offset, bytes } => file.punch(offset, bytes),
            Step::Instantiate { offset, .. } => file.grow(offset, space),
            Step::LeaveOut(offset) => file.leave_out(offset),
        }
        expect(&mut data, step, space);
        prop_assert_eq!(file.size(), data.len() as u64, "size after step {} {:?} of {:?}", number, step, file.layout);
        prop_assert!(file.read() == data, "data after step {} {:?} of {:?}", number, step, file.layout);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_reads_back(
        layout in prop_oneof![writable_layouts(), undecided_layouts()],
        steps in proptest::collection::vec(steps(), 1..16),
    ) {
        run(layout, &steps)?;
    }
}
