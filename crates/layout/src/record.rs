//! Whether the record of an inode has space for the growth of its layout. Pure.
//!
//! A record has a largest size: components of very many stripes fill it long before there are
//! [`COMPONENTS_MAX`] of them. Growth must never fail for this reason. So optional changes (ending
//! a component early, leaving a range out of one, repeating one) are made only as long as
//! everything fits that may follow: objects for every component without them, on all OSTs that
//! exist, and a component for each watermark.
//!
//! Downside: OSTs that are added later are not counted. A layout on more than a thousand OSTs can
//! have only a few parts.

use types::limits::STRIPE_COUNT_MAX;

use crate::{
    automatic::WATERMARKS,
    component::{Backing, Component},
    layout::Layout,
    limits::COMPONENTS_MAX,
    spec::{StripeCount, StripeSpec},
};

/// Most bytes of a layout in a record (docs/disk_format.md), if it grows by these rules.
pub const RECORD_BYTES_MAX: usize = 126 << 10;
/// What a layout takes besides its components, and more.
const LAYOUT_BYTES: usize = 64;
/// What a component takes besides its OSTs, with the longest name of a pool, and more.
const COMPONENT_BYTES: usize = 80;
const OST_BYTES: usize = 2;

fn bytes(stripes: usize) -> usize {
    COMPONENT_BYTES + stripes.min(STRIPE_COUNT_MAX as usize) * OST_BYTES
}

/// Stripes that are asked for, at most, among so many OSTs.
fn stripes_of(spec: &StripeSpec, osts: usize) -> usize {
    match spec.stripe_count {
        StripeCount::Exactly(count) | StripeCount::Overstriped(count) => count as usize,
        StripeCount::PerOst(count) => osts.saturating_mul(count as usize),
        StripeCount::Default | StripeCount::All => osts.max(spec.osts.len()),
    }
}

/// What a component takes once it has its objects.
fn bytes_of(component: &Component, osts: usize) -> usize {
    match &component.backing {
        Backing::Striped { plain, spec, .. } => bytes(plain.osts.len()) + spec.osts.len() * OST_BYTES,
        Backing::Pending(spec) => bytes(stripes_of(spec, osts)) + spec.osts.len() * OST_BYTES,
        Backing::Automatic => bytes(osts),
        Backing::Mdt { .. } | Backing::Extension { .. } => bytes(0),
    }
}

impl Layout {
    /// Components, as many as count against what a layout can have: all that are possible, once its
    /// record has room only for what must follow. `osts`: as many as there are.
    pub fn components_counted(&self, osts: usize) -> usize {
        let known: usize = self.components.iter().map(|component| bytes_of(component, osts)).sum();
        let to_follow = (WATERMARKS.len() + 1) * bytes(osts) + (WATERMARKS.len() + 2) * bytes(0);
        let is_full = LAYOUT_BYTES + known + to_follow > RECORD_BYTES_MAX;
        if is_full { COMPONENTS_MAX } else { self.components.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::automatic;

    #[test]
    fn components_of_few_stripes_are_bounded_by_their_number() {
        let mut layout = Layout::composite(&automatic::components(0));
        let rest = layout.components[0].clone();
        layout.components = vec![rest; COMPONENTS_MAX - 1];
        assert_eq!(layout.components_counted(100), COMPONENTS_MAX - 1);
        assert_eq!(layout.components_counted(2000), COMPONENTS_MAX, "the record is full");
        layout.components.truncate(automatic::COMPONENTS_OF_WATERMARKS / 2);
        assert_eq!(layout.components_counted(2000), automatic::COMPONENTS_OF_WATERMARKS / 2);
    }
}
