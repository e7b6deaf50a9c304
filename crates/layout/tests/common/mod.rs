//! Valid layouts of every kind, as an MDT would make them: requested, then instantiated in any
//! order.

#![allow(dead_code)]

use layout::{BackingSpec, ComponentSpec, Coverage, END_OF_FILE, Extent, Layout, PlainLayout, StripeCount, StripeSpec};
use proptest::prelude::*;
use types::{
    Generation, OstIndex,
    limits::{STRIPE_BYTES_MAX, STRIPE_BYTES_MIN},
};

/// Stripes over at most so many OSTs: more stripes are overstriped.
const OSTS: u32 = 6;

/// One component as drawn, before it becomes one.
#[derive(Clone, Debug)]
struct Drawn {
    /// Extent in stripe units of the smallest kind.
    units: u64,
    stripe_units: u64,
    stripe_count: u32,
    /// 0 striped, 1 data on the MDT (first one only), 2 extended, 3 automatic.
    kind: u8,
    /// Place in the order of instantiation; `None`: stays pending.
    turn: Option<u8>,
}

fn drawn(units_max: u64, kinds: u8) -> impl Strategy<Value = Drawn> {
    (1..=units_max, 1u64..=4, 1u32..=9, 0..kinds, proptest::option::weighted(0.7, any::<u8>())).prop_map(
        |(units, stripe_units, stripe_count, kind, turn)| Drawn { units, stripe_units, stripe_count, kind, turn },
    )
}

/// Stripes of a component on `OSTS` targets from `first` on.
pub fn stripes(stripe_bytes: u64, stripe_count: u32, first: usize) -> PlainLayout {
    let ost = |index: u32| OstIndex(((first as u32 + index) % OSTS) as u16);
    PlainLayout { stripe_bytes, osts: (0..stripe_count).map(ost).collect() }
}

fn asked(component: &Drawn, position: usize, end: u64) -> ComponentSpec {
    let stripes = StripeSpec {
        stripe_count: StripeCount::Overstriped(component.stripe_count),
        stripe_bytes: Some(component.stripe_units * STRIPE_BYTES_MIN),
        ..StripeSpec::default()
    };
    let backing = match component.kind {
        1 if position == 0 && end <= STRIPE_BYTES_MAX => BackingSpec::Mdt,
        2 => BackingSpec::Extended(stripes, STRIPE_BYTES_MIN),
        3 => BackingSpec::Automatic,
        _ => BackingSpec::Striped(stripes),
    };
    ComponentSpec { end, backing }
}

fn built(components: &[Drawn], endless: bool) -> Layout {
    let mut asked_for = Vec::new();
    let mut end = 0;
    for (position, component) in components.iter().enumerate() {
        end += component.units * STRIPE_BYTES_MIN;
        let last = position + 1 == components.len();
        asked_for.push(asked(component, position, if last && endless { END_OF_FILE } else { end }));
    }
    let mut layout = Layout::composite(&asked_for);
    let mut turns: Vec<(u8, usize)> =
        components.iter().enumerate().filter_map(|(position, one)| Some((one.turn?, position))).collect();
    turns.sort_unstable();
    for (_, position) in turns {
        let start = if position == 0 { 0 } else { asked_for[position - 1].end };
        instantiate(&mut layout, start, start + 1, position);
    }
    layout
}

/// Gives all components with stripes in `start..end` their objects, as the MDT does; false if one
/// is of another kind.
pub fn instantiate(layout: &mut Layout, start: u64, end: u64, first_ost: usize) -> bool {
    for position in layout.pending(start, end) {
        let layout::Backing::Pending(spec) = layout.components[position].backing.clone() else { return false };
        let StripeCount::Overstriped(count) = spec.stripe_count else { panic!("not what was drawn: {spec:?}") };
        let plain = stripes(spec.stripe_bytes.expect("drawn with one"), count, first_ost);
        layout.instantiate(position, plain, spec).expect("there are slots");
        layout.generation = layout.generation.next();
    }
    true
}

fn plain_layouts() -> impl Strategy<Value = Layout> {
    (1u64..=64, any::<bool>(), 1u32..=40).prop_map(|(units, large, count)| {
        let small = units * STRIPE_BYTES_MIN;
        let stripe_bytes = if large { STRIPE_BYTES_MAX - small } else { small };
        Layout::plain(Generation(1), stripes(stripe_bytes, count, 0), StripeSpec::default())
    })
}

fn composites(units_max: u64, kinds: u8, endless: bool) -> impl Strategy<Value = Layout> {
    proptest::collection::vec(drawn(units_max, kinds), 1..=6).prop_map(move |components| built(&components, endless))
}

/// Every kind of layout.
pub fn layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![
        plain_layouts(),
        composites(16, 4, false),
        composites(16, 4, true),
        // Some beyond any stripe's size.
        composites(1 << 20, 4, true),
    ]
}

/// Layouts whose every byte can be written: stripes and data on the MDT, some without an end.
pub fn writable_layouts() -> impl Strategy<Value = Layout> {
    prop_oneof![composites(4, 2, false), composites(4, 2, true)]
}

/// Layouts that nobody decided on from some byte on.
pub fn undecided_layouts() -> impl Strategy<Value = Layout> {
    composites(4, 2, false).prop_map(|mut layout| {
        layout.append(&ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic });
        layout.generation = layout.generation.next();
        layout
    })
}

/// The parts of `start..end` that have objects.
pub fn instantiated(layout: &Layout, start: u64, end: u64) -> Vec<Extent> {
    let parts = layout.components.iter().filter(|component| component.is_instantiated());
    parts.filter_map(|component| component.extent.intersection(start, end)).collect()
}

/// Whether the byte at `offset` has an object.
pub fn has_object(layout: &Layout, offset: u64) -> bool {
    layout.coverage(offset, 1) == Coverage::Complete
}
