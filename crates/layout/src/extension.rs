//! Self-extending components (`-z`): how a component grows into the space kept for it, step by
//! step. Pure.
//!
//! ```text
//! asked for   -E 1G -z 64M -c 1      -E -1 -c 4
//! made        | 1: no bytes | 2: extension space to 1 GiB | 3: four stripes, pending ...
//! at 70 MiB   | 1: to 128 MiB | 2: extension space | 3
//! OST full    | 1: to 128 MiB | 3: four stripes ...                            another component follows: it takes the space
//! or          | 1: to 128 MiB | 4: the same stripes elsewhere | 2: extension space ...    none follows
//! ```
//!
//! A step is as in Lustre (lustre/lod/lod_object.c, lod_sel_handler; manual, "Self-Extending
//! Layout"): the component before the extension space *extends* as long as its OSTs have space for
//! its share of a step. If not, the next component starts earlier (*spillover*); if there is no
//! next component, the component is *repeated* on other OSTs; if there are none, it extends
//! nevertheless, until an OST refuses. A component for which a first OST was requested is repeated
//! elsewhere too, as in Lustre: the first OST is where the component starts, not where it ends.
//!
//! The space of the OSTs is known from reports, which may be older than the time in which a step is
//! written. So a refusal counts like a report: the range of the component from there on that has no
//! data is left out ([`may_leave_out`]) and goes where it would have gone if the MDT had known.
//! (Lustre returns `ENOSPC` there.)
//!
//! Downside: in its last step a component has used up its extension space; for data refused there
//! it is no longer known that there was any.
//!
//! Invariants: bytes with objects keep them; every step assigns the first requested byte to a
//! component that can have objects, or makes progress towards that: an empty component is extended
//! at once, and extension space is removed only once.

use crate::{
    automatic::{self, COMPONENTS_SHORTENED_MAX},
    component::{Backing, Component, Extent},
    layout::Layout,
    spec::StripeSpec,
};

/// What to do about a write into the extension space at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The component before it grows to this end.
    Extend(u64),
    /// The extension space is removed; the component after it begins where the one before ends.
    /// Components without bytes are removed with it.
    Spill,
    /// A component like the one before, still without bytes, is inserted between it and the
    /// extension space, on other OSTs.
    Repeat,
}

/// What the OSTs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSpace {
    /// Those of the component before can hold another step (of one without objects yet: some OSTs
    /// can).
    pub before: bool,
    /// Others can.
    pub elsewhere: bool,
}

/// The component that grows into the extension space at `position`, how it was asked for, and the
/// step. `None` if there is no extension space, or no component with stripes before it.
pub fn growing(layout: &Layout, position: usize) -> Option<(&Component, &StripeSpec, u64)> {
    let Backing::Extension { step_bytes } = layout.components.get(position)?.backing else { return None };
    let before = &layout.components[position.checked_sub(1)?];
    match &before.backing {
        Backing::Pending(spec) | Backing::Striped { spec, .. } => Some((before, spec, step_bytes)),
        Backing::Mdt { .. } | Backing::Extension { .. } | Backing::Automatic => None,
    }
}

/// Whether what has no data in the component at `position` may go elsewhere when its OSTs refuse
/// it: its place was not asked for, or it is one that grows.
pub fn may_leave_out(layout: &Layout, position: usize) -> bool {
    automatic::is_automatic(layout) || is_growing(layout, position)
}

/// Whether extension space follows the component at `position`, after nothing but parts and
/// repetitions of it.
pub fn is_growing(layout: &Layout, position: usize) -> bool {
    let anywhere = |position: usize| match &layout.components.get(position)?.backing {
        Backing::Striped { spec, .. } => Some(StripeSpec { first_ost: None, ..spec.clone() }),
        _ => None,
    };
    let Some(own) = anywhere(position) else { return false };
    let following = (position + 1..).find(|next| anywhere(*next).as_ref() != Some(&own));
    let following = following.and_then(|next| layout.components.get(next));
    matches!(following.map(|component| &component.backing), Some(Backing::Extension { .. }))
}

/// Decides about the extension space at `position`, into which `request` comes. `None` if that
/// component is none.
pub fn next_step(layout: &Layout, position: usize, request: Extent, space: StepSpace) -> Option<Step> {
    let (before, spec, step_bytes) = growing(layout, position)?;
    let extent = layout.components[position].extent;
    let asked = request.intersection(extent.start, extent.end)?;
    let steps = (asked.end - extent.start).div_ceil(step_bytes);
    let end = extent.start.saturating_add(steps.saturating_mul(step_bytes)).min(extent.end);
    let has_next = position + 1 < layout.components.len();
    let may_repeat = spec.osts.is_empty()
        && before.is_instantiated()
        && !before.extent.is_empty()
        && layout.components_counted(before.slots().len()) < COMPONENTS_SHORTENED_MAX;
    Some(match space {
        StepSpace { before: true, .. } => Step::Extend(end),
        _ if has_next => Step::Spill,
        StepSpace { elsewhere: true, .. } if may_repeat => Step::Repeat,
        _ => Step::Extend(end),
    })
}

#[cfg(test)]
mod tests {
    use types::OstIndex;

    use super::*;
    use crate::{
        limits::END_OF_FILE,
        plain::PlainLayout,
        spec::{BackingSpec, ComponentSpec, StripeCount},
    };

    const MIB: u64 = 1 << 20;
    const STEP: u64 = 64 * MIB;

    fn stripes(count: u32) -> StripeSpec {
        StripeSpec { stripe_count: StripeCount::Exactly(count), stripe_bytes: Some(MIB), ..StripeSpec::default() }
    }

    /// One stripe that grows to 1 GiB (or forever), then four stripes (or nothing).
    fn extended(has_next: bool) -> Layout {
        let end = if has_next { 1 << 30 } else { END_OF_FILE };
        let mut asked = vec![ComponentSpec { end, backing: BackingSpec::Extended(stripes(1), STEP) }];
        if has_next {
            asked.push(ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Striped(stripes(4)) });
        }
        Layout::composite(&asked)
    }

    fn instantiate(layout: &mut Layout, position: usize) {
        let plain = PlainLayout { stripe_bytes: MIB, osts: vec![OstIndex(position as u16)] };
        layout.instantiate(position, plain, stripes(1)).unwrap();
    }

    fn step(layout: &Layout, start: u64, before: bool, elsewhere: bool) -> Option<Step> {
        let position = *layout.pending(start, start + 1).first().unwrap();
        next_step(layout, position, Extent { start, end: start + 1 }, StepSpace { before, elsewhere })
    }

    #[test]
    fn steps_by_space_and_what_follows() {
        // (a component follows, its OSTs have room, others have) -> step at 70 MiB of a component
        // that ends at 64 MiB.
        let table = [
            ((true, true, true), Step::Extend(2 * STEP)),
            ((true, true, false), Step::Extend(2 * STEP)),
            ((true, false, true), Step::Spill),
            ((true, false, false), Step::Spill),
            ((false, true, false), Step::Extend(2 * STEP)),
            ((false, false, true), Step::Repeat),
            ((false, false, false), Step::Extend(2 * STEP)),
        ];
        for ((has_next, before, elsewhere), expected) in table {
            let mut layout = extended(has_next);
            layout.extend(0, STEP).unwrap();
            instantiate(&mut layout, 0);
            let found = step(&layout, 70 * MIB, before, elsewhere);
            assert_eq!(found, Some(expected), "{has_next} {before} {elsewhere}");
        }
    }

    #[test]
    fn steps_cover_the_request_and_end_with_the_extension() {
        let layout = extended(true);
        assert_eq!(step(&layout, 0, true, true), Some(Step::Extend(STEP)));
        assert_eq!(step(&layout, 10 * STEP, true, true), Some(Step::Extend(11 * STEP)));
        assert_eq!(step(&layout, (1 << 30) - 1, true, true), Some(Step::Extend(1 << 30)));
        let request = Extent { start: 0, end: u64::MAX };
        let both = StepSpace { before: true, elsewhere: true };
        assert_eq!(next_step(&layout, 1, request, both), Some(Step::Extend(1 << 30)));
        assert_eq!(next_step(&layout, 2, request, both), None, "no extension space there");
    }

    #[test]
    fn what_was_asked_for_exactly_is_not_repeated_elsewhere() {
        let spec = StripeSpec { osts: vec![OstIndex(0)], ..stripes(1) };
        let backing = BackingSpec::Extended(spec.clone(), STEP);
        let mut layout = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing }]);
        layout.extend(0, STEP).unwrap();
        layout.instantiate(0, PlainLayout { stripe_bytes: MIB, osts: vec![OstIndex(0)] }, spec).unwrap();
        assert_eq!(step(&layout, STEP, false, true), Some(Step::Extend(2 * STEP)));
    }

    #[test]
    fn where_a_component_begins_does_not_keep_it_from_being_repeated() {
        let spec = StripeSpec { first_ost: Some(OstIndex(0)), ..stripes(1) };
        let backing = BackingSpec::Extended(spec.clone(), STEP);
        let mut layout = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing }]);
        layout.extend(0, STEP).unwrap();
        layout.instantiate(0, PlainLayout { stripe_bytes: MIB, osts: vec![OstIndex(0)] }, spec).unwrap();
        assert_eq!(step(&layout, STEP, true, true), Some(Step::Extend(2 * STEP)));
        assert_eq!(step(&layout, STEP, false, true), Some(Step::Repeat));
    }

    #[test]
    fn a_part_without_data_is_left_out_of_what_grows() {
        let mut layout = extended(true);
        layout.extend(0, STEP).unwrap();
        instantiate(&mut layout, 0);
        assert_eq!([0, 1, 2].map(|position| may_leave_out(&layout, position)), [true, false, false]);
        // The end goes back to the extension space, and from there on.
        let space = layout.components[1].backing.clone();
        let mut ended = layout.clone();
        ended.leave_out_to(0, Extent { start: 10 * MIB, end: STEP }, space.clone()).unwrap();
        assert_eq!(ended.validate(), Ok(()));
        assert_eq!(ended.components[1].extent, Extent { start: 10 * MIB, end: 1 << 30 });
        ended.spill(1);
        assert_eq!(ended.validate(), Ok(()));
        assert_eq!(ended.components[1].extent, Extent { start: 10 * MIB, end: END_OF_FILE });
        // In the middle, the parts and what is between them grow as one.
        let mut parts = layout.clone();
        let middle = Extent { start: 10 * MIB, end: 20 * MIB };
        parts.leave_out_to(0, middle, Backing::Pending(stripes(1))).unwrap();
        instantiate(&mut parts, 1);
        assert_eq!(parts.validate(), Ok(()));
        assert!((0..3).all(|position| may_leave_out(&parts, position)), "{parts:?}");
        // Without data at all it stays for its objects.
        let mut whole = layout;
        whole.leave_out_to(0, Extent { start: 0, end: STEP }, space).unwrap();
        whole.spill(1);
        assert_eq!(whole.validate(), Ok(()));
        assert_eq!((whole.objects().count(), whole.components.len()), (1, 2));
    }

    #[test]
    fn spilling_and_repeating_keep_the_layout_valid() {
        let mut layout = extended(true);
        layout.extend(0, STEP).unwrap();
        instantiate(&mut layout, 0);
        layout.spill(1);
        assert_eq!(layout.validate(), Ok(()));
        assert_eq!(layout.components.len(), 2);
        assert_eq!(layout.components[1].extent, Extent { start: STEP, end: END_OF_FILE });

        let mut unused = extended(true);
        unused.spill(1);
        assert_eq!(unused.validate(), Ok(()));
        assert_eq!(unused.components.len(), 1, "what never got bytes goes too");

        let mut layout = extended(false);
        layout.extend(0, STEP).unwrap();
        instantiate(&mut layout, 0);
        let position = layout.repeat(1).unwrap();
        assert_eq!(layout.validate(), Ok(()));
        assert!(layout.components[position].extent.is_empty());
        layout.extend(position, 2 * STEP).unwrap();
        instantiate(&mut layout, position);
        assert_eq!(layout.validate(), Ok(()));
        assert_eq!(layout.objects().count(), 2);
    }
}
