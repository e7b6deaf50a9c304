//! Converts a layout back into the request for an equal one: for copies of files, and for defaults
//! taken from files.
//!
//! Counts, sizes, extents, pools and requested OSTs are kept; chosen OSTs are not. Automatic
//! decisions are made again.

use crate::{
    automatic,
    component::{Backing, Component},
    layout::{Form, Layout},
    spec::{self, BackingSpec, ComponentSpec, LayoutSpec, StripeCount, StripeSpec},
};

impl Layout {
    /// What to ask for to get a layout like this one. `None`: it has no components.
    pub fn request(&self) -> Option<LayoutSpec> {
        match (self.form, self.components.as_slice()) {
            (_, []) => None,
            (Form::Plain, [Component { backing: Backing::Striped { plain, spec, .. }, .. }]) => {
                Some(LayoutSpec::Plain(stripes(spec, plain.stripe_count(), plain.stripe_bytes)))
            }
            _ => Some(automatic::recognised(components(&self.components))),
        }
    }
}

fn components(components: &[Component]) -> Vec<ComponentSpec> {
    let mut asked: Vec<ComponentSpec> = Vec::with_capacity(components.len());
    for component in components {
        let end = component.extent.end;
        let backing = match &component.backing {
            _ if component.is_automatic() => BackingSpec::Automatic,
            Backing::Pending(spec) => BackingSpec::Striped(spec.clone()),
            Backing::Striped { plain, spec, .. } => {
                BackingSpec::Striped(stripes(spec, plain.stripe_count(), plain.stripe_bytes))
            }
            Backing::Mdt { .. } => BackingSpec::Mdt,
            Backing::Automatic => BackingSpec::Automatic,
            Backing::Extension { step_bytes } => {
                // Room for the component before it: the two were asked for as one.
                if let Some(before) = asked.last_mut()
                    && let BackingSpec::Striped(stripes) = &before.backing
                {
                    before.backing = BackingSpec::Extended(stripes.clone(), *step_bytes);
                    before.end = end;
                    continue;
                }
                BackingSpec::Extended(StripeSpec::default(), *step_bytes)
            }
        };
        spec::push(&mut asked, ComponentSpec { end, backing });
    }
    asked
}

/// What was asked for, where it left something open what was chosen.
fn stripes(asked: &StripeSpec, count: u32, stripe_bytes: u64) -> StripeSpec {
    let open = asked.stripe_count == StripeCount::Default && asked.osts.is_empty();
    StripeSpec {
        stripe_count: if open { StripeCount::Exactly(count) } else { asked.stripe_count },
        stripe_bytes: Some(stripe_bytes),
        ..asked.clone()
    }
}

#[cfg(test)]
mod tests {
    use types::{Generation, OstIndex};

    use super::*;
    use crate::{END_OF_FILE, Extent, PlainLayout, Reason};

    fn count(count: u32) -> StripeSpec {
        StripeSpec { stripe_count: StripeCount::Exactly(count), stripe_bytes: Some(1 << 20), ..StripeSpec::default() }
    }

    #[test]
    fn a_composite_layout_asks_for_what_it_was_asked_for() {
        let asked = vec![
            ComponentSpec { end: 65536, backing: BackingSpec::Mdt },
            ComponentSpec { end: 1 << 30, backing: BackingSpec::Extended(count(2), 64 << 20) },
            ComponentSpec { end: 2 << 30, backing: BackingSpec::Striped(count(3)) },
            ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic },
        ];
        let mut layout = Layout::composite(&asked);
        assert_eq!(layout.request(), Some(LayoutSpec::Composite(asked.clone())));
        let plain = PlainLayout { stripe_bytes: 1 << 20, osts: vec![OstIndex(3), OstIndex(1)] };
        layout.instantiate(1, plain, count(2)).unwrap();
        assert_eq!(layout.request(), Some(LayoutSpec::Composite(asked)), "objects change nothing");
    }

    /// A copy is decided by what is known when it is written.
    #[test]
    fn a_layout_that_grew_by_itself_asks_to_grow_by_itself() {
        for bytes_on_mdt_max in [0, 1 << 20] {
            let mut layout = Layout::composite(&automatic::components(bytes_on_mdt_max));
            let (rest, extent) = (layout.components.len() - 1, Extent { start: 4 << 20, end: 64 << 20 });
            let cut = layout.cut(rest, extent, count(2), Reason::Writers).unwrap();
            let plain = PlainLayout { stripe_bytes: 1 << 20, osts: vec![OstIndex(3), OstIndex(1)] };
            layout.instantiate(cut, plain, count(2)).unwrap();
            assert_eq!(layout.request(), Some(LayoutSpec::Automatic));
        }
        let first = ComponentSpec { end: 1 << 20, backing: BackingSpec::Striped(count(3)) };
        let rest = ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic };
        let mut layout = Layout::composite(&[first.clone(), rest.clone()]);
        layout.cut(1, Extent { start: 1 << 20, end: 4 << 20 }, count(1), Reason::Position).unwrap();
        assert_eq!(layout.request(), Some(LayoutSpec::Composite(vec![first, rest])), "what was asked for is kept");
    }

    #[test]
    fn a_plain_layout_keeps_what_was_chosen_but_not_where() {
        let plain = PlainLayout { stripe_bytes: 4 << 20, osts: vec![OstIndex(3), OstIndex(1)] };
        let layout = Layout::plain(Generation(1), plain, StripeSpec::default());
        let expected = StripeSpec { stripe_bytes: Some(4 << 20), ..count(2) };
        assert_eq!(layout.request(), Some(LayoutSpec::Plain(expected)));
    }

    #[test]
    fn nothing_asks_for_nothing() {
        let layout = Layout::composite(&[]);
        assert_eq!(layout.request(), None);
    }
}
