//! Whether a finished file should be moved to another layout. Pure.
//!
//! A file that grew step by step lies on fewer objects at its beginning than one whose size was known when it was begun;
//! or OSTs were added since. That costs time whenever it is read, and moving it costs time once. Nobody knows how often it
//! will be read, so the rule is that of the ski rental (Karlin, Manasse, Rudolph and Sleator 1988): move when the time that
//! readers have lost is what moving costs. Whatever comes, at most twice as much time goes as with knowledge of the future.
//!
//! Times are those of [`crate::cost`]. Downside: each opening for reading counts as one reading of the whole file.

use crate::{
    automatic::{self, Situation},
    component::{END_OF_FILE, Extent},
    cost::{self, Hardware},
    layout::Layout,
};

/// By how much a layout must be faster to be worth a move, or a word of `stria explain`, in percent of the present time.
pub const WORTH_PERCENT: u64 = 10;
/// And in microseconds: the model knows nothing of less.
const WORTH_US: u64 = 10_000;

/// What reading a file costs, and what it would cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Microseconds for one client to read it as it lies.
    pub own_us: u64,
    /// Likewise, if it were moved.
    pub moved_us: u64,
}

impl Comparison {
    /// Of a file of `size` bytes with its layout, and the layout it would get now; `available` as in [`Situation`].
    pub fn new(hardware: &Hardware, layout: &Layout, size: u64, available: &[u64]) -> Self {
        let own_us = cost::parts(hardware, layout, size).iter().map(|part| part.one_client_us).sum();
        Self { own_us, moved_us: moved_us(hardware, size, available) }
    }

    /// Microseconds that each reader loses.
    pub fn lost_us(&self) -> u64 {
        self.own_us.saturating_sub(self.moved_us)
    }

    /// Microseconds that moving takes: it is read once as it lies and written as it will.
    pub fn moving_us(&self) -> u64 {
        self.own_us.saturating_add(self.moved_us)
    }

    /// Whether the difference is more than the model's uncertainty.
    pub fn is_worth_naming(&self) -> bool {
        let lost = self.lost_us();
        lost >= WORTH_US && lost.saturating_mul(100) > self.own_us.saturating_mul(WORTH_PERCENT)
    }
}

/// Microseconds to read a file of `size` bytes whose size was known before it was written by one client.
fn moved_us(hardware: &Hardware, size: u64, available: &[u64]) -> u64 {
    let mut start = automatic::BYTES_ON_MDT;
    let (mut components, mut us) = (2, 0u64);
    while start < size {
        let next = automatic::next_component(&Situation {
            rest: Extent { start, end: END_OF_FILE },
            request: Extent { start, end: start + 1 },
            size,
            expected: 0,
            components,
            writers: 1,
            clients: 1,
            files_written: 1,
            available,
            interrupted: 0,
        });
        let end = next.extent.end.min(size);
        us = us.saturating_add(cost::one_client_us(hardware, end - start, next.stripe_count, next.stripe_count));
        (start, components) = (end, components + 1);
    }
    us
}

#[cfg(test)]
mod tests {
    use types::OstIndex;

    use super::*;
    use crate::{
        plain::PlainLayout,
        reason::Reason,
        spec::{BackingSpec, ComponentSpec, StripeSpec},
    };

    const MIB: u64 = 1 << 20;

    /// An automatic layout with these components, as ends and numbers of OSTs.
    fn layout(parts: &[(u64, u16)]) -> Layout {
        let mut layout = Layout::composite(&[ComponentSpec { end: END_OF_FILE, backing: BackingSpec::Automatic }]);
        let mut start = 0;
        for (end, count) in parts {
            let position = layout.components.len() - 1;
            let cut =
                layout.cut(position, Extent { start, end: *end }, StripeSpec::default(), Reason::Position).unwrap();
            let plain = PlainLayout { stripe_bytes: MIB, osts: (0..*count).map(OstIndex).collect() };
            layout.instantiate(cut, plain, StripeSpec::default()).unwrap();
            start = *end;
        }
        layout
    }

    fn compare(layout: &Layout, size: u64, osts: u32) -> Comparison {
        Comparison::new(&Hardware::with_osts(osts), layout, size, &vec![u64::MAX; osts as usize])
    }

    #[test]
    fn a_file_that_grew_alone_is_worth_a_move_after_it_was_read_some_times() {
        let compared = compare(&layout(&[(64 * MIB, 1), (1024 * MIB, 4)]), 100 * MIB, 8);
        assert!(compared.is_worth_naming(), "{compared:?}");
        let reads = compared.moving_us().div_ceil(compared.lost_us());
        assert_eq!(reads, 3, "{compared:?}");
    }

    #[test]
    fn a_file_that_was_moved_is_not_moved_again() {
        for size in [5 * MIB, 100 * MIB, 1 << 30, 20 << 30] {
            let moved = match size >> 20 {
                0..64 => layout(&[(64 * MIB, 1)]),
                64..1024 => layout(&[(64 * MIB, 4), (1024 * MIB, 4)]),
                _ => layout(&[(64 * MIB, 8), (1024 * MIB, 8), (16 << 30, 8), (256 << 30, 8)]),
            };
            let compared = compare(&moved, size, 8);
            assert!(!compared.is_worth_naming(), "{size}: {compared:?}");
        }
    }

    #[test]
    fn small_files_stay_and_files_of_a_cluster_that_grew_move() {
        assert!(!compare(&layout(&[(64 * MIB, 1)]), 20 * MIB, 8).is_worth_naming());
        let grown = layout(&[(64 * MIB, 2), (1024 * MIB, 2), (16 << 30, 2)]);
        assert!(!compare(&grown, 4 << 30, 2).is_worth_naming());
        assert!(compare(&grown, 4 << 30, 16).is_worth_naming());
    }
}
