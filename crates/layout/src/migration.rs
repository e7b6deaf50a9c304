//! Whether a finished file should be migrated to another layout. Pure.
//!
//! A file that grew step by step has fewer objects at its beginning than one whose size was known
//! from the start; or OSTs were added later. This costs time whenever the file is read, and
//! migrating it costs time once. It is unknown how often it will be read, so the rule is that of
//! the ski rental problem (Karlin, Manasse, Rudolph and Sleator 1988): migrate when the time that
//! readers have lost equals the cost of migration. So at most twice as much time is spent as if the
//! future were known.
//!
//! A migration temporarily takes space for a second copy. This must not cause a lack of space: a
//! copy takes at most half of the free space of any OST ([`has_space`]).
//!
//! Times are those of [`crate::cost`]. Downside: each open for reading counts as one reading of the
//! whole file.

use crate::{
    automatic::{self, Situation},
    component::Extent,
    cost::{self, Hardware},
    layout::Layout,
    limits::END_OF_FILE,
};

/// By how much a layout must be faster to be worth a move, or a word of `stria explain`, in percent
/// of the present time.
pub const WORTH_PERCENT: u64 = 10;
/// And in microseconds: the model knows nothing of less.
pub const WORTH_US: u64 = 10_000;

/// What reading a file costs, and what it would cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Microseconds for one client to read it with its present layout.
    pub own_us: u64,
    /// Likewise, if it were moved.
    pub moved_us: u64,
}

impl Comparison {
    /// Of a file of `size` bytes with its layout, and the layout it would get now; `available` as
    /// in [`Situation`].
    pub fn new(hardware: &Hardware, layout: &Layout, size: u64, available: &[u64]) -> Self {
        let own_us = cost::parts(hardware, layout, size).iter().map(|part| part.one_client_us).sum();
        Self { own_us, moved_us: moved_us(hardware, size, available) }
    }

    /// Microseconds that each reader loses.
    pub fn lost_us(&self) -> u64 {
        self.own_us.saturating_sub(self.moved_us)
    }

    /// Microseconds that migration takes: the file is read once with its present layout and written
    /// with the new one.
    pub fn moving_us(&self) -> u64 {
        self.own_us.saturating_add(self.moved_us)
    }

    /// Whether the difference is more than the model's uncertainty.
    pub fn is_worth_naming(&self) -> bool {
        let lost = self.lost_us();
        lost >= WORTH_US && lost.saturating_mul(100) > self.own_us.saturating_mul(WORTH_PERCENT)
    }
}

/// Whether a copy of the data from `start` on of a file of `size` bytes leaves at least half of
/// what is free on each OST that it is likely to be on. `available` are the free bytes of all OSTs,
/// in any order: placement prefers those with more.
pub fn has_space(start: u64, size: u64, available: &[u64]) -> bool {
    let parts = parts_given_space(size, available.len());
    let widest = parts.iter().map(|(_, stripes)| *stripes as usize).max().unwrap_or(0);
    let mut most_free = available.to_vec();
    most_free.sort_unstable_by(|one, other| other.cmp(one));
    match widest.min(most_free.len()).checked_sub(1) {
        Some(last) => bytes_of_one_ost(start, &parts) <= most_free[last] / 2,
        None => parts.is_empty(),
    }
}

/// As [`has_space`], for one OST of the copy with this number of free bytes, of this number of OSTs
/// in all.
pub fn has_space_on(start: u64, size: u64, osts: usize, free: u64) -> bool {
    bytes_of_one_ost(start, &parts_given_space(size, osts)) <= free / 2
}

/// As [`moved_parts`] if space were no matter.
fn parts_given_space(size: u64, osts: usize) -> Vec<(Extent, u32)> {
    moved_parts(size, &vec![u64::MAX; osts])
}

/// At most so many of the bytes from `start` on come to one OST: if all parts lie on it.
fn bytes_of_one_ost(start: u64, parts: &[(Extent, u32)]) -> u64 {
    let of_part = |(extent, stripes): &(Extent, u32)| {
        let bytes = extent.end.saturating_sub(extent.start.max(start));
        bytes.div_ceil(u64::from(*stripes).max(1))
    };
    parts.iter().map(of_part).fold(0, u64::saturating_add)
}

/// Microseconds to read a file of `size` bytes whose size was known before it was written by one
/// client.
fn moved_us(hardware: &Hardware, size: u64, available: &[u64]) -> u64 {
    let us = |(extent, stripes): &(Extent, u32)| cost::one_client_us(hardware, extent.bytes(), *stripes, *stripes);
    moved_parts(size, available).iter().map(us).fold(0, u64::saturating_add)
}

/// The parts of such a file that are on OSTs, and the numbers of OSTs.
fn moved_parts(size: u64, available: &[u64]) -> Vec<(Extent, u32)> {
    let mut start = automatic::BYTES_ON_MDT;
    let (mut components, mut parts) = (2, Vec::new());
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
        parts.push((Extent { start, end }, next.stripe_count));
        (start, components) = (end, components + 1);
    }
    parts
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
    fn a_copy_leaves_at_least_half_of_what_is_free() {
        // Its parts have four stripes, a quarter on each OST.
        let size = 1000 * MIB;
        assert!(has_space(0, size, &[500 * MIB; 4]));
        assert!(!has_space(0, size, &[499 * MIB; 4]));
        assert!(has_space(0, size, &[500 * MIB, 500 * MIB, 0, 500 * MIB, 500 * MIB]), "that one need not be chosen");
        assert!(!has_space(0, size, &[u64::MAX, u64::MAX, 499 * MIB, u64::MAX]));
        assert!(has_space_on(0, size, 4, 500 * MIB) && !has_space_on(0, size, 4, 499 * MIB));
        // It is not in its own way: what it has taken it needs no more.
        for copied in (0..1000).step_by(40) {
            assert!(has_space(copied * MIB, size, &[(500 - copied / 4) * MIB; 4]), "{copied}");
        }
        assert!(has_space(0, 1000, &[]) && !has_space(0, size, &[]), "on the MDT, and not");
        // A fifth of the capacity of OSTs that are 85% full.
        assert!(!has_space(0, (8 * 200) << 30, &[150 << 30; 8]));
    }

    #[test]
    fn small_files_stay_and_files_of_a_cluster_that_grew_move() {
        assert!(!compare(&layout(&[(64 * MIB, 1)]), 20 * MIB, 8).is_worth_naming());
        let grown = layout(&[(64 * MIB, 2), (1024 * MIB, 2), (16 << 30, 2)]);
        assert!(!compare(&grown, 4 << 30, 2).is_worth_naming());
        assert!(compare(&grown, 4 << 30, 16).is_worth_naming());
    }
}
