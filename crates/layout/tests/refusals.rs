//! Layouts that no MDT makes are refused by name, so that no invalid layout from disk or wire
//! reaches the arithmetic.

#![allow(missing_docs)]

use layout::{
    Backing, ChecksumType, Component, ComponentId, END_OF_FILE, Extent, Form, Layout, LayoutError, PlainLayout,
    SpecError, StripeSpec, component::ComponentError, plain::PlainLayoutError,
};
use types::{Generation, OstIndex};

const UNIT: u64 = 65536;

fn striped(first_slot: u32, count: u16) -> Backing {
    let plain = PlainLayout { stripe_bytes: UNIT, osts: (0..count).map(OstIndex).collect() };
    Backing::Striped { plain, first_slot, spec: StripeSpec::default() }
}

fn component(id: u32, start: u64, end: u64, backing: Backing) -> Component {
    Component { id: ComponentId(id), extent: Extent { start, end }, backing, reason: None }
}

/// One stripe, then two, then nothing yet.
fn valid() -> Layout {
    Layout {
        generation: Generation(3),
        form: Form::Composite,
        components: vec![
            component(1, 0, UNIT, striped(0, 1)),
            component(2, UNIT, 4 * UNIT, striped(1, 2)),
            component(3, 4 * UNIT, END_OF_FILE, Backing::Pending(StripeSpec::default())),
        ],
        slots_next: 3,
        ids_next: 4,
        named_by: None,
        checksum: ChecksumType::default(),
    }
}

fn broken(breakage: impl FnOnce(&mut Layout)) -> Result<(), LayoutError> {
    let mut layout = valid();
    assert_eq!(layout.validate(), Ok(()));
    breakage(&mut layout);
    layout.validate()
}

fn problem(id: u32, problem: ComponentError) -> Result<(), LayoutError> {
    Err(LayoutError::Component { id: ComponentId(id), problem })
}

#[test]
fn components_must_follow_each_other() {
    let gap = |id| Err(LayoutError::Gap(ComponentId(id)));
    assert_eq!(broken(|layout| layout.components[0].extent.start = UNIT), gap(1));
    assert_eq!(broken(|layout| layout.components[0].extent.end = 2 * UNIT), gap(2));
    assert_eq!(broken(|layout| layout.components[1].extent.end = 3 * UNIT), gap(3));
    assert_eq!(broken(|layout| layout.components.swap(0, 1)), gap(2));
    assert_eq!(
        broken(|layout| layout.components[1].extent = Extent { start: UNIT, end: 0 }),
        gap(2),
        "one that ends before it begins"
    );
    let empty = |layout: &mut Layout| {
        layout.components[1].backing = Backing::Automatic;
        layout.components[1].extent.end = UNIT;
    };
    assert_eq!(broken(empty), Err(LayoutError::Empty(ComponentId(2))));
}

#[test]
fn a_component_without_bytes_needs_an_extension() {
    let with = |next: Backing| {
        broken(move |layout| {
            layout.components[2] = component(3, 4 * UNIT, 4 * UNIT, Backing::Pending(StripeSpec::default()));
            layout.components.push(component(4, 4 * UNIT, END_OF_FILE, next));
            layout.ids_next = 5;
        })
    };
    assert_eq!(with(Backing::Extension { step_bytes: UNIT }), Ok(()));
    assert_eq!(with(Backing::Automatic), Err(LayoutError::Empty(ComponentId(3))));
    assert_eq!(with(Backing::Extension { step_bytes: 0 }), problem(4, ComponentError::Step(0)));
    assert_eq!(with(Backing::Extension { step_bytes: UNIT + 1 }), problem(4, ComponentError::Step(UNIT + 1)));
}

#[test]
fn what_was_asked_for_is_checked_too() {
    let spec = StripeSpec { osts: vec![OstIndex(0); 2001], ..StripeSpec::default() };
    let too_many = ComponentError::Spec(SpecError::StripeCount(2001));
    let pending = Backing::Pending(spec.clone());
    assert_eq!(broken(|layout| layout.components[2].backing = pending), problem(3, too_many.clone()));
    let ask = |layout: &mut Layout| match &mut layout.components[0].backing {
        Backing::Striped { spec: asked, .. } => *asked = spec,
        other => panic!("{other:?} has no stripes"),
    };
    assert_eq!(broken(ask), problem(1, too_many));
}

#[test]
fn numbers_and_slots_are_used_once() {
    let shared = |id| Err(LayoutError::Shared(ComponentId(id)));
    assert_eq!(broken(|layout| layout.components[1].id = ComponentId(1)), shared(1));
    assert_eq!(broken(|layout| layout.ids_next = 3), shared(3), "a number that is yet to be given");
    assert_eq!(broken(|layout| layout.slots_next = 2), shared(2), "a slot that is yet to be given");
    assert_eq!(broken(|layout| layout.components[1].backing = striped(0, 2)), shared(2));
    assert_eq!(broken(|layout| layout.components[0].backing = Backing::Mdt { slot: 2 }), shared(2));
}

#[test]
fn slots_stay_within_their_type() {
    assert_eq!(
        broken(|layout| layout.components[1].backing = striped(u32::MAX - 1, 2)),
        problem(2, ComponentError::Slots)
    );
    assert_eq!(
        broken(|layout| layout.components[0].backing = Backing::Mdt { slot: u32::MAX }),
        problem(1, ComponentError::Slots)
    );
    let mut layout = valid();
    layout.slots_next = u32::MAX;
    let plain = PlainLayout { stripe_bytes: UNIT, osts: vec![OstIndex(0)] };
    assert!(layout.instantiate(2, plain, StripeSpec::default()).is_err());
    assert_eq!(layout.validate(), Ok(()), "and nothing has changed");
}

#[test]
fn stripes_keep_their_limits() {
    let none = |layout: &mut Layout| layout.components[1].backing = striped(1, 0);
    assert_eq!(broken(none), problem(2, ComponentError::Plain(PlainLayoutError::NoStripes)));
    let many = |layout: &mut Layout| layout.components[1].backing = striped(1, 2001);
    assert_eq!(broken(many), problem(2, ComponentError::Plain(PlainLayoutError::TooManyStripes(2001))));
}

#[test]
fn data_on_the_mdt_come_first_and_end() {
    let second = |layout: &mut Layout| layout.components[1].backing = Backing::Mdt { slot: 1 };
    assert_eq!(broken(second), Err(LayoutError::MdtNotFirst(ComponentId(2))));
    let endless = |layout: &mut Layout| {
        layout.components = vec![component(1, 0, END_OF_FILE, Backing::Mdt { slot: 0 })];
    };
    assert_eq!(broken(endless), problem(1, ComponentError::EndlessMdt));
}

#[test]
fn layouts_have_at_most_256_components_and_none_after_the_last_was_deleted() {
    assert_eq!(broken(|layout| layout.components.clear()), Ok(()));
    let many = |layout: &mut Layout| layout.components = vec![layout.components[0].clone(); 257];
    assert_eq!(broken(many), Err(LayoutError::Count(257)));
}

#[test]
fn a_plain_layout_is_one_whole_component() {
    assert_eq!(broken(|layout| layout.form = Form::Plain), Err(LayoutError::NotPlain));
    let short = |layout: &mut Layout| {
        layout.form = Form::Plain;
        layout.components.truncate(1);
    };
    assert_eq!(broken(short), Err(LayoutError::NotPlain));
}
